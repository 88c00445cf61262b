"""Moving average of the cohort-internal divergence (Eq. (6)).

Legend: ``d_j`` how much the active cohort disagrees on group ``j`` (Eq. (5), ``server.aggregation.divergence``),
``d_bar_j`` its exponential moving average, ``gamma`` its weight.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from relief_ray.federated import Diagnostics
from relief_ray.groups import GroupId, GroupLayout
from relief_ray.messages import ServerState
from relief_ray.server.aggregation import from_tensor

D_BAR = "d_bar"


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


def diagnose(state: ServerState, layout: GroupLayout) -> Diagnostics:
    """Tell the round's record ``d_bar`` by group."""
    return {D_BAR: smoothed(state.tensors, layout)}
