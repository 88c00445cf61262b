"""Clustering of clients by distances between their layers; the number of clusters is that of the best silhouette.

All in NumPy, float64 on one thread, so that ties break the same way on every machine.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from relief_ray.groups import GroupLayout, Params

Matrix = NDArray[np.float64]
# One client's layers: (kind of layer, layer) -> flat vector; layers of a kind are averaged before kinds are.
Layers = Mapping[tuple[Hashable, Hashable], Matrix]
Squares = Mapping[tuple[Hashable, Hashable], np.float64]


def layer_distance(a: Layers, b: Layers) -> float:
    """Mean over kinds of the mean over layers of ``1 - cos(a_l, b_l)``, in [0, 2].

    Layers that only one of them has, or that are zero in either, do not count; 1 where none is left.
    """
    return _distance(a, b, _squares(a), _squares(b))


def _squares(client: Layers) -> Squares:
    return {key: np.sum(values * values) for key, values in client.items()}


def _distance(a: Layers, b: Layers, squares_a: Squares, squares_b: Squares) -> float:
    by_kind: dict[Hashable, list[float]] = {}
    for key in (k for k in a if k in b):
        norm = float(np.sqrt(squares_a[key] * squares_b[key]))
        if norm > 0.0:
            by_kind.setdefault(key[0], []).append(1.0 - float(np.sum(a[key] * b[key])) / norm)
    means = [sum(gaps) / len(gaps) for gaps in by_kind.values()]
    return min(2.0, max(0.0, sum(means) / len(means))) if means else 1.0


def layers(layout: GroupLayout, step: Params, modalities: Collection[str]) -> Layers:
    """Layers of a client's step that are compared: the LoRA B factors, or whole groups of a model without LoRA.

    Groups of other modalities than ``modalities`` are left out.
    """
    vectors: dict[tuple[Hashable, Hashable], Matrix] = {}
    for group in (g for g in layout.accessible(modalities) if g.id in step):
        values = step[group.id].to(dtype=torch.float64).numpy()
        if not layout.lora:
            vectors[(group.role, group.layer), group.id] = values
        for spec in group.tensors:
            if spec.kind == "lora_b":
                vectors[(group.role, spec.name), group.id] = values[spec.offset : spec.offset + spec.numel]
    return vectors


def distances(clients: Sequence[Layers]) -> Matrix:
    """``layer_distance`` of all pairs (n, n), zero on the diagonal."""
    distance, squares = np.zeros((len(clients), len(clients))), [_squares(client) for client in clients]
    for i, a in enumerate(clients):
        for j in range(i):
            distance[i, j] = distance[j, i] = _distance(a, clients[j], squares[i], squares[j])
    return distance


def average_linkage(distance: Matrix, num_clusters: int) -> list[int]:
    """Merges the two clusters of least mean distance until ``num_clusters`` are left (n,).

    Of equal pairs the first in client order is merged; clusters are numbered by their first client.
    """
    clusters = [[i] for i in range(len(distance))]
    between = distance.astype(np.float64).copy()
    np.fill_diagonal(between, np.inf)
    while len(clusters) > num_clusters:
        i, j = sorted(int(x) for x in np.unravel_index(int(np.argmin(between)), between.shape))
        n, m = len(clusters[i]), len(clusters[j])
        merged = (n * between[i] + m * between[j]) / (n + m)
        between[i] = between[:, i] = merged
        between[i, i] = np.inf
        between = np.delete(np.delete(between, j, 0), j, 1)
        clusters[i] += clusters.pop(j)
    labels = np.empty(len(distance), dtype=np.int64)
    for label, members in enumerate(sorted(clusters, key=min)):
        labels[members] = label
    return [int(label) for label in labels]


def silhouette(distance: Matrix, clusters: Sequence[int]) -> float:
    """Mean of ``(b - a) / max(a, b)``: ``a`` mean distance to the own cluster, ``b`` to the nearest other one.

    A client alone in its cluster counts 0, as does one with ``a = b = 0`` (Rousseeuw 1987).

    Raises:
        ValueError: there is only one cluster.
    """
    labels = np.array(clusters)
    names = np.unique(labels)
    if len(names) < 2:
        raise ValueError("the silhouette compares clusters; there is but one")
    scores = []
    for i, label in enumerate(labels):
        others = (labels == label) & (np.arange(len(labels)) != i)
        if not others.any():
            scores.append(0.0)
            continue
        a = float(distance[i, others].mean())
        b = min(float(distance[i, labels == other].mean()) for other in names if other != label)
        scores.append((b - a) / max(a, b) if max(a, b) > 0.0 else 0.0)
    return sum(scores) / len(scores)


def silhouettes(distance: Matrix, most: int) -> dict[int, float]:
    """Silhouette of each number of clusters in 2 .. ``most`` that is smaller than the number of clients."""
    numbers = range(2, min(most, len(distance) - 1) + 1)
    return {k: silhouette(distance, average_linkage(distance, k)) for k in numbers}


def cluster(distance: Matrix, most: int) -> list[int]:
    """Clusters (n,) of the number in 2 .. ``most`` with the largest silhouette, the smallest number among equals.

    Fewer than three clients form one cluster, since the silhouette is undefined for singletons.
    """
    scores = silhouettes(distance, most)
    return average_linkage(distance, max(scores, key=lambda k: scores[k])) if scores else [0] * len(distance)
