"""Eqs. (5) and (6), and the orders in which free slots are offered."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relief_ray.core.messages import ServerState
from relief_ray.server.aggregation import divergence, from_tensor, to_tensor
from relief_ray.strategies.relief import Relief
from relief_ray.strategies.relief.budget import D_BAR, LAST_ROUND, diagnose, diagnosed_state, ranking, smooth
from tests.toy import EQUAL, FOUR, build, context_of, reduced_of, sum_of, task_of, update_of

LAYOUT = build().layout
vectors = st.integers(1, 4).flatmap(
    lambda width: st.lists(
        st.lists(st.floats(-1e3, 1e3, width=32), min_size=width, max_size=width), min_size=2, max_size=8
    )
)


def two_pass(deltas):
    """Eq. (5) as it is written."""
    mean = [sum(column) / len(deltas) for column in zip(*deltas, strict=True)]
    return sum(sum((x - m) ** 2 for x, m in zip(row, mean, strict=True)) for row in deltas) / len(deltas)


def test_eq_5_by_hand():
    """Updates (1, 0) and (3, 4): mean (2, 2), squared distances 5 and 5, divergence 5."""
    assert divergence(sum_of(LAYOUT, "head.1", [[1.0, 0.0], [3.0, 4.0]])) == 5.0


@given(vectors)
def test_one_pass_is_the_direct_formula(deltas):
    spread = divergence(sum_of(LAYOUT, "head.1", deltas))
    scale = max(sum(x * x for x in row) for row in deltas)
    assert spread >= 0.0
    assert spread == pytest.approx(two_pass(deltas), rel=1e-9, abs=1e-9 * max(scale, 1e-30))


@given(vectors, st.floats(0.1, 10))
def test_weights_do_not_enter(deltas, weight):
    weights = [weight * (i + 1) for i in range(len(deltas))]
    assert divergence(sum_of(LAYOUT, "h", deltas, weights)) == divergence(sum_of(LAYOUT, "h", deltas))


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=5), st.integers(2, 9))
def test_full_agreement_is_never_below_zero(row, count):
    """Rounding could make the difference of two equal squares negative."""
    spread = divergence(sum_of(LAYOUT, "head.1", [row] * count))
    assert 0.0 <= spread <= 1e-12 * count * sum(x * x for x in row) + 1e-300


def test_fewer_than_two_members_have_no_divergence():
    assert divergence(sum_of(LAYOUT, "head.1", [[1.0, 2.0]])) is None


def test_eq_6_by_hand():
    """gamma = 0.9: 0.9 * 2 + 0.1 * 10 = 2.8; the first value stands; a missing one is held."""
    after = smooth({"a": 10.0, "b": 4.0}, {"a": 2.0, "b": None, "c": 7.0, "d": None}, 0.9)
    assert after == {"a": pytest.approx(2.8, abs=1e-15), "b": 4.0, "c": 7.0}


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30), st.floats(0.01, 0.99))
def test_eq_6_unrolled(values, gamma):
    """``d_bar^R = (1-gamma)^R d^0 + gamma sum_i (1-gamma)^(R-i) d^i``, always between the extremes seen."""
    d_bar = {}
    for value in values:
        d_bar = smooth(d_bar, {"j": value}, gamma)
    last = len(values) - 1
    tail = sum(gamma * (1 - gamma) ** (last - i) * v for i, v in enumerate(values) if i)
    assert d_bar["j"] == pytest.approx((1 - gamma) ** last * values[0] + tail, rel=1e-9, abs=1e-9)
    assert min(values) * (1 - 1e-12) <= d_bar["j"] <= max(values) * (1 + 1e-12)


def test_smoothing_leaves_its_input_alone():
    before = {"a": 1.0}
    smooth(before, {"a": 3.0}, 0.5)
    assert before == {"a": 1.0}


@given(st.dictionaries(st.sampled_from(LAYOUT.ids), st.floats(0, 1e300)))
def test_state_round_trip(d_bar):
    tensor = to_tensor(d_bar, LAYOUT)
    assert tensor.dtype == torch.float64 and tensor.shape == (len(LAYOUT),)
    assert from_tensor(tensor, LAYOUT) == d_bar
    assert [math.isnan(v) for v in tensor.tolist()] == [j not in d_bar for j in LAYOUT.ids]


# Orders of ranking --------------------------------------------------------------------------------------------------


def order(select, d_bar, ages=None, client=0):
    tensors = {D_BAR: to_tensor(d_bar, LAYOUT)}
    if ages is not None:
        tensors[LAST_ROUND] = torch.stack([to_tensor(ages.get(n, {}), LAYOUT) for n in range(len(FOUR))])
    context = context_of(LAYOUT, FOUR, 3, EQUAL)
    reach = LAYOUT.ids[:5]
    return ranking(select, ServerState(models={}, tensors=tensors), context, FOUR[client], reach), reach


def test_descending_divergence_with_ties_in_layout_order():
    ids = LAYOUT.ids
    ranked, _ = order("divergence", {ids[3]: 2.0, ids[1]: 2.0, ids[4]: 5.0})
    assert ranked == [ids[4], ids[1], ids[3], ids[0], ids[2]]
    ranked, reach = order("divergence", {ids[-1]: 9.0})
    assert ranked == list(reach), "a group out of reach decides nothing"


def test_per_element_divides_by_the_number_of_elements():
    """Equal divergences per element: layout order. Twice the sum in the smallest group puts it first."""
    ids, sizes = LAYOUT.ids[:5], [LAYOUT[j].numel for j in LAYOUT.ids[:5]]
    assert len(set(sizes)) > 1
    equal = {j: 3.0 * size for j, size in zip(ids, sizes, strict=True)}
    assert order("per_element", equal)[0] == list(ids)
    smallest = ids[sizes.index(min(sizes))]
    assert order("per_element", {**equal, smallest: 2.0 * equal[smallest]})[0][0] == smallest
    assert order("divergence", {**equal, smallest: 2.0 * equal[smallest]})[0][0] != smallest


def test_oldest_first_then_the_more_divergent_then_layout_order():
    a, b, c, d, e = LAYOUT.ids[:5]
    ages = {0: {a: 2.0, b: 1.0, c: 1.0, d: 2.0}, 1: {b: 2.0}}
    ranked, _ = order("oldest", {c: 5.0, a: 1.0}, ages)
    assert ranked == [e, c, b, a, d], "never trained; round 1 by divergence; round 2"
    assert order("oldest", {}, ages, client=1)[0] == [a, c, d, e, b], "every client has its own ages"


def trained(context, state, groups):
    """The state after a round in which client 0 alone trained ``groups``."""
    tasks = [task_of(LAYOUT, 0, groups)]
    strategy = Relief(select="oldest").build()
    updates = [update_of(t, {j: torch.zeros(LAYOUT[j].numel) for j in groups}) for t in tasks]
    reduced = reduced_of(updates, strategy.reduction, LAYOUT, FOUR)
    return strategy.aggregate(state, reduced, context)


def test_ages_are_those_of_updates_that_the_server_used():
    a, b, c = LAYOUT.ids[:3]
    state = ServerState(models={"global": {j: torch.zeros(LAYOUT[j].numel) for j in LAYOUT.ids}})
    for round_, groups in enumerate(([a, b, c], [b], [a])):
        state = trained(context_of(LAYOUT, FOUR, round_, EQUAL), state, groups)
    table = state.tensors[LAST_ROUND]
    assert table.shape == (len(FOUR), len(LAYOUT))
    assert from_tensor(table[0], LAYOUT) == {a: 2.0, b: 1.0, c: 0.0}
    assert all(from_tensor(row, LAYOUT) == {} for row in table[1:])


def test_a_record_holds_what_the_orders_read():
    """``explain`` ranks again from the ledger alone."""
    a, b = LAYOUT.ids[:2]
    ages = {0: {a: 2.0, b: 1.0}, 2: {a: 0.0}}
    tensors = {D_BAR: to_tensor({a: 4.0}, LAYOUT)}
    tensors[LAST_ROUND] = torch.stack([to_tensor(ages.get(n, {}), LAYOUT) for n in range(len(FOUR))])
    before = ServerState(models={}, tensors=tensors)
    told = diagnosed_state({k: v for k, v in diagnose(before, LAYOUT).items() if v}, FOUR, LAYOUT)
    for key in (D_BAR, LAST_ROUND):
        assert torch.equal(told.tensors[key].nan_to_num(-1.0), before.tensors[key].nan_to_num(-1.0))
    assert LAST_ROUND not in diagnosed_state({D_BAR: {a: 4.0}}, FOUR, LAYOUT).tensors


def test_only_oldest_keeps_a_table_of_ages():
    state = ServerState(models={"global": {j: torch.zeros(LAYOUT[j].numel) for j in LAYOUT.ids}})
    strategy = Relief().build()
    context = context_of(LAYOUT, FOUR, 0, EQUAL)
    update = update_of(task_of(LAYOUT, 0, LAYOUT.ids[:1]), {LAYOUT.ids[0]: torch.ones(LAYOUT[LAYOUT.ids[0]].numel)})
    after = strategy.aggregate(state, reduced_of([update], strategy.reduction, LAYOUT, FOUR), context)
    assert set(after.tensors) == {D_BAR}
