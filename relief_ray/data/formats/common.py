"""Parts that the parsers share: text tables, labels, and the mark of synthetic files.

Tables are parsed fast and refused with file, line, column, finding and expectation. The first row of every synthetic
file is a fixed ramp (``signature``), so that synthetic data stay known when their marker file is lost.
"""

import io
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from relief_ray.data.loader import Codes, DatasetSpec, Floats, Mask, Members, require_members
from relief_ray.support.errors import UserError

# A table as its file has it; a signal is narrowed to float32, a clock of many digits is not.
Table = NDArray[np.float64]
_NULL_CODE = 0
_STEP = 0.0101


def read_subject(
    spec: DatasetSpec,
    members: Members,
    path: Path,
    end: str,
    *,
    columns: int,
    label: int,
    sensors: Sequence[int],
    ramp: slice,
) -> tuple[str, Table, Codes, bool]:
    """A subject's one file, which ends in `end`: its name, table without the ramp, labels, and whether it had the ramp.

    Args:
        spec: the dataset's facts.
        members: the raw files.
        path: their folder or archive, for messages.
        end: end of the file's name.
        columns: their number.
        label: the column of raw codes.
        sensors: columns that must have readings.
        ramp: columns that have the ramp in the first row of a synthetic file.

    Raises:
        UserError: the file is missing, or no such table; line and column are named.
    """
    (name,) = require_members(spec, members.names, [end], path)
    table = read_table(members.read(name), name=name, columns=columns)
    synthetic = is_signature(table[0, ramp])
    table = table[1:] if synthetic else table
    require_not_empty(table, sensors, name)
    return name, table, _check_labels(table[:, label], spec, name), synthetic


def _check_labels(column: Table, spec: DatasetSpec, name: str) -> Codes:
    """The label column as int16; UserError names the first line whose label the dataset does not have."""
    known = np.isin(column, (_NULL_CODE, *spec.labels))
    if not known.all():
        row = int(np.flatnonzero(~known)[0])
        codes = ", ".join(map(str, spec.labels))
        raise UserError(f"{name}, line {row + 1}: label {column[row]:g}, expected 0 or one of {codes}; fetch it again")
    labels = column.astype(np.int16)
    if not (labels != _NULL_CODE).any():
        raise UserError(f"{name}: every row has label 0 (no activity), expected some of {spec.labels}; fetch it again")
    return labels


def missing_classes(labels: Codes, spec: DatasetSpec) -> list[int]:
    """Raw codes of the activities that this subject does not do: reported, not refused."""
    return sorted(set(spec.labels) - set(np.unique(labels).tolist()))


def signature(columns: int) -> Table:
    """The ramp written as the first row of a synthetic file: 0.0101, 0.0202, ..."""
    return np.arange(1, columns + 1, dtype=np.float64) * _STEP


def is_signature(row: Table | Floats) -> bool:
    """Whether `row` is the ramp (no sensor delivers equal steps over unlike channels)."""
    return bool(np.allclose(row, signature(len(row)), rtol=0.0, atol=1e-4))


def read_table(data: bytes, *, name: str, columns: int, delimiter: str | None = None) -> Table:
    """Parse `data` into (rows, columns); `delimiter` None means any whitespace; UserError names the line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # an empty file is reported below
            table = np.loadtxt(
                io.BytesIO(data), np.float64, comments=None, delimiter=delimiter, ndmin=2, encoding="latin1"
            )
    except ValueError as error:
        raise UserError(_diagnose(data, name, columns, delimiter) or f"{name}: {error}") from None
    if not len(table):
        raise UserError(f"{name}: the file is empty, expected rows of {columns} numbers; fetch it again")
    if table.shape[1] != columns:
        raise UserError(
            f"{name}, line 1: found {table.shape[1]} columns, expected {columns}; "
            "this is another format or another file than the original: fetch it again"
        )
    with np.errstate(over="ignore"):  # what float32 cannot hold is refused here
        _refuse_first(np.isinf(table.astype(np.float32)), table, f"{name}, row")
    return table


def _diagnose(data: bytes, name: str, columns: int, delimiter: str | None) -> str:
    """The first line that is not `columns` numbers, in words; slow, therefore only after a failure."""
    for number, line in enumerate(data.decode("latin1").splitlines(), start=1):
        fields = line.split(delimiter)
        if not line.strip():
            continue
        if len(fields) != columns:
            return f"{name}, line {number}: found {len(fields)} columns, expected {columns}; fetch the file again"
        for column, field in enumerate(fields, start=1):
            if not _is_number(field):
                return f"{name}, line {number}, column {column}: found {field[:24]!r}, expected a number"
    return ""


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return "_" not in field


def require_finite(table: Table, name: str) -> None:
    """Refuse NaN and infinity; UserError names the first line and column (both from 1)."""
    _refuse_first(~np.isfinite(table), table, f"{name}, line")


def _refuse_first(wrong: Mask, table: Table, place: str) -> None:
    for row, column in np.argwhere(wrong)[:1].tolist():
        raise UserError(
            f"{place} {row + 1}, column {column + 1}: found {table[row, column]}, expected a finite number; "
            "fetch the file again"
        )


def require_not_empty(table: Table, columns: Sequence[int], name: str) -> None:
    """Refuse a channel that is NaN in every row: UserError names the column of the file (from 1)."""
    for column in columns:
        if np.isnan(table[:, column]).all():
            raise UserError(
                f"{name}, column {column + 1}: all {len(table)} rows are NaN, expected sensor readings; "
                "fetch the file again"
            )
