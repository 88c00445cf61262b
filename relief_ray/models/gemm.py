"""Backbone 1's encoders as matrix products: the same function and gradients, several times faster on a CPU.

conv1's input columns are data: they are gathered once per client. Everything stays (batch, time, channel), so conv2's
columns are contiguous runs of conv1's output. Agreement with ``nn.Conv1d`` up to summation order is tested.

Forward and backward passes are written by hand, since autograd's own operations read and write memory more often.
Parameters that ``torch.func`` passes in may stand for many models at once, and autocast chooses dtypes itself: there
torch's operations are used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

KERNEL, _STRIDE, _PADDING = 5, 2, 2


def columns(modality: str, windows_BCT: Tensor) -> Tensor:
    """conv1's input columns (B, T/2, C*5), channel-major as in ``conv.weight.view(out, C*5)``."""
    padded = nn.functional.pad(windows_BCT, (_PADDING, _PADDING))
    unfolded = padded.unfold(2, KERNEL, _STRIDE)  # (B, C, T/2, 5)
    return unfolded.permute(0, 2, 1, 3).flatten(2).contiguous()


class FusedConv1(nn.Module):
    """ReLU(conv1) on precomputed columns."""

    def __init__(self, conv: nn.Conv1d) -> None:
        """Share ``conv``'s parameters."""
        super().__init__()
        self.conv = conv

    def forward(self, columns_BTK: Tensor) -> Tensor:
        """(B, T/2, C*5) -> (B, T/2, out)."""
        return _activated(columns_BTK, self.conv.weight.flatten(1), self.conv)


