"""FedLEASE: one LoRA expert per cluster of like clients, and a router that mixes in the others' experts.

Warm-up: some rounds on one's own, then everything goes up. Once all clients' is there (three's at least, after twice
as many rounds), those whose B are alike (mean over layers of ``1 - cos(vec B_i, vec B_j)``) form ``M`` clusters, by
average linkage and the best silhouette; expert ``j`` starts as its members' mean. ``y = sum_p w_p y_{e(p)}``: ``w`` are
the ``M`` largest of ``softmax(G h)``, renormalised, over ``2 M - 1`` slots of which ``M`` are the own expert's. Client
``n`` trains and sends expert ``c(n)`` and ``G``, averaged within ``c(n)``. Who comes later joins the nearest cluster.

Wang et al., "Adaptive LoRA Experts Allocation and Selection for Federated Fine-Tuning", NeurIPS 2025. On a dense model
an expert is a dense fusion layer and head, and ``B_i`` a layer's whole update (our reconstruction).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from pydantic import Field

from relief_ray import messages as msg
from relief_ray.errors import UserError
from relief_ray.extra_modules import Experts
from relief_ray.federated import ClientContext, ClientProgram, RoundContext, ServerTools, Strategy
from relief_ray.groups import WHOLE, GroupId, GroupLayout, Params
from relief_ray.strategies.common import StrategyConfig
from relief_ray.strategies.fedlease.clusters import (
    ALLOCATION,
    ALONE,
    Sums,
    advance,
    allot,
    came_in,
    clusters_of,
    exchange,
    is_enough,
    nearest,
    nobody_allocated,
    own_bucket,
    to_keep,
    warmups,
)

ID = "expert"


class FedLEASE(StrategyConfig):
    """``encoders`` are averaged over all, within clusters, or by their kind: LoRA within clusters, dense over all.

    ``moe_scope``: which layers have experts and a router: the fusion layer, it and (dense) the head, or all with LoRA.
    """

    name: Literal["fedlease"] = "fedlease"
    most_experts: int = Field(default=4, ge=2)
    warmup_rounds: int = Field(default=5, ge=1)
    moe_scope: Literal["fusion_head", "fusion", "all"] = "fusion_head"
    encoders: Literal["by_kind", "all", "cluster"] = "by_kind"

    def build(self) -> Strategy:
        """The strategy."""
        return Strategy(
            name=self.name,
            adapt=partial(add_experts, self),
            init=nobody_allocated,
            allocate=partial(allocate, self),
            reduction=msg.WeightedSum(weight=self.reduction().weight, bucket=own_bucket),
            client=ClientProgram(after=forget_warmup),
            aggregate=partial(aggregate, self),
            evaluate=own_experts,
        )


def experts_for(config: FedLEASE, layout: GroupLayout, fleet: msg.Fleet) -> Experts:
    """At most ``N - 1`` experts of fusion and, as configured, of head and encoders that are adapted like it."""
    roles = {"fusion_a", "fusion_b"} | ({"head"} if config.moe_scope != "fusion" else set())
    of = tuple(g.id for g in layout if g.role in roles and (g.role != "head" or g.lora == layout.lora))
    inside = tuple(g.id for g in layout if g.role == "encoder" and config.moe_scope == "all")
    if inside and (config.encoders == "all" or not layout.lora):
        raise UserError(
            f"strategy.moe_scope='all', encoders={config.encoders!r}: expected encoders of LoRA layers (moment_lora), "
            "averaged within clusters; take moe_scope='fusion_head', or that backbone and encoders='cluster'"
        )
    return Experts(id=ID, of=of, most=min(config.most_experts, len(fleet) - 1), inside=inside)


def add_experts(config: FedLEASE, layout: GroupLayout, fleet: msg.Fleet) -> tuple[Experts, ...]:
    """Room for the other clusters' experts; none where there cannot be two clusters."""
    experts = experts_for(config, layout, fleet)
    return (experts,) if experts.most > 1 else ()


def own_groups(state: msg.ServerState) -> list[GroupId]:
    """A client's own model: the backbone's groups without further experts and router."""
    return [j for j in state.models["global"] if not j.startswith(f"{ID}.")]


