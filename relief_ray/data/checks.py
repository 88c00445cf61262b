"""Checks of a dataset's description and of its parsed recordings, with the rule that each violation breaks.

A user's loader is refused by these checks wherever it is used; `relief-ray conformance` reports them rule by rule.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from relief_ray.data.figures import SensorFigures, measure
from relief_ray.data.loader import DatasetSpec, Ints, Recording
from relief_ray.support.errors import UserError, clipped, counted, listed, plain, several, shown
from relief_ray.support.frozen import numbers_or_text, strictly

DataRule = Literal["description", "subjects", "labels", "channels", "rates", "finite", "bouts"]

# What a violation of each rule is mended by.
FIXES: Mapping[DataRule, str] = {
    "description": "mend the field of DatasetSpec that is named",
    "subjects": "list every person once in DatasetSpec.subjects, and let files() and parse() read that one's files",
    "labels": "let DatasetSpec.labels list every code in the files, in the order of classes, and null_labels those "
    "of rows without an activity; leave out a class without rows; return integer codes, one per row",
    "channels": "let modalities name the signal's columns in order: (name, number of columns); where it is some "
    "subjects alone, look for a missing column in their files",
    "rates": "give samples per second: rate_hz after parsing, raw_rate_hz in the files; resample in parse()",
    "finite": "fill gaps in parse() (relief_ray.data.loader.fill_linear, fill_forward) and return where, as "
    "Recording.filled, or leave the rows out; DatasetSpec.max_nan_share says how many filled readings are acceptable; "
    "a sensor that a person does not have "
    'is named in DatasetSpec.lacks, e.g. lacks={3: ("gyro",)}, and may be NaN',
    "bouts": "return bouts as (n, 2) rows [first, one past the last], ascending, none overlapping "
    "(relief_ray.data.loader.bouts_of makes them)",
}

_Found = Iterator[tuple[DataRule, str]]

_SPEC: Final[TypeAdapter[DatasetSpec]] = TypeAdapter(DatasetSpec)
_NAME: Final = re.compile(r"\w[\w-]*")
_MIN_WINDOW = 8
_SHOWN = 8
# Activities may be so many times shorter or longer than they usually are.
_SLACK = 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Violation:
    """One broken rule.

    Attributes:
        rule: its name.
        found: the finding, with both numbers; a ``{}`` stands for each of ``counts``.
        counts: numbers that are added up where several subjects have the same finding.
        subject: whose recording it was found in; None: in the description, or in all together.
    """

    rule: DataRule
    found: str
    subject: int | None = None
    counts: tuple[int, ...] = ()


def in_words(violations: Iterable[Violation]) -> list[str]:
    """The findings, each once, after the subjects that it holds for; their counts are added up."""
    alike: dict[str, list[Violation]] = {}
    for violation in violations:
        alike.setdefault(violation.found, []).append(violation)
    lines = []
    for text, members in alike.items():
        sums = list(map(sum, zip(*(violation.counts for violation in members), strict=True)))
        whose = [violation.subject for violation in members if violation.subject is not None]
        shown = text.format(*sums) if sums else text
        lines.append(f"{several('subject', whose)}: {shown}" if whose else shown)
    return lines


def refuse(where: str, violations: Sequence[Violation]) -> None:
    """Raise a UserError that lists the violations by rule, each rule with its fix, if there are any."""
    if not violations:
        return
    lines = [f"{where}: {counted(len(violations), 'error')}"]
    for rule in FIXES:
        texts = in_words(violation for violation in violations if violation.rule == rule)
        lines += [f"  {rule}: {text}" for text in texts[:_SHOWN]]
        lines += [f"  {rule}: and {len(texts) - _SHOWN} more"] if len(texts) > _SHOWN else []
        lines += [f"    fix: {FIXES[rule]}"] if texts else []
    raise UserError("\n".join(lines))


def spec_violations(spec: DatasetSpec) -> list[Violation]:
    """The fields of a dataset's description that hold a value of a wrong type; without any, its contradictions."""
    checks = (_description, _lacking, _people, _classes, _modalities, _rates)
    try:
        own = with_own_types(spec)
    except ValidationError as error:
        return _violations(_wrong_types(error))
    except ValueError as error:  # no form in JSON
        return [Violation(rule="description", found=f"a field of DatasetSpec: {error}")]
    return [violation for check in checks for violation in _violations(check(own))]


