"""Mixing with the nearest: weights, distances and what identical or lonely clients get."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relief_ray.server.aggregation import mix
from relief_ray.strategies import pilot as module
from relief_ray.strategies.pilot import LocalModels, distances, mix_with_nearest, mixing

GROUPS = ("a", "b")


def models(number, seed=0):
    make = torch.Generator().manual_seed(seed)
    return [{"a": torch.randn(3, generator=make), "b": torch.randn(5, generator=make)} for _ in range(number)]


def local(thetas):
    """These models as starts of clients that sent no change."""
    return LocalModels(starts=thetas, deltas=[{j: torch.zeros_like(x) for j, x in theta.items()} for theta in thetas])


def test_distance_is_over_all_groups_together():
    matrix = distances(local(models(4)), GROUPS)
    flat = [torch.cat([m["a"], m["b"]]).double() for m in models(4)]
    for i in range(4):
        for k in range(4):
            assert matrix[i, k] == pytest.approx(float((flat[i] - flat[k]).norm()))
    assert np.array_equal(matrix, matrix.T)
    assert distances(local(models(1)), GROUPS).tolist() == [[0.0]] and distances(local([]), ()).shape == (0, 0)


@given(number=st.integers(1, 8), seed=st.integers(0, 99), most=st.integers(1, 4))
@settings(max_examples=50, deadline=None)
def test_weights_are_shares(number, seed, most):
    weights = mixing(distances(local(models(number, seed)), GROUPS), [1.0 + i for i in range(number)], most)
    assert bool((weights >= 0).all())
    np.testing.assert_allclose(weights.sum(1), 1.0)
    assert all(np.count_nonzero(row) <= most + 1 for row in weights)


def test_weights_by_hand():
    """Client 0: neighbours 1 (d = 1) and 2 (d = 2), sizes 2, 1, 1: beta = 2 / 4, the rest 2 : 1."""
    d = np.array([[0.0, 1.0, 2.0, 9.0], [1.0, 0.0, 1.0, 8.0], [2.0, 1.0, 0.0, 7.0], [9.0, 8.0, 7.0, 0.0]])
    row = mixing(d, [2.0, 1.0, 1.0, 5.0], 2)[0]
    np.testing.assert_allclose(row, [0.5, 0.5 * 2 / 3, 0.5 / 3, 0.0])


def test_identical_clients_stay_identical_and_nothing_is_divided_by_zero():
    same = [models(1)[0]] * 4
    mixed = mix_with_nearest(local(same), [1.0, 2.0, 3.0, 4.0], 3, GROUPS)
    for theta in mixed:
        for j in GROUPS:
            torch.testing.assert_close(theta[j], same[0][j], rtol=0, atol=1e-6)


def test_mixing_weights_of_two_equal_models_by_hand():
    twin, other = models(2)
    weights = mixing(distances(local([twin, twin, other]), GROUPS), [1.0, 1.0, 1.0], 2)
    np.testing.assert_allclose(weights[0], [1 / 3, 2 / 3, 0.0])


def test_permuted_clients_get_permuted_models():
    order = [3, 0, 4, 1, 2]
    given_, sizes = models(5), [1.0, 2.0, 3.0, 4.0, 5.0]
    mixed = mix_with_nearest(local(given_), sizes, 2, GROUPS)
    moved = mix_with_nearest(local([given_[i] for i in order]), [sizes[i] for i in order], 2, GROUPS)
    for k, i in enumerate(order):
        for j in GROUPS:
            torch.testing.assert_close(moved[k][j], mixed[i][j], rtol=0, atol=1e-6)


def test_a_lonely_client_keeps_its_model():
    alone = models(1)
    assert torch.equal(mix_with_nearest(local(alone), [3.0], 3, GROUPS)[0]["b"], alone[0]["b"])


def test_local_models_and_means_by_hand():
    start = [{"a": torch.tensor([1.0, 2.0])}, {"a": torch.tensor([0.0, 0.0])}]
    sent = LocalModels(starts=start, deltas=[{"a": torch.tensor([1.0, 0.0])}, {"a": torch.tensor([5.0, 5.0])}])
    rows = sent.rows("a")
    assert rows.dtype == torch.float64 and rows.tolist() == [[2.0, 2.0], [5.0, 5.0]]
    assert sent.rows("a", slice(1, 2)).tolist() == [[2.0], [5.0]]
    assert mix([*zip([2.0, 1.0], rows, strict=True)]).tolist() == [3.0, 3.0]


@pytest.mark.parametrize("tile", [1, 2, 4096])
def test_tiles_give_what_whole_models_give(tile, monkeypatch):
    """Equal weights: equal bits, wherever a tile ends; distances to the last digits of float64."""
    monkeypatch.setattr(module, "TILE", tile)
    start, moved = models(7, 1), models(7, 2)
    sent = LocalModels(starts=start, deltas=moved)
    whole = [{j: s[j].double() + m[j].double() for j in GROUPS} for s, m in zip(start, moved, strict=True)]
    flat = torch.stack([torch.cat([theta[j] for j in GROUPS]) for theta in whole])
    matrix = distances(sent, GROUPS)
    np.testing.assert_allclose(matrix, torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist"), rtol=1e-12)
    sizes = [1.0 + i for i in range(7)]
    for theta, row in zip(mix_with_nearest(sent, sizes, 3, GROUPS), mixing(matrix, sizes, 3).tolist(), strict=True):
        for j in GROUPS:
            total = torch.zeros_like(whole[0][j])
            for weight, other in zip(row, whole, strict=True):
                total += weight * other[j]
            assert torch.equal(theta[j], total.to(torch.float32))


def test_mixtures_share_no_memory():
    """A model that leaves the process takes its own values along and no one else's."""
    first, second = mix_with_nearest(local(models(2)), [1.0, 1.0], 1, GROUPS)
    assert all(len(x.untyped_storage()) == 4 * len(x) for theta in (first, second) for x in theta.values())
