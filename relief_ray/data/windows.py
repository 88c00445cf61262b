"""Windows of 5.12 s inside one bout, and their labels by majority of rows."""

import numpy as np
from numpy.typing import NDArray

from relief_ray.data.recording import NULL

Starts = NDArray[np.int64]
Table = NDArray[np.int64]


def window_starts(start: int, stop: int, window: int, stride: int) -> Starts:
    """First rows of all windows that lie wholly in [start, stop), `stride` rows apart: (n,)."""
    return np.arange(start, stop - window + 1, stride, dtype=np.int64)


def stride_rows(stride_s: float, rate_hz: int) -> int:
    """The stride in rows, at least one."""
    return max(1, round(stride_s * rate_hz))


def majority_labels(labels: NDArray[np.int16], starts: Starts, window: int) -> NDArray[np.int64]:
    """The most frequent class index of each window's rows, -1 where that is the null class; ties to the lower: (n,)."""
    if not len(starts):
        return np.empty(0, np.int64)
    first, last = int(starts.min()), int(starts.max()) + window
    piece = labels[first:last]
    if (piece == piece[0]).all():
        return np.full(len(starts), int(piece[0]), np.int64)
    classes = np.unique(piece)
    counts = np.stack([_count(piece == code, starts - first, window) for code in classes])
    chosen: NDArray[np.int64] = classes[counts.argmax(axis=0)].astype(np.int64)
    return chosen


def _count(hit: NDArray[np.bool_], offsets: Starts, window: int) -> NDArray[np.int64]:
    total = np.concatenate([[0], np.cumsum(hit)])
    counted: NDArray[np.int64] = total[offsets + window] - total[offsets]
    return counted


def tabulate(labels: NDArray[np.int16], starts: Starts, window: int, subject: int) -> Table:
    """The windows whose majority is an activity, as rows (first row, class index, subject position): (n, 3)."""
    found = majority_labels(labels, starts, window)
    kept = found != NULL
    return np.column_stack([starts[kept], found[kept], np.full(int(kept.sum()), subject)]).astype(np.int64)
