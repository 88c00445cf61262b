"""Backbone 1's stages for the engine ``fused``: the layers of ``cnn`` by the C library, float32 on a CPU.

Windows and activations are time-major, (B, T, C), with two steps of zeros at both ends and channels padded to a
multiple of eight (``kernels.c``). Where a sensor's encoder and block of the fusion all train, they are one node of
autograd, whose backward pass takes the block's optimizer step while its gradient is in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import local
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from relief_ray.kernels.library import ROWS, Conv, Rule, call
from relief_ray.support.errors import UserError

# (the parameter) -> the numbers of its next step, and the moments that it keeps.
TakeStep = Callable[[Tensor], tuple[Rule, Tensor | None, Tensor | None]]

# Of a function's inputs; None where one needs none.
Gradients = tuple[Tensor | None, ...]

_MARGIN = 2
_here = local()


def time_major(modality: str, windows_BCT: Tensor) -> Tensor:
    """Windows as the first convolution reads them: (B, C, T) -> (B, T + 4, C)."""
    return nn.functional.pad(windows_BCT.transpose(1, 2), (0, 0, _MARGIN, _MARGIN)).contiguous()


def _work(of: Tensor, numel: int) -> Tensor:
    """This thread's memory for a kernel's own use, of the type of ``of``."""
    work: Tensor | None = getattr(_here, "work", None)
    if work is None or work.numel() < numel or work.dtype != of.dtype:
        work = _here.work = of.new_empty(numel)
    return work


def _up(number: int, to: int = 8) -> int:
    return -(-number // to) * to


def _half(steps: int) -> int:
    return (steps + 1) // 2


def _first(conv: nn.Conv1d, x: Tensor) -> Conv:
    return Conv(batch=len(x), samples=x.shape[1] - 2 * _MARGIN, ins=x.shape[2], outs=conv.out_channels)


def _second(conv: nn.Conv1d, y1: Tensor, pooled: int) -> Conv:
    samples = y1.shape[1] - 2 * _MARGIN
    return Conv(batch=len(y1), samples=samples, ins=conv.in_channels, outs=conv.out_channels, pooled=pooled)


def _conv1(x: Tensor, conv: nn.Conv1d) -> Tensor:
    shape, wide = _first(conv, x), _up(conv.out_channels)
    y = x.new_empty(shape.batch, _half(shape.samples) + 2 * _MARGIN, wide)
    call("conv1", shape, x, conv.weight, conv.bias, y, _work(x, (5 * shape.ins + 1) * wide))
    return y


def _conv1_back(grad: Tensor, y: Tensor, x: Tensor, conv: nn.Conv1d) -> tuple[Tensor, Tensor]:
    """Gradients of weight and bias; ``grad`` (B, Q, c1) is overwritten."""
    shape, wide = _first(conv, x), _up(conv.out_channels)
    dw, db = x.new_empty(conv.weight.shape), x.new_empty(conv.out_channels)
    call("conv1_back", shape, grad, y, x, dw, db, _work(x, (5 * shape.ins + 1) * wide))
    return dw, db


def _conv2(y1: Tensor, conv: nn.Conv1d, pooled: int, keep: bool) -> tuple[Tensor, Tensor]:
    """The convolution's output (B, S, c2), of the last window where not kept, and the features (B, C2 P)."""
    shape, wide = _second(conv, y1, pooled), _up(conv.out_channels)
    y2 = y1.new_empty(shape.batch if keep else 1, _half(shape.samples), wide)
    features = y1.new_empty(shape.batch, shape.outs * pooled)
    work = _work(y1, (5 * _up(shape.ins) + 1) * wide)
    call("conv2", shape, y1, conv.weight, conv.bias, y2, int(keep), features, work)
    return y2, features