class FusedConv2(nn.Module):
    """ReLU(conv2), average pool and flatten on time-major activations."""

    def __init__(self, conv: nn.Conv1d, steps: int) -> None:
        """Share ``conv``'s parameters; ``steps`` pooled time steps."""
        super().__init__()
        self.conv = conv
        self.steps = steps

    def forward(self, x_BTC: Tensor) -> Tensor:
        """(B, T/2, in) -> (B, out * steps), channel-major like the reference."""
        weight = self.conv.weight.transpose(1, 2).flatten(1)  # (out, 5*in): time-major columns
        columns_BTK = unfold(x_BTC, self.conv)
        if _is_written_out(self.conv) and columns_BTK.shape[1] == 2 * self.steps:
            apply: Callable[..., Tensor] = _ActivatedPairs.apply
            return apply(columns_BTK, weight, self.conv.bias)
        y_BTC = _activated(columns_BTK, weight, self.conv)
        batch, time, channels = y_BTC.shape
        if time % self.steps:
            return nn.functional.adaptive_avg_pool1d(y_BTC.transpose(1, 2), self.steps).flatten(1)
        if time != self.steps:
            y_BTC = y_BTC.view(batch, self.steps, time // self.steps, channels).mean(2)
        return y_BTC.transpose(1, 2).flatten(1)


class ChannelsFirst(nn.Module):
    """Transposes ``FusedConv1``'s output into torch's order, for an early exit's pooling."""

    def forward(self, x_BTC: Tensor) -> Tensor:
        """(B, T, C) -> (B, C, T)."""
        return x_BTC.transpose(1, 2)


def unfold(x_BTC: Tensor, conv: nn.Conv1d) -> Tensor:
    """conv2's input columns (B, T/2, 5*C), differentiable."""
    if _is_written_out(conv):
        apply: Callable[[Tensor], Tensor] = _Unfold.apply
        return apply(x_BTC)
    padded = nn.functional.pad(x_BTC, (0, 0, _PADDING, _PADDING))
    return padded.unfold(1, KERNEL, _STRIDE).transpose(2, 3).flatten(2)


def _is_written_out(conv: nn.Conv1d) -> bool:
    return isinstance(conv.weight, nn.Parameter) and not torch.is_autocast_enabled(conv.weight.device.type)


def _activated(columns_BTK: Tensor, weight_OK: Tensor, conv: nn.Conv1d) -> Tensor:
    """``ReLU(x W^T + b)``."""
    if _is_written_out(conv):
        apply: Callable[..., Tensor] = _Activated.apply
        return apply(columns_BTK, weight_OK, conv.bias)
    return torch.relu(nn.functional.linear(columns_BTK, weight_OK, conv.bias))


class _Activated(torch.autograd.Function):
    """``ReLU(x W^T + b)``: the ReLU in place, its mask read off its output."""

    @staticmethod
    def forward(ctx: Any, x_BTK: Tensor, weight_OK: Tensor, bias: Tensor) -> Tensor:
        y_BTO = nn.functional.linear(x_BTK, weight_OK, bias).relu_()
        ctx.save_for_backward(x_BTK, weight_OK, y_BTO)
        return y_BTO

    @staticmethod
    def backward(ctx: Any, grad_BTO: Tensor) -> tuple[Tensor | None, ...]:
        x_BTK, weight_OK, y_BTO = ctx.saved_tensors
        return _gradients(ctx, x_BTK, weight_OK, torch.ops.aten.threshold_backward(grad_BTO, y_BTO, 0))


class _ActivatedPairs(torch.autograd.Function):
    """``ReLU(x W^T + b)``, means of pairs of steps, channel-major: (B, 2 S, K) -> (B, O * S)."""

    @staticmethod
    def forward(ctx: Any, x_BTK: Tensor, weight_OK: Tensor, bias: Tensor) -> Tensor:
        y_BTO = nn.functional.linear(x_BTK, weight_OK, bias).relu_()
        ctx.save_for_backward(x_BTK, weight_OK, y_BTO)
        pairs = _pairs(y_BTO)
        return torch.add(pairs[:, :, 0], pairs[:, :, 1]).mul_(0.5).transpose(1, 2).flatten(1)

    @staticmethod
    def backward(ctx: Any, grad_BF: Tensor) -> tuple[Tensor | None, ...]:
        x_BTK, weight_OK, y_BTO = ctx.saved_tensors
        pairs = _pairs(y_BTO)
        halves = grad_BF.mul(0.5).view(len(grad_BF), len(weight_OK), pairs.shape[1]).transpose(1, 2).contiguous()
        # Both steps of a pair have the same gradient: the mask's pass reads it twice, so no copy is made.
        grad_BSPO = torch.ops.aten.threshold_backward(halves.unsqueeze(2).expand(pairs.shape), pairs, 0)
        return _gradients(ctx, x_BTK, weight_OK, grad_BSPO)


def _pairs(y_BTO: Tensor) -> Tensor:
    """(B, S, 2, O)."""
    return y_BTO.view(len(y_BTO), y_BTO.shape[1] // 2, 2, y_BTO.shape[2])


def _gradients(ctx: Any, x_BTK: Tensor, weight_OK: Tensor, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients of ``x W^T + b`` by ``x``, ``W`` and ``b``, None where not needed; ``grad``: (..., O)."""
    grad_RO = grad.reshape(-1, len(weight_OK))
    of_x, of_weight, of_bias = ctx.needs_input_grad
    return (
        (grad_RO @ weight_OK).view(x_BTK.shape) if of_x else None,
        # Computed as (K, out) and transposed: with few outputs this order of operands is up to five times as fast.
        (x_BTK.flatten(0, 1).t() @ grad_RO).t() if of_weight else None,
        grad_RO.sum(0) if of_bias else None,
    )


class _Unfold(torch.autograd.Function):
    """Columns of a time-major sequence (B, T, C) -> (B, T/2, 5*C).

    Steps are two samples apart: a column is its step's own pair of samples, the next pair, and half of the one after.
    The backward pass adds these three up, in the order of the samples in a column.
    """

    @staticmethod
    def forward(ctx: Any, x_BTC: Tensor) -> Tensor:
        batch, time, channels = x_BTC.shape
        ctx.shape = x_BTC.shape
        padded = x_BTC.new_empty(batch, time + 2 * _PADDING, channels)
        padded[:, :_PADDING] = 0
        padded[:, _PADDING + time :] = 0
        padded[:, _PADDING : _PADDING + time] = x_BTC
        steps = (time + 2 * _PADDING - KERNEL) // _STRIDE + 1
        view = padded.as_strided((batch, steps, KERNEL * channels), (padded.stride(0), _STRIDE * channels, 1))
        return view.contiguous()

    @staticmethod
    def backward(ctx: Any, grad_BTK: Tensor) -> Tensor:
        batch, time, channels = ctx.shape
        steps, pair = grad_BTK.shape[1], _STRIDE * channels
        pairs = grad_BTK.new_empty(batch, steps + 2, pair)
        pairs[:, :steps] = grad_BTK[:, :, :pair]
        pairs[:, steps:] = 0
        pairs[:, 1:-1] += grad_BTK[:, :, pair : 2 * pair]
        pairs[:, 2:, :channels] += grad_BTK[:, :, 2 * pair :]
        return pairs.view(batch, _STRIDE * (steps + 2), channels)[:, _PADDING : _PADDING + time]
