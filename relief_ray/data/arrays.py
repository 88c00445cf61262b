"""A data set out of arrays: checked, written once to the user's cache, and read by one built-in loader from then on.

``arrays:NAME@SHA12`` is its name everywhere: twelve digits of the sha256 over its values and its description. Its
files are ``arrays/NAME@SHA12`` of the cache: ``dataset.json`` and an ``.npz`` per subject, which come whole or not at
all.
"""

import io
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from relief_ray.data.checks import content_digest, refuse, spec_violations, violations_of_all, with_own_types
from relief_ray.data.loader import DatasetSpec, Floats, Loader, Members, Recording, bouts_of, require_members
from relief_ray.data.source import MARKER, some_of
from relief_ray.plugins.load import STORED
from relief_ray.support.errors import UserError, listed, nearest, shown
from relief_ray.support.files import cache_root, disk_errors, folder_atomic, sha256_json

_SPEC: Final = "dataset.json"
_NAME: Final = re.compile(r"\w[\w-]*", re.ASCII)
_Any = NDArray[Any]
# Above it float32 rounds whole numbers to even ones.
_MOST = 2**24


def dataset(
    name: str,
    signals: ArrayLike,
    labels: ArrayLike,
    *,
    subject: ArrayLike,
    recording: ArrayLike | None = None,
    rate_hz: int,
    sensors: Mapping[str, slice | list[int]],
    null: object = None,
    window_s: float | None = None,
    synthetic: bool = False,
) -> Loader:
    """Make a data set of arrays, for ``run(data=..)``; equal arrays give the same data set and are written once.

    Args:
        name: its name: letters, digits, _ and -.
        signals: rows (T, channels) in order of time, or windows (n, channels, samples) that were cut before, which are
            taken as they are: ``data.stride_s`` is their length.
        labels: the class of each row or window: a whole number or a text.
        subject: whose it is, likewise; people become clients.
        recording: which recording it is of, likewise; nothing holds across two of them. None: one per person.
        rate_hz: samples per second.
        sensors: columns of each sensor, as a slice or a list; the rarest sensor last. Other columns are left out. A
            person whose rows are all NaN in a sensor's columns lacks that sensor.
        null: the label, or list of labels, of rows without an activity, which no window is labelled with. Negative
            numbers are refused as activities.
        window_s: seconds of a window of rows; None: 5.12. Windows that were cut before have their own.
        synthetic: whether the values are made up; every table then says SYNTHETIC.

    Raises:
        UserError: the arrays do not fit each other, or cannot be a data set; the argument is named.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _wrong("name", shown(name), "letters, digits, _ and - alone", "e.g. 'gestures', since folders bear it")
    if isinstance(rate_hz, bool) or not isinstance(rate_hz, int | np.integer) or rate_hz < 1:
        raise _wrong("rate_hz", shown(rate_hz), "a whole number of samples per second above 0", "resample the signals")
    values, samples = _rows(signals)
    window_s = window_s.item() if isinstance(window_s, np.number) else window_s
    if samples and window_s:
        raise _wrong("window_s", shown(window_s), "none, as these windows were cut before", "leave it out")
    num = len(values) // (samples or 1)
    labels, subject = _column("labels", labels, num), _column("subject", subject, num)
    stretch = np.zeros(num, np.int64) if recording is None else _column("recording", recording, num)
    labels, subject, stretch = (np.repeat(column, samples or 1) for column in (labels, subject, stretch))
    columns = _columns(sensors, values.shape[1])
    signal, lacking = _finite(values, columns, subject)
    is_number = isinstance(window_s, int | float) and not isinstance(window_s, bool)
    if window_s is not None and not (is_number and 0.0 < window_s <= sys.float_info.max):
        raise _wrong("window_s", shown(window_s), "seconds above 0", "leave it out for 5.12")
    nulls = np.isin(labels, _nulls(null, labels))
    if labels.dtype.kind == "i" and (negative := np.unique(labels[~nulls & (labels < 0)]).tolist()):
        fix = f"null={shown(negative[0] if len(negative) == 1 else negative)} where that is no activity"
        raise _wrong("labels", shown(negative), "activities, numbered from 0 or by names", fix)
    classes, people = np.unique(labels[~nulls]), np.unique(subject)
    for argument, found, fix in (("labels", classes, "look at `null`, too"), ("subject", people, "each is a client")):
        if len(found) < 2:
            raise _wrong(argument, f"{found.tolist()} alone", "at least two values", fix)
    codes = np.where(nulls, 0, np.searchsorted(classes, labels) + 1).astype(np.int16)
    numbers = people.tolist() if people.dtype.kind in "iu" else range(1, len(people) + 1)
    recordings = {}
    for number, person in zip(numbers, people, strict=True):
        rows = np.flatnonzero(subject == person)
        recordings[number] = Recording(
            subject=number,
            signal=signal[rows],
            labels=codes[rows],
            bouts=bouts_of(codes[rows], stretch[rows], rows - np.arange(len(rows))),
            facts={"person": str(person)},
        )
    if samples:
        _refuse_overlap(recordings, samples)
    spec = DatasetSpec(
        name=name,
        title=name,
        rate_hz=int(rate_hz),
        raw_rate_hz=int(rate_hz),
        modalities=tuple((sensor, len(own)) for sensor, own in columns.items()),
        classes=tuple(map(str, classes)),
        labels=tuple(range(1, len(classes) + 1)),
        null_labels=(0,),
        subjects=tuple(recordings),
        lacks={number: lacking[person] for number, person in zip(numbers, people, strict=True) if person in lacking},
        citation="its owner",
        licence="its owner's",
        member=r"^-?\d+\.npz$",
        window_s=samples / int(rate_hz) or float(window_s or 5.12),
        cut=samples > 0,
    )
    refuse(f"rr.dataset({name!r})", spec_violations(spec) or violations_of_all(spec, recordings))
    contents = [[content_digest(each), dict(each.facts)] for each in recordings.values()]
    full = f"{STORED}{name}@{sha256_json([asdict(spec), bool(synthetic), contents])[:12]}"
    _write(_folder(full), spec, recordings, synthetic)
    return stored(full)


def _nulls(null: object, labels: _Any) -> _Any:
    """The labels of rows without an activity, each of which some row has."""
    given = _array("null", [] if null is None else null).ravel()  # type: ignore[arg-type]
    is_number = labels.dtype.kind in "iu"
    if given.size and given.dtype.kind not in ("iu" if is_number else "U"):
        kind = "a whole number" if is_number else "a text"
        raise _wrong("null", shown(null), f"{kind}, as labels are, or a list of such", "write it as labels have it")
    if unseen := [each for each in given.tolist() if each not in labels]:
        known = f"some of {np.unique(labels).tolist()}"
        raise _wrong("null", f"{shown(unseen)}, which no row has", known, "leave it out")
    return given


def _wrong(argument: str, found: str, expected: str, fix: str) -> UserError:
    return UserError(f"rr.dataset: {argument}: found {found}, expected {expected}; {fix}")


def _rows(signals: ArrayLike) -> tuple[_Any, int]:
    """Rows (T, channels) of rows or windows, and the samples of a window; 0: they were rows."""
    values = _array("signals", signals)
    if values.ndim not in (2, 3) or not values.size:
        expected = "rows (T, channels) or windows (n, channels, samples), not empty"
        raise _wrong("signals", f"the shape {values.shape}", expected, "stack or transpose them")
    if values.dtype.kind not in "fiu":
        raise _wrong("signals", f"values of the type {values.dtype}", "numbers", "e.g. signals.astype('float32')")
    if values.dtype.kind in "iu" and values.size and max(-int(values.min()), int(values.max())) > _MOST:
        found, fix = f"whole numbers up to {int(np.abs(values).max())}", "take an offset away, or divide"
        raise _wrong("signals", found, f"at most {_MOST} in size, which float32 tells from the next", fix)
    if values.ndim == 2:
        return values, 0
    return values.transpose(0, 2, 1).reshape(-1, values.shape[1]), values.shape[2]


def _array(argument: str, given: ArrayLike) -> _Any:
    if isinstance(given, np.ma.MaskedArray):
        fix = "fill what is masked, with NaN or a label for `null`: .filled(..)"
        raise _wrong(argument, "a masked array, whose mask would be lost", "an array", fix)
    try:
        values = np.asarray(given)
    except ValueError as error:  # parts of several lengths
        raise _wrong(argument, f"parts of unlike shapes ({error})", "one array", "concatenate what belongs") from None
    except (TypeError, RuntimeError) as error:  # a tensor with a gradient, or of a type that numpy lacks
        fix = "of a tensor: .detach().float().numpy()"
        raise _wrong(argument, f"{type(given).__name__} ({error})", "an array", fix) from None
    is_text = values.dtype.kind == "O" and all(isinstance(each, str) for each in values.flat)
    return values.astype(str) if is_text and values.size else values


def _column(argument: str, given: ArrayLike, length: int) -> _Any:
    """A whole number or a text per row or window: (length,)."""
    values = _array(argument, given)
    if values.shape != (length,):
        fix = "give one for each row, or for each window that was cut before"
        raise _wrong(argument, f"the shape {values.shape}", f"({length},), as long as signals", fix)
    absent = np.flatnonzero(np.isnan(values)).tolist() if values.dtype.kind == "f" else []
    if absent:
        found = f"{len(absent)} NaN, the first in row {absent[0]}"
        raise _wrong(argument, found, "a value everywhere", "leave these rows out, or label them as `null`")
    if values.dtype.kind not in "iuU":
        fix = f"e.g. {argument}.astype(int)"
        raise _wrong(argument, f"values of the type {values.dtype}", "whole numbers or texts", fix)
    return values


def _columns(sensors: object, num_channels: int) -> dict[str, list[int]]:
    """Column indices of each sensor; no column belongs to two sensors."""
    if not isinstance(sensors, Mapping) or not sensors:
        found, fix = shown(sensors), "e.g. sensors={'acc': slice(0, 3)}"
        raise _wrong("sensors", found, "columns by the name of the sensor", fix)
    owner: dict[int, str] = {}
    columns: dict[str, list[int]] = {}
    for sensor, given in sensors.items():
        place, fix = f"sensors[{sensor!r}]", f"signals have the columns 0 to {num_channels - 1}"
        if given is None or isinstance(given, bool):
            raise _wrong(place, shown(given), "a slice or a list of columns", fix)
        try:
            own = np.atleast_1d(np.arange(num_channels)[given]).tolist()
        except IndexError:
            own = []
        if not own or isinstance(own[0], list) or (isinstance(given, slice) and (given.stop or 0) > num_channels):
            raise _wrong(place, shown(given), "columns that signals have, at least one", fix)
        for column in own:
            if column in owner:
                raise _wrong(place, f"column {column}, which {owner[column]!r} has", "columns of its own", fix)
            owner[column] = str(sensor)
        columns[str(sensor)] = own
    return columns


def _finite(values: _Any, columns: Mapping[str, list[int]], subject: _Any) -> tuple[Floats, dict[Any, tuple[str, ...]]]:
    """The sensors' columns side by side as float32 (T, channels), and the sensors that people lack: all NaN there."""
    chosen = [column for own in columns.values() for column in own]
    sensor_of = np.repeat([*columns], [len(own) for own in columns.values()])
    with np.errstate(over="ignore"):
        signal = values[:, chosen].astype(np.float32)
    bad = ~np.isfinite(signal)
    lacking: dict[Any, list[str]] = {}
    for person in np.unique(subject[bad.any(1)]):
        for sensor in columns:
            own = np.ix_(subject == person, sensor_of == sensor)
            if np.isnan(signal[own]).all():
                lacking.setdefault(person, []).append(sensor)
                bad[own] = False
    if people := [person for person, sensors in lacking.items() if len(sensors) == len(columns)]:
        found = f"NaN alone in all rows of {listed(list(map(str, people)))}"
        raise _wrong(
            "signals", found, "numbers of one sensor at least", "leave these people out, or read the file anew"
        )
    if bad.any():
        row, column = np.argwhere(bad)[0]
        found = f"{int(bad.sum())} values that are NaN or infinite as float32, the first in row {row}, column "
        fix = "fill the gaps (np.interp), or leave these rows out; a sensor that a person lacks is NaN in all its rows"
        where = f"{chosen[column]} ({sensor_of[column]} of {subject[row]})"
        raise _wrong("signals", f"{found}{where}", "finite numbers", fix)
    return signal, {person: tuple(names) for person, names in lacking.items()}


