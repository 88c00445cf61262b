"""Loading of a dataset: find the raw files, parse them once, memory-map the cached result from then on."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from relief_ray.data.checks import refuse, violations_of_all
from relief_ray.data.config import DataConfig
from relief_ray.data.figures import SensorFigures, measure
from relief_ray.data.formats.dsa import unit_columns, with_units
from relief_ray.data.loader import (
    NULL,
    Codes,
    DatasetSpec,
    Floats,
    Ints,
    Loader,
    Mask,
    Members,
    Recording,
    require_members,
)
from relief_ray.data.registry import get_loader, get_spec
from relief_ray.data.source import MARKER, Source, find_source, narrow, open_source
from relief_ray.data.window_set import open_signal
from relief_ray.plugins.blame import INTACT, called, original, settings_of_torch, with_line
from relief_ray.plugins.load import digests, is_path, modules_of, sources, where_raised
from relief_ray.plugins.reads import AT_IMPORT, Reads, noting
from relief_ray.support.errors import UserCodeError, UserCodeFailed, UserError, listed, shown
from relief_ray.support.files import (
    cache_root,
    crc32_file,
    digest_files,
    disk_errors,
    exclusive,
    folder_atomic,
    page,
    sha256_file,
    sha256_json,
    stamp,
    values_in,
    write_atomic,
)
from relief_ray.support.frozen import numbers_or_text

# Cache of parsed signals: memory-mapped .npy files in folders named by a hash of their origin.
#
# The key hashes the source's bytes, the parser's version and the dataset's description, so that a changed file, parser
# or selection can never be answered with old numbers. Every entry appears whole (fsync, then rename) or not at all.
#
# Its ``meta.json`` is sealed and has two digests of each array. Every process that opens an entry reads each array
# through once and compares its CRC-32 (0.6 ms per MB with reading; a sha256 alone takes 0.9), which finds any single
# changed bit and misses other damage once in 4e9 times. After that the same file (inode, size, time of change) is
# trusted until the process ends. What such a process hands its hosts on the same machine is a path: they map the file
# and share its pages. The sha256 is an array's identity, by which machines compare what they parsed.


PARSER_VERSION = 1
# End of an entry's folder: the form of its files, not their contents, by which versions leave each other's alone.
_FORM = ".5"
SIGNAL, LABELS, BOUTS, FILLED = "signal.npy", "labels.npy", "bouts.npy", "filled.npy"
_META = "meta.json"
_KEY_CHARS = 32
Origin = Literal["real", "SYNTHETIC"]
# Arrays of an entry by file name, as ``Entry`` has them; the signal is (rows, channels) float32.
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One cached dataset; its signal stays on disk."""

    origin: Origin
    """`real` or `SYNTHETIC`."""
    signal_path: Path
    """.npy of (rows, channels) float32 in raw units."""
    labels: Codes
    """(rows,) class index, -1 without a known activity."""
    bouts: Ints
    """(num_bouts, 3) subject position, first row, one past the last."""
    filled: Mask
    """(rows,) whether `parse` filled in a reading."""
    sensors: Sequence[SensorFigures]
    """Figures of every sensor of every person."""
    started: Sequence[str]
    """Programs that a user's loader started."""
    parse_s: float
    """Seconds that parsing took."""
    facts: Mapping[str, Mapping[str, object]]
    """The parser's findings by subject."""
    signal_sha256: str
    """The sha256 of the file at ``signal_path``."""

    def bouts_of(self, position: int) -> Ints:
        """First row and one past the last of a person's bouts: (n, 2)."""
        return self.bouts[self.bouts[:, 0] == position, 1:]

    def signal(self) -> Floats:
        """The memory-mapped signal, read-only."""
        return open_signal(self.signal_path)


class DamagedEntry(UserError):
    """Raised for a cache entry that was changed after it was written; the message names the folder to delete."""