def allocate(config: FedLEASE, state: msg.ServerState, context: RoundContext) -> tuple[msg.Assignment, ...]:
    """Alone at first; from the last planned warm-up round on everything goes up; then own expert and router learn."""
    clusters, layout, last = clusters_of(state), context.layout, context.round >= config.warmup_rounds
    experts, number = experts_for(config, layout, context.fleet), max(clusters) + 1
    own, ids = layout.select(own_groups(state)), range(1, number + 1)
    routed = layout.select([*own, *(j for e in ids if number > 1 for j in experts.routers(e))])
    down = layout.select([*routed, *(j for e in ids for j in experts.groups(e))])

    def task(client: msg.ClientInfo) -> msg.Assignment:
        if (c := clusters[client.id]) < 0:
            alone = msg.Assignment(client=client.id, down={}, train=own, up={}, keep=own, epochs=context.epochs)
            return replace(alone, up=own, phase=ALLOCATION) if last else replace(alone, phase=ALONE)
        joint = msg.Assignment(client=client.id, down=down, train=routed, up=routed, epochs=context.epochs)
        return replace(joint, view=f"cluster.{c}", output=experts.output(number))

    return tuple(task(c) for c in context.participants)


def forget_warmup(context: ClientContext, update: msg.Update) -> msg.Update:
    """With its cluster's expert a client starts anew."""
    return update if update.receipt.assignment.keep else replace(update, state={})


def aggregate(config: FedLEASE, state: msg.ServerState, reduced: msg.Reduced, tools: ServerTools) -> msg.ServerState:
    """Warm-ups are kept until clusters are made of them; then means within clusters, and late clients join one."""
    clusters, layout, fleet, sums = clusters_of(state), tools.layout, tools.fleet, reduced.sums
    came = came_in(sums)
    if max(clusters) >= 0:
        late = {n: nearest(state.models, clusters, layout, fleet, own) for n, own in came.items()}
        after = means_within(config, state, [[f"cluster.{c}"] for c in range(max(clusters) + 1)], sums, tools)
        joined = torch.tensor([late.get(n, c) for n, c in enumerate(clusters)])
        return replace(state, models=after, tensors={"cluster": joined})
    known = warmups(state.tensors, came, layout, own_groups(state), config.shares(fleet))
    if not is_enough(len(known), len(fleet), tools.round, config.warmup_rounds):
        return replace(state, tensors={**state.tensors, **to_keep(known)})
    first, judged = allot(layout, fleet, known, experts_for(config, layout, fleet).most)
    buckets = [[f"client.{n}" for n in first if first[n] == c] for c in range(max(first.values()) + 1)]
    models = means_within(config, state, buckets, {f"client.{n}": step for n, step in known.items()}, tools)
    allotted = torch.tensor([first.get(n, -1) for n in range(len(fleet))])
    return replace(state, models=models, tensors={"cluster": allotted}, facts=judged)


def means_within(
    config: FedLEASE, state: msg.ServerState, buckets: list[list[str]], sums: Sums, tools: ServerTools
) -> dict[str, Params]:
    """Every cluster's model after the mean step of its ``buckets``, with the others' experts behind its own."""
    pooled = config.encoders == "all" or (config.encoders == "by_kind" and not tools.layout.lora)
    after = advance(state.models, buckets, sums, {g.id for g in tools.layout if pooled and g.role == "encoder"})
    return {"global": state.models["global"], **exchange(experts_for(config, tools.layout, tools.fleet), after)}


def own_experts(state: msg.ServerState, fleet: msg.Fleet) -> msg.EvalPlan:
    """Each client's mixture through its own sensors; canonical is that of the cluster with most Full clients."""
    clusters, keep = clusters_of(state), dict.fromkeys(own_groups(state), WHOLE)
    number, most = max(clusters) + 1, max(len(c.modalities) for c in fleet.clients)
    output = Experts(id=ID, of=(), most=number).output(max(number, 1))
    mixed = [msg.EvalTarget(label="global", view=f"cluster.{c}", output=output) for c in range(number)]
    targets = [*mixed, msg.EvalTarget(label="global", keep=keep)]  # -1: no cluster yet, one's own model (or their mean)
    full = [clusters[c.id] for c in fleet.clients if len(c.modalities) == most]
    clients = tuple(
        replace(targets[clusters[c.id]], label=f"client.{c.id}", client=c.id, modalities=c.modalities)
        for c in fleet.clients
    )
    return msg.EvalPlan(
        canonical=targets[min(range(number), key=lambda c: -full.count(c), default=-1)], clients=clients
    )
