"""Zip archives, opened with suspicion: traversal, links and bombs are refused before anything is written."""

import stat
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from relief_ray.errors import UserError

DAMAGE = (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, NotImplementedError, RuntimeError)
MAX_RATIO = 100
MAX_BYTES = 5 * 1024**3


def open_zip(path: Path, shown: str = "") -> zipfile.ZipFile:
    """Open a zip for reading; a truncated or damaged one is a UserError naming the file and its size."""
    try:
        return zipfile.ZipFile(path)
    except DAMAGE as error:
        size = path.stat().st_size if path.exists() else 0
        raise UserError(
            f"{shown or path}: not a whole zip archive ({error}; {size} bytes on disk); "
            "the download was cut short or is another file: fetch it again"
        ) from None


def check_members(archive: zipfile.ZipFile, path: Path) -> None:
    """Refuse absolute or climbing names, links, and bombs (over 5 GiB unpacked at a ratio over 100)."""
    for info in archive.infolist():
        name = PurePosixPath(info.filename.replace("\\", "/"))
        if name.is_absolute() or ".." in name.parts or (name.parts and ":" in name.parts[0]):
            raise UserError(f"{path}: member {info.filename!r} points outside the archive's folder; archive refused")
        if stat.S_ISLNK(info.external_attr >> 16):
            raise UserError(f"{path}: member {info.filename!r} is a link, expected plain files; archive refused")
    unpacked = sum(info.file_size for info in archive.infolist())
    packed = max(1, sum(info.compress_size for info in archive.infolist()))
    if unpacked > MAX_BYTES and unpacked > MAX_RATIO * packed:
        raise UserError(
            f"{path}: {packed} bytes claim to unpack to {unpacked} (limits: ratio {MAX_RATIO}, {MAX_BYTES} bytes); "
            "archive refused as a zip bomb"
        )
