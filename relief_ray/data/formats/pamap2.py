"""PAMAP2: its facts and its parser; per subject one text file of 54 columns at 100 Hz, brought to 50 Hz.

Columns: time, activity, heart rate, then for hand, chest and ankle: temperature, acc +-16 g (3), acc +-6 g (3), gyro,
mag (3 each), orientation (4, invalid). Kept: acc +-16 g, gyro, mag, heart rate. The null class 0 is dropped. IMU gaps
are interpolated linearly; heart rate is filled forward only, and rows before its first reading are dropped. Every
unbroken stretch of one activity is filtered and halved on its own, so nothing mixes over an activity's border.

The rate is halved behind a zero-phase low-pass filter against aliasing: a windowed sinc of 63 taps (Hamming), half
amplitude at 0.43 of the new rate (21.5 Hz of 50 Hz). docs/data.md gives the measured attenuation.
"""

from pathlib import Path

import numpy as np

from relief_ray.data.formats.common import missing_classes, read_subject, signature
from relief_ray.data.loader import (
    Codes,
    DatasetSpec,
    Doubles,
    Floats,
    Ints,
    Loader,
    Mask,
    Members,
    Recording,
    bouts_between,
    bouts_where,
    fill_forward,
    fill_linear,
)
from relief_ray.data.synthetic import make_person, record, write_table
from relief_ray.support.errors import UserError

NUM_COLUMNS = 54
_HEART_RATE = 2
NUM_TAPS = 63
_CUTOFF = 0.43
_FACTOR = 2
_IMUS = (3, 20, 37)
# The heart rate has about nine readings a second; one is held for so long before it counts as missing.
_HELD_S = 1.0

SPEC = DatasetSpec(
    name="pamap2",
    title="PAMAP2 Physical Activity Monitoring",
    rate_hz=50,
    raw_rate_hz=100,
    modalities=(("acc", 9), ("gyro", 9), ("mag", 9), ("hr", 1)),
    classes=(
        "lying",
        "sitting",
        "standing",
        "walking",
        "running",
        "cycling",
        "nordic_walking",
        "ascending_stairs",
        "descending_stairs",
        "vacuum_cleaning",
        "ironing",
        "rope_jumping",
    ),
    labels=(1, 2, 3, 4, 5, 6, 7, 12, 13, 16, 17, 24),
    null_labels=(0,),
    subjects=(101, 102, 103, 104, 105, 106, 107, 108),
    citation=(
        "A. Reiss and D. Stricker, 'Introducing a New Benchmarked Dataset for Activity Monitoring', "
        "16th International Symposium on Wearable Computers (ISWC), 2012."
    ),
    licence="CC BY 4.0 (as listed by UCI)",
    doi="10.24432/C5NW2H",
    url="https://archive.ics.uci.edu/static/public/231/pamap2+physical+activity+monitoring.zip",
    hints=("pamap2",),
    member=r"(^|/)Protocol/subject10[1-8]\.dat$",
    max_abs=(170.0, 40.0, 400.0, 230.0),
    activity_s=(20.0, 420.0),
)


def lowpass() -> Doubles:
    """The filter's taps (NUM_TAPS,), unit gain at 0 Hz."""
    position = np.arange(NUM_TAPS) - NUM_TAPS // 2
    cutoff = _CUTOFF / _FACTOR
    taps = 2 * cutoff * np.sinc(2 * cutoff * position) * np.hamming(NUM_TAPS)
    normalised: Doubles = taps / taps.sum()
    return normalised


def decimate(signal: Floats) -> Floats:
    """Filter (rows, channels) and keep every other row; the ends are continued with their own values.

    To keep activities apart, call it on one bout at a time: nothing outside `signal` is looked at.
    """
    half = NUM_TAPS // 2
    padded = np.pad(signal.astype(np.float64), ((half, half), (0, 0)), mode="edge")
    kept = np.arange(0, len(signal), _FACTOR)
    out = np.zeros((len(kept), signal.shape[1]))
    for tap, weight in enumerate(lowpass()):
        out += weight * padded[kept + tap]
    return out.astype(np.float32)


def _imu_columns() -> tuple[int, ...]:
    """File columns in canonical order: acc (hand, chest, ankle), gyro, mag."""
    return tuple(imu + offset + axis for offset in (1, 7, 10) for imu in _IMUS for axis in range(3))


def files(spec: DatasetSpec, subject: int) -> list[str]:
    """The end of a subject's file name."""
    return [f"Protocol/subject{subject}.dat"]


