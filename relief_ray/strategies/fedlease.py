"""FedLEASE: one LoRA expert per cluster of like clients, and a router that mixes in the others' experts.

Warm-up: some rounds on one's own, then everything goes up once. Clients whose B are alike (mean over layers of
``1 - cos(vec B_i, vec B_j)``) form ``M`` clusters, by average linkage and the best silhouette; expert ``j`` starts as
its members' mean. Then ``y = sum_p w_p y_{e(p)}``: ``w`` are the ``M`` largest of ``softmax(G h)``, renormalised, over
``2 M - 1`` slots of which ``M`` are the own expert's. Client ``n`` trains and sends expert ``c(n)`` and ``G``; both are
averaged within ``c(n)``. Who was absent when clusters were made joins the nearest after a warm-up round.

Wang et al., "Adaptive LoRA Experts Allocation and Selection for Federated Fine-Tuning", NeurIPS 2025. On a dense model
an expert is a dense fusion layer and head, and ``B_i`` a layer's whole update (our reconstruction).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from pydantic import Field

from relief_ray.additions import Experts
from relief_ray.federated import ClientContext, ClientProgram, RoundContext, ServerTools, Strategy
from relief_ray.groups import WHOLE, GroupId, GroupLayout, Params
from relief_ray.messages import (
    Assignment,
    ClientInfo,
    EvalPlan,
    EvalTarget,
    Fleet,
    Reduced,
    ServerState,
    Update,
    WeightedSum,
)
from relief_ray.server.experts import advance, exchange, place
from relief_ray.strategies.common import StrategyConfig
from relief_ray.streams import Streams

ALONE, ALLOCATION, ID = "warm-up", "allocation", "expert"


class FedLEASE(StrategyConfig):
    """``encoders`` are averaged over all, within clusters, or by their kind: LoRA within clusters, dense over all."""

    name: Literal["fedlease"] = "fedlease"
    most_experts: int = Field(default=4, ge=2)
    warmup_rounds: int = Field(default=5, ge=1)
    experts_of: Literal["fusion_head", "fusion"] = "fusion_head"
    encoders: Literal["by_kind", "all", "cluster"] = "by_kind"

    def build(self) -> Strategy:
        """The strategy."""
        return Strategy(
            name=self.name,
            adapt=partial(add_experts, self),
            init=nobody_allocated,
            allocate=partial(allocate, self),
            reduction=WeightedSum(weight=self.reduction().weight, bucket=own_bucket),
            client=ClientProgram(after=forget_warmup),
            aggregate=partial(aggregate, self),
            evaluate=own_experts,
        )


def experts_for(config: FedLEASE, layout: GroupLayout, fleet: Fleet) -> Experts:
    """At most ``N - 1`` experts of the fusion layer and, where they are adapted like it, the head's layers."""
    roles = {"fusion_a", "fusion_b"} | ({"head"} if config.experts_of == "fusion_head" else set())
    of = tuple(g.id for g in layout if g.role in roles and (g.role != "head" or g.lora == layout.lora))
    return Experts(id=ID, of=of, most=min(config.most_experts, len(fleet) - 1))


def add_experts(config: FedLEASE, layout: GroupLayout, fleet: Fleet) -> tuple[Experts, ...]:
    """Room for the other clusters' experts; none where there cannot be two clusters."""
    experts = experts_for(config, layout, fleet)
    return (experts,) if experts.most > 1 else ()


def nobody_allocated(layout: GroupLayout, fleet: Fleet, streams: Streams, start: Params) -> ServerState:
    """The initial model, which stays as it is; ``cluster``: -1, or which one a client is in."""
    return ServerState(models={"global": start}, tensors={"cluster": torch.full((len(fleet),), -1)})


def own_bucket(task: Assignment) -> str:
    """Clusters are summed apart; who is yet to be allocated is looked at alone."""
    return f"client.{task.client}" if task.phase == ALLOCATION else task.view