def source_digest(spec: DatasetSpec, source: Source, *, trust_stamps: bool = True) -> str:
    """The sha256 of the raw files; of a folder, of its files' names and digests."""
    files = {str(source.path): source.path}
    if source.path.is_dir():
        with open_source(spec, source) as members:
            files = {name: source.path / name for name in members.names}
    memory = cache_root() / "stamps" / f"{sha256_json([spec.name, str(source.path.resolve())])[:24]}.json"
    digests = digest_files(files, memory) if trust_stamps else {name: sha256_file(path) for name, path in files.items()}
    if source.path.is_dir():
        return sha256_json([sorted(digests.items()), source.synthetic])
    return digests[str(source.path)]


def _identity(spec: DatasetSpec, digest: str) -> dict[str, object]:
    """What a cache entry is made from, without variables of the environment."""
    described = {k: asdict(spec)[k] for k in ("name", "rate_hz", "modalities", "labels", "subjects", "units")}
    if spec.lacks:
        described["lacks"] = {subject: sorted(names) for subject, names in spec.lacks.items()}
    parser = digests(modules_of([spec.name])) or PARSER_VERSION
    return {"source": digest, "parser": parser, "spec": described}


def _asked_path(spec: DatasetSpec, digest: str) -> Path:
    return cache_root() / "parsed" / f"{sha256_json(_identity(spec, digest))[:_KEY_CHARS]}.asked.json"


def _asked_by_loader(spec: DatasetSpec, digest: str) -> list[str]:
    """Variables of the environment that a user's loader asked for when it parsed these files."""
    path = _asked_path(spec, digest)
    return list(json.loads(path.read_bytes())) if is_path(spec.name) and path.exists() else []


def cache_key(spec: DatasetSpec, digest: str) -> str:
    """The sha256 that names a cache entry."""
    asked = {name: os.environ.get(name) for name in _asked_by_loader(spec, digest)}
    return sha256_json(_identity(spec, digest) | ({"environment": asked} if asked else {}))


def entry_folder(spec: DatasetSpec, digest: str) -> Path:
    """Folder of the cache entry for these raw files, whether it exists or not."""
    return _keyed_folder(spec.name, cache_key(spec, digest))


def _keyed_folder(name: str, key: str) -> Path:
    """Folder of the cache entry of that key (``cache_key``), whether it exists or not."""
    return cache_root() / "parsed" / f"{name.replace(':', '.')}-{key[:_KEY_CHARS]}{_FORM}"


def entries(name: str) -> list[Path]:
    """Folders of all entries of a dataset: of any raw files, parser or choice of units."""
    pattern = _keyed_folder(name, "?" * _KEY_CHARS)  # neither names nor import paths have characters of patterns
    return sorted(pattern.parent.glob(pattern.name))


def assemble(spec: DatasetSpec, recordings: Sequence[Recording]) -> Arrays:
    """Put subjects one after the other as one signal, with labels as class indices.

    A sensor that a subject lacks is NaN in its rows, so that nothing takes them for readings.
    """
    firsts = np.cumsum([0, *(len(recording.labels) for recording in recordings)])
    bouts = [
        np.column_stack([np.full(len(rec.bouts), position), rec.bouts + first])
        for position, (rec, first) in enumerate(zip(recordings, firsts, strict=False))
    ]
    return {
        SIGNAL: np.concatenate([_present(spec, rec) for rec in recordings]).astype(np.float32, copy=False),
        LABELS: np.concatenate([_classes(spec, recording.labels) for recording in recordings]),
        BOUTS: np.concatenate(bouts).astype(np.int64, copy=False),
        FILLED: np.concatenate([_filled(spec, recording) for recording in recordings]),
    }


def _classes(spec: DatasetSpec, codes: NDArray[np.integer[Any]]) -> Codes:
    """Class index of each row's code, ``NULL`` for codes that are no class."""
    index = np.full(codes.shape, NULL, np.int16)
    for position, code in enumerate(spec.labels):
        index[codes == code] = position
    return index


def _has(spec: DatasetSpec, recording: Recording) -> Mask:
    """Columns of sensors that its subject has: (channels,)."""
    sensors = spec.sensors_of(recording.subject)
    return np.repeat([name in sensors for name in spec.names], [number for _, number in spec.modalities])


def _present(spec: DatasetSpec, recording: Recording) -> Floats:
    """The signal with NaN in the columns of sensors that its subject lacks."""
    has = _has(spec, recording)
    return recording.signal if has.all() else np.where(has, recording.signal, np.float32(np.nan))