def _violations(found: _Found, subject: int | None = None) -> list[Violation]:
    return [Violation(rule=rule, found=text, subject=subject) for rule, text in found]


def with_own_types(spec: DatasetSpec) -> DatasetSpec:
    """The description with Python's own numbers, texts and tuples in place of numpy's, of patterns and of lists.

    Raises:
        ValidationError: a field holds a value of another type.
    """
    values = {field.name: getattr(spec, field.name) for field in fields(DatasetSpec)}
    return strictly(_SPEC, values, default=lambda value: getattr(value, "pattern", None) or numbers_or_text(value))


def _wrong_types(error: ValidationError) -> _Found:
    for wrong in error.errors():
        name, *places = wrong["loc"]
        place = "".join(f"[{part!r}]" for part in places)
        is_tuple = wrong["type"] == "tuple_type"
        hint = f"; a tuple of one value ends with a comma: ({wrong['input']!r},)" if is_tuple else ""
        message = plain(wrong["msg"]).replace("valid array", "tuple")
        yield "description", f"{name}{place} = {shown(wrong['input'])}: {message}{hint}"


def _twice(values: Iterable[object]) -> list[object]:
    """Values that occur more than once, in order of appearance."""
    return [value for value, count in Counter(values).items() if count > 1]


def _description(spec: DatasetSpec) -> _Found:
    try:
        re.compile(spec.member)
    except (re.error, OverflowError, RecursionError) as error:
        yield "description", f"member = '{clipped(spec.member)}' is no regular expression ({error})"
    if not 0.0 <= spec.max_nan_share < 1.0:
        yield "description", f"max_nan_share = {spec.max_nan_share:g}, expected a share from 0 to below 1"


def _lacking(spec: DatasetSpec) -> _Found:
    """Faults of ``lacks``: unknown people or sensors, and people without any sensor."""
    for subject, names in spec.lacks.items():
        what = f"lacks[{subject!r}] = {names!r}"
        if subject not in spec.subjects:
            yield "description", f"{what}: there is no subject {subject!r}, expected one of {list(spec.subjects)}"
        elif not names or not set(names) <= set(spec.names):
            expected = f"expected a tuple of some of the modalities {spec.names}, e.g. {spec.names[-1:]}"
            yield "description", f"{what}, {expected}"
        elif not spec.sensors_of(subject):
            yield "description", f"{what} are all of its sensors; leave that person out of subjects"


def _people(spec: DatasetSpec) -> _Found:
    if not spec.subjects:
        yield "subjects", "subjects is empty, expected at least one"
    if twice := _twice(spec.subjects):
        yield "subjects", f"subjects lists {listed(twice)} more than once"


def _classes(spec: DatasetSpec) -> _Found:
    if len(spec.classes) != len(spec.labels):
        yield "labels", f"{len(spec.classes)} classes but {len(spec.labels)} labels, expected a code for every class"
    if len(spec.classes) < 2:
        yield "labels", f"{len(spec.classes)} class, expected at least two"
    if wrong := [name for name in spec.classes if not name or name != name.strip() or not name.isprintable()]:
        expected = "expected names of one line each, none empty, without blanks around them"
        yield "labels", f"classes has {listed(map(repr, wrong))}, {expected}"
    for key, values in (("classes", spec.classes), ("labels", spec.labels)):
        if twice := _twice(values):
            yield "labels", f"{key} lists {listed(map(repr, twice))} more than once"
    if both := [code for code in spec.labels if code in spec.null_labels]:
        expected = "expected one of them; take it out of null_labels where it is a class"
        yield "labels", f"{several('code', both)} stands in labels and in null_labels, {expected}"


def _modalities(spec: DatasetSpec) -> _Found:
    for name, number in spec.modalities:
        if number < 1:
            yield "channels", f"modality {name!r} has {number} channels, expected at least 1"
    if wrong := [name for name in spec.names if not _NAME.fullmatch(name) or name == "all"]:
        names = f"modalities has the name{'s' if len(wrong) > 1 else ''} {listed(map(repr, wrong))}"
        expected = "expected letters, digits, _ and - alone, no - first, and not 'all', which means every sensor"
        yield "channels", f"{names}, {expected}: keys and columns are made of names"
    if not spec.modalities:
        yield "channels", "modalities is empty, expected at least one (name, channels)"
    if twice := _twice(spec.names):
        yield "channels", f"modalities lists {listed(map(repr, twice))} more than once"
    if spec.max_abs and len(spec.max_abs) != len(spec.modalities):
        values = f"max_abs has {len(spec.max_abs)} values for {len(spec.modalities)} modalities"
        yield "channels", f"{values}, expected one each"


