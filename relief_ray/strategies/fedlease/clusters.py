"""Clusters of clients, each with its own model and expert: warm-up updates, steps within clusters, exchange."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from relief_ray.extra_modules import Experts
from relief_ray.groups import GroupId, GroupLayout, Params
from relief_ray.messages import Assignment, ClientId, Fleet, GroupSum, Json, ServerState
from relief_ray.server.aggregation import apply_step, means
from relief_ray.strategies.fedlease.clustering import cluster, distances, layer_distance, layers, silhouettes
from relief_ray.streams import Streams

# Each client's whole step of the warm-up, as a sum over one client; kept until there are enough to cluster.
Warmups = Mapping[ClientId, Mapping[GroupId, GroupSum]]

# Phases of the warm-up: rounds without upload, and rounds in which a client's whole step goes up.
ALONE, ALLOCATION = "warm-up", "allocation"
KEPT = "warm-up."
# The silhouette is undefined for fewer clients.
FEWEST = 3


def own_bucket(task: Assignment) -> str:
    """Bucket of a task: the client's cluster, or the client alone until it is allocated to one."""
    return f"client.{task.client}" if task.phase == ALLOCATION else task.view


def warmup_steps(sums: Mapping[str, Mapping[GroupId, GroupSum]]) -> dict[ClientId, Mapping[GroupId, GroupSum]]:
    """Steps of this round from clients without a cluster."""
    return {int(name.removeprefix("client.")): step for name, step in sums.items() if name.startswith("client.")}


def warmups(
    kept: Mapping[str, Tensor],
    sent: Warmups,
    layout: GroupLayout,
    groups: Sequence[GroupId],
    weights: Sequence[float],
) -> dict[ClientId, Mapping[GroupId, GroupSum]]:
    """Newest step of each client over ``groups``, in client order: ``sent`` in this round, else the one ``kept``."""
    sizes = [layout[j].numel for j in groups]
    flat_by_client = {int(name.removeprefix(KEPT)): flat for name, flat in kept.items() if name.startswith(KEPT)}
    before = {
        n: {j: _alone(n, step, weights[n]) for j, step in zip(groups, torch.split(flat.double(), sizes), strict=True)}
        for n, flat in flat_by_client.items()
    }
    return {n: sent.get(n) or before[n] for n in sorted({*before, *sent})}


def _alone(client: ClientId, step: Tensor, weight: float) -> GroupSum:
    return GroupSum(
        weight=weight, weighted=weight * step, plain=step, sq_norm=float(step.square().sum()), members=(client,)
    )


def to_keep(known: Warmups) -> dict[str, Tensor]:
    """One flat float32 vector per client, lossless, for ``warmups`` to read in a later round."""
    return {f"{KEPT}{n}": torch.cat([part.plain for part in step.values()]).float() for n, step in known.items()}


def is_enough(num_known: int, num_clients: int, round_: int, planned: int) -> bool:
    """Whether clusters are made: once all steps are known, or at least three after twice the planned warm-up."""
    return num_known == num_clients or (round_ >= 2 * planned and num_known >= FEWEST)


Models = Mapping[str, Params]

Sums = Mapping[str, Mapping[GroupId, GroupSum]]


def no_clusters(layout: GroupLayout, fleet: Fleet, streams: Streams, start: Params) -> ServerState:
    """Initial state: the start model, which never changes, and ``cluster`` (N,): -1, later each client's cluster."""
    return ServerState(models={"global": start}, tensors={"cluster": torch.full((len(fleet),), -1)})


def clusters_of(state: ServerState) -> list[int]:
    """Cluster of each client, -1 where it has none yet."""
    return [int(c) for c in state.tensors["cluster"]]


def advance(
    models: Models, buckets: Sequence[Sequence[str]], sums: Sums, common: Collection[GroupId]
) -> list[dict[GroupId, Tensor]]:
    """Moves each cluster's model (``global`` where it is new) by the mean step of its ``buckets``.

    ``common`` groups take the mean over all buckets of all clusters.
    """
    sent = [[sums[name] for name in names if name in sums] for names in buckets]
    shared = {j: x for j, x in means([part for parts in sent for part in parts]).items() if j in common}
    apart = [{j: x for j, x in means(parts).items() if j not in common} for parts in sent]
    start = [models.get(f"cluster.{c}", models["global"]) for c in range(len(buckets))]
    return [apply_step(theta, step | shared) for theta, step in zip(start, apart, strict=True)]


def exchange(experts: Experts, models: Sequence[Params]) -> dict[str, Params]:
    """Gives every cluster's model copies of the others' experts, in cluster order after its own."""

    def others(own: int) -> dict[GroupId, Tensor]:
        foreign = [theta for c, theta in enumerate(models) if c != own]
        return {experts.copy(e, j): theta[j] for e, theta in enumerate(foreign, 2) for j in experts.groups(1)}

    return {f"cluster.{c}": {**theta, **others(c)} for c, theta in enumerate(models)}


def allocate_clusters(
    layout: GroupLayout, fleet: Fleet, known: Mapping[ClientId, Mapping[GroupId, GroupSum]], most: int
) -> tuple[dict[ClientId, int], dict[str, Json]]:
    """Clusters clients by their steps since ``global``; also returns the silhouette of each number of clusters."""
    between = distances([layers(layout, means([step]), fleet[n].modalities) for n, step in known.items()])
    scores: dict[str, Json] = {str(k): score for k, score in silhouettes(between, most).items()}
    return dict(zip(known, cluster(between, most), strict=True)), {"silhouettes": scores}


def nearest(
    models: Models, clusters: Sequence[int], layout: GroupLayout, fleet: Fleet, step: Mapping[GroupId, GroupSum]
) -> int:
    """Cluster whose model has moved since ``global``, the start, most like the client; the first of equals."""
    start, client = models["global"], next(iter(step.values())).members[0]
    seen = layers(layout, means([step]), fleet[client].modalities)

    def distance(c: int) -> float:
        theta = models[f"cluster.{c}"]
        drift = {j: theta[j].double() - start[j].double() for j in start}
        owned = {m for n, k in enumerate(clusters) if k == c for m in fleet[n].modalities}
        return layer_distance(seen, layers(layout, drift, owned))

    return min(range(max(clusters) + 1), key=distance)
