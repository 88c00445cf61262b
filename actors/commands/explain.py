"""`relief-ray explain`: why a client trains what it trains, for a reader who has not seen the paper."""

from __future__ import annotations

import json
import math
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

from actors.commands.output import counted, listed, table
from actors.commands.plan import open_run
from actors.terminal.exit_codes import WIDTH
from relief_ray.errors import UserError
from relief_ray.experiment.setup import Setup, context_of
from relief_ray.federated import RoundContext
from relief_ray.groups import GroupId
from relief_ray.messages import ClientInfo, ServerState
from relief_ray.records.run_folder import read_rounds
from relief_ray.records.schema import RoundRecord
from relief_ray.server.aggregation import to_tensor
from relief_ray.strategies import display_name
from relief_ray.strategies.relief import Relief, budget
from relief_ray.strategies.relief.divergence import D_BAR
from relief_ray.strategies.relief.strategy import client_load, plan, ranking, target_s

# The words of `relief-ray explain`.


VERDICTS = {"mandatory": "always", "chosen": "yes", "budget": "no: all slots are taken", "time": "no: too slow"}


def text(reasons: Explanation) -> str:
    """Deadline, budget, choice, result: four short sections."""
    return "\n\n".join(
        [
            "\n".join(part)
            for part in (
                intro(reasons),
                deadline(reasons),
                slots(reasons),
                choice(reasons),
                result(reasons),
            )
        ]
    )


def intro(reasons: Explanation) -> list[str]:
    """Heading: client, round, run, device and data."""
    info = reasons.client
    lacks = [m for m in reasons.modalities if m not in info.modalities]
    return [
        f"Client {info.id} in round {reasons.round} of {reasons.rounds}: what it trains, and why",
        f"{reasons.run}, strategy {display_name(reasons.strategy)}",
        "",
        f"The device   {reasons.device}.",
        f"Its sensors  {listed(info.modalities)}"
        + (f"; it lacks {listed(lacks)}." if lacks else ": all that there are."),
        f"Its data     {info.num_windows} windows, {counted(reasons.epochs, 'epoch')} a round.",
        f"Seconds are simulated (clock {reasons.clock}) and cover receiving, training and sending.",
    ]


def deadline(reasons: Explanation) -> list[str]:
    """Section on the deadline T* of a round."""
    if reasons.given_target:
        how = ["T* was given in the configuration (strategy.deadline_s or deadline_fraction)."]
    else:
        who = (
            "this client"
            if reasons.slowest.id == reasons.client.id
            else f"client {reasons.slowest.id} (Type {reasons.slowest.device})"
        )
        how = [
            "RELIEF lets every device train its mandatory blocks: the fusion weights that read its sensors.",
            f"T* is the least time in which every device manages that; the slowest at it is {who}.",
        ]
    saved = f"Training the whole model, as in FedAvg, would keep this client busy for {reasons.fedavg_s:.3f} s."
    return [
        f"1. The deadline of a round is T* = {reasons.target_s:.3f} s",
        *("   " + line for line in [*how, saved]),
    ]


def slots(reasons: Explanation) -> list[str]:
    """Section on the number of groups k_n that the client has time for."""
    number, total = (
        len(reasons.mandatory),
        len(reasons.offers) if reasons.select != "none" else reasons.slots,
    )
    span = reasons.target_s - reasons.overhead_s
    lines = [
        f"Without training it is busy for {reasons.overhead_s:.3f} s (receiving, and one pass over its data).",
        f"Each further group adds {reasons.tau_s:.3f} s on average: ({reasons.target_s:.3f} - "
        f"{reasons.overhead_s:.3f}) / {reasons.tau_s:.3f} = {span / reasons.tau_s:.2f}, "
        f"so {reasons.affordable} groups fit.",
    ]
    if reasons.affordable < number:
        lines.append(f"That is less than its {number} mandatory blocks; these count anyway.")
    elif reasons.affordable > total:
        lines.append(f"Its sensors reach {total} groups only, so it may train all of them.")
    return [
        f"2. This client has room for {counted(reasons.slots, 'group')}",
        *("   " + line for line in lines),
    ]


def choice(reasons: Explanation) -> list[str]:
    """Section on the ranking of groups with its cut-off."""
    how = {
        "divergence": [
            "First its mandatory blocks. The rest goes to the groups about which clients disagreed most",
            f"(d_bar: the smoothed divergence of their updates after {reasons.source}), while slots and time last.",
        ],
        "random": ["The slots are filled at random (drawn from the run's seed), while slots and time last."],
        "none": ["Only its mandatory blocks; this strategy leaves the rest of the time unused."],
    }[reasons.select]
    if not reasons.forced:
        how[0] = how[0].replace("First its mandatory blocks. The rest goes to", "Slots go to")
        how.append("This strategy does not force the mandatory blocks in: they compete like the others.")
    how.append("busy: seconds of a round with this group and those already taken; over T*: what is too much.")
    rows = [row(i, offer) for i, offer in enumerate(reasons.offers, start=1)]
    head = ["", "group", "trains it?", "d_bar", "busy, s", "over T*"]
    body = [f"   {line}" for line in table(head, rows, left=3, indent="").splitlines()]
    over = {
        i: f"+{o.seconds - reasons.target_s:.3f}"
        for i, o in enumerate(reasons.offers)
        if o.seconds > reasons.target_s * (1 + 1e-9)
    }
    body = body[:2] + [line + ("" if i not in over else f"  {over[i]:>7}") for i, line in enumerate(body[2:])]
    return ["3. Who gets the slots", *(f"   {line}" for line in how), "", *body]


