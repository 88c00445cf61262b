"""The frozen part of Backbone 2: one MOMENT encoder per process, mapped from one file per machine.

Weights come from the hub, from a folder in ``save_pretrained`` format, or from a seed; random ones are written once in
that same format to the user's cache. Mapped, not read: hosts share the pages, and the token table, which no time
series ever looks up, is never touched.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from relief_ray.errors import UserError
from relief_ray.files import cache_root
from relief_ray.models.backbone import seeded
from relief_ray.models.moment.encoder import (
    SIZES,
    Size,
    assemble,
    build_pipeline,
    enough_memory,
    plain_config,
    require_momentfm,
)
from relief_ray.models.moment.encoder_config import CONFIG, read_config

# Encoders that have learned nothing: drawn from a seed, once per machine, and marked as what they are.


# In config.json, where momentfm passes over it; it goes wherever the folder is copied.
MARK = "relief_ray_random_seed"


def is_random(weights: str) -> bool:
    """True where the encoder is to be drawn here."""
    return weights == "random"


def random_target(size: Size, weights_seed: int) -> Path:
    """Where the seeded encoder lies, once it is drawn."""
    versions = f"{torch.__version__}".partition("+")[0]
    return cache_root() / "moment" / f"{size}-random-{weights_seed}-{versions}"


def random_folder(size: Size, weights_seed: int) -> Path:
    """The seeded encoder in the user's cache; written whole by whoever comes first, for all to read.

    Raises:
        UserError: the cache cannot be written.
    """
    target = random_target(size, weights_seed)
    with _in_the_cache(target):
        if target.exists():
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=target.parent, prefix=target.name, suffix=".part"))
        try:
            _draw(size, weights_seed, part)
            part.replace(target)
        except OSError:
            # Another process was first: its folder is as good as ours.
            if not target.exists():
                raise
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return target


def _draw(size: Size, weights_seed: int, folder: Path) -> None:
    pipeline: Any = seeded(lambda: build_pipeline(plain_config(SIZES[size])), weights_seed)
    pipeline.save_pretrained(folder)
    mark(folder, weights_seed)
    for path in folder.iterdir():
        path.chmod(0o644)
        with path.open("rb") as file:
            os.fsync(file.fileno())
    folder.chmod(0o755)


@contextmanager
def _in_the_cache(target: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise UserError(
            f"{target}: the random encoder cannot be written ({reason or error}); expected a cache folder that you may "
            "write to, with room for it; free some space, change its permissions, or name another one with RELIEF_CACHE"
        ) from error


def mark(folder: Path, weights_seed: int) -> None:
    """Notes in the encoder's ``config.json`` that it was drawn; nobody else may be reading it yet."""
    path = folder / CONFIG
    config = json.loads(path.read_text(encoding="utf-8")) | {MARK: weights_seed}
    path.write_text(json.dumps(config, indent=2, sort_keys=True), encoding="utf-8")


def drawn_seed(folder: Path, config: Mapping[str, object]) -> str | None:
    """The seed by which an encoder was drawn, as its mark or its place in the cache tells; None where neither does."""
    return str(config[MARK]) if MARK in config else _seed_by_place(folder)


def another_one(folder: Path) -> str:
    """How to come by a sound encoder where this folder's is damaged."""
    return "fetch the weights again" if _seed_by_place(folder) is None else f"delete {folder}: it is drawn again"


def _seed_by_place(folder: Path) -> str | None:
    """Folders drawn by versions before the mark are known by where they lie."""
    found = re.fullmatch(r"(?:small|tiny)-random-(\d+)-.*", folder.name)
    return found[1] if found and folder.resolve().parent == (cache_root() / "moment").resolve() else None


HUB_ID = "AutonLab/MOMENT-1-small"

FILES = (CONFIG, "model.safetensors")


@dataclass(frozen=True, kw_only=True, slots=True)
class Frozen:
    """A loaded encoder: momentfm's pipeline without token table and head, where it came from and what it holds.

    ``revision``: the hub's name of the commit, where it came from there; ``random_seed``: of an encoder that has
    learned nothing, by whatever name it was asked for.
    """

    pipeline: nn.Module
    origin: str
    sha256: str
    num_values: int
    revision: str | None = None
    random_seed: str | None = None


