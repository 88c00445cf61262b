"""Backbone 1's encoders as matrix products: the same function and gradients, several times faster on a CPU.

conv1's input columns are data: they are gathered once per client. Everything stays (batch, time, channel), so conv2's
columns are contiguous runs of conv1's output. Agreement with ``nn.Conv1d`` up to summation order is tested.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

KERNEL, STRIDE, PADDING = 5, 2, 2


def columns(modality: str, windows_BCT: Tensor) -> Tensor:
    """conv1's input columns (B, T/2, C*5), channel-major as in ``conv.weight.view(out, C*5)``."""
    padded = nn.functional.pad(windows_BCT, (PADDING, PADDING))
    unfolded = padded.unfold(2, KERNEL, STRIDE)  # (B, C, T/2, 5)
    return unfolded.permute(0, 2, 1, 3).flatten(2).contiguous()


class FusedConv1(nn.Module):
    """ReLU(conv1) on precomputed columns."""

    def __init__(self, conv: nn.Conv1d) -> None:
        """Shares ``conv``'s parameters."""
        super().__init__()
        self.conv = conv

    def forward(self, columns_BTK: Tensor) -> Tensor:
        """(B, T/2, C*5) -> (B, T/2, out)."""
        return torch.relu(nn.functional.linear(columns_BTK, self.conv.weight.flatten(1), self.conv.bias))


class _Unfold(torch.autograd.Function):
    """Columns of a time-major sequence (B, T, C) -> (B, T/2, 5*C); its backward adds five strided slices."""

    @staticmethod
    def forward(x_BTC: Tensor) -> Tensor:
        batch, time, channels = x_BTC.shape
        padded = x_BTC.new_empty(batch, time + 2 * PADDING, channels)
        padded[:, :PADDING] = 0
        padded[:, PADDING + time :] = 0
        padded[:, PADDING : PADDING + time] = x_BTC
        steps = (time + 2 * PADDING - KERNEL) // STRIDE + 1
        view = padded.as_strided((batch, steps, KERNEL * channels), (padded.stride(0), STRIDE * channels, 1))
        return view.contiguous()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.shape = inputs[0].shape

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], x_NBTC: Tensor) -> tuple[Tensor, int]:
        """Windows are columns' own affair: those of several clients are one longer batch."""
        first = x_NBTC.movedim(in_dims[0], 0)
        columns_NBTK = unfold(first.flatten(0, 1))
        return columns_NBTK.view(*first.shape[:2], *columns_NBTK.shape[1:]), 0

    @staticmethod
    def backward(ctx: Any, grad_BTK: Tensor) -> Tensor:
        batch, time, channels = ctx.shape
        steps = grad_BTK.shape[1]
        grad = grad_BTK.new_zeros(batch, time + 2 * PADDING, channels)
        for k in range(KERNEL):
            grad[:, k : k + STRIDE * steps : STRIDE] += grad_BTK[:, :, k * channels : (k + 1) * channels]
        return grad[:, PADDING : PADDING + time]


def unfold(x_BTC: Tensor) -> Tensor:
    """conv2's input columns (B, T/2, 5*C), differentiable."""
    apply: Callable[[Tensor], Tensor] = _Unfold.apply
    return apply(x_BTC)


class ChannelsFirst(nn.Module):
    """Puts ``FusedConv1``'s output back into torch's order, for an early exit's pooling."""

    def forward(self, x_BTC: Tensor) -> Tensor:
        """(B, T, C) -> (B, C, T)."""
        return x_BTC.transpose(1, 2)


class FusedConv2(nn.Module):
    """ReLU(conv2), average pool and flatten on time-major activations."""

    def __init__(self, conv: nn.Conv1d, steps: int) -> None:
        """Shares ``conv``'s parameters; ``steps`` pooled time steps."""
        super().__init__()
        self.conv = conv
        self.steps = steps

    def forward(self, x_BTC: Tensor) -> Tensor:
        """(B, T/2, in) -> (B, out * steps), channel-major like the reference."""
        weight = self.conv.weight.transpose(1, 2).flatten(1)  # (out, 5*in): time-major columns
        y_BTC = torch.relu(nn.functional.linear(unfold(x_BTC), weight, self.conv.bias))
        batch, time, channels = y_BTC.shape
        if time % self.steps:
            return nn.functional.adaptive_avg_pool1d(y_BTC.transpose(1, 2), self.steps).flatten(1)
        if time != self.steps:
            y_BTC = y_BTC.view(batch, self.steps, time // self.steps, channels).mean(2)
        return y_BTC.transpose(1, 2).flatten(1)
