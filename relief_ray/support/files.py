"""Atomic and durable files and folders: write beside, fsync, rename, fsync the folder. The only place that renames.

Also digests of files, the cache folder, and messages about errors of the disk.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import hashlib
import json
import os
import shutil
import stat
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import reduce
from itertools import count
from pathlib import Path
from typing import BinaryIO, NamedTuple
from uuid import uuid4

from relief_ray.support.errors import UserError, option

# Seals: a JSON object whose last key is the sha256 of the bytes before it, so that a changed bit is seen.
#
# A sealed object stays JSON: any tool reads it, with one key more (``sha256``). The digest is over the bytes as
# written, from the opening brace to the comma before that key; nothing has to be formatted again to check it.


NUM_DIGITS = 64


class Unsealed(ValueError):
    """Raised for bytes that carry no seal, or one that does not fit."""


class Marks(NamedTuple):
    """Bytes that stand around the digest.

    Attributes:
        before: bytes between the object's last value and the digest.
        after: bytes from the digest to the end.
    """

    before: bytes
    after: bytes


# A line of a ledger, without its line break, and a file for people (indented by one).
LINE = Marks(before=b',"sha256":"', after=b'"}')
PAGE = Marks(before=b',\n "sha256": "', after=b'"\n}\n')


def sealed(data: bytes, marks: Marks) -> bytes:
    """Return a JSON object (not an empty one) with its seal.

    Args:
        data: the object, ending with its brace.
        marks: form of the seal.
    """
    body = data.rstrip().removesuffix(b"}").rstrip()
    return body + marks.before + sha256_of(body).encode() + marks.after


def check(data: memoryview, marks: Marks) -> memoryview:
    """Return the bytes before a seal that fits, without a copy of them: files of many megabytes are checked so.

    Raises:
        Unsealed: there is no seal of this form at the end, or the bytes before it are others than were sealed.
    """
    length = len(marks.before) + NUM_DIGITS + len(marks.after)
    body, seal = data[:-length], bytes(data[-length:])
    if not (seal.startswith(marks.before) and seal.endswith(marks.after)):
        raise Unsealed("it does not end with its sha256")
    if sha256_of(body).encode() != seal[len(marks.before) : -len(marks.after)]:
        raise Unsealed("its bytes are not those that were written: sha256 differs")
    return body


def page(text: str) -> bytes:
    """A JSON object (not an empty one) as a sealed file for people; ``values_in`` reads it."""
    return sealed(text.encode(), PAGE)


def values_in(data: bytes) -> dict[str, object]:
    """The JSON object of a ``page``, without its key ``sha256``.

    Raises:
        Unsealed: as ``check``.
        ValueError: it is no JSON.
    """
    values: dict[str, object] = json.loads(bytes(check(memoryview(data), PAGE)) + b"}")  # what ends so is an object
    return values


# Bytes of the largest file that is read whole as a text: the record of a run with a million clients has fewer.
LARGEST = 2**30


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file that may come from elsewhere for reading.

    A device or a pipe in its place, which may have no end, is refused, also behind a link.

    Raises:
        OSError: no such file, no regular file, or it cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # without a writer, opening a pipe would wait for one
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(number, "Is a directory" if stat.S_ISDIR(mode) else "Not a regular file", str(path))
    with open(descriptor, "rb", buffering=CHUNK_BYTES) as file:
        yield file


def read_whole(path: Path, largest: int = LARGEST) -> bytes:
    """Contents of a file that may come from elsewhere, of at most ``largest`` bytes; they are counted before.

    Raises:
        OSError: as ``opened``, or it is too large.
    """
    with opened(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > largest:
            raise OSError(errno.EINVAL, f"{size / 2**20:.0f} MiB, expected at most {largest / 2**20:.0f}", str(path))
        return file.read()


def read_pieces(path: Path) -> Iterator[bytes]:
    """The bytes of a file, one piece after the other; which files are refused: as ``opened``."""
    with opened(path) as file:
        while piece := file.read(CHUNK_BYTES):
            yield piece


def crc32_file(path: Path) -> int:
    """Return the CRC-32 of a file's bytes."""
    return reduce(lambda crc, piece: zlib.crc32(piece, crc), read_pieces(path), 0)


def sha256_file(path: Path) -> str:
    """Hash a file's bytes (sha256, hexadecimal)."""
    digest = hashlib.sha256()
    for piece in read_pieces(path):
        digest.update(piece)
    return digest.hexdigest()