def _filled(spec: DatasetSpec, recording: Recording) -> Mask:
    """Rows in which a reading of a sensor that its subject has was filled in."""
    filled = False if recording.filled is None else recording.filled[:, _has(spec, recording)].any(axis=1)
    return np.broadcast_to(filled, len(recording.labels))


def store(
    spec: DatasetSpec,
    recordings: Sequence[Recording],
    source: Source,
    folder: Path,
    *,
    started: Sequence[str] = (),
    parse_s: float = 0.0,
) -> None:
    """Write the recordings of all subjects as one entry, atomically.

    Args:
        spec: the dataset's description.
        recordings: the subjects', in its order.
        source: where they come from.
        folder: the entry's folder.
        started: programs that parsing started.
        parse_s: seconds that it took.
    """
    arrays, synthetic = assemble(spec, recordings), source.synthetic or any(rec.synthetic for rec in recordings)
    facts = {str(recording.subject): dict(recording.facts) for recording in recordings}
    sensors = [row for recording in recordings for row in measure(spec, recording)]
    origin: Origin = "SYNTHETIC" if synthetic else "real"
    with disk_errors(folder, "write the parsed data"), folder_atomic(folder) as part:
        for name, array in arrays.items():
            np.save(part / name, np.ascontiguousarray(array))
        written = {name: {"sha256": sha256_file(part / name), "crc32": crc32_file(part / name)} for name in arrays}
        meta = {
            "origin": origin,
            "facts": facts,
            "arrays": written,
            "sensors": sensors,
            "started": started,
            "parse_s": parse_s,
        }
        (part / _META).write_bytes(page(json.dumps(meta, sort_keys=True, default=numbers_or_text)))
        if synthetic:
            (part / MARKER).write_text(json.dumps({"origin": origin}))


def read_entry(folder: Path, *, again: bool = False) -> Entry:
    """Open an entry and check its arrays; the signal stays on disk.

    Args:
        folder: the entry's folder.
        again: whether arrays that this process has checked before are checked once more.

    Raises:
        DamagedEntry: a file is missing, cut or changed.
    """
    try:
        meta: dict[str, Any] = values_in((folder / _META).read_bytes())
        written, is_real = meta.pop("arrays"), meta.pop("origin") == "real"
        for name in (SIGNAL, LABELS, BOUTS, FILLED):
            _check(folder / name, written[name]["crc32"], again)
        labels, bouts, filled = (np.load(folder / name, allow_pickle=False) for name in (LABELS, BOUTS, FILLED))
        return Entry(
            **meta,  # sensors, programs, seconds and facts as they are
            origin="real" if is_real else "SYNTHETIC",
            signal_path=folder / SIGNAL,
            labels=labels,
            bouts=bouts,
            filled=filled,
            signal_sha256=written[SIGNAL]["sha256"],
        )
    except DamagedEntry:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:  # also a key that this version does not know
        raise DamagedEntry(f"{folder / _META}: damaged cache entry ({error}); {_fix(folder)}") from None


# Size, time of change and inode of arrays that this process has read through and found whole.
_CHECKED: dict[Path, str] = {}


def _check(path: Path, crc32: int, again: bool) -> None:
    """Read a file through once in the life of this process and compare it with its digest.

    Raises:
        DamagedEntry: it cannot be read, or its bytes are not those that were written.
    """
    try:
        now = stamp(path)
        if _CHECKED.get(path) == now and not again:
            return
        why = "" if crc32_file(path) == crc32 else "its bytes are not those that were written: CRC-32 differs"
    except OSError as error:
        why = str(error)
    if why:
        raise DamagedEntry(f"{path}: damaged cache entry ({why}); {_fix(path.parent)}")
    _CHECKED[path] = now


def _fix(folder: Path) -> str:
    return f"delete the folder {folder}, it is made again from the raw files"


@dataclass(frozen=True, kw_only=True)
class Dataset(Entry):
    """A cached dataset, its description and where it comes from."""

    spec: DatasetSpec
    """The dataset's facts, with the chosen body units."""
    source: Source
    """Place of the raw files."""
    digest: str = ""
    """The sha256 over raw files, parser and description: what is parsed here."""
    load_s: float = 0.0
    """Seconds that loading took."""


