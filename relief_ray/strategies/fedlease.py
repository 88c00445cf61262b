"""FedLEASE: one LoRA expert per cluster of like clients, and a router that mixes in the others' experts.

Warm-up: each client trains alone, then sends its whole update. Once all have sent (at least three, after twice as
many rounds), clients whose B are alike (mean over layers of ``1 - cos(vec B_i, vec B_j)``) form ``M`` clusters, by
average linkage and the best silhouette; expert ``j`` starts as its members' mean. ``y = sum_p w_p y_{e(p)}``: ``w`` are
the ``M`` largest of ``softmax(G h)``, renormalised, over ``2 M - 1`` slots of which ``M`` are the own expert's. Client
``n`` trains and sends expert ``c(n)`` and ``G``, averaged within ``c(n)``. A client that comes later joins the nearest
cluster.

Wang et al., "Adaptive LoRA Experts Allocation and Selection for Federated Fine-Tuning", NeurIPS 2025. On a dense model
an expert is a dense fusion layer and head, and ``B_i`` a layer's whole update (our reconstruction).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from relief_ray.core.client import ClientContext, ClientProgram
from relief_ray.core.extra_modules import Experts
from relief_ray.core.federated import Averaging, Diagnostics, Insight, RoundContext, ServerTools, Strategy
from relief_ray.core.groups import WHOLE, GroupId, GroupLayout, Params
from relief_ray.core.messages import (
    Assignment,
    ClientId,
    ClientInfo,
    EvalPlan,
    EvalTarget,
    Fleet,
    GroupSum,
    Json,
    Models,
    Reduced,
    ServerState,
    Update,
    WeightedSum,
)
from relief_ray.core.streams import Streams
from relief_ray.server.aggregation import apply_step, means
from relief_ray.server.reduction import Sums
from relief_ray.strategies.common import (
    Preset,
    StrategyConfig,
    cluster_sizes,
    fact_table,
    first_phase_only,
    search_over,
    train_parts,
)
from relief_ray.support.errors import UserError

# Clusters of clients: by distances between their layers first, then each with its own model and expert.
#
# The number of clusters is that of the best silhouette, in NumPy and float64 on one thread, so that ties break the same
# way on every machine. Afterwards: warm-up updates, steps within clusters, exchange of experts.


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
    """Merge the two clusters of least mean distance until ``num_clusters`` are left (n,).

    Of equal pairs the first in client order is merged; clusters are numbered by their first client.
    """
    clusters = [[i] for i in range(len(distance))]
    between = distance.astype(np.float64)
    np.fill_diagonal(between, np.inf)
    while len(clusters) > num_clusters:
        i, j = sorted(divmod(int(np.argmin(between)), len(between)))
        n, m = len(clusters[i]), len(clusters[j])
        merged = (n * between[i] + m * between[j]) / (n + m)
        between[i] = between[:, i] = merged
        between[i, i] = np.inf
        between = np.delete(np.delete(between, j, 0), j, 1)
        clusters[i] += clusters.pop(j)
    labels = np.empty(len(distance), dtype=np.int64)
    for label, members in enumerate(sorted(clusters, key=min)):
        labels[members] = label
    return labels.tolist()


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


def cluster(distance: Matrix, scores: Mapping[int, float]) -> list[int]:
    """Clusters (n,) of the number with the largest of the ``silhouettes``, the smallest number among equals.

    Fewer than three clients form one cluster, since the silhouette is undefined for singletons.
    """
    return average_linkage(distance, max(scores, key=scores.__getitem__)) if scores else [0] * len(distance)


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


def warmup_steps(sums: Sums) -> Warmups:
    """Steps of this round from clients without a cluster."""
    return {int(name.removeprefix("client.")): step for name, step in sums.items() if name.startswith("client.")}


def warmups(
    kept: Mapping[str, Tensor],
    sent: Warmups,
    layout: GroupLayout,
    groups: Sequence[GroupId],
    weights: Sequence[float],
) -> Warmups:
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


def no_clusters(layout: GroupLayout, fleet: Fleet, streams: Streams, start: Params) -> ServerState:
    """Initial state: the start model, which never changes, and ``cluster`` (N,): -1, later each client's cluster."""
    return ServerState(models={"global": start}, tensors={"cluster": torch.full((len(fleet),), -1)})


