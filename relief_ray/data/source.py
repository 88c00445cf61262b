"""Raw files of a dataset: found below a root, in a folder, a zip or a zip inside a zip, and read as they lie.

Zip archives are not trusted: paths that leave the archive's folder, links and zip bombs are refused before anything is
written.
"""

import heapq
import os
import re
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath

from relief_ray.data.loader import DatasetSpec, Members
from relief_ray.plugins.load import is_path
from relief_ray.support.errors import UserError, clipped, counted
from relief_ray.support.files import cache_root, crc32_file, disk_errors, stamp

_DAMAGE = (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, NotImplementedError, RuntimeError)

_MAX_RATIO = 100

MAX_BYTES = 5 * 1024**3

# Of one member, which is read as a whole: the longest recording of the known data sets has 0.4 GiB, an inner zip 0.7.
MAX_MEMBER_BYTES = 2 * 1024**3
_MAX_PACKED_WELL = MAX_MEMBER_BYTES // 4

MAX_MEMBERS = 200_000


def open_zip(path: Path, shown: str = "") -> zipfile.ZipFile:
    """Open a zip for reading; a truncated or damaged one is a UserError naming the file and its size."""
    try:
        return zipfile.ZipFile(path)
    except _DAMAGE as error:
        size = path.stat().st_size if path.exists() else 0
        raise UserError(
            f"{shown or path}: not a whole zip archive ({error}; {size} bytes on disk); "
            "the download was cut short or is another file: fetch it again"
        ) from None


def check_members(archive: zipfile.ZipFile, path: Path) -> None:
    """Refuse absolute or climbing names, links, and bombs.

    Bombs: over 5 GiB unpacked at a ratio over 100, a member over 2 GiB (0.5 GiB at such a ratio), too many members.
    """
    members = archive.infolist()
    if len(members) > MAX_MEMBERS:
        raise UserError(
            f"{path}: {len(members)} members, expected at most {MAX_MEMBERS}; archive refused as a zip bomb"
        )
    for info in members:
        _check_size(info, path)
        name = PurePosixPath(info.filename.replace("\\", "/"))
        if name.is_absolute() or ".." in name.parts or (name.parts and ":" in name.parts[0]):
            raise UserError(f"{path}: member {info.filename!r} points outside the archive's folder; archive refused")
        if stat.S_ISLNK(info.external_attr >> 16):
            raise UserError(f"{path}: member {info.filename!r} is a link, expected plain files; archive refused")
    unpacked = sum(info.file_size for info in members)
    packed = max(1, sum(info.compress_size for info in members))
    if unpacked > MAX_BYTES and unpacked > _MAX_RATIO * packed:
        raise UserError(
            f"{path}: {packed} bytes claim to unpack to {unpacked} (limits: ratio {_MAX_RATIO}, {MAX_BYTES} bytes); "
            "archive refused as a zip bomb"
        )


def _check_size(info: zipfile.ZipInfo, path: Path) -> None:
    """Refuse a member that is too large to be read as a whole.

    Raises:
        UserError: its size is named, and the limit.
    """
    is_packed_well = info.file_size > _MAX_RATIO * max(1, info.compress_size)
    limit = _MAX_PACKED_WELL if is_packed_well else MAX_MEMBER_BYTES
    if info.file_size > limit:
        raise UserError(
            f"{path}: member {info.filename!r} has {info.compress_size} bytes that claim to unpack to "
            f"{info.file_size}, expected at most {limit}; archive refused as a zip bomb"
        )


MARKER = "SYNTHETIC.json"

ASSETS = Path(__file__).parent / "assets"

_MAX_DEPTH = 5
# Names that a message lists of what lies in a folder.
_MOST_NAMES = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A dataset's raw files.

    Attributes:
        path: a folder or a zip.
        inner: name of the zip inside the zip, where there is one.
        synthetic: whether a marker says that they are made up.
        only: names of the files in the folder, where others in it match as well; empty: all that match.
    """

    path: Path
    inner: str = ""
    synthetic: bool = False
    only: tuple[str, ...] = ()


def search_roots(root: str | Path | None) -> tuple[Path, ...]:
    """The folders looked in: `root` alone if given, else RELIEF_DATA (if set) and the cache's `datasets`."""
    if root is not None:
        return (Path(root).expanduser(),)
    data_root = os.environ.get("RELIEF_DATA")
    cached = cache_root() / "datasets"
    return (Path(data_root).expanduser(), cached) if data_root else (cached,)


