"""Checkpoints: server state and all clients' personal state of one round, two generations of them.

``checkpoints/round-NNNNNN/`` holds ``state.safetensors`` and ``manifest.json``; it appears by one rename, so that it is
whole or absent. Never a pickle. The manifest is sealed and holds the state file's sha256, since neither format notices
a flipped bit.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import safetensors.torch
import torch
from pydantic import Field, JsonValue
from safetensors import SafetensorError
from torch import Tensor

from relief_ray.core.groups import Params
from relief_ray.core.messages import NO_STATE, STORED_TYPES, ClientId, ClientState, Models, ServerState, States
from relief_ray.records.identity import state_sha256
from relief_ray.records.schema import SCHEMA_VERSION, LeftOutRecord, Record, read_page
from relief_ray.support import files
from relief_ray.support.errors import UserError
from relief_ray.support.process import memory_bytes


class CheckpointStateStore:
    """Personal state in memory, made durable by the checkpoint of the round that committed it (a ``StateStore``)."""

    def __init__(self, committed: States | None = None) -> None:
        """Begin with the personal states of a checkpoint."""
        self._committed = dict(committed or {})
        self._staged: dict[ClientId, ClientState] = {}

    @property
    def committed(self) -> States:
        """Committed state by client, in client order: what a checkpoint holds."""
        return {c: self._committed[c] for c in sorted(self._committed)}

    def load(self, client: ClientId) -> ClientState:
        """Return the state as last committed; empty at first."""
        return self._committed.get(client, NO_STATE)

    def stage(self, client: ClientId, state: ClientState) -> None:
        """Keep a copy of a client's new state until the round is committed."""
        self._staged[client] = {name: tensor.detach().cpu().clone() for name, tensor in state.items()}

    def commit(self) -> None:
        """Make all staged states current."""
        self._committed.update(self._staged)
        self._staged.clear()

    def discard(self) -> None:
        """Forget the staged states of a round that is not going to be committed."""
        self._staged.clear()


FOLDER = "checkpoints"
STATE_FILE = "state.safetensors"
MANIFEST_FILE = "manifest.json"
FILES = (STATE_FILE, MANIFEST_FILE)  # in the order of writing
KEEP = 2
AGAIN = "restore it from a backup, or remove the run's folder and resume its study, which computes the run again"
"""What helps where a run's checkpoint or ledger is gone or damaged, whether the run is done or not."""
_GENERATION = re.compile(r"round-(\d{6,})")


class Binding(Record):
    """Identities that a checkpoint is bound to; a resume with others is refused.

    Attributes:
        config_hash: hash of the configuration's identity.
        layout_digest: hash of the parameter groups.
        engine: how training steps are computed.
    """

    config_hash: str
    layout_digest: str
    engine: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Averages:
    """Averages of the server's models over rounds (``evaluation.average``).

    Attributes:
        models: averaged models by last round and identity, ``15/global``.
        num_rounds: number of rounds in each so far.
    """

    models: Models = field(default_factory=dict)
    num_rounds: Mapping[str, int] = field(default_factory=dict)


