"""Raw files of a dataset: downloaded from its UCI address, imported from the user's own download, or synthetic.

A download resumes where it broke off (HTTP Range, where offered) and is retried with growing pauses after server errors
and cut connections. It only becomes the dataset when it is a complete, safe archive that holds the expected files.
Archives are kept and read as they are: nothing is unpacked.
"""

import errno
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import TypedDict
from urllib.parse import unquote, urlparse

import numpy as np

from relief_ray.data.describe import VerifyReport, verify_source
from relief_ray.data.loader import DatasetSpec
from relief_ray.data.registry import DATASETS, get_loader, get_spec
from relief_ray.data.source import (
    MARKER,
    as_written,
    check_members,
    find_source,
    open_source,
    open_zip,
    search_roots,
    some_of,
)
from relief_ray.plugins.load import is_path
from relief_ray.support.errors import UserError
from relief_ray.support.files import disk_errors, move, read_pieces, sync, write_atomic

Progress = Callable[[int, int | None], None]
_CHUNK = 1 << 18


# Attempts of a transfer, the first pause between them, which doubles, and the limit of one read, in seconds.
ATTEMPTS, PAUSE_S, TIMEOUT_S = 5, 1.0, 60.0
# What the disk says, not the network, and would say again.
_OF_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EEXIST, errno.ENOTDIR)


class FetchReport(TypedDict):
    """Place and size of the fetched files, and the result of their verification."""

    path: str
    num_bytes: int
    verification: VerifyReport


class _Retry(Exception):
    """A failure of one attempt that is worth another attempt."""


def fetch(
    name: str,
    root: str | Path | None = None,
    *,
    url: str | None = None,
    progress: Progress | None = None,
) -> FetchReport:
    """Download a dataset below `root` and verify it; `progress` is called with (bytes so far, total or None).

    Raises UserError where the address answers with something else, the transfer stays cut, or the archive is unsafe.
    """
    spec = get_spec(name)
    address = url or spec.url
    if not address:
        raise UserError(f"dataset {name!r} has no download address; it comes with the package or from your own files")
    target = search_roots(root)[0] / name / unquote(Path(urlparse(address).path).name)
    if not target.exists():
        part = target.with_name(target.name + ".part")
        _download(address, part, progress)
        _accept(spec, part, target)
    return _report(spec, target)


def _download(url: str, part: Path, progress: Progress | None) -> None:
    """Download into `part`, in several attempts where it has to be."""
    if urlparse(url).scheme not in ("https", "http"):
        raise UserError(f"{url}: expected an address that begins with https:// or http://; mend --url")
    problem = ""
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE_S * 2 ** (attempt - 1))
        try:
            _attempt(url, part, progress)
            return
        except (_Retry, urllib.error.URLError, HTTPException, OSError) as error:
            problem = _final(error, url, part)
    num_bytes = part.stat().st_size if part.exists() else 0
    raise UserError(
        f"{url}: not complete after {ATTEMPTS} attempts ({problem}); {num_bytes} bytes are kept in {part}: "
        "run the command again to go on, or download by hand and use --from FILE"
    )


def _final(error: Exception, url: str, part: Path) -> str:
    """Describe an error that is worth a retry; raise UserError for one that is not (404, disk full)."""
    if isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code not in (408, 416, 429):
        raise UserError(f"{url}: the server says {error.code} {error.reason}; download by hand and use --from FILE")
    if isinstance(error, OSError) and error.errno in _OF_DISK:
        fix = "free some space or choose another folder with RELIEF_DATA, then run the command again"
        raise UserError(f"{part}: cannot write: {error.strerror}; expected a writable place; {fix}")
    return f"{type(error).__name__}: {error}"


def _attempt(url: str, part: Path, progress: Progress | None) -> None:
    """Send one request; it continues after the bytes in `part` where the server allows it."""
    part.parent.mkdir(parents=True, exist_ok=True)
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "relief-ray", **({"Range": f"bytes={have}-"} if have else {})}
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            _receive(response, part, have, progress, url)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # what we hold does not fit their file any more
            part.unlink(missing_ok=True)
        raise


def _receive(response: HTTPResponse, part: Path, have: int, progress: Progress | None, url: str) -> None:
    resumed = response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
    done = have if resumed else 0
    length = response.headers.get("Content-Length")
    total = done + int(length) if length and length.isdigit() else None
    with part.open("ab" if resumed else "wb") as out:
        while chunk := response.read(_CHUNK):
            if not done and _is_page(response, chunk):
                raise UserError(f"{url}: answered with a web page instead of an archive; use --from FILE")
            out.write(chunk)
            done += len(chunk)
            if progress is not None:
                progress(done, total)
    if total is not None and done < total:
        raise _Retry(f"cut after {done} of {total} bytes")


