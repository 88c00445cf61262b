"""Paired statistics against hand counts and closed forms."""

import math
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relief_ray.report.comparison import compare_runs
from relief_ray.report.formats.text import plain
from relief_ray.report.remarks import remarks
from relief_ray.report.statistics import MAX_EXACT, fewest_pairs, holm, paired, rate_interval, sign_flip, smallest_p

values = st.lists(st.floats(-5, 5).map(lambda v: round(v, 3)), min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        pytest.param([1.0, 2.0, 3.0], 2 / 8, id="all of one sign: only +++ and --- are as far"),
        pytest.param([1.0, 2.0, -3.0], 1.0, id="mean 0: every assignment is as far"),
        pytest.param([3.0, 2.0, -1.0], 4 / 8, id="|sum| 4 or 6: +++, ++-, and their mirrors"),
        pytest.param([1.0, 1.0, 1.0, -1.0], 10 / 16, id="|sum| >= 2: 4 + 1 of 16, twice"),
        pytest.param([0.0, 0.0], 1.0, id="no difference at all"),
        pytest.param([0.7], 1.0, id="one pair decides nothing"),
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


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        pytest.param([1.0, 2.0, 3.0], 1 / 8, id="only +++ is as large"),
        pytest.param([-1.0, -2.0, -3.0], 1.0, id="every assignment is as large as the smallest"),
        pytest.param([3.0, 2.0, -1.0], 2 / 8, id="sum 4 or 6: +++ of the sizes, and the 1 turned"),
        pytest.param([0.0, 0.0], 1.0, id="no difference at all"),
    ],
)
def test_one_sided_sign_flip_by_hand(differences, p):
    assert sign_flip(differences, sides=1) == p


def test_sign_flip_is_scipy_s_permutation_test():
    """Both sides, by an implementation of others, over all 2^11 assignments."""
    from scipy.stats import permutation_test

    found = np.random.default_rng(1).normal(0.5, 1.0, 11)
    for sides, words in ((2, "two-sided"), (1, "greater")):
        theirs = permutation_test(
            (found,), np.mean, permutation_type="samples", n_resamples=np.inf, alternative=words, vectorized=True
        )
        assert sign_flip(found.tolist(), sides=sides) == pytest.approx(theirs.pvalue, rel=1e-12)


@given(values)
def test_the_two_sides_add_up(found):
    """The upper tail and the lower one share the assignments at the observed sum, so they are 1 or more together."""
    above, below = sign_flip(found, sides=1), sign_flip([-v for v in found], sides=1)
    assert above + below >= 1.0 and sign_flip(found) <= 2 * min(above, below) + 1e-12


def test_sign_flip_of_many_pairs_is_drawn_and_seeded():
    """Up to 32 pairs every assignment counts; above, 100,000 draws lie near the normal approximation."""
    rng = np.random.default_rng(3)
    exact, many = rng.normal(0.4, 1.0, MAX_EXACT).tolist(), rng.normal(0.25, 1.0, 48)
    counted = sign_flip(exact) * 2**MAX_EXACT
    assert counted == pytest.approx(round(counted), abs=1e-3)
    drawn = sign_flip(many.tolist())
    assert drawn == sign_flip(many.tolist())
    normal = math.erfc(abs(many.sum()) / math.sqrt(2 * float(many @ many)))
    assert drawn == pytest.approx(normal, abs=0.01)


def test_rate_interval_by_hand():
    """Clopper and Pearson: 0 of n ends at 1 - .025^(1/n), n of n begins there; 2 of 34 from scipy's binomial test."""
    assert rate_interval(0, 10) == (0.0, pytest.approx(1 - 0.025 ** (1 / 10)))
    assert rate_interval(10, 10) == (pytest.approx(0.025 ** (1 / 10)), 1.0)
    assert rate_interval(2, 34) == pytest.approx((0.007205, 0.196773), abs=1e-6)
    assert rate_interval(0, 0) is None


def test_fewest_pairs_are_the_first_that_can_decide():
    assert [fewest_pairs(claims) for claims in (1, 2, 3, 6)] == [6, 7, 7, 8]
    assert [fewest_pairs(claims, 1) for claims in (1, 2, 3, 6)] == [5, 6, 6, 7]


def test_smallest_p_is_two_over_two_to_the_n():
    assert [smallest_p(n) for n in (1, 2, 5, 8)] == [1.0, 0.5, 1 / 16, 1 / 128]
    assert [smallest_p(n, 1) for n in (1, 5)] == [0.5, 1 / 32]


