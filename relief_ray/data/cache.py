"""Cache of parsed signals: memory-mapped .npy files in folders named by a hash of their origin.

The key hashes the source's bytes, the parser's version and the dataset's description, so that a changed file, parser or
selection can never be answered with old numbers. Every entry appears whole (fsync, then rename) or not at all.

Its ``meta.json`` is sealed and has two digests of each array. Every process that opens an entry reads each array
through once and compares its CRC-32 (0.6 ms per MB with reading; a sha256 alone takes 0.9), which finds any single
changed bit and misses other damage once in 4e9 times. After that the same file (inode, size, time of change) is trusted
until the process ends. What such a process hands its hosts on the same machine is a path: they map the file and share
its pages. The sha256 is an array's identity, by which machines compare what they parsed.
"""

import glob
import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from relief_ray.data.loader import NULL, DatasetSpec, Recording
from relief_ray.data.source import MARKER, Source, open_source
from relief_ray.plugins.load import digests, modules_of
from relief_ray.support.errors import UserError
from relief_ray.support.files import (
    CHUNK_BYTES,
    PAGE,
    cache_root,
    digest_files,
    disk_errors,
    folder_atomic,
    sealed,
    sha256_file,
    sha256_json,
    stamp,
    unsealed,
)

PARSER_VERSION = 1
# End of an entry's folder: the form of its files, not their contents, by which versions leave each other's alone.
_FORM = ".2"
SIGNAL, LABELS, BOUTS = _ARRAYS = ("signal.npy", "labels.npy", "bouts.npy")
_META = "meta.json"
_KEY_CHARS = 32
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
        return self.folder / SIGNAL


class DamagedEntry(UserError):
    """Raised for an entry that is not what was written; the message names the file and the folder to delete."""


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
    if spec.lacks:
        described["lacks"] = {subject: sorted(names) for subject, names in spec.lacks.items()}
    parser = digests(modules_of([spec.name])) or PARSER_VERSION
    return sha256_json({"source": digest, "parser": parser, "spec": described})


def entry_folder(spec: DatasetSpec, digest: str) -> Path:
    """Folder of the cache entry for these raw files, whether it exists or not."""
    return keyed_folder(spec.name, cache_key(spec, digest))


def keyed_folder(name: str, key: str) -> Path:
    """Folder of the cache entry of that key (``cache_key``), whether it exists or not."""
    return _folder_of_entries() / f"{_prefix(name)}{key[:_KEY_CHARS]}{_FORM}"


def entries(name: str) -> list[Path]:
    """Folders of all entries of a dataset: of any raw files, parser or choice of units."""
    key = "[0-9a-f]" * _KEY_CHARS
    return sorted(_folder_of_entries().glob(f"{glob.escape(_prefix(name))}{key}{_FORM}"))


def _folder_of_entries() -> Path:
    return cache_root() / "parsed"


def _prefix(name: str) -> str:
    return f"{name.replace(':', '.')}-"


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrays:
    """Arrays of an entry, as in ``Entry``; `signal` (rows, channels) float32."""

    signal: NDArray[np.float32]
    labels: NDArray[np.int16]
    bouts: NDArray[np.int64]


def assemble(spec: DatasetSpec, recordings: Sequence[Recording]) -> Arrays:
    """Put subjects one after the other as one signal, with labels as class indices.

    A sensor that a subject lacks is NaN in its rows, so that nothing takes them for readings.
    """
    index = np.full(256, NULL, np.int16)
    index[list(spec.labels)] = np.arange(len(spec.labels))
    firsts = np.cumsum([0, *(len(recording.labels) for recording in recordings)])
    bouts = [
        np.column_stack([np.full(len(rec.bouts), position), rec.bouts + first])
        for position, (rec, first) in enumerate(zip(recordings, firsts, strict=False))
    ]
    return Arrays(
        signal=np.concatenate([_present(spec, rec) for rec in recordings]).astype(np.float32, copy=False),
        labels=np.concatenate([index[recording.labels] for recording in recordings]),
        bouts=np.concatenate(bouts).astype(np.int64, copy=False),
    )


def _present(spec: DatasetSpec, recording: Recording) -> NDArray[np.float32]:
    """The signal with NaN in the columns of sensors that its subject lacks."""
    absent = [column for column in spec.columns() if column[0] not in spec.sensors_of(recording.subject)]
    if not absent:
        return recording.signal
    signal = recording.signal.astype(np.float32)
    for _, first, stop in absent:
        signal[:, first:stop] = np.nan
    return signal


def store(spec: DatasetSpec, recordings: Sequence[Recording], source: Source, folder: Path) -> None:
    """Write the recordings of all subjects as one entry."""
    synthetic = source.synthetic or any(recording.synthetic for recording in recordings)
    facts: Facts = {str(recording.subject): dict(recording.facts) for recording in recordings}
    write_entry(folder, assemble(spec, recordings), "SYNTHETIC" if synthetic else "real", facts)


def write_entry(folder: Path, arrays: Arrays, origin: Origin, facts: Facts) -> None:
    """Write one entry atomically."""
    with disk_errors(folder, "write the parsed data"), folder_atomic(folder) as part:
        for name, array in zip(_ARRAYS, (arrays.signal, arrays.labels, arrays.bouts), strict=True):
            np.save(part / name, np.ascontiguousarray(array))
        written = {name: {"sha256": sha256_file(part / name), "crc32": _crc32(part / name)} for name in _ARRAYS}
        meta = {"origin": origin, "facts": facts, "arrays": written}
        (part / _META).write_bytes(sealed(json.dumps(meta, sort_keys=True).encode(), PAGE))
        if origin == "SYNTHETIC":
            (part / MARKER).write_text(json.dumps({"origin": origin}))


def read_entry(folder: Path, *, again: bool = False) -> Entry:
    """Open an entry and check its arrays; the signal stays on disk.

    Args:
        folder: the entry's folder.
        again: whether arrays that this process has checked before are checked once more.

    Raises:
        DamagedEntry: a file is missing, cut or changed.
    """
    try:
        meta = json.loads(unsealed((folder / _META).read_bytes(), PAGE))
    except (OSError, ValueError) as error:
        raise DamagedEntry(f"{folder / _META}: damaged cache entry ({error}); {_fix(folder)}") from None
    for name in _ARRAYS:
        _check(folder / name, meta["arrays"][name]["crc32"], again)
    return Entry(
        folder=folder,
        labels=np.load(folder / LABELS, allow_pickle=False),
        bouts=np.load(folder / BOUTS, allow_pickle=False),
        origin="real" if meta["origin"] == "real" else "SYNTHETIC",
        facts=meta["facts"],
        signal_sha256=meta["arrays"][SIGNAL]["sha256"],
    )


# Size, time of change and inode of arrays that this process has read through and found whole.
_CHECKED: dict[Path, str] = {}


def _check(path: Path, crc32: int, again: bool) -> None:
    """Read a file through once in the life of this process and compare it with its digest.

    Raises:
        DamagedEntry: it cannot be read, or its bytes are not those that were written.
    """
    try:
        now = stamp(path)
        if _CHECKED.get(path) == now and not again:
            return
        why = "" if _crc32(path) == crc32 else "its bytes are not those that were written: CRC-32 differs"
    except OSError as error:
        why = str(error)
    if why:
        raise DamagedEntry(f"{path}: damaged cache entry ({why}); {_fix(path.parent)}")
    _CHECKED[path] = now


def _fix(folder: Path) -> str:
    return f"delete the folder {folder}, it is made again from the raw files"


def _crc32(path: Path) -> int:
    digest = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest = zlib.crc32(chunk, digest)
    return digest
