"""Backbone 2: a frozen MOMENT encoder with LoRA per modality, MDLoRA fusion, a trained head (Section VI-A).

PEFT's LoRA layers sit on q, v, the gated input matrix ``wi_0`` and ``wo`` of every block; one block's adapters are one
parameter group. ``h_m`` is the mean of the last hidden states; the fusion layer is MDLoRA's; the head is dense:
Linear(D -> D/2) + ReLU + Linear(D/2 -> K). All modalities share the frozen weights, none of them an adapter.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor, nn

from relief_ray.core.stages import FLOAT_BYTES, RAW, Engine, StageSpec
from relief_ray.models.backbone import (
    SHA256,
    Backbone,
    BackboneConfig,
    Facts,
    InputShape,
    Stage,
    require_memory,
    seeded,
)
from relief_ray.models.cnn import ColumnBlock
from relief_ray.models.moment.encoder import (
    LONGEST,
    PATCH,
    POSITIONS,
    SIZES,
    EncoderBlock,
    Feature,
    Patches,
    Size,
    observed,
    position_bias,
)
from relief_ray.models.moment.weights import FrozenEncoder, load_frozen, local_folder, local_sha256
from relief_ray.models.stage import TrainedStage, apart, copied, in_order, trained_stage
from relief_ray.support.errors import UserError

# MDLoRA: a fusion layer whose low-rank update is split into column blocks per modality (Section IV).
#
# ``W = W_0 + s B [A_1 | .. | A_M]``: ``W_0`` (D x M D) is frozen and seeded, ``A_m`` (r x D) belongs to modality m,
# ``B`` (D x r) to all. The sum over m is one PEFT LoRA layer on the concatenated features, cut where the modalities
# meet.


def _fusion(
    modalities: tuple[str, ...], width: int, rank: int, alpha: int, seed: int
) -> tuple[list[Stage], list[TrainedStage]]:
    """Cut one seeded PEFT LoRA layer on the concatenated features into column blocks, the frozen ones first."""
    from peft import LoraConfig
    from peft.tuners.lora.layer import Linear as LoraLinear

    def build() -> nn.Module:
        base = nn.Linear(len(modalities) * width, width, bias=False)
        config = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=0.0)
        layer: nn.Module = LoraLinear(base, "default", config=config, r=rank, lora_alpha=alpha)
        return layer

    layer = seeded(build, seed)
    weights = {name: p.detach() for name, p in layer.named_parameters()}
    base_DF, a_RF = weights["base_layer.weight"], weights["lora_A.default.weight"]
    frozen = [
        Stage(
            spec=StageSpec(id=f"fusion.W0.{m}", inputs=(f"feature.{m}",), modality=m),
            module=ColumnBlock(weight).requires_grad_(False),
        )
        for m, weight in zip(modalities, torch.split(base_DF, width, dim=1), strict=True)
    ]
    parts = []
    for m, weight in zip(modalities, torch.split(a_RF, width, dim=1), strict=True):
        block = ColumnBlock(weight)
        named = [("lora_A", block.weight)]
        parts.append(trained_stage(f"fusion.A.{m}", (f"feature.{m}",), block, "fusion_a", of=named, modality=m))
    shared = SharedB(weights["lora_B.default.weight"], alpha / rank)
    inputs = tuple(stage.spec.id for stage in (*frozen, *(block for block, _ in parts)))
    parts.append(trained_stage("fusion", inputs, shared, "fusion_b", group="fusion.B"))
    return frozen, parts


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
        frozen, low_rank = sum(parts[1:half], parts[0]), sum(parts[half + 1 :], parts[half])
        return frozen + nn.functional.linear(low_rank, self.lora_B) * self.scaling


TARGETS = ("q", "v", "wi_0", "wo")
# Hidden values that a forward pass without gradient keeps per stage: 4 MiB of float32.
_CHUNK_VALUES = 2**20
# Bytes that a block's forward pass keeps for its backward pass, in multiples of its hidden values (float32, of all
# channels and patches): `python -m benchmarks.memory --windows 16 --micro 16` added 1108 MiB at 36 MiB of hidden values
# (30.8 times), `--windows 8 --micro 8 --samples 256` 1098 MiB at 36 (30.5), `--windows 32 --micro 7` 591 MiB at 15.75
# (37.5: with micro-batches the allocator wastes more, and some 50 MiB do not depend on windows).
_KEPT_PER_HIDDEN = 40


class MomentConfig(BackboneConfig):
    """Backbone 2: a frozen MOMENT encoder with LoRA adapters."""

    has_lora = True
    same_speed = frozenset({"weights", "weights_seed", "revision", "alpha"})

    name: Literal["moment_lora"] = "moment_lora"
    size: Size = "small"
    """Width and depth of the frozen encoder."""
    weights: str = "random"
    """``random``, ``hub`` (AutonLab/MOMENT-1-small), a hub id, or a folder in ``save_pretrained`` format; an existing
    folder is stored as an absolute path, since runs are read from other working directories."""
    weights_seed: int = Field(default=0, ge=0)
    """Seed of ``random`` weights; read by these alone."""
    revision: str | None = Field(default=None, min_length=1)
    """Branch, tag or commit on the hub; None: its default."""
    rank: int = Field(default=8, ge=1)
    """Rank r of the adapters."""
    alpha: int = Field(default=16, ge=1)
    """Scale of the adapters, s = alpha / rank."""
    pad_to: int | None = Field(default=None, ge=PATCH)
    """Samples that windows are padded to; None: native length."""

    @field_validator("weights")
    @classmethod
    def _absolute(cls, value: str) -> str:
        folder = local_folder(value)
        return value if folder is None else str(folder.absolute())

    @field_validator("pad_to")
    @classmethod
    def _whole_patches(cls, value: int | None) -> int | None:
        if value is not None and value % PATCH:
            raise ValueError(f"is no multiple of the patch length {PATCH}; take {value - value % PATCH + PATCH}")
        if value is not None and value > LONGEST:
            raise ValueError(
                f"is above {LONGEST}, where MOMENT's table of {POSITIONS} positions ends; take at most {LONGEST}"
            )
        return value

    def build(self, shape: InputShape, seed: int, engine: Engine = "naive") -> Backbone:
        """The backbone on its (shared) frozen encoder; adapters, fusion and head are seeded.

        Raises:
            UserError: weights, window length, engine or this machine's memory do not fit.
        """
        if engine not in ("naive", "reuse"):
            raise UserError(f"training.engine={engine!r} is Backbone 1's; take 'reuse' or 'naive' for moment_lora")
        require_memory(self, _num_values(self, shape))
        mask_T, modalities = observed(shape.window, self.pad_to), shape.modalities
        frozen = load_frozen(self.size, self.weights, self.weights_seed, self.revision)
        width, bias_1HPP = SIZES[self.size].d_model, position_bias(frozen.pipeline, mask_T)
        frozen_blocks, fusion = _fusion(modalities, width, self.rank, self.alpha, seed)
        head = _head(width, shape.num_classes, seed + 1)
        encoders, parts = list[Stage](), list[TrainedStage]()
        for i, (modality, channels) in enumerate(shape.channels):
            adapted = _adapted(self, frozen.pipeline, seed + 2 + i)
            patches, blocks, feature = _encoder(frozen.pipeline, adapted, mask_T, bias_1HPP, modality, channels)
            encoders += [patches, *apart(blocks)[0], feature]
            parts += blocks
        behind, groups = apart([*fusion, *head])
        largest = max(c for _, c in shape.channels) * (len(mask_T) // PATCH) * width
        return Backbone(
            shape,
            [*encoders, *frozen_blocks, *behind],
            in_order([*apart(parts)[1], *groups]),
            chunk=max(1, _CHUNK_VALUES // largest),
            facts=_facts(self, frozen, len(modalities), width),
            warnings=_warnings(self, frozen),
        )

    def frozen_here(self) -> Facts:
        """The hash of the encoder's weights that are now on this machine; empty if there are none."""
        sha256 = local_sha256(self.size, self.weights, self.weights_seed, self.revision)
        return {} if sha256 is None else {SHA256: sha256}


