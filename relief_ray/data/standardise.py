"""Mean and standard deviation per channel, exactly as over all training windows of the clients that own a modality.

Overlapping windows repeat rows; instead of copying them, every row counts as often as windows contain it.
"""

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from relief_ray.data.windows import Starts
from relief_ray.errors import UserError

_CHUNK = 1 << 16
_MIN_STD = 1e-6


def row_counts(starts: Starts, window: int, num_rows: int) -> NDArray[np.int64]:
    """How many of the windows contain each row: (num_rows,)."""
    edges = np.bincount(starts, minlength=num_rows + 1) - np.bincount(starts + window, minlength=num_rows + 1)
    return np.cumsum(edges[:num_rows])


def weighted_stats(
    signal: NDArray[np.float32], counts: NDArray[np.int64], columns: slice
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Population mean and standard deviation per channel over rows weighted by `counts`; two passes in float64."""
    rows = np.flatnonzero(counts)
    chunks = [rows[first : first + _CHUNK] for first in range(0, len(rows), _CHUNK)]
    total = float(counts.sum())
    mean = sum(counts[part] @ signal[part, columns].astype(np.float64) for part in chunks) / total
    square = sum(counts[part] @ (signal[part, columns].astype(np.float64) - mean) ** 2 for part in chunks) / total
    return np.asarray(mean), np.sqrt(square)


def standardisation(
    signal: NDArray[np.float32],
    columns: Sequence[tuple[str, int, int]],
    window: int,
    clients: Sequence[Starts],
    owned: Sequence[Collection[str]],
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Mean and std (channels,) float32; std 1 where a channel never moves; UserError for an ownerless modality."""
    mean = np.zeros(signal.shape[1], np.float32)
    std = np.ones(signal.shape[1], np.float32)
    counted: dict[tuple[int, ...], NDArray[np.int64]] = {}
    for name, first, stop in columns:
        owners = tuple(client for client, has in enumerate(owned) if name in has)
        if not owners:
            raise UserError(
                f"modality {name!r} is a modality without owner: none of the {len(owned)} clients has it; give it to a "
                "device type of the fleet or choose a dataset without it"
            )
        if owners not in counted:
            counted[owners] = row_counts(np.concatenate([clients[o] for o in owners]), window, len(signal))
        centre, spread = weighted_stats(signal, counted[owners], slice(first, stop))
        mean[first:stop] = centre
        std[first:stop] = np.where(spread < _MIN_STD, 1.0, spread)
    return mean, std
