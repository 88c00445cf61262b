"""Eqs. (5) and (6)."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relief_ray.server.aggregation import divergence, from_tensor, to_tensor
from relief_ray.strategies.relief.divergence import smooth
from tests.toy import build, sum_of

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
