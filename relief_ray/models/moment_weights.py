"""The frozen part of Backbone 2: one MOMENT encoder per process, mapped from one file per machine.

Weights come from the hub, from a folder in ``save_pretrained`` format, or from a seed; random ones are written once in
that same format to the user's cache. Mapped, not read: hosts share the pages, and the token table, which no time
series ever looks up, is never touched.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from torch import Tensor, nn

from relief_ray.errors import UserError
from relief_ray.models.moment_config import CONFIG, read_config
from relief_ray.models.moment_encoder import SIZES, Size, assemble, enough_memory, require_momentfm
from relief_ray.models.moment_random import another_one, drawn_seed, is_random, random_folder

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
