"""Atomic and durable files: write beside, fsync, rename, fsync the folder; and digests, the cache folder, disk errors.

Except for the cache's files, no two processes may write the same path at once: callers hold the run folder's lock.
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


def sha256_file(path: Path) -> str:
    """Hash a file's bytes (sha256, hexadecimal)."""
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 20):
            digest.update(chunk)
        return digest.hexdigest()


def sha256_json(value: object) -> str:
    """Hash a JSON value in canonical form: sorted keys, no blanks (sha256, hexadecimal)."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def sync(path: Path) -> None:
    """Force a file to the disk, or a folder: its renames are durable then."""
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
    """Yield a temporary folder that becomes `target` on success; where another process was first, its folder stays."""
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
    """Hash each file; those whose size and time of change are noted in `memory` (JSON) are not read again."""
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
    """Read the noted digests; an unreadable file counts as empty, since it can always be made again."""
    try:
        content = json.loads(memory.read_bytes())
    except (OSError, ValueError):
        return {}
    pairs = content.items() if isinstance(content, dict) else ()
    return {name: pair for name, pair in pairs if isinstance(pair, list) and len(pair) == 2}


def cache_root() -> Path:
    """Folder of files that can always be made again: RELIEF_CACHE, else the user's cache folder."""
    configured = os.environ.get("RELIEF_CACHE")
    if configured:
        return Path(configured).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "relief-ray"


def unused(path: Path) -> Path:
    """Return the path, or the first of ``path.2``, ``path.3``, .. that does not exist."""
    names = (path if i == 1 else path.with_name(f"{path.name}.{i}") for i in count(1))
    return next(name for name in names if not name.exists())


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_DENIED = (errno.EROFS, errno.EACCES, errno.EPERM)

PROBE = ".preflight"

CHUNK_BYTES = 2**20


@contextmanager
def disk_errors(path: Path, what: str) -> Iterator[None]:
    """Turn an ``OSError`` into a ``UserError`` that names the file, the attempt (``what``) and the fix."""
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
    """Write every byte; the operating system may take fewer at a time."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def write_file(path: Path, data: bytes) -> None:
    """Write and fsync a new file; not atomic by itself."""
    write_pieces(path, [data])


def write_pieces(path: Path, pieces: Iterable[bytes | memoryview]) -> str:
    """Write and fsync a file piece by piece, small ones together, and return its sha256."""
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


def replace_file(path: Path, data: bytes) -> None:
    """Replace the contents of ``path``: a reader, or a crash at any point, sees the old or the new ones.

    Raises:
        UserError: the disk is full or read-only, or permissions are missing; the old contents stay.
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
        sync(path.parent)


def preflight(folder: Path, num_bytes: int) -> None:
    """Test before the first round that files in ``folder`` can be written, synced and renamed, and that space is left.

    Raises:
        UserError: they cannot, or fewer than ``num_bytes`` are free.
    """
    with disk_errors(folder, "use this folder for a run"):
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / PROBE
        try:
            write_file(probe, bytes(4096))
            os.replace(probe, folder / f"{PROBE}.renamed")
            sync(folder)
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
