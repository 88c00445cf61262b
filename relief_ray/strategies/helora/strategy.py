"""HeLoRA: every device trains LoRA of a rank that it can afford; the server pads to its own rank and averages.

Client ``k`` gets ``A[:r_k]`` and ``B[:, :r_k]``, trains and returns them; with ``pad`` filling ranks ``r_k + 1 .. R``

``A = sum_k w_k pad(A_k)``, ``B = sum_k w_k pad(B_k)``, ``w_k = p_k r_k / sum_i p_i r_i``.

``pad`` (``padding``): ``zero``; ``mean`` of the matrix; ``linear``, the mean rank; ``adjacent``, the last rank. A model
without LoRA has no ranks: there client ``k`` trains the first ``ceil(kappa_k d_out)`` output rows of every weight but
the head's, and the missing rows of its *update* are padded (our reconstruction). Sensors play no part.
``variant="kd"`` (``mutual_learning``): models stay apart and teach each other on public windows.

Fan et al., "HeLoRA: LoRA-heterogeneous Federated Fine-tuning for Foundation Models", ACM TOIT 2025.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import ceil
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from relief_ray.core.federated import RoundContext, ServerTools, Strategy
from relief_ray.core.groups import ROUNDING, WHOLE, GroupId, GroupLayout, ParamGroup, Part, Selection
from relief_ray.core.messages import Assignment, ClientInfo, Collect, Reduced, ServerState, WeightedSum
from relief_ray.server.aggregation import apply_step, model_of
from relief_ray.strategies.common import Preset, ReadWith, Search, StrategyConfig
from relief_ray.strategies.helora import mutual_learning
from relief_ray.strategies.helora.mutual_learning import Recipe
from relief_ray.strategies.helora.padding import Padding, padded_sums, rank_of, relative_size

Share = dict[Literal["A", "B", "C"], Annotated[float, Field(gt=0.0, le=1.0)]]


def _sizes_tried(middle: float, least: float, width_b: float, width_c: float) -> dict[str, object]:
    """Ranks and, without LoRA, widths of types B and C; Type A always has all."""
    return {"rank_share": {"A": 1.0, "B": middle, "C": least}, "width": {"A": 1.0, "B": width_b, "C": width_c}}


class HeLoRA(StrategyConfig):
    """Configuration of HeLoRA.

    Attributes:
        variant: ``pad`` averages padded models; ``kd`` averages none: models learn from each other on public windows.
        padding: filling of missing ranks or rows.
        by_rank: whether clients weigh by their rank (reconstructed), besides ``weighting``.
        rank_share: share of ``R`` by device type (8/6/4 of 8); types left out: 1.
        width: share of the output rows by device type, for models without LoRA; types left out: 1.
        kd_epochs: epochs of mutual learning after a round.
        kd_lr: learning rate of AdamW in mutual learning.
        public_windows: number of windows for mutual learning, at most.
        alpha_over: adapters are scaled by alpha over the server's rank ``R``, or over the client's own (official code).
    """

    title: ClassVar[str] = "HeLoRA"
    kind: ClassVar[str] = "baseline"
    about: ClassVar[str] = "LoRA rank (dense model: output rows) by device type; the server pads and averages"
    citation: ClassVar[str | None] = "fan2025helora"
    dense_stand_in: ClassVar[str] = "ranks are leading output rows of every weight, and updates are padded"
    search_trades_speed: ClassVar[str] = "the larger the share of a slow device, the longer its round"
    search: ClassVar[Search] = {
        "sizes0.5": _sizes_tried(0.5, 0.25, 0.75, 0.5),
        "sizes0.75": _sizes_tried(0.75, 0.5, 0.875, 0.75),
        "sizes0.9": _sizes_tried(0.875, 0.75, 0.95, 0.9),
    }
    read_with: ClassVar[ReadWith] = (
        ("variant", "pad", ("padding", "by_rank", "alpha_over")),
        ("variant", "kd", ("kd_epochs", "kd_lr", "public_windows")),
    )
    name: Literal["helora"] = "helora"
    variant: Literal["pad", "kd"] = "pad"
    padding: Padding = "linear"
    by_rank: bool = True
    rank_share: Share = Field(default={"A": 1.0, "B": 0.75, "C": 0.5})
    width: Share = Field(default={"A": 1.0, "B": 0.875, "C": 0.75})
    kd_epochs: int = Field(default=10, ge=1)
    kd_lr: float = Field(default=5e-5, gt=0.0)
    public_windows: int = Field(default=256, ge=1)
    alpha_over: Literal["server_rank", "own_rank"] = "server_rank"

    def build(self) -> Strategy:
        """Build the strategy."""
        pad = Strategy(
            name=self.name,
            allocate=partial(allocate, self),
            reduction=WeightedSum(weight=partial(weight, self), bucket=by_size),
            aggregate=partial(aggregate, self),
        )
        if self.variant == "pad":
            return pad
        settings = mutual_learning.KdSettings(
            sizes=partial(sizes, self),
            shares=self.shares,
            recipe=Recipe(epochs=self.kd_epochs, lr=self.kd_lr),
            num_windows=self.public_windows,
        )
        return replace(
            pad,
            init=partial(mutual_learning.own_models, settings),
            reduction=Collect(),
            aggregate=partial(mutual_learning.teach, settings),
            evaluate=mutual_learning.each_its_own,
            no_average="the clients' models learn from each other on the server and are never averaged",
        )


PRESETS = {
    "helora": Preset(HeLoRA()),
    "helora_table": Preset(
        HeLoRA(rank_share={"A": 0.75, "B": 0.75, "C": 0.75}, width={"A": 1.0, "B": 0.89, "C": 0.67}),
        title="HeLoRA, table",
        kind="baseline, FITTED",
        about="HeLoRA of the sizes that the paper's speedups and bytes imply",
    ),
}


def by_type(shares: Share, client: ClientInfo) -> float:
    """Share of the client's device type; 1 where it has none."""
    return next((share for name, share in shares.items() if name == client.device), 1.0)