def refuse_links(paths: Iterable[Path]) -> None:
    """Check that no path is a link: what is written through one goes to a place that the link's maker chose.

    Raises:
        UserError: one is; it is named, with the place that it leads to.
    """
    for path in sorted(paths):
        if path.is_symlink():
            raise UserError(
                f"{path}: is a link to {os.readlink(path)}, expected a file or folder of its own; put a copy of "
                "what it leads to in its place, or remove it"
            )


def sha256_of(data: bytes | memoryview | str) -> str:
    """Hash bytes, or a text as UTF-8 (sha256, hexadecimal)."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def sha256_json(value: object) -> str:
    """Hash a JSON value in canonical form: sorted keys, no blanks (sha256, hexadecimal)."""
    return sha256_of(json.dumps(value, sort_keys=True, separators=(",", ":")))


def sync(path: Path) -> None:
    """Force a file to the disk, or a folder: its renames are durable then."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomic(path: Path, data: bytes | Iterable[bytes], *, make_folder: bool = True) -> None:
    """Replace the contents of ``path`` by bytes, or by pieces of them.

    Its folder is made where it is missing; without ``make_folder`` that is an error, for a folder that may have been
    moved away while its owner works.

    The bytes are written beside it under a name of their own, forced to the disk and renamed. A reader, or a crash at
    any point, sees the old contents or the new ones; of two processes that write at once, one wins whole.

    Raises:
        UserError: the disk is full or read-only, or permissions are missing; the old contents stay.
    """
    with disk_errors(path, "write"):
        if make_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        beside = _beside(path)
        try:
            write_pieces(beside, [data] if isinstance(data, bytes) else data)
            move(beside, path)
        except BaseException:
            with suppress(OSError):
                beside.unlink()
            raise


@contextmanager
def folder_atomic(target: Path) -> Iterator[Path]:
    """Yield an empty folder to fill; it becomes ``target`` when the block ends, and is removed when the block raises.

    Its files are forced to the disk first, so ``target`` is never seen half-written. An empty folder ``target`` is
    replaced. Where another process was first, its folder stays and this one is removed.

    Raises:
        OSError: ``target`` or its parent cannot be written; callers say what to do about it (``disk_errors``).
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = _beside(target)
    beside.mkdir()
    try:
        yield beside
        for path in (*beside.rglob("*"), beside):
            sync(path)
        try:
            move(beside, target)
        except OSError as error:
            if error.errno not in _OCCUPIED:
                raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def move(source: Path, target: Path) -> None:
    """Rename a file or folder durably; a file at ``target`` is replaced, and so is an empty folder by a folder."""
    os.replace(source, target)
    for folder in {source.parent, target.parent}:
        sync(folder)


def _beside(path: Path) -> Path:
    """Return a hidden name in the same folder that no other process uses."""
    return path.with_name(f".{path.name}.{uuid4().hex[:12]}.part")


def remove_parts(path: Path) -> None:
    """Remove what writers of the file ``path`` left beside it when they were killed; call it as its only writer."""
    for part in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        with suppress(OSError):
            part.unlink()


def digest_files(files: Mapping[str, Path], memory: Path) -> dict[str, str]:
    """Hash each file; those whose size and time of change are noted in `memory` (JSON) are not read again.

    Raises:
        UserError: one cannot be read.
    """
    known, now = _remembered(memory), dict[str, list[str]]()
    try:
        for name, path in files.items():
            noted, stamped = known.get(name, ["", ""]), stamp(path)
            now[name] = noted if noted[0] == stamped else [stamped, sha256_file(path)]
    except OSError as error:
        raise UserError(
            f"{error.filename}: cannot be read ({error.strerror}), expected a file that you may read; mend the link or "
            "the permissions, put the file back, or leave it out"
        ) from error
    if not now.items() <= known.items():
        write_atomic(memory, page(json.dumps(now)))
    return {name: digest for name, (_, digest) in now.items()}


def stamp(path: Path) -> str:
    """Size, time of change and inode: another stamp, other contents."""
    status = path.stat()
    return f"{status.st_size}:{status.st_mtime_ns}:{status.st_ino}"


def _remembered(memory: Path) -> dict[str, list[str]]:
    """Read the noted digests; an unreadable or damaged file counts as empty, since it can always be made again."""
    try:
        noted = values_in(read_whole(memory)).items()
    except (OSError, ValueError):
        return {}
    return {name: pair for name, pair in noted if isinstance(pair, list) and len(pair) == 2}


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Let one process at a time run the block; others wait for the lock file ``path``, which stays.

    Where the file system has no locks nobody waits: callers write so that two at once do no harm.

    Raises:
        UserError: the lock file cannot be made.
    """
    with disk_errors(path, "make a lock file"):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def cache_root() -> Path:
    """Folder of files that can always be made again: RELIEF_CACHE, else the user's cache folder.

    Where that cannot be written, as in a container, it is a folder of this user's among temporary files.

    Raises:
        UserError: that folder cannot be made, or is somebody else's.
    """
    configured = os.environ.get("RELIEF_CACHE")
    if configured:
        return Path(configured).expanduser()
    usual = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "relief-ray")
    place = nearest_there(usual)
    if usual.is_absolute() and place.is_dir() and os.access(place, os.W_OK):
        return usual
    own = Path(tempfile.gettempdir(), f"relief-ray-{os.getuid()}")
    try:
        own.mkdir(mode=0o700, exist_ok=True)
        status = own.lstat()
    except OSError as error:  # `disk_errors` asks for this folder
        raise UserError(f"{own}: cannot make a folder: {error.strerror}; set RELIEF_CACHE to one of yours") from error
    # Programs are loaded from it: whoever can write to it could have them run.
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise UserError(f"{own}: others can write there, expected a folder of this user's; set RELIEF_CACHE to one")
    return own


