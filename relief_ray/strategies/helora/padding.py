"""Padding: fills the ranks and rows that smaller models lack, to bring their updates to the server's size.

Every rule is linear in what it pads, so that the padded sum of clients of one size is the sum of the padded clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from relief_ray.core.groups import GroupId, GroupLayout, ParamGroup, Params, Part, Selection, TensorSpec
from relief_ray.core.messages import GroupSum

# Fills with zero; the mean of the whole matrix; the mean rank (row, column); a copy of the last one.
Padding = Literal["zero", "mean", "linear", "adjacent"]


def rank_of(group: ParamGroup) -> int | None:
    """Rank ``R`` of a LoRA group; None for a dense one."""
    return next((t.shape[0 if t.kind == "lora_a" else 1] for t in group.tensors if "lora" in t.kind), None)


def relative_size(group: ParamGroup, part: Part) -> float:
    """Relative size ``r_k / R`` or ``kappa_k``; 1 for a group that every client trains whole."""
    full = rank_of(group)
    return part.rank / full if full and part.rank is not None else 1.0 if part.rows is None else part.rows


def filling(values: Tensor, axis: int, number: int, padding: Padding, mean: Tensor | None = None) -> Tensor:
    """Values to append to ``values`` so that they grow by ``number`` along ``axis``.

    ``mean``: the mean of the whole matrix where ``values`` are a block of it.
    """
    shape = [number if i == axis else size for i, size in enumerate(values.shape)]
    if padding == "zero" or not number:
        return values.new_zeros(shape)
    if padding == "mean":
        return (values.mean() if mean is None else mean).expand(shape)
    last = values.narrow(axis, values.shape[axis] - 1, 1)
    return (values.mean(axis, keepdim=True) if padding == "linear" else last).expand(shape)


def padded_sums(
    sums: Mapping[GroupId, GroupSum], up: Selection, theta: Params, layout: GroupLayout, padding: Padding
) -> dict[GroupId, Tensor]:
    """``sum_n w_n (pad(X_n) - theta_j)`` per group, in float64, over clients that all sent the parts ``up``.

    ``X_n`` is a client's LoRA factor, which is padded by rank; of dense tensors the update is padded, by rows.
    """
    leading = {j: _leading(part, up, theta, layout, j) for j, part in sums.items()}
    blocks = [values for j, tensors in leading.items() if layout[j].role == "fusion_a" for values in tensors.values()]
    mean = torch.cat([b.reshape(-1) for b in blocks]).mean() if blocks else None
    steps: dict[GroupId, Tensor] = {}
    for j, part in sums.items():
        step = _scatter(part, up, layout, j)
        for spec in layout[j].tensors:
            axis, number = up[j].lead(spec)
            beyond = spec.shape[axis] - number
            base = part.weight * _view(theta[j].to(torch.float64), spec).narrow(axis, number, beyond)
            shared = mean if layout[j].role == "fusion_a" else None
            filled = filling(leading[j][spec.name], axis, beyond, padding, shared)
            _view(step, spec).narrow(axis, number, beyond).copy_(filled - base if _is_factor(spec) else filled)
        steps[j] = step
    return steps


def _is_factor(spec: TensorSpec) -> bool:
    return spec.kind in ("lora_a", "lora_b")


def _view(vector: Tensor, spec: TensorSpec) -> Tensor:
    return vector[spec.offset : spec.offset + spec.numel].view(spec.shape)


def _scatter(part: GroupSum, up: Selection, layout: GroupLayout, group: GroupId) -> Tensor:
    """Sum of updates at the group's full length, zero where nothing was sent."""
    step = torch.zeros(layout[group].numel, dtype=torch.float64)
    step[layout.indices(group, up[group])] = part.weighted
    return step


def _leading(part: GroupSum, up: Selection, theta: Params, layout: GroupLayout, group: GroupId) -> dict[str, Tensor]:
    """Values to pad, by tensor: the weighted sum of clients' LoRA factors, or of their updates of dense tensors."""
    moved, origin = _scatter(part, up, layout, group), theta[group].to(torch.float64)
    leading = {}
    for spec in layout[group].tensors:
        axis, number = up[group].lead(spec)
        sent, start = (_view(values, spec).narrow(axis, 0, number) for values in (moved, origin))
        leading[spec.name] = sent + part.weight * start if _is_factor(spec) else sent
    return leading