def clusters_of(state: ServerState) -> list[int]:
    """Cluster of each client, -1 where it has none yet."""
    return state.tensors["cluster"].tolist()


def advance(
    models: Models, buckets: Sequence[Sequence[str]], sums: Sums, common: Collection[GroupId]
) -> list[dict[GroupId, Tensor]]:
    """Move each cluster's model (``global`` where it is new) by the mean step of its ``buckets``.

    ``common`` groups take the mean over all buckets of all clusters.
    """
    sent = [[sums[name] for name in names if name in sums] for names in buckets]
    shared = {j: x for j, x in means([part for parts in sent for part in parts]).items() if j in common}
    apart = [{j: x for j, x in means(parts).items() if j not in common} for parts in sent]
    start = [models.get(f"cluster.{c}", models["global"]) for c in range(len(buckets))]
    return [apply_step(theta, step | shared) for theta, step in zip(start, apart, strict=True)]


def exchange(experts: Experts, models: Sequence[Params]) -> dict[str, Params]:
    """Give every cluster's model copies of the others' experts, in cluster order after its own."""

    def others(own: int) -> dict[GroupId, Tensor]:
        foreign = [theta for c, theta in enumerate(models) if c != own]
        return {experts.copy(e, j): theta[j] for e, theta in enumerate(foreign, 2) for j in experts.groups(1)}

    return {f"cluster.{c}": {**theta, **others(c)} for c, theta in enumerate(models)}


def moved_copies(experts: Experts, sent_by_others: Sequence[Collection[GroupId]]) -> set[GroupId]:
    """Copies of the other clusters' experts whose originals are among the groups that those clusters' clients sent."""
    return {experts.copy(e, j) for e, sent in enumerate(sent_by_others, 2) for j in experts.groups(1) if j in sent}


def allocate_clusters(
    layout: GroupLayout, fleet: Fleet, known: Warmups, most: int
) -> tuple[dict[ClientId, int], dict[str, Json]]:
    """Cluster clients by their steps since ``global``; also return the silhouette of each number of clusters."""
    between = distances([layers(layout, means([step]), fleet[n].modalities) for n, step in known.items()])
    scores = silhouettes(between, most)
    found = dict(zip(known, cluster(between, scores), strict=True))
    return found, {"silhouettes": {str(k): score for k, score in scores.items()}}


def diagnose(state: ServerState, layout: GroupLayout) -> Diagnostics:
    """Tell the round's record the silhouette of each number of clusters and their sizes; neither in the warm-up."""
    return {
        "silhouettes": fact_table(state, "silhouettes", float),
        **cluster_sizes(f"cluster.{c}" for c in clusters_of(state) if c >= 0),
    }


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


ID = "expert"