def _is_page(response: HTTPResponse, chunk: bytes) -> bool:
    head = chunk[:512].lstrip().lower()
    return "text/html" in response.headers.get("Content-Type", "") or head.startswith((b"<!doctype", b"<html"))


def _accept(spec: DatasetSpec, part: Path, target: Path) -> None:
    """Rename `part` to `target` if it is a complete, safe archive; otherwise remove it, since resuming cannot help."""
    try:
        with open_zip(part, shown=str(target)) as archive:
            check_members(archive, target)
            found = some_of(archive.namelist())
    except UserError:
        part.unlink(missing_ok=True)
        raise
    with disk_errors(target, "keep the archive"):
        sync(part)
        move(part, target)
    if not _holds(spec, target):
        _reject(target)
        raise UserError(
            f"{target}: the archive does not hold files like {as_written(spec.member)}, found in it: {found}; "
            "another dataset?"
        )


def _holds(spec: DatasetSpec, target: Path) -> bool:
    try:
        with open_source(spec, find_source(spec, target)) as members:
            return bool(members.names)
    except UserError as error:
        if _is_of_disk(error):
            raise
        return False


def _is_of_disk(error: UserError) -> bool:
    """Whether a full disk, say, stood in the way (``disk_errors``), so that nothing is known about the archive."""
    return isinstance(error.__cause__, OSError)


def _reject(target: Path) -> None:
    """Rename a file so that it is never read as data and the next fetch starts afresh."""
    move(target, target.with_name(target.name + ".rejected"))


def import_from(name: str, path: str | Path) -> FetchReport:
    """Import a manual download (zip or folder): check it, copy it to where data are looked for, verify the copy.

    Raises:
        UserError: there are no such files, or a user's own lie there already, where a copy would be ambiguous.
    """
    spec = get_spec(name)
    source = find_source(spec, path)
    place = search_roots(None)[0]
    if is_path(name) and source.path.resolve().is_relative_to(place.resolve()):
        raise UserError(f"{source.path}: lies below {place} already, where {name!r} is read; nothing to fetch")
    folder = place / name
    if source.path.is_file():
        part = folder / (source.path.name + ".part")
        write_atomic(part, read_pieces(source.path))
        _accept(spec, part, folder / source.path.name)
        return _report(spec, folder / source.path.name)
    if source.synthetic:
        write_atomic(folder / MARKER, b'{"origin": "SYNTHETIC"}')
    with open_source(spec, source) as members:
        for member in members.names:
            write_atomic(folder / member, members.read(member))
    return _report(spec, folder)


def _report(spec: DatasetSpec, path: Path) -> FetchReport:
    """Verify the files at `path` and report; an archive that cannot be parsed is renamed (`_reject`)."""
    try:
        verification = verify_source(spec, find_source(spec, path))
    except UserError as error:
        if path.is_file() and not _is_of_disk(error):
            _reject(path)
        raise
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return {
        "path": str(path),
        "num_bytes": sum(file.stat().st_size for file in files),
        "verification": verification,
    }


def synth(name: str, root: str | Path, seed: int = 0, scale: float = 1.0) -> Path:
    """Write synthetic raw files in a dataset's format to `root/NAME_SYNTHETIC` and return that folder.

    `scale` shortens every segment (not where all files have one length). Both a marker file and the first row of every
    file, a fixed ramp (`formats.common.signature`), make everything computed from them SYNTHETIC.

    Raises UserError for a dataset without a synthetic form, or a scale outside (0, 1].
    """
    loader = get_loader(name)
    if loader.synthesise is None:
        others = ", ".join(n for n, known in DATASETS.items() if known.synthesise)
        raise UserError(f"data synth {name!r}: no synthetic form; choose one of {others}")
    if not 0.0 < scale <= 1.0 or (loader.spec.fixed_length and scale != 1.0):
        fixed = ", ".join(n for n, known in DATASETS.items() if known.synthesise and known.spec.fixed_length)
        raise UserError(
            f"data synth {name}: scale {scale:g}, expected 0 < scale <= 1 ({fixed}: 1, its files have one length)"
        )
    folder = Path(root) / f"{loader.spec.name.replace(':', '.')}_SYNTHETIC"
    marker = {"origin": "SYNTHETIC", "dataset": name, "seed": seed, "scale": scale}
    write_atomic(folder / MARKER, json.dumps(marker, sort_keys=True).encode())
    for subject in loader.spec.subjects:
        loader.synthesise(loader.spec, folder, subject, scale, np.random.default_rng([seed, subject]))
    return folder
