"""Losses of early exits: relations between samples for distillation, then what a client trains and reports.

Relations are comparable across exits of different widths: where samples leave, distances, angles.
Legend for shapes: B samples, D features, K classes, E exits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor

import torch
from torch import Tensor
from torch.nn import functional

from relief_ray.core.client import LocalStep
from relief_ray.core.federated import RoundContext
from relief_ray.core.groups import GroupLayout
from relief_ray.core.messages import ClientInfo
from relief_ray.strategies.common import batch_sizes
from relief_ray.strategies.early_exits import EXIT

EPS = 1e-12

GROWTH = 1.5


def exit_shares(num_exits: int) -> tuple[float, ...]:
    """``pi_i`` proportional to ``1.5^i``: (0.4, 0.6) for two exits."""
    weights = [GROWTH ** (i + 1) for i in range(num_exits)]
    return tuple(w / sum(weights) for w in weights)


def leave_at(logits: Sequence[Tensor]) -> Tensor:
    """Exit at which each sample leaves (B,): the ``floor(B pi_i)`` most confident left at exit i, rest at the last."""
    num = len(logits[0])
    leaves = torch.full((num,), len(logits) - 1, dtype=torch.int64)
    left = torch.arange(num)
    for i, share in enumerate(exit_shares(len(logits))[:-1]):
        confidence = logits[i].detach().softmax(1).amax(1)
        order = left[torch.argsort(confidence[left], descending=True, stable=True)]
        gone = floor(num * share + 1e-9)
        leaves[order[:gone]] = i
        left = order[gone:].sort().values
    return leaves


def distance_loss(student_BD: Tensor, teacher_BD: Tensor) -> Tensor:
    """Relational distance: smooth L1 of pairwise distances, each over its mean (Park et al. 2019, Eq. (5))."""
    return functional.smooth_l1_loss(_distances(student_BD), _distances(teacher_BD.detach()))


def _distances(features_BD: Tensor) -> Tensor:
    """(B, B) distances over the mean of the positive ones."""
    gaps = (features_BD[:, None] - features_BD[None]).square().sum(2)
    apart = gaps > EPS
    distances = torch.where(apart, gaps.clamp_min(EPS).sqrt(), torch.zeros_like(gaps))
    return distances / (distances.sum() / apart.sum().clamp_min(1)).clamp_min(EPS)


def angle_loss(student_BD: Tensor, teacher_BD: Tensor) -> Tensor:
    """Relational angle: smooth L1 of the cosines at every corner of three samples (Park et al. 2019, Eq. (8))."""
    return functional.smooth_l1_loss(_cosines(student_BD), _cosines(teacher_BD.detach()))


def _cosines(features_BD: Tensor) -> Tensor:
    """(B, B, B): at corner i, between the directions to j and to k."""
    towards = functional.normalize(features_BD[None] - features_BD[:, None], dim=2)
    return torch.bmm(towards, towards.transpose(1, 2))


def binned(labels_n: Tensor, difficulty_n: Tensor, width: float) -> tuple[Tensor, Tensor, int]:
    """Read pairs back from a histogram of (label, difficulty bin): labels, centres of bins, number of filled cells."""
    bins = torch.floor(difficulty_n / width)
    pairs = torch.stack([labels_n.to(bins.dtype), bins], 1)
    cells, counts = torch.unique(pairs, dim=0, return_counts=True)
    labels, bin_index = cells.repeat_interleave(counts, 0).unbind(1)
    return labels.to(torch.int64), (bin_index + 0.5) * width, len(cells)


def ladder(step: LocalStep) -> list[Tensor]:
    """Logits of all exits of the client's prefix, shallow first."""
    taps = sorted(step.taps, key=lambda name: int(name.rpartition(".")[2]))
    return [*(step.taps[name] for name in taps), step.logits]


def all_exits(step: LocalStep) -> Tensor:
    """Cross-entropy summed over the exits."""
    return torch.stack([functional.cross_entropy(logits, step.labels) for logits in ladder(step)]).sum()


def difficulties(step: LocalStep) -> Mapping[str, Tensor]:
    """Label and cross-entropy at the first exit of every window."""
    first = functional.cross_entropy(ladder(step)[0], step.labels, reduction="none")
    return {"label": step.labels, "difficulty": first}


def num_classes(layout: GroupLayout) -> int:
    """Number of classes ``C``, read from the last classifier's bias."""
    return [g for g in layout if g.role in ("head", EXIT)][-1].tensors[-1].shape[0]


def exit_flops(context: RoundContext, client: ClientInfo, depth: int) -> float:
    """FLOPs of a training step that exits of C logits add to their layers', averaged over the round's steps.

    8 C per window for the cross-entropy of every exit but one (log-softmax 5, back through it 3); once a round 5 C
    per window for its difficulty.
    """
    per_window = num_classes(context.layout) * (8.0 * (depth - 1) + 5.0 / max(1, context.epochs))
    return per_window * client.num_windows / max(1, len(batch_sizes(context, client)))