def _num_values(config: MomentConfig, shape: InputShape) -> int:
    """Number of trained values of the model: adapters of all encoders, of the fusion layer, and the head."""
    size, modalities = SIZES[config.size], len(shape.modalities)
    width, inner = size.d_model, size.num_heads * size.d_kv
    widths = {"q": width + inner, "v": width + inner, "wi_0": width + size.d_ff, "wo": size.d_ff + width}
    encoder = config.rank * size.num_layers * sum(widths[name] for name in TARGETS)
    fusion = config.rank * (modalities + 1) * width
    half = width // 2
    return modalities * encoder + fusion + half * (width + 1) + shape.num_classes * (half + 1)


def _adapted(config: MomentConfig, pipeline: nn.Module, seed: int) -> nn.Module:
    """A copy of the encoder with new PEFT adapters; every frozen tensor is shared."""
    from peft import LoraConfig, inject_adapter_in_model

    lora = LoraConfig(r=config.rank, lora_alpha=config.alpha, lora_dropout=0.0, target_modules=list(TARGETS))

    def build() -> nn.Module:
        adapted: nn.Module = inject_adapter_in_model(lora, copied(pipeline))
        return adapted

    return seeded(build, seed).eval()


def _blocks(pipeline: nn.Module) -> list[nn.Module]:
    return list(pipeline.get_submodule("encoder.block").children())


