"""Clusters of clients, each with a model and an expert of its own: how models move and experts change hands."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from torch import Tensor

from relief_ray.additions import Experts
from relief_ray.groups import GroupId, GroupLayout, Params
from relief_ray.messages import ClientId, Fleet, GroupSum
from relief_ray.server.aggregation import apply_step, means
from relief_ray.server.clustering import Layers, cluster, distances, layer_distance, layers

Models = Mapping[str, Params]
Sums = Mapping[str, Mapping[GroupId, GroupSum]]


def advance(
    models: Models, buckets: Sequence[Sequence[str]], sums: Sums, common: Collection[GroupId]
) -> list[dict[GroupId, Tensor]]:
    """Each cluster's model (``global`` where it is new) plus the mean step of its ``buckets``.

    ``common`` groups take the mean over all buckets of all clusters.
    """
    own = [[sums[name] for name in names if name in sums] for names in buckets]
    shared = {j: x for j, x in means([part for parts in own for part in parts]).items() if j in common}
    apart = [{j: x for j, x in means(parts).items() if j not in common} for parts in own]
    start = [models.get(f"cluster.{c}", models["global"]) for c in range(len(buckets))]
    return [apply_step(theta, step | shared) for theta, step in zip(start, apart, strict=True)]


def exchange(experts: Experts, models: Sequence[Params]) -> dict[str, Params]:
    """Every cluster's model with the others' experts behind its own, in cluster order."""

    def others(own: int) -> dict[GroupId, Tensor]:
        foreign = [theta for c, theta in enumerate(models) if c != own]
        return {experts.copy(e, j): theta[j] for e, theta in enumerate(foreign, 2) for j in experts.of}

    return {f"cluster.{c}": {**theta, **others(c)} for c, theta in enumerate(models)}


def place(
    models: Models,
    clusters: Sequence[int],
    layout: GroupLayout,
    fleet: Fleet,
    came: Mapping[ClientId, Mapping[GroupId, GroupSum]],
    most: int,
) -> dict[ClientId, int]:
    """The cluster of each client that ``came`` with its step since ``global``: the nearest, or a new one.

    ``clusters``: everybody's, -1 where there is none yet; at most ``most`` are made, where there are none at all.
    """
    seen = {n: layers(layout, means([step]), fleet[n].modalities) for n, step in came.items()}
    if max(clusters) < 0:
        return dict(zip(seen, cluster(distances(list(seen.values())), most), strict=True))
    return {n: _nearest(models, clusters, layout, fleet, own) for n, own in seen.items()}


def _nearest(models: Models, clusters: Sequence[int], layout: GroupLayout, fleet: Fleet, own: Layers) -> int:
    """The cluster whose model has moved most alike since ``global``, the start; the first of equals."""
    start = models["global"]

    def distance(c: int) -> float:
        theta = models[f"cluster.{c}"]
        drift = {j: theta[j].double() - start[j].double() for j in start}
        owned = {m for n, k in enumerate(clusters) if k == c for m in fleet[n].modalities}
        return layer_distance(own, layers(layout, drift, owned))

    return min(range(max(clusters) + 1), key=distance)
