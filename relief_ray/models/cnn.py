"""Backbone 1: two Conv1d layers per modality, a fusion layer of column blocks, a linear head (Section VI-A).

Per modality: Conv1d(C_m->16, k5, s2) + ReLU, Conv1d(16->32, k5, s2) + ReLU, average pool to 32 steps, h_m in R^1024.
Fusion: ReLU(sum_m A_m h_m + b), A_m (304 x 1024); head: Linear(304 -> K). No BatchNorm, no dropout: a model
trained on absent inputs must not carry their statistics. The widths are FITTED to Table I's 4.81 MB.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from relief_ray.core.stages import RAW, Engine, StageSpec
from relief_ray.models.backbone import (
    Backbone,
    BackboneConfig,
    InputShape,
    Stage,
    raw_windows,
    require_memory,
    seeded,
)
from relief_ray.models.fused import (
    Gradients,
    KernelLinear,
    KernelSensor,
    KernelSum,
    applied,
    kernel_channels_first,
    kernel_conv1,
    kernel_conv2,
    time_major,
)
from relief_ray.models.stage import Computed, TrainedStage, apart, in_order, trained_stage

# Backbone 1's encoders as matrix products: the same function and gradients, several times faster on a CPU.
#
# conv1's input columns are data: they are gathered once per client. Everything stays (batch, time, channel), so conv2's
# columns are contiguous runs of conv1's output. Agreement with ``nn.Conv1d`` up to summation order is tested.
#
# Forward and backward passes are written by hand, since autograd's own operations read and write memory more often.
# Parameters that ``torch.func`` passes in may stand for many models at once, and autocast chooses dtypes itself: there
# torch's operations are used.


KERNEL, _STRIDE, _PADDING = 5, 2, 2


def columns(modality: str, windows_BCT: Tensor) -> Tensor:
    """conv1's input columns (B, T/2, C*5), channel-major as in ``conv.weight.view(out, C*5)``."""
    padded = nn.functional.pad(windows_BCT, (_PADDING, _PADDING))
    unfolded = padded.unfold(2, KERNEL, _STRIDE)  # (B, C, T/2, 5)
    return unfolded.permute(0, 2, 1, 3).flatten(2).contiguous()


def fused_conv1(conv: nn.Conv1d, columns_BTK: Tensor) -> Tensor:
    """ReLU(conv1) on precomputed columns: (B, T/2, C*5) -> (B, T/2, out)."""
    return _activated(columns_BTK, conv.weight.flatten(1), conv)


