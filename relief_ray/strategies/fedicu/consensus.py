"""Consensus and divergence of matrices column by column: lengths are averaged, directions weighted by agreement.

Legend: ``X_n`` client ``n``'s matrix (rows, C), ``m_n,c`` the length of its column ``c``, ``v_n,c`` that column's
direction (zero for a zero column), ``p_n`` the client's weight, ``alpha_n`` its say in directions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from math import ceil
from typing import Literal

import torch
from torch import Tensor

from relief_ray.core.groups import ROUNDING, GroupId, GroupLayout, Params, TensorSpec
from relief_ray.core.messages import Update

# Keeps relative importance finite where a parameter is zero.
ORIGIN_EPS = 1e-8

Importance = Literal["relative", "magnitude"]
# Length of a merged column: the mean of the clients' lengths, or the length of their mean column.
Length = Literal["mean_of_lengths", "length_of_mean"]


def importance(kind: Importance, delta: Tensor, origin: Tensor) -> Tensor:
    """Importance of each value of a change, of its shape: ``|delta|``, or ``|delta| / (|origin| + eps)``."""
    return delta.abs() if kind == "magnitude" else delta.abs() / (origin.abs() + ORIGIN_EPS)


def keep_top(scores: Tensor, share: float) -> Tensor:
    """Mask (n,) of the ``ceil(share n)`` highest of flat scores (n,); of equal ones the first."""
    kept = torch.zeros(len(scores), dtype=torch.bool)
    kept[torch.sort(scores, descending=True, stable=True).indices[: ceil(share * len(scores) - ROUNDING)]] = True
    return kept


def group_importance(kind: Importance, deltas: Sequence[Tensor], origin: Tensor) -> float:
    """Mean absolute change of a group over clients; ``relative``: divided by the group's mean absolute value."""
    change = float(torch.stack([d.abs().mean() for d in deltas]).mean())
    return change if kind == "magnitude" else change / (float(origin.abs().mean()) + ORIGIN_EPS)


EPS = 1e-12

Piece = tuple[GroupId, TensorSpec]


def split_columns(x_NRC: Tensor) -> tuple[Tensor, Tensor]:
    """Lengths (N, C) and directions (N, rows, C) of all columns."""
    lengths_NC = x_NRC.norm(dim=1)
    return lengths_NC, x_NRC / lengths_NC.clamp_min(EPS).unsqueeze(1)


def cosines(directions_NRC: Tensor) -> Tensor:
    """``sum_c cos(v_n,c, v_k,c)`` for all pairs of clients (N, N); a zero column has cosine 0 with every other."""
    flat_ND = directions_NRC.flatten(1)
    return flat_ND @ flat_ND.T


def agreement(matrices: Iterable[Tensor], temperature: float) -> Tensor:
    """``alpha = softmax(s / T)`` (N,), ``s_n`` the mean cosine with the others over all columns of all ``matrices``.

    Each of ``matrices`` holds directions (N, rows, C).
    """
    pairs = [(cosines(v), v.shape[2]) for v in matrices]
    total_NN, num_columns = torch.stack([c for c, _ in pairs]).sum(0), sum(n for _, n in pairs)
    s_N = (total_NN.sum(1) - total_NN.diagonal()) / (max(1, len(total_NN) - 1) * num_columns)
    return torch.softmax(s_N / temperature, 0)


def merge_columns(x_NRC: Tensor, p_N: Tensor, alpha_N: Tensor, length: Length = "mean_of_lengths") -> Tensor:
    """Columns along ``sum_n alpha_n v_n,c`` (rows, C), ``sum_n p_n m_n,c`` long; the mean where either is 0.

    ``length_of_mean``: ``|sum_n p_n X_n,c|`` long instead. It is never more, since directions that differ cancel in a
    mean: of ``N`` orthogonal columns of one length it is ``1 / sqrt(N)`` of it.
    """
    lengths_NC, directions_NRC = split_columns(x_NRC)
    mean_RC = torch.tensordot(p_N, x_NRC, 1)
    length_C = p_N @ lengths_NC if length == "mean_of_lengths" else mean_RC.norm(dim=0)
    direction_RC = torch.tensordot(alpha_N, directions_NRC, 1)
    size_C = direction_RC.norm(dim=0)
    usable_C = (length_C >= EPS) & (size_C >= EPS)
    return torch.where(usable_C, length_C * direction_RC / size_C.clamp_min(EPS), mean_RC)


