"""The norm rule: one update out of all proportion is named, honest ones never are."""

from dataclasses import replace
from math import sqrt

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relief_ray.experiment.update_filter import MEDIAN_FACTOR, MODEL_FACTOR, outliers
from tests.toy import build, task_of, update_of

LAYOUT = build(b_zero=False).layout
MODELS = {"global": build(b_zero=False).params()}
LENGTH = sqrt(sum(float(theta.double().square().sum()) for theta in MODELS["global"].values()))


def receipts_of(norms):
    """A receipt per client whose update has that norm, all of it in one group."""
    sent = [update_of(task_of(LAYOUT, n, None), {}).receipt for n in range(len(norms))]
    return [replace(r, sq_norm={"head.0": norm**2}) for r, norm in zip(sent, norms, strict=True)]


@pytest.mark.parametrize(
    ("norms", "refused"),
    [
        ([1.0, 1.0, 1.0, 1e30], [3]),
        ([1e30, 0.9, 1.1, 1e12], [0, 3]),
        ([1.0, 1e6, 1.0], [1]),
        # Only zeros beside it, or one other client: nobody can say what is usual, but nothing is left of the model.
        ([0.0, 0.0, 0.0, 1e30], [3]),
        ([1.0, 1e30], [1]),
        ([1e30], [0]),
        ([1.0, 0.9e6 * LENGTH], []),
        # A learning rate that is too large for everybody.
        ([1e20, 1e22, 1e21, 1e25], [3]),
        ([1e20, 1e22, 1e21, 3e22], []),
        # Far above the others, but no more than a model's length: a client that trains while the others rest.
        ([1e-9, 1e-9, 1e-9, LENGTH], []),
    ],
)
def test_who_is_refused(norms, refused):
    assert list(outliers(receipts_of(norms), MODELS)) == refused


def test_the_reason_names_rule_norm_and_both_bounds():
    (reason,) = outliers(receipts_of([2.0, 2.0, 2.0, 1e30]), MODELS).values()
    assert reason.startswith("norm rule: its update has norm 1e+30, 5e+29 times the median 2 of 4 clients")
    assert f"(allowed: {MEDIAN_FACTOR:g})" in reason and f"of the model (allowed: {MODEL_FACTOR:g})" in reason


def test_norms_are_over_all_groups():
    parts = {j: 1e6 for j in LAYOUT.ids}
    receipts = [*receipts_of([1e3, 1e3, 1e3])[:2], replace(receipts_of([1.0] * 3)[2], sq_norm=parts)]
    bound = sqrt(len(LAYOUT.ids)) * 1e3
    assert bound < MEDIAN_FACTOR * 1e3 and not outliers(receipts, MODELS)


@settings(deadline=None)
@given(st.lists(st.floats(1e-3, 1.0), min_size=3, max_size=12), st.floats(1e-12, 1e12))
def test_norms_within_three_orders_of_magnitude_are_never_refused(norms, scale):
    assert outliers(receipts_of([norm * scale for norm in norms]), MODELS) == {}


def test_a_model_of_zeros_has_no_length_to_compare_with():
    zeros = {"global": {j: torch.zeros_like(v) for j, v in MODELS["global"].items()}}
    (reason,) = outliers(receipts_of([1.0, 1.0, 1.0, 1e9]), zeros).values()
    assert "more than that of the model" in reason
    assert outliers(receipts_of([1.0, 1e9]), zeros) == {}