def row(number: int, offer: Offer) -> list[str]:
    """One group's line, without the last column."""
    d_bar = "-" if offer.d_bar is None else f"{offer.d_bar:.3e}"
    return [f"{number:2}", offer.group, VERDICTS[offer.verdict], d_bar, f"{offer.seconds:.3f}", ""]


def paragraph(text: str) -> str:
    """Wrapped text below a section's headline."""
    return textwrap.fill(text, WIDTH, initial_indent="   ", subsequent_indent="   ", break_on_hyphens=False)


def result(reasons: Explanation) -> list[str]:
    """Section on the chosen groups S_n, and whether the ledger agrees."""
    left = reasons.target_s - reasons.planned_s
    spare = f"{left:.3f} s before the deadline" if left > 0 else f"{-left:.3f} s after the deadline"
    spare = "just at the deadline" if abs(left) < 0.0005 else spare
    lines = [
        f"4. It trains {counted(len(reasons.groups), 'group')} and is done after {reasons.planned_s:.3f} s, {spare}",
        paragraph(", ".join(reasons.groups)),
    ]
    if reasons.trained is None:
        lines.append("   The ledger has no such round for this client: this is what it will do if it takes part.")
    elif set(reasons.trained) == set(reasons.groups):
        lines.append(f"   The record of round {reasons.round} says the same.")
    else:
        other = ", ".join(reasons.trained)
        lines.append(paragraph(f"But the record of round {reasons.round} says {other}: was it made by other code?"))
    return lines


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """One group, in the order of the offers; ``seconds``: the client's round with it and all taken before."""

    group: GroupId
    verdict: str
    seconds: float
    d_bar: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """Everything that decided ``S_n``, the groups that client n trains in a round.

    Attributes:
        run, round, rounds: the run's folder, the round, and the number of rounds of the run.
        strategy: label of the method.
        clock: the time model that planned.
        client: the client n.
        epochs: local epochs.
        device: its device in words.
        modalities: all sensors of the fleet.
        select: by what groups are ranked; ``none``: they are not.
        forced: whether mandatory groups come first.
        target_s: the round's deadline T*.
        given_target: whether T* was configured.
        slowest: the client whose mandatory groups set T* where it was not.
        overhead_s: seconds of the client's round without any group.
        tau_s: seconds that one more group takes.
        affordable, slots: how many groups fit into T*, and how many the client may take.
        mandatory: its mandatory groups.
        offers: the groups in the order in which they were offered, with the verdict on each.
        groups: ``S_n``.
        planned_s, fedavg_s: seconds of its round with ``S_n``, and under FedAvg.
        source: the round that the divergences are from, in words.
        trained: groups that the ledger says it trained; None where the ledger has no such round or client.
    """

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


def explain_command(folder: Path, round_: int, client: int, as_json: bool) -> None:
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
    reasons = explanation(setup, rounds, folder, round_, client)
    print(json.dumps(as_facts(reasons), indent=1) if as_json else text(reasons))


def check(setup: Setup, rounds: tuple[RoundRecord, ...], folder: Path, round_: int, client: int) -> None:
    """Checks that the run has this round and this client.

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
            f"{display_name(setup.config.label())} leaves nothing to explain: it has no deadline under which a client "
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
    """Server state that the allocation saw: ``d_bar`` of the round before."""
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
    """Groups that the client trained by the ledger; None where the round or the client is not in it."""
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
    reasons = [
        Offer(group=j, verdict="mandatory", seconds=load.seconds(taken[: i + 1]), d_bar=d_bar.get(j))
        for i, j in enumerate(taken)
    ]
    for j in (j for j in order if j not in chosen.groups[: chosen.num_mandatory]):
        if j in refused:
            reasons.append(Offer(group=j, verdict=refused[j].reason, seconds=refused[j].seconds, d_bar=d_bar.get(j)))
        else:
            taken.append(j)
            reasons.append(Offer(group=j, verdict="chosen", seconds=load.seconds(taken), d_bar=d_bar.get(j)))
    return tuple(reasons)


def as_facts(reasons: Explanation) -> dict[str, object]:
    """The reasons as JSON."""
    return {
        "run": reasons.run,
        "round": reasons.round,
        "strategy": reasons.strategy,
        "clock": reasons.clock,
        "client": reasons.client.id,
        "device": reasons.client.device,
        "modalities": list(reasons.client.modalities),
        "target_s": reasons.target_s,
        "target_set_by": None if reasons.given_target else reasons.slowest.id,
        "overhead_s": reasons.overhead_s,
        "tau_s": reasons.tau_s,
        "budget": reasons.slots,
        "mandatory": list(reasons.mandatory),
        "offers": [
            {"group": o.group, "verdict": o.verdict, "seconds": o.seconds, "d_bar": o.d_bar} for o in reasons.offers
        ],
        "groups": list(reasons.groups),
        "planned_s": reasons.planned_s,
        "fedavg_s": reasons.fedavg_s,
        "recorded": None if reasons.trained is None else list(reasons.trained),
    }
