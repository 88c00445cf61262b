"""`relief-ray explain`: why a client trains what it trains, for a reader who has not seen the paper."""

from __future__ import annotations

import json
import math
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

from actors.commands.explain_text import text
from actors.commands.open import open_run
from actors.exits import WIDTH
from relief_ray.errors import UserError
from relief_ray.federated import RoundContext
from relief_ray.groups import GroupId
from relief_ray.messages import ClientInfo, ServerState
from relief_ray.names import shown
from relief_ray.records.reading import read_rounds
from relief_ray.records.schema import RoundRecord
from relief_ray.server import budget
from relief_ray.server.divergence import D_BAR, to_tensor
from relief_ray.setup import Setup, context_of
from relief_ray.strategies.relief import Relief, client_load, plan, ranking, target_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """One group, in the order of the offers; ``seconds``: the client's round with it and all taken before."""

    group: GroupId
    verdict: str
    seconds: float
    d_bar: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """Everything that decided ``S_n``; ``slowest`` is the client whose mandatory blocks set T*."""

    run: str
    round: int
    rounds: int
    strategy: str
    clock: str
    client: ClientInfo
    epochs: int
    device: str
    modalities: tuple[str, ...]
    select: str
    forced: bool
    target_s: float
    given_target: bool
    slowest: ClientInfo
    overhead_s: float
    tau_s: float
    affordable: int
    slots: int
    mandatory: tuple[GroupId, ...]
    offers: tuple[Offer, ...]
    groups: tuple[GroupId, ...]
    planned_s: float
    fedavg_s: float
    source: str
    trained: tuple[str, ...] | None = field(default=None)


def explain(folder: Path, round_: int, client: int, as_json: bool) -> None:
    """Prints one client's allocation of one round.

    Raises:
        UserError: no such round or client.
    """
    setup, rounds = open_run(folder), read_rounds(folder)
    check(setup, rounds, folder, round_, client)
    simple = without_allocation(setup, round_, client)
    if simple is not None:
        facts = {"run": str(folder), "round": round_, "client": client, "text": simple}
        print(json.dumps(facts) if as_json else textwrap.fill(simple, WIDTH))
        return
    found = explanation(setup, rounds, folder, round_, client)
    print(json.dumps(as_facts(found), indent=1) if as_json else text(found))


def check(setup: Setup, rounds: tuple[RoundRecord, ...], folder: Path, round_: int, client: int) -> None:
    """Refuses what the run has not got.

    Raises:
        UserError: with the range that it has.
    """
    first = 0 if setup.strategy.bootstrap else 1
    last = rounds[-1].round if rounds else first - 1
    limit = min(last + 1, setup.config.rounds)
    if not first <= round_ <= limit:
        raise UserError(f"--round {round_}: no such round in {folder}; expected {first} to {limit}")
    if not 0 <= client < len(setup.fleet):
        raise UserError(f"--client {client}: the fleet has the clients 0 to {len(setup.fleet) - 1}")


def without_allocation(setup: Setup, round_: int, client: int) -> str | None:
    """A sentence where nothing had to be chosen; none where RELIEF solved an allocation."""
    config, info = setup.config.strategy, setup.fleet[client]
    number, total = len(setup.layout.accessible(info.modalities)), len(setup.layout)
    who = f"Client {client} (Type {info.device}, sensors {', '.join(info.modalities)})"
    if not isinstance(config, Relief):
        return (
            f"{shown(setup.config.label())} leaves nothing to explain: it has no deadline under which a client "
            f"would have to choose among the {total} groups of the model. Ask about relief, v2, v3 or their kin."
        )
    if round_ == 0:
        return (
            f"Round 0 is the bootstrap: {who} trains all {number} groups that its sensors reach, once, so that the "
            "server can measure how much the clients disagree about each group. The budgets start in round 1."
        )
    if config.select == "all":
        return f"V1 has no budget: {who} trains all {number} groups that its sensors reach, in every round."
    return None


def state_before(setup: Setup, rounds: tuple[RoundRecord, ...], round_: int) -> tuple[ServerState, str]:
    """What the allocation saw: ``d_bar`` of the round before."""
    before = next((r for r in rounds if r.round == round_ - 1), None)
    if before is None:
        raise UserError(f"--round {round_}: round {round_ - 1}, whose divergences decided it, is not in the ledger")
    tensor = to_tensor(dict(before.d_bar), setup.layout)
    return ServerState(models={"global": setup.start}, tensors={D_BAR: tensor}), f"round {before.round}"


