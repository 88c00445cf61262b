"""FedEL: equal time for all; a window of blocks slides from input to output, the most important tensors in it train.

Per client and round: probe ``I_n,k = -g'_k . (w' - w)_k``; mix ``I_k = beta I_n,k + (1 - beta) I_g,k`` with
``I_g,k = |theta^r - theta^{r-1}|^2_k / eta``, both over their maximum; slide the window to the next blocks worth
``T_th``; maximise ``sum_{k in A} I_k`` under ``T_fw + T_bw(A) <= T_th``; train A and the exit at the window's front.
Server: ``theta_k = sum_n a_n,k theta_n,k / sum_n a_n,k`` over those that trained ``k``.

Both importances say how far a tensor's step lowers the loss. To first order a step ``Delta`` lowers it by
``-g_k . Delta_k``, and the plain gradient step ``Delta = -eta g`` by ``eta |g_k|^2 = |Delta_k|^2 / eta``. The first
form, with the gradient ``g'`` behind the step, is ``I_n``; the last form, of the server's step, is ``I_g``. Both are
one measure only if the probe takes the plain gradient step, ``w' = w - eta g``: then ``I_n,k = eta g'_k . g_k``,
positive wherever eta is small against the curvature. A fresh Adam would step by ``-eta sign(g)``, as far in a tensor of
tiny gradients as in any other, and often past the minimum (``I_n < 0``).

Zhang et al., "FedEL: Federated Elastic Learning for Heterogeneous Devices", NeurIPS 2025, Appendix A (importances and
mix); ``I_n`` is that of Huang et al., "ElasticTrainer", MobiSys 2023, and its code. The selection is in ``selection``.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal

import torch
from pydantic import Field

from relief_ray.core.client import ClientContext, ClientProgram
from relief_ray.core.extra_modules import Classifier
from relief_ray.core.federated import RoundContext, ServerTools, Strategy
from relief_ray.core.groups import GroupId, GroupLayout, Params
from relief_ray.core.messages import Assignment, ClientInfo, Fleet, Reduced, ServerState, Update
from relief_ray.server.aggregation import apply_step, mean_step, over_members
from relief_ray.strategies.common import Preset, Search, StrategyConfig, of_fastest_type, search_over, train_everything
from relief_ray.strategies.early_exits import block, exits, num_blocks, output_of, own_groups
from relief_ray.strategies.fedel import selection

GLOBAL, WINDOW = "fedel.importance", "fedel.window"


class FedEL(StrategyConfig):
    """Configuration of FedEL; the time budget of a round is T_th.

    Without ``t_th_s`` and ``speedup``, T_th is the fastest device type's computing time for full training.

    Attributes:
        t_th_s: time budget T_th of a round, in seconds.
        speedup: T_th is FedAvg's slowest round over this, link included: a fit.
        beta: weight of the client's own importance ``I_n`` against the global ``I_g``, 0 to 1.
        cull: whether the next window starts at the last one's first block with a selected tensor, not behind it.
        modality_aware: whether only groups of the client's own sensors are selected; an ablation of ours.
    """

    title: ClassVar[str] = "FedEL"
    kind: ClassVar[str] = "baseline"
    about: ClassVar[str] = "a window of blocks slides to the output; each device trains what matters most within T_A"
    citation: ClassVar[str | None] = "zhang2025fedel"
    search: ClassVar[Search] = search_over("beta", (0.3, 0.6, 0.9))
    one_of: ClassVar[tuple[str, ...]] = ("t_th_s", "speedup")
    name: Literal["fedel"] = "fedel"
    t_th_s: float | None = Field(default=None, gt=0.0)
    speedup: float | None = Field(default=None, gt=0.0)
    beta: float = Field(default=0.6, ge=0.0, le=1.0)
    cull: bool = True
    modality_aware: bool = False

    def build(self) -> Strategy:
        """Build the strategy."""
        return Strategy(
            name=self.name,
            adapt=all_exits,
            allocate=partial(allocate, self),
            client=ClientProgram(refine=partial(refine, self), after=remember),
            reduction=self.reduction(),
            aggregate=aggregate,
        )


PRESETS = {"fedel": Preset(FedEL())}


def all_exits(layout: GroupLayout, fleet: Fleet) -> tuple[Classifier, ...]:
    """Linear output layers behind every block but the last."""
    return exits(layout, range(1, num_blocks(layout)))


def allocate(config: FedEL, state: ServerState, context: RoundContext) -> tuple[Assignment, ...]:
    """Send every client the model, its time budget and the global importance; the device decides what it trains."""
    layout, limit_s = context.layout, budget_s(config, context)
    known = state.tensors[GLOBAL].tolist() if GLOBAL in state.tensors else []
    args = dict(zip((f"I.{j}" for j in layout.ids[: len(known)]), known, strict=True))
    everything = [train_everything(context, client) for client in context.participants]
    return tuple(replace(task, args={**args, "t_th_s": limit_s}) for task in everything)


def budget_s(config: FedEL, context: RoundContext) -> float:
    """``T_th`` in seconds, the same for all clients: from the time that training everything takes across the fleet."""
    backbone = context.layout.select(own_groups(context.layout))

    def plain(client: ClientInfo) -> Assignment:
        return replace(train_everything(context, client), down=backbone, train=backbone, up=backbone)

    times = {c: context.planner.times(c.id, plain(c)) for c in context.fleet.clients}
    if config.speedup is None:
        return config.t_th_s or max(t.compute_s for t in of_fastest_type(times))
    return max(t.busy_s for t in times.values()) / config.speedup


def refine(config: FedEL, context: ClientContext, task: Assignment) -> Assignment:
    """Probe, slide the window and select the tensors to train; runs on the client."""
    layout, planner, limit_s = context.layout, context.planner, task.args["t_th_s"]
    own = own_groups(layout)
    assert planner is not None, "FedEL needs the device's own time model"

    def assigned(groups: Collection[GroupId], front: int) -> Assignment:
        output = output_of(layout, front)
        chosen = layout.select([*groups, *([output] if output else [])])
        return replace(task, train=chosen, up=chosen, output=output, args={})

    def seconds(front: int, groups: Collection[GroupId]) -> float:
        times = planner.times(task.client, assigned(groups, front))
        return times.compute_s if config.speedup is None else times.busy_s

    def worth(first: int, front: int) -> float:
        every = [g.id for g in own if first <= block(layout, g) <= front]
        return seconds(front, every) - seconds(front, ())

    value = importance(config, context, task)
    last = context.state[WINDOW].tolist() if WINDOW in context.state else None
    end, front = selection.slide(last, num_blocks(layout), limit_s, worth, config.cull)
    seen = layout.accessible(context.info.modalities if config.modality_aware else layout.modalities)
    inside = [g for g in own if g in seen and end <= block(layout, g) <= front]
    from_output = sorted(inside, key=lambda g: -(block(layout, g) + (g.role == "fusion_b") / 2))
    branches = [[g.id for g in from_output if g.modality == m] for m in layout.modalities]
    trunk = [g.id for g in from_output if g.modality is None]
    tree = selection.price(trunk, branches, value, partial(seconds, front))
    chosen = selection.best(tree, limit_s - seconds(front, ()), limit_s / selection.UNITS)
    return replace(assigned(chosen, front), args={"t_th_s": limit_s, "end": end, "front": front})


def importance(config: FedEL, context: ClientContext, task: Assignment) -> dict[GroupId, float]:
    """``beta I_n + (1 - beta) I_g`` per group; ``I_n`` alone before the global model has changed."""
    ids = [g.id for g in own_groups(context.layout)]
    probed = context.probe(replace(task, train=context.layout.select(ids), up={}, output=None))
    local = selection.local_importance(probed)
    known = {j: task.args[f"I.{j}"] for j in ids if f"I.{j}" in task.args}
    return {j: config.beta * local[j] + (1.0 - config.beta) * known[j] if known else local[j] for j in ids}


def remember(context: ClientContext, update: Update) -> Update:
    """Keep the window on the device, and charge the bytes of the global importance."""
    layout, receipt = context.layout, update.receipt
    task = receipt.assignment
    first = min((block(layout, layout[j]) for j in task.train if layout[j].role != "exit"), default=0)
    window = torch.tensor([int(task.args["end"]), int(task.args["front"]), first])
    charged = replace(receipt, bytes_down=receipt.bytes_down + 4 * len(own_groups(layout)))
    return replace(update, receipt=charged, state={**update.state, WINDOW: window})


def aggregate(state: ServerState, reduced: Reduced, tools: ServerTools) -> ServerState:
    """Take the masked mean, and note how far each group moved for the next round."""
    step = mean_step(reduced.sums.get("global", {}), over_members, tools.layout)
    before, after = state.models["global"], apply_step(state.models["global"], step)
    tensors = {**state.tensors, GLOBAL: global_importance(before, after, tools.layout)}
    return ServerState(models={"global": after}, tensors=tensors, facts=state.facts)


def global_importance(before: Params, after: Params, layout: GroupLayout) -> torch.Tensor:
    """``|theta^r - theta^{r-1}|^2`` over its maximum (``eta`` cancels), (G,); 0 for exits and an unchanged model."""
    moved = [float((after[g.id].double() - before[g.id].double()).square().sum()) for g in layout]
    scores = [0.0 if g.role == "exit" else m for g, m in zip(layout, moved, strict=True)]
    scores_G = torch.tensor(scores, dtype=torch.double)
    return scores_G / scores_G.max() if scores_G.max() > 0 else scores_G