def clusters_of(state: ServerState) -> list[int]:
    """Each client's cluster, -1 where it has none yet."""
    return [int(c) for c in state.tensors["cluster"]]


def own_groups(state: ServerState) -> list[GroupId]:
    """A client's own model: the backbone's groups without further experts and router."""
    return [j for j in state.models["global"] if not j.startswith(f"{ID}.")]


def allocate(config: FedLEASE, state: ServerState, context: RoundContext) -> tuple[Assignment, ...]:
    """Alone at first; everything goes up in the last warm-up round; then the own expert and the router learn."""
    clusters, layout, last = clusters_of(state), context.layout, context.round >= config.warmup_rounds
    experts, number = experts_for(config, layout, context.fleet), max(clusters) + 1
    own, ids = layout.select(own_groups(state)), range(1, number + 1)
    routed = layout.select([*own, *(experts.router(e) for e in ids if number > 1)])
    down = layout.select([*routed, *(experts.copy(e, j) for e in ids for j in experts.of)])

    def task(client: ClientInfo) -> Assignment:
        if (c := clusters[client.id]) < 0:
            alone = Assignment(client=client.id, down={}, train=own, up={}, keep=own, epochs=context.epochs)
            return replace(alone, up=own, phase=ALLOCATION) if last else replace(alone, phase=ALONE)
        joint = Assignment(client=client.id, down=down, train=routed, up=routed, epochs=context.epochs)
        return replace(joint, view=f"cluster.{c}", output=experts.output(number))

    return tuple(task(c) for c in context.participants)


def forget_warmup(context: ClientContext, update: Update) -> Update:
    """With its cluster's expert a client starts anew."""
    return replace(update, state={}) if update.receipt.assignment.phase == ALLOCATION else update


def aggregate(config: FedLEASE, state: ServerState, reduced: Reduced, tools: ServerTools) -> ServerState:
    """Means within clusters; who comes from its warm-up is clustered with the others, or joins the nearest cluster."""
    clusters, layout, sums = clusters_of(state), tools.layout, reduced.sums
    experts = experts_for(config, layout, tools.fleet)
    came = {int(v.removeprefix("client.")): part for v, part in sums.items() if v.startswith("client.")}
    found = place(state.models, clusters, layout, tools.fleet, came, experts.most)
    buckets = [[f"cluster.{c}"] for c in range(max(clusters) + 1)] or [
        [f"client.{n}" for n in came if found[n] == c] for c in sorted({*found.values()})
    ]
    pooled = config.encoders == "all" or (config.encoders == "by_kind" and not layout.lora)
    after = advance(state.models, buckets, sums, {g.id for g in layout if pooled and g.role == "encoder"})
    models = {"global": state.models["global"], **exchange(experts, after)}
    joined = torch.tensor([found.get(n, c) for n, c in enumerate(clusters)])
    return ServerState(models=models, tensors={"cluster": joined})


def own_experts(state: ServerState, fleet: Fleet) -> EvalPlan:
    """Each client's mixture through its own sensors; canonical is that of the cluster with most Full clients."""
    clusters, keep = clusters_of(state), dict.fromkeys(own_groups(state), WHOLE)
    number, most = max(clusters) + 1, max(len(c.modalities) for c in fleet.clients)
    output = Experts(id=ID, of=(), most=number).output(max(number, 1))
    mixed = [EvalTarget(label="global", view=f"cluster.{c}", output=output) for c in range(number)]
    targets = [*mixed, EvalTarget(label="global", keep=keep)]  # -1: without a cluster, one's own model (or their mean)
    full = [clusters[c.id] for c in fleet.clients if len(c.modalities) == most]
    clients = tuple(
        replace(targets[clusters[c.id]], label=f"client.{c.id}", client=c.id, modalities=c.modalities)
        for c in fleet.clients
    )
    return EvalPlan(canonical=targets[min(range(number), key=lambda c: -full.count(c), default=-1)], clients=clients)
