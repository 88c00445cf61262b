"""Power of a study: closed values, monotone, and how often simulated studies really find a difference."""

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relief_ray.report.statistics import detectable, pairs_needed, power, sign_flip
from relief_ray.support.errors import UserError


def test_forty_eight_pairs_find_two_points_in_three_of_four_studies():
    """Spread 4.0 points, six claims: non-centrality 2 / (4 / sqrt(48)) = 3.46 against t(47) at 1 - .05/12: 2.76."""
    assert power(48, 2.0, 4.0, 0.05 / 6) == pytest.approx(0.757, abs=0.002)
    assert pairs_needed(2.0, 4.0, 0.05 / 6) == 52
    assert detectable(48, 4.0, 0.05 / 6) == pytest.approx(2.087, abs=0.002)


def test_non_inferiority_by_one_point_needs_about_a_hundred_pairs():
    assert pairs_needed(1.0, 4.0, 0.05, sides=1) == 101


def test_too_few_pairs_find_nothing_however_large_the_difference():
    """Five pairs: p is 2/32 at best, six pairs 2/64."""
    assert power(5, 1000.0, 1.0, 0.05) == 0.0
    assert power(6, 1000.0, 1.0, 0.05) == pytest.approx(1.0)
    assert power(8, 1000.0, 1.0, 0.05 / 6) == pytest.approx(1.0) and power(7, 1000.0, 1.0, 0.05 / 6) == 0.0
    assert detectable(5, 1.0, 0.05) is None
    assert power(5, 1000.0, 1.0, 0.05, sides=1) == pytest.approx(1.0)


def test_no_difference_is_found_as_often_as_the_level_says():
    assert power(20, 0.0, 3.0, 0.05) == pytest.approx(0.05)
    assert power(20, 0.0, 3.0, 0.05, sides=1) == pytest.approx(0.05)


@given(st.integers(6, 200), st.floats(0.1, 5), st.floats(0.5, 8))
@settings(deadline=None)
def test_power_grows_with_pairs_and_with_the_difference(num_pairs, difference, sd):
    here = power(num_pairs, difference, sd, 0.05)
    assert 0.0 <= here <= 1.0 + 1e-9
    assert power(num_pairs + 5, difference, sd, 0.05) >= here - 1e-9
    assert power(num_pairs, difference + 0.5, sd, 0.05) >= here - 1e-9


@pytest.mark.parametrize("difference", [1.0, 2.0, 4.0])
def test_the_needed_number_is_the_smallest_one(difference):
    number = pairs_needed(difference, 4.0, 0.05 / 6)
    assert power(number, difference, 4.0, 0.05 / 6) >= 0.8 > power(number - 1, difference, 4.0, 0.05 / 6)
    assert detectable(number, 4.0, 0.05 / 6) <= difference
    assert pairs_needed(0.001, 4.0, 0.05) is None


def test_simulated_studies_find_it_as_often_as_predicted():
    """600 studies of 24 pairs by the sign-flip test itself: within four standard errors of the formula, and 3 %."""
    rng, number = np.random.default_rng(11), 600
    found = sum(sign_flip(rng.normal(1.2, 2.0, 24).tolist()) < 0.05 for _ in range(number)) / number
    predicted = power(24, 1.2, 2.0, 0.05)
    assert found == pytest.approx(predicted, abs=4 * (predicted * (1 - predicted) / number) ** 0.5 + 0.03)


def test_without_scipy_it_is_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    with pytest.raises(UserError, match="needs scipy"):
        power(48, 2.0, 4.0, 0.05)
