"""Shares of variance against a table computed by hand, and against simulated effects of known size."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relief_ray.report.statistics import components, variance_shares


def scores(one, two, more=()):
    """Two methods' scores by fold and replicate, as pairs of runs have them."""
    rows = [(f, r, one[f][r], two[f][r]) for f in range(len(one)) for r in range(len(one[f]))]
    return pd.DataFrame([*rows, *more], columns=["fold", "repetition", "first", "second"])


def test_components_by_hand():
    """Means: rows 4 and 1, columns 3 and 2, all 2.5; every rest is .5. Mean squares: 9, 1, 1."""
    assert components(np.array([[5.0, 3.0], [1.0, 1.0]])) == (pytest.approx(4.0), 0.0, pytest.approx(1.0))


def test_shares_by_hand():
    """The difference has 4, 0, 1 as above; the mean of the methods has mean squares 144, 0, 4: 70, 0, 4.

    Method x fold 4/2 = 2, residual 1/2; fold 70 - 2/2 = 69, run 4 - .5/2 = 3.75; in all 75.25.
    """
    mean, difference = np.array([[60.0, 58.0], [70.0, 72.0]]), np.array([[5.0, 3.0], [1.0, 1.0]])
    found = variance_shares(scores(mean + difference / 2, mean - difference / 2))
    assert (found.fold, found.replicate, found.run) == (pytest.approx(69 / 75.25), 0.0, pytest.approx(3.75 / 75.25))
    assert (found.method_fold, found.method_replicate) == (pytest.approx(2 / 75.25), 0.0)
    assert found.residual == pytest.approx(0.5 / 75.25)
    assert found.of_difference == pytest.approx((0.8, 0.0, 0.2)) and found.pairs_depend
    assert found.sd_difference == pytest.approx(5**0.5)
    assert str(found).startswith("paired difference: fold 80 %, replicate 0 %, residual 20 % (sd 2.2 points)")


def test_simulated_effects_are_found_again():
    """Standard deviations 5, 3, 2, 1.5, 1, 2.5 over 150 folds x 150 replicates."""
    rng, folds, replicates = np.random.default_rng(5), 150, 150
    sds = {"fold": 5.0, "replicate": 3.0, "run": 2.0, "method_fold": 1.5, "method_replicate": 1.0, "residual": 2.5}
    shared = (
        sds["fold"] * rng.normal(size=(folds, 1))
        + sds["replicate"] * rng.normal(size=(1, replicates))
        + sds["run"] * rng.normal(size=(folds, replicates))
    )
    one, two = (
        shared
        + sds["method_fold"] * rng.normal(size=(folds, 1))
        + sds["method_replicate"] * rng.normal(size=(1, replicates))
        + sds["residual"] * rng.normal(size=(folds, replicates))
        for _ in range(2)
    )
    found = variance_shares(scores(one, two))
    total = sum(sd**2 for sd in sds.values())
    for name, sd in sds.items():
        assert getattr(found, name) == pytest.approx(sd**2 / total, abs=0.08), name


cells = st.lists(st.floats(0, 100), min_size=12, max_size=12)


@given(cells, cells)
def test_shares_are_shares_and_know_neither_order_nor_level(first, second):
    one, two = np.array(first).reshape(3, 4), np.array(second).reshape(3, 4)
    found = variance_shares(scores(one, two))
    parts = (
        found.fold, found.replicate, found.run, found.method_fold, found.method_replicate, found.residual,
    )  # fmt: skip
    assert all(part >= 0.0 for part in parts)
    assert sum(parts) == pytest.approx(1.0) or sum(parts) == 0.0
    moved = variance_shares(scores(one[::-1] + 7.0, two[::-1] - 3.0))
    assert moved.sd_difference == pytest.approx(found.sd_difference, abs=1e-6)
    assert variance_shares(scores(two, one)).of_difference == pytest.approx(found.of_difference, abs=1e-6)


def test_without_two_folds_and_two_whole_replicates_there_are_no_shares():
    assert variance_shares(scores([[1.0, 2.0, 3.0]], [[1.0, 2.0, 3.0]])) is None
    holes = scores([[1.0, 2.0], [3.0]], [[1.0, 2.0], [3.0]])
    assert variance_shares(holes) is None


def test_a_replicate_that_lacks_a_fold_is_left_out():
    one, two = np.array([[60.0, 58.0], [70.0, 72.0]]), np.array([[55.0, 55.0], [69.0, 71.0]])
    assert variance_shares(scores(one, two, [(0, 9, 50.0, 40.0)])) == variance_shares(scores(one, two))