def load_dataset(name: str, root: str | Path | None = None, units: tuple[str, ...] = ()) -> Dataset:
    """The dataset of that name below `root` (None: RELIEF_DATA, then the user's cache), parsed at most once.

    `units` picks body units of dsa. Raises UserError where files are missing or damaged, or where a user's loader
    returns what its description does not say, or where the parsed data in the cache are damaged.
    """
    start = time.monotonic()
    loader = get_loader(name)
    spec, source = with_units(loader.spec, units), locate(loader, root)
    digest = source_digest(loader.spec, source)
    entry = read_entry(_parsed(spec, source, digest))
    key, load_s = cache_key(spec, digest), time.monotonic() - start
    return Dataset(**vars(entry), spec=spec, source=source, digest=key, load_s=load_s)


def open_dataset(config: DataConfig) -> Dataset:
    """The dataset of a configuration, with its units and its length of windows."""
    return replace(load_dataset(config.name, units=config.units), spec=config.spec())


def locate(loader: Loader, root: str | Path | None = None) -> Source:
    """The raw files below `root`; for a user's dataset, the one folder that holds all of its files.

    Raises:
        UserError: there are none, or several folders hold them.
    """
    spec = loader.spec
    if not is_path(spec.name):
        return find_source(spec, root, expected_ends(loader))
    with noting() as reads:
        expected = expected_ends(loader)
        source = narrow(spec, find_source(spec, root, expected), expected)
    for what, each in (("files()", reads), ("the import of its module", _at_import(spec))):
        if each.files:
            with open_source(spec, source) as members:
                _refuse_opened(spec, what, each, members, source.path)
    return source


def _at_import(spec: DatasetSpec) -> Reads:
    """What the loader's file has read while it was imported, or one that it imports from the same folder."""
    return AT_IMPORT.by({source.origin for source in sources(modules_of([spec.name]))})


def _refuse_opened(spec: DatasetSpec, what: str, reads: Reads, members: Members, path: Path) -> None:
    """Refuse a user's loader that opened a file which is none of the source's members.

    Raises:
        UserCodeError: it is named, and what opened it.
    """
    own = {Path(os.path.realpath(path / name)) for name in ("", *members.names)}
    near = Path(os.path.realpath(path if path.is_dir() else path.parent))
    if opened := [file for file in reads.opened(near) if file not in own]:
        code = {Path(os.path.realpath(source.origin)) for source in sources(modules_of([spec.name]))}
        opened = [file for file in opened if file not in code and Path(original(str(file))) not in code]
    if opened:
        raise UserCodeError(
            f"{spec.name}: {what} opens {listed(opened)}, expected files that files() names: a change in another one "
            "would go unnoticed, since parsed data are kept. Let `member` match it and files() name it, for every "
            "person where all share it, and let parse() read it with members.read(name); what is code belongs beside "
            "the loader, which imports it by its name, e.g. `import tables.of_mine`"
        )


def expected_ends(loader: Loader) -> list[str]:
    """Ends of the names of all raw files.

    Raises:
        UserCodeError: ``files`` of a user's loader fails, or returns something else.
    """
    names: list[str] = []
    for subject in loader.spec.subjects:
        try:
            given: object = called(loader.files, "files()", loader.spec, subject)
            ends = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else []
        except Exception as error:
            raise _fault_in(loader.spec, "files()", error) from error
        if not ends or not all(isinstance(end, str) for end in ends):
            text = f"files() returned {shown(given)} for subject {subject}, expected a list of the ends of files' names"
            raise UserCodeError(with_line(loader.files, f"{loader.spec.name}: {text}, e.g. ['subject{subject}.csv']"))
        names += ends
    return names


def _fault_in(spec: DatasetSpec, what: str, error: BaseException, fix: str = "; mend the loader") -> BaseException:
    """Turn an error of a user's function into a UserCodeError with its line; return other errors unchanged."""
    if isinstance(error, UserError) or not is_path(spec.name):
        return error
    if isinstance(error, UserCodeFailed):
        return UserCodeError(f"{spec.name}: {str(error).removesuffix(INTACT)}")
    return UserCodeError(f"{spec.name}: {what} fails with {type(error).__name__}: {error}{where_raised(error)}{fix}")