class FedLEASE(StrategyConfig):
    """Configuration of FedLEASE."""

    title = "FedLEASE"
    kind = "baseline"
    about = "after a warm-up alone: an expert per cluster of like clients, mixed by a router"
    citation = "wang2025fedlease"
    dense_stand_in = "an expert is a dense fusion layer with head, and clusters come from whole updates"
    search_trades_speed = "rounds of the warm-up send nothing but their last one"
    paper_accounting = "fedavg"
    search = search_over("warmup_rounds", (1, 2, 5), "warmup")
    name: Literal["fedlease"] = "fedlease"
    most_experts: int = Field(default=4, ge=2)
    """Largest number of clusters, each with one expert."""
    warmup_rounds: int = Field(default=5, ge=1)
    """Rounds that each client trains alone before clusters are made."""
    moe_scope: Literal["fusion_head", "fusion", "all"] = "fusion_head"
    """Layers with experts and a router: fusion, fusion and (dense) head, or every layer with LoRA."""
    encoders: Literal["by_kind", "all", "cluster"] = "by_kind"
    """Averaging of encoders: over all clients, within clusters, or ``by_kind``: LoRA within clusters, dense over
    all."""

    def build(self) -> Strategy:
        """Build the strategy."""
        return Strategy(
            name=self.name,
            adapt=partial(add_experts, self),
            init=no_clusters,
            allocate=partial(allocate, self),
            reduction=WeightedSum(weight=self.reduction().weight, bucket=own_bucket),
            client=ClientProgram(after=forget_warmup),
            aggregate=partial(aggregate, self),
            evaluate=own_experts,
            insight=Insight(
                warnings=partial(first_phase_only, self, key="warmup_rounds", consequence=_NO_EXPERTS),
                diagnose=diagnose,
            ),
            averaging=Averaging(averaged=partial(averaged, self)),
        )

    def rounds_needed(self, participation: float) -> int:
        """One round more than the warm-up, which takes up to twice as long where clients miss rounds."""
        return self.warmup_rounds * (1 if participation == 1.0 else 2) + 1


PRESETS = {"fedlease": Preset(FedLEASE())}
_NO_EXPERTS = "every client trains alone, and no expert or router is ever trained"


def experts_for(config: FedLEASE, layout: GroupLayout, fleet: Fleet) -> Experts:
    """Experts (at most ``N - 1``) of fusion and, as configured, of the head and of encoders with LoRA."""
    roles = {"fusion_a", "fusion_b"} | ({"head"} if config.moe_scope != "fusion" else set())
    of = tuple(g.id for g in layout if g.role in roles and (g.role != "head" or g.lora == layout.lora))
    inside = tuple(g.id for g in layout if g.role == "encoder" and config.moe_scope == "all")
    if inside and (config.encoders == "all" or not layout.lora):
        raise UserError(
            f"strategy.moe_scope='all', encoders={config.encoders!r}: expected encoders of LoRA layers (moment_lora), "
            "averaged within clusters; take moe_scope='fusion_head', or that backbone and encoders='cluster'"
        )
    return Experts(id=ID, of=of, most=min(config.most_experts, len(fleet) - 1), inside=inside)


def add_experts(config: FedLEASE, layout: GroupLayout, fleet: Fleet) -> tuple[Experts, ...]:
    """Add room for the other clusters' experts; none where there cannot be two clusters."""
    experts = experts_for(config, layout, fleet)
    return (experts,) if experts.most > 1 else ()


def own_groups(state: ServerState) -> list[GroupId]:
    """Groups of the plain backbone, without further experts and router."""
    return [j for j in state.models["global"] if not j.startswith(f"{ID}.")]


def allocate(config: FedLEASE, state: ServerState, context: RoundContext) -> tuple[Assignment, ...]:
    """Clients train alone; from the last planned warm-up round on all goes up; then own expert and router train."""
    clusters, layout, last = clusters_of(state), context.layout, context.round >= config.warmup_rounds
    experts, number = experts_for(config, layout, context.fleet), max(clusters) + 1
    plain, ids = layout.select(own_groups(state)), range(1, number + 1)
    routed = layout.select([*plain, *(j for e in ids if number > 1 for j in experts.routers(e))])
    down = layout.select([*routed, *(j for e in ids for j in experts.groups(e))])

    def task(client: ClientInfo) -> Assignment:
        if (c := clusters[client.id]) < 0:
            alone = replace(train_parts(context, client, plain, {}), keep=plain)
            return replace(alone, phase=ALLOCATION) if last else replace(alone, up={}, phase=ALONE)
        joint = train_parts(context, client, routed, down)
        return replace(joint, view=f"cluster.{c}", output=experts.output(number))

    return tuple(map(task, context.participants))


def forget_warmup(context: ClientContext, update: Update) -> Update:
    """Drop the client's warm-up model once it trains with its cluster's expert."""
    return update if update.receipt.assignment.keep else replace(update, state={})


