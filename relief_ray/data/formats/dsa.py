"""Daily and Sports Activities: 19 activities, 8 subjects, 60 text files of 125 x 45 each, at 25 Hz.

A file's columns are, per body unit (T, RA, LA, RL, LL): acc x y z, gyro x y z, mag x y z. The 60 files of an activity
and subject are one recording of five minutes; they are joined into one bout (docs/data.md says what was checked).
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from relief_ray.data.formats.common import is_signature, read_table, require_finite
from relief_ray.data.sensor_recording import Recording
from relief_ray.data.source import Members, require_members
from relief_ray.data.spec import DSA_UNITS, DatasetSpec
from relief_ray.errors import UserError

SEGMENT_ROWS = 125
NUM_SEGMENTS = 60
NUM_COLUMNS = 45


def column_order() -> NDArray[np.int64]:
    """File columns in canonical order: modality first (acc, gyro, mag), then unit, then axis."""
    return np.arange(NUM_COLUMNS).reshape(len(DSA_UNITS), 3, 3).transpose(1, 0, 2).ravel()


def files(spec: DatasetSpec, subject: int) -> list[str]:
    """The ends of a subject's file names, in label and time order."""
    return [f"a{code:02d}/p{subject}/s{part:02d}.txt" for code in spec.labels for part in range(1, NUM_SEGMENTS + 1)]


def read_segment(members: Members, name: str) -> NDArray[np.float32]:
    """One five-second file: (125, 45) finite numbers; UserError names file, line and finding."""
    table = read_table(members.read(name), name=name, columns=NUM_COLUMNS, delimiter=",")
    if len(table) != SEGMENT_ROWS:
        raise UserError(f"{name}: found {len(table)} lines, expected {SEGMENT_ROWS}; cut short: fetch again")
    require_finite(table, name)
    return table


def parse(spec: DatasetSpec, members: Members, path: Path, subject: int) -> Recording:
    """All activities of one subject, in label order: one bout of 7500 rows each."""
    names = require_members(spec, members.names, files(spec, subject), path)
    order = column_order()
    signal = np.empty((len(names) * SEGMENT_ROWS, NUM_COLUMNS), np.float32)
    synthetic = False
    for index, name in enumerate(names):
        table = read_segment(members, name)
        synthetic = synthetic or is_signature(table[0])
        signal[index * SEGMENT_ROWS : (index + 1) * SEGMENT_ROWS] = table[:, order]
    rows = NUM_SEGMENTS * SEGMENT_ROWS
    starts = np.arange(len(spec.labels), dtype=np.int64) * rows
    return Recording(
        subject=subject,
        signal=signal,
        labels=np.repeat(np.array(spec.labels, np.int16), rows),
        bouts=np.stack([starts, starts + rows], axis=1),
        synthetic=synthetic,
    )
