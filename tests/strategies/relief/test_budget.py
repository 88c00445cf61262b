"""Eq. (7), the round target T* and the greedy allocation."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relief_ray.strategies.relief.budget import (
    Load,
    allocate,
    by_divergence,
    group_budget,
    group_seconds,
    least_target_s,
)

IDS = tuple(f"g{i}" for i in range(10))


def uniform_load(num_groups, num_mandatory, overhead_s, tau_s):
    """``t(S) = T_o + tau |S|``."""
    return Load(
        accessible=IDS[:num_groups], mandatory=IDS[:num_mandatory], seconds=lambda s: overhead_s + tau_s * len(s)
    )


def priced_load(prices, num_mandatory, overhead_s=1.0):
    """Each group has its own price, counted in eighths so that sums are exact."""
    return Load(
        accessible=IDS[: len(prices)],
        mandatory=IDS[:num_mandatory],
        seconds=lambda s: overhead_s + sum(prices[IDS.index(j)] for j in s),
    )


eighths = st.integers(1, 80).map(lambda n: n / 8)
loads = st.builds(
    lambda n, m, o, t: uniform_load(n, min(m, n), o, t), st.integers(1, 10), st.integers(1, 4), eighths, eighths
)
priced = st.builds(
    lambda p, m, o: priced_load(p, min(m, len(p)), o),
    st.lists(eighths, min_size=1, max_size=10),
    st.integers(1, 4),
    eighths,
)

# T* -----------------------------------------------------------------------------------------------------------------


def test_t_star_of_the_papers_uniform_model_by_hand():
    """Full: 1 + 4 x 0.1 = 1.4; Acc+Gyro: 1 + 2 x 1.3 = 3.6; Acc-only: 1 + 1 x 5.5 = 6.5."""
    fleet = [uniform_load(10, 4, 1.0, 0.1), uniform_load(6, 2, 1.0, 1.3), uniform_load(4, 1, 1.0, 5.5)]
    assert least_target_s(fleet) == 6.5


@given(st.lists(loads, min_size=1, max_size=6))
def test_t_star_is_max_overhead_plus_mandatory_times_tau(fleet):
    """The closed form, to the last bit: the least float that all mandatory sets fit into."""
    expected = max(load.seconds(load.mandatory) for load in fleet)
    target_s = least_target_s(fleet)
    assert target_s == expected
    for load in fleet:
        overhead, tau = group_seconds(load)
        assert load.seconds(load.mandatory) == pytest.approx(overhead + len(load.mandatory) * tau, rel=1e-12)


@given(st.lists(st.floats(1e-300, 1e300), min_size=1, max_size=5))
def test_bisection_finds_the_least_feasible_float(needed):
    target_s = least_target_s([Load(accessible=("a",), mandatory=("a",), seconds=lambda s, t=t: t) for t in needed])
    assert target_s == max(needed)
    assert not all(t <= math.nextafter(target_s, 0.0) for t in needed)


@given(st.lists(priced, min_size=1, max_size=5), priced)
def test_t_star_never_falls_when_a_client_joins(fleet, newcomer):
    assert least_target_s([*fleet, newcomer]) >= least_target_s(fleet)


@pytest.mark.parametrize("seconds", [[], [math.inf], [1.0, math.nan]])
def test_t_star_needs_finite_times(seconds):
    with pytest.raises(ValueError, match="finite times"):
        least_target_s([Load(accessible=("a",), mandatory=("a",), seconds=lambda s, t=t: t) for t in seconds])


# k_n ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target_s", "expected"),
    [
        (1.0, 2),  # T* = T_o: nothing affordable, the mandatory two remain
        (0.1, 2),  # T* < T_o
        (1.9, 2),  # floor(0.9 / 0.5) = 1
        (2.5, 3),  # floor(1.5 / 0.5) = 3
        (2.999, 3),
        (3.0, 4),
        (1e9, 6),  # no more than |G_n|
    ],
)
def test_eq_7_by_hand(target_s, expected):
    assert group_budget(uniform_load(6, 2, 1.0, 0.5), target_s) == expected


def test_eq_7_is_not_robbed_of_a_group_by_rounding():
    """(0.7 - 0.1) / 0.1 is 5.999... in floating point; six groups fit."""
    assert math.floor((0.7 - 0.1) / 0.1) == 5
    assert group_budget(uniform_load(8, 1, 0.1, 0.1), 0.7) == 6


@settings(max_examples=500)
@given(priced, st.floats(0, 100), st.floats(0, 100))
def test_budget_is_monotone_and_bounded(load, first, second):
    low, high = sorted([first, second])
    few, many = group_budget(load, low), group_budget(load, high)
    assert len(load.mandatory) <= few <= many <= len(load.accessible)


@given(st.integers(2, 10), st.integers(1, 2), eighths, eighths, eighths)
def test_a_slower_device_never_gets_more(num_groups, num_mandatory, overhead_s, tau_s, extra_s):
    target_s = overhead_s + 3 * tau_s
    fast = uniform_load(num_groups, num_mandatory, overhead_s, tau_s)
    slow = uniform_load(num_groups, num_mandatory, overhead_s, tau_s + extra_s)
    assert group_budget(slow, target_s) <= group_budget(fast, target_s)


@given(st.lists(loads, min_size=1, max_size=6))
def test_the_bottleneck_device_trains_its_mandatory_set_alone(fleet):
    """DESIGN's reading of Eq. (7): whoever sets T* has k_n = |M_n| (at most one more by the rounding slack)."""
    target_s = least_target_s(fleet)
    for load in fleet:
        if load.seconds(load.mandatory) == target_s:
            assert group_budget(load, target_s) == len(load.mandatory)