def fused_conv2(steps: int, conv: nn.Conv1d, x_BTC: Tensor) -> Tensor:
    """ReLU(conv2), average pool to ``steps`` and flatten: (B, T/2, in) -> (B, out * steps), as the reference has it."""
    weight = conv.weight.transpose(1, 2).flatten(1)  # (out, 5*in): time-major columns
    columns_BTK = unfold(x_BTC, conv)
    if _is_written_out(conv) and columns_BTK.shape[1] == 2 * steps:
        return applied(_ActivatedPairs, columns_BTK, weight, conv.bias)
    y_BTC = _activated(columns_BTK, weight, conv)
    batch, time, channels = y_BTC.shape
    if time % steps:
        return nn.functional.adaptive_avg_pool1d(y_BTC.transpose(1, 2), steps).flatten(1)
    if time != steps:
        y_BTC = y_BTC.view(batch, steps, time // steps, channels).mean(2)
    return y_BTC.transpose(1, 2).flatten(1)


def unfold(x_BTC: Tensor, conv: nn.Conv1d) -> Tensor:
    """conv2's input columns (B, T/2, 5*C), differentiable."""
    if _is_written_out(conv):
        return applied(_Unfold, x_BTC)
    padded = nn.functional.pad(x_BTC, (0, 0, _PADDING, _PADDING))
    return padded.unfold(1, KERNEL, _STRIDE).transpose(2, 3).flatten(2)


def _is_written_out(conv: nn.Conv1d) -> bool:
    return isinstance(conv.weight, nn.Parameter) and not torch.is_autocast_enabled(conv.weight.device.type)


def _activated(columns_BTK: Tensor, weight_OK: Tensor, conv: nn.Conv1d) -> Tensor:
    """``ReLU(x W^T + b)``."""
    if _is_written_out(conv):
        return applied(_Activated, columns_BTK, weight_OK, conv.bias)
    return torch.relu(nn.functional.linear(columns_BTK, weight_OK, conv.bias))


class _Activated(torch.autograd.Function):
    """``ReLU(x W^T + b)``: the ReLU in place, its mask read off its output."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        return _saved(ctx, *inputs)

    @staticmethod
    def backward(ctx: Any, grad_BTO: Tensor) -> Gradients:
        x_BTK, weight_OK, y_BTO = ctx.saved_tensors
        return _gradients(ctx, x_BTK, weight_OK, torch.ops.aten.threshold_backward(grad_BTO, y_BTO, 0))


class _ActivatedPairs(torch.autograd.Function):
    """``ReLU(x W^T + b)``, means of pairs of steps, channel-major: (B, 2 S, K) -> (B, O * S)."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        pairs = _pairs(_saved(ctx, *inputs))
        return torch.add(pairs[:, :, 0], pairs[:, :, 1]).mul_(0.5).transpose(1, 2).flatten(1)

    @staticmethod
    def backward(ctx: Any, grad_BF: Tensor) -> Gradients:
        x_BTK, weight_OK, y_BTO = ctx.saved_tensors
        pairs = _pairs(y_BTO)
        halves = grad_BF.mul(0.5).view(len(grad_BF), len(weight_OK), pairs.shape[1]).transpose(1, 2).contiguous()
        # Both steps of a pair have the same gradient: the mask's pass reads it twice, so no copy is made.
        grad_BSPO = torch.ops.aten.threshold_backward(halves.unsqueeze(2).expand(pairs.shape), pairs, 0)
        return _gradients(ctx, x_BTK, weight_OK, grad_BSPO)


def _saved(ctx: Any, x_BTK: Tensor, weight_OK: Tensor, bias: Tensor) -> Tensor:
    """``ReLU(x W^T + b)``, saved with its inputs for the backward pass."""
    y_BTO = nn.functional.linear(x_BTK, weight_OK, bias).relu_()
    ctx.save_for_backward(x_BTK, weight_OK, y_BTO)
    return y_BTO


def _pairs(y_BTO: Tensor) -> Tensor:
    """(B, S, 2, O)."""
    return y_BTO.view(len(y_BTO), y_BTO.shape[1] // 2, 2, y_BTO.shape[2])


def _gradients(ctx: Any, x_BTK: Tensor, weight_OK: Tensor, grad: Tensor) -> Gradients:
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


class CnnConfig(BackboneConfig):
    """Widths of Backbone 1."""

    engines: ClassVar[tuple[Engine, ...]] = ("fused", "gemm")
    name: Literal["cnn"] = "cnn"
    conv1: int = Field(default=16, ge=1)
    """Channels after the first convolution of an encoder."""
    conv2: int = Field(default=32, ge=1)
    """Channels after the second convolution."""
    steps: int = Field(default=32, ge=1)
    """Time steps that pooling leaves."""
    fusion: int = Field(default=304, ge=1)
    """Outputs of the fusion layer."""

    def build(self, shape: InputShape, seed: int, engine: Engine = "naive") -> Backbone:
        """The backbone with seeded default initialisation: same layout, values and function for every engine.

        Raises:
            UserError: a model of these widths does not fit into this machine's memory.
        """
        require_memory(self, _num_values(self, shape))
        width = self.conv2 * self.steps
        fusion = seeded(lambda: nn.Linear(width * len(shape.channels), self.fusion), seed)
        head = seeded(lambda: nn.Linear(self.fusion, shape.num_classes), seed + 1)
        assert isinstance(fusion, nn.Linear) and isinstance(head, nn.Linear)
        columns_FD = torch.split(fusion.weight.detach(), width, dim=1)
        is_fused, bias = engine == "fused", nn.Parameter(fusion.bias.detach().clone())
        parts: list[TrainedStage] = []
        joined: list[Stage] = []
        for i, (modality, channels) in enumerate(shape.channels):
            convs = _conv(self, channels, seed + 2 + i)
            parts += _encoder(self, modality, convs, engine)
            source, name = parts[-1][0].spec.id, f"fusion.A.{modality}"
            block = KernelLinear(nn.Parameter(columns_FD[i].clone()), None) if is_fused else ColumnBlock(columns_FD[i])
            parts.append(trained_stage(name, (source,), block, "fusion_a", modality=modality))
            if isinstance(block, KernelLinear):
                groups = frozenset(group.id for _, group in parts[-3:])
                spec = StageSpec(id=name, inputs=(RAW + modality,), groups=groups, modality=modality)
                joined.append(Stage(spec=spec, module=KernelSensor(*convs, self.steps, block)))
        blocks = tuple(f"fusion.A.{modality}" for modality in shape.modalities)
        total = KernelSum(bias) if is_fused else FusionSum(bias, nn.ReLU())
        parts.append(trained_stage("fusion", blocks, total, "fusion_b", group="fusion.B", takes_single_rows=is_fused))
        last = KernelLinear(head.weight, head.bias) if is_fused else head
        parts.append(trained_stage("head", ("fusion",), last, "head", group="head.1", layer=1))
        stages, declared = apart(parts)
        prepare = {"fused": time_major, "gemm": columns}.get(engine, raw_windows)
        return Backbone(shape, stages, in_order(declared), prepare, joined=joined)


def _num_values(config: CnnConfig, shape: InputShape) -> int:
    """Number of trained values of the model."""
    encoders = sum(
        config.conv1 * (channels * KERNEL + 1) + config.conv2 * (config.conv1 * KERNEL + 1)
        for _, channels in shape.channels
    )
    width = config.conv2 * config.steps * len(shape.channels)
    return encoders + config.fusion * (width + 1) + shape.num_classes * (config.fusion + 1)


def _conv(config: CnnConfig, channels: int, seed: int) -> tuple[nn.Conv1d, nn.Conv1d]:
    def build() -> nn.Module:
        first = nn.Conv1d(channels, config.conv1, KERNEL, stride=2, padding=2)
        return nn.Sequential(first, nn.Conv1d(config.conv1, config.conv2, KERNEL, stride=2, padding=2))

    first, second = seeded(build, seed).children()
    assert isinstance(first, nn.Conv1d) and isinstance(second, nn.Conv1d)
    return first, second


def _encoder(
    config: CnnConfig, modality: str, convs: tuple[nn.Conv1d, nn.Conv1d], engine: Engine
) -> list[TrainedStage]:
    modules: tuple[nn.Module, nn.Module]
    pool: nn.Module = nn.Sequential(nn.AdaptiveAvgPool1d(config.steps), nn.Flatten())
    first, second = convs
    if engine == "fused":
        modules = Computed(kernel_conv1, first), Computed(partial(kernel_conv2, config.steps), second)
        pool = nn.Sequential(Computed(partial(kernel_channels_first, first.out_channels)), pool)
    elif engine == "gemm":
        modules = Computed(fused_conv1, first), Computed(partial(fused_conv2, config.steps), second)
        pool = nn.Sequential(Computed(lambda x_BTC: x_BTC.transpose(1, 2)), pool)  # torch's order, as `pool` reads it
    else:
        modules = nn.Sequential(first, nn.ReLU()), nn.Sequential(second, nn.ReLU(), pool)
    below, name = (f"encoder.{modality}.{layer}" for layer in (1, 2))
    inner = trained_stage(
        below, (RAW + modality,), modules[0], "encoder", of=first, modality=modality, layer=1, pool=pool
    )
    feature = trained_stage(name, (below,), modules[1], "encoder", of=second, modality=modality, layer=2, feature=True)
    return [inner, feature]


class ColumnBlock(nn.Module):
    """``A_m h_m``: one modality's columns of the fusion matrix."""

    def __init__(self, weight: Tensor) -> None:
        """``weight`` (fusion, d_m)."""
        super().__init__()
        self.weight = nn.Parameter(weight.clone())

    def forward(self, h_BD: Tensor) -> Tensor:
        """(B, d_m) -> (B, fusion)."""
        return nn.functional.linear(h_BD, self.weight)


class FusionSum(nn.Module):
    """``rest(sum_m A_m h_m + b)``; of Backbone 1 ``rest`` is the ReLU."""

    def __init__(self, bias: nn.Parameter | None, rest: nn.Module) -> None:
        """``bias`` (D,) of the linear layer, and the layers behind it."""
        super().__init__()
        self.bias, self.rest = bias, rest

    def forward(self, *blocks_BD: Tensor) -> Tensor:
        """M tensors (B, D) -> (B, ...), summed in modality order."""
        first = blocks_BD[0] if self.bias is None else blocks_BD[0] + self.bias
        out: Tensor = self.rest(sum(blocks_BD[1:], first))
        return out
