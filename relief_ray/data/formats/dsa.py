"""Daily and Sports Activities (dsa): its facts and its parser.

19 activities, 8 subjects, 60 text files of 125 rows x 45 columns each, at 25 Hz. A file's columns are, per body
unit (T, RA, LA, RL, LL): acc x y z, gyro x y z, mag x y z. The 60 files of an activity and subject are one recording of
five minutes; they are joined into one bout (docs/data.md says what was checked).
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from relief_ray.data.formats.common import is_signature, read_table, require_finite, signature
from relief_ray.data.loader import DatasetSpec, Floats, Ints, Loader, Members, Recording, bouts_between, require_members
from relief_ray.data.synthetic import MOTIONS, make_person, moving, write_table
from relief_ray.support.errors import UserError

UNITS = ("T", "RA", "LA", "RL", "LL")
_SEGMENT_ROWS = 125
NUM_SEGMENTS = 60
NUM_COLUMNS = 45

SPEC = DatasetSpec(
    name="dsa",
    title="Daily and Sports Activities",
    rate_hz=25,
    raw_rate_hz=25,
    modalities=(("acc", 15), ("gyro", 15), ("mag", 15)),
    classes=(
        "sitting",
        "standing",
        "lying_on_back",
        "lying_on_right_side",
        "ascending_stairs",
        "descending_stairs",
        "standing_in_elevator",
        "moving_in_elevator",
        "walking_in_parking_lot",
        "walking_on_treadmill_flat",
        "walking_on_treadmill_inclined",
        "running_on_treadmill",
        "stepper",
        "cross_trainer",
        "cycling_horizontal",
        "cycling_vertical",
        "rowing",
        "jumping",
        "playing_basketball",
    ),
    labels=tuple(range(1, 20)),
    null_labels=(0,),
    subjects=tuple(range(1, 9)),
    citation=(
        "K. Altun, B. Barshan and O. Tuncel, 'Comparative study on classifying human activities with miniature "
        "inertial and magnetic sensors', Pattern Recognition 43(10), 2010; B. Barshan and M. C. Yuksek, 'Recognizing "
        "daily and sports activities in two open source machine learning environments using body-worn sensor units', "
        "The Computer Journal 57(11), 2014."
    ),
    licence="CC BY 4.0 (as listed by UCI)",
    doi="10.24432/C5C59F",
    url="https://archive.ics.uci.edu/static/public/256/daily+and+sports+activities.zip",
    hints=("daily", "dsa"),
    member=r"(^|/)a(0[1-9]|1\d)/p[1-8]/s([0-5]\d|60)\.txt$",
    units=UNITS,
    max_abs=(200.0, 40.0, 5.0),
    activity_s=(300.0, 300.0),
    fixed_length=True,
)


def column_order() -> Ints:
    """File columns in canonical order: modality first (acc, gyro, mag), then unit, then axis."""
    return np.arange(NUM_COLUMNS).reshape(len(UNITS), 3, 3).transpose(1, 0, 2).ravel()


def files(spec: DatasetSpec, subject: int) -> list[str]:
    """The ends of a subject's file names, in label and time order."""
    return [f"a{code:02d}/p{subject}/s{part:02d}.txt" for code in spec.labels for part in range(1, NUM_SEGMENTS + 1)]


def read_segment(members: Members, name: str) -> Floats:
    """One five-second file: (125, 45) finite numbers; UserError names file, line and finding."""
    table = read_table(members.read(name), name=name, columns=NUM_COLUMNS, delimiter=",")
    if len(table) != _SEGMENT_ROWS:
        raise UserError(f"{name}: found {len(table)} lines, expected {_SEGMENT_ROWS}; cut short: fetch again")
    require_finite(table, name)
    return table.astype(np.float32)


def parse(spec: DatasetSpec, members: Members, path: Path, subject: int) -> Recording:
    """All activities of one subject, in label order: one bout of 7500 rows each."""
    names = require_members(spec, members.names, files(spec, subject), path)
    order = column_order()
    signal = np.empty((len(names) * _SEGMENT_ROWS, NUM_COLUMNS), np.float32)
    synthetic = False
    for index, name in enumerate(names):
        table = read_segment(members, name)
        synthetic = synthetic or is_signature(table[0])
        signal[index * _SEGMENT_ROWS : (index + 1) * _SEGMENT_ROWS] = table[:, order]
    rows = NUM_SEGMENTS * _SEGMENT_ROWS
    return Recording(
        subject=subject,
        signal=signal,
        labels=np.repeat(np.array(spec.labels, np.int16), rows),
        bouts=bouts_between(rows * np.arange(len(spec.labels) + 1)),
        synthetic=synthetic,
    )


def synthesise(spec: DatasetSpec, folder: Path, subject: int, scale: float, rng: np.random.Generator) -> None:
    """Write one subject's synthetic files, 60 an activity, by the physical model of `data.synthetic`."""
    person = make_person(rng, 5)
    for code, name in zip(spec.labels, spec.classes, strict=True):
        body = moving([(MOTIONS[name], round(scale * 7500))], person, spec.rate_hz, rng)
        body[:, :, 6:] /= 50.0  # this set's magnetometers are given relative to the Earth's field
        table = body.reshape(len(body), 45)
        table[0] = signature(45)
        for part in range(60):
            path = folder / "data" / f"a{code:02d}" / f"p{subject}" / f"s{part + 1:02d}.txt"
            write_table(path, table[125 * part : 125 * (part + 1)], ["%.5g"] * 45, ",")


DSA = Loader(spec=SPEC, files=files, parse=parse, synthesise=synthesise)


def with_units(spec: DatasetSpec, units: tuple[str, ...]) -> DatasetSpec:
    """The same dataset with only some body units (dsa): three channels per unit and modality, canonical unit order.

    Raises:
        UserError: another dataset than dsa, or units that are unknown or repeated.
    """
    if not units or units == spec.units:
        return spec
    if spec.name != SPEC.name:
        raise UserError(f"data.units={list(units)}: only 'dsa' has selectable units, not {spec.name!r}; remove the key")
    unknown = [unit for unit in units if unit not in UNITS]
    if unknown or len(set(units)) != len(units):
        raise UserError(f"data.units={list(units)}: expected distinct names out of {', '.join(UNITS)}")
    chosen = tuple(unit for unit in UNITS if unit in units)
    return replace(spec, units=chosen, modalities=tuple((name, 3 * len(chosen)) for name in spec.names))


def unit_columns(units: tuple[str, ...]) -> Ints:
    """The parsed signal's columns that belong to these body units, in canonical order."""
    positions = [UNITS.index(unit) for unit in units]
    return np.arange(NUM_COLUMNS).reshape(3, len(UNITS), 3)[:, positions].ravel()