def _encoder(
    plain: nn.Module, adapted: nn.Module, mask_T: Tensor, bias_1HPP: Tensor, modality: str, channels: int
) -> tuple[Stage, list[TrainedStage], Stage]:
    """Patches, blocks and feature; the group of a block are its LoRA factors by PEFT's names without the adapter's."""
    norm, source = adapted.get_submodule("encoder.final_layer_norm"), f"patches.{modality}"
    width = norm.get_parameter("weight").numel()
    step_bytes = _KEPT_PER_HIDDEN * FLOAT_BYTES * channels * (len(mask_T) // PATCH) * width
    spec = StageSpec(id=source, inputs=(RAW + modality,), modality=modality, cheap=True)
    patches = Stage(spec=spec, module=Patches(adapted, mask_T))
    pairs = zip(_blocks(adapted), _blocks(plain), strict=True)
    feature = Feature(norm, mask_T)
    blocks = []
    for layer, (block, frozen) in enumerate(pairs, 1):
        name = f"encoder.{modality}.{layer}"
        factors = [(n.removesuffix(".default.weight"), p) for n, p in block.named_parameters() if ".lora_" in n]
        part = trained_stage(
            name,
            (source,),
            EncoderBlock(block, bias_1HPP),
            "encoder",
            of=factors,
            modality=modality,
            layer=layer,
            frozen=EncoderBlock(frozen, bias_1HPP),
            pool=feature,
            step_bytes=step_bytes,
        )
        blocks.append(part)
        source = name
    spec = StageSpec(id=f"feature.{modality}", inputs=(source,), modality=modality, feature=True)
    return patches, blocks, Stage(spec=spec, module=feature)


def _head(width: int, num_classes: int, seed: int) -> list[TrainedStage]:
    layers = seeded(lambda: nn.Sequential(nn.Linear(width, width // 2), nn.Linear(width // 2, num_classes)), seed)
    first, last = layers.children()
    return [
        trained_stage("head.1", ("fusion",), nn.Sequential(first, nn.ReLU()), "head", of=first, layer=1),
        trained_stage("head.2", ("head.1",), last, "head", layer=2),
    ]


def _facts(config: MomentConfig, frozen: FrozenEncoder, num_modalities: int, width: int) -> Facts:
    """Identity and size of the frozen part, for the record."""
    return {
        "weights": frozen.origin,
        **({} if frozen.revision is None else {"weights_revision": frozen.revision}),
        SHA256: frozen.sha256,
        "encoder_values": frozen.num_values,
        "token_table_values": SIZES[config.size].vocab_size * width,
        "num_encoders": num_modalities,
        "frozen_fusion_values": num_modalities * width * width,
    }


def _warnings(config: MomentConfig, frozen: FrozenEncoder) -> tuple[str, ...]:
    if frozen.random_seed is None:
        return ()
    return (f"RANDOM ENCODER: the frozen MOMENT encoder ({config.size}, seed {frozen.random_seed}) is not pretrained",)
