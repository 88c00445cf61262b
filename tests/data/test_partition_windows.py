"""Windows inside a stretch and their majority labels."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from relief_ray.data.partition import majority_labels, stride_rows, tabulate, window_starts


@given(st.integers(0, 50), st.integers(0, 300), st.integers(1, 64), st.integers(1, 40))
def test_windows_fill_the_stretch(start: int, length: int, window: int, stride: int) -> None:
    starts = window_starts(start, start + length, window, stride)
    expected = [s for s in range(start, start + length, stride) if s + window <= start + length]
    assert starts.tolist() == expected


@given(arrays(np.int16, st.integers(10, 60), elements=st.integers(-1, 3)), st.integers(1, 8), st.integers(1, 7))
def test_majority_is_the_most_frequent_label(labels: np.ndarray, window: int, stride: int) -> None:
    starts = window_starts(0, len(labels), window, stride)
    for start, majority in zip(starts, majority_labels(labels, starts, window), strict=True):
        values, counts = np.unique(labels[start : start + window], return_counts=True)
        assert majority == values[counts.argmax()]


def test_null_windows_are_dropped() -> None:
    labels = np.array([-1, -1, -1, 2, 2, 2], np.int16)
    assert tabulate(labels, np.array([0, 1, 2, 3]), 3, 5).tolist() == [[2, 2, 5], [3, 2, 5]]


def test_stride_is_rounded_to_rows() -> None:
    assert (stride_rows(1.0, 25), stride_rows(0.5, 25), stride_rows(0.001, 25)) == (25, 12, 1)
