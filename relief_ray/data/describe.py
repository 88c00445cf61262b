"""Reports on a dataset's content, JSON-able, for the command line and the run record."""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

from relief_ray.data.checks import structure
from relief_ray.data.config import DataConfig
from relief_ray.data.dataset import (
    BOUTS,
    LABELS,
    SIGNAL,
    Arrays,
    DamagedEntry,
    Dataset,
    assemble,
    entries,
    entry_folder,
    locate,
    parse_source,
    read_entry,
    source_digest,
)
from relief_ray.data.federated_data import Coverage, federate, num_clients
from relief_ray.data.loader import DatasetSpec, Floats, Recording
from relief_ray.data.partition import available, chosen_positions, held_out
from relief_ray.data.registry import DATASETS, get_loader, get_spec
from relief_ray.data.source import Source, find_source, open_source
from relief_ray.plugins.load import is_path
from relief_ray.support.errors import UserError, listed, several
from relief_ray.support.files import sha256_file

# Oddities of a dataset that no rule forbids, in words: what `data describe`, a run's screen and its record warn of.


# A class with less data than so many windows side by side is too small to be learned or tested.
_FEW_WINDOWS = 10
# Rows that are read at once.
_CHUNK = 1 << 16
# Share of missing readings from which filling them in decides what a model sees.
_MANY_GAPS = 0.05


def data_warnings(dataset: Dataset, config: DataConfig, coverage: Coverage) -> tuple[str, ...]:
    """Sentences on channels, rows, classes, subjects and clients that may not be as their owner thinks.

    ``coverage``: windows by client and class, as the configuration cuts them. Empty where nothing is odd.
    """
    seconds = activity_s(dataset)
    recorded = [name for name, all_s in zip(dataset.spec.classes, seconds.sum(0), strict=True) if all_s]
    return (
        *_of_channels(dataset),
        *_of_people(dataset, config),
        *_of_classes(dataset, seconds),
        *without_windows(coverage, recorded),
        *_of_clients(config, coverage),
    )


def activity_s(dataset: Dataset) -> NDArray[np.float64]:
    """Seconds of data by subject and class: (S, K), rows outside of bouts left out."""
    spec = dataset.spec
    rows = np.zeros((len(spec.subjects), len(spec.classes)))
    for subject, start, stop in dataset.bouts:
        labels = dataset.labels[start:stop]
        rows[subject] += np.bincount(labels[labels >= 0], minlength=len(spec.classes))
    return rows / spec.rate_hz


def _of_channels(dataset: Dataset) -> Iterator[str]:
    """Channels that have one value in all rows, then those that move for some people but not for one."""
    spec, signal = dataset.spec, dataset.signal()
    everywhere = _still(dataset.signal_path, dataset.signal_sha256)
    for name, first, stop in spec.columns():
        for column, value in everywhere.items():
            if first <= column < stop:
                yield f"{name}: column {column} is {value:g} in all {len(dataset.labels)} rows"
    for position, subject in enumerate(spec.subjects):
        values = _still_in(signal, [(start, stop) for who, start, stop in dataset.bouts.tolist() if who == position])
        for name, first, stop in spec.columns():
            columns = [column for column in values if first <= column < stop and column not in everywhere]
            if columns:
                which = ", ".join(f"column {column} is {values[column]:g}" for column in columns)
                remedy = f"; if that person has no {name}, say so in its DatasetSpec: lacks={{{subject}: ({name!r},)}}"
                whole = f"{name} of subject {subject}: {which} in all its bouts"
                yield whole + remedy if is_path(spec.name) else whole


@lru_cache(maxsize=16)
def _still(signal_path: Path, sha256: str) -> Mapping[int, float]:
    """Columns of a signal that never change, with their value; read once for all runs of a process."""
    signal = np.load(signal_path, mmap_mode="r", allow_pickle=False)
    return _still_in(signal, [(first, first + _CHUNK) for first in range(0, len(signal), _CHUNK)])


def _still_in(signal: Floats, bouts: Sequence[tuple[int, int]]) -> dict[int, float]:
    """Columns that never change in these bouts, with their value; a sensor that somebody lacks (NaN) is none."""
    if not bouts:
        return {}
    value = signal[bouts[0][0]]
    columns = np.flatnonzero(~np.isnan(value))
    for start, stop in bouts:
        columns = columns[(signal[start:stop, columns] == value[columns]).all(axis=0)]
        if not len(columns):
            break
    return {int(column): float(value[column]) for column in columns}