def _parsed(spec: DatasetSpec, source: Source, digest: str) -> Path:
    """The folder of the cache entry; a missing one is made by one process, while others on this machine wait."""
    folder = entry_folder(spec, digest)
    if not folder.exists():
        with exclusive(cache_root() / "locks" / folder.name):
            if not folder.exists():
                _fill(spec, source, digest)
    return entry_folder(spec, digest)  # as parsing has shown what it depends on


def _fill(spec: DatasetSpec, source: Source, digest: str) -> None:
    """Make the missing cache entry: parse everything, or cut units out of the full dataset that is parsed first."""
    full_spec = get_spec(spec.name)
    if spec.units == full_spec.units:
        began = time.monotonic()
        with noting() as reads:
            recordings = parse_source(spec, source)
        parse_s = time.monotonic() - began
        imported = _at_import(spec)
        known = _asked_by_loader(spec, digest)
        if asked := {*reads.asked(), *imported.asked()} - {*known}:
            write_atomic(_asked_path(spec, digest), json.dumps(sorted({*asked, *known})).encode())
        started = sorted({*reads.started(), *imported.started()})
        store(spec, recordings, source, entry_folder(spec, digest), started=started, parse_s=parse_s)
        return
    full = read_entry(_parsed(full_spec, source, digest))
    recordings = []
    for position, subject in enumerate(spec.subjects):
        bouts = full.bouts_of(position)
        rows = slice(bouts.min(), bouts.max())
        chosen = full.signal()[rows, unit_columns(spec.units)]
        codes = np.array(spec.labels, np.int16)[full.labels[rows]]
        recordings.append(Recording(subject=subject, signal=chosen, labels=codes, bouts=bouts - rows.start))
    store(spec, recordings, replace(source, synthetic=full.origin != "real"), entry_folder(spec, digest))


def parse_source(spec: DatasetSpec, source: Source) -> list[Recording]:
    """All subjects, parsed one after the other.

    Raises:
        UserError: files are missing or damaged, or a user's loader returns what its description does not say.
    """
    loader, before = get_loader(spec.name), settings_of_torch()
    with open_source(spec, source) as members:
        require_members(spec, members.names, expected_ends(loader), source.path)
        recordings = [parse_subject(loader, members, source.path, subject) for subject in spec.subjects]
    after = settings_of_torch()
    for what, value in before.items():
        if after[what] != value:
            raise UserCodeError(
                f"{spec.name}: parse() leaves {what} at {shown(after[what])}, expected {shown(value)} as before: a run "
                "that parses would be another experiment than one that finds the parsed data; let parse() put it back"
            )
    if is_path(spec.name):
        refuse(spec.name, violations_of_all(spec, dict(zip(spec.subjects, recordings, strict=True))))
    return recordings


def parse_subject(loader: Loader, members: Members, path: Path, subject: int) -> Recording:
    """One subject's recording; an error of a user's `parse` is a UserError that names its line, and the file."""
    if not is_path(loader.spec.name):
        return loader.parse(loader.spec, members, path, subject)
    names, step = list[str](), f"parse() of subject {subject}"

    def read(name: str) -> bytes:
        names.append(name)
        return members.read(name)

    try:
        with noting() as reads:
            recording = called(loader.parse, step, loader.spec, replace(members, read=read), path, subject)
    except UserError:
        raise
    except Exception as error:
        fix = f"; it had read {path / names[-1]}: mend that file or the loader" if names else "; mend the loader"
        raise _fault_in(loader.spec, step, error, fix) from error
    _refuse_opened(loader.spec, step, reads, members, path)
    number: object = getattr(recording, "subject", None)
    is_numpys = isinstance(recording, Recording) and isinstance(number, np.integer)
    return replace(recording, subject=int(recording.subject)) if is_numpys else recording


# Seconds that a person's parse may take to be repeated.
_LONGEST_PARSE_S = 5.0