@lru_cache(maxsize=2)
def load_frozen(size: Size, weights: str, weights_seed: int, revision: str | None = None) -> Frozen:
    """The encoder that all modalities and all virtual clients of this process share.

    ``revision``: a branch, tag or commit at the hub (None: the hub's default branch).

    Raises:
        UserError: momentfm is absent, the weights are missing, incomplete or of another size, or memory ran out.
    """
    require_momentfm()
    with enough_memory(size):
        folder = weights_folder(size, weights, weights_seed, revision)
        again = another_one(folder)
        config = read_config(folder, SIZES[size], again)
        tensors = map_tensors(folder / FILES[1], again)
        pipeline = assemble(config, tensors, str(folder / FILES[1]), again)
        origin = f"random, seed {weights_seed}" if is_random(weights) else weights
        num_values = sum(p.numel() for p in pipeline.parameters())
        return Frozen(
            pipeline=pipeline,
            origin=origin,
            sha256=digest(pipeline),
            num_values=num_values,
            # The hub's cache keeps files in a folder per commit.
            revision=folder.name if folder.parent.name == "snapshots" else None,
            random_seed=drawn_seed(folder, config),
        )


def weights_folder(size: Size, weights: str, weights_seed: int, revision: str | None = None) -> Path:
    """A local folder with ``config.json`` and ``model.safetensors``.

    Raises:
        UserError: neither a folder nor something the hub has; or a ``revision`` of what is not from there.
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
    """The folder that ``weights`` names, if it names one: ``hub`` and ``random`` never do."""
    path = os.path.expanduser(weights)
    return Path(path) if weights not in ("hub", "random") and os.path.isdir(path) else None


def hub_id(weights: str) -> str:
    """``owner/name`` at the hub.

    Raises:
        UserError: it is no such name.
    """
    name = HUB_ID if weights == "hub" else weights
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name) or name.startswith("."):
        raise UserError(
            f"backbone.weights={weights!r}: no such folder; give a folder with {FILES[0]} and {FILES[1]}, "
            f"'hub' ({HUB_ID}), a hub id 'owner/name', or 'random'"
        )
    return name


def download(name: str, revision: str | None = None) -> Path:
    """The hub's files in the hub's own cache."""
    from huggingface_hub import hf_hub_download

    try:
        paths = [Path(hf_hub_download(name, file, revision=revision)) for file in FILES]
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"backbone.weights={name!r}: no such folder here, and the hub did not deliver "
            f"{'it' if revision is None else f'revision {revision!r}'} ({reason}); download it elsewhere and give its "
            "folder, or take backbone.weights=random"
        ) from error
    return paths[0].parent


def map_tensors(path: Path, again: str = "fetch the weights again") -> dict[str, Tensor]:
    """The file's tensors, mapped; token table and heads left out. ``again``: what mends a damaged file.

    Raises:
        UserError: no such file, or not safetensors.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            names = [k for k in file.keys() if not k.startswith(("encoder.embed_tokens", "shared", "head."))]
            return {k: file.get_tensor(k) for k in names}
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: cannot be read as safetensors ({error}); {again}") from error


def digest(pipeline: nn.Module) -> str:
    """sha256 over names, shapes and bits of all frozen tensors."""
    total = hashlib.sha256()
    for name, tensor in sorted(pipeline.state_dict().items()):
        total.update(f"{name}\0{tuple(tensor.shape)}\0".encode())
        total.update(memoryview(tensor.detach().contiguous().numpy()).cast("B"))
    return total.hexdigest()


# What the frozen encoder's files on this machine hold now: looked at, never fetched and never written.


def sha256_here(size: Size, weights: str, weights_seed: int, revision: str | None = None) -> str | None:
    """``weights_sha256`` of a run that would begin now; None where the files are not here or cannot be used."""
    try:
        folder = folder_here(size, weights, weights_seed, revision)
        if folder is None:
            return None
        found = [(folder / name).stat() for name in FILES]
        return _sha256(size, folder, tuple((s.st_mtime_ns, s.st_size) for s in found))
    except (OSError, UserError):
        return None


def folder_here(size: Size, weights: str, weights_seed: int, revision: str | None = None) -> Path | None:
    """Where ``weights_folder`` would find them without the hub's help; None where it would not.

    Raises:
        UserError: neither a folder nor a name at the hub.
    """
    if is_random(weights):
        return random_target(size, weights_seed)
    return local_folder(weights) or _downloaded(hub_id(weights), revision)


def _downloaded(name: str, revision: str | None) -> Path | None:
    try:
        from huggingface_hub import try_to_load_from_cache

        found = [try_to_load_from_cache(name, file, revision=revision) for file in FILES]
    except (ImportError, ValueError):
        return None
    paths = [Path(file) for file in found if isinstance(file, str)]
    return paths[0].parent if len(paths) == len(FILES) else None


@lru_cache(maxsize=16)
def _sha256(size: Size, folder: Path, changed: tuple[tuple[int, int], ...]) -> str:
    """Read once as long as the files' times and sizes stay."""
    require_momentfm()
    path = folder / FILES[1]
    return digest(assemble(read_config(folder, SIZES[size]), map_tensors(path), str(path)))
