"""FedICU (reconstructed): clients send what changed most; lengths are averaged, directions weighted by agreement.

Client: ``Delta_n`` where ``|Delta_n,i| / (|theta_i| + eps)`` is among the top ``kappa`` of its tensor, else 0. Server,
for every matrix with columns ``c``: ``X_n = theta + Delta_n`` (LoRA factors) or ``Delta_n`` (dense),
``m_n,c = |X_n,c|``, ``v_n,c = X_n,c / m_n,c``;

``s_n = mean_{k != n, c} cos(v_n,c, v_k,c)``, ``alpha = softmax(s / T)``,
``X_c = (sum_n p_n m_n,c) u_c / |u_c|``, ``u_c = sum_n alpha_n v_n,c``.

Vectors are averaged; fusion is one matrix ``[A_1 | .. | A_M]``. Sensors play no part.

On dense weights the step is longer than a mean's, since lengths are averaged where a mean lets different directions
cancel: 1.5 to 2.2 times along nearly the same direction with 8 clients, ``sqrt(N)`` times at most for orthogonal
updates. It acts like FedAvg with a server learning rate of about 2. ``length="length_of_mean"`` takes
``X_c = |sum_n p_n X_n,c| u_c / |u_c|``, a mean's step in length and FedICU's in direction.

Liao et al., "Splitting with Importance-aware Updating for Heterogeneous Federated Learning with Large Language Models",
ICML 2025; its text could not be read: all formulas here are reconstructed (docs/strategies/fedicu.md).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import log2
from typing import ClassVar, Literal

import torch
from pydantic import Field

from relief_ray.core.client import ClientContext, ClientProgram
from relief_ray.core.codec import sparse_nbytes
from relief_ray.core.federated import RoundContext, ServerTools, Strategy
from relief_ray.core.groups import GroupId, GroupLayout, Selection
from relief_ray.core.messages import Assignment, ClientInfo, Collect, Reduced, ServerState, Update
from relief_ray.server.aggregation import apply_step, from_tensor, to_tensor
from relief_ray.strategies.common import Preset, ReadWith, Search, StrategyConfig, batch_sizes, search_over
from relief_ray.strategies.fedicu.consensus import (
    Importance,
    Length,
    as_matrix,
    balanced_steps,
    by_piece,
    group_importance,
    importance,
    keep_top,
    whole_tensors,
)

IMPORTANCE = "importance"


class FedICU(StrategyConfig):
    """Configuration of FedICU (reconstructed).

    Attributes:
        kappa: share of each tensor's values that is sent; the fusion matrix counts as one tensor.
        temperature: ``T`` of the softmax over clients' agreement.
        importance: measure of a value's importance: its change, ``relative`` to the value or by ``magnitude``.
        alpha_scope: one ``alpha`` per tensor, or one for all.
        length: length of a merged column: ``mean_of_lengths`` of the clients' columns, which makes steps on dense
            weights longer than a mean's, or ``length_of_mean``, that of their mean column.
        freeze_unimportant: whether the groups that were least important in the last round are left untrained.
        freeze_share: share of the parameters that is left untrained so, about.
    """

    title: ClassVar[str] = "FedICU"
    kind: ClassVar[str] = "baseline"
    about: ClassVar[str] = "FedICU (reconstructed): 80 % of each change sent, directions averaged by agreement"
    citation: ClassVar[str | None] = "liao2025fedicu"
    dense_stand_in: ClassVar[str] = "updates of dense weights are split in place of LoRA factors"
    search_trades_speed: ClassVar[str] = "kappa is the share of each change that is sent"
    reconstructed: ClassVar[bool] = True
    search: ClassVar[Search] = search_over("kappa", (0.6, 0.8, 0.95))
    read_with: ClassVar[ReadWith] = (("freeze_unimportant", True, ("freeze_share",)),)
    name: Literal["fedicu"] = "fedicu"
    kappa: float = Field(default=0.8, gt=0.0, le=1.0)
    temperature: float = Field(default=1.0, gt=0.0)
    importance: Importance = "relative"
    alpha_scope: Literal["tensor", "global"] = "tensor"
    length: Length = "mean_of_lengths"
    freeze_unimportant: bool = False
    freeze_share: float = Field(default=0.2, gt=0.0, lt=1.0)

    def build(self) -> Strategy:
        """Build the strategy."""
        return Strategy(
            name=self.name,
            allocate=partial(allocate, self),
            client=ClientProgram(after=partial(send_important, self)),
            reduction=Collect(),
            aggregate=partial(aggregate, self),
            no_average="lengths and directions of updates are combined apart, by a step of its own",
        )


PRESETS = {
    "fedicu": Preset(FedICU()),
    "fedicu_table": Preset(
        FedICU(kappa=1.0, freeze_unimportant=True),
        title="FedICU, table",
        kind="baseline, FITTED",
        about="FedICU (reconstructed): the least important fifth frozen, all else sent",
    ),
}


def send_important(config: FedICU, context: ClientContext, update: Update) -> Update:
    """Zero the least important values of an update; charge the others and a bitmap of one bit per value."""
    if config.kappa == 1.0:
        return update
    delta = dict(update.delta)
    kept = {j: torch.zeros(len(moved), dtype=torch.bool) for j, moved in delta.items()}
    for tensor in whole_tensors(context.layout, delta):
        spans = [(j, slice(t.offset, t.offset + t.numel), t) for j, t in tensor]
        moved = torch.cat([as_matrix(delta[j][s], t) for j, s, t in spans], 1)
        origin = torch.cat([as_matrix(context.start[j][s], t) for j, s, t in spans], 1)
        scores = importance(config.importance, moved, origin)
        top = keep_top(scores.reshape(-1), config.kappa).view_as(scores)
        for (j, t), mask in by_piece(top, tensor).items():
            kept[j][t.offset : t.offset + t.numel] = mask
    delta = {j: torch.where(kept[j], moved, torch.zeros(())) for j, moved in delta.items()}
    num_kept = sum(int(mask.sum()) for mask in kept.values())
    nbytes = sparse_nbytes(context.layout, update.receipt.assignment.up, num_kept)
    return replace(update, delta=delta, receipt=replace(update.receipt, bytes_up=nbytes))


def frozen(config: FedICU, known: dict[GroupId, float], layout: GroupLayout) -> tuple[GroupId, ...]:
    """Least important groups whose sizes add up nearest to ``freeze_share``; groups without a score are trained."""
    chosen: list[GroupId] = []
    missing = config.freeze_share * layout.numel
    for j in sorted(known, key=lambda j: known[j]):
        if not config.freeze_unimportant or abs(missing - layout[j].numel) >= abs(missing):
            break
        chosen.append(j)
        missing -= layout[j].numel
    return tuple(chosen)


def allocate(config: FedICU, state: ServerState, context: RoundContext) -> tuple[Assignment, ...]:
    """Every participant trains and sends all groups that are not frozen."""
    known = from_tensor(state.tensors[IMPORTANCE], context.layout) if IMPORTANCE in state.tensors else {}
    frozen_groups = frozen(config, known, context.layout)
    everything = context.layout.select()
    chosen = {j: part for j, part in everything.items() if j not in frozen_groups}
    flops = choosing_flops(config, context.layout, chosen)

    def task(client: ClientInfo) -> Assignment:
        steps = max(1, context.epochs * len(batch_sizes(context, client)))
        return Assignment(
            client=client.id,
            down=everything,
            train=chosen,
            up=chosen,
            epochs=context.epochs,
            step_flops=flops / steps,
        )

    return tuple(task(c) for c in context.participants)


def choosing_flops(config: FedICU, layout: GroupLayout, chosen: Selection) -> float:
    """FLOPs of choosing the values to send, once a round: ``sum_t n_t (s + 1 + log2 n_t)`` over tensors of n_t values.

    ``s``: FLOPs of a score, 4 if relative (two absolute values, a sum, a quotient), else 1; one for the mask;
    ``log2 n_t`` comparisons to sort. 0 where everything is sent.
    """
    if config.kappa == 1.0:
        return 0.0
    scoring = 1.0 if config.importance == "magnitude" else 4.0
    sizes = [sum(t.numel for _, t in tensor) for tensor in whole_tensors(layout, chosen)]
    return sum(n * (scoring + 1.0 + log2(n)) for n in sizes)


def aggregate(config: FedICU, state: ServerState, reduced: Reduced, tools: ServerTools) -> ServerState:
    """Average lengths, weigh directions by agreement; then note each group's importance for the next round."""
    theta, layout, updates = state.models["global"], tools.layout, reduced.updates
    if not updates:
        return state
    weigh, tasks = config.reduction().weight, [u.receipt.assignment for u in updates]
    p_N = torch.tensor([weigh(layout.groups[0], tools.fleet[t.client], t) for t in tasks], dtype=torch.float64)
    steps = balanced_steps(
        updates,
        theta,
        layout,
        p_N / p_N.sum(),
        config.temperature,
        together=config.alpha_scope == "global",
        length=config.length,
    )
    known = {j: group_importance(config.importance, [u.delta[j] for u in updates], theta[j]) for j in steps}
    tensors = {**state.tensors, IMPORTANCE: to_tensor(known, layout)}
    return ServerState(models={"global": apply_step(theta, steps)}, tensors=tensors, facts=state.facts)
