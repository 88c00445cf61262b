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

from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal

import torch
from pydantic import Field

from relief_ray.core import messages as msg
from relief_ray.core.client import ClientContext, ClientProgram
from relief_ray.core.extra_modules import Experts
from relief_ray.core.federated import PlannedRun, RoundContext, ServerTools, Strategy
from relief_ray.core.groups import WHOLE, GroupId, GroupLayout, Params
from relief_ray.strategies.common import Preset, Search, StrategyConfig, first_phase_only, search_over
from relief_ray.strategies.fedlease.clustering import (
    ALLOCATION,
    ALONE,
    Sums,
    advance,
    allocate_clusters,
    clusters_of,
    diagnose,
    exchange,
    is_enough,
    moved_copies,
    nearest,
    no_clusters,
    own_bucket,
    to_keep,
    warmup_steps,
    warmups,
)
from relief_ray.support.errors import UserError

ID = "expert"


class FedLEASE(StrategyConfig):
    """Configuration of FedLEASE.

    Attributes:
        most_experts: largest number of clusters, each with one expert.
        warmup_rounds: rounds that each client trains alone before clusters are made.
        moe_scope: layers with experts and a router: fusion, fusion and (dense) head, or every layer with LoRA.
        encoders: averaging of encoders: over all clients, within clusters, or ``by_kind``: LoRA within clusters, dense
            over all.
    """

    title: ClassVar[str] = "FedLEASE"
    kind: ClassVar[str] = "baseline"
    about: ClassVar[str] = "after a warm-up alone: an expert per cluster of like clients, mixed by a router"
    citation: ClassVar[str | None] = "wang2025fedlease"
    dense_stand_in: ClassVar[str] = "an expert is a dense fusion layer with head, and clusters come from whole updates"
    search_trades_speed: ClassVar[str] = "rounds of the warm-up send nothing but their last one"
    paper_accounting: ClassVar[Literal["method", "fedavg"]] = "fedavg"
    search: ClassVar[Search] = search_over("warmup_rounds", (1, 2, 5), "warmup")
    name: Literal["fedlease"] = "fedlease"
    most_experts: int = Field(default=4, ge=2)
    warmup_rounds: int = Field(default=5, ge=1)
    moe_scope: Literal["fusion_head", "fusion", "all"] = "fusion_head"
    encoders: Literal["by_kind", "all", "cluster"] = "by_kind"

    def build(self) -> Strategy:
        """Build the strategy."""
        return Strategy(
            name=self.name,
            adapt=partial(add_experts, self),
            init=no_clusters,
            allocate=partial(allocate, self),
            reduction=msg.WeightedSum(weight=self.reduction().weight, bucket=own_bucket),
            client=ClientProgram(after=forget_warmup),
            aggregate=partial(aggregate, self),
            evaluate=own_experts,
            averaged=partial(averaged, self),
            warnings=partial(warn_without_experts, self),
            diagnose=diagnose,
        )

    def rounds_needed(self, participation: float) -> int:
        """One round more than the warm-up, which takes up to twice as long where clients miss rounds."""
        return self.warmup_rounds * (1 if participation == 1.0 else 2) + 1


PRESETS = {"fedlease": Preset(FedLEASE())}


def warn_without_experts(config: FedLEASE, run: PlannedRun) -> tuple[str, ...]:
    """Warn where every round is warm-up."""
    consequence = "every client trains alone, and no expert or router is ever trained"
    return first_phase_only(config, run, "warmup_rounds", consequence)


def experts_for(config: FedLEASE, layout: GroupLayout, fleet: msg.Fleet) -> Experts:
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


def add_experts(config: FedLEASE, layout: GroupLayout, fleet: msg.Fleet) -> tuple[Experts, ...]:
    """Add room for the other clusters' experts; none where there cannot be two clusters."""
    experts = experts_for(config, layout, fleet)
    return (experts,) if experts.most > 1 else ()


