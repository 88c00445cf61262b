"""Files that are either old or new: write beside, fsync, rename, fsync the folder.

Nothing here may be called by two writers of the same path at once: callers hold the run folder's lock.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from relief_ray.errors import UserError

# Files that are either whole or absent, and sha256 digests remembered by size and time of change.


def sha256_file(path: Path) -> str:
    """The sha256 of a file's bytes, hexadecimal."""
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 20):
            digest.update(chunk)
        return digest.hexdigest()


def sha256_json(value: object) -> str:
    """The sha256 of a JSON value in canonical form (sorted keys, no blanks)."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def sync(path: Path) -> None:
    """Force a file or folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomic(path: Path, data: bytes) -> None:
    """Write beside, force to disk, rename: a reader finds the old bytes or the new ones, never a part."""
    with _writable(path.parent):
        handle, part = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
            sync(path.parent)
        finally:
            Path(part).unlink(missing_ok=True)


@contextmanager
def folder_atomic(target: Path) -> Iterator[Path]:
    """A temporary folder that becomes `target` on success; where another process was first, its folder stays."""
    with _writable(target.parent):
        part = Path(tempfile.mkdtemp(dir=target.parent, prefix=target.name, suffix=".part"))
        try:
            yield part
            for file in part.iterdir():
                sync(file)
            if not target.exists():
                os.replace(part, target)
                sync(target.parent)
        finally:
            shutil.rmtree(part, ignore_errors=True)


@contextmanager
def _writable(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise UserError(
            f"{folder}: cannot be written ({error.strerror or error}); set RELIEF_CACHE to a folder of yours with room"
        ) from error


def digest_files(files: Mapping[str, Path], memory: Path) -> dict[str, str]:
    """The sha256 of each file; those whose size and time of change stand in `memory` (JSON) are not read again."""
    known = _remembered(memory)
    stamps = {name: _stamp(path) for name, path in files.items()}
    fresh = {n: known[n][1] if n in known and known[n][0] == s else sha256_file(files[n]) for n, s in stamps.items()}
    if any(known.get(name, ("", ""))[0] != stamp for name, stamp in stamps.items()):
        write_atomic(memory, json.dumps({name: [stamps[name], fresh[name]] for name in files}).encode())
    return fresh


def _stamp(path: Path) -> str:
    status = path.stat()
    return f"{status.st_size}:{status.st_mtime_ns}:{status.st_ino}"


def _remembered(memory: Path) -> dict[str, Sequence[str]]:
    """What was digested before; an unreadable memory counts as none, since it can always be made again."""
    try:
        found = json.loads(memory.read_bytes())
    except (OSError, ValueError):
        return {}
    pairs = found.items() if isinstance(found, dict) else ()
    return {name: pair for name, pair in pairs if isinstance(pair, list) and len(pair) == 2}


# Where files of the user's own lie that can always be made again, and names that nobody has taken.


def cache_root() -> Path:
    """RELIEF_CACHE, else the user's own cache folder."""
    given = os.environ.get("RELIEF_CACHE")
    if given:
        return Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "relief-ray"


def unused(path: Path) -> Path:
    """The path, or the first of ``path.2``, ``path.3``, .. that does not exist."""
    names = (path if i == 1 else path.with_name(f"{path.name}.{i}") for i in count(1))
    return next(name for name in names if not name.exists())


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_DENIED = (errno.EROFS, errno.EACCES, errno.EPERM)

PROBE = ".preflight"

CHUNK_BYTES = 2**20


@contextmanager
def disk_errors(path: Path, what: str) -> Iterator[None]:
    """Turns an ``OSError`` into a ``UserError`` that names the file, what was tried, and the fix."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _FULL:
            fix = "free some space, then resume: everything before this write is intact"
        elif error.errno in _DENIED:
            fix = "choose a folder that you may write to (--out DIR) or change its permissions"
        else:
            fix = "check the disk and the path, then resume"
        raise UserError(f"{path}: cannot {what}: {reason}; expected a writable place; {fix}") from error


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Writes every byte; the operating system may take fewer at a time."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def write_file(path: Path, data: bytes) -> None:
    """Writes and fsyncs a new file; not atomic by itself."""
    write_pieces(path, [data])


def write_pieces(path: Path, pieces: Iterable[bytes | memoryview]) -> str:
    """``write_file`` of one piece after the other, small ones together; gives the sha256 of them all."""
    total = hashlib.sha256()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        for chunk in _gathered(pieces):
            total.update(chunk)
            write_all(fd, chunk)
        os.fsync(fd)
    finally:
        os.close(fd)
    return total.hexdigest()


def _gathered(pieces: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    small = bytearray()
    for piece in pieces:
        if len(small) + len(piece) < CHUNK_BYTES:
            small += piece
            continue
        if small:
            yield bytes(small)
            small.clear()
        yield piece
    if small:
        yield bytes(small)


def fsync_folder(folder: Path) -> None:
    """Makes renames inside ``folder`` durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_file(path: Path, data: bytes) -> None:
    """Gives ``path`` new contents: a reader, or a crash at any point, sees the old or the new ones.

    Raises:
        UserError: the disk is full, read-only, or not ours; the old contents stay.
    """
    beside = path.with_name(f".{path.name}.tmp")
    with disk_errors(path, "write"):
        try:
            write_file(beside, data)
            os.replace(beside, path)
        except OSError:
            with suppress(OSError):
                beside.unlink(missing_ok=True)
            raise
        fsync_folder(path.parent)


def preflight(folder: Path, num_bytes: int) -> None:
    """Finds out before the first round whether ``folder`` can be written, synced, renamed in, and holds ``num_bytes``.

    Raises:
        UserError: it cannot.
    """
    with disk_errors(folder, "use this folder for a run"):
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / PROBE
        try:
            write_file(probe, bytes(4096))
            os.replace(probe, folder / f"{PROBE}.renamed")
            fsync_folder(folder)
        finally:
            for name in (PROBE, f"{PROBE}.renamed"):
                with suppress(OSError):
                    (folder / name).unlink()
        free_bytes = shutil.disk_usage(folder).free
    if free_bytes < num_bytes:
        raise UserError(
            f"{folder}: {free_bytes / 2**20:.0f} MiB free, expected at least {num_bytes / 2**20:.0f} MiB for "
            "records and checkpoints; free some space or choose another folder (--out DIR)"
        ) from OSError(errno.ENOSPC, "too little space")