def _conv2_back(
    grad: Tensor, y2: Tensor, y1: Tensor, conv: nn.Conv1d, pooled: int, below: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of weight and bias, and by the input (B, Q, c1) where there is one ``below``."""
    shape, narrow, wide = _second(conv, y1, pooled), _up(conv.in_channels), _up(conv.out_channels)
    dw, db = y1.new_empty(conv.weight.shape), y1.new_empty(conv.out_channels)
    dy1 = y1.new_empty(shape.batch, shape.samples, narrow) if below else None
    work = _work(y1, (10 * narrow + _half(shape.samples) + 3) * wide)
    call("conv2_back", shape, grad, grad.stride(0), y2, y1, conv.weight, dw, db, dy1, work)
    return dw, db, dy1


def _linear(h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    y = h.new_empty(len(h), len(weight))
    call("linear", len(h), len(weight), h.shape[1], h, h.stride(0), weight, bias, y)
    return y


def _linear_back(
    grad: Tensor, h: Tensor, weight: Tensor, below: bool, train: bool, take: TakeStep | None
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients by the input (B, N; rows padded to 16) and the weight; with ``take`` the weight takes its step."""
    batch, outs, ins = len(h), len(weight), h.shape[1]
    dh = h.new_empty(batch, _up(ins, 16)) if below else None
    dw = h.new_empty(weight.shape) if train and take is None else None
    rule, mean, square = take(weight) if train and take else (None, None, None)
    work = _work(h, 16 * max(outs, (batch + ROWS) * _up(ins, 16) // 16))
    sizes, stepped = (batch, outs, ins), (rule, mean, square)
    call("linear_back", *sizes, grad, h, h.stride(0), weight, dh, _up(ins, 16), dw, *stepped, work)
    if rule is not None:
        increment_version(weight)
    return None if dh is None else dh[:, :ins], dw


def _once(backward: Callable[..., Gradients]) -> Callable[..., Gradients]:
    """Refuse a second derivative: the gradients that the kernels give would count as constants in it."""

    def first(*arguments: Any) -> Gradients:
        if torch.is_grad_enabled():
            raise UserError(
                "training.engine = 'fused': no second derivatives, which this objective asks for (create_graph=True); "
                "take training.engine=gemm"
            )
        return backward(*arguments)

    return first


def applied(function: type[torch.autograd.Function], *inputs: object) -> Tensor:
    """The output of a hand-written function of autograd."""
    out: Tensor = function.apply(*inputs)  # type: ignore[no-untyped-call]
    return out


class _First(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, conv: nn.Conv1d) -> Tensor:
        ctx.conv, y = conv, _conv1(x, conv)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    @_once
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        x, y = ctx.saved_tensors
        inner = grad[:, _MARGIN:-_MARGIN].clone(memory_format=torch.contiguous_format)
        return None, *_conv1_back(inner, y, x, ctx.conv), None


class _Second(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y1: Tensor, weight: Tensor, bias: Tensor, conv: nn.Conv1d, pooled: int) -> Tensor:
        ctx.conv, ctx.pooled = conv, pooled
        y2, features = _conv2(y1, conv, pooled, keep=any(ctx.needs_input_grad))
        ctx.save_for_backward(y1, y2)
        return features

    @staticmethod
    @_once
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        y1, y2 = ctx.saved_tensors
        dw, db, inner = _conv2_back(grad.contiguous(), y2, y1, ctx.conv, ctx.pooled, ctx.needs_input_grad[0])
        dy1 = None if inner is None else nn.functional.pad(inner, (0, 0, _MARGIN, _MARGIN))
        return dy1, dw, db, None, None


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor, bias: Tensor | None, take: TakeStep | None) -> Tensor:
        ctx.take = take
        h = h.contiguous()
        ctx.save_for_backward(h, weight)
        return _linear(h, weight, bias)

    @staticmethod
    @_once
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        h, weight = ctx.saved_tensors
        grad = grad.contiguous()
        dh, dw = _linear_back(grad, h, weight, ctx.needs_input_grad[0], ctx.needs_input_grad[1], ctx.take)
        db = None
        if ctx.needs_input_grad[2]:
            call("columns", *grad.shape, grad, db := grad.new_empty(grad.shape[1]))
        return dh, dw, db, None


class _Sensor(torch.autograd.Function):
    """A sensor's two convolutions and its block of the fusion, all of them trained."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, of: KernelSensor, *parameters: Tensor) -> Tensor:
        ctx.of, y1 = of, _conv1(x, of.first)
        y2, features = _conv2(y1, of.second, of.pooled, keep=True)
        ctx.save_for_backward(x, y1, y2, features)
        return _linear(features, parameters[-1], None)

    @staticmethod
    @_once
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        x, y1, y2, features = ctx.saved_tensors
        of: KernelSensor = ctx.of
        block = of.block
        df, dw = _linear_back(grad.contiguous(), features, block.weight, True, ctx.needs_input_grad[6], block.take_step)
        assert df is not None
        dw2, db2, dy1 = _conv2_back(df, y2, y1, of.second, of.pooled, below=True)
        assert dy1 is not None
        return None, None, *_conv1_back(dy1, y1, x, of.first), dw2, db2, dw


class _Fuse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, bias: Tensor, *blocks: Tensor) -> Tensor:
        held, batch, outs = [x.contiguous() for x in blocks], max(map(len, blocks)), bias.shape[0]
        y = bias.new_empty(batch, outs)
        at, step = torch.tensor([[x.data_ptr() for x in held], [outs * (len(x) == batch) for x in held]])
        call("fuse", batch, outs, len(held), at, step, bias, y)
        ctx.save_for_backward(y)
        ctx.rows = [len(x) for x in blocks]
        return y

    @staticmethod
    @_once
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        (y,) = ctx.saved_tensors
        masked, db = torch.empty_like(y), y.new_empty(y.shape[1])
        call("fuse_back", y.numel(), grad.contiguous(), y, masked)
        call("columns", *y.shape, masked, db)
        # A row that stands for the whole batch has the gradient of all its rows, as the bias has.
        of_rows = [masked if number == len(y) else db.unsqueeze(0) for number in ctx.rows]
        needed = ctx.needs_input_grad[1:]
        return db, *(g if is_needed else None for g, is_needed in zip(of_rows, needed, strict=True))


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        grad = torch.empty_like(logits)
        loss = call("loss", *logits.shape, logits, labels, grad)
        ctx.save_for_backward(grad, labels)  # labels for their version alone: an objective that changes them is refused
        return logits.new_tensor(loss)

    @staticmethod
    @_once
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        return ctx.saved_tensors[0] * grad, None


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of logits (B, K) at labels (B,) int64."""
    return applied(_Loss, logits.contiguous(), labels)


class KernelSum(nn.Module):
    """``ReLU(sum_m A_m h_m + b)``; a block of one row counts for the whole batch."""

    def __init__(self, bias: nn.Parameter) -> None:
        """Share the parameter."""
        super().__init__()
        self.bias = bias

    def forward(self, *blocks_BD: Tensor) -> Tensor:
        """M tensors (B, D) or (1, D) -> (B, D), summed in modality order."""
        return applied(_Fuse, self.bias, *blocks_BD)


def kernel_conv1(conv: nn.Conv1d, x_BTC: Tensor) -> Tensor:
    """ReLU(conv1) on ``time_major`` windows: (B, T + 4, C) -> (B, Q + 4, c1)."""
    return applied(_First, x_BTC, conv.weight, conv.bias, conv)


def kernel_channels_first(channels: int, y_BTC: Tensor) -> Tensor:
    """``kernel_conv1``'s output in torch's order, without padding: (B, Q + 4, c1) -> (B, channels, Q)."""
    return y_BTC[:, _MARGIN:-_MARGIN, :channels].transpose(1, 2)


def kernel_conv2(pooled: int, conv: nn.Conv1d, y_BTC: Tensor) -> Tensor:
    """ReLU(conv2), average pool to ``pooled`` steps and flatten: (B, Q + 4, c1) -> (B, out * pooled), channel-major."""
    return applied(_Second, y_BTC, conv.weight, conv.bias, conv, pooled)


class KernelLinear(nn.Module):
    """``x W^T + b``."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Share the parameters."""
        super().__init__()
        self.weight, self.bias = weight, bias
        self.take_step: TakeStep | None = None

    def forward(self, x_BD: Tensor) -> Tensor:
        """(B, D) -> (B, outputs)."""
        return applied(_Linear, x_BD, self.weight, self.bias, self.take_step)

    @contextmanager
    def stepping(self, take_step: TakeStep) -> Iterator[None]:
        """Let the weight take its optimizer steps in the backward pass."""
        self.take_step = take_step
        try:
            yield
        finally:
            self.take_step = None


class KernelSensor(nn.Module):
    """All stages of a sensor, for steps in which they all train."""

    def __init__(self, first: nn.Conv1d, second: nn.Conv1d, pooled: int, block: KernelLinear) -> None:
        """Share the parameters of the three stages."""
        super().__init__()
        self.first, self.second, self.pooled, self.block = first, second, pooled, block

    def forward(self, x_BTC: Tensor) -> Tensor:
        """(B, T + 4, C) -> (B, fusion)."""
        first, second = self.first, self.second
        return applied(_Sensor, x_BTC, self, *first.parameters(), *second.parameters(), self.block.weight)