def parse(spec: DatasetSpec, members: Members, path: Path, subject: int) -> Recording:
    """One subject; facts: rows without heart rate, absent activities."""
    (end,), columns, rest = files(spec, subject), _imu_columns(), slice(_HEART_RATE, None)
    name, read, labels, synthetic = read_subject(
        spec, members, path, end, columns=NUM_COLUMNS, label=1, sensors=(*columns, _HEART_RATE), ramp=rest
    )
    time_s, table = read[:, 0], read.astype(np.float32)
    filled = _fill(table, columns)
    lost = np.column_stack([np.isnan(table[:, columns]), _overdue(table[:, _HEART_RATE], spec.raw_rate_hz)])
    started = ~np.isnan(filled[:, -1])
    bouts = _bouts(time_s, labels, started, name)
    signal, kept = _halve(filled, bouts)
    return Recording(
        subject=subject,
        signal=signal,
        labels=np.repeat(labels[bouts[:, 0]], kept[:, 1] - kept[:, 0]),
        bouts=kept,
        synthetic=synthetic,
        facts={
            "labelled_rows_before_first_hr": int((~started & (labels > 0)).sum()),
            "missing_labels": missing_classes(labels[started], spec),
        },
        filled=np.concatenate([lost[start:stop:_FACTOR] for start, stop in bouts]),
    )


def _fill(table: Floats, columns: tuple[int, ...]) -> Floats:
    """Signal (rows, 28) without IMU gaps, heart rate last."""
    filled = [fill_linear(table[:, column]) for column in columns]
    return np.stack([*filled, fill_forward(table[:, _HEART_RATE])], axis=1)


def _overdue(heart_rate: Floats, rate_hz: int) -> Mask:
    """Rows whose last reading is older than ``_HELD_S``: (rows,)."""
    rows = np.arange(len(heart_rate))
    read = np.maximum.accumulate(np.where(np.isnan(heart_rate), -len(rows), rows))
    return rows - read > _HELD_S * rate_hz


def _bouts(time_s: Doubles, labels: Codes, started: Mask, name: str) -> Ints:
    """Run of one activity with an even clock and a known heart rate."""
    steps = np.diff(time_s, prepend=time_s[:1] - 0.01)
    if not np.isfinite(time_s).all() or (steps <= 0).any():
        line = int(np.flatnonzero(~(steps > 0))[0]) + 1
        raise UserError(f"{name}, line {line}, column 1: time does not increase, expected one row every 0.01 s")
    breaks = np.cumsum(steps > 0.015)
    return bouts_where((labels > 0) & started, labels, breaks, started)


def _halve(filled: Floats, bouts: Ints) -> tuple[Floats, Ints]:
    """Each bout decimated on its own (heart rate: its value at the kept rows), and the bouts' new places."""
    pieces = [
        np.concatenate([decimate(filled[start:stop, :-1]), filled[start:stop:_FACTOR, -1:]], axis=1)
        for start, stop in bouts
    ]
    return np.concatenate(pieces), bouts_between(np.cumsum([0, *map(len, pieces)]))


# Synthetic recordings: activities in order, usual seconds where not 225, activities that a subject lacks.
_SYNTHETIC_ORDER = (1, 2, 3, 17, 16, 12, 13, 12, 13, 4, 7, 6, 5, 24)
_SYNTHETIC_SECONDS = {12: 72.0, 13: 65.0, 24: 90.0, 5: 160.0}
_SYNTHETIC_ABSENT = {103: (5, 6, 7, 24), 104: (5, 24), 107: (24,)}


def synthesise(spec: DatasetSpec, folder: Path, subject: int, scale: float, rng: np.random.Generator) -> None:
    """Write one subject's synthetic file: null, activity, null, .. by the physical model of `data.synthetic`."""
    person = make_person(rng, 3)
    codes = tuple(code for code in _SYNTHETIC_ORDER if code not in _SYNTHETIC_ABSENT.get(subject, ()))
    labels, body, bpm = record(spec, person, codes, _SYNTHETIC_SECONDS, 225.0, 80.0, scale, rng)
    table = np.full((len(labels), 54), 30.0)
    table[:, 0] = 5.0 + np.arange(len(labels)) / spec.raw_rate_hz
    table[:, 1] = labels
    measured = np.arange(len(labels)) % 11 == 7
    table[:, 2] = np.where(measured, np.round(bpm), np.nan)
    table[:, _imu_columns()] = _canonical(body)
    for place, imu in enumerate(_IMUS):
        table[:, imu + 4 : imu + 7] = np.clip(body[:, place, :3], -58.0, 58.0)
        table[:, imu + 13 : imu + 17] = (1.0, 0.0, 0.0, 0.0)
        _drop_rows(table, slice(imu, imu + 17), rng)
    table[0] = [5.0, 0.0, *signature(52)]
    path = folder / "PAMAP2_Dataset" / "Protocol" / f"subject{subject}.dat"
    write_table(path, table, ["%.2f", "%d", *["%.6g"] * 52], " ")


def _canonical(body: Doubles) -> Doubles:
    """(rows, places, 9) to (rows, 9 * places): acc of all places, then gyro, then mag."""
    rows, places, _ = body.shape
    return body.reshape(rows, places, 3, 3).transpose(0, 2, 1, 3).reshape(rows, 9 * places)


def _drop_rows(table: Doubles, columns: slice, rng: np.random.Generator) -> None:
    """Lost wireless packets: stretches of NaN, about half a percent of the rows."""
    starts = rng.integers(1, len(table), max(1, len(table) // 4000))
    for start, length in zip(starts, rng.integers(2, 40, len(starts)), strict=True):
        table[start : start + length, columns] = np.nan


PAMAP2 = Loader(spec=SPEC, files=files, parse=parse, synthesise=synthesise)
