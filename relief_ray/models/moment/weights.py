"""Loads the frozen part of Backbone 2: one MOMENT encoder per process, memory-mapped from one file per machine.

Weights come from the hub, from a folder in ``save_pretrained`` format, or from a seed; random weights are written once
in that same format to the user's cache. The file is mapped and not read, so that worker processes share its pages and
the token table, which a time series never uses, is not loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from relief_ray.models.backbone import seeded
from relief_ray.models.moment.encoder import (
    CONFIG,
    SIZES,
    Size,
    assemble,
    build_pipeline,
    enough_memory,
    is_drawn_here,
    plain_config,
    read_config,
    repair_advice,
    require_momentfm,
)
from relief_ray.support.errors import UserError, first_line
from relief_ray.support.files import cache_root, folder_atomic

_HUB_ID = "AutonLab/MOMENT-1-small"
FILES = (CONFIG, "model.safetensors")
# Keys in config.json of a randomly drawn encoder, with its seed and ``digest``: momentfm ignores them, and they are
# copied with the folder.
MARK, DRAWN = "relief_ray_random_seed", "relief_ray_random_sha256"
# End of a drawn encoder's folder: the form of its files, by which versions leave each other's alone.
_FORM = ".2"


@dataclass(frozen=True, kw_only=True, slots=True)
class FrozenEncoder:
    """A loaded encoder.

    Attributes:
        pipeline: momentfm's pipeline without token table and head.
        origin: where the weights came from: a folder, a hub id, or ``random, seed 0``.
        sha256: hash of names, shapes and bits of all its tensors.
        num_values: number of its parameters.
        revision: the hub's commit; None: not from the hub.
        random_seed: seed of an encoder that is not pretrained, whatever its origin says; None: pretrained.
    """

    pipeline: nn.Module
    origin: str
    sha256: str
    num_values: int
    revision: str | None = None
    random_seed: str | None = None


@lru_cache(maxsize=2)
def load_frozen(size: Size, weights: str, weights_seed: int, revision: str | None = None) -> FrozenEncoder:
    """Load the encoder that all modalities and all virtual clients of this process share.

    ``revision``: a branch, tag or commit at the hub (None: the hub's default branch).

    Raises:
        UserError: momentfm is absent; the weights are missing, incomplete, of another size, or no longer those that
            were drawn; or memory ran out.
    """
    require_momentfm()
    with enough_memory(size):
        folder = weights_folder(size, weights, weights_seed, revision)
        config, pipeline = _assembled(size, folder)
        sha256 = digest(pipeline)
        _refuse_changed(folder, config, sha256)
        origin = f"random, seed {weights_seed}" if is_random(weights) else weights
        return FrozenEncoder(
            pipeline=pipeline,
            origin=origin,
            sha256=sha256,
            num_values=sum(p.numel() for p in pipeline.parameters()),
            # The hub's cache has a folder per commit.
            revision=folder.name if folder.parent.name == "snapshots" else None,
            random_seed=str(config[MARK]) if MARK in config else None,
        )


def weights_folder(size: Size, weights: str, weights_seed: int, revision: str | None = None) -> Path:
    """A local folder with ``config.json`` and ``model.safetensors``; downloads or draws the weights where needed.

    Raises:
        UserError: neither a folder nor a model at the hub; or a ``revision`` of weights that are not from the hub.
    """
    path = local_folder(weights)
    if revision is not None and (path is not None or is_random(weights)):
        raise UserError(
            f"backbone.revision={revision!r}: is a version at the hub, but backbone.weights={weights!r} is not from "
            "there; remove backbone.revision, or take backbone.weights=hub"
        )
    if is_random(weights):
        return random_folder(size, weights_seed)
    return path or download(hub_id(weights), revision)


def local_folder(weights: str) -> Path | None:
    """The folder that ``weights`` names, or None; ``hub`` and ``random`` are never folders."""
    path = os.path.expanduser(weights)
    return Path(path) if weights not in ("hub", "random") and os.path.isdir(path) else None


def hub_id(weights: str) -> str:
    """The hub's name ``owner/name`` of ``weights``.

    Raises:
        UserError: it has another form.
    """
    name = _HUB_ID if weights == "hub" else weights
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name) or name.startswith("."):
        raise UserError(
            f"backbone.weights={weights!r}: no such folder; give a folder with {FILES[0]} and {FILES[1]}, "
            f"'hub' ({_HUB_ID}), a hub id 'owner/name', or 'random'"
        )
    return name


def download(name: str, revision: str | None = None) -> Path:
    """Download the files into the hub's cache and return their folder.

    Raises:
        UserError: the hub does not deliver them.
    """
    from huggingface_hub import hf_hub_download

    try:
        paths = [Path(hf_hub_download(name, file, revision=revision)) for file in FILES]
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(
            f"backbone.weights={name!r}: no such folder here, and the hub did not deliver "
            f"{'it' if revision is None else f'revision {revision!r}'} ({first_line(error)}); download it elsewhere "
            "and give its folder, or take backbone.weights=random"
        ) from error
    return paths[0].parent


def is_random(weights: str) -> bool:
    """Whether the encoder is to be drawn from a seed."""
    return weights == "random"


def local_sha256(size: Size, weights: str, weights_seed: int, revision: str | None = None) -> str | None:
    """SHA-256 of locally available encoder weights, never downloaded or drawn; None: not here, or unusable."""
    try:
        if is_random(weights):
            folder: Path | None = random_target(size, weights_seed)
        else:
            folder = local_folder(weights) or _downloaded(hub_id(weights), revision)
        if folder is None:
            return None
        stats = [(folder / name).stat() for name in FILES]
        return _sha256(size, folder, tuple((s.st_mtime_ns, s.st_size) for s in stats))
    except (OSError, UserError):
        return None


def _downloaded(name: str, revision: str | None) -> Path | None:
    try:
        from huggingface_hub import try_to_load_from_cache

        cached = [try_to_load_from_cache(name, file, revision=revision) for file in FILES]
    except (ImportError, ValueError):
        return None
    paths = [Path(file) for file in cached if isinstance(file, str)]
    return paths[0].parent if len(paths) == len(FILES) else None


@lru_cache(maxsize=16)
def _sha256(size: Size, folder: Path, changed: tuple[tuple[int, int], ...]) -> str:
    """SHA-256 of a folder's encoder, computed once as long as ``changed`` (mtime and size of the files) stays."""
    require_momentfm()
    return digest(_assembled(size, folder)[1])


def _assembled(size: Size, folder: Path) -> tuple[dict[str, object], nn.Module]:
    """The ``config.json`` of a folder and the encoder of its files, both checked."""
    path, config = folder / FILES[1], read_config(folder, SIZES[size])
    return config, assemble(config, map_tensors(path), path)


def map_tensors(path: Path) -> dict[str, Tensor]:
    """Map the file's tensors, without token table and heads.

    Raises:
        UserError: no such file, or not safetensors.
    """
    from safetensors import safe_open

    try:
        with safe_open(path, framework="pt") as file:
            names = [k for k in file.keys() if not k.startswith(("encoder.embed_tokens", "shared", "head."))]
            return {k: file.get_tensor(k) for k in names}
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: cannot be read as safetensors ({error}); {repair_advice(path.parent)}") from error


def digest(pipeline: nn.Module) -> str:
    """SHA-256 over names, shapes and bits of all frozen tensors."""
    total = hashlib.sha256()
    for name, tensor in sorted(pipeline.state_dict().items()):
        total.update(f"{name}\0{tuple(tensor.shape)}\0".encode())
        total.update(memoryview(tensor.detach().contiguous().numpy()).cast("B"))
    return total.hexdigest()


def random_folder(size: Size, weights_seed: int) -> Path:
    """The seeded encoder in the user's cache; the first process to need it writes it, atomically.

    Raises:
        UserError: the cache cannot be written.
    """
    target = random_target(size, weights_seed)
    try:
        if not target.exists():
            with folder_atomic(target) as part:
                _draw(size, weights_seed, part)
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise UserError(
            f"{target}: the random encoder cannot be written ({reason or error}); expected a cache folder that you may "
            "write to, with room for it; free some space, change its permissions, or name another one with RELIEF_CACHE"
        ) from error
    return target


def _draw(size: Size, weights_seed: int, folder: Path) -> None:
    pipeline: Any = seeded(lambda: build_pipeline(plain_config(SIZES[size])), weights_seed)
    pipeline.save_pretrained(folder)
    # Mark it as drawn: no other process reads the folder yet.
    file, marks = folder / CONFIG, {MARK: weights_seed, DRAWN: digest(_assembled(size, folder)[1])}
    config = json.loads(file.read_text(encoding="utf-8")) | marks
    file.write_text(json.dumps(config, indent=2, sort_keys=True), encoding="utf-8")
    for path in folder.iterdir():
        path.chmod(0o644)
    folder.chmod(0o755)


def _refuse_changed(folder: Path, config: Mapping[str, object], found: str) -> None:
    """Compare a drawn encoder with what was drawn.

    Raises:
        UserError: its tensors have another digest than the one noted beside them.
    """
    expected = config.get(DRAWN)
    if found == expected or (expected is None and not is_drawn_here(folder)):
        return
    repair = repair_advice(folder)
    if not is_drawn_here(folder):
        repair += f"; or, if you have trained this encoder, remove {MARK} and {DRAWN} from its {CONFIG}"
    wanted = "one that is missing" if expected is None else str(expected)[:12]
    raise UserError(
        f"{folder / FILES[1]}: not the random encoder that was drawn: its tensors have the sha256 {found[:12]}, "
        f"expected {wanted} ({DRAWN} in {CONFIG}); {repair}"
    )


def random_target(size: Size, weights_seed: int) -> Path:
    """The cache folder of the encoder drawn from ``weights_seed``, whether it exists yet or not."""
    versions = f"{torch.__version__}".partition("+")[0]
    return cache_root() / "moment" / f"{size}-random-{weights_seed}-{versions}{_FORM}"