def _rates(spec: DatasetSpec) -> _Found:
    rates, seconds = {"rate_hz": spec.rate_hz, "raw_rate_hz": spec.raw_rate_hz}, {"window_s": spec.window_s}
    wrong = {key: value for key, value in (rates | seconds).items() if not 0 < value < np.inf}
    for key, value in wrong.items():
        yield "rates", f"{key} = {value}, expected {'samples per second' if key in rates else 'seconds'} above 0"
    if wrong:
        return
    if spec.rate_hz > spec.raw_rate_hz:
        above = f"rate_hz = {spec.rate_hz} is above raw_rate_hz = {spec.raw_rate_hz}"
        yield "rates", f"{above}: parsing makes up no samples"
    if short := window_fault(spec):
        yield "rates", short


def window_fault(spec: DatasetSpec) -> str:
    """Describe a window that is too short for any model; empty for one that is not."""
    if spec.window >= _MIN_WINDOW:
        return ""
    return (
        f"windows of {spec.window_s:g} s at {spec.rate_hz} Hz hold {spec.window} samples, expected at least "
        f"{_MIN_WINDOW} ({_MIN_WINDOW / spec.rate_hz:g} s)"
    )


def violations_of_all(
    spec: DatasetSpec, recordings: Mapping[int, Recording], *, refuse_absent_classes: bool = False
) -> list[Violation]:
    """Contradictions between the description and what `parse` returned for every subject, and between subjects."""
    violations = [
        violation for subject, parsed in recordings.items() for violation in recording_violations(spec, subject, parsed)
    ]
    # Label columns can be compared with the description where unknown codes are the only violations, if any.
    if all(violation.rule == "labels" and violation.counts for violation in violations):
        present = {int(code) for recording in recordings.values() for code in np.unique(recording.labels)}
        texts = list(_shifted_codes(spec, present))
        if refuse_absent_classes and not texts:
            texts = list(_absent_classes(spec, present))
        violations += [Violation(rule="labels", found=text) for text in texts]
    return violations or [Violation(rule="subjects", found=text) for text in _same_people(recordings)]


def recording_violations(spec: DatasetSpec, subject: int, recording: object) -> list[Violation]:
    """Contradictions between the description and what `parse` returned for one subject."""
    wrong = f"a {type(recording).__name__}, expected a Recording"
    if isinstance(recording, Recording):
        if isinstance(recording.subject, int | np.integer) and recording.subject == subject:
            # Shapes are read of arrays alone, and values by each other's rows.
            return (
                _violations(_kinds(recording), subject)
                or _violations(_shapes(spec, recording), subject)
                or [*_unknown_codes(spec, recording), *_violations(_values(spec, recording), subject)]
            )
        wrong = f"subject {shown(recording.subject)}, expected {subject}"
    return [Violation(rule="subjects", found=f"parse() returned {wrong}", subject=subject)]


def structure(spec: DatasetSpec, recording: Recording) -> list[Violation]:
    """Implausible facts about one subject: activity lengths (absent ones aside), filled readings, value ranges."""
    lengths_s = [float((recording.labels == code).sum()) / spec.rate_hz for code in spec.labels]
    sensors = _violations(_sensors(spec, measure(spec, recording)), recording.subject)
    return length_violations(spec, recording.subject, lengths_s) + sensors


def _sensors(spec: DatasetSpec, rows: Sequence[SensorFigures]) -> _Found:
    for row in rows:
        if row["filled"] > spec.max_nan_share:
            yield "finite", f"{filled_text(row)}; expected at most {spec.max_nan_share:.0%} (max_nan_share)"
    for row in rows:
        if text := range_text(spec, row):
            yield "channels", text


def filled_text(row: SensorFigures) -> str:
    """Which readings of a sensor were filled in."""
    return (
        f"{row['sensor']}: {row['filled']:.1%} of a channel's readings were missing and filled in, the longest gap "
        f"within a bout lasts {row['longest_gap_s']:.1f} s"
    )


def range_text(spec: DatasetSpec, row: SensorFigures) -> str:
    """How far a sensor reaches beyond ``max_abs``; empty where it does not."""
    if not row["outside"]:
        return ""
    limit = spec.max_abs[spec.names.index(row["sensor"])]
    return (
        f"{row['sensor']} reaches {max(-row['low'], row['high']):g}, expected at most {limit:g} in absolute value; "
        f"{row['outside']:.2%} of its values are beyond"
    )


