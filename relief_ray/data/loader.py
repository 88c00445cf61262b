"""Datasets, built in or a user's own: a ``Loader`` describes one and parses its files to ``Recording``s."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from relief_ray.data.source import Members
from relief_ray.data.spec import DatasetSpec

Facts = Mapping[str, float | str | list[int] | list[float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Recording:
    """A subject's rows: signal (rows, channels) float32, labels (rows,) int16 raw codes, bouts (n, 2) [start, stop).

    Rows inside one bout follow each other at the sample rate without a break; between bouts nothing may be assumed.
    """

    subject: int
    signal: NDArray[np.float32]
    labels: NDArray[np.int16]
    bouts: NDArray[np.int64]
    synthetic: bool = False
    facts: Facts = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Loader:
    """A dataset; a user's own goes by its import path (``data.name=my.module:SLEEP``).

    Attributes:
        spec: the dataset's facts.
        files: ``files(spec, subject)`` gives the ends of the subject's file names below the data root.
        parse: ``parse(spec, members, path, subject)`` reads one subject: ``members.read(name)`` gives a file's bytes,
            ``members.names`` all files, ``path`` is the folder or archive, for error messages.
    """

    spec: DatasetSpec
    files: Callable[[DatasetSpec, int], list[str]]
    parse: Callable[[DatasetSpec, Members, Path, int], Recording]


def runs(*keys: NDArray[np.generic]) -> NDArray[np.int64]:
    """Start and stop of every maximal run in which all `keys` stay constant: (num_runs, 2)."""
    length = len(keys[0])
    if length == 0:
        return np.empty((0, 2), np.int64)
    change = np.zeros(length - 1, bool)
    for key in keys:
        change |= key[1:] != key[:-1]
    edges = np.concatenate([[0], np.flatnonzero(change) + 1, [length]])
    return np.stack([edges[:-1], edges[1:]], axis=1).astype(np.int64)


def fill_linear(column: NDArray[np.float32]) -> tuple[NDArray[np.float32], int]:
    """Interpolate NaN linearly between neighbours (ends: nearest value); also the longest gap in rows."""
    missing = np.isnan(column)
    if not missing.any():
        return column, 0
    gaps = runs(missing)
    longest = max(int(stop - start) for start, stop in gaps if missing[start])
    rows = np.arange(len(column))
    filled = np.interp(rows, rows[~missing], column[~missing]).astype(np.float32)
    return filled, longest


def fill_forward(column: NDArray[np.float32]) -> NDArray[np.float32]:
    """Repeat the last reading; rows before the first reading stay NaN (filling them would look ahead)."""
    known = np.where(np.isnan(column), -1, np.arange(len(column)))
    last = np.maximum.accumulate(known)
    return np.where(last >= 0, column[np.maximum(last, 0)], np.float32(np.nan)).astype(np.float32)


def nan_share(table: NDArray[np.float32]) -> float:
    """Share of NaN over all cells, 0 to 1."""
    return float(np.isnan(table).mean()) if table.size else 0.0
