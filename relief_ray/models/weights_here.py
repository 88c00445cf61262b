"""What the frozen encoder's files on this machine hold now: looked at, never fetched and never written."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from relief_ray.errors import UserError
from relief_ray.models.moment_config import read_config
from relief_ray.models.moment_encoder import SIZES, Size, assemble, require_momentfm
from relief_ray.models.moment_random import is_random, random_target
from relief_ray.models.moment_weights import FILES, digest, hub_id, local_folder, map_tensors


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
