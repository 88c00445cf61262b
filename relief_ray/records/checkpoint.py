"""Checkpoints: server state and all clients' personal state of one round, two generations of them.

``checkpoints/round-NNNNNN/`` holds ``state.safetensors`` and ``manifest.json``; it appears by one rename, so that it is
whole or absent. Never a pickle. Both files' contents are under a sha256, since neither format notices a flipped bit.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import safetensors.torch
from pydantic import JsonValue, ValidationError
from safetensors import SafetensorError
from torch import Tensor

from relief_ray.errors import UserError
from relief_ray.messages import ClientId, ClientState, ServerState
from relief_ray.records import atomic
from relief_ray.records.reading import refuse_other_schema
from relief_ray.records.schema import SCHEMA_VERSION, Record
from relief_ray.records.tensors import file_pieces

FOLDER = "checkpoints"
STATE_FILE = "state.safetensors"
MANIFEST_FILE = "manifest.json"
KEEP = 2
_GENERATION = re.compile(r"round-(\d{6,})")


@dataclass(frozen=True, kw_only=True, slots=True)
class Binding:
    """What a checkpoint belongs to; a resume with anything else is refused."""

    config_hash: str
    layout_digest: str
    engine: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """All that the next round depends on; ``skipped`` says which newer generations were unusable, and why."""

    round: int
    state: ServerState
    clients: Mapping[ClientId, ClientState] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()


class Manifest(Record):
    """``manifest.json``: names in their order (safetensors sorts), facts, and what the state file must hash to."""

    schema_version: int
    round: int
    state_sha256: str
    models: dict[str, tuple[str, ...]]
    tensors: tuple[str, ...]
    clients: dict[int, tuple[str, ...]]
    facts: dict[str, JsonValue]
    config_hash: str
    layout_digest: str
    engine: str


class Damaged(Exception):
    """A generation that does not hold what was saved."""


def save(run_folder: Path, checkpoint: Checkpoint, binding: Binding) -> Path:
    """Adds a generation durably and drops all but the newest ``KEEP``; the older ones are whole until it stands.

    Raises:
        UserError: the disk is full or fails; the older generations stay.
        ValueError: ``facts`` hold something that is not JSON.
    """
    folder = run_folder / FOLDER
    final = folder / f"round-{checkpoint.round:06d}"
    beside = folder / ".saving"
    tensors, manifest = _tensors(checkpoint), _manifest(checkpoint, binding)
    with atomic.disk_errors(final, "save the checkpoint"):
        folder.mkdir(exist_ok=True)
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
        try:
            sha256 = atomic.write_pieces(beside / STATE_FILE, file_pieces(tensors))
            atomic.write_file(beside / MANIFEST_FILE, _sealed(manifest.model_copy(update={"state_sha256": sha256})))
            atomic.fsync_folder(beside)
            _retire(final)
            os.rename(beside, final)
        except OSError:
            shutil.rmtree(beside, ignore_errors=True)
            raise
        atomic.fsync_folder(folder)
    _prune(folder, checkpoint.round)
    return final


def load(run_folder: Path, binding: Binding, round_: int | None = None) -> Checkpoint | None:
    """The newest whole generation, or that of ``round_`` alone; none where none was ever saved. Writes nothing.

    Raises:
        UserError: generations exist but none is whole, or the newest belongs to another configuration, backbone or
            engine, or is of another schema version.
    """
    skipped: list[str] = []
    for path in generations(run_folder):
        if round_ not in (None, round_of(path)):
            continue
        try:
            manifest = _read_manifest(path / MANIFEST_FILE)
            found = _unpack(manifest, _read_state(path / STATE_FILE, manifest.state_sha256), tuple(skipped))
        except Damaged as error:
            skipped.append(f"{path.name}: {error}")
            continue
        _check_binding(path, manifest, binding)
        return found
    if skipped:
        raise UserError(
            f"{run_folder / FOLDER}: no usable checkpoint ({'; '.join(skipped)}), expected a whole one; "
            "restore the folder from a backup, or delete it to start again from the first round"
        )
    return None


def generations(run_folder: Path) -> tuple[Path, ...]:
    """Folders of all saved generations, newest first."""
    folder = run_folder / FOLDER
    found = [p for p in folder.iterdir() if _GENERATION.fullmatch(p.name)] if folder.is_dir() else []
    return tuple(sorted(found, key=round_of, reverse=True))


def round_of(path: Path) -> int:
    """The round of a generation's folder."""
    return int(path.name.removeprefix("round-"))


