"""Paired statistics against hand counts and closed forms."""

import math
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relief_ray.report.captions import remarks
from relief_ray.report.comparison import compare_runs
from relief_ray.report.formats.text import plain
from relief_ray.report.statistics import holm, paired, sign_flip, smallest_p

values = st.lists(st.floats(-5, 5).map(lambda v: round(v, 3)), min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        pytest.param([1.0, 2.0, 3.0], 2 / 8, id="all of one sign: only +++ and --- are as far"),
        pytest.param([1.0, 2.0, -3.0], 1.0, id="mean 0: every assignment is as far"),
        pytest.param([3.0, 2.0, -1.0], 4 / 8, id="|sum| 4 or 6: +++, ++-, and their mirrors"),
        pytest.param([1.0, 1.0, 1.0, -1.0], 10 / 16, id="|sum| >= 2: 4 + 1 of 16, twice"),
        pytest.param([0.0, 0.0], 1.0, id="no difference at all"),
        pytest.param([0.7], 1.0, id="one subject decides nothing"),
    ],
)
def test_sign_flip_by_hand(differences, p):
    assert sign_flip(differences) == p


@given(values)
def test_sign_flip_knows_neither_sign_nor_order_nor_scale(differences):
    p = sign_flip(differences)
    assert (
        p
        == sign_flip([-v for v in differences])
        == sign_flip(differences[::-1])
        == sign_flip([4 * v for v in differences])
    )
    assert smallest_p(len(differences)) <= p <= 1.0


def test_sign_flip_of_many_subjects_is_drawn_and_seeded():
    differences = np.random.default_rng(3).normal(0.4, 1.0, 20).tolist()
    drawn = sign_flip(differences)
    assert drawn == sign_flip(differences)
    exact_part = sign_flip(differences[:16])
    assert 0.0 < drawn < 1.0
    assert exact_part * 2**16 == pytest.approx(round(exact_part * 2**16))
    # 100,000 draws: four standard errors around the normal approximation's neighbourhood of the exact 2^20 count.
    signs = 1.0 - 2.0 * ((np.arange(2**20)[:, None] >> np.arange(20)) & 1)
    exact = float(np.mean(np.abs(signs @ np.asarray(differences)) >= abs(sum(differences)) - 1e-9))
    assert drawn == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 1e5) + 1e-5)


def test_smallest_p_is_two_over_two_to_the_n():
    assert [smallest_p(n) for n in (1, 2, 5, 8)] == [1.0, 0.5, 1 / 16, 1 / 128]


def test_holm_by_hand():
    """Sorted .01 .02 .03 .04 times 4 3 2 1 is .04 .06 .06 .04, made monotone: .04 .06 .06 .06."""
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx((0.06, 0.04, 0.06, 0.06))
    assert holm([0.5, 0.9]) == (1.0, 1.0)
    assert holm([]) == ()


def quantile(p, df):
    """Student's quantile in closed form, for 1, 2 and 4 degrees of freedom."""
    if df == 1:
        return math.tan(math.pi * (p - 0.5))
    square = 4 * p * (1 - p)
    if df == 2:
        return (2 * p - 1) * math.sqrt(2 / square)
    return 2 * math.sqrt(math.cos(math.acos(math.sqrt(square)) / 3) / math.sqrt(square) - 1)


@pytest.mark.parametrize("df", [1, 2, 4])
def test_interval_and_detectable_difference_in_closed_form(df):
    """0, 1, ..., df: the standard error is the root of (df + 2) / 12."""
    interval, error = paired([float(i) for i in range(df + 1)]), math.sqrt((df + 2) / 12)
    half = quantile(0.975, df) * error
    assert (interval.low, interval.high) == pytest.approx((df / 2 - half, df / 2 + half), rel=1e-9)
    assert interval.detectable == pytest.approx(half + quantile(0.8, df) * error, rel=1e-9)


def test_without_scipy_there_is_no_interval_but_a_mean_and_a_p(make, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    interval = paired([1.0, 2.0, 3.0])
    assert (interval.mean, interval.low, interval.high, interval.detectable, interval.p) == (
        2.0,
        None,
        None,
        None,
        0.25,
    )
    assert (str(interval), str(paired([1.0]))) == ("+2.0", "+1.0 (1 subject)")
    comparison = compare_runs([make("fedavg"), make("relief")])
    assert any("No intervals: they need scipy" in line for line in remarks(comparison))
    assert "relief" in plain(comparison)


def test_interval_and_detectable_difference_by_hand():
    """1, 2, 3: mean 2, s = 1, standard error 1/sqrt(3); t(.975, 2) = 4.302653, t(.8, 2) = 1.060660."""
    interval = paired([1.0, 2.0, 3.0])
    assert interval is not None
    error = 1 / math.sqrt(3)
    assert (interval.mean, interval.p, interval.num_subjects) == (2.0, 0.25, 3)
    assert (interval.low, interval.high) == pytest.approx((2 - 4.302653 * error, 2 + 4.302653 * error), rel=1e-6)
    assert interval.detectable == pytest.approx((4.302653 + 1.060660) * error, rel=1e-6)


def test_one_subject_has_no_interval_and_none_has_nothing():
    interval = paired([1.5])
    assert interval is not None
    assert (interval.mean, interval.low, interval.high, interval.detectable, interval.p) == (1.5, None, None, None, 1.0)
    assert paired([]) is None