class DataMissing(UserError):
    """No file of a dataset is where it is looked for."""


def find_source(spec: DatasetSpec, root: str | Path | None = None, expected: Sequence[str] = ()) -> Source:
    """The raw files of `spec` below the roots, real before synthetic; UserError says where it looked and the fix.

    ``expected``: the ends of all its files' names. With them, other places of that root are looked at as well: one that
    has all is taken before one that lacks some, and two that have all have to hold the same bytes.
    """
    if spec.packaged:
        return Source(path=ASSETS / spec.packaged)
    roots = search_roots(root)
    sources = [(place, source) for place in roots for source in _candidates(spec, place)]
    if sources:
        place, best = min(sources, key=lambda each: each[1].synthetic)
        likely = [source for where, source in sources if where == place and source.synthetic == best.synthetic]
        return best if best.inner or not expected else _whole(spec, place, likely, expected)
    if is_path(spec.name):
        raise DataMissing(
            f"dataset {spec.name!r} not found; looked for files like {as_written(spec.member)} (`member` of the "
            f"loader) below: {_looked(roots)}. Fix: set RELIEF_DATA to the folder that holds them, or mend `member`"
        )
    raise DataMissing(
        f"dataset {spec.name!r} not found; looked for files like {as_written(spec.member)}, in folders and zips named "
        f"like {'|'.join(spec.hints)}, below: {_looked(roots)}. Fix: `relief-ray data fetch {spec.name}`, or with a "
        f"download of your own `relief-ray data fetch {spec.name} --from FILE|DIR`, or set RELIEF_DATA to the folder "
        f"that holds it, or make a stand-in with `relief-ray data synth {spec.name}`"
    )


def as_written(pattern: str) -> str:
    """A regular expression as its author wrote it: quoted, its backslashes not doubled."""
    return f"'{clipped(pattern)}'"


def some_of(names: Iterable[str]) -> str:
    """The first of many names, ``a.csv, b.csv, ..``; ``nothing`` if there are no names."""
    first = heapq.nsmallest(_MOST_NAMES + 1, names)
    return clipped(", ".join([*first[:_MOST_NAMES], *([".."] if len(first) > _MOST_NAMES else [])])) or "nothing"


def _looked(roots: Sequence[Path]) -> str:
    """The places that were looked in, and what lies there instead."""
    return ", ".join(f"{place} ({_state_of(place)})" for place in roots)


def _state_of(place: Path) -> str:
    if not place.is_dir():
        return "exists" if place.exists() else "does not exist"
    names = (f"{entry.name}/" if entry.is_dir() else entry.name for entry in place.iterdir())
    return f"found there: {some_of(name for name in names if not name.startswith('.'))}"


def narrow(spec: DatasetSpec, source: Source, expected: Sequence[str]) -> Source:
    """The source, limited to the one folder that holds every `expected` file where other folders have some as well.

    It is synthetic where a marker lies beside or above these files; one of another dataset does not count.

    Raises:
        UserError: no folder holds all of them, or several do; each is named with its number of files.
    """
    if not source.path.is_dir():
        return source
    names = _folder_members(spec, source.path)
    holders = _holders(names, expected)
    complete = [folder for folder, ends in holders.items() if len(ends) == len(set(expected))]
    if all(sum(end in ends for ends in holders.values()) == 1 for end in expected):
        return replace(source, synthetic=_is_marked(source, holders))
    if len(complete) == 1:
        only = tuple(sorted({complete[0] + end for end in expected}))
        return replace(source, only=only, synthetic=_is_marked(source, complete))
    held = ", ".join(
        f"{source.path / f} ({len(e)} of {len(set(expected))} files)" for f, e in sorted(holders.items())[:5]
    )
    found = held or f"none of them in {source.path}, but {some_of(names)}"
    lacking, fix = _lacking(spec, source.path, expected, holders)
    raise UserError(
        f"dataset {spec.name!r}: {'several folders hold' if complete else 'no folder holds'} all of its "
        f"{len(set(expected))} files ({expected[0]}, ..); found {found}{lacking}. "
        f"Fix: {fix}set RELIEF_DATA to the folder that holds them, or give `member`, `hints` or `files` of the loader "
        "names that no other dataset has"
    )