def _key(*names: str) -> str:
    return "/".join(quote(n, safe="") for n in names)


def _tensors(checkpoint: Checkpoint) -> dict[str, Tensor]:
    state = checkpoint.state
    named = {_key("models", m, j): t for m, params in state.models.items() for j, t in params.items()}
    named |= {_key("tensors", name): t for name, t in state.tensors.items()}
    for client, personal in checkpoint.clients.items():
        named |= {_key("clients", str(client), name): t for name, t in personal.items()}
    return named


def _manifest(checkpoint: Checkpoint, binding: Binding) -> Manifest:
    """All but what the state file will hash to."""
    return Manifest(
        schema_version=SCHEMA_VERSION,
        round=checkpoint.round,
        state_sha256="",
        models={name: tuple(params) for name, params in checkpoint.state.models.items()},
        tensors=tuple(checkpoint.state.tensors),
        clients={c: tuple(personal) for c, personal in checkpoint.clients.items()},
        facts=dict(checkpoint.state.facts),
        config_hash=binding.config_hash,
        layout_digest=binding.layout_digest,
        engine=binding.engine,
    )


def _sealed(manifest: Manifest) -> bytes:
    # Python's json, not pydantic's: it brings NaN in facts back as it was.
    body = json.dumps(manifest.model_dump())
    return f'{{"sha256": "{_sha256(body.encode())}", "manifest": {body}}}\n'.encode()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _read_state(path: Path, sha256: str) -> dict[str, Tensor]:
    try:
        data = path.read_bytes()
        if _sha256(data) != sha256:
            raise Damaged(f"{STATE_FILE} does not match its sha256")
        return safetensors.torch.load(data)
    except (OSError, SafetensorError) as error:
        raise Damaged(f"{STATE_FILE}: {error}") from error


def _read_manifest(path: Path) -> Manifest:
    try:
        sealed = json.loads(path.read_bytes())
        seal, found = sealed["sha256"], sealed["manifest"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Damaged(f"{MANIFEST_FILE}: {error}") from error
    # Written and read by the same rules, so that equal contents give equal text.
    if seal != _sha256(json.dumps(found).encode()):
        raise Damaged(f"{MANIFEST_FILE} does not match its sha256")
    refuse_other_schema(found.get("schema_version") if isinstance(found, dict) else None, path)
    try:
        return Manifest.model_validate(found)
    except ValidationError as error:
        raise Damaged(f"{MANIFEST_FILE}: {error}") from error


def _check_binding(path: Path, manifest: Manifest, binding: Binding) -> None:
    for name in ("config_hash", "layout_digest", "engine"):
        found, expected = getattr(manifest, name), getattr(binding, name)
        if found != expected:
            raise UserError(
                f"{path}: {name} is {found!r}, expected {expected!r}: a resume continues the same computation; "
                "resume with the configuration, backbone and engine of run.json, or start a new run folder"
            )


def _unpack(manifest: Manifest, tensors: Mapping[str, Tensor], skipped: tuple[str, ...]) -> Checkpoint:
    try:
        models = {m: {j: tensors[_key("models", m, j)] for j in groups} for m, groups in manifest.models.items()}
        named = {name: tensors[_key("tensors", name)] for name in manifest.tensors}
        clients = {c: {k: tensors[_key("clients", str(c), k)] for k in keys} for c, keys in manifest.clients.items()}
    except KeyError as error:
        raise Damaged(f"{STATE_FILE} lacks {error}") from error
    state = ServerState(models=models, tensors=named, facts=manifest.facts)
    return Checkpoint(round=manifest.round, state=state, clients=clients, skipped=skipped)


def _retire(final: Path) -> None:
    # After a fallback to an older generation its successors are computed again and take their places.
    if final.exists():
        retired = final.with_name(f".retired-{final.name}")
        shutil.rmtree(retired, ignore_errors=True)
        os.rename(final, retired)


def drop_after(run_folder: Path, round_: int) -> None:
    """Removes generations newer than the one a resume continues from: its rounds will be computed again."""
    for path in generations(run_folder):
        if round_of(path) > round_:
            shutil.rmtree(path, ignore_errors=True)


def _prune(folder: Path, newest: int) -> None:
    drop_after(folder.parent, newest)
    for path in [*generations(folder.parent)[KEEP:], *folder.glob(".retired-*")]:
        shutil.rmtree(path, ignore_errors=True)
