"""Cohort-internal divergence and its moving average: Eqs. (5) and (6).

Legend: ``d_j`` how much the active cohort disagrees on group ``j``, ``d_bar_j`` its exponential moving average,
``gamma`` its weight.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from relief_ray.groups import GroupId, GroupLayout
from relief_ray.messages import GroupSum
from relief_ray.server.aggregation import from_tensor

D_BAR = "d_bar"


def divergence(part: GroupSum) -> float | None:
    """``d_j = mean_n |Delta_n - mean_k Delta_k|^2`` over the clients that trained ``j`` (Eq. (5)).

    From one pass: mean of squares minus square of mean, in float64, never below zero. None where fewer than two
    trained it.
    """
    count = len(part.members)
    if count < 2:
        return None
    mean = part.plain / count
    return max(0.0, part.sq_norm / count - float(mean.dot(mean)))


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
    """Reads ``d_bar`` from a server's state; empty before the first divergence."""
    return from_tensor(tensors[D_BAR], layout) if D_BAR in tensors else {}
