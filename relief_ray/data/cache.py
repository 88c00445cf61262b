"""Cache of parsed signals: memory-mapped .npy files in folders named by a hash of their origin.

The key hashes the source's bytes, the parser's version and the dataset's description, so that a changed file, parser or
selection can never be answered with old numbers. Every entry appears whole (fsync, then rename) or not at all.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from relief_ray.data.loader import NULL, DatasetSpec, Recording
from relief_ray.data.source import MARKER, Source, open_source
from relief_ray.errors import UserError
from relief_ray.files import cache_root, digest_files, disk_errors, folder_atomic, sha256_file, sha256_json
from relief_ray.plugins import digests, modules_of

PARSER_VERSION = 1
Origin = Literal["real", "SYNTHETIC"]
Facts = dict[str, dict[str, object]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One cached dataset: `labels` (rows,) int16 class index or -1, `bouts` (n, 3) subject position, start, stop."""

    folder: Path
    labels: NDArray[np.int16]
    bouts: NDArray[np.int64]
    origin: Origin
    facts: Facts
    signal_sha256: str

    @property
    def signal_path(self) -> Path:
        """The memory-mapped (rows, channels) float32 signal in raw units."""
        return self.folder / "signal.npy"


def source_digest(spec: DatasetSpec, source: Source, *, trust_stamps: bool = True) -> str:
    """The sha256 of the raw files; of a folder, of its files' names and digests."""
    files = {str(source.path): source.path}
    if source.path.is_dir():
        with open_source(spec, source) as members:
            files = {name: source.path / name for name in members.names}
    memory = cache_root() / "stamps" / f"{sha256_json([spec.name, str(source.path.resolve())])[:24]}.json"
    digests = digest_files(files, memory) if trust_stamps else {name: sha256_file(path) for name, path in files.items()}
    if source.path.is_dir():
        return sha256_json([sorted(digests.items()), source.synthetic])
    return digests[str(source.path)]


def cache_key(spec: DatasetSpec, digest: str) -> str:
    """The sha256 that names a cache entry."""
    described = {k: asdict(spec)[k] for k in ("name", "rate_hz", "modalities", "labels", "subjects", "units")}
    parser = digests(modules_of([spec.name])) or PARSER_VERSION
    return sha256_json({"source": digest, "parser": parser, "spec": described})


def entry_folder(spec: DatasetSpec, digest: str) -> Path:
    """Folder of the cache entry for these raw files, whether it exists or not."""
    return keyed_folder(spec.name, cache_key(spec, digest))


def keyed_folder(name: str, key: str) -> Path:
    """Folder of the cache entry of that key (``cache_key``), whether it exists or not."""
    return cache_root() / "parsed" / f"{name.replace(':', '.')}-{key[:32]}"


def store(spec: DatasetSpec, recordings: Sequence[Recording], source: Source, folder: Path) -> None:
    """Write subjects one after the other as one signal, with labels as class indices."""
    synthetic = source.synthetic or any(recording.synthetic for recording in recordings)
    index = np.full(256, NULL, np.int16)
    index[list(spec.labels)] = np.arange(len(spec.labels))
    firsts = np.cumsum([0, *(len(recording.labels) for recording in recordings)])
    bouts = [
        np.column_stack([np.full(len(rec.bouts), position), rec.bouts + first])
        for position, (rec, first) in enumerate(zip(recordings, firsts, strict=False))
    ]
    labels = np.concatenate([index[recording.labels] for recording in recordings])
    signal = np.concatenate([recording.signal for recording in recordings])
    facts: Facts = {str(recording.subject): dict(recording.facts) for recording in recordings}
    write_entry(folder, signal, labels, np.concatenate(bouts), "SYNTHETIC" if synthetic else "real", facts)


def write_entry(
    folder: Path,
    signal: NDArray[np.float32],
    labels: NDArray[np.int16],
    bouts: NDArray[np.int64],
    origin: Origin,
    facts: Facts,
) -> None:
    """Write one entry atomically."""
    with disk_errors(folder, "write the parsed data"), folder_atomic(folder) as part:
        np.save(part / "signal.npy", np.ascontiguousarray(signal, np.float32))
        np.save(part / "labels.npy", labels.astype(np.int16))
        np.save(part / "bouts.npy", bouts.astype(np.int64))
        meta = {"origin": origin, "facts": facts, "signal_sha256": sha256_file(part / "signal.npy")}
        (part / "meta.json").write_text(json.dumps(meta, sort_keys=True))
        if origin == "SYNTHETIC":
            (part / MARKER).write_text(json.dumps({"origin": origin}))


def read_entry(folder: Path) -> Entry:
    """Open an entry (the signal stays on disk); UserError names the folder to delete where it is damaged."""
    try:
        meta = json.loads((folder / "meta.json").read_bytes())
        np.load(folder / "signal.npy", mmap_mode="r", allow_pickle=False)
        return Entry(
            folder=folder,
            labels=np.load(folder / "labels.npy", allow_pickle=False),
            bouts=np.load(folder / "bouts.npy", allow_pickle=False),
            origin="real" if meta["origin"] == "real" else "SYNTHETIC",
            facts=meta["facts"],
            signal_sha256=meta["signal_sha256"],
        )
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise UserError(f"{folder}: damaged cache entry ({error}); delete the folder, it is made again") from None
