"""Saves Backbone 2's trained parameters in PEFT's file format, a folder per encoder and one for fusion.

``<folder>/encoder.<modality>`` loads into a plain ``MOMENTPipeline`` with ``PeftModel.from_pretrained``;
``<folder>/fusion`` into any module whose ``fusion`` is the Linear on the concatenated features; ``head.safetensors``
holds all other trained parameters: the dense head, and modules that a method adds (exits, experts, a connector).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import save_file
from torch import Tensor

from relief_ray.core.groups import GroupLayout, Params
from relief_ray.models.moment.backbone import TARGETS, MomentConfig

if TYPE_CHECKING:
    from peft import LoraConfig

ADAPTER, HEAD = "adapter_model.safetensors", "head.safetensors"
PREFIX = "base_model.model."
FUSION, FUSION_A = Path("fusion", ADAPTER), f"{PREFIX}fusion.lora_A.weight"


def save_adapters(config: MomentConfig, layout: GroupLayout, params: Params, folder: Path) -> None:
    """Write all trained parameters of ``params`` below ``folder``."""
    for place, tensors in _files(layout, params).items():
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({k: t.contiguous() for k, t in tensors.items()}, path)
        if path.name == ADAPTER:
            _peft_config(config, path.parent).save_pretrained(str(path.parent))


def _files(layout: GroupLayout, params: Params) -> dict[Path, dict[str, Tensor]]:
    """Tensors by file and key: views of ``params``, except for the fusion blocks, which are concatenated in one."""
    files: dict[Path, dict[str, Tensor]] = {}
    for group in layout:
        for name, tensor in layout.unflatten(group.id, params[group.id]).items():
            if group.role == "encoder":
                assert group.layer is not None
                place = Path(f"encoder.{group.modality}", ADAPTER)
                files.setdefault(place, {})[f"{PREFIX}encoder.block.{group.layer - 1}.{name}.weight"] = tensor
            elif group.role == "fusion_b":
                files.setdefault(FUSION, {})[f"{PREFIX}fusion.{name}.weight"] = tensor
            elif group.role != "fusion_a":
                files.setdefault(Path(HEAD), {})[f"{group.id}.{name}"] = tensor
    files[FUSION][FUSION_A] = layout.matrix("fusion_a", params)
    return files


def _peft_config(config: MomentConfig, folder: Path) -> LoraConfig:
    from peft import LoraConfig

    targets = ["fusion"] if folder.name == "fusion" else list(TARGETS)
    return LoraConfig(
        r=config.rank, lora_alpha=config.alpha, lora_dropout=0.0, target_modules=targets, inference_mode=True
    )
