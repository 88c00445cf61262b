"""Budget of each client: the least feasible target T*, Eq. (7) and the greedy allocation of Section IV-B.

``strategy.target_s`` decides which T* a run uses: a given deadline, a share of FedAvg's round, or ``least_target_s``.

Legend: ``t_n(S)`` the planner's seconds for client ``n`` training ``S``, link included; ``G_n`` its accessible groups;
``T_o = t_n({})``; ``tau_n = (t_n(G_n) - T_o) / |G_n|``; ``k_n`` the number of groups it may train.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from relief_ray.groups import GroupId

Seconds = Callable[[Sequence[GroupId]], float]
SLACK = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """Budget problem of one client: ``seconds`` is ``t_n``, ``accessible`` is ``G_n`` in layout order."""

    accessible: tuple[GroupId, ...]
    mandatory: tuple[GroupId, ...]
    seconds: Seconds


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


def least_target_s(loads: Sequence[Load]) -> float:
    """``T*``: the smallest T with ``t_n(mandatory_n) <= T`` for every client, by bisection on that monotone predicate.

    The search halves the interval of floats until its ends touch, so the answer is the least feasible float.
    """
    needed = [load.seconds(load.mandatory) for load in loads]
    if not needed or not all(math.isfinite(s) for s in needed):
        raise ValueError(f"T* needs finite times of at least one client, found {needed}")
    low, high = 0.0, max(1.0, sum(needed))
    while True:
        middle = low + (high - low) / 2.0
        if not low < middle < high:
            return high
        if all(s <= middle for s in needed):
            high = middle
        else:
            low = middle


def group_seconds(load: Load) -> tuple[float, float]:
    """``(T_o, tau_n)``: overhead and mean seconds per group on this client.

    Raises:
        ValueError: training every accessible group takes no longer than training nothing.
    """
    overhead = load.seconds(())
    tau = (load.seconds(load.accessible) - overhead) / len(load.accessible)
    if not tau > 0.0:
        raise ValueError(f"profiled time per group must be positive, found {tau} s over {len(load.accessible)} groups")
    return overhead, tau


def group_budget(load: Load, target_s: float) -> int:
    """``k_n = max(|M_n|, floor((T* - T_o) / tau_n))`` (Eq. (7)), at most ``|G_n|``."""
    overhead, tau = group_seconds(load)
    affordable = math.floor((target_s - overhead) / tau + SLACK)
    return min(len(load.accessible), max(len(load.mandatory), affordable))


def least_slot_s(load: Load, number: int) -> float:
    """Least ``T*`` at which ``k_n`` reaches ``number``; as many as there are mandatory blocks are always granted."""
    overhead, tau = group_seconds(load)
    return 0.0 if number <= len(load.mandatory) else overhead + number * tau


def allocate(load: Load, target_s: float, budget: int, ranking: Sequence[GroupId], forced: bool = True) -> Allocation:
    """Allocate ``S_n``: the mandatory blocks, then groups in ``ranking`` order while slots and time last.

    A group that would push the client beyond ``T*`` is refused and the next one tried; every refusal is recorded.
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
        elif seconds > target_s * (1.0 + SLACK):
            refused.append(Refusal(group=j, seconds=seconds, reason="time"))
        else:
            chosen.append(j)
    return Allocation(groups=tuple(chosen), num_mandatory=num_mandatory, budget=budget, refused=tuple(refused))


def by_divergence(load: Load, d_bar: dict[GroupId, float]) -> list[GroupId]:
    """``G_n`` by descending ``d_bar``, ties and unknown ones in layout order."""
    return sorted(load.accessible, key=lambda j: -d_bar.get(j, 0.0))