def sizes(config: HeLoRA, layout: GroupLayout, client: ClientInfo) -> Selection:
    """Parts of each group that a client has: leading ranks, or leading rows of a model without LoRA; the head whole."""
    share, width = (by_type(shares, client) for shares in (config.rank_share, config.width))
    lora = any(rank_of(g) for g in layout)

    def part(group: ParamGroup) -> Part:
        if (full := rank_of(group)) is not None:
            rank = max(1, ceil(share * full - ROUNDING))
            return WHOLE if rank >= full else Part(rank=rank)
        return WHOLE if lora or group.role == "head" or width >= 1.0 else Part(rows=width)

    return {g.id: part(g) for g in layout}


def weight(config: HeLoRA, group: ParamGroup, client: ClientInfo, task: Assignment) -> float:
    """Weight ``p_k r_k`` up to a factor that all clients share."""
    base = float(config.reduction().weight(group, client, task))
    return base * relative_size(group, task.up[group.id]) if config.by_rank else base


def by_size(task: Assignment) -> str:
    """Bucket of a client: those that send the same parts are summed together, before padding."""
    return f"size.{sorted({(p.rank or 0, p.rows or 0.0) for p in task.up.values()})}"


def allocate(config: HeLoRA, state: ServerState, context: RoundContext) -> tuple[Assignment, ...]:
    """Every participant gets, trains and sends the model at its own size; a dense model comes down whole."""
    tasks = []
    for client in context.participants:
        parts = sizes(config, context.layout, client)
        down = {j: WHOLE if part.rank is None else part for j, part in parts.items()}
        task = Assignment(client=client.id, down=down, train=parts, up=parts, epochs=context.epochs)
        if config.alpha_over == "own_rank":
            ranks = [relative_size(context.layout[j], part) for j, part in parts.items() if part.rank is not None]
            task = replace(task, lora_scale=1.0 / min(ranks, default=1.0))
        tasks.append(replace(task, view=model_of(client.id)) if config.variant == "kd" else task)
    return tuple(tasks)


def aggregate(config: HeLoRA, state: ServerState, reduced: Reduced, tools: ServerTools) -> ServerState:
    """Average the padded models over all participants, weighted."""
    theta = state.models["global"]
    up = {by_size(r.assignment): r.assignment.up for r in reduced.receipts}
    steps: dict[GroupId, Tensor] = {}
    total: dict[GroupId, float] = {}
    for size in sorted(reduced.sums):
        sums = reduced.sums[size]
        for j, step in padded_sums(sums, up[size], theta, tools.layout, config.padding).items():
            steps[j] = steps.get(j, torch.zeros(())) + step
            total[j] = total.get(j, 0.0) + sums[j].weight
    after = apply_step(theta, {j: step / total[j] for j, step in steps.items()})
    return ServerState(models={"global": after}, tensors=state.tensors, facts=state.facts)