def parsed_anew(name: str, limit_s: float) -> tuple[str, list[str]]:
    """Parse people of a user's dataset anew, for about ``limit_s``, and compare them with the cache.

    One is parsed however long that took, up to ``_LONGEST_PARSE_S``. Returns what differs (empty: nothing), and
    variables of the environment that the loader asks for.
    """
    loader = get_loader(name)
    spec, source = loader.spec, locate(loader)
    digest = source_digest(spec, source)
    entry, began = read_entry(entry_folder(spec, digest)), time.monotonic()
    recordings: list[Recording] = []
    with open_source(spec, source) as members:
        # From the last one: where the order counts, each has another place in it than when the cache was filled.
        for subject in reversed(spec.subjects) if entry.parse_s / len(spec.subjects) <= _LONGEST_PARSE_S else ():
            recordings.insert(0, parse_subject(loader, members, source.path, subject))
            if time.monotonic() - began > limit_s:
                break
    other = differing(spec, entry, recordings) if recordings else []
    fault = f"parse() does not return what the run has read ({listed(other)})" if other else ""
    return fault, _asked_by_loader(spec, digest)


def differing(spec: DatasetSpec, entry: Entry, recordings: Sequence[Recording]) -> list[str]:
    """Files of an entry whose last rows are not what parsing its last people has returned."""
    fresh = {name: np.ascontiguousarray(array) for name, array in assemble(spec, recordings).items()}
    person, row = len(spec.subjects) - len(recordings), len(entry.labels) - len(fresh[LABELS])
    bouts = entry.bouts - np.array([person, row, row])
    cached: Arrays = {SIGNAL: entry.signal(), LABELS: entry.labels, BOUTS: bouts, FILLED: entry.filled}
    last = {
        name: np.ascontiguousarray(array[max(0, len(array) - len(fresh[name])) :]) for name, array in cached.items()
    }
    # Bit by bit: NaN equals NaN, and -0 is not 0.
    return [
        name for name, array in fresh.items() if not np.array_equal(last[name].view(np.uint8), array.view(np.uint8))
    ]


# A parsed dataset by name: what another machine needs to find the same values among its own files.
#
# A path is worth nothing on another machine. A name, the data settings, the key of the cache entry and the digest of
# the parsed signal are: every machine finds or parses the dataset itself and compares.


@dataclass(frozen=True, kw_only=True, slots=True)
class DataReference:
    """A parsed dataset by name.

    Attributes:
        name: a built-in dataset, or the import path of a user's ``Loader``.
        key: name of the cache entry: sha256 over raw files, parser and description (``cache_key``).
        signal_sha256: sha256 of the parsed signal's file.
        units: body units of dsa that take part; empty: all.
        settings: the data settings that decide which windows a client has (``DataConfig.deciding``).
    """

    name: str
    key: str
    signal_sha256: str
    units: tuple[str, ...] = ()
    settings: Mapping[str, JsonValue] = field(default_factory=dict)


class SignalAbsent(UserError):
    """The dataset is not on this machine; the message says where it was looked for."""


def find_signal(reference: DataReference, machine: str) -> Path:
    """The parsed signal among this machine's own files: its cache, else parsed once from the files found here.

    Nothing is fetched. Opening the entry checks its bytes, so the digest in it is compared. ``machine`` names
    this machine in messages.

    Raises:
        SignalAbsent: there is no such dataset here, or it cannot be read or cached.
        UserError: there is, but its signal has another digest, both are shown; or its cache entry is damaged.
    """
    folder = _keyed_folder(reference.name, reference.key)
    try:
        here = read_entry(folder) if folder.exists() else load_dataset(reference.name, units=reference.units)
    except DamagedEntry as error:
        raise UserError(f"dataset {reference.name!r} on {machine}: {error}") from error
    except (UserError, OSError) as error:
        raise SignalAbsent(str(error)) from error
    path, digest = here.signal_path, here.signal_sha256
    if digest != reference.signal_sha256:
        raise UserError(
            f"dataset {reference.name!r} on {machine}: its parsed signal {path} has the sha256 {digest[:12]}, expected "
            f"the driver's {reference.signal_sha256[:12]}; delete {path.parent} to parse it anew, bring the same raw "
            "files there, or send rows instead: runtime.data=ship"
        )
    return path
