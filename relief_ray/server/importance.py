"""How much a change matters, value by value or of a whole group, and which values matter most."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Literal

import torch
from torch import Tensor

from relief_ray.groups import ROUNDING

ORIGIN_EPS = 1e-8
Importance = Literal["relative", "magnitude"]


def importance(kind: Importance, delta: Tensor, origin: Tensor) -> Tensor:
    """How much each value matters, of their shape."""
    return delta.abs() if kind == "magnitude" else delta.abs() / (origin.abs() + ORIGIN_EPS)


def keep_top(scores: Tensor, share: float) -> Tensor:
    """Which ``ceil(share n)`` of flat scores (n,) are highest; of equal ones the first."""
    kept = torch.zeros(len(scores), dtype=torch.bool)
    kept[torch.sort(scores, descending=True, stable=True).indices[: ceil(share * len(scores) - ROUNDING)]] = True
    return kept


def group_importance(kind: Importance, deltas: Sequence[Tensor], origin: Tensor) -> float:
    """The clients' mean change of a group, relative to its mean size or not."""
    change = float(torch.stack([d.abs().mean() for d in deltas]).mean())
    return change if kind == "magnitude" else change / (float(origin.abs().mean()) + ORIGIN_EPS)
