"""Backbone 1: two Conv1d layers per modality, a fusion layer of column blocks, a linear head (Section VI-A).

Per modality: Conv1d(C_m->16, k5, s2) + ReLU, Conv1d(16->32, k5, s2) + ReLU, average pool to 32 steps, h_m in R^1024.
Fusion: ReLU(sum_m A_m h_m + b), A_m (304 x 1024); head: Linear(304 -> K). No BatchNorm, no dropout: a model
trained on absent inputs must not carry their statistics. The widths are FITTED to Table I's 4.81 MB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from relief_ray.core.groups import GroupId, Kind, Role
from relief_ray.core.stages import RAW, StageSpec
from relief_ray.models.backbone import (
    Backbone,
    BackboneConfig,
    GroupParameters,
    InputShape,
    Stage,
    raw_windows,
    require_memory,
    seeded,
)
from relief_ray.models.gemm import ChannelsFirst, FusedConv1, FusedConv2, columns

KERNEL = 5


class CnnConfig(BackboneConfig):
    """Widths of Backbone 1.

    Attributes:
        conv1: channels after the first convolution of an encoder.
        conv2: channels after the second convolution.
        steps: time steps that pooling leaves.
        fusion: outputs of the fusion layer.
    """

    has_gemm: ClassVar[bool] = True
    name: Literal["cnn"] = "cnn"
    conv1: int = Field(default=16, ge=1)
    conv2: int = Field(default=32, ge=1)
    steps: int = Field(default=32, ge=1)
    fusion: int = Field(default=304, ge=1)

    def build(self, shape: InputShape, seed: int, fast: bool = False) -> Backbone:
        """The backbone with seeded default initialisation; ``fast``: same layout, values and function with GEMMs.

        Raises:
            UserError: a model of these widths does not fit into this machine's memory.
        """
        require_memory(self, _num_values(self, shape))
        return _build(self, shape, seed, fast)


def _num_values(config: CnnConfig, shape: InputShape) -> int:
    """Number of trained values of the model."""
    encoders = sum(
        config.conv1 * (channels * KERNEL + 1) + config.conv2 * (config.conv1 * KERNEL + 1)
        for _, channels in shape.channels
    )
    width = config.conv2 * config.steps * len(shape.channels)
    return encoders + config.fusion * (width + 1) + shape.num_classes * (config.fusion + 1)


def _build(config: CnnConfig, shape: InputShape, seed: int, fast: bool) -> Backbone:
    width = config.conv2 * config.steps
    fusion = seeded(lambda: nn.Linear(width * len(shape.channels), config.fusion), seed)
    head = seeded(lambda: nn.Linear(config.fusion, shape.num_classes), seed + 1)
    assert isinstance(fusion, nn.Linear) and isinstance(head, nn.Linear)
    columns_FD = torch.split(fusion.weight.detach(), width, dim=1)
    branches = [
        _branch(config, modality, _conv(config, channels, seed + 2 + i), columns_FD[i], fast)
        for i, (modality, channels) in enumerate(shape.channels)
    ]
    total = _FusionSum(fusion.bias.detach())
    inputs = tuple(b.block.id for b in branches)
    stages = [stage for b in branches for stage in b.stages]
    stages.append(Stage(spec=StageSpec(id="fusion", inputs=inputs, groups=frozenset(["fusion.B"])), module=total))
    stages.append(Stage(spec=StageSpec(id="head", inputs=("fusion",), groups=frozenset(["head.1"])), module=head))
    groups = [
        *(b.block for b in branches),
        _group("fusion.B", "fusion_b", None, None, total),
        *(group for b in branches for group in b.encoder),
        _group("head.1", "head", None, 1, head),
    ]
    return Backbone(shape, stages, groups, columns if fast else raw_windows)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Branch:
    """One modality's part of the model.

    Attributes:
        stages: its encoder's stages and its column block of the fusion layer.
        encoder: one group per convolution.
        block: the group of the column block.
    """

    stages: list[Stage]
    encoder: list[GroupParameters]
    block: GroupParameters


def _branch(config: CnnConfig, modality: str, convs: Sequence[nn.Conv1d], columns_FD: Tensor, fast: bool) -> _Branch:
    block, name = ColumnBlock(columns_FD), f"fusion.A.{modality}"
    spec = StageSpec(id=name, inputs=(f"encoder.{modality}.2",), groups=frozenset([name]), modality=modality)
    return _Branch(
        stages=[*_encoder(config, modality, convs, fast), Stage(spec=spec, module=block)],
        encoder=[_group(f"encoder.{modality}.{i}", "encoder", modality, i, conv) for i, conv in enumerate(convs, 1)],
        block=_group(name, "fusion_a", modality, None, block),
    )


def _conv(config: CnnConfig, channels: int, seed: int) -> tuple[nn.Conv1d, nn.Conv1d]:
    def build() -> nn.Module:
        first = nn.Conv1d(channels, config.conv1, KERNEL, stride=2, padding=2)
        return nn.Sequential(first, nn.Conv1d(config.conv1, config.conv2, KERNEL, stride=2, padding=2))

    first, second = seeded(build, seed).children()
    assert isinstance(first, nn.Conv1d) and isinstance(second, nn.Conv1d)
    return first, second


def _encoder(config: CnnConfig, modality: str, convs: Sequence[nn.Conv1d], fast: bool) -> list[Stage]:
    first, second = convs
    modules: tuple[nn.Module, nn.Module]
    pool: nn.Module = nn.Sequential(nn.AdaptiveAvgPool1d(config.steps), nn.Flatten())
    if fast:
        modules = (FusedConv1(first), FusedConv2(second, config.steps))
        pool = nn.Sequential(ChannelsFirst(), pool)
    else:
        modules = (nn.Sequential(first, nn.ReLU()), nn.Sequential(second, nn.ReLU(), pool))
    ids = [f"encoder.{modality}.{layer}" for layer in (1, 2)]
    specs = [
        StageSpec(id=ids[0], inputs=(RAW + modality,), groups=frozenset(ids[:1]), modality=modality),
        StageSpec(id=ids[1], inputs=(ids[0],), groups=frozenset(ids[1:]), modality=modality, feature=True),
    ]
    return [
        Stage(spec=spec, module=module, pool=p) for spec, module, p in zip(specs, modules, (pool, None), strict=True)
    ]


def _group(name: GroupId, role: Role, modality: str | None, layer: int | None, module: nn.Module) -> GroupParameters:
    """Declare all parameters of ``module``, in the module's order (weight, bias)."""
    kinds: dict[str, Kind] = {"weight": "weight", "bias": "bias"}
    tensors = tuple((key, p, kinds[key]) for key, p in module.named_parameters())
    return GroupParameters(id=name, role=role, modality=modality, layer=layer, tensors=tensors)


class ColumnBlock(nn.Module):
    """``A_m h_m``: one modality's columns of the fusion matrix."""

    def __init__(self, weight: Tensor) -> None:
        """``weight`` (fusion, d_m)."""
        super().__init__()
        self.weight = nn.Parameter(weight.clone())

    def forward(self, h_BD: Tensor) -> Tensor:
        """(B, d_m) -> (B, fusion)."""
        return nn.functional.linear(h_BD, self.weight)


class _FusionSum(nn.Module):
    """``ReLU(sum_m z_m + b)``."""

    def __init__(self, bias: Tensor) -> None:
        """``bias`` (fusion,)."""
        super().__init__()
        self.bias = nn.Parameter(bias.clone())

    def forward(self, *blocks_BD: Tensor) -> Tensor:
        """M tensors (B, fusion) -> (B, fusion), summed in modality order."""
        total = blocks_BD[0] + self.bias
        for block in blocks_BD[1:]:
            total = total + block
        return torch.relu(total)