class Tally(Record):
    """Counts over a run's rounds, for its loop: a resume reads them here instead of in every line of the ledger.

    Attributes:
        untrained: rounds since each group was last trained, as far as they count (``recording.UntrainedGroups``).
        left_out: clients that rounds went on without, by cause.
    """

    untrained: dict[str, int] = Field(default_factory=dict)
    left_out: tuple[LeftOutRecord, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """Everything that the next round depends on, and its test.

    Attributes:
        round: the last committed round.
        state: the server's state after it.
        clients: personal state by client.
        averages: the models' averages over rounds.
        tally: what was counted over rounds.
        skipped: reasons why newer generations were unusable.
        model_sha256: hash of ``state`` by the manifest of a generation that was read, as the ledger's line has it.
    """

    round: int
    state: ServerState
    clients: States = field(default_factory=dict)
    averages: Averages = field(default_factory=Averages)
    tally: Tally = field(default_factory=Tally)
    skipped: tuple[str, ...] = ()
    model_sha256: str = ""


class _Manifest(Binding):
    """Content of ``manifest.json``: names in their order (safetensors sorts), facts, hashes of state file and model."""

    schema_version: int
    round: int
    state_sha256: str
    model_sha256: str
    models: dict[str, tuple[str, ...]]
    tensors: tuple[str, ...]
    clients: dict[int, tuple[str, ...]]
    facts: dict[str, JsonValue]
    averages: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    averaged_rounds: dict[str, int] = Field(default_factory=dict)
    tally: Tally = Field(default_factory=Tally)


class Damaged(Exception):
    """Raised for a generation that does not hold what was saved."""


def save(run_folder: Path, checkpoint: Checkpoint, binding: Binding) -> Path:
    """Add a generation durably, then drop all but the newest ``KEEP``.

    Raises:
        UserError: the disk is full or fails; the generations before it stay.
        ValueError: ``facts`` hold something that is not JSON.
    """
    folder = run_folder / FOLDER
    final = folder / f"round-{checkpoint.round:06d}"
    beside = folder / ".saving"
    tensors, manifest = _tensors(checkpoint), _manifest(checkpoint, binding)
    with files.disk_errors(final, "save the checkpoint"):
        folder.mkdir(exist_ok=True)
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
        try:
            sha256 = files.write_pieces(beside / STATE_FILE, tensor_pieces(tensors))
            # Python's json, not pydantic's: it brings NaN in facts back as it was.
            hashes = {"state_sha256": sha256, "model_sha256": state_sha256(checkpoint.state)}
            content = json.dumps(manifest.model_dump() | hashes)
            files.write_pieces(beside / MANIFEST_FILE, [files.page(content)])
            files.sync(beside)
            # After a fallback to the generation before, this round is computed again and replaces the damaged one.
            if final.exists():
                retired = final.with_name(f".retired-{final.name}")
                shutil.rmtree(retired, ignore_errors=True)
                files.move(final, retired)
            files.move(beside, final)
        except OSError:
            shutil.rmtree(beside, ignore_errors=True)
            raise
    drop_after(run_folder, checkpoint.round)
    for path in [*generations(run_folder)[KEEP:], *folder.glob(".retired-*")]:
        shutil.rmtree(path, ignore_errors=True)
    return final


def load(
    run_folder: Path, binding: Binding, round_: int | None = None, *, newest: int | None = None
) -> Checkpoint | None:
    """Read the newest whole generation, or that of ``round_``; None where none was ever saved. Writes nothing.

    Generations after ``newest``, the ledger's last round, are passed over.

    Raises:
        UserError: generations exist but none is whole, or the newest belongs to another configuration, backbone or
            engine, or is of another schema version.
    """
    skipped: list[str] = []
    for path in generations(run_folder):
        if round_ not in (None, round_of(path)):
            continue
        if newest is not None and round_of(path) > newest:
            skipped.append(f"{path.name}: the ledger ends with {named(newest)}")
            continue
        try:
            manifest = _read_manifest(path / MANIFEST_FILE)
            point = _unpack(manifest, _read_state(path / STATE_FILE, manifest.state_sha256), tuple(skipped))
        except Damaged as error:
            skipped.append(f"{path.name}: {error}")
            continue
        _check_binding(path, manifest, binding)
        return point
    if skipped:
        raise UserError(
            f"{run_folder / FOLDER}: no usable checkpoint ({'; '.join(skipped)}), expected a whole one; {AGAIN}"
        )
    return None


def newest_model(run_folder: Path) -> tuple[int, str] | None:
    """Round and model hash of the newest generation whose manifest is whole; reads no tensor. None without one."""
    for path in generations(run_folder):
        with suppress(Damaged, UserError):
            manifest = _read_manifest(path / MANIFEST_FILE)
            return manifest.round, manifest.model_sha256
    return None


def is_whole(contents: Mapping[str, bytes]) -> bool:
    """Return whether the contents of a generation's ``FILES``, by name, are those that were saved."""
    try:
        return files.values_in(contents[MANIFEST_FILE])["state_sha256"] == files.sha256_of(contents[STATE_FILE])
    except (ValueError, KeyError, TypeError):
        return False


def generations(run_folder: Path) -> tuple[Path, ...]:
    """List the folders of all saved generations, newest first."""
    folder = run_folder / FOLDER
    saved = [p for p in folder.iterdir() if _GENERATION.fullmatch(p.name)] if folder.is_dir() else []
    return tuple(sorted(saved, key=round_of, reverse=True))


def round_of(path: Path) -> int:
    """Return the round of a generation's folder."""
    return int(path.name.removeprefix("round-"))


def last_saved(run_folder: Path) -> int:
    """Return the last round that a run has a checkpoint of; 0 without one."""
    return max(map(round_of, generations(run_folder)), default=0)


def named(round_: int) -> str:
    """``round 3``; ``no round`` of 0."""
    return f"round {round_}" if round_ else "no round"


def _key(*names: str) -> str:
    return "/".join(quote(n, safe="") for n in names)


def _owned(checkpoint: Checkpoint) -> dict[str, Mapping[Any, Params]]:
    """The tensors of models, averages and clients, by the manifest's names for these and by owner."""
    return {
        "models": checkpoint.state.models,
        "averages": checkpoint.averages.models,
        "clients": checkpoint.clients,
    }


def _tensors(checkpoint: Checkpoint) -> dict[str, Tensor]:
    named = {
        _key(kind, str(owner), name): tensor
        for kind, owners in _owned(checkpoint).items()
        for owner, tensors in owners.items()
        for name, tensor in tensors.items()
    }
    return named | {_key("tensors", name): tensor for name, tensor in checkpoint.state.tensors.items()}


def _manifest(checkpoint: Checkpoint, binding: Binding) -> _Manifest:
    """Build the manifest without its hashes."""
    names: dict[str, Any] = {
        kind: {owner: tuple(tensors) for owner, tensors in owners.items()}
        for kind, owners in _owned(checkpoint).items()
    }
    return _Manifest(
        schema_version=SCHEMA_VERSION,
        round=checkpoint.round,
        state_sha256="",
        model_sha256="",
        tensors=tuple(checkpoint.state.tensors),
        facts=dict(checkpoint.state.facts),
        averaged_rounds=dict(checkpoint.averages.num_rounds),
        tally=checkpoint.tally,
        **binding.model_dump(),
        **names,
    )


def _read_state(path: Path, sha256: str) -> dict[str, Tensor]:
    try:
        data = files.read_whole(path, min(_size_told(path), memory_bytes()))
        if files.sha256_of(data) != sha256:
            raise Damaged(f"{STATE_FILE} does not match its sha256")
        return safetensors.torch.load(data)
    except (OSError, SafetensorError) as error:
        raise Damaged(f"{STATE_FILE}: {error}") from error


def _size_told(path: Path) -> int:
    """Bytes of a safetensors file by its header, which is read alone.

    Raises:
        Damaged: it has none.
    """
    with files.opened(path) as file:
        length = int.from_bytes(file.read(8), "little")
        try:
            header = json.loads(file.read(min(length, files.LARGEST)))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
            return 8 + length + max(ends, default=0)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
            raise Damaged(f"{STATE_FILE}: no header of safetensors") from error


def _read_manifest(path: Path) -> _Manifest:
    try:
        return read_page(path, _Manifest)
    except UserError:
        raise
    except (OSError, ValueError) as error:
        raise Damaged(f"{MANIFEST_FILE}: {error}") from error


def _check_binding(path: Path, manifest: _Manifest, binding: Binding) -> None:
    for name, expected in binding.model_dump().items():
        saved = getattr(manifest, name)
        if saved != expected:
            raise UserError(
                f"{path}: {name} is {saved!r}, expected {expected!r}: a resume continues the same computation; "
                "resume with the configuration, backbone and engine of run.json, or start a new run folder"
            )


def _unpack(manifest: _Manifest, tensors: Mapping[str, Tensor], skipped: tuple[str, ...]) -> Checkpoint:
    try:
        owned: dict[str, dict[Any, Params]] = {
            kind: {
                owner: {name: tensors[_key(kind, str(owner), name)] for name in names}
                for owner, names in getattr(manifest, kind).items()
            }
            for kind in ("models", "averages", "clients")
        }
        named = {name: tensors[_key("tensors", name)] for name in manifest.tensors}
    except KeyError as error:
        raise Damaged(f"{STATE_FILE} lacks {error}") from error
    return Checkpoint(
        round=manifest.round,
        state=ServerState(models=owned["models"], tensors=named, facts=manifest.facts),
        clients=owned["clients"],
        averages=Averages(models=owned["averages"], num_rounds=manifest.averaged_rounds),
        tally=manifest.tally,
        skipped=skipped,
        model_sha256=manifest.model_sha256,
    )


def drop_after(run_folder: Path, round_: int) -> None:
    """Remove generations newer than the one that a resume continues from: their rounds are computed again."""
    for path in generations(run_folder):
        if round_of(path) > round_:
            shutil.rmtree(path, ignore_errors=True)


class Saver:
    """Saves one checkpoint at a time in a thread, while the next round trains; errors are raised by the next call.

    A run killed meanwhile goes on from the generation before: the same bits, one round more to compute.
    """

    def __init__(self) -> None:
        """Start the thread pool."""
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[Path] | None = None

    def save(self, run_folder: Path, point: Checkpoint, binding: Binding) -> None:
        """Begin to save ``point`` once the last one is done; its tensors must not change any more.

        Raises:
            UserError: the last one failed.
        """
        self.wait()
        self._pending = self._pool.submit(save, run_folder, point, binding)

    def wait(self) -> None:
        """Wait until everything is on disk.

        Raises:
            UserError: it could not be saved; the generations before it stay.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()


# Writer of safetensors files: piece by piece, without a copy of the tensors in memory. The library's own writer takes
# all tensors as one string of bytes first. Files are read by the library.

# Names of the types in a file's header.
_NAMES = ("I64", "F64", "F32", "I32", "BF16", "F16", "I16", "I8", "U8", "BOOL")
DTYPES: Mapping[torch.dtype, str] = dict(zip(STORED_TYPES, _NAMES, strict=True))

_ALIGNMENT = 8


def tensor_pieces(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a safetensors file piece by piece, without copies: the header, then each tensor.

    They are those of ``safetensors.torch.save``. The tensors must not change meanwhile.

    Raises:
        ValueError: a tensor of a type that the format, or this list, does not have.
    """
    if unknown := {str(t.dtype) for t in tensors.values()} - {str(d) for d in DTYPES}:
        raise ValueError(f"tensors of {sorted(unknown)}, expected one of {[str(d) for d in DTYPES]}")
    ranks = {dtype: rank for rank, dtype in enumerate(DTYPES)}
    order = sorted(tensors, key=lambda name: (ranks[tensors[name].dtype], name.encode()))
    yield _header({name: tensors[name] for name in order})
    for name in order:
        flat = tensors[name].detach().cpu().contiguous().reshape(-1)
        yield flat.view(torch.uint8).numpy().data


def _header(tensors: Mapping[str, Tensor]) -> bytes:
    facts: dict[str, dict[str, str | list[int]]] = {}
    start = 0
    for name, tensor in tensors.items():
        end = start + tensor.numel() * tensor.element_size()
        facts[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(facts, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
