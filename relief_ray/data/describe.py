"""Reports on a dataset's content, JSON-able, for the command line and the run record."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TypedDict

import numpy as np

from relief_ray.data.checks import Violation, filled_text, in_words, length_violations, range_text, structure
from relief_ray.data.config import DataConfig
from relief_ray.data.dataset import (
    DamagedEntry,
    Dataset,
    differing,
    entries,
    entry_folder,
    locate,
    parse_source,
    read_entry,
    source_digest,
)
from relief_ray.data.federated_data import Coverage, FederatedData, federate, num_clients
from relief_ray.data.figures import SensorFigures
from relief_ray.data.leakage import leak
from relief_ray.data.loader import DatasetSpec, Doubles, Floats, Recording
from relief_ray.data.partition import available, chosen_positions, held_out, left_out_text
from relief_ray.data.registry import DATASETS, get_loader
from relief_ray.data.source import ASSETS, Source, find_source, open_source
from relief_ray.data.window_set import pool
from relief_ray.plugins.load import is_path
from relief_ray.support.errors import UserError, listed, several
from relief_ray.support.files import sha256_file, sha256_of

# Data-quality warnings of `data describe`, a run's output and its record; no rule forbids such data.


# A class with less data than so many windows side by side is too small to be learned or tested.
_FEW_WINDOWS = 10
# Share of missing readings from which filling them in decides what a model sees.
_MANY_GAPS = 0.05
# Share of a person's windows with rows of two activities; a step as a multiple of the usual ones.
_MANY_MIXED, _LEAP = 0.25, 10.0
# A person is apart from all others by so many times their median deviation, and by at least this factor: of values
# (metres per second squared and g differ by 9.8), of changes from row to row, and of seconds.
_DEVIATIONS, _OTHER_UNIT, _OTHER_PACE, _OTHER_LENGTH = 6.0, 3.0, 1.6, 1.5
# Several people, or one of two, are apart by this factor of values; means of a channel by so many of its deviations.
_TWO_UNITS, _OTHER_MEAN = 5.0, 2.0
# Sensors that send a block twice leave a few copies: this share of the test's rows.
_FEW_COPIES = 0.001
# Share of a channel's rows in which it does not change for a window, and as a multiple of that of the others; share of
# its deviation that float32 loses; share of its readings at the ends of its range.
_PARTLY_LEVEL, _MORE_LEVEL, _LOST, _CUT = 0.1, 3.0, 0.01, 0.01
# Share of rows that repeat the one before; a person's deviation as a part of the others'.
_HELD, _SILENT = 0.4, 0.1
# Sentences of a kind; the tables of `data describe` have all.
_SHOWN = 8
# Parts of a recording in its picture.
_PARTS = 400


def data_warnings(dataset: Dataset, config: DataConfig, data: FederatedData) -> tuple[str, ...]:
    """Sentences on channels, rows, classes, subjects and clients that may not be as their owner thinks.

    ``data``: the windows as the configuration cuts them. Empty where nothing is odd.
    """
    spec, seconds = dataset.spec, activity_s(dataset)
    recorded = [name for name, all_s in zip(spec.classes, seconds.sum(0), strict=True) if all_s]
    sensors = sensors_of(dataset, config)
    kinds = (
        _of_loader(dataset),
        _of_channels(dataset, config),
        *_of_sensors(spec, sensors),
        _of_zeros(spec, sensors),
        _of_people(dataset, config),
        _unlike_others(sensors),
        _of_lengths(spec, config, seconds),
        _of_windows(config, data, _people_of(dataset, config, data)),
        _of_split(dataset, config, data),
        _of_classes(dataset, seconds),
        without_windows(data.coverage, recorded),
        _of_clients(config, data.coverage),
    )
    return tuple(line for kind in kinds for line in _first([*kind]))


def _of_loader(dataset: Dataset) -> Iterator[str]:
    if dataset.started:
        yield (
            f"its loader starts {listed(dataset.started)}: a change in what that reads goes unnoticed: parsed "
            "data are kept"
        )


def _of_split(dataset: Dataset, config: DataConfig, data: FederatedData) -> Iterator[str]:
    if shared := leak(config, data, dataset.signal(), _FEW_COPIES):
        yield f"the test leaks into training: {shared} (`relief-ray conformance`, rule 'leakage')"


def _first(lines: Sequence[str]) -> list[str]:
    more = len(lines) - _SHOWN
    return [*lines[:_SHOWN], *([f"and {more} more like the last: see `relief-ray data describe`"] if more > 0 else [])]


def sensors_of(dataset: Dataset, config: DataConfig) -> list[SensorFigures]:
    """The figures of every sensor of the people who take part, person by person."""
    return [row for row in dataset.sensors if row["subject"] in config.subject_ids()]


def _of_sensor(spec: DatasetSpec, row: SensorFigures) -> tuple[str, ...]:
    """A sentence of each kind on a person's sensor; empty ones where nothing is odd."""
    name, has_gaps = row["sensor"], row["filled"] > _MANY_GAPS or row["longest_gap_s"] > spec.window_s
    code = row["code_rows"] and (
        f"{name} is {listed(f'{code:g}' for code in row['codes'])} {row['code_rows']} times, far from all its "
        "other values: if that stands for no reading, read it as missing"
    )
    held = (
        f"{name} repeats its last reading in {row['held']:.0%} of the rows: if it was recorded at a lower rate and "
        "held, let parse() interpolate, or resample all sensors to the lower rate"
    )
    line = (
        f"{name} runs along a straight line for {row['longest_line_s']:.1f} s: if readings were filled in there, "
        "return where as Recording.filled"
    )
    leap = (
        f"{name} leaps within a bout, to row {row['step_row']}, {row['step']:.0f} times as far as in 99.9% of its "
        "steps: a faulty reading, or another recording, which bouts_of(labels, recording) keeps apart"
    )
    rounded = (
        f"{name} loses {row['rounded']:.0%} of its deviation where its values are made float32, as all data are: let "
        "parse() subtract a constant, or take a larger unit"
    )
    cut = (
        f"{name} is at an end of its range in {row['cut']:.1%} of a channel's rows, again and again: cut off there, "
        "the sensor or the parser lost what lies beyond"
    )
    return (
        filled_text(row) if has_gaps else "",
        range_text(spec, row),
        code or "",
        held if row["held"] - row["level_share"] > _HELD else "",
        line if row["longest_line_s"] >= spec.window_s else "",
        leap if row["step"] > _LEAP else "",
        rounded if row["rounded"] > _LOST else "",
        cut if row["cut"] > _CUT and not row["codes"] else "",
    )


