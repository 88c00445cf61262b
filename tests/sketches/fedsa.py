"""FedSA-LoRA in one page: every LoRA A is shared, every B and the head stay with their client.

Guo et al., "Selective Aggregation for Low-Rank Adaptation in Federated Learning", ICLR 2025.
"""

from __future__ import annotations

from functools import partial

from relief_ray.core.federated import RoundContext, ServerTools, Strategy
from relief_ray.core.groups import GroupLayout, Kind, Part, Selection
from relief_ray.core.messages import Assignment, EvalPlan, EvalTarget, Fleet, Reduced, ServerState, WeightedSum
from relief_ray.server.aggregation import apply_parts, mean_step, one_bucket, over_participants, uniform

SHARED, PERSONAL = Part(kinds=frozenset({"lora_a"})), Part(kinds=frozenset({"lora_b", "weight", "bias"}))
UNIFORM = WeightedSum(weight=uniform, bucket=one_bucket)


def having(layout: GroupLayout, part: Part) -> Selection:
    """That part of every group that has any of it."""
    kinds: frozenset[Kind] = part.kinds or frozenset()
    return {g.id: part for g in layout if any(t.kind in kinds for t in g.tensors)}


def allocate(epochs: int | None, state: ServerState, context: RoundContext) -> tuple[Assignment, ...]:
    layout = context.layout
    shared, personal = having(layout, SHARED), having(layout, PERSONAL)
    return tuple(
        Assignment(
            client=c.id,
            down=shared,
            train=layout.select(),
            up=shared,
            keep=personal,
            epochs=context.epochs if epochs is None else epochs,
        )
        for c in context.participants
    )


def aggregate(state: ServerState, reduced: Reduced, tools: ServerTools) -> ServerState:
    total = over_participants(UNIFORM, reduced, tools.fleet)
    step = mean_step(reduced.sums.get("global", {}), total, tools.layout)
    shared = having(tools.layout, SHARED)
    return ServerState(models={"global": apply_parts(state.models["global"], step, shared, tools.layout)})


def own_models(layout: GroupLayout, state: ServerState, fleet: Fleet) -> EvalPlan:
    keep = having(layout, PERSONAL)
    targets = (EvalTarget(label=f"c{c.id}", client=c.id, keep=keep, modalities=c.modalities) for c in fleet.clients)
    return EvalPlan(canonical=None, clients=tuple(targets))


def fedsa(layout: GroupLayout, epochs: int | None = None) -> Strategy:
    return Strategy(
        name="fedsa",
        allocate=partial(allocate, epochs),
        aggregate=aggregate,
        reduction=UNIFORM,
        evaluate=partial(own_models, layout),
    )