def length_violations(spec: DatasetSpec, subject: int, lengths_s: Iterable[float]) -> list[Violation]:
    """Activities of a person that are much shorter or longer than ``activity_s``; absent activities do not count."""
    shortest, longest = spec.activity_s[0] / _SLACK, spec.activity_s[1] * _SLACK
    return [
        Violation(
            rule="rates",
            found=f"{name} lasts {length_s:.0f} s, expected {shortest:.0f} to {longest:.0f} s (or none)",
            subject=subject,
        )
        for name, length_s in zip(spec.classes, lengths_s, strict=True)
        # Some descriptions say nothing about lengths.
        if longest and length_s and not shortest <= length_s <= longest
    ]


def _unknown_codes(spec: DatasetSpec, recording: Recording) -> list[Violation]:
    present, counts = np.unique(recording.labels, return_counts=True)
    known = (*spec.labels, *spec.null_labels)
    unknown = {int(c): int(n) for c, n in zip(present, counts, strict=True) if c not in known}
    if not unknown:
        return []
    rows = ", ".join(f"code {code} in {{}} rows" for code in unknown)
    found = (
        f"{rows} of {{}}; the files have the codes {present.tolist()}, labels lists {list(spec.labels)}, null_labels "
        f"{list(spec.null_labels)}"
    )
    numbers = (*unknown.values(), len(recording.labels))
    return [Violation(rule="labels", found=found, subject=recording.subject, counts=numbers)]


def _absent_classes(spec: DatasetSpec, present: set[int]) -> Iterator[str]:
    """Classes whose code no row of any subject has: nobody could learn or test them."""
    absent = [f"{code} ({name})" for name, code in zip(spec.classes, spec.labels, strict=True) if code not in present]
    if absent:
        codes = f"code{'s' if len(absent) > 1 else ''} {listed(absent)}"
        yield f"no row in any file has {codes}; the files have the codes {sorted(present)}"


def _shifted_codes(spec: DatasetSpec, present: set[int]) -> Iterator[str]:
    """Codes in the files that fit all labels if these are counted one higher or one lower, and only then.

    Files with 0 to K - 1 and labels 1 to K would otherwise lose a class to ``null_labels`` and shift all others.
    """
    declared = set(spec.labels)
    for step in (-1, 1):
        moved = tuple(code + step for code in spec.labels)
        # A declared code that the files have, and that moving would drop, is a slip in `labels` and no shift.
        if declared <= present or not present.issuperset(moved) or declared & present - set(moved):
            continue
        nulls = tuple(code for code in spec.null_labels if code not in moved)
        last = [name for name, code in zip(spec.classes, spec.labels, strict=True) if code not in present]
        yield (
            f"your codes look shifted by one: the files have {sorted(present)}, labels lists {list(spec.labels)}, "
            f"null_labels {list(spec.null_labels)}; expected labels={moved} with null_labels={nulls}, or, where "
            f"{listed(last)} really has no row, classes and labels without it"
        )
        return


# Arrays of a recording: the rule, and the kinds of numbers.
_ARRAYS: Final[tuple[tuple[str, DataRule, str, str], ...]] = (
    ("signal", "channels", "fiu", "numbers"),
    ("labels", "labels", "iu", "integers"),
    ("bouts", "bouts", "iu", "integers"),
)


def _kinds(recording: Recording) -> _Found:
    """Values of another type than declared."""
    for name, rule, kinds, what in _ARRAYS:
        value = getattr(recording, name)
        is_array = type(value) in (np.ndarray, np.memmap)  # a masked array is one, too, and forgets its mask
        if not is_array or value.dtype.kind not in kinds:
            found = f"are {value.dtype}" if is_array else f"are of type {type(value).__name__}"
            way = "" if is_array else f": np.asarray({name})"
            yield rule, f"{name} {found}, expected {what} in a numpy array{way}"
    facts: object = recording.facts
    if not isinstance(facts, Mapping) or not all(isinstance(name, str) for name in facts):
        yield "description", f"facts are {shown(facts)}, expected a mapping from names to findings"
    synthetic: object = recording.synthetic
    if not isinstance(synthetic, bool | np.bool_):
        yield "description", f"synthetic is {shown(synthetic)}, expected True or False"