def _of_sensors(spec: DatasetSpec, sensors: Sequence[SensorFigures]) -> Iterator[list[str]]:
    """The sentences of each kind, each once, after the people that it holds for."""
    for texts in zip(*(_of_sensor(spec, row) for row in sensors), strict=True):
        odd = [(row["subject"], text) for row, text in zip(sensors, texts, strict=True) if text]
        yield in_words(Violation(rule="channels", found=text, subject=subject) for subject, text in odd)


def _of_zeros(spec: DatasetSpec, sensors: Sequence[SensorFigures]) -> list[str]:
    """Rows of zeros: files that were filled up have them in all sensors at once, so these share a sentence."""
    advice = (
        "if that stands for no reading, read it as missing, or leave these rows out of the bouts"
        if is_path(spec.name)
        else "the published files are so, and are used as they are (docs/data.md)"
    )
    names: dict[tuple[int, int], list[str]] = {}
    for row in sensors:
        if row["zero_rows"]:
            names.setdefault((row["subject"], row["zero_rows"]), []).append(row["sensor"])
    return in_words(
        Violation(
            rule="channels",
            found=f"{listed(zero)} {'are' if len(zero) > 1 else 'is'} 0 in all channels in {number} rows: {advice}",
            subject=subject,
        )
        for (subject, number), zero in names.items()
    )


