"""Which hashes occur among others, as numpy says it."""

import numpy as np
import pytest

from relief_ray.data.leakage import _occur


@pytest.mark.parametrize(("number", "among", "shared"), [(0, 5, 0), (5, 0, 0), (1, 1, 1), (2_000, 90_000, 300)])
def test_hashes_are_found_as_numpy_finds_them(number, among, shared):
    draw = np.random.default_rng(number)
    these, those = (draw.integers(2**64, size=n, dtype=np.uint64) for n in (number, among))
    these[:shared] = those[draw.integers(among, size=shared)] if shared else these[:0]
    # Hashes that begin alike and end otherwise are told apart.
    these[shared : 2 * shared] = those[:shared][: len(these[shared : 2 * shared])] ^ np.uint64(1)
    assert np.array_equal(_occur(these, those), np.isin(these, those))
    assert _occur(these, those).sum() >= shared
