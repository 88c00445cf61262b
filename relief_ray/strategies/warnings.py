"""Whether RELIEF's deadline leaves anybody a choice: a run in which all free slots are empty looks like any other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Decimal
from types import MappingProxyType

from relief_ray.federated import RoundContext
from relief_ray.groups import GroupId
from relief_ray.messages import ClientInfo
from relief_ray.strategies.common import StrategyConfig
from relief_ray.strategies.fedlease.strategy import FedLEASE
from relief_ray.strategies.harmony import strategy as harmony
from relief_ray.strategies.harmony.strategy import UNIMODAL, Harmony
from relief_ray.strategies.pilot.strategy import Pilot
from relief_ray.strategies.relief import budget
from relief_ray.strategies.relief.strategy import Relief, client_load, target_s

# Whether a method of two phases gets beyond its first: a run that never does looks like any other.


# By method: the setting that the first phase's length comes from, and what a run is that ends with it.
SETTING: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "fedlease": ("warmup_rounds", "every client trains alone, and no expert or router is ever trained"),
        "harmony": ("unimodal_share", "every sensor's network trains apart, and fusion and head are never trained"),
        "pilot": ("stage1_share", "no adapter of another task is ever mixed in"),
    }
)

# How many more rounds are tried for an advice.
FURTHER = 200


def unreached(config: StrategyConfig, context: RoundContext, participation: float) -> str | None:
    """What has to be said where no round of the run is of the method's later phase; None where one is.

    ``context``: the last round's; ``participation``: the share of clients in every round.
    """
    if not ends_first(config, context, participation):
        return None
    given = context.num_rounds
    longer = (replace(context, round=n, num_rounds=n) for n in range(given + 1, given + 1 + FURTHER))
    enough = next((c.num_rounds for c in longer if not ends_first(config, c, participation)), None)
    name = config.build().name
    key, what = SETTING[name]
    fixes = [f"rounds={enough} or more"] * (enough is not None)
    fixes += [f"a smaller strategy.{key}"] * (given > 1 or enough is None)
    value = getattr(config, key)
    return f"{name}, {key} = {value:.4g}, rounds = {given}: {what}; set {' or '.join(fixes)}"


def ends_first(config: StrategyConfig, context: RoundContext, participation: float) -> bool:
    """Whether the round may still be of the first phase; FedLEASE waits up to twice as long for who misses rounds."""
    if isinstance(config, FedLEASE):
        return context.round <= config.warmup_rounds * (1 if participation == 1.0 else 2)
    if isinstance(config, Pilot):
        return config.is_first(context)
    if isinstance(config, Harmony):
        start = harmony.init(config, context.layout, context.fleet, context.streams, {})
        phases = {task.phase for task in harmony.allocate(config, start, context)}
        return phases == {UNIMODAL}
    return False


@dataclass(frozen=True, kw_only=True, slots=True)
class Further:
    """The cheapest group beyond its mandatory ones that a client could train, and the least T* that grants it."""

    client: ClientInfo
    group: GroupId
    needed_s: float


def starved(config: StrategyConfig, context: RoundContext, clock: str) -> str | None:
    """What has to be said where T* leaves no client a group beyond its mandatory ones; None where it does, or must not.

    ``clock``: the name of the one that the allocator believes. The bootstrap round trains everything all the same.
    """
    if not isinstance(config, Relief) or config.select in ("all", "none"):
        return None
    deadline, found = target_s(config, context), list[Further]()
    for client in context.fleet.clients:
        further = cheapest(config, context, client)
        if further.needed_s <= deadline * (1.0 + budget.SLACK):
            return None
        found.append(further)
    least = min(found, key=lambda f: f.needed_s)
    given = config.deadline_s is not None or config.deadline_fraction is not None
    meaning = "as strategy.deadline_* has it" if given else "the least time for everybody's mandatory blocks"
    return (
        f"T* = {deadline:.4g} s ({meaning}; clock {clock}) leaves no client a group beyond its mandatory fusion "
        "blocks: after the bootstrap nobody trains B, head or encoders. The cheapest further group is "
        f"{least.group} of client {least.client.id} (type {least.client.device}): T* = {least.needed_s:.4g} s; set "
        f"strategy.deadline_s={rounded_up(least.needed_s)} or more, or another clock to plan with (costs.planning_time)"
    )


def cheapest(config: Relief, context: RoundContext, client: ClientInfo) -> Further:
    """The group that needs the least T*: time for it beside what is forced, and a slot under Eq. (7)."""
    load = client_load(context, client)
    forced = load.mandatory if config.mandatory else ()
    free = [j for j in load.accessible if j not in load.mandatory]
    seconds = {j: load.seconds((*forced, j)) for j in free}
    group = min(free, key=lambda j: seconds[j])
    return Further(client=client, group=group, needed_s=max(seconds[group], _slot_s(load, len(forced) + 1)))


def _slot_s(load: budget.Load, number: int) -> float:
    """The least T* at which ``k_n`` reaches ``number``; as many as mandatory blocks are always granted."""
    overhead, tau = budget.group_seconds(load)
    return 0.0 if number <= len(load.mandatory) else overhead + number * tau


def rounded_up(seconds: float) -> str:
    """Three significant digits, never below."""
    exact = Decimal(seconds)
    return f"{exact.quantize(Decimal(1).scaleb(exact.adjusted() - 2), rounding=ROUND_CEILING):f}"
