"""MDLoRA: a fusion layer whose low-rank update is split into column blocks per modality (Section IV).

``W = W_0 + s B [A_1 | .. | A_M]``: ``W_0`` (D x M D) is frozen and seeded, ``A_m`` (r x D) belongs to modality m, ``B``
(D x r) to all. The sum over m is one PEFT LoRA layer on the concatenated features, cut where the modalities meet.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from relief_ray.models.backbone import seeded


@dataclass(frozen=True, kw_only=True, slots=True)
class Fusion:
    """The fusion layer's modules, by modality in canonical order.

    Attributes:
        frozen: ``W_0m`` of each modality.
        blocks: ``A_m`` of each modality.
        shared: ``B`` and the sums over modalities.
    """

    frozen: tuple[FrozenBlock, ...]
    blocks: tuple[BlockA, ...]
    shared: SharedB


def build_fusion(num_modalities: int, width: int, rank: int, alpha: int, seed: int) -> Fusion:
    """Cut one seeded PEFT LoRA layer on the concatenated features into column blocks."""
    from peft import LoraConfig
    from peft.tuners.lora.layer import Linear as LoraLinear

    def build() -> nn.Module:
        base = nn.Linear(num_modalities * width, width, bias=False)
        config = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=0.0)
        layer: nn.Module = LoraLinear(base, "default", config=config, r=rank, lora_alpha=alpha)
        return layer

    layer = seeded(build, seed)
    weights = {name: p.detach() for name, p in layer.named_parameters()}
    base_DF, a_RF = weights["base_layer.weight"], weights["lora_A.default.weight"]
    return Fusion(
        frozen=tuple(FrozenBlock(w) for w in torch.split(base_DF, width, dim=1)),
        blocks=tuple(BlockA(w) for w in torch.split(a_RF, width, dim=1)),
        shared=SharedB(weights["lora_B.default.weight"], alpha / rank),
    )


class FrozenBlock(nn.Module):
    """``W_0m h_m``: one modality's columns of the frozen fusion matrix."""

    def __init__(self, weight_DF: Tensor) -> None:
        """``weight_DF`` (D, D_m)."""
        super().__init__()
        self.weight = nn.Parameter(weight_DF.clone(), requires_grad=False)

    def forward(self, h_BF: Tensor) -> Tensor:
        """(B, D_m) -> (B, D)."""
        return nn.functional.linear(h_BF, self.weight)


class BlockA(nn.Module):
    """``A_m h_m``."""

    def __init__(self, weight_RF: Tensor) -> None:
        """``weight_RF`` (r, D_m)."""
        super().__init__()
        self.lora_A = nn.Parameter(weight_RF.clone())

    def forward(self, h_BF: Tensor) -> Tensor:
        """(B, D_m) -> (B, r)."""
        return nn.functional.linear(h_BF, self.lora_A)


class SharedB(nn.Module):
    """``sum_m W_0m h_m + s B sum_m A_m h_m``."""

    def __init__(self, weight_DR: Tensor, scaling: float) -> None:
        """``weight_DR`` (D, r), zero at first; ``scaling`` is ``s = alpha / r``."""
        super().__init__()
        self.lora_B = nn.Parameter(weight_DR.clone())
        self.scaling = self.initial = scaling

    def set_scale(self, adapter: str, scale: float) -> None:
        """Set ``s = scale * alpha / r``, as PEFT's layers do; ``adapter`` is ignored, since there is one only."""
        self.scaling = scale * self.initial

    def forward(self, *parts: Tensor) -> Tensor:
        """M frozen blocks (B, D), then M low-rank ones (B, r), in modality order -> (B, D)."""
        half = len(parts) // 2
        return _sum(parts[:half]) + nn.functional.linear(_sum(parts[half:]), self.lora_B) * self.scaling


def _sum(parts: tuple[Tensor, ...]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