def aggregate(config: FedLEASE, state: ServerState, reduced: Reduced, tools: ServerTools) -> ServerState:
    """Keep warm-up steps until clusters are made of them; then average within clusters, and late clients join one."""
    clusters, layout, fleet, sums = clusters_of(state), tools.layout, tools.fleet, reduced.sums
    sent = warmup_steps(sums)
    if max(clusters) >= 0:
        late = {n: nearest(state.models, clusters, layout, fleet, own) for n, own in sent.items()}
        after = means_within(config, state, [[f"cluster.{c}"] for c in range(max(clusters) + 1)], sums, tools)
        joined = torch.tensor([late.get(n, c) for n, c in enumerate(clusters)])
        return replace(state, models=after, tensors={"cluster": joined})
    known = warmups(state.tensors, sent, layout, own_groups(state), config.shares(fleet))
    if not is_enough(len(known), len(fleet), tools.round, config.warmup_rounds):
        return replace(state, tensors={**state.tensors, **to_keep(known)})
    first, scores = allocate_clusters(layout, fleet, known, experts_for(config, layout, fleet).most)
    buckets = [[f"client.{n}" for n in first if first[n] == c] for c in range(max(first.values()) + 1)]
    models = means_within(config, state, buckets, {f"client.{n}": step for n, step in known.items()}, tools)
    clusters_N = torch.tensor([first.get(n, -1) for n in range(len(fleet))])
    return replace(state, models=models, tensors={"cluster": clusters_N}, facts=scores)


def means_within(
    config: FedLEASE, state: ServerState, buckets: list[list[str]], sums: Sums, tools: ServerTools
) -> dict[str, Params]:
    """Models of all clusters after the mean step of their ``buckets``, with the others' experts after their own."""
    after = advance(state.models, buckets, sums, _pooled_encoders(config, tools.layout))
    return {"global": state.models["global"], **exchange(experts_for(config, tools.layout, tools.fleet), after)}


def _pooled_encoders(config: FedLEASE, layout: GroupLayout) -> set[GroupId]:
    """Encoder groups that are averaged over all clusters."""
    is_pooled = config.encoders == "all" or (config.encoders == "by_kind" and not layout.lora)
    return {g.id for g in layout if is_pooled and g.role == "encoder"}


def averaged(
    config: FedLEASE, state: ServerState, reduced: Reduced, layout: GroupLayout, fleet: Fleet
) -> dict[str, set[GroupId]]:
    """Groups of each cluster's model that a mean moves: its clients', pooled encoders, copies of others' experts."""
    number = max(clusters_of(state)) + 1
    sent = [set(reduced.sums.get(f"cluster.{c}", {})) for c in range(number)]
    pooled = {j for own in sent for j in own if j in _pooled_encoders(config, layout)}
    experts = experts_for(config, layout, fleet)
    return {
        f"cluster.{c}": own | pooled | moved_copies(experts, [others for e, others in enumerate(sent) if e != c])
        for c, own in enumerate(sent)
    }


def own_experts(state: ServerState, fleet: Fleet) -> EvalPlan:
    """Evaluate each client's mixture with its own sensors; canonical: that of the cluster with most Full clients."""
    clusters, keep = clusters_of(state), dict.fromkeys(own_groups(state), WHOLE)
    number, most = max(clusters) + 1, max(len(c.modalities) for c in fleet.clients)
    output = Experts(id=ID, of=(), most=number).output(max(number, 1))
    targets = [EvalTarget(label="global", view=f"cluster.{c}", output=output) for c in range(number)]
    targets.append(EvalTarget(label="global", keep=keep))  # -1: no cluster yet, the client's own (or the mean of all)
    full = [clusters[c.id] for c in fleet.clients if len(c.modalities) == most]
    clients = tuple(
        replace(targets[clusters[c.id]], label=f"client.{c.id}", client=c.id, modalities=c.modalities)
        for c in fleet.clients
    )
    return EvalPlan(canonical=targets[min(range(number), key=lambda c: -full.count(c), default=-1)], clients=clients)