def explanation(setup: Setup, rounds: tuple[RoundRecord, ...], folder: Path, round_: int, client: int) -> Explanation:
    """Solves the allocation again, with the run's own functions, and compares it with what was recorded."""
    config, info = setup.config.strategy, setup.fleet[client]
    assert isinstance(config, Relief)
    record = next((r for r in rounds if r.round == round_), None)
    context = context_of(setup, round_, tuple(setup.fleet[n] for n in record.participants) if record else None)
    state, source = state_before(setup, rounds, round_)
    load, deadline = client_load(context, info), target_s(config, context)
    overhead, tau = budget.group_seconds(load)
    chosen = plan(config, state, context, info, deadline)
    order = ranking(config, state, context, info, load)
    return Explanation(
        run=str(folder),
        round=round_,
        rounds=setup.config.rounds,
        strategy=setup.config.label(),
        clock=setup.config.costs.planning_time,
        client=info,
        epochs=setup.config.training.epochs,
        device=describe_device(setup, info),
        modalities=setup.fleet.modalities,
        select=config.select,
        forced=config.mandatory,
        target_s=deadline,
        given_target=config.deadline_s is not None or config.deadline_fraction is not None,
        slowest=slowest(context),
        overhead_s=overhead,
        tau_s=tau,
        affordable=math.floor((deadline - overhead) / tau + budget.SLACK),
        slots=chosen.budget,
        mandatory=load.mandatory,
        offers=offers(load, chosen, order, dict(rounds_d_bar(rounds, round_))),
        groups=chosen.groups,
        planned_s=load.seconds(chosen.groups),
        fedavg_s=setup.reference[setup.config.costs.planning_time].clients[client].times.busy_s,
        source=source,
        trained=recorded(record, client),
    )


def rounds_d_bar(rounds: tuple[RoundRecord, ...], round_: int) -> dict[str, float]:
    """The smoothed divergences after the round before."""
    return next((dict(r.d_bar) for r in rounds if r.round == round_ - 1), {})


def recorded(record: RoundRecord | None, client: int) -> tuple[str, ...] | None:
    """What the client trained by the ledger; none where the round or the client is not in it."""
    return next((c.trained for c in record.clients if c.client == client), None) if record is not None else None


def slowest(context: RoundContext) -> ClientInfo:
    """The client whose mandatory blocks take longest: it sets T*."""

    def needed(client: ClientInfo) -> float:
        load = client_load(context, client)
        return load.seconds(load.mandatory)

    return max(context.fleet.clients, key=needed)


def describe_device(setup: Setup, info: ClientInfo) -> str:
    """``Type B, 21 TOPS, 30 W``."""
    kind = setup.types[info.device]
    return f"Type {info.device}, {kind.peak_tops:g} TOPS, {kind.active_power_w:g} W"


def offers(
    load: budget.Load, chosen: budget.Allocation, order: list[GroupId], d_bar: dict[GroupId, float]
) -> tuple[Offer, ...]:
    """Mandatory groups, then the others in the order in which slots were offered, each with its price and verdict."""
    refused = {r.group: r for r in chosen.refused}
    taken: list[GroupId] = list(chosen.groups[: chosen.num_mandatory])
    found = [
        Offer(group=j, verdict="mandatory", seconds=load.seconds(taken[: i + 1]), d_bar=d_bar.get(j))
        for i, j in enumerate(taken)
    ]
    for j in (j for j in order if j not in chosen.groups[: chosen.num_mandatory]):
        if j in refused:
            found.append(Offer(group=j, verdict=refused[j].reason, seconds=refused[j].seconds, d_bar=d_bar.get(j)))
        else:
            taken.append(j)
            found.append(Offer(group=j, verdict="chosen", seconds=load.seconds(taken), d_bar=d_bar.get(j)))
    return tuple(found)


def as_facts(found: Explanation) -> dict[str, object]:
    """The explanation as JSON."""
    return {
        "run": found.run,
        "round": found.round,
        "strategy": found.strategy,
        "clock": found.clock,
        "client": found.client.id,
        "device": found.client.device,
        "modalities": list(found.client.modalities),
        "target_s": found.target_s,
        "target_set_by": None if found.given_target else found.slowest.id,
        "overhead_s": found.overhead_s,
        "tau_s": found.tau_s,
        "budget": found.slots,
        "mandatory": list(found.mandatory),
        "offers": [
            {"group": o.group, "verdict": o.verdict, "seconds": o.seconds, "d_bar": o.d_bar} for o in found.offers
        ],
        "groups": list(found.groups),
        "planned_s": found.planned_s,
        "fedavg_s": found.fedavg_s,
        "recorded": None if found.trained is None else list(found.trained),
    }
