"""What each client trains (Section IV-B): its budget, Eq. (7), and the order in which groups fill it, Eq. (6).

The budget has two rules, ``strategy.fill``:

``count`` (the paper's): ``T_o`` is one constant of the fleet, the slowest link's seconds for the whole model down and
up; ``tau_n`` is the compute time of training everything within reach, per group. ``S_n`` obeys ``|S_n| <= k_n`` alone.
``time``: ``T_{o,n} = t_n({})`` and ``tau_n`` are the client's own, and every group must also fit:
``t_n(S_n) <= T*``.

Legend: ``t_n(S)`` the planner's seconds for client ``n`` training ``S``, link included; ``G_n`` its accessible groups,
``M_n`` its mandatory ones; ``k_n`` the number of groups it may train.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from relief_ray.core.federated import Diagnostics, RoundContext
from relief_ray.core.groups import GroupId, GroupLayout
from relief_ray.core.messages import ClientId, ClientInfo, Fleet, Receipt, ServerState
from relief_ray.server.aggregation import from_tensor, to_tensor
from relief_ray.strategies.common import SLACK
from relief_ray.support.errors import UserError

Seconds = Callable[[Sequence[GroupId]], float]
GroupVerdict = Literal["mandatory", "chosen", "budget", "time"]


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
class Offer:
    """A group and what became of it.

    Attributes:
        group: the group.
        verdict: ``mandatory``, ``chosen``, or what was lacking: a slot (``budget``) or ``time``.
        seconds: the client's round with this group and all that were taken before it.
    """

    group: GroupId
    verdict: GroupVerdict
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """Allocated groups ``S_n`` in the order of choice: the forced ones, then those of ``offers`` that were chosen."""

    groups: tuple[GroupId, ...]
    budget: int
    offers: tuple[Offer, ...]


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

    A group that would push the client beyond ``limit_s`` (``fill: time``) is refused and the next one tried. Mandatory
    plus top-k maximises the summed divergence under the count budget (Section IV-B).
    """
    chosen = list(load.mandatory) if forced else []
    offers: list[Offer] = []
    for j in ranking:
        if j in chosen:
            continue
        seconds = load.seconds((*chosen, j))
        verdict: GroupVerdict = "chosen"
        if len(chosen) >= budget:
            verdict = "budget"
        elif seconds > limit_s * (1.0 + SLACK):
            verdict = "time"
        else:
            chosen.append(j)
        offers.append(Offer(group=j, verdict=verdict, seconds=seconds))
    return Allocation(groups=tuple(chosen), budget=budget, offers=tuple(offers))


def by_cost(load: Load) -> list[GroupId]:
    """Return ``G_n``, the group whose training takes longest first, ties in layout order."""
    return sorted(load.accessible, key=lambda j: -load.seconds((j,)))


# Moving average of the cohort-internal divergence (Eq. (6)), and the orders in which free slots go to groups.
#
# Legend: ``d_j`` how much the active cohort disagrees on group ``j`` (Eq. (5), ``server.aggregation.divergence``),
# ``d_bar_j`` its exponential moving average, ``gamma`` its weight. ``strategy.select`` is one of:
#
# ``divergence`` (the paper's, Eq. (6)): descending ``d_bar_j``, a sum of squares over the group: large groups lead.
# ``per_element``: descending ``d_bar_j / P_j``, ``P_j`` the number of elements of the group.
# ``oldest``: the group that this client has trained least recently comes first, the more divergent one among equals.
# With ``k`` slots and ``|G_n|`` groups, each is trained at least every ``ceil(|G_n| / k)`` rounds (no blocks forced).
# ``random``: a permutation drawn from the run's seed, anew for each client and round. ``none``: nothing is offered.
#
# ``oldest`` and ``per_element`` are this project's own; the paper has ``divergence`` (V0, V2) and ``random`` (V3).


Select = Literal["divergence", "per_element", "oldest", "random", "none"]
D_BAR = "d_bar"
LAST_ROUND = "last_round"


def smooth(d_bar: Mapping[GroupId, float], d: Mapping[GroupId, float | None], gamma: float) -> dict[GroupId, float]:
    """``d_bar <- gamma d + (1 - gamma) d_bar`` (Eq. (6)).

    A group's first divergence stands as it is, a missing one leaves the average untouched.
    """
    smoothed = dict(d_bar)
    for j, value in d.items():
        if value is not None:
            smoothed[j] = gamma * value + (1.0 - gamma) * d_bar[j] if j in d_bar else value
    return smoothed


def smoothed(tensors: Mapping[str, Tensor], layout: GroupLayout) -> dict[GroupId, float]:
    """Read ``d_bar`` from a server's state; empty before the first divergence."""
    return from_tensor(tensors.get(D_BAR), layout)


def ranking(
    select: Select, state: ServerState, context: RoundContext, client: ClientInfo, accessible: Sequence[GroupId]
) -> list[GroupId]:
    """Return the groups within a client's reach in the order in which free slots are offered.

    Ties, and groups whose divergence is unknown, stand in layout order.
    """
    if select == "none":
        return []
    if select == "random":
        order = context.streams.numpy("relief.random", context.round, client.id).permutation(len(accessible))
        return [accessible[i] for i in order]
    d_bar = smoothed(state.tensors, context.layout)
    if select == "per_element":
        d_bar = {j: value / context.layout[j].numel for j, value in d_bar.items()}
    ages = last_rounds(state, context, client) if select == "oldest" else {}
    return sorted(accessible, key=lambda j: (ages.get(j, -1.0), -d_bar.get(j, 0.0)))


def last_rounds(state: ServerState, context: RoundContext, client: ClientInfo) -> dict[GroupId, float]:
    """Return, by group, the last round in which the server used this client's update of it; absent: never."""
    if LAST_ROUND not in state.tensors:
        return {}
    return from_tensor(state.tensors[LAST_ROUND][client.id], context.layout)


def trained_in(
    state: ServerState, receipts: Sequence[Receipt], round_: int, fleet: Fleet, layout: GroupLayout
) -> Tensor:
    """Return the table of last rounds, float64 (N, G), after this round's usable updates; NaN: never trained."""
    never = torch.full((len(fleet), len(layout)), math.nan, dtype=torch.float64)
    table = state.tensors.get(LAST_ROUND, never).clone()
    column = {j: i for i, j in enumerate(layout.ids)}
    for receipt in receipts:
        table[receipt.assignment.client, [column[j] for j in receipt.assignment.train]] = float(round_)
    return table


def diagnose(state: ServerState, layout: GroupLayout) -> Diagnostics:
    """Tell the round's record ``d_bar`` by group and, with ``oldest``, the last rounds by client and group."""
    table = state.tensors.get(LAST_ROUND, ())
    ages = {_row(n): from_tensor(row, layout) for n, row in enumerate(table)}
    return {D_BAR: smoothed(state.tensors, layout), **ages}


def diagnosed_state(before: Diagnostics | None, fleet: Fleet, layout: GroupLayout) -> ServerState:
    """Return what the orders above read of a server's state, from a round's record; None: before the first round."""
    if before is None:
        return ServerState(models={})
    tensors = {D_BAR: to_tensor(dict(before.get(D_BAR, {})), layout)}
    if any(_row(c.id) in before for c in fleet.clients):
        tensors[LAST_ROUND] = torch.stack([to_tensor(dict(before.get(_row(c.id), {})), layout) for c in fleet.clients])
    return ServerState(models={}, tensors=tensors)


def _row(client: ClientId) -> str:
    """Return the name of a client's row in a record's diagnostics."""
    return f"{LAST_ROUND}.{client}"
