"""Losses of early-exit training on a client: cross-entropy at every exit, difficulties, and their FLOPs."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from relief_ray.federated import LocalStep, RoundContext
from relief_ray.messages import ClientInfo
from relief_ray.strategies.common import batch_sizes
from relief_ray.strategies.early_exits import EXIT


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


def exit_flops(context: RoundContext, client: ClientInfo, depth: int) -> float:
    """FLOPs of a training step that exits of C logits add to their layers', averaged over the round's steps.

    8 C per window for the cross-entropy of every exit but one (log-softmax 5, back through it 3); once a round 5 C
    per window for its difficulty.
    """
    num_classes = [g for g in context.layout if g.role in ("head", EXIT)][-1].tensors[-1].shape[0]
    per_window = num_classes * (8.0 * (depth - 1) + 5.0 / max(1, context.epochs))
    return per_window * client.num_windows / max(1, len(batch_sizes(context, client)))