def _of_people(dataset: Dataset, config: DataConfig) -> Iterator[str]:
    """People who are tested without a sensor, or whose readings were mostly filled in; rows that no window can hold."""
    spec, chosen = dataset.spec, chosen_positions(config)
    for position in held_out(config, chosen) or chosen:
        subject = spec.subjects[position]
        if lacks := spec.lacks.get(subject):
            yield f"subject {subject} lacks {listed(lacks)}: its test windows count, and are read with that missing"
    known = {int(subject): facts.get("nan_share") for subject, facts in dataset.facts.items()}
    filled = {s: share for s, share in known.items() if isinstance(share, float) and share > _MANY_GAPS}
    if filled:
        yield f"{several('subject', filled)}: up to {max(filled.values()):.0%} of the readings were missing"
    in_bout = np.zeros(len(dataset.labels), bool)
    for _, start, stop in dataset.bouts:
        in_bout[start:stop] = True
    if outside := int(((dataset.labels >= 0) & ~in_bout).sum()):
        yield f"{outside} of {len(dataset.labels)} rows have a class but lie in no bout"


def null_rows(dataset: Dataset) -> str:
    """Sentence on the rows of ``null_labels``, which the description itself leaves out; empty where there are none."""
    unlabelled = int((dataset.labels < 0).sum())
    if not unlabelled:
        return ""
    codes = several("code", dataset.spec.null_labels) if dataset.spec.null_labels else "a code"
    remedy = "; where that is a class, list it in labels and take it out of null_labels"
    share = f"{unlabelled:,} of {len(dataset.labels):,} rows"
    said = f"{share} have {codes}, no activity (null_labels): no window is labelled with it"
    return said + (remedy if is_path(dataset.spec.name) else "")


def _of_classes(dataset: Dataset, seconds: NDArray[np.float64]) -> Iterator[str]:
    """Classes without data, or with little, then those that some subjects have data of and others none."""
    spec, seen = dataset.spec, set(np.unique(dataset.labels).tolist())
    for i, (name, code, all_s) in enumerate(zip(spec.classes, spec.labels, seconds.sum(0).tolist(), strict=True)):
        if not all_s:
            yield f"class {name!r} (code {code}) has no row in any {'bout' if i in seen else 'file'}"
        elif all_s < _FEW_WINDOWS * spec.window_s:
            yield f"class {name!r} has {all_s:.0f} s of data in all, fewer than {_FEW_WINDOWS} windows"
    lacking = {
        name: [subject for subject, own_s in zip(spec.subjects, column, strict=True) if not own_s]
        for name, column in zip(spec.classes, seconds.T, strict=True)
        if column.any() and not column.all()
    }
    if lacking:
        yield "no data of " + "; of ".join(f"{name} from {several('subject', who)}" for name, who in lacking.items())


def without_windows(coverage: Coverage, classes: Collection[str]) -> list[str]:
    """Those of these classes that nobody trains on, and those that nobody is tested on."""
    return [
        f"no {part} window of {listed(lacking)}"
        for part, counts in (("training", coverage["train"]), ("test", coverage["test"]))
        if (lacking := [n for n, count in zip(coverage["classes"], counts, strict=True) if not count and n in classes])
    ]


def _of_clients(config: DataConfig, coverage: Coverage) -> Iterator[str]:
    """Clients that train on one class; where labels are skewed on purpose that is no news."""
    if (alone := coverage["single_class_clients"]) and config.partition != "dirichlet":
        yield f"{len(alone)} of {len(coverage['clients'])} clients have training windows of one class only"


# Verification of a dataset: sha256 digests against the packaged lists, and the structure of the parsed recordings.


FileCheck = Literal["known", "differs", "unlisted"]

_ASSETS = Path(__file__).parent / "assets"


def known_digests(name: str) -> dict[str, str]:
    """File name (as the list gives it) to sha256; empty where no list is known."""
    path = _ASSETS / f"{name}.sha256"
    if not path.exists():
        return {}
    lines = (line for line in path.read_text().splitlines() if line and not line.startswith("#"))
    return {file: digest for digest, file in (line.split(maxsplit=1) for line in lines)}


