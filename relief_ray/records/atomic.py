"""Files that are either old or new: write beside, fsync, rename, fsync the folder.

Nothing here may be called by two writers of the same path at once: callers hold the run folder's lock.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from relief_ray.errors import UserError

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