def _holders(names: Iterable[str], expected: Sequence[str]) -> dict[str, set[str]]:
    """The expected ends in each folder below a source, by the folder's name with its slash."""
    wanted, holders = set(expected), dict[str, set[str]]()
    lengths = {end.count("/") + 1 for end in wanted}
    for name in names:
        for end in wanted & {"/".join(name.split("/")[-length:]) for length in lengths}:
            holders.setdefault(name.removesuffix(end), set()).add(end)
    return holders


def _whole(spec: DatasetSpec, root: Path, sources: Sequence[Source], expected: Sequence[str]) -> Source:
    """The first source with a folder that holds every expected file, else the first; inner zips are not looked into.

    Raises:
        UserError: that of another source holds other bytes; both are named.
    """
    ends, copies = sorted(set(expected)), list[tuple[Source, Path, dict[str, int]]]()
    # The root counts with the files that lie directly in it; its other folders are not searched.
    is_bare = all((root / end).is_file() for end in ends)
    likely = [source for source in sources if source.path != root or is_bare]
    if len(likely) < 2:
        return sources[0]
    for source in likely:
        crcs = {} if source.inner else _crcs(spec, source, ends)
        whole = [folder for folder, held in _holders(crcs, ends).items() if len(held) == len(ends)]
        folders = [folder for folder in whole if source.path != root or not folder][:1]
        copies += [(source, source.path / folder, {end: crcs[folder + end] for end in ends}) for folder in folders]
    for _, place, crcs in copies[1:]:
        if other := [end for end in ends if crcs[end] != copies[0][2][end]]:
            raise UserError(
                f"dataset {spec.name!r}: {copies[0][1]} and {place} each hold all of its {counted(len(ends), 'file')}, "
                f"but {some_of(other)} with other bytes, expected one copy; move the other out of {root}"
            )
    return copies[0][0] if copies else sources[0]


def _crcs(spec: DatasetSpec, source: Source, ends: Sequence[str]) -> dict[str, int]:
    """CRC-32 by name of a source's files with these ends; a zip has them in its directory."""
    if not source.path.is_dir():
        return _in_zip(source.path, stamp(source.path))
    with _damage(f"of {spec.name!r}", source.path):
        held = _holders(_folder_members(spec, source.path), ends)
        paths = {folder + end: source.path / folder / end for folder in held for end in held[folder]}
        return {name: _crc32(path, stamp(path)) for name, path in paths.items()}


@lru_cache(maxsize=1 << 12)
def _crc32(path: Path, stamped: str) -> int:
    """Of a file with this stamp: a process that computes many cells reads it once."""
    return crc32_file(path)


def _lacking(
    spec: DatasetSpec, path: Path, expected: Sequence[str], holders: Mapping[str, Collection[str]]
) -> tuple[str, str]:
    """What the folder with the most of the expected files lacks, and the fix; empty where no folder has one, or all."""
    most = max(holders, key=lambda folder: len(holders[folder]), default="")
    lacking = [end for end in dict.fromkeys(expected) if end not in holders.get(most, expected)]
    unlike = [end for end in lacking if (path / most / end).is_file()]
    if unlike:
        return f"; in it, but not like {as_written(spec.member)}: {some_of(unlike)}", "mend `member` of the loader; "
    if lacking:
        return f"; missing: {some_of(lacking)}", "add what is missing, or leave its person out of `subjects`; "
    return "", ""


def _is_marked(source: Source, folders: Iterable[str]) -> bool:
    """Whether a marker lies in one of the folders below the source or above it, within the source."""
    marks = _marked(source.path)
    return any(folder.startswith(mark) for folder in folders for mark in marks)


def _marked(folder: Path) -> list[str]:
    """Folders below this one, with their slash (itself: empty), that have a marker."""
    return [name.removesuffix(MARKER) for name in _walk(folder, re.compile(rf"(^|/){re.escape(MARKER)}$"))]


