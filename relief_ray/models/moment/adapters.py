"""Saves and loads Backbone 2's trained parameters in PEFT's file format, a folder per encoder and one for fusion.

``<folder>/encoder.<modality>`` loads into a plain ``MOMENTPipeline`` with ``PeftModel.from_pretrained``;
``<folder>/fusion`` into any module whose ``fusion`` is the Linear on the concatenated features; ``head.safetensors``
holds all other trained parameters: the dense head, and modules that a method adds (exits, experts, a connector).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from relief_ray.core.groups import GroupId, GroupLayout, Params, all_finite
from relief_ray.models.moment.backbone import TARGETS, MomentConfig
from relief_ray.support.errors import UserError

if TYPE_CHECKING:
    from peft import LoraConfig

ADAPTER, CONFIG, HEAD = "adapter_model.safetensors", "adapter_config.json", "head.safetensors"
PREFIX = "base_model.model."
FUSION, FUSION_A = Path("fusion", ADAPTER), f"{PREFIX}fusion.lora_A.weight"
# Fields of PEFT's configuration that do not change a trained adapter's function; all others must be as we write them.
_NEUTRAL = frozenset(
    {
        *("task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode"),
        *("lora_dropout", "layers_pattern", "megatron_config", "megatron_core", "runtime_config", "qalora_group_size"),
        *("r", "lora_alpha", "target_modules"),  # compared on their own
    }
)
# Initialisations that leave the frozen matrices alone.
_STARTS = (True, False, "gaussian", "orthogonal")


def save_adapters(config: MomentConfig, layout: GroupLayout, params: Params, folder: Path) -> None:
    """Write all trained parameters of ``params`` below ``folder``."""
    for place, tensors in _files(layout, params).items():
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({k: t.contiguous() for k, t in tensors.items()}, path)
        if path.name == ADAPTER:
            _peft_config(config, path.parent).save_pretrained(str(path.parent))


def load_adapters(config: MomentConfig, layout: GroupLayout, folder: Path) -> dict[GroupId, Tensor]:
    """Read files of ``save_adapters`` or PEFT, to continue with an exported model in Python.

    Raises:
        UserError: a file is missing, is not safetensors, or has not exactly the tensors of this layout; or the adapters
            have another rank, alpha or kind, or are on other matrices.
    """
    # NaN: a value that no file has must not pass for one.
    params = {g.id: torch.full((g.numel,), torch.nan) for g in layout}
    files = _files(layout, params)
    for place, views in files.items():
        if place.name == ADAPTER:
            _check_config(config, folder / place.parent / CONFIG)
        tensors = _read(folder / place)
        if wrong := [k for k, t in views.items() if k not in tensors or not _fits(tensors[k], t)]:
            raise UserError(
                f"{folder / place}: {len(wrong)} of {len(views)} tensors are missing, have another shape or are not "
                f"finite numbers ({', '.join(wrong[:3])}); expected adapters of the same size, rank, modalities and "
                "method"
            )
        if unread := sorted(tensors.keys() - views.keys()):
            raise UserError(
                f"{folder / place}: {len(unread)} tensors that nothing here reads ({', '.join(unread[:3])}); expected "
                f"the {len(views)} of these modalities and this method alone; load with the configuration that they "
                "were trained with"
            )
        for k, view in views.items():
            view.copy_(tensors[k])
    blocks = [x for g in layout if g.role == "fusion_a" for x in layout.unflatten(g.id, params[g.id]).values()]
    columns = torch.split(files[FUSION][FUSION_A], [block.shape[1] for block in blocks], dim=1)
    for block, part in zip(blocks, columns, strict=True):
        block.copy_(part)
    return params


def _fits(tensor: Tensor, expected: Tensor) -> bool:
    return tensor.shape == expected.shape and tensor.is_floating_point() and all_finite(tensor)


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

    return LoraConfig(
        r=config.rank, lora_alpha=config.alpha, lora_dropout=0.0, target_modules=_targets(folder), inference_mode=True
    )


def _targets(folder: Path) -> list[str]:
    return ["fusion"] if folder.name == "fusion" else list(TARGETS)


def _check_config(config: MomentConfig, path: Path) -> None:
    """Refuse adapters of another scaling, kind or other matrices: their values mean something else."""
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
        targets = written["target_modules"]
        actual = {
            "r": written["r"],
            "lora_alpha": written["lora_alpha"],
            "target_modules": sorted(targets) if isinstance(targets, list) else targets,
            "other kinds": _other_kinds(written, vars(_peft_config(config, path.parent))),
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: cannot be read ({error!r}); expected what save_adapters or PEFT wrote") from error
    wanted = {
        "r": config.rank,
        "lora_alpha": config.alpha,
        "target_modules": sorted(_targets(path.parent)),
        "other kinds": [],
    }
    if differing := [f"{k} {actual[k]!r} instead of {wanted[k]!r}" for k in wanted if actual[k] != wanted[k]]:
        raise UserError(
            f"{path}: {', '.join(differing)}; set backbone.rank and backbone.alpha to what the adapters were trained "
            "with, or take other adapters"
        )


def _other_kinds(written: Mapping[str, object], default: Mapping[str, object]) -> list[str]:
    """Fields that make another function of the same values; one that is absent, or unknown and off, is the default."""
    return sorted(
        name
        for name, value in written.items()
        if name not in _NEUTRAL
        and (value or default.get(name))
        and value != default.get(name)
        and not (name == "init_lora_weights" and value in _STARTS)
    )


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: cannot be read ({error}); expected what save_adapters or PEFT wrote") from error