def _unlike_others(sensors: Sequence[SensorFigures]) -> Iterator[str]:
    """People whose readings of a sensor are larger, lie elsewhere, change faster or stand still, unlike others'."""
    for name in dict.fromkeys(row["sensor"] for row in sensors):
        rows = [row for row in sensors if row["sensor"] == name and not (row["code_rows"] or row["still"])]
        levels = [[row["level"]] for row in rows]
        larger = _other_unit(levels) or _apart(levels, _OTHER_UNIT)
        for who, ratio in larger.items():
            yield f"subject {rows[who]['subject']}: {name} is {ratio:.3g} times that of the others: in another unit?"
        for who, text in _elsewhere(rows).items():
            if who not in larger:
                yield f"subject {rows[who]['subject']}: {name} {text}: turned round, other axes, or another unit?"
        for who, ratio in _apart([row["deviations"] for row in rows], 1 / _SILENT).items():
            if ratio < 1 and who not in larger:
                person = rows[who]["subject"]
                yield f"subject {person}: {name} hardly moves, {ratio:.2g} times as much as the others': off?"
        for who, ratio in _apart([row["pace"] for row in rows], _OTHER_PACE).items():
            yield f"subject {rows[who]['subject']}: {name} changes {ratio:.3g} times as fast: at another rate?"
        for who, row in enumerate(rows):
            others = [other["level_share"] for i, other in enumerate(rows) if i != who]
            if others and row["level_share"] > max(_PARTLY_LEVEL, _MORE_LEVEL * float(np.median(others))):
                yield (
                    f"subject {row['subject']}: {name} has a channel that does not change for a window or longer, in "
                    f"{row['level_share']:.0%} of the rows: dead there, or filled in?"
                )


def _other_unit(levels: Sequence[Sequence[float]]) -> dict[int, float]:
    """The fewer people of two groups that the levels fall into, with the ratio to the others; the larger of two."""
    logs = np.log(np.array(levels)[:, 0]) if len(levels) > 1 else np.zeros(2)
    order = np.argsort(logs)
    gaps = np.diff(logs[order])
    lower, upper = order[: gaps.argmax() + 1], order[gaps.argmax() + 1 :]
    widest = max(np.ptp(logs[lower]), np.ptp(logs[upper]))
    if gaps.max() <= np.log(_TWO_UNITS) or widest > gaps.max() / 3:
        return {}
    fewer, others = (lower, upper) if len(lower) < len(upper) else (upper, lower)
    return {int(who): float(np.exp(logs[who] - np.median(logs[others]))) for who in np.sort(fewer)}


def _elsewhere(rows: Sequence[SensorFigures]) -> dict[int, str]:
    """People with channels whose mean is far from all others', and where these are; none of fewer than 3."""
    if len(rows) < 3:
        return {}
    means, apart = np.array([row["means"] for row in rows]), {}
    usual = np.median([row["deviations"] for row in rows], axis=0)
    for who in range(len(rows)):
        others = np.delete(means, who, axis=0)
        middle = np.median(others, axis=0)
        spread = np.median(np.abs(others - middle), axis=0)
        far = np.flatnonzero(np.abs(means[who] - middle) > np.maximum(_OTHER_MEAN * usual, _DEVIATIONS * spread))
        if len(far):
            found = [f"{means[who, c]:.3g} in channel {c + 1} ({middle[c]:.3g} with the others)" for c in far.tolist()]
            apart[who] = f"has a mean of {listed(found)}"
    return apart


def _apart(values: Sequence[Sequence[float]], least: float) -> dict[int, float]:
    """People (rows) who are apart from the others in every column, by place, with their ratio; none of fewer than 3."""
    table = np.array(values)
    logs = np.log(table[:, table.all(axis=0)]) if len(table) > 2 else np.empty((0, 0))
    apart = {}
    for who in range(len(logs) if logs.size else 0):
        others = np.delete(logs, who, axis=0)
        off, spread = logs[who] - np.median(others, axis=0), np.abs(others - np.median(others, axis=0))
        if np.abs(off).min() > max(np.log(least), _DEVIATIONS * np.median(spread)) and abs(np.sign(off).mean()) == 1:
            apart[who] = float(np.exp(off.mean()))
    return apart


