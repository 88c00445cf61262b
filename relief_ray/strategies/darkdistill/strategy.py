"""DarkDistill: depth-limited devices share an early-exit network; the server distils shallow models into deeper ones.

Client of class k: ``sum_{e <= k} CE(exit_e)`` on blocks 1..k; it reports labels and difficulties (cross-entropy at the
first exit). Server: ``theta^(k)`` = weighted mean of its class; data-free distillation k -> k+1
(``distillation``); then block j = ``sum_{k >= j} N_k theta_j^(k) / sum_{k >= j} N_k``. Clients of class k run blocks
1..k and exit k, and are evaluated through it.

Qu et al., "DarkDistill: Difficulty-Aligned Federated Early-Exit Network Training on Heterogeneous Devices", KDD 2025.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import Field

from relief_ray.core.client import ClientContext, ClientProgram
from relief_ray.core.extra_modules import Classifier
from relief_ray.core.federated import RoundContext, ServerTools, Strategy
from relief_ray.core.groups import GroupLayout
from relief_ray.core.messages import (
    Assignment,
    ClientInfo,
    Fleet,
    Reduced,
    ServerState,
    StageTimes,
    Update,
    WeightedSum,
)
from relief_ray.server.aggregation import apply_step, mean_step, over_members, weighted_mean
from relief_ray.strategies.common import Preset, StrategyConfig, Weighting, check_types, search_over, train_parts
from relief_ray.strategies.darkdistill.distillation import (
    DepthModel,
    Recipe,
    all_exits,
    binned,
    difficulties,
    distil,
    exit_flops,
    num_classes,
)
from relief_ray.strategies.early_exits import (
    check_depths,
    depths_by_speed,
    exits,
    last_layers,
    level,
    outputs,
    through_own_outputs,
    with_outputs,
)

JUDGE, DENSE_LR, LORA_LR = "darkdistill.judge", 0.05, 1e-3


class DarkDistill(StrategyConfig):
    """Configuration of DarkDistill."""

    title = "DarkDistill"
    kind = "baseline"
    about = "an early-exit model cut to each device's depth; shallow models teach deeper ones"
    citation = "qu2025darkdistill"
    search = search_over("kd_epochs", (1, 2, 4), "kd")
    read_with = (("distil", True, ("kd_epochs", "kd_lr", "hidden")),)
    name: Literal["darkdistill"] = "darkdistill"
    weighting: Weighting = "samples"
    """A client's weight in its depth class's mean."""
    num_depths: int = Field(default=4, ge=1)
    """Number of depth classes; at most one per encoder layer."""
    depth_by_type: dict[str, Annotated[int, Field(ge=1)]] = Field(default={})
    """Depth class by device type; types left out are placed by their speed."""
    upload: Literal["prefix", "full"] = "prefix"
    """``full`` is charged the whole model both ways, ``prefix`` the trained prefix."""
    bin_nats: float | None = Field(default=None, gt=0.0)
    """Width of the bins of a reported histogram of difficulties; None reports every window."""
    distil: bool = True
    """Whether the server distils; the three keys below are read with it alone."""
    kd_epochs: int = Field(default=2, ge=1)
    """Epochs of distillation after a round."""
    kd_lr: float | None = Field(default=None, gt=0.0)
    """Learning rate of the students' SGD; None: 0.05 for dense models, 0.001 for LoRA."""
    hidden: int = Field(default=1000, ge=1)
    """Width of the generator's hidden layer."""

    @property
    def no_average(self) -> str:  # type: ignore[override]
        """Why its models are no means of updates."""
        return "the server distils models into each other after averaging them" if self.distil else ""

    def build(self) -> Strategy:
        """Build the strategy."""
        return Strategy(
            name=self.name,
            adapt=partial(early_exits, self),
            allocate=partial(allocate, self),
            client=ClientProgram(objective=all_exits, observe=difficulties, after=partial(report, self), is_mean=True),
            reduction=WeightedSum(weight=self.reduction().weight, bucket=depth_class),
            aggregate=partial(aggregate, self),
            evaluate=through_own_outputs,
        )


PRESETS = {
    "darkdistill": Preset(DarkDistill()),
    "darkdistill_table": Preset(
        DarkDistill(upload="full", weighting="uniform"),
        title="DarkDistill, table",
        kind="baseline, FITTED",
        about="DarkDistill charged for the whole model; clients have equal weights",
    ),
}


def early_exits(config: DarkDistill, layout: GroupLayout, fleet: Fleet) -> tuple[Classifier, ...]:
    """Exits behind every depth class but the last."""
    lasts = last_layers(layout, config.num_depths)
    check_depths(config.depth_by_type.items(), len(lasts))
    return exits(layout, lasts[:-1])