def _refuse_overlap(recordings: Mapping[int, Recording], samples: int) -> None:
    """Check that windows two places apart share no sample: one window is left out between the parts of a split.

    Raises:
        UserError: they do.
    """
    for recording in recordings.values():
        first, stop = recording.bouts[np.argmax(recording.bouts[:, 1] - recording.bouts[:, 0])]
        one, three = (recording.signal[first + i * samples : first + (i + 1) * samples] for i in (0, 2))
        if stop - first < 3 * samples or not np.ptp(one, axis=0).any():
            continue
        if step := next((s for s in range(1, samples) if np.array_equal(one[s:], three[:-s])), 0):
            found = f"windows every {step / 2:g} of {samples} samples (subject {recording.subject})"
            fix = "training and test would share samples: give the rows, or every other window"
            raise _wrong("signals", found, "windows that overlap by half at most", fix)


def _folder(name: str) -> Path:
    return cache_root() / "arrays" / name.removeprefix(STORED)


def _write(folder: Path, spec: DatasetSpec, recordings: Mapping[int, Recording], synthetic: bool) -> None:
    if folder.exists():
        return
    with disk_errors(folder, "write the data set there"), folder_atomic(folder) as part:
        (part / _SPEC).write_text(json.dumps(asdict(spec)))
        if synthetic:
            (part / MARKER).write_text(json.dumps({"origin": "SYNTHETIC"}))
        for number, each in recordings.items():
            person = str(each.facts["person"])
            np.savez(part / f"{number}.npz", signal=each.signal, labels=each.labels, bouts=each.bouts, person=person)