def digests(spec: DatasetSpec, source: Source) -> dict[str, str]:
    """The sha256 of the source's files by the list's names: of each member, or of the complete archive."""
    listed = known_digests(spec.name)
    archive = next((name for name in listed if name.endswith((".zip", ".npz"))), None)
    if archive is not None and source.path.is_file():
        return {archive: sha256_file(source.path)}
    with open_source(spec, source) as members:
        names = {name: next((end for end in listed if name.endswith(end)), name) for name in members.names}
        return {end: hashlib.sha256(members.read(name)).hexdigest() for name, end in names.items()}


def compare(spec: DatasetSpec, computed: Mapping[str, str]) -> dict[str, FileCheck]:
    """Compare each computed digest with the list: the same, different, or not listed."""
    listed = known_digests(spec.name)
    return {
        name: "unlisted" if name not in listed else "known" if listed[name] == digest else "differs"
        for name, digest in computed.items()
    }


class VerifyReport(TypedDict):
    """Result of a check of a dataset's files; JSON-able.

    Attributes:
        name: the dataset's name.
        path: place of the raw files.
        origin: `real` or `SYNTHETIC`.
        files: ``known``, ``differs`` or ``unlisted`` by file, from its digest.
        num_known: number of known files.
        problems: faults of structure or content.
        warnings: oddities that are no faults.
        ok: whether there are no problems; digests do not count.
    """

    name: str
    path: str
    origin: str
    files: dict[str, str]
    num_known: int
    problems: list[str]
    warnings: list[str]
    ok: bool


def verify(name: str, root: str | Path | None = None) -> VerifyReport:
    """Hash all files again (cached digests are not trusted), parse them, and compare the cache entry, if there is one.

    Raises UserError where the files cannot be parsed at all.
    """
    return verify_source(get_spec(name), locate(get_loader(name), root))


def verify_source(spec: DatasetSpec, source: Source) -> VerifyReport:
    """Verify the files of a source, as `verify` does."""
    computed = digests(spec, source)
    states = compare(spec, computed)
    listed = known_digests(spec.name)
    recordings = parse_source(spec, source)
    synthetic = source.synthetic or any(recording.synthetic for recording in recordings)
    warnings = [
        f"{file}: sha256 {computed[file]} "
        + (f"differs from the list's {listed[file]}" if state == "differs" else "is not in the list")
        + "; the structural checks decide"
        for file, state in states.items()
        if listed and state != "known" and not (state == "unlisted" and len(states) > 100)
    ]
    problems = [
        f"subject {fault.subject}: {fault.found}" for recording in recordings for fault in structure(spec, recording)
    ]
    problems += _cache_problems(spec, source, recordings)
    return {
        "name": spec.name,
        "path": str(source.path),
        "origin": "SYNTHETIC" if synthetic else "real",
        "files": dict(states),
        "num_known": sum(state == "known" for state in states.values()),
        "problems": problems,
        "warnings": warnings,
        "ok": not problems,
    }


def _cache_problems(spec: DatasetSpec, source: Source, recordings: Sequence[Recording]) -> Iterator[str]:
    """Damaged cache entries of the dataset, and arrays of these files' entry that are not what was just parsed."""
    here = entry_folder(spec, source_digest(spec, source, trust_stamps=False))
    for folder in entries(spec.name):
        try:
            entry = read_entry(folder, again=True)
        except DamagedEntry as error:
            yield str(error)
            continue
        cached: Arrays = {SIGNAL: entry.signal(), LABELS: entry.labels, BOUTS: entry.bouts}
        for name, fresh in assemble(spec, recordings).items() if folder == here else ():
            # Bit by bit: NaN equals NaN, and -0 is not 0.
            if not np.array_equal(cached[name].view(np.uint8), np.ascontiguousarray(fresh).view(np.uint8)):
                yield (
                    f"{folder / name}: not what the raw files say when they are parsed anew; delete the folder "
                    f"{folder}, it is made again"
                )


class Range(TypedDict):
    """Smallest, largest and mean value of a modality in raw units."""

    min: float
    max: float
    mean: float