@pytest.mark.parametrize("tau_s", [0.0, -0.5])
def test_time_per_group_must_be_positive(tau_s):
    with pytest.raises(ValueError, match="must be positive"):
        group_budget(uniform_load(4, 1, 3.0, tau_s), 5.0)


# S_n ----------------------------------------------------------------------------------------------------------------


def test_allocation_by_hand():
    """Mandatory g0; then by divergence g3 (fits), g1 (too slow: 1 + 1 + 2 + 4 > 6), g2 (fits): full."""
    load = priced_load([1.0, 4.0, 1.0, 2.0, 0.5], 1)
    allocation = allocate(load, 6.0, 3, ["g3", "g1", "g0", "g2", "g4"])
    assert allocation.groups == ("g0", "g3", "g2") and allocation.num_mandatory == 1 and allocation.budget == 3
    assert [(r.group, r.seconds, r.reason) for r in allocation.refused] == [("g1", 8.0, "time"), ("g4", 5.5, "budget")]


def test_mandatory_groups_are_trained_even_beyond_the_target():
    """T* given by hand may be too short; k_n = |M_n| all the same."""
    load = priced_load([3.0, 3.0, 1.0], 2)
    allocation = allocate(load, 2.0, 2, ["g2"])
    assert allocation.groups == ("g0", "g1") and [r.reason for r in allocation.refused] == ["budget"]


def test_not_forced_means_top_k_of_everything():
    load = priced_load([1.0, 1.0, 1.0, 1.0], 2)
    allocation = allocate(load, 9.0, 2, ["g3", "g2", "g1", "g0"], forced=False)
    assert allocation.groups == ("g3", "g2") and allocation.num_mandatory == 0


def test_order_by_divergence_breaks_ties_by_layout():
    load = uniform_load(5, 1, 1.0, 1.0)
    assert by_divergence(load, {"g3": 2.0, "g1": 2.0, "g4": 5.0}) == ["g4", "g1", "g3", "g0", "g2"]
    assert by_divergence(load, {"elsewhere": 9.0}) == list(load.accessible)


@settings(max_examples=300)
@given(st.integers(1, 10), st.data())
def test_greedy_is_optimal_for_the_count_budget(num_groups, data):
    """Section IV-B: mandatory plus top-k maximises the total divergence; compared with every subset."""
    num_mandatory = data.draw(st.integers(1, num_groups))
    d_bar = {j: data.draw(st.integers(0, 50)) / 4 for j in IDS[:num_groups]}
    budget = data.draw(st.integers(num_mandatory, num_groups))
    load = uniform_load(num_groups, num_mandatory, 1.0, 1.0)
    allocation = allocate(load, math.inf, budget, by_divergence(load, d_bar))

    free = [j for j in load.accessible if j not in load.mandatory]
    subsets = (s for r in range(budget - num_mandatory + 1) for s in itertools.combinations(free, r))
    best = max(sum(d_bar[j] for j in (*load.mandatory, *s)) for s in subsets)
    assert sum(d_bar[j] for j in allocation.groups) == best
    assert (
        set(load.mandatory) <= set(allocation.groups)
        and len(allocation.groups) == len(set(allocation.groups)) == budget
    )


@given(priced, st.data())
def test_every_allocation_is_feasible_and_explains_itself(load, data):
    target_s = data.draw(st.floats(0.5, 60)) + load.seconds(load.mandatory)
    ranking = data.draw(st.permutations(load.accessible))
    slots = group_budget(load, target_s)
    allocation = allocate(load, target_s, slots, ranking)
    assert len(allocation.groups) <= slots and load.seconds(allocation.groups) <= target_s * (1 + 1e-9)
    assert set(allocation.groups) | {r.group for r in allocation.refused} == set(load.accessible)
    for refusal in allocation.refused:
        assert refusal.seconds > target_s if refusal.reason == "time" else len(allocation.groups) == slots
