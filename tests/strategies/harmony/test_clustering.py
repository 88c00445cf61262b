"""Clusters of clients: scaling, k-means, their number, last reports."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relief_ray.strategies.harmony import (
    alike,
    k_means,
    last_reports,
    num_by_size,
    num_dominant,
    scale_columns,
)
from tests.toy import ACC, FULL, fleet_of, receipt_of, task_of


def points(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def random_points(number, seed, width=3):
    return torch.rand(number, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(st.integers(1, 6), st.integers(0, 50))
def test_scaled_columns_have_maximum_one_unless_all_zero(number, seed):
    d = random_points(number, seed)
    d[:, 1] = 0.0
    scaled = scale_columns(d)
    assert scaled.amax(0).tolist() == [1.0, 0.0, 1.0]
    torch.testing.assert_close(scaled[:, 0] * d[:, 0].max(), d[:, 0])


def test_numbers_of_clusters():
    assert [num_by_size(n) for n in (1, 3, 5, 6, 10, 11, 38)] == [1, 1, 1, 2, 2, 3, 8]
    assert num_dominant(torch.zeros(3, 2)) == 1
    assert num_dominant(points([1, 1], [2, 2], [3, 3])) == 1
    assert num_dominant(torch.eye(4, dtype=torch.float64)) == 4


@pytest.mark.parametrize(("values", "number"), [((3.0, 0.9), 1), ((3.0, 1.1), 2), ((1.0, 1.0, 0.4), 2)])
def test_dominant_values_hold_nine_tenths_of_the_squares(values, number):
    assert num_dominant(torch.diag(torch.tensor(values, dtype=torch.float64))) == number


def test_two_heaps_are_found_and_numbered_by_their_first_member():
    x = points([5, 5], [0, 0.1], [5, 5.2], [0.1, 0], [5.1, 5])
    assert k_means(x, 2) == [0, 1, 0, 1, 0]
    assert k_means(x, 1) == [0] * 5


@given(st.integers(1, 9), st.integers(1, 12), st.integers(0, 99))
def test_clusters_partition_the_points_and_none_is_empty(number, k, seed):
    labels = k_means(random_points(number, seed), k)
    assert sorted(set(labels)) == list(range(max(labels) + 1)) and len(labels) == number
    assert max(labels) + 1 <= min(number, k)


def test_coinciding_points_are_one_cluster():
    assert k_means(torch.ones(4, 2), 3) == [0, 0, 0, 0]


@given(st.integers(2, 9), st.integers(0, 99))
def test_every_point_is_with_the_nearest_mean(number, seed):
    x = random_points(number, seed)
    labels = torch.tensor(k_means(x, 3))
    means = torch.stack([x[labels == k].mean(0) for k in range(int(labels.max()) + 1)])
    assert torch.equal(torch.cdist(x, means).argmin(1), labels)


def test_teams_never_share_a_cluster():
    d = points([1, 0], [1, 0], [1, 0], [0, 1], [1, 0], [0, 1])
    assert alike(d, "aabbaa", "size") == [0, 0, 1, 1, 0, 0]
    assert alike(d, "aabbaa", 2) == [0, 0, 1, 2, 0, 3]
    assert alike(d, ["x"] * 6, 2) == [0, 0, 0, 1, 0, 1]
    assert alike(d, "abcdef", 5) == [0, 1, 2, 3, 4, 5], "never more clusters than clients"


def test_last_reports_stay_until_there_are_newer_ones():
    fleet = fleet_of(FULL, ACC, FULL)

    def report(client, *values):
        from tests.toy import build

        return receipt_of(task_of(build().layout, client, []), stats={"d": torch.tensor(values)})

    first, seen = last_reports(None, [report(0, 0.25, 0.5), report(1, 0.125)], "d", fleet)
    assert [c.id for c in seen] == [0, 1] and first[0].tolist() == [0.25, 0.5] and first[1, 0] == 0.125
    assert first[2].isnan().all() and first[1, 1].isnan()
    second, seen = last_reports(first, [report(2, 1.0, 2.0)], "d", fleet)
    assert [c.id for c in seen] == [0, 1, 2] and second[0].tolist() == [0.25, 0.5] and first[2].isnan().all()
