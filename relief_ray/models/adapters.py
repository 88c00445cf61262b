"""Backbone 2's trained parameters in PEFT's own file format, one folder per encoder and one for the fusion layer.

``<folder>/encoder.<modality>`` loads into a plain ``MOMENTPipeline`` with ``PeftModel.from_pretrained``;
``<folder>/fusion`` into any module whose ``fusion`` is the Linear on the concatenated features; ``head.safetensors``
holds the dense head, which is no adapter.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from relief_ray.errors import UserError
from relief_ray.groups import GroupId, GroupLayout, Params
from relief_ray.models.moment_lora import TARGETS, MomentConfig

ADAPTER, HEAD = "adapter_model.safetensors", "head.safetensors"
PREFIX = "base_model.model."


def save_adapters(config: MomentConfig, layout: GroupLayout, params: Params, folder: Path) -> None:
    """Writes all trained parameters of ``params`` below ``folder``."""
    for place, tensors in _files(layout, params).items():
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({k: t.contiguous() for k, t in tensors.items()}, path)
        if path.name == ADAPTER:
            _write_config(config, path.parent)


def load_adapters(layout: GroupLayout, folder: Path) -> dict[GroupId, Tensor]:
    """Reads what ``save_adapters`` or PEFT wrote.

    Raises:
        UserError: a file is missing, is not safetensors, or lacks tensors of this layout.
    """
    empty = {g.id: torch.empty(g.numel) for g in layout}
    for place, views in _files(layout, empty).items():
        found = _read(folder / place)
        if missing := [k for k, t in views.items() if k not in found or found[k].shape != t.shape]:
            raise UserError(
                f"{folder / place}: {len(missing)} of {len(views)} tensors are missing or have another shape "
                f"({', '.join(missing[:3])}); expected adapters of the same size, rank and modalities"
            )
        if place.parts[0] == "fusion":
            _uncut(layout, found, empty)
        else:
            for k, view in views.items():
                view.copy_(found[k])
    return empty


def _files(layout: GroupLayout, params: Params) -> dict[Path, dict[str, Tensor]]:
    """Tensors by file and key: views of ``params``, but for the fusion blocks, which stand side by side in one."""
    files: dict[Path, dict[str, Tensor]] = {}
    for group in layout:
        for name, tensor in layout.unflatten(group.id, params[group.id]).items():
            if group.role == "encoder":
                assert group.layer is not None
                place = Path(f"encoder.{group.modality}", ADAPTER)
                files.setdefault(place, {})[f"{PREFIX}encoder.block.{group.layer - 1}.{name}.weight"] = tensor
            elif group.role == "head":
                files.setdefault(Path(HEAD), {})[f"{group.id}.{name}"] = tensor
            elif group.role == "fusion_b":
                files.setdefault(Path("fusion", ADAPTER), {})[f"{PREFIX}fusion.{name}.weight"] = tensor
    files[Path("fusion", ADAPTER)][f"{PREFIX}fusion.lora_A.weight"] = layout.matrix("fusion_a", params)
    return files


def _uncut(layout: GroupLayout, found: Mapping[str, Tensor], params: Params) -> None:
    """Cuts the fusion adapter back into column blocks."""
    start, whole_RF = 0, found[f"{PREFIX}fusion.lora_A.weight"]
    for group in layout:
        for name, view in layout.unflatten(group.id, params[group.id]).items():
            if group.role == "fusion_a":
                view.copy_(whole_RF[:, start : start + view.shape[1]])
                start += view.shape[1]
            elif group.role == "fusion_b":
                view.copy_(found[f"{PREFIX}fusion.{name}.weight"])


def _write_config(config: MomentConfig, folder: Path) -> None:
    from peft import LoraConfig

    targets = ["fusion"] if folder.name == "fusion" else list(TARGETS)
    adapter = LoraConfig(
        r=config.rank, lora_alpha=config.alpha, lora_dropout=0.0, target_modules=targets, inference_mode=True
    )
    adapter.save_pretrained(str(folder))


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: cannot be read ({error}); expected what save_adapters or PEFT wrote") from error