def _of_lengths(spec: DatasetSpec, config: DataConfig, seconds: Doubles) -> Iterator[str]:
    """Activities of unusual length, and people with whom every activity is longer or shorter than with the others."""
    chosen = chosen_positions(config)
    yield from in_words(
        violation for who in chosen for violation in length_violations(spec, spec.subjects[who], seconds[who].tolist())
    )
    for who, ratio in _apart(seconds[[*chosen]].tolist(), _OTHER_LENGTH).items():
        yield (
            f"subject {spec.subjects[chosen[who]]}: every activity lasts about {ratio:.2g} times as long as with the "
            "others: recorded at another rate?"
        )


def strips(dataset: Dataset, config: DataConfig) -> dict[str, Floats]:
    """Lowest and highest value of each person's sensors in parts of the recording: (2, parts) by name."""
    signal, spec, strips = dataset.signal(), dataset.spec, {}
    for position in chosen_positions(config):
        values = np.concatenate([signal[first:stop] for first, stop in dataset.bouts_of(position)])
        pieces = np.array_split(values, min(_PARTS, len(values)))
        for name, first, stop in spec.columns():
            if name in spec.sensors_of(spec.subjects[position]):
                ends = [(piece[:, first:stop].min(), piece[:, first:stop].max()) for piece in pieces]
                strips[f"{spec.subjects[position]} {name}"] = np.array(ends).T
    return strips


class PersonFigures(TypedDict):
    """Rows, bouts and windows of one person; JSON-able.

    Attributes:
        subject: the person's number.
        rows: rows in bouts.
        bouts: their number.
        shortest_s: seconds of the shortest bout.
        longest_s: seconds of the longest bout.
        classes: number of classes with rows in them.
        windows: windows of all parts.
        tested: those of the test part.
        mixed: share of windows with rows of two activities, or of one and none.
        left_out: windows that were filled in too much (``data.max_filled``).
    """

    subject: int
    rows: int
    bouts: int
    shortest_s: float
    longest_s: float
    classes: int
    windows: int
    tested: int
    mixed: float
    left_out: int


def _people_of(dataset: Dataset, config: DataConfig, data: FederatedData) -> list[PersonFigures]:
    """Rows, bouts and windows of the people who take part."""
    tests = [] if data.test_or_none is None else [data.test_or_none]
    windows = pool([*data.clients, data.validation, *tests])
    changes = np.cumsum(np.diff(dataset.labels, prepend=dataset.labels[:1]) != 0)
    mixed = changes[windows.starts + windows.window - 1] != changes[windows.starts]
    people: list[PersonFigures] = []
    seconds = activity_s(dataset)
    for position in chosen_positions(config):
        subject, own = dataset.spec.subjects[position], windows.subjects == position
        rows = np.diff(dataset.bouts_of(position))
        people.append(
            {
                "subject": subject,
                "rows": int(rows.sum()),
                "bouts": len(rows),
                "shortest_s": int(rows.min()) / dataset.spec.rate_hz,
                "longest_s": int(rows.max()) / dataset.spec.rate_hz,
                "classes": int(np.count_nonzero(seconds[position])),
                "windows": int(own.sum()),
                "tested": sum(int((part.subjects == position).sum()) for part in tests),
                "mixed": float(mixed[own].mean()) if own.any() else 0.0,
                "left_out": data.coverage.get("left_out", {}).get(str(subject), 0),
            }
        )
    return people


def _of_windows(config: DataConfig, data: FederatedData, people: Sequence[PersonFigures]) -> Iterator[str]:
    """Windows left out, windows that hold two activities, and people on whom nobody is tested."""
    if "left_out" in data.coverage:
        yield left_out_text(data.coverage["left_out"], config)
    if mixed := {row["subject"]: row["mixed"] for row in people if row["mixed"] > _MANY_MIXED}:
        yield (
            f"{several('subject', mixed)}: up to {max(mixed.values()):.0%} of the windows hold rows of two activities; "
            "end bouts where the activity changes, or set data.window_s lower"
        )
    if config.split != "held_out_subject" and data.test_or_none is not None:
        without = [row["subject"] for row in people if not row["tested"]]
        yield from [f"no test window of {several('subject', without)}"] if without else []


