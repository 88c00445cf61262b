"""Distances, average linkage and silhouette against brute force and scipy, and the number of clusters."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relief_ray.strategies.fedlease import (
    average_linkage,
    cluster,
    distances,
    layer_distance,
    layers,
    silhouette,
    silhouettes,
)
from tests.toy import ACC, FULL, build

BLOCKS = [0, 0, 0, 1, 1, 1, 2, 2]


def block_distance(labels, within=0.1, between=0.9, seed=0):
    make = np.random.default_rng(seed)
    distance = np.array([[within if a == b else between for b in labels] for a in labels])
    distance += make.uniform(0.0, 0.05, distance.shape)
    distance = (distance + distance.T) / 2
    np.fill_diagonal(distance, 0.0)
    return distance


def clusters(distance, most):
    return cluster(distance, silhouettes(distance, most))


def random_distance(number, seed):
    points = np.random.default_rng(seed).normal(size=(number, 3))
    return np.linalg.norm(points[:, None] - points[None], axis=2)


def same_partition(a, b):
    return all((a[i] == a[j]) == (b[i] == b[j]) for i, j in itertools.combinations(range(len(a)), 2))


def test_three_device_types_give_three_clusters():
    """The fleet of PAMAP2: three Full clients, three with two sensors, two with one."""
    assert clusters(block_distance(BLOCKS), 4) == BLOCKS


@pytest.mark.parametrize("number", range(3, 9))
@pytest.mark.parametrize("most", [2, 3, 4])
@pytest.mark.parametrize("seed", range(4))
def test_clusters_are_a_partition_of_two_to_most(number, most, seed):
    labels = clusters(random_distance(number, seed), most)
    assert len(labels) == number and sorted(set(labels)) == list(range(len(set(labels))))
    assert 2 <= len(set(labels)) <= min(most, number - 1)


@given(number=st.integers(3, 9), seed=st.integers(0, 500), data=st.data())
@settings(max_examples=60, deadline=None)
def test_linkage_and_silhouette_are_scipys_and_scikit_learns(number, seed, data):
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform
    from sklearn.metrics import silhouette_score

    distance = random_distance(number, seed)
    k = data.draw(st.integers(2, number - 1))
    labels = average_linkage(distance, k)
    theirs = fcluster(linkage(squareform(distance), "average"), k, "maxclust")
    assert same_partition(labels, theirs)
    assert silhouette(distance, labels) == pytest.approx(silhouette_score(distance, labels, metric="precomputed"))


def test_the_best_silhouette_wins_and_the_smaller_number_among_equals():
    distance = random_distance(7, 5)
    scores = {k: silhouette(distance, average_linkage(distance, k)) for k in (2, 3, 4)}
    assert silhouette(distance, clusters(distance, 4)) == max(scores.values())
    assert len(set(clusters(np.ones((6, 6)) - np.eye(6), 4))) == 2, "nobody is like anybody: two clusters, not more"


@pytest.mark.parametrize("number", [0, 1, 2])
def test_too_few_clients_are_one_cluster(number):
    assert clusters(np.zeros((number, number)), 4) == [0] * number


def test_clusters_are_numbered_by_their_first_client():
    assert clusters(block_distance([1, 0, 0, 1, 1]), 3) == [0, 1, 1, 0, 0]


def test_distance_by_hand():
    """Mean over the layers of a kind, then over kinds: ((1 + 0) / 2 + 2) / 2."""
    right, up = np.array([1.0, 0.0]), np.array([0.0, 3.0])
    a = {("q", 1): right, ("q", 2): up, ("v", 1): right}
    b = {("q", 1): up, ("q", 2): 5 * up, ("v", 1): -right}
    assert layer_distance(a, b) == pytest.approx((0.5 + 2.0) / 2)


def test_layers_that_are_zero_or_of_one_alone_do_not_count():
    one, zero = np.ones(3), np.zeros(3)
    a, b = {("q", 1): one, ("q", 2): zero, ("w", 1): one}, {("q", 1): 2 * one, ("q", 2): one, ("v", 1): one}
    assert layer_distance(a, b) == pytest.approx(0.0)
    assert layer_distance({("q", 1): zero}, {("q", 1): zero}) == 1.0
    assert distances([a, b, {}]).tolist()[2] == [1.0, 1.0, 0.0]


def test_lora_is_known_by_its_b_and_only_by_the_own_sensors():
    layout, theta = build(b_zero=False).layout, build(b_zero=False).params()
    full, acc = layers(layout, theta, FULL), layers(layout, theta, ACC)
    assert {layer for _, layer in full} == {"encoder.acc.1", "encoder.hr.1", "fusion.B"}
    assert {layer for _, layer in acc} == {"encoder.acc.1", "fusion.B"}
    b = layout.unflatten("encoder.acc.1", theta["encoder.acc.1"])["b"]
    assert np.array_equal(acc[("encoder", "b"), "encoder.acc.1"], b.reshape(-1).double().numpy())


def test_a_dense_model_is_known_by_whole_groups():
    from tests.training.scenario import SHAPE, TINY

    backbone = TINY.build(SHAPE, 0)
    known_by = layers(backbone.layout, backbone.params(), ("acc",))
    assert {j for _, j in known_by} == {"fusion.A.acc", "fusion.B", "encoder.acc.1", "encoder.acc.2", "head.1"}
    assert all(len(values) == backbone.layout[j].numel for (_, j), values in known_by.items())


def test_one_cluster_has_no_silhouette():
    with pytest.raises(ValueError, match="there is but one"):
        silhouette(np.zeros((3, 3)), [0, 0, 0])
