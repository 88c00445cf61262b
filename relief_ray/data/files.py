"""Files that are either whole or absent, and sha256 digests remembered by size and time of change."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from relief_ray.errors import UserError


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