def assigned(config: DarkDistill, context: RoundContext, client: ClientInfo, depth: int) -> Assignment:
    """Assignment of a client of that depth: its prefix is trained and sent; ``full`` is charged the whole model."""
    layout, lasts = context.layout, last_layers(context.layout, config.num_depths)
    prefix = layout.select(g for g in layout if level(g, lasts) <= depth)
    *taps, output = outputs(layout, lasts, depth)
    charged = None if config.upload == "prefix" else layout.select()
    return replace(
        train_parts(context, client, prefix, charged or prefix),
        charged_up=charged,
        taps=frozenset(t for t in taps if t is not None),
        output=output,
        args={"depth": depth},
        step_flops=exit_flops(context, client, depth),
    )


def allocate(config: DarkDistill, state: ServerState, context: RoundContext) -> tuple[Assignment, ...]:
    """Every participant trains the prefix that its device type carries."""
    check_types("depth_by_type", config.depth_by_type, context.fleet)
    deepest = len(last_layers(context.layout, config.num_depths))

    def times(client: ClientInfo, depth: int) -> StageTimes:
        return context.planner.times(client.id, assigned(config, context, client, depth))

    chosen = depths_by_speed(context.fleet, deepest, times) | config.depth_by_type
    return tuple(assigned(config, context, c, chosen[c.device]) for c in context.participants)


def depth_class(task: Assignment) -> str:
    """Bucket of the clients of one depth, which are averaged together."""
    return f"depth.{int(task.args['depth'])}"


def report(config: DarkDistill, context: ClientContext, update: Update) -> Update:
    """Charge the report: 5 bytes a window (a label of one byte), or 7 a cell of the histogram (label, bin, count).

    More than 256 classes take labels of four bytes.
    """
    receipt, stats, layout = update.receipt, update.receipt.stats, context.layout
    kind = torch.uint8 if num_classes(layout) <= 256 else torch.int32
    num_bytes = (kind.itemsize + 4) * len(stats["label"])
    if config.bin_nats is not None:
        label, difficulty, num_cells = binned(stats["label"], stats["difficulty"], config.bin_nats)
        stats, num_bytes = {"label": label, "difficulty": difficulty}, (kind.itemsize + 6) * num_cells
    stats = {**stats, "label": stats["label"].to(kind)}
    return replace(update, receipt=replace(receipt, stats=stats, bytes_up=receipt.bytes_up + num_bytes))


def class_models(config: DarkDistill, state: ServerState, reduced: Reduced, tools: ServerTools) -> list[DepthModel]:
    """(a): each class's weighted mean, shallow first; classes without a client this round are left out."""
    layout, lasts, models = tools.layout, last_layers(tools.layout, config.num_depths), list[DepthModel]()
    for depth in range(1, len(lasts) + 1):
        receipts = [r for r in reduced.receipts if r.assignment.args["depth"] == depth]
        sums = reduced.sums.get(f"depth.{depth}", {})
        if own := {j: part for j, part in sums.items() if level(layout[j], lasts) <= depth}:
            model = DepthModel(
                depth=depth,
                params=apply_step(state.models["global"], mean_step(own, over_members, layout)),
                weight=max(part.weight for part in own.values()),
                exits=outputs(layout, lasts, depth),
                labels=torch.cat([r.stats["label"] for r in receipts]).to(torch.int64),
                difficulty=torch.cat([r.stats["difficulty"] for r in receipts]),
                modalities=frozenset(m for r in receipts for m in tools.fleet[r.assignment.client].modalities),
            )
            models.append(model)
    return models


def aggregate(config: DarkDistill, state: ServerState, reduced: Reduced, tools: ServerTools) -> ServerState:
    """(a) class means, (b) distillation, (c) blockwise means."""
    layout, lasts, tensors = tools.layout, last_layers(tools.layout, config.num_depths), dict(state.tensors)
    models = class_models(config, state, reduced, tools)
    judge = layout.views(tensors[JUDGE]) if JUDGE in tensors else state.models["global"]
    if config.distil and len(models) > 1:
        lr = config.kd_lr or (LORA_LR if layout.lora else DENSE_LR)
        recipe = Recipe(epochs=config.kd_epochs, hidden=config.hidden, lr=lr)
        after, tensors = distil(models, judge, tensors, tools.build, recipe, (tools.streams, tools.round))
        models = [replace(m, params=params) for m, params in zip(models, after, strict=True)]
    if config.distil and models and models[-1].depth == len(lasts) > 1:
        tensors[JUDGE] = layout.flatten(models[-1].params)
    held = {g.id: [(m.weight, m.params[g.id]) for m in models if level(g, lasts) <= m.depth] for g in layout}
    theta = {j: weighted_mean(held[j]) if held[j] else value for j, value in state.models["global"].items()}
    facts = with_outputs(state.facts, reduced.receipts, tools.fleet)
    return replace(state, models={"global": theta}, tensors=tensors, facts=facts)
