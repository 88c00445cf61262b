"""Harmony in one page: unimodal training per sensor first, then fusion inside clusters of multimodal clients.

Ouyang et al., "Harmony: Heterogeneous Multi-Modal Federated Learning through Disentangled Model Training",
MobiSys 2023.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from relief_ray.additions import Classifier
from relief_ray.federated import ClientContext, ClientProgram, LocalStep, RoundContext, ServerTools, Strategy
from relief_ray.groups import GroupLayout, Params
from relief_ray.messages import (
    Assignment,
    ClientInfo,
    Collect,
    EvalPlan,
    EvalTarget,
    Fleet,
    Reduced,
    ServerState,
    Update,
    WeightedSum,
)
from relief_ray.server.aggregation import apply_step, mean_step, over_members, uniform
from relief_ray.streams import Streams

UNIMODAL = "unimodal"


def heads(layout: GroupLayout, fleet: Fleet) -> tuple[Classifier, ...]:
    """One classifier per modality on its encoder's last layer."""
    last = {g.modality: g for g in layout if g.role == "encoder"}
    return tuple(
        Classifier(id=f"unimodal.{m}", after=(last[m].id,), role="unimodal_head", modality=m) for m in fleet.modalities
    )


def bucket(task: Assignment) -> str:
    """Every model a client may start from is averaged on its own."""
    return task.view


BY_VIEW = WeightedSum(weight=uniform, bucket=bucket)


def init(num_clusters: int, layout: GroupLayout, fleet: Fleet, streams: Streams, start: Params) -> ServerState:
    """One model, then one per cluster; multimodal clients are dealt to clusters in client order."""
    rich = [c.id for c in fleet.clients if len(c.modalities) > 1]
    clusters = {str(n): i * num_clusters // len(rich) for i, n in enumerate(rich)}
    return ServerState(models={"global": start}, facts={"clusters": dict(clusters)})


def allocate(switch: int, state: ServerState, context: RoundContext) -> tuple[Assignment, ...]:
    if context.round < switch:
        return tuple(unimodal(context, c) for c in context.participants)
    clusters = state.facts["clusters"]
    return tuple(fusion(context, c, clusters[str(c.id)]) for c in context.participants if str(c.id) in clusters)


def unimodal(context: RoundContext, client: ClientInfo) -> Assignment:
    roles = ("encoder", "unimodal_head")
    mine = context.layout.select(g for g in context.layout if g.role in roles and g.modality in client.modalities)
    heads = [f"unimodal.{m}" for m in client.modalities]
    return Assignment(
        client=client.id, down=mine, train=mine, up=mine, epochs=context.epochs, phase=UNIMODAL,
        taps=frozenset(heads), output=heads[0],
    )  # fmt: skip


def fusion(context: RoundContext, client: ClientInfo, cluster: int) -> Assignment:
    layout = context.layout
    reach = layout.accessible(client.modalities)
    mine = layout.select(g for g in reach if g.role == "encoder")
    shared = layout.select(g for g in reach if g.role in ("fusion_a", "fusion_b", "head"))
    return Assignment(
        client=client.id, down=shared, train={**mine, **shared}, up=shared, keep=mine, epochs=context.epochs,
        view=f"cluster.{cluster}", phase="fusion",
    )  # fmt: skip


def objective(step: LocalStep) -> Tensor:
    """The sum of the unimodal heads' losses where there are any, else the fused one."""
    heads = list(step.taps.values()) or [step.logits]
    return torch.stack([functional.cross_entropy(h, step.labels) for h in heads]).sum()


def report_discrepancy(context: ClientContext, update: Update) -> Update:
    """``d_n(m) = 1 - cos(f_n,m, f_m^0)`` of every own encoder, the stage-1 encoder being the start."""
    kept = {j: update.state[j] for j in update.receipt.assignment.keep}
    d = [1.0 - functional.cosine_similarity(v, context.start[j], dim=0) for j, v in kept.items()]
    return replace(update, receipt=replace(update.receipt, stats={"d": torch.stack(d)})) if d else update


def aggregate(switch: int, num_clusters: int, state: ServerState, reduced: Reduced, tools: ServerTools) -> ServerState:
    models = {name: theta for name, theta in state.models.items()}
    for name, sums in reduced.sums.items():
        models[name] = apply_step(models[name], mean_step(sums, over_members, tools.layout))
    if tools.round + 1 == switch:
        models |= {f"cluster.{k}": models["global"] for k in range(num_clusters)}
    return ServerState(models=models, facts=state.facts)


def collect(state: ServerState, reduced: Reduced, tools: ServerTools) -> ServerState:
    """Clusters from this very round's discrepancies: needs every update. Two clusters, split at the median."""
    d = {u.receipt.assignment.client: float(u.receipt.stats["d"].sum()) for u in reduced.updates}
    order = sorted(d, key=lambda n: (d[n], n))
    clusters = {n: int(i >= len(order) / 2) for i, n in enumerate(order)}
    models = dict(state.models)
    for k in (0, 1):
        own = [u for u in reduced.updates if clusters[u.receipt.assignment.client] == k]
        step = {j: torch.stack([u.delta[j].double() for u in own]).mean(0) for j in own[0].delta}
        models[f"cluster.{k}"] = apply_step(models[f"cluster.{k}"], step)
    return ServerState(models=models, facts={"clusters": {str(n): k for n, k in clusters.items()}})


def evaluate(state: ServerState, fleet: Fleet) -> EvalPlan:
    """Multimodal clients by their cluster's model, the others by their unimodal network."""
    clusters = state.facts["clusters"]

    def target(client: ClientInfo) -> EvalTarget:
        own = f"cluster.{clusters.get(str(client.id))}"
        view, output = (own, None) if own in state.models else ("global", f"unimodal.{client.modalities[0]}")
        return EvalTarget(label=client.name, view=view, client=client.id, modalities=client.modalities, output=output)

    return EvalPlan(canonical=None, clients=tuple(target(c) for c in fleet.clients))


def harmony(switch: int, num_clusters: int, reduction: WeightedSum | Collect = BY_VIEW) -> Strategy:
    return Strategy(
        name="harmony",
        adapt=heads,
        init=partial(init, num_clusters),
        allocate=partial(allocate, switch),
        client=ClientProgram(objective=objective, after=report_discrepancy),
        reduction=reduction,
        aggregate=partial(aggregate, switch, num_clusters),
        evaluate=evaluate,
    )