def _shapes(spec: DatasetSpec, recording: Recording) -> _Found:
    """Arrays that do not fit the description or each other."""
    signal, labels, filled = recording.signal, recording.labels, recording.filled
    if not len(labels):
        yield "subjects", "0 rows, expected some"
    if signal.shape == (spec.num_channels, len(labels)) != signal.shape[::-1]:
        yield "channels", f"signal has shape {signal.shape}, expected rows x channels; transpose it (signal.T)"
        return
    if signal.ndim != 2:
        yield "channels", f"signal has shape {signal.shape}, expected (rows, {spec.num_channels})"
    elif signal.shape[1] != spec.num_channels:
        summed = " + ".join(f"{name} {number}" for name, number in spec.modalities)
        declared = f"modalities declare {spec.num_channels} ({summed})"
        yield "channels", f"the signal has {signal.shape[1]} channels, but {declared}"
    if labels.shape != (rows := len(signal),):
        yield "labels", f"labels have shape {labels.shape} for {rows} rows of signal, expected ({rows},)"
    yield from _stretches(recording.bouts, rows)
    is_mask = isinstance(filled, np.ndarray) and (filled.dtype.kind, filled.shape) == ("b", signal.shape)
    if filled is not None and not is_mask:
        expected = f"expected None or a numpy array of bool with the shape {signal.shape} of the signal"
        yield "finite", f"filled is {shown(filled)}, {expected}"


def _stretches(bouts: Ints, rows: int) -> _Found:
    if bouts.ndim != 2 or bouts.shape[1] != 2:
        yield "bouts", f"bouts have shape {bouts.shape}, expected (n, 2)"
        return
    wrong = np.flatnonzero((bouts[:, 0] < 0) | (bouts[:, 1] > rows) | (bouts[:, 0] >= bouts[:, 1]))
    overlap = np.flatnonzero(bouts[1:, 0] < bouts[:-1, 1])
    if len(wrong):
        first = f"bout {wrong[0]} is {bouts[wrong[0]].tolist()}"
        yield "bouts", f"{first}, expected first < stop within 0 to {rows}"
    elif len(overlap):
        one, next_ = bouts[overlap[0] : overlap[0] + 2].tolist()
        yield "bouts", f"bouts {one} and {next_} overlap or are out of order: rows would be in two parts of a split"


def _values(spec: DatasetSpec, recording: Recording) -> _Found:
    """Readings that are no numbers, too many that were filled in, and people without data."""
    for name, first, stop in spec.columns():
        values = recording.signal[:, first:stop]
        with np.errstate(over="ignore"):
            bad = ~np.isfinite(values.astype(np.float32))
        if name in spec.sensors_of(recording.subject) and bad.any():
            row, column = np.argwhere(bad)[0].tolist()
            as_float32 = " as float32" if np.isfinite(values[bad]).any() else ""
            number = f"{name} has {int(bad.sum())} of {bad.size} values that are NaN or infinite{as_float32}"
            place = f"the first in row {row}, column {first + column}"
            yield "finite", f"{number}, {place}; expected none after parsing"
    if recording.filled is not None and (share := float(recording.filled.mean())) > spec.max_nan_share:
        expected = f"expected at most {spec.max_nan_share:.0%} (max_nan_share)"
        yield "finite", f"{share:.0%} of all readings were filled in, {expected}"
    if not len(recording.bouts):
        yield "subjects", "no bout, expected data of this person"
    elif not np.isin(recording.labels, spec.labels).any():
        labelled = f"none of {len(recording.labels)} rows has one of the labels"
        yield "subjects", f"{labelled}, expected data of this person"


def content_digest(recording: Recording) -> str:
    """The sha256 of signal, labels and bouts: what two parses of one file share, and two people never do."""
    digest = hashlib.sha256()
    for array in (recording.signal, recording.labels, recording.bouts):
        plain: NDArray[np.generic] = np.ascontiguousarray(array)
        digest.update(f"{plain.dtype} {plain.shape}".encode())
        digest.update(plain.data)
    return digest.hexdigest()


def _same_people(recordings: Mapping[int, Recording]) -> Iterator[str]:
    """Subjects whose recordings are equal bit by bit."""
    first: dict[str, int] = {}
    for subject, recording in recordings.items():
        if (other := first.setdefault(content_digest(recording), subject)) != subject:
            yield f"subjects {other} and {subject} have the same recording, bit by bit; expected two people's"