class Description(TypedDict):
    """A dataset in figures, as `relief-ray data describe` prints it; JSON-able.

    Attributes:
        name: the dataset's name.
        title: one line on it.
        origin: `real` or `SYNTHETIC`.
        path: place of the raw files.
        digest: sha256 of what was parsed.
        citation: whom to cite.
        licence: what is allowed.
        doi: its DOI; empty without one.
        rate_hz: samples per second after parsing.
        window: samples per window.
        window_s: seconds of a window.
        partition: how windows were divided among clients.
        num_rows: rows of the signal.
        subjects: the subjects' numbers.
        sensors: the sensors that each subject has.
        activity_s: seconds by subject and class.
        ranges: range of values by modality, in raw units.
        facts: the parser's findings by subject.
        windows: number of windows by part.
        coverage: windows per client, part and class.
        null_rows: a sentence on the rows of ``null_labels``; empty where there are none.
        warnings: oddities of its content (``relief_ray.data.describe``).
    """

    name: str
    title: str
    origin: str
    path: str
    digest: str
    citation: str
    licence: str
    doi: str
    rate_hz: int
    window: int
    window_s: float
    partition: str
    num_rows: int
    subjects: list[int]
    sensors: dict[str, list[str]]
    activity_s: dict[str, dict[str, float]]
    ranges: dict[str, Range]
    facts: dict[str, dict[str, object]]
    windows: dict[str, int]
    coverage: Coverage
    null_rows: str
    warnings: list[str]


class Listing(TypedDict):
    """One line of `data list`: where the dataset is, or that it is absent."""

    name: str
    title: str
    path: str | None
    origin: str | None


def list_datasets(root: str | Path | None = None) -> list[Listing]:
    """Every known dataset and whether its raw files are found."""
    listings = []
    for name, loader in DATASETS.items():
        listing: Listing = {"name": name, "title": loader.spec.title, "path": None, "origin": None}
        with suppress(UserError):
            source = find_source(loader.spec, root)
            listing["path"], listing["origin"] = str(source.path), "SYNTHETIC" if source.synthetic else "real"
        listings.append(listing)
    return listings


def describe(dataset: Dataset, config: DataConfig) -> Description:
    """Figures of the dataset and of its windows under a configuration, clients having all that their subjects have."""
    spec = dataset.spec
    data = federate(dataset, config, available(config, num_clients(dataset, config)))
    return {
        "name": spec.name,
        "title": spec.title,
        "origin": dataset.origin,
        "path": str(dataset.source.path),
        "digest": dataset.digest,
        "citation": spec.citation,
        "licence": spec.licence,
        "doi": spec.doi,
        "rate_hz": spec.rate_hz,
        "window": spec.window,
        "window_s": spec.window_s,
        "partition": config.partition,
        "num_rows": len(dataset.labels),
        "subjects": list(spec.subjects),
        "sensors": {str(subject): list(spec.sensors_of(subject)) for subject in spec.subjects},
        "activity_s": {
            str(subject): dict(zip(spec.classes, row.tolist(), strict=True))
            for subject, row in zip(spec.subjects, activity_s(dataset), strict=True)
        },
        "ranges": _ranges(dataset),
        "facts": {subject: dict(facts) for subject, facts in dataset.facts.items()},
        "windows": {
            "train": sum(len(client) for client in data.clients),
            "validation": len(data.validation),
            "test": len(data.test),
        },
        "coverage": data.coverage,
        "null_rows": null_rows(dataset),
        "warnings": list(data_warnings(dataset, config, data.coverage)),
    }


def _ranges(dataset: Dataset) -> dict[str, Range]:
    signal = dataset.signal()
    chunks = [signal[first : first + _CHUNK] for first in range(0, len(signal), _CHUNK)]
    # NaN, where a subject lacks a sensor, counts for nothing.
    low = np.fmin.reduce([np.fmin.reduce(chunk) for chunk in chunks])
    high = np.fmax.reduce([np.fmax.reduce(chunk) for chunk in chunks])
    total = np.sum([np.nansum(chunk, axis=0, dtype=np.float64) for chunk in chunks], axis=0)
    mean = total / np.sum([(~np.isnan(chunk)).sum(axis=0) for chunk in chunks], axis=0)
    return {
        name: {"min": float(low[a:b].min()), "max": float(high[a:b].max()), "mean": float(mean[a:b].mean())}
        for name, a, b in dataset.spec.columns()
    }
