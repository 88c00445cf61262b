"""Eq. (7), the round target T* and the greedy allocation."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relief_ray.strategies.relief.budget import (
    Load,
    allocate,
    by_cost,
    covering_target_s,
    group_budget,
    least_target_s,
)

IDS = tuple(f"g{i}" for i in range(10))


def uniform_load(num_groups, num_mandatory, overhead_s, tau_s):
    """``t(S) = T_o + tau |S|``."""
    return Load(
        accessible=IDS[:num_groups],
        mandatory=IDS[:num_mandatory],
        overhead_s=overhead_s,
        tau_s=tau_s,
        seconds=lambda s: overhead_s + tau_s * len(s),
    )


def priced_load(prices, num_mandatory, overhead_s=1.0):
    """Each group has its own price, counted in eighths so that sums are exact."""
    return Load(
        accessible=IDS[: len(prices)],
        mandatory=IDS[:num_mandatory],
        overhead_s=overhead_s,
        tau_s=sum(prices) / len(prices),
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


def test_slots_of_the_slowest_by_hand():
    """q = 4, 3, 3: the slowest needs 1 + 3 x 5.5 = 17.5. Nine slots are more than it reaches: 1 + 4 x 5.5 = 23."""
    fleet = [uniform_load(10, 4, 1.0, 0.1), uniform_load(6, 2, 1.0, 1.3), uniform_load(4, 1, 1.0, 5.5)]
    assert least_target_s(fleet, slots_slowest=3) == 17.5
    assert [group_budget(load, least_target_s(fleet, 3)) for load in fleet] == [10, 6, 3]
    assert least_target_s(fleet, slots_slowest=9) == 23.0
    assert least_target_s(fleet, slots_slowest=1) == least_target_s(fleet)


@given(st.lists(st.one_of(loads, priced), min_size=1, max_size=6), st.integers(0, 10))
def test_bisection_finds_the_closed_form(fleet, slots):
    """``T* = max_n (T_o + q_n tau_n)``; it suffices for every client, and the next smaller float does not."""
    needed = [max(len(load.mandatory), min(slots, len(load.accessible))) for load in fleet]
    target_s = least_target_s(fleet, slots)
    closed = max(load.overhead_s + q * load.tau_s for load, q in zip(fleet, needed, strict=True))
    assert target_s == pytest.approx(closed, rel=1e-12)

    def is_enough(t):
        return all((t - load.overhead_s) / load.tau_s >= q for load, q in zip(fleet, needed, strict=True))

    assert is_enough(target_s) and not is_enough(math.nextafter(target_s, 0.0))
    assert all(group_budget(load, target_s) >= q for load, q in zip(fleet, needed, strict=True))


@given(st.lists(priced, min_size=1, max_size=5), priced, st.integers(0, 10))
def test_t_star_never_falls_when_a_client_joins_or_slots_are_added(fleet, newcomer, slots):
    assert least_target_s([*fleet, newcomer], slots) >= least_target_s(fleet, slots)
    assert least_target_s(fleet, slots + 1) >= least_target_s(fleet, slots)


def test_t_star_needs_a_client():
    with pytest.raises(ValueError, match="at least one client, found none"):
        least_target_s([])


@pytest.mark.parametrize("tau_s", [0.0, -0.5, math.inf, math.nan])
def test_time_per_group_must_be_positive_and_finite(tau_s):
    with pytest.raises(ValueError, match="positive time per group"):
        uniform_load(4, 1, 3.0, tau_s)


def test_covering_target_by_hand():
    """g0 to g3 are reached by the second client for 1 + 4 x 2 = 9, g4 and g5 by the first alone for 1 + 6 x 3 = 19."""
    assert covering_target_s([uniform_load(6, 2, 1.0, 3.0), uniform_load(4, 1, 1.0, 2.0)]) == 19.0
    assert covering_target_s([uniform_load(6, 2, 1.0, 0.5), uniform_load(4, 1, 1.0, 2.0)]) == 4.0


@given(st.lists(st.one_of(loads, priced), min_size=1, max_size=6), st.data())
def test_at_the_covering_target_no_ranking_leaves_a_group_to_nobody(fleet, data):
    target_s = covering_target_s(fleet)
    trained = set()
    for load in fleet:
        ranking = data.draw(st.permutations(load.accessible))
        trained |= set(allocate(load, group_budget(load, target_s), ranking, data.draw(st.booleans())).groups)
    assert trained == {j for load in fleet for j in load.accessible}


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


@given(st.lists(st.one_of(loads, priced), min_size=1, max_size=6))
def test_the_device_that_sets_t_star_gets_its_mandatory_number_of_groups(fleet):
    target_s = least_target_s(fleet)
    slowest = max(fleet, key=lambda load: load.overhead_s + len(load.mandatory) * load.tau_s)
    assert group_budget(slowest, target_s) == len(slowest.mandatory)


# S_n ----------------------------------------------------------------------------------------------------------------


def test_allocation_by_hand():
    """Mandatory g0; then by divergence g3 and g1, whatever they cost; then the three slots are taken."""
    load = priced_load([1.0, 4.0, 1.0, 2.0, 0.5], 1)
    allocation = allocate(load, 3, ["g3", "g1", "g0", "g2", "g4"])
    assert allocation.groups == ("g0", "g3", "g1") and allocation.budget == 3
    offers = [(o.group, o.seconds, o.verdict) for o in allocation.offers]
    assert offers == [("g3", 4.0, "chosen"), ("g1", 8.0, "chosen"), ("g2", 9.0, "budget"), ("g4", 8.5, "budget")]


def test_allocation_within_time_by_hand():
    """Mandatory g0; then by divergence g3 (fits), g1 (too slow: 1 + 1 + 2 + 4 > 6), g2 (fits): full."""
    load = priced_load([1.0, 4.0, 1.0, 2.0, 0.5], 1)
    allocation = allocate(load, 3, ["g3", "g1", "g0", "g2", "g4"], limit_s=6.0)
    assert allocation.groups == ("g0", "g3", "g2") and allocation.budget == 3
    offers = [(o.group, o.seconds, o.verdict) for o in allocation.offers]
    assert offers == [("g3", 4.0, "chosen"), ("g1", 8.0, "time"), ("g2", 5.0, "chosen"), ("g4", 5.5, "budget")]


def test_mandatory_groups_are_trained_even_beyond_the_target():
    """T* given by hand may be too short; k_n = |M_n| all the same."""
    load = priced_load([3.0, 3.0, 1.0], 2)
    allocation = allocate(load, group_budget(load, 2.0), ["g2"], limit_s=2.0)
    assert allocation.groups == ("g0", "g1") and [o.verdict for o in allocation.offers] == ["budget"]


def test_not_forced_means_top_k_of_everything():
    load = priced_load([1.0, 1.0, 1.0, 1.0], 2)
    allocation = allocate(load, 2, ["g3", "g2", "g1", "g0"], forced=False)
    assert allocation.groups == ("g3", "g2") and [o.verdict for o in allocation.offers[:2]] == ["chosen"] * 2


def test_order_by_cost_puts_the_dearest_first():
    assert by_cost(priced_load([1.0, 4.0, 1.0, 2.0], 1)) == ["g1", "g3", "g0", "g2"]


@settings(max_examples=300)
@given(st.integers(1, 10), st.data())
def test_greedy_is_optimal_for_the_count_budget(num_groups, data):
    """Section IV-B: mandatory plus top-k maximises the total divergence; compared with every subset."""
    num_mandatory = data.draw(st.integers(1, num_groups))
    d_bar = {j: data.draw(st.integers(0, 50)) / 4 for j in IDS[:num_groups]}
    budget = data.draw(st.integers(num_mandatory, num_groups))
    load = uniform_load(num_groups, num_mandatory, 1.0, 1.0)
    allocation = allocate(load, budget, sorted(load.accessible, key=lambda j: -d_bar[j]))

    free = [j for j in load.accessible if j not in load.mandatory]
    subsets = (s for r in range(budget - num_mandatory + 1) for s in itertools.combinations(free, r))
    best = max(sum(d_bar[j] for j in (*load.mandatory, *s)) for s in subsets)
    assert sum(d_bar[j] for j in allocation.groups) == best
    assert set(load.mandatory) <= set(allocation.groups)
    assert len(allocation.groups) == len(set(allocation.groups)) == budget


@given(priced, st.data())
def test_every_allocation_keeps_its_limits_and_explains_itself(load, data):
    limit_s = data.draw(st.one_of(st.just(math.inf), st.floats(0.5, 60).map(load.seconds(load.mandatory).__add__)))
    ranking = data.draw(st.permutations(load.accessible))
    slots = data.draw(st.integers(len(load.mandatory), len(load.accessible)))
    allocation = allocate(load, slots, ranking, limit_s=limit_s)
    assert len(allocation.groups) <= slots and load.seconds(allocation.groups) <= limit_s * (1 + 1e-9)
    assert len(allocation.groups) == slots or limit_s < math.inf
    chosen = [o.group for o in allocation.offers if o.verdict == "chosen"]
    assert allocation.groups == (*load.mandatory, *chosen)
    assert set(load.mandatory) | {o.group for o in allocation.offers} == set(load.accessible)
    for refusal in (o for o in allocation.offers if o.verdict != "chosen"):
        assert refusal.seconds > limit_s if refusal.verdict == "time" else len(allocation.groups) == slots
