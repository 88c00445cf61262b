"""Runs, and filling of gaps."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from relief_ray.data.loader import bouts_of, fill_forward, fill_linear


@given(arrays(np.int16, st.integers(0, 60), elements=st.integers(0, 2)))
def test_runs_are_the_maximal_constant_stretches(key: np.ndarray) -> None:
    stretches = bouts_of(key)
    np.testing.assert_array_equal(np.concatenate([np.arange(a, b) for a, b in stretches] or [[]]), np.arange(len(key)))
    assert all(len(set(key[a:b].tolist())) == 1 for a, b in stretches)
    assert all(key[b - 1] != key[b] for _, b in stretches[:-1])


def test_linear_filling_looks_both_ways() -> None:
    nan = np.nan
    filled = fill_linear(np.array([nan, 1, nan, nan, 4, nan], np.float32))
    np.testing.assert_allclose(filled, [1, 1, 2, 3, 4, 4])


def test_forward_filling_never_looks_ahead() -> None:
    nan = np.nan
    filled = fill_forward(np.array([nan, nan, 80, nan, 90, nan], np.float32))
    np.testing.assert_array_equal(filled, [nan, nan, 80, 80, 90, 90])


@given(arrays(np.float32, st.integers(1, 40), elements=st.sampled_from([np.nan, 1.0, 2.0, 3.0])), st.integers(0, 39))
def test_forward_filling_is_causal(column: np.ndarray, cut: int) -> None:
    changed = column.copy()
    changed[cut:] = 7.0
    np.testing.assert_array_equal(fill_forward(column)[:cut], fill_forward(changed)[:cut])
