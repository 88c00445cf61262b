"""Budget of each client: the target T*, Eq. (7) and the greedy allocation of Section IV-B.

Two rules, ``strategy.fill``:

``count`` (the paper's): ``T_o`` is one constant of the fleet, the slowest link's seconds for the whole model down and
up; ``tau_n`` is the compute time of training everything within reach, per group. ``S_n`` obeys ``|S_n| <= k_n`` alone.
``time``: ``T_{o,n} = t_n({})`` and ``tau_n`` are the client's own, and every group must also fit:
``t_n(S_n) <= T*``.

Legend: ``t_n(S)`` the planner's seconds for client ``n`` training ``S``, link included; ``G_n`` its accessible groups,
``M_n`` its mandatory ones; ``k_n`` the number of groups it may train.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from relief_ray.core.groups import GroupId
from relief_ray.support.errors import UserError

Seconds = Callable[[Sequence[GroupId]], float]
SLACK = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """Budget problem of one client.

    Attributes:
        accessible: ``G_n`` in layout order.
        mandatory: ``M_n``, the fusion blocks of its sensors.
        overhead_s: ``T_o``: seconds of a round that do not depend on the number of groups.
        tau_s: ``tau_n``: seconds per group.
        seconds: ``t_n``, the planned seconds of a round that trains a set of groups, link included.

    Raises:
        UserError: a group takes no time, or its time is not finite: a figure of devices or costs is far out of range.
    """

    accessible: tuple[GroupId, ...]
    mandatory: tuple[GroupId, ...]
    overhead_s: float
    tau_s: float
    seconds: Seconds

    def __post_init__(self) -> None:
        """Check that times are finite and a group's is positive."""
        if not (self.tau_s > 0.0 and math.isfinite(self.tau_s) and math.isfinite(self.overhead_s)):
            raise UserError(
                f"T* needs finite times and a positive time per group, found {self.overhead_s} s of overhead and "
                f"{self.tau_s} s for each of {len(self.accessible)} groups; these are the seconds of "
                "costs.planning_time: change it, costs.utilisation or fleet.types"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """Group that was refused: seconds of the round with it added, and whether slots or time were lacking."""

    group: GroupId
    seconds: float
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """Allocated groups ``S_n`` in the order of choice; the first ``num_mandatory`` were forced."""

    groups: tuple[GroupId, ...]
    num_mandatory: int
    budget: int
    refused: tuple[Refusal, ...]


def affordable(load: Load, target_s: float) -> int:
    """Return ``floor((T* - T_o) / tau_n)``, the number of groups that fit into ``T*``; negative below ``T_o``."""
    return math.floor((target_s - load.overhead_s) / load.tau_s + SLACK)


def least_target_s(loads: Sequence[Load], slots_slowest: int = 0) -> float:
    """Return ``T*``, the least T at which every client affords ``q_n`` groups, by bisection on that predicate.

    ``q_n = max(|M_n|, min(slots_slowest, |G_n|))``; the paper's is ``|M_n|``. In closed form
    ``T* = max_n (T_o + q_n tau_n)``. The search halves the interval of floats until its ends touch.

    Raises:
        ValueError: no clients.
    """
    if not loads:
        raise ValueError("T* needs at least one client, found none")
    needed = [least_slots(load, slots_slowest) for load in loads]

    def is_enough(target_s: float) -> bool:
        return all((target_s - n.overhead_s) / n.tau_s >= q for n, q in zip(loads, needed, strict=True))

    low, high = 0.0, 1.0
    while not is_enough(high):
        high *= 2.0
    while True:
        middle = low + (high - low) / 2.0
        if not low < middle < high:
            return high
        low, high = (low, middle) if is_enough(middle) else (middle, high)


def least_slots(load: Load, slots_slowest: int) -> int:
    """Return ``q_n = max(|M_n|, min(slots_slowest, |G_n|))``, the number of groups that ``T*`` has to buy a client."""
    return max(len(load.mandatory), min(slots_slowest, len(load.accessible)))


def covering_target_s(loads: Sequence[Load]) -> float:
    """Return the least T at which each group has a client that affords everything within its reach.

    ``max_j min_{n: j in G_n} (T_o + |G_n| tau_n)``: such a client trains ``j`` in every round, whatever the ranking.
    """
    everything = [(load, load.overhead_s + len(load.accessible) * load.tau_s) for load in loads]
    groups = dict.fromkeys(j for load in loads for j in load.accessible)
    return max(min(s for load, s in everything if j in load.accessible) for j in groups)


def group_budget(load: Load, target_s: float) -> int:
    """Return ``k_n = max(|M_n|, floor((T* - T_o) / tau_n))`` (Eq. (7)), at most ``|G_n|``."""
    return min(len(load.accessible), max(len(load.mandatory), affordable(load, target_s)))


def allocate(
    load: Load, budget: int, ranking: Sequence[GroupId], forced: bool = True, limit_s: float = math.inf
) -> Allocation:
    """Allocate ``S_n``: the mandatory blocks, then groups in ``ranking`` order while slots last.

    A group that would push the client beyond ``limit_s`` (``fill: time``) is refused and the next one tried; every
    refusal is recorded. Mandatory plus top-k maximises the summed divergence under the count budget (Section IV-B).
    """
    chosen = list(load.mandatory) if forced else []
    num_mandatory = len(chosen)
    refused: list[Refusal] = []
    for j in ranking:
        if j in chosen:
            continue
        seconds = load.seconds((*chosen, j))
        if len(chosen) >= budget:
            refused.append(Refusal(group=j, seconds=seconds, reason="budget"))
        elif seconds > limit_s * (1.0 + SLACK):
            refused.append(Refusal(group=j, seconds=seconds, reason="time"))
        else:
            chosen.append(j)
    return Allocation(groups=tuple(chosen), num_mandatory=num_mandatory, budget=budget, refused=tuple(refused))


def by_cost(load: Load) -> list[GroupId]:
    """Return ``G_n``, the group whose training takes longest first, ties in layout order."""
    return sorted(load.accessible, key=lambda j: -load.seconds((j,)))
