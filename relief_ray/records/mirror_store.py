"""A folder at a URI (``file``, ``s3``, ``gs``, ``abfs``, ``sftp``, ..) through fsspec: files are there whole or not.

Object stores show an object once all of it has arrived. Elsewhere a file is written beside its name and renamed.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from relief_ray.support.errors import UserError
from relief_ray.support.masking import mask_logs, mask_text

# Stores whose single put is atomic; the others can rename.
_OBJECT_STORES: Final = frozenset(
    {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci", "tos", "r2", "hf", "memory"}
)
_PART: Final = ".part"
_EXAMPLES: Final = "SCHEME://.., e.g. s3://bucket/folder or file:///mnt/disk/folder"


def is_uri(text: str) -> bool:
    """True for ``s3://bucket/runs``, False for a path."""
    return "://" in text


class MirrorStore:
    """Files below a URI, by names relative to it.

    Attributes:
        name: the URI without credentials, for messages.
    """

    def __init__(self, uri: str) -> None:
        """Choose the store; nothing is connected yet, as far as its library leaves that to us.

        Raises:
            UserError: no URI, an unknown scheme, or a scheme whose library is not installed.
        """
        self.name = mask_text(uri.rstrip("/"))
        if not is_uri(uri):
            raise UserError(f"runtime.mirror = {uri!r}: not the address of a store; expected {_EXAMPLES}")
        mask_logs()
        # Seldom needed: the command line is quick without it.
        fsspec: Any = importlib.import_module("fsspec")
        try:
            self._fs, root = fsspec.core.url_to_fs(uri.rstrip("/"))
        except (ImportError, ValueError) as error:
            raise UserError(
                f"runtime.mirror = {self.name!r}: cannot be used ({str(error).splitlines()[0]}); expected {_EXAMPLES}, "
                "with the library for that kind of store installed in this environment"
            ) from error
        self._root = str(root).rstrip("/")
        self._puts_whole = uri.partition("://")[0] in _OBJECT_STORES

    def sizes(self) -> dict[str, int]:
        """Bytes of all files by name, what killed writers left among them; empty where there is nothing yet."""
        self._fs.invalidate_cache()
        try:
            listed: Mapping[str, Mapping[str, Any]] = self._fs.find(self._root, detail=True)
        except FileNotFoundError:
            return {}
        # Listings have their paths without a leading slash where the root has one, or the other way round.
        start = len(self._root.lstrip("/")) + 1
        return {path.lstrip("/")[start:]: int(info["size"] or 0) for path, info in listed.items()}

    def read(self, name: str) -> bytes:
        """Read a file.

        Raises:
            FileNotFoundError: there is none.
        """
        return bytes(self._fs.cat_file(self._path(name)))

    def write(self, name: str, data: bytes) -> None:
        """Replace a file whole: whoever reads it sees the old contents or the new ones."""
        path = self._path(name)
        if self._puts_whole:
            self._fs.pipe_file(path, data)
            return
        self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        beside = f"{path}.{uuid4().hex[:8]}{_PART}"
        try:
            self._fs.pipe_file(beside, data)
            self._fs.mv(beside, path)
        except BaseException:
            if self._fs.exists(beside):
                self._fs.rm_file(beside)
            raise

    def remove(self, name: str) -> None:
        """Remove a file; one that is not there is no error."""
        try:
            self._fs.rm_file(self._path(name))
        except FileNotFoundError:
            return

    def remove_folder(self, name: str) -> None:
        """Remove an empty folder; object stores have none."""
        if not self._puts_whole:
            with suppress(OSError):
                self._fs.rmdir(self._path(name))

    def fetch(self, name: str, target: Path) -> None:
        """Copy a file to the disk."""
        target.parent.mkdir(parents=True, exist_ok=True)
        self._fs.get_file(self._path(name), str(target))

    @staticmethod
    def is_left_over(name: str) -> bool:
        """True for what a killed writer left beside a file."""
        return name.endswith(_PART)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"
