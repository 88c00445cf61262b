"""Clusters of clients, each with a model and an expert of its own: how models move and experts change hands."""

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

# What clients learnt on their own, kept by the server until there is enough of it to tell who is like whom.


# A client's whole step since the start, as a sum of one.
Warmups = Mapping[ClientId, Mapping[GroupId, GroupSum]]

ALONE, ALLOCATION = "warm-up", "allocation"

KEPT = "warm-up."

# Of fewer the silhouette says nothing.
FEWEST = 3


def own_bucket(task: Assignment) -> str:
    """Clusters are summed apart; who is yet to be allocated is looked at alone."""
    return f"client.{task.client}" if task.phase == ALLOCATION else task.view


def came_in(sums: Mapping[str, Mapping[GroupId, GroupSum]]) -> dict[ClientId, Mapping[GroupId, GroupSum]]:
    """What clients without a cluster sent in this round."""
    return {int(name.removeprefix("client.")): step for name, step in sums.items() if name.startswith("client.")}


def warmups(
    kept: Mapping[str, Tensor],
    came: Warmups,
    layout: GroupLayout,
    groups: Sequence[GroupId],
    weights: Sequence[float],
) -> dict[ClientId, Mapping[GroupId, GroupSum]]:
    """Each client's newest step over ``groups``, in client order: those that ``came`` now, then those ``kept``."""
    sizes = [layout[j].numel for j in groups]
    found = {int(name.removeprefix(KEPT)): flat for name, flat in kept.items() if name.startswith(KEPT)}
    before = {
        n: {j: _alone(n, step, weights[n]) for j, step in zip(groups, torch.split(flat.double(), sizes), strict=True)}
        for n, flat in found.items()
    }
    return {n: came.get(n) or before[n] for n in sorted({*before, *came})}


def _alone(client: ClientId, step: Tensor, weight: float) -> GroupSum:
    return GroupSum(
        weight=weight, weighted=weight * step, plain=step, sq_norm=float(step.square().sum()), members=(client,)
    )


def to_keep(known: Warmups) -> dict[str, Tensor]:
    """One flat float32 vector per client, its sums' own precision: what ``warmups`` reads again in a later round."""
    return {f"{KEPT}{n}": torch.cat([part.plain for part in step.values()]).float() for n, step in known.items()}


def is_enough(num_known: int, num_clients: int, round_: int, planned: int) -> bool:
    """Whether to make clusters: of everybody, or of three at least once the warm-up has taken twice as long."""
    return num_known == num_clients or (round_ >= 2 * planned and num_known >= FEWEST)


Models = Mapping[str, Params]

Sums = Mapping[str, Mapping[GroupId, GroupSum]]


def nobody_allocated(layout: GroupLayout, fleet: Fleet, streams: Streams, start: Params) -> ServerState:
    """The initial model, which stays as it is; ``cluster``: -1, or which one a client is in."""
    return ServerState(models={"global": start}, tensors={"cluster": torch.full((len(fleet),), -1)})


def clusters_of(state: ServerState) -> list[int]:
    """Each client's cluster, -1 where it has none yet."""
    return [int(c) for c in state.tensors["cluster"]]


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
        return {experts.copy(e, j): theta[j] for e, theta in enumerate(foreign, 2) for j in experts.groups(1)}

    return {f"cluster.{c}": {**theta, **others(c)} for c, theta in enumerate(models)}


def allot(
    layout: GroupLayout, fleet: Fleet, known: Mapping[ClientId, Mapping[GroupId, GroupSum]], most: int
) -> tuple[dict[ClientId, int], dict[str, Json]]:
    """The cluster of each client of whom the step since ``global`` is known; the silhouette of each possible number."""
    between = distances([layers(layout, means([step]), fleet[n].modalities) for n, step in known.items()])
    scores: dict[str, Json] = {str(k): score for k, score in silhouettes(between, most).items()}
    return dict(zip(known, cluster(between, most), strict=True)), {"silhouettes": scores}


def nearest(
    models: Models, clusters: Sequence[int], layout: GroupLayout, fleet: Fleet, own: Mapping[GroupId, GroupSum]
) -> int:
    """The cluster whose model has moved most alike since ``global``, the start; the first of equals."""
    start, client = models["global"], next(iter(own.values())).members[0]
    seen = layers(layout, means([own]), fleet[client].modalities)

    def distance(c: int) -> float:
        theta = models[f"cluster.{c}"]
        drift = {j: theta[j].double() - start[j].double() for j in start}
        owned = {m for n, k in enumerate(clusters) if k == c for m in fleet[n].modalities}
        return layer_distance(seen, layers(layout, drift, owned))

    return min(range(max(clusters) + 1), key=distance)