def own_groups(state: msg.ServerState) -> list[GroupId]:
    """Groups of the plain backbone, without further experts and router."""
    return [j for j in state.models["global"] if not j.startswith(f"{ID}.")]


def allocate(config: FedLEASE, state: msg.ServerState, context: RoundContext) -> tuple[msg.Assignment, ...]:
    """Clients train alone; from the last planned warm-up round on all goes up; then own expert and router train."""
    clusters, layout, last = clusters_of(state), context.layout, context.round >= config.warmup_rounds
    experts, number = experts_for(config, layout, context.fleet), max(clusters) + 1
    plain, ids = layout.select(own_groups(state)), range(1, number + 1)
    routed = layout.select([*plain, *(j for e in ids if number > 1 for j in experts.routers(e))])
    down = layout.select([*routed, *(j for e in ids for j in experts.groups(e))])

    def task(client: msg.ClientInfo) -> msg.Assignment:
        if (c := clusters[client.id]) < 0:
            alone = msg.Assignment(client=client.id, down={}, train=plain, up={}, keep=plain, epochs=context.epochs)
            return replace(alone, up=plain, phase=ALLOCATION) if last else replace(alone, phase=ALONE)
        joint = msg.Assignment(client=client.id, down=down, train=routed, up=routed, epochs=context.epochs)
        return replace(joint, view=f"cluster.{c}", output=experts.output(number))

    return tuple(task(c) for c in context.participants)


def forget_warmup(context: ClientContext, update: msg.Update) -> msg.Update:
    """Drop the client's warm-up model once it trains with its cluster's expert."""
    return update if update.receipt.assignment.keep else replace(update, state={})


def aggregate(config: FedLEASE, state: msg.ServerState, reduced: msg.Reduced, tools: ServerTools) -> msg.ServerState:
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
    config: FedLEASE, state: msg.ServerState, buckets: list[list[str]], sums: Sums, tools: ServerTools
) -> dict[str, Params]:
    """Models of all clusters after the mean step of their ``buckets``, with the others' experts after their own."""
    after = advance(state.models, buckets, sums, _pooled_encoders(config, tools.layout))
    return {"global": state.models["global"], **exchange(experts_for(config, tools.layout, tools.fleet), after)}


def _pooled_encoders(config: FedLEASE, layout: GroupLayout) -> set[GroupId]:
    """Encoder groups that are averaged over all clusters."""
    is_pooled = config.encoders == "all" or (config.encoders == "by_kind" and not layout.lora)
    return {g.id for g in layout if is_pooled and g.role == "encoder"}


def averaged(
    config: FedLEASE, state: msg.ServerState, reduced: msg.Reduced, layout: GroupLayout, fleet: msg.Fleet
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


def own_experts(state: msg.ServerState, fleet: msg.Fleet) -> msg.EvalPlan:
    """Evaluate each client's mixture with its own sensors; canonical: that of the cluster with most Full clients."""
    clusters, keep = clusters_of(state), dict.fromkeys(own_groups(state), WHOLE)
    number, most = max(clusters) + 1, max(len(c.modalities) for c in fleet.clients)
    output = Experts(id=ID, of=(), most=number).output(max(number, 1))
    mixed = [msg.EvalTarget(label="global", view=f"cluster.{c}", output=output) for c in range(number)]
    targets = [
        *mixed,
        msg.EvalTarget(label="global", keep=keep),
    ]  # -1: no cluster yet, the client's own model (or the mean of all)
    full = [clusters[c.id] for c in fleet.clients if len(c.modalities) == most]
    clients = tuple(
        replace(targets[clusters[c.id]], label=f"client.{c.id}", client=c.id, modalities=c.modalities)
        for c in fleet.clients
    )
    return msg.EvalPlan(
        canonical=targets[min(range(number), key=lambda c: -full.count(c), default=-1)], clients=clients
    )
