"""Lengths and directions of columns: agreement, merging, degenerate columns."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relief_ray.server.consensus import agreement, merge_columns, split_columns


def matrices(number=4, seed=0, rows=6, columns=5):
    return torch.randn(number, rows, columns, generator=torch.Generator().manual_seed(seed)).double()


def even(number):
    return torch.full((number,), 1 / number, dtype=torch.float64)


@pytest.mark.parametrize(("temperature", "two", "others"), [(1.0, 0.291, 0.209), (0.1, 0.483, 0.017)])
def test_two_of_four_that_agree_by_hand(temperature, two, others):
    """Orthogonal directions: s = 1/3 for the pair, 0 for the others."""
    x = torch.eye(4, dtype=torch.float64)[[0, 0, 1, 2]].unsqueeze(2)
    alpha = agreement([x], temperature)
    assert alpha.tolist() == pytest.approx([two, two, others, others], abs=1e-3)


@given(st.integers(1, 6), st.integers(0, 50))
def test_agreement_is_a_distribution_that_follows_its_clients(number, seed):
    v = split_columns(matrices(number, seed))[1]
    alpha, order = agreement([v], 1.0), torch.randperm(number, generator=torch.Generator().manual_seed(seed))
    assert float(alpha.sum()) == pytest.approx(1.0) and bool((alpha > 0).all())
    torch.testing.assert_close(agreement([v[order]], 1.0), alpha[order])


def test_mean_cosine_is_over_all_columns_and_others():
    x, y = matrices(3, 1), matrices(3, 2, 2, 7)
    v, w = split_columns(x)[1], split_columns(y)[1]
    cos = torch.nn.functional.cosine_similarity
    for together in ([v], [v, w]):
        s = [torch.cat([cos(m[n], m[k], dim=0) for m in together for k in range(3) if k != n]).mean() for n in range(3)]
        torch.testing.assert_close(agreement(together, 0.5), torch.softmax(torch.stack(s) / 0.5, 0))


@given(st.integers(0, 50))
def test_lengths_are_the_weighted_mean_of_lengths(seed):
    x, p = matrices(4, seed), torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    merged = merge_columns(x, p, agreement([split_columns(x)[1]], 1.0))
    torch.testing.assert_close(merged.norm(dim=0), p @ x.norm(dim=1), rtol=1e-6, atol=0)


def test_identical_clients_and_a_single_one_are_returned():
    x = matrices(1, 3)
    torch.testing.assert_close(merge_columns(x.expand(4, -1, -1), even(4), even(4)), x[0], rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(merge_columns(x, even(1), agreement([split_columns(x)[1]], 1.0)), x[0])


def test_columns_of_zeros_and_opposite_ones_stay_finite():
    x = matrices(2, 4)
    x[:, :, 0] = 0.0
    x[1, :, 1] = -x[0, :, 1]
    x[0, :, 2] = 0.0
    merged = merge_columns(x, even(2), even(2))
    assert bool(torch.isfinite(merged).all()) and bool(torch.isfinite(agreement([split_columns(x)[1]], 1.0)).all())
    assert not merged[:, 0].any() and torch.equal(merged[:, 1], torch.zeros(6).double()), "their mean"
    torch.testing.assert_close(merged[:, 2], x[1, :, 2] / 2)