def activity_s(dataset: Dataset) -> Doubles:
    """Seconds of data by subject and class: (S, K), rows outside of bouts left out."""
    spec = dataset.spec
    rows = np.zeros((len(spec.subjects), len(spec.classes)))
    for subject, start, stop in dataset.bouts:
        labels = dataset.labels[start:stop]
        rows[subject] += np.bincount(labels[labels >= 0], minlength=len(spec.classes))
    return rows / spec.rate_hz


def _of_channels(dataset: Dataset, config: DataConfig) -> Iterator[str]:
    """Channels that have one value in all rows, then those that move for some people but not for one."""
    everywhere: dict[str, set[tuple[int, float]]] = {}
    for row in dataset.sensors:
        still = {(column, value) for column, value in row["still"]}
        everywhere[row["sensor"]] = still & everywhere.get(row["sensor"], still)
    for name, columns in everywhere.items():
        for column, value in sorted(columns):
            yield f"{name}: column {column} is {value:g} in all {len(dataset.labels)} rows"
    for row in sensors_of(dataset, config):
        name, subject = row["sensor"], row["subject"]
        which = [f"column {c} is {value:g}" for c, value in row["still"] if (c, value) not in everywhere[name]]
        remedy = f"; if that person has no {name}, say so in a DatasetSpec: lacks={{{subject}: ({name!r},)}}"
        if which:
            end = remedy if is_path(dataset.spec.name) else ""
            yield f"{name} of subject {subject}: {', '.join(which)} in all its bouts{end}"


def _of_people(dataset: Dataset, config: DataConfig) -> Iterator[str]:
    """People who are tested without a sensor; rows that no window can hold."""
    spec, chosen = dataset.spec, chosen_positions(config)
    for position in held_out(config, chosen) or chosen:
        subject = spec.subjects[position]
        if lacks := spec.lacks.get(subject):
            yield f"subject {subject} lacks {listed(lacks)}: its test windows count, and are read with that missing"
    in_bout = np.zeros(len(dataset.labels), bool)
    for _, start, stop in dataset.bouts:
        in_bout[start:stop] = True
    if outside := int(((dataset.labels >= 0) & ~in_bout).sum()):
        yield f"{outside} of {len(dataset.labels)} rows have a class but lie in no bout"


def null_rows(dataset: Dataset) -> str:
    """Sentence on the rows of ``null_labels``, which are left out; empty if there are no such rows."""
    unlabelled = int((dataset.labels < 0).sum())
    if not unlabelled:
        return ""
    codes = several("code", dataset.spec.null_labels) if dataset.spec.null_labels else "a code"
    remedy = "; where that is a class, list it in labels and take it out of null_labels (`null` of rr.dataset)"
    share = f"{unlabelled:,} of {len(dataset.labels):,} rows"
    said = f"{share} have {codes}, no activity (null_labels): no window is labelled with it"
    return said + (remedy if is_path(dataset.spec.name) else "")


def _of_classes(dataset: Dataset, seconds: Doubles) -> Iterator[str]:
    """Classes with no or little data, then classes that only some subjects have."""
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
    """Classes that no client is trained on, and classes that no client is tested on."""
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


def known_digests(name: str) -> dict[str, str]:
    """File name (as the list gives it) to sha256; empty where no list is known."""
    path = ASSETS / f"{name}.sha256"
    lines = path.read_text().splitlines() if path.exists() else []
    pairs = (line.split(maxsplit=1) for line in lines if not line.startswith("#"))
    return {file: digest for digest, file in pairs}


def digests(spec: DatasetSpec, source: Source) -> dict[str, str]:
    """The sha256 of the source's files by the list's names: of each member, or of the complete archive."""
    listed = known_digests(spec.name)
    archive = next((name for name in listed if name.endswith((".zip", ".npz"))), None)
    if archive is not None and source.path.is_file():
        return {archive: sha256_file(source.path)}
    with open_source(spec, source) as members:
        names = {name: next((end for end in listed if name.endswith(end)), name) for name in members.names}
        return {end: sha256_of(members.read(name)) for name, end in names.items()}


def compare(listed: Mapping[str, str], computed: Mapping[str, str]) -> dict[str, str]:
    """Compare each computed digest with the list: ``known``, ``differs`` or ``unlisted``."""
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
        problems: violations of structure or content.
        warnings: what is odd and breaks no rule.
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