def stored(name: str) -> Loader:
    """The loader of the data set ``arrays:NAME@SHA12`` that ``dataset`` wrote to this machine's cache.

    Raises:
        UserError: it is not there, or damaged.
    """
    folder, short = _folder(name), name.removeprefix(STORED).partition("@")[0]
    try:
        if not _NAME.fullmatch(short):  # a path that leads elsewhere
            raise ValueError("no such name")
        values = json.loads((folder / _SPEC).read_text())
        spec = with_own_types(DatasetSpec(**{**values, "name": name, "packaged": str(folder)}))
    except (OSError, ValueError, TypeError) as error:
        known = [f"{STORED}{each.name}" for each in sorted(folder.parent.glob("*@*"))]
        raise UserError(
            f"data.name = {name!r}: found no whole folder {folder} ({error}){nearest(name, known)}; there is "
            f"{some_of(known)}. Fix: delete what is there, and run the lines with rr.dataset({short!r}, ..) on "
            "this machine, which write it, or copy the folder there"
        ) from None
    return Loader(spec=spec, files=_files, parse=_parse)


def _files(spec: DatasetSpec, subject: int) -> list[str]:
    return [f"{subject}.npz"]


def _parse(spec: DatasetSpec, members: Members, path: Path, subject: int) -> Recording:
    (name,) = require_members(spec, members.names, _files(spec, subject), path)
    with np.load(io.BytesIO(members.read(name)), allow_pickle=False) as arrays:
        return Recording(
            subject=subject,
            signal=arrays["signal"],
            labels=arrays["labels"],
            bouts=arrays["bouts"],
            facts={"person": str(arrays["person"])},
        )
