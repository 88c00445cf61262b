"""DarkDistill's federated half, its distillation left out: depth classes, early exits, blockwise averages.

Qu et al., "DarkDistill: Difficulty-Aligned Federated Early-Exit Network Training on Heterogeneous Devices", KDD 2025.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from relief_ray.additions import Classifier
from relief_ray.federated import ClientProgram, LocalStep, RoundContext, ServerTools, Strategy
from relief_ray.groups import GroupLayout, ParamGroup
from relief_ray.messages import Assignment, ClientId, Fleet, Reduced, ServerState, WeightedSum
from relief_ray.server.aggregation import apply_step, by_samples, one_bucket

DEPTHS = 2


def exits(layout: GroupLayout, fleet: Fleet) -> tuple[Classifier, ...]:
    """One exit behind each encoder layer but the last."""
    return tuple(
        Classifier(id=f"exit.{k}", after=tuple(g.id for g in layout if g.role == "encoder" and g.layer == k), layer=k)
        for k in range(1, DEPTHS)
    )


def level(group: ParamGroup) -> int:
    """The block that a group belongs to: layer l and exit l are block l, fusion and head the deepest."""
    return group.layer if group.role in ("encoder", "exit") and group.layer is not None else DEPTHS


def allocate(depth_of: Mapping[ClientId, int], state: ServerState, context: RoundContext) -> tuple[Assignment, ...]:
    layout = context.layout
    tasks = []
    for client in context.participants:
        depth = depth_of[client.id]
        prefix = layout.select(g for g in layout if level(g) <= depth)
        tasks.append(
            Assignment(
                client=client.id,
                down=prefix,
                train=prefix,
                up=prefix,
                epochs=context.epochs,
                taps=frozenset(f"exit.{k}" for k in range(1, min(depth + 1, DEPTHS))),
                output="head.1" if depth == DEPTHS else f"exit.{depth}",
            )
        )
    return tuple(tasks)


def all_exits(step: LocalStep) -> Tensor:
    """Cross-entropy summed over the exits of the client's prefix; the deepest one is ``logits``."""
    outputs = [*step.taps.values(), *([] if any(step.logits is t for t in step.taps.values()) else [step.logits])]
    return torch.stack([functional.cross_entropy(o, step.labels) for o in outputs]).sum()


def depth_class(task: Assignment) -> str:
    """Clients of one depth share a bucket."""
    return f"depth.{task.output}"


def blockwise(state: ServerState, reduced: Reduced, tools: ServerTools) -> ServerState:
    """Block j: the classes' means, weighted by their samples, over the classes that hold it."""
    step: dict[str, Tensor] = {}
    for j in tools.layout.ids:
        held = [sums[j] for sums in reduced.sums.values() if j in sums]
        if held:
            means = [(part.weight, part.weighted / part.weight) for part in held]
            step[j] = torch.stack([w * m for w, m in means]).sum(0) / sum(w for w, _ in means)
    return ServerState(models={"global": apply_step(state.models["global"], step)})


PER_CLASS = WeightedSum(weight=by_samples, bucket=depth_class)
DIRECT = WeightedSum(weight=by_samples, bucket=one_bucket)


def darkdistill(depth_of: Mapping[ClientId, int], reduction: WeightedSum = PER_CLASS) -> Strategy:
    return Strategy(
        name="darkdistill",
        adapt=exits,
        allocate=partial(allocate, depth_of),
        client=ClientProgram(objective=all_exits),
        reduction=reduction,
        aggregate=blockwise,
    )