def verify(name: str) -> VerifyReport:
    """Hash all files again (cached digests are not trusted), parse them, and compare the cache entry, if there is one.

    Raises UserError where the files cannot be parsed at all.
    """
    loader = get_loader(name)
    return verify_source(loader.spec, locate(loader))


def verify_source(spec: DatasetSpec, source: Source) -> VerifyReport:
    """Verify the files of a source, as `verify` does."""
    computed, listed = digests(spec, source), known_digests(spec.name)
    states = compare(listed, computed)
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
        f"subject {violation.subject}: {violation.found}"
        for recording in recordings
        for violation in structure(spec, recording)
    ]
    problems += cache_problems(spec, source, recordings)
    return {
        "name": spec.name,
        "path": str(source.path),
        "origin": "SYNTHETIC" if synthetic else "real",
        "files": states,
        "num_known": sum(state == "known" for state in states.values()),
        "problems": problems,
        "warnings": warnings,
        "ok": not problems,
    }


def cache_problems(spec: DatasetSpec, source: Source, recordings: Sequence[Recording]) -> Iterator[str]:
    """Damaged cache entries of the dataset, and arrays of these files' entry that are not what was just parsed."""
    here = entry_folder(spec, source_digest(spec, source, trust_stamps=False))
    for folder in entries(spec.name):
        try:
            entry = read_entry(folder, again=True)
        except DamagedEntry as error:
            yield str(error)
            continue
        for name in differing(spec, entry, recordings) if folder == here else ():
            yield (
                f"{folder / name}: not what the raw files say when they are parsed anew; delete the folder "
                f"{folder}, it is made again"
            )


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
        ranges: ``min`` and ``max`` by modality, in raw units, and the ``mean`` of people's means.
        facts: the parser's findings by subject.
        windows: number of windows by part.
        coverage: windows per client, part and class.
        people: rows, bouts and windows of each person.
        quality: figures of each person's sensors.
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
    ranges: dict[str, dict[str, float]]
    facts: dict[str, dict[str, object]]
    windows: dict[str, int]
    coverage: Coverage
    null_rows: str
    people: list[PersonFigures]
    quality: list[SensorFigures]
    warnings: list[str]


class Listing(TypedDict):
    """One line of `data list`: where the dataset is, or that it is absent."""

    name: str
    title: str
    path: str | None
    origin: str | None


def list_datasets() -> list[Listing]:
    """Every known dataset and whether its raw files are found."""
    listings = []
    for name, loader in DATASETS.items():
        listing: Listing = {"name": name, "title": loader.spec.title, "path": None, "origin": None}
        with suppress(UserError):
            source = find_source(loader.spec)
            listing["path"], listing["origin"] = str(source.path), "SYNTHETIC" if source.synthetic else "real"
        listings.append(listing)
    return listings


def describe(dataset: Dataset, config: DataConfig) -> Description:
    """Figures of the dataset and of its windows under a configuration, clients having all that their subjects have."""
    spec = dataset.spec
    owned, refused = available(config, num_clients(dataset, config)), []
    try:
        data = federate(dataset, config, owned)
    except UserError as error:  # where gaps are behind it, the figures still show whose they are
        data = federate(dataset, config.model_copy(update={"max_filled": 1.0}), owned)
        refused = [f"a run is refused: {error}"]
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
            "train": sum(map(len, data.clients)),
            "validation": len(data.validation),
            "test": len(data.test),
        },
        "coverage": data.coverage,
        "null_rows": null_rows(dataset),
        "people": _people_of(dataset, config, data),
        "quality": sensors_of(dataset, config),
        "warnings": [*refused, *data_warnings(dataset, config, data)],
    }


def _ranges(dataset: Dataset) -> dict[str, dict[str, float]]:
    ranges = {}
    for name in dataset.spec.names:
        rows = [row for row in dataset.sensors if row["sensor"] == name]
        ranges[name] = {
            "min": min(row["low"] for row in rows),
            "max": max(row["high"] for row in rows),
            "mean": float(np.mean([row["mean"] for row in rows])),
        }
    return ranges
