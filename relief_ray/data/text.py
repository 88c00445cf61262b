"""Numeric text tables, parsed fast and refused with file, line, column, finding and expectation."""

import io
import warnings

import numpy as np
from numpy.typing import NDArray

from relief_ray.errors import UserError


def read_table(data: bytes, *, name: str, columns: int, delimiter: str | None = None) -> NDArray[np.float32]:
    """Parse `data` into (rows, columns) float32; `delimiter` None means any whitespace; UserError names the line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # emptiness is told below
            table = np.loadtxt(
                io.BytesIO(data), np.float32, comments=None, delimiter=delimiter, ndmin=2, encoding="latin1"
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
    if (infinite := np.argwhere(np.isinf(table))).size:
        row, column = (int(index) for index in infinite[0])
        raise UserError(
            f"{name}, row {row + 1}, column {column + 1}: found {table[row, column]}, expected a finite number; "
            "fetch the file again"
        )
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


def require_finite(table: NDArray[np.float32], name: str) -> None:
    """Refuse NaN and infinity; UserError names the first line and column (both from 1)."""
    finite = np.isfinite(table)
    if finite.all():
        return
    row, column = (int(index) for index in np.argwhere(~finite)[0])
    raise UserError(
        f"{name}, line {row + 1}, column {column + 1}: found {table[row, column]}, expected a finite number; "
        "fetch the file again"
    )


def require_not_empty(table: NDArray[np.float32], columns: tuple[int, ...], name: str) -> None:
    """Refuse a channel that is NaN in every row: UserError names the column of the file (from 1)."""
    for column in columns:
        if np.isnan(table[:, column]).all():
            raise UserError(
                f"{name}, column {column + 1}: all {len(table)} rows are NaN, expected sensor readings; "
                "fetch the file again"
            )
