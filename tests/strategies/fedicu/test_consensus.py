"""Lengths and directions of columns: agreement, merging, degenerate columns."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relief_ray.core.groups import GroupLayout, ParamGroup, pack
from relief_ray.strategies.fedicu import (
    agreement,
    balanced_steps,
    merge_columns,
    split_columns,
    whole_tensors,
)
from tests.toy import build, task_of, update_of


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


def test_agreeing_with_oneself_does_not_count():
    """The second client's column is zero: neither agrees with the other, though the first would with itself."""
    x = torch.tensor([[[1.0], [0.0]], [[0.0], [0.0]]], dtype=torch.float64)
    assert agreement([split_columns(x)[1]], 1.0).tolist() == [0.5, 0.5]


@given(st.integers(0, 50))
def test_lengths_are_the_weighted_mean_of_lengths(seed):
    x, p = matrices(4, seed), torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    merged = merge_columns(x, p, agreement([split_columns(x)[1]], 1.0))
    torch.testing.assert_close(merged.norm(dim=0), p @ x.norm(dim=1), rtol=1e-6, atol=0)


def test_two_columns_at_right_angles_by_hand():
    """(3, 0) and (0, 4): alpha is even, along (1, 1) / sqrt 2; 3.5 long, or |(1.5, 2)| = 2.5."""
    x = torch.tensor([[[3.0], [0.0]], [[0.0], [4.0]]], dtype=torch.float64)
    along = torch.full((2, 1), 0.5**0.5, dtype=torch.float64)
    torch.testing.assert_close(merge_columns(x, even(2), even(2)), 3.5 * along)
    torch.testing.assert_close(merge_columns(x, even(2), even(2), "length_of_mean"), 2.5 * along)
    assert not torch.allclose(2.5 * along, x.mean(0)), "its direction is not the mean's"


@given(st.integers(2, 8), st.integers(0, 50))
def test_the_mean_of_lengths_is_never_shorter_than_the_mean(number, seed):
    x = matrices(number, seed)
    alpha = agreement([split_columns(x)[1]], 1.0)
    averaged = merge_columns(x, even(number), alpha)
    renormalised = merge_columns(x, even(number), alpha, "length_of_mean")
    mean = x.mean(0).norm(dim=0)
    torch.testing.assert_close(renormalised.norm(dim=0), mean)
    ratio = averaged.norm(dim=0) / mean
    assert bool((ratio >= 1 - 1e-12).all())
    torch.testing.assert_close(averaged / ratio, renormalised), "the same direction"
    orthogonal = torch.eye(number, dtype=torch.float64).unsqueeze(2)
    longest = merge_columns(orthogonal, even(number), even(number)).norm() / orthogonal.mean(0).norm()
    assert float(longest) == pytest.approx(number**0.5), "at right angles sqrt(N) times as long"


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


BLOCKS = GroupLayout(
    ParamGroup(id=f"A.{m}", role="fusion_a", modality=m, layer=None, tensors=pack([("a", (2, 1), "lora_a")]))
    for m in ("acc", "hr")
)
RIGHT, UP = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])


def test_fusion_is_one_matrix_and_everything_else_is_by_tensor():
    layout = build().layout
    whole, *alone = whole_tensors(layout, layout.ids)
    assert [j for j, _ in whole] == ["fusion.A.acc", "fusion.A.hr"]
    assert [piece for (piece,) in alone] == [(g.id, t) for g in layout for t in g.tensors if g.role != "fusion_a"]
    assert [[j for j, _ in t] for t in whole_tensors(layout, ["head.1", "fusion.A.hr"])] == [
        ["fusion.A.hr"], ["head.1"], ["head.1"]]  # fmt: skip


def test_blocks_of_fusion_share_one_agreement_by_hand():
    """Whole: s = 1/4, 1/2, 1/4; block by block the first two would agree on A_acc and the last two on A_hr.

    alpha = (a, b, a) with b / a = e^(1/4): 0.3045, 0.3910, 0.3045; column acc is (a + b, a) / |.|, hr (a, a + b) / |.|.
    """
    moved = ((RIGHT, RIGHT), (RIGHT, UP), (UP, UP))
    updates = [update_of(task_of(BLOCKS, n, None), {"A.acc": x, "A.hr": y}) for n, (x, y) in enumerate(moved)]
    theta = {j: torch.zeros(2) for j in BLOCKS.ids}
    steps = balanced_steps(updates, theta, BLOCKS, even(3), 1.0)
    assert steps["A.acc"].tolist() == pytest.approx([0.9160, 0.4011], abs=1e-4)
    assert steps["A.hr"].tolist() == pytest.approx([0.4011, 0.9160], abs=1e-4)


def test_a_block_that_nobody_sent_is_left_out_of_the_matrix_by_hand():
    """A_acc alone: s = 1/2, 1/2, 0; alpha = (a, a, b) with a / b = e^(1/2): 0.3837, 0.3837, 0.2327."""
    updates = [update_of(task_of(BLOCKS, n, ["A.acc"]), {"A.acc": x}) for n, x in enumerate((RIGHT, RIGHT, UP))]
    steps = balanced_steps(updates, {j: torch.zeros(2) for j in BLOCKS.ids}, BLOCKS, even(3), 1.0)
    assert set(steps) == {"A.acc"}
    assert steps["A.acc"].tolist() == pytest.approx([0.9569, 0.2902], abs=1e-4)