def nearest_there(folder: Path) -> Path:
    """The folder, or the first one above it that is there: nothing is made."""
    return next(place for place in (folder, *folder.absolute().parents) if os.path.exists(place))


def unused(path: Path) -> Path:
    """Return the path, or the first of ``path.2``, ``path.3``, .. that does not exist."""
    names = (path if i == 1 else path.with_name(f"{path.name}.{i}") for i in count(1))
    return next(name for name in names if not name.exists())


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_DENIED = (errno.EACCES, errno.EPERM)

# A rename onto a folder that is not empty.
_OCCUPIED = (errno.ENOTEMPTY, errno.EEXIST)

CHUNK_BYTES = 2**20


@contextmanager
def disk_errors(path: Path, what: str) -> Iterator[None]:
    """Turn an ``OSError`` into a ``UserError`` that names the file, the attempt (``what``) and the fix."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if path.absolute().is_relative_to(cache_root().absolute()):
            fix = "set RELIEF_CACHE to a folder of yours with room"
        elif error.errno in _FULL:
            fix = "free some space (or inodes: df -i), then resume: everything before this write is intact"
        elif error.errno == errno.EROFS:  # what Linux makes of a disk that begins to fail, a board's SD card say
            fix = f"choose another folder ({option('out', 'DIR')}), or make this one writable again, then resume"
        elif error.errno == errno.EACCES and os.geteuid() == 0:
            fix = "root may not, as with NFS's root_squash: work as the user that the folder belongs to"
        elif error.errno in _DENIED:
            fix = f"choose a folder that you may write to ({option('out', 'DIR')}) or change its permissions"
        else:
            fix = "check the disk and the path, then resume"
        raise UserError(f"{path}: cannot {what}: {reason}; expected a writable place; {fix}") from error


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write every byte; the operating system may take fewer at a time."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def write_pieces(path: Path, pieces: Iterable[bytes | memoryview]) -> str:
    """Write and fsync a file piece by piece, small ones together, and return its sha256; not atomic by itself."""
    total = hashlib.sha256()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
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


def preflight(folder: Path, num_bytes: int) -> None:
    """Test before the first round that files in ``folder`` can be written, synced and renamed, and that space is left.

    Raises:
        UserError: they cannot, or fewer than ``num_bytes`` are free.
    """
    with disk_errors(folder, "use this folder for a run"):
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".preflight-{uuid4().hex}"  # a name that nothing has
        try:
            write_pieces(probe, [bytes(4096)])
            move(probe, probe.with_suffix(".renamed"))
        finally:
            for file in (probe, probe.with_suffix(".renamed")):
                with suppress(OSError):
                    file.unlink()
        free_bytes = shutil.disk_usage(folder).free
    if free_bytes < num_bytes:
        raise UserError(
            f"{folder}: {free_bytes / 2**20:.0f} MiB free, expected at least {num_bytes / 2**20:.0f} MiB for "
            f"records and checkpoints; free some space or choose another folder ({option('out', 'DIR')})"
        ) from OSError(errno.ENOSPC, "too little space")
