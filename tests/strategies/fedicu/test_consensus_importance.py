"""Which values are kept, and how much a value or a group has changed, by hand."""

from math import ceil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relief_ray.strategies.fedicu import group_importance, importance, keep_top


@given(st.integers(1, 40), st.floats(0.01, 1.0), st.integers(0, 99))
def test_kept_values_are_the_most_important_ones(number, share, seed):
    scores = torch.randint(0, 6, (number,), generator=torch.Generator().manual_seed(seed)).float()
    kept = keep_top(scores, share)
    assert int(kept.sum()) == min(number, ceil(share * number - 1e-9))
    assert kept.all() or scores[kept].min() >= scores[~kept].max()
    ties = scores == scores[kept].min()
    assert kept[ties].tolist() == sorted(kept[ties].tolist(), reverse=True), "of equal ones the first"


@pytest.mark.parametrize("share", [0.2, 0.5, 1.0])
def test_a_value_that_is_not_finite_is_kept_so_that_the_check_of_updates_sees_it(share):
    kept = keep_top(torch.tensor([1.0, float("nan"), 0.0, 2.0, float("inf")]), share)
    assert kept[1] and (share == 0.2 or kept[4])


def test_a_change_counts_for_itself_or_beside_what_there_was():
    delta, origin = torch.tensor([1.0, -2.0, 3.0]), torch.tensor([-2.0, 0.5, 3.0])
    assert importance("magnitude", delta, origin).tolist() == [1.0, 2.0, 3.0]
    assert importance("relative", delta, origin).tolist() == pytest.approx([0.5, 4.0, 1.0])
    assert torch.isfinite(importance("relative", delta, torch.zeros(3))).all(), "a value that was zero"


def test_a_groups_importance_is_the_clients_mean_change():
    """Mean sizes 2 and 4 make 3; over the group's own mean size 1.5 that is 2."""
    deltas, origin = [torch.tensor([1.0, -3.0]), torch.tensor([4.0, -4.0])], torch.tensor([1.0, -2.0])
    assert group_importance("magnitude", deltas, origin) == 3.0
    assert group_importance("relative", deltas, origin) == pytest.approx(2.0)
