"""Files that travel with a job: a folder without what it ignores, and in any case the files that its command names."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from actors.runtime.tokens import holds_token
from relief_ray.support.errors import UserError

MIB = 2**20
# The head takes no larger request.
LIMIT_BYTES = 100 * MIB
# A walk that goes on for longer is one through a home folder.
_MAX_FILES = 20_000
# What Ray itself leaves out; credentials; what runs leave behind.
_NEVER = (".git", ".venv", "venv", "__pycache__", ".env", ".env.*", "runs", "mlruns", "mlartifacts")
# Ray would apply them to the upload once more, and drop what the command names.
_IGNORE_FILES = (".gitignore", ".rayignore")
_NUM_SHOWN = 8
Ignores = list[Callable[[Path], bool]]
# Ray tells of every ignore file.
_SILENT = logging.Logger("upload", logging.ERROR)


@dataclass(frozen=True, kw_only=True, slots=True)
class UploadFile:
    """A file by its path below the folder; ``is_named``: the command names it."""

    path: Path
    num_bytes: int
    is_named: bool = False


def files_to_upload(folder: Path, arguments: Sequence[str], token: Path | None = None) -> list[UploadFile]:
    """The files of a folder that a job gets; `.gitignore` and `.rayignore` hold, but not for files in ``arguments``.

    The cluster's ``token`` stays here, as every file does that looks like one: whoever reads it may run any program on
    every node.

    Raises:
        UserError: they are more than a head takes; a file in ``arguments`` lies elsewhere, or is the token; or there is
            no such folder.
    """
    if not folder.is_dir():
        raise UserError(f"--working-dir {folder}: no such folder; expected the one that holds your files")
    root = folder.resolve()
    named = _named_files(root, arguments)
    secret = None if token is None else token.resolve()
    if secret in [(root / path).resolve() for path in named]:
        raise UserError(f"{token}: the cluster's token, which no job needs; leave it out of the command")
    files = {path: UploadFile(path=path, num_bytes=_size(root / path), is_named=True) for path in named}
    for path in _walk(root, root, []):
        if path.resolve() == secret or holds_token(path):
            continue
        files.setdefault(path.relative_to(root), UploadFile(path=path.relative_to(root), num_bytes=_size(path)))
        if len(files) > _MAX_FILES:
            raise UserError(
                f"--working-dir {root}: more than {_MAX_FILES} files; expected the folder of your experiment, or a "
                f".rayignore in it that names what stays here"
            )
    chosen = sorted(files.values(), key=lambda file: file.path.as_posix())
    _refuse_too_much(root, chosen)
    return chosen


def _size(path: Path) -> int:
    return path.stat().st_size


def _named_files(root: Path, arguments: Sequence[str]) -> list[Path]:
    """Files that a command names: ``results/tuned.json`` in ``tuned=results/tuned.json``.

    Raises:
        UserError: one lies outside of the folder: the job would not find it.
    """
    named = []
    for argument in arguments:
        text = argument.rpartition("=")[2]
        path = root / text
        if not text or not path.is_file():
            continue
        if Path(text).is_absolute() or not path.resolve().is_relative_to(root):
            raise UserError(
                f"{argument}: a file outside of {root}, which alone travels with the job; copy it there and name it by "
                "its path in that folder"
            )
        named.append(path.resolve().relative_to(root))
    return named


def _walk(folder: Path, root: Path, ignores: Ignores) -> Iterator[Path]:
    """Files below a folder that nothing ignores, in order; links to folders are not followed."""
    # Ray's own reading of these files, so that a job gets what `ray job submit` would send.
    from ray._private.runtime_env.packaging import get_excludes_from_ignore_files

    here: Ignores = [*ignores, *get_excludes_from_ignore_files(folder, include_gitignore=True, logger=_SILENT)]
    for path in sorted(folder.iterdir()):
        if any(fnmatch(path.name, name) for name in (*_NEVER, *_IGNORE_FILES)) or any(
            is_ignored(path) for is_ignored in here
        ):
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _walk(path, root, here)
        elif path.is_file():
            yield path


def _refuse_too_much(root: Path, files: Sequence[UploadFile]) -> None:
    """Check the size of an upload.

    Raises:
        UserError: it is above the limit; the largest parts are named.
    """
    total = sum(file.num_bytes for file in files)
    if total > LIMIT_BYTES:
        largest = "\n".join(f"  {line}" for line in summary(files))
        raise UserError(
            f"--working-dir {root}: {_mib(total)} to upload, a head takes at most {_mib(LIMIT_BYTES)}; name in a "
            f".rayignore there what the job does not need (data sets live on the nodes):\n{largest}"
        )


def summary(files: Sequence[UploadFile]) -> list[str]:
    """Lines about the largest entries of the folder, then the files that the command names."""
    entries: dict[str, list[UploadFile]] = {}
    for file in files:
        entries.setdefault(file.path.parts[0] + ("/" if len(file.path.parts) > 1 else ""), []).append(file)
    by_size = sorted(entries.items(), key=lambda item: -sum(file.num_bytes for file in item[1]))
    lines = [f"{_total(part):>16}  {name}" for name, part in by_size[:_NUM_SHOWN]]
    if rest := [file for _, part in by_size[_NUM_SHOWN:] for file in part]:
        lines.append(f"{_total(rest):>16}  others")
    return [*lines, *(f"{'named':>16}  {file.path.as_posix()}" for file in files if file.is_named)]


def _total(files: Sequence[UploadFile]) -> str:
    num_bytes = sum(file.num_bytes for file in files)
    return f"{len(files):>4}  {_mib(num_bytes):>9}"


def headline(root: Path, files: Sequence[UploadFile]) -> str:
    """``upload: 143 files, 2.3 MiB of /home/me/study (limit 100.0 MiB)``."""
    size = _mib(sum(file.num_bytes for file in files))
    return f"upload: {len(files)} files, {size} of {root.resolve()} (limit {_mib(LIMIT_BYTES)})"


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / MIB:.1f} MiB"


def stage(root: Path, files: Sequence[UploadFile], place: Path) -> None:
    """Copy the files into an empty folder, whole and without what is ignored: what Ray then sends is that folder."""
    for file in files:
        (place / file.path.parent).mkdir(parents=True, exist_ok=True)
        shutil.copy2(root.resolve() / file.path, place / file.path)