def whole_tensors(layout: GroupLayout, groups: Collection[GroupId]) -> list[tuple[Piece, ...]]:
    """All tensors of ``groups``; the fusion blocks among them form one matrix ``[A_1 | .. | A_M]``."""
    pieces = [(j, t) for j in groups for t in layout[j].tensors]
    fusion = tuple((j, t) for j, t in pieces if layout[j].role == "fusion_a" and len(t.shape) == 2)
    return [*([fusion] if fusion else []), *((piece,) for piece in pieces if piece not in fusion)]


def as_matrix(values: Tensor, spec: TensorSpec) -> Tensor:
    """Reshape a flat tensor (.., n) to (.., rows, C): a convolution to (out, in k), a vector to one column."""
    return values.view(*values.shape[:-1], spec.shape[0], -1)


def by_piece(x: Tensor, tensor: Sequence[Piece]) -> dict[Piece, Tensor]:
    """Cut a whole matrix (rows, C) into its pieces' flat values."""
    widths = [t.numel // t.shape[0] for _, t in tensor]
    return {piece: part.reshape(-1) for piece, part in zip(tensor, torch.split(x, widths, dim=1), strict=True)}


def balanced_steps(
    updates: Sequence[Update],
    theta: Params,
    layout: GroupLayout,
    p_N: Tensor,
    temperature: float,
    together: bool = False,
    length: Length = "mean_of_lengths",
) -> dict[GroupId, Tensor]:
    """``theta_new - theta`` per group in float64, from updates that all sent the same whole groups.

    LoRA factors are split into lengths and directions themselves, of dense matrices the update is; vectors are
    averaged. ``together``: one ``alpha`` for all matrices instead of one for each. ``length``: of the merged columns.
    """
    groups = tuple(updates[0].delta)
    tensors = whole_tensors(layout, groups)
    matrices = [t for t in tensors if len(t[0][1].shape) > 1]
    shared = (
        agreement((split_columns(_stacked(updates, theta, t))[1] for t in matrices), temperature)
        if together and matrices
        else None
    )

    def new(tensor: tuple[Piece, ...]) -> Tensor:
        x = _stacked(updates, theta, tensor)
        if tensor not in matrices:
            mean: Tensor = torch.tensordot(p_N, x, 1)
            return mean
        alpha_N = agreement([split_columns(x)[1]], temperature) if shared is None else shared
        return merge_columns(x, p_N, alpha_N, length)

    steps = {piece: values for tensor in tensors for piece, values in by_piece(new(tensor), tensor).items()}
    return {j: torch.cat([steps[j, t] - _origin(theta, (j, t)) for t in layout[j].tensors]) for j in groups}


def _origin(theta: Params, piece: Piece) -> Tensor:
    """Values added to a change to give ``X_n``: the LoRA factor itself, zeros for a dense tensor."""
    group, spec = piece
    values = theta[group][spec.offset : spec.offset + spec.numel].to(torch.float64)
    return values if spec.kind in ("lora_a", "lora_b") else torch.zeros_like(values)


def _stacked(updates: Sequence[Update], theta: Params, tensor: Sequence[Piece]) -> Tensor:
    """Stack ``X_n`` of all clients (N, rows, C)."""

    def of(piece: Piece) -> Tensor:
        group, spec = piece
        span = slice(spec.offset, spec.offset + spec.numel)
        moved = torch.stack([u.delta[group][span].to(torch.float64) for u in updates])
        return as_matrix(moved + _origin(theta, piece), spec)

    return torch.cat([of(piece) for piece in tensor], 2)
