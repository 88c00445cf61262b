"""Encoders that have learned nothing: drawn from a seed, once per machine, and marked as what they are."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from relief_ray.errors import UserError
from relief_ray.models.backbone import seeded
from relief_ray.models.moment_config import CONFIG
from relief_ray.models.moment_encoder import SIZES, Size, build_pipeline, plain_config
from relief_ray.paths import cache_root

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