def _candidates(spec: DatasetSpec, root: Path) -> Iterator[Source]:
    """Every place in `root` (itself first) that holds at least one raw file of `spec`."""
    if not root.exists():
        return
    entries = sorted(root.iterdir()) if root.is_dir() else []
    hinted = [entry for entry in entries if any(hint in entry.name.lower() for hint in spec.hints)]
    # A root that only contains other datasets' folders is not itself a candidate.
    is_shared = spec.own_folder and root.name != spec.hints[0]
    inside = [file for entry in hinted if entry.is_dir() for file in sorted(entry.glob("*.zip"))]
    for place in (*hinted, *inside, root):
        if place.is_file() and place.suffix == ".zip":
            yield from _zip_source(spec, place)
        elif place.is_dir() and not (place == root and is_shared) and _folder_members(spec, place):
            yield Source(path=place, synthetic=bool(_marked(place)))


def _zip_source(spec: DatasetSpec, path: Path) -> Iterator[Source]:
    """The zip itself, or the first zip inside it that holds the files."""
    names, member = _in_zip(path, stamp(path)), re.compile(spec.member)
    marked = any(name.rpartition("/")[2] == MARKER for name in names)
    if any(map(member.search, names)):
        yield Source(path=path, synthetic=marked)
    elif inner := next((name for name in names if name.lower().endswith(".zip")), None):
        yield Source(path=path, inner=inner, synthetic=marked)


@lru_cache(maxsize=16)
def _in_zip(path: Path, stamped: str) -> dict[str, int]:
    """CRC-32 by name in a zip with this stamp: a process that computes many cells reads its directory once."""
    with open_zip(path) as archive:
        return {info.filename: info.CRC for info in archive.infolist()}


def _walk(folder: Path, pattern: re.Pattern[str]) -> Iterator[str]:
    """Relative names below `folder` that match, at most `_MAX_DEPTH` deep, links to folders not followed."""
    for place, folders, files in os.walk(folder):
        relative = Path(place).relative_to(folder)
        if len(relative.parts) >= _MAX_DEPTH:
            folders.clear()
        for file in files:
            name = (relative / file).as_posix()
            if pattern.search(name):
                yield name


def _folder_members(spec: DatasetSpec, folder: Path) -> tuple[str, ...]:
    """Matching names, sorted."""
    return tuple(sorted(_walk(folder, re.compile(spec.member))))


@contextmanager
def open_source(spec: DatasetSpec, source: Source) -> Iterator[Members]:
    """The source's raw files, opened; an inner zip is unpacked to a temporary file for as long as it is read."""
    if source.path.is_dir():
        names = source.only or _folder_members(spec, source.path)
        yield Members(names=names, read=lambda name: (source.path / name).read_bytes())
        return
    if source.path.suffix == ".npz":
        yield Members(names=(source.path.name,), read=lambda _: source.path.read_bytes())
        return
    with ExitStack() as stack:
        archive = stack.enter_context(open_zip(source.path))
        if source.inner:
            archive = _inner_zip(stack, archive, source)
        check_members(archive, source.path)
        names = tuple(sorted(name for name in archive.namelist() if re.search(spec.member, name)))
        yield Members(names=names, read=lambda name: _read(archive, name, source.path))


def _inner_zip(stack: ExitStack, archive: zipfile.ZipFile, source: Source) -> zipfile.ZipFile:
    check_members(archive, source.path)
    with disk_errors(Path(tempfile.gettempdir()), f"unpack {source.path}!{source.inner} there (TMPDIR)"):
        copy = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="relief-ray-")), "inner.zip")
        with copy.open("wb") as out:
            for piece in _pieces(archive, source.inner, source.path):
                out.write(piece)
    return stack.enter_context(open_zip(copy, shown=f"{source.path}!{source.inner}"))


def _pieces(archive: zipfile.ZipFile, name: str, path: Path) -> Iterator[bytes]:
    """A member's bytes, piece by piece."""
    with _damage(name, path), archive.open(name) as member:
        while piece := member.read(1 << 20):
            yield piece


def _read(archive: zipfile.ZipFile, name: str, path: Path) -> bytes:
    """A member's bytes; more than it claims is not unpacked, as ``archive.read`` would to cut it off then."""
    with _damage(name, path), archive.open(name) as member:
        return member.read(archive.getinfo(name).file_size + 1)


@contextmanager
def _damage(name: str, path: Path) -> Iterator[None]:
    """Turn what a damaged member raises (another CRC or size, say) into a ``UserError`` that names it."""
    try:
        yield
    except _DAMAGE as error:
        raise UserError(f"{path}, member {name}: {error}; the archive is damaged: fetch it again") from None
