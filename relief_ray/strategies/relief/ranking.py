"""Moving average of the cohort-internal divergence (Eq. (6)), and the orders in which free slots go to groups.

Legend: ``d_j`` how much the active cohort disagrees on group ``j`` (Eq. (5), ``server.aggregation.divergence``),
``d_bar_j`` its exponential moving average, ``gamma`` its weight. ``strategy.select`` is one of:

``divergence`` (the paper's, Eq. (6)): descending ``d_bar_j``, a sum of squares over the group: large groups lead.
``per_element``: descending ``d_bar_j / P_j``, ``P_j`` the number of elements of the group.
``oldest``: the group that this client has trained least recently comes first, the more divergent one among equals.
With ``k`` slots and ``|G_n|`` groups, each is trained at least every ``ceil(|G_n| / k)`` rounds (no blocks forced).
``random``: a permutation drawn from the run's seed, anew for each client and round. ``none``: nothing is offered.

``oldest`` and ``per_element`` are this project's own; the paper has ``divergence`` (V0, V2) and ``random`` (V3).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from relief_ray.core.federated import Diagnostics, RoundContext
from relief_ray.core.groups import GroupId, GroupLayout
from relief_ray.core.messages import ClientId, ClientInfo, Fleet, Receipt, ServerState
from relief_ray.server.aggregation import from_tensor, to_tensor

Select = Literal["divergence", "per_element", "oldest", "random", "none", "all"]
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
    return from_tensor(tensors[D_BAR], layout) if D_BAR in tensors else {}


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


def diagnosed_state(before: Diagnostics, fleet: Fleet, layout: GroupLayout) -> ServerState:
    """Return what the orders above read of a server's state, from the record of a round (``diagnose``)."""
    tensors = {D_BAR: to_tensor(dict(before.get(D_BAR, {})), layout)}
    if any(_row(c.id) in before for c in fleet.clients):
        tensors[LAST_ROUND] = torch.stack([to_tensor(dict(before.get(_row(c.id), {})), layout) for c in fleet.clients])
    return ServerState(models={}, tensors=tensors)


def _row(client: ClientId) -> str:
    """Return the name of a client's row in a record's diagnostics."""
    return f"{LAST_ROUND}.{client}"
