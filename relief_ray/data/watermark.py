"""The first row of every synthetic file is a fixed ramp, so that synthetic data stay known without their marker."""

import numpy as np
from numpy.typing import NDArray

_STEP = 0.0101


def signature(columns: int) -> NDArray[np.float64]:
    """The ramp written as the first row of a synthetic file: 0.0101, 0.0202, ..."""
    ramp: NDArray[np.float64] = np.arange(1, columns + 1, dtype=np.float64) * _STEP
    return ramp


def is_signature(row: NDArray[np.float32]) -> bool:
    """Whether `row` is the ramp (no sensor delivers equal steps over unlike channels)."""
    return bool(np.allclose(row, signature(len(row)), rtol=0.0, atol=1e-4))