@pytest.mark.parametrize("sides", [1, 2])
@pytest.mark.parametrize("number", [5, 32, 33, 48])
def test_no_test_falls_below_the_smallest_p(number, sides):
    """Equal differences are the clearest case; above 32 pairs the number of drawn signs is the limit."""
    assert sign_flip([1.0] * number, sides=sides) == pytest.approx(smallest_p(number, sides))


def test_holm_by_hand():
    """Sorted .01 .02 .03 .04 times 4 3 2 1 is .04 .06 .06 .04, made monotone: .04 .06 .06 .06."""
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx((0.06, 0.04, 0.06, 0.06))
    assert holm([0.5, 0.9]) == (1.0, 1.0)
    assert holm([]) == ()


def quantile(p, df):
    """Student's quantile in closed form, for 2 and 4 degrees of freedom."""
    square = 4 * p * (1 - p)
    if df == 2:
        return (2 * p - 1) * math.sqrt(2 / square)
    return 2 * math.sqrt(math.cos(math.acos(math.sqrt(square)) / 3) / math.sqrt(square) - 1)


@pytest.mark.parametrize("df", [2, 4])
def test_interval_and_detectable_difference_in_closed_form(df):
    """0, 1, ..., df: the standard error is the root of (df + 2) / 12."""
    interval, error = paired([float(i) for i in range(df + 1)]), math.sqrt((df + 2) / 12)
    half = quantile(0.975, df) * error
    assert (interval.low, interval.high) == pytest.approx((df / 2 - half, df / 2 + half), rel=1e-9)
    assert interval.smallest_found == pytest.approx(half + quantile(0.8, df) * error, rel=1e-9)


def test_below_three_pairs_there_is_no_interval():
    """Of two it would be 6.4 times as wide as they lie apart: tables show none, and neither do the figures."""
    found = paired([1.0, 2.0])
    assert (found.mean, found.low, found.high, found.bound, found.smallest_found) == (1.5, None, None, None, None)


def test_without_scipy_there_is_no_interval_but_a_mean_and_a_p(make, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    found = paired([1.0, 2.0, 3.0])
    assert (found.mean, found.low, found.high, found.smallest_found, found.p) == (2.0, None, None, None, 0.25)
    assert found.bound is None and rate_interval(2, 34) is None
    assert (str(found), str(paired([1.0]))) == ("+2.0", "+1.0 (1 run)")
    scores = {"fedavg": (0.5, 0.6), "relief": (0.5, 0.7)}
    for seeds, is_said in ((3, True), (2, False)):  # of two pairs there is none with scipy either
        runs = [make(m, seed=seed, scores=f1) for m, f1 in scores.items() for seed in range(seeds)]
        comparison = compare_runs(runs)
        assert any("No intervals: they need scipy" in line for line in remarks(comparison)) is is_said
        assert "relief" in plain(comparison)


def test_differences_of_exactly_zero_leave_all_but_the_mean_undefined(make):
    """Every method at 100 %: three equal pairs show that the data are easy, not that nothing can differ."""
    found = paired([0.0, 0.0, 0.0])
    assert found is not None and found.is_still and not paired([0.0, 0.0, 0.1]).is_still
    assert (found.mean, found.low, found.high, found.bound, found.smallest_found, found.p) == (
        0.0, None, None, None, None, 1.0,
    )  # fmt: skip
    assert (str(found), str(paired([0.0]))) == ("+0.0 [-]", "+0.0 (1 run)")
    runs = [make(m, seed=s, scores=(0.9, 1.0)) for m in ("fedavg", "relief") for s in range(3)]
    shown = plain(compare_runs(runs))
    assert "+0.0 [-]" in shown and "No intervals" not in shown and "An interval covers" not in shown


def test_interval_and_detectable_difference_by_hand():
    """1, 2, 3: mean 2, s = 1, standard error 1/sqrt(3); t(.975, 2) = 4.302653, t(.8, 2) = 1.060660."""
    interval = paired([1.0, 2.0, 3.0])
    assert interval is not None
    error = 1 / math.sqrt(3)
    assert (interval.mean, interval.p, interval.num_pairs) == (2.0, 0.25, 3)
    assert (interval.low, interval.high) == pytest.approx((2 - 4.302653 * error, 2 + 4.302653 * error), rel=1e-6)
    assert interval.bound == pytest.approx(2 - 2.919986 * error, rel=1e-6), "t(.95, 2) = 2.919986"
    assert interval.smallest_found == pytest.approx((4.302653 + 1.060660) * error, rel=1e-6)


def test_one_pair_has_no_interval_and_none_has_nothing():
    interval = paired([1.5])
    assert interval is not None
    assert (interval.mean, interval.low, interval.high, interval.smallest_found, interval.p) == (
        1.5,
        None,
        None,
        None,
        1.0,
    )
    assert paired([]) is None
