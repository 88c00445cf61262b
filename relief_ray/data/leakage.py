"""What the training and the test part of a split share: rows, or copies of them."""

import numpy as np
from numpy.typing import NDArray

from relief_ray.data.config import DataConfig
from relief_ray.data.federated_data import FederatedData
from relief_ray.data.loader import Floats, Mask
from relief_ray.data.window_set import row_counts

_Hashes = NDArray[np.uint64]
# Rows in sequence that count as a copy where they occur twice.
_COPIED_ROWS = 16
_ROWS_AT_ONCE = 1 << 16
# 16 MiB: about 5 % of the places are taken by a million hashes.
_TABLE_BITS = 24


def leak(config: DataConfig, data: FederatedData, signal: Floats, few: float = 0.0) -> str:
    """Describe what training and test share; empty: nothing, or windows are dealt at random on purpose.

    ``few``: copies up to this share of the test's rows count as none.
    """
    if config.split == "random_leaky" or data.test_or_none is None:
        return ""
    window, rows = data.spec.window, len(signal)
    starts = np.concatenate([part.starts for part in (*data.clients, data.validation)])
    trained, tested = (row_counts(first, window, rows) > 0 for first in (starts, data.test.starts))
    if shared := int((trained & tested).sum()):
        return f"{shared} rows are in training and in test"
    names = np.concatenate([_names(signal[first : first + _ROWS_AT_ONCE]) for first in range(0, rows, _ROWS_AT_ONCE)])
    # A sensor at rest repeats its value, nobody's data.
    changes = np.concatenate([[0], np.cumsum(names[1:] != names[:-1])])
    moves = changes[_COPIED_ROWS - 1 :] > changes[: 1 - _COPIED_ROWS]
    factors = _factors(_COPIED_ROWS)
    last = len(moves)
    runs = sum((names[i : i + last] * factor for i, factor in enumerate(factors)), np.zeros(last, np.uint64))
    copies = np.flatnonzero(_whole(tested) & moves)
    copies = copies[_occur(runs[copies], runs[_whole(trained) & moves])]
    if len(copies) <= few * np.count_nonzero(tested):
        return ""
    return (
        f"{len(copies)} sequences of {_COPIED_ROWS} rows of the test part are in training too, bit by bit; the first "
        f"begins in row {copies[0]}"
    )


def _occur(these: _Hashes, those: _Hashes) -> Mask:
    """Whether each of ``these`` hashes (n,) is among ``those`` (m,): as ``np.isin``, several times as fast.

    Tables of the hashes' first bits rule out nearly all that are not, so that few have to be compared.
    """

    def may_occur(hashes: _Hashes, among: _Hashes) -> Mask:
        table = np.zeros(1 << _TABLE_BITS, dtype=bool)
        table[among >> np.uint64(64 - _TABLE_BITS)] = True
        return np.asarray(table[hashes >> np.uint64(64 - _TABLE_BITS)])

    found = may_occur(these, those)
    found[found] = np.isin(these[found], those[may_occur(those, these[found])])
    return found


def _names(signal: Floats) -> _Hashes:
    """A hash of each row, the same for the same values: (rows,)."""
    bits = (signal + np.float32(0.0)).view(np.uint32)  # -0 is 0
    names = bits.astype(np.uint64) @ _factors(signal.shape[1])
    return (names ^ (names >> np.uint64(32))) * _factors(1)


def _factors(number: int) -> _Hashes:
    return np.random.default_rng(number).integers(2**64, size=number, dtype=np.uint64) | np.uint64(1)


def _whole(rows: Mask) -> Mask:
    """Whether a sequence of rows that starts here lies wholly in ``rows``."""
    return np.asarray(np.lib.stride_tricks.sliding_window_view(rows, _COPIED_ROWS).all(axis=1))
