"""Losses on adapters and routers, and what they cost in FLOPs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def difference_loss(a_BD: Tensor, b_BD: Tensor) -> Tensor:
    """``mean((X_a^T X_b)^2)`` over the D x D entries, where rows of X are windows of length 1 (their norms constants).

    Computed from the B x B products of windows, which have the same sum of squares: ``sum((X_a X_a^T) * (X_b X_b^T))``.
    """
    a, b = (x / (x.norm(dim=1, keepdim=True).detach() + 1e-6) for x in (a_BD, b_BD))
    squares: Tensor = ((a @ a.T) * (b @ b.T)).sum()
    return squares / a_BD.shape[1] ** 2


def difference_flops(num_rows: int, width: int) -> float:
    """FLOPs of ``difference_loss`` of (B, D) and of its gradient: ``12 B^2 D + 10 B D + 5 B^2``.

    Two products of windows (``2 B^2 D`` each) with two such products back through either; for either input its norms
    (2 per value), the quotient (1) and back (2); squares' product and sum (2 per entry) and back (3).
    """
    return 12.0 * num_rows**2 * width + 10.0 * num_rows * width + 5.0 * num_rows**2


def balance_loss(logits_BT: Tensor) -> Tensor:
    """``T sum_i f_i p_i``: share of windows whose likeliest choice is i, times i's mean probability; 1 if even."""
    num_choices = logits_BT.shape[1]
    p_BT = torch.softmax(logits_BT, 1)
    # Not bincount: on a GPU it waits for the counts, which no recorded step may do.
    is_likeliest_BT = p_BT.argmax(1, keepdim=True) == torch.arange(num_choices, device=p_BT.device)
    f_T = is_likeliest_BT.sum(0).to(p_BT.dtype) / len(p_BT)
    return num_choices * (f_T * p_BT.mean(0)).sum()


def router_flops(num_rows: int, num_choices: int) -> float:
    """FLOPs of ``balance_loss`` and ``z_loss`` of (B, T) and of their gradients: 20 per logit.

    Softmax and logsumexp (5 and 4), the largest, counts and means (3); back through them 8.
    """
    return 20.0 * num_rows * num_choices


def stage_flops(sizes: Sequence[int], num_choices: int, router_numel: int, is_first: bool) -> float:
    """FLOPs of Pilot's losses beside cross-entropy in a step, forward and backward, averaged over an epoch's batches.

    ``sizes``: the batches'. Stage 1 has ``difference_loss`` of adapters as wide as the router (T, D) reads, stage 2 the
    router's losses.
    """
    width = router_numel // num_choices
    spent = [difference_flops(b, width) if is_first else router_flops(b, num_choices) for b in sizes]
    return sum(spent) / max(1, len(spent))


def z_loss(logits_BT: Tensor) -> Tensor:
    """``mean(logsumexp(logits)^2)``: keeps a router's logits small."""
    return torch.logsumexp(logits_BT, 1).square().mean()
