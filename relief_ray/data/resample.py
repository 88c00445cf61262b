"""Halving the sample rate without aliasing: a windowed-sinc low-pass filter of our own, zero phase.

Hamming window, 63 taps, half amplitude at 0.43 of the new sample rate (21.5 Hz of 50 Hz); docs/data.md gives
the measured attenuation. The filter is symmetric, hence shifts nothing in time.
"""

import numpy as np
from numpy.typing import NDArray

NUM_TAPS = 63
_CUTOFF = 0.43


def lowpass(factor: int) -> NDArray[np.float64]:
    """The filter's taps (NUM_TAPS,), unit gain at 0 Hz, for decimation by `factor`."""
    position = np.arange(NUM_TAPS) - NUM_TAPS // 2
    cutoff = _CUTOFF / factor
    taps = 2 * cutoff * np.sinc(2 * cutoff * position) * np.hamming(NUM_TAPS)
    normalised: NDArray[np.float64] = taps / taps.sum()
    return normalised


def decimate(signal: NDArray[np.float32], factor: int) -> NDArray[np.float32]:
    """Filter (rows, channels) and keep every `factor`-th row; the ends are continued with their own values.

    To keep activities apart, call it on one bout at a time: nothing outside `signal` is looked at.
    """
    half = NUM_TAPS // 2
    padded = np.pad(signal.astype(np.float64), ((half, half), (0, 0)), mode="edge")
    kept = np.arange(0, len(signal), factor)
    out = np.zeros((len(kept), signal.shape[1]))
    for tap, weight in enumerate(lowpass(factor)):
        out += weight * padded[kept + tap]
    return out.astype(np.float32)
