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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, floor
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from relief_ray.core.extra_modules import ExtraModule
from relief_ray.core.federated import RoundContext, ServerTools, Strategy
from relief_ray.core.groups import (
    ROUNDING,
    WHOLE,
    GroupId,
    GroupLayout,
    ParamGroup,
    Params,
    Part,
    Selection,
    TensorSpec,
)
from relief_ray.core.messages import (
    Assignment,
    ClientId,
    ClientInfo,
    Collect,
    EvalPlan,
    EvalTarget,
    Fleet,
    GroupSum,
    Models,
    Reduced,
    ServerState,
    Update,
    WeightedSum,
)
from relief_ray.core.protocols import Network
from relief_ray.core.streams import Streams
from relief_ray.server.aggregation import apply_parts, apply_step, mix_clients, model_of, richest
from relief_ray.server.reduction import one_thread
from relief_ray.strategies.common import Preset, Search, StrategyConfig, check_types, own_target, train_parts
from relief_ray.support.errors import UserError

# HeLoRA-KD: deep mutual learning on the server; models of any size teach each other on windows without labels.
#
# Per batch of public windows: ``t = sum_k p_k z_k`` of the models' logits ``z_k``, a constant; every model takes one
# step of AdamW on ``KL(softmax(t) | softmax(z_k))``, whose gradient in ``z_k`` is ``(softmax(z_k) - softmax(t)) / B``.
#
# Client ``k`` trains ``theta_k`` of its own rank and sends it; after mutual learning it gets its own model back, at the
# same rank. The canonical model, a diagnostic, is the mean of the largest of those with all sensors.


@dataclass(frozen=True, kw_only=True, slots=True)
class Pupil:
    """Client's model: its trainable parts (``own``), its sensors, and its weight in the common target."""

    params: Params
    own: Selection
    modalities: tuple[str, ...]
    weight: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Hyperparameters of AdamW, whose moments start afresh in every round; the defaults are the official code's."""

    epochs: int = 10
    batch_size: int = 32
    lr: float = 5e-5
    weight_decay: float = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class _Learner:
    """Model during learning; ``fixed``: views of the ranks and rows that it does not have, with their values."""

    pupil: Pupil
    network: Network
    parameters: list[nn.Parameter]
    optimizer: torch.optim.AdamW
    fixed: list[tuple[Tensor, Tensor]]

    def logits(self, windows: Mapping[str, Tensor]) -> Tensor:
        """Logits (B, K) from its own sensors alone."""
        seen = {m: x for m, x in windows.items() if m in self.pupil.modalities}
        return self.network.read(seen, (None,))[None].logits


def teach_each_other(
    pupils: Sequence[Pupil],
    windows: Mapping[str, Tensor],
    layout: GroupLayout,
    build: Callable[[], Network],
    recipe: Recipe,
    draws: tuple[Streams, int],
) -> list[dict[GroupId, Tensor]]:
    """Train the models on each other; all outside a pupil's ``own`` parts stays bit for bit.

    ``windows``: modality -> (n, C, T), standardised; ``draws``: the run's streams and the round.
    """
    num = len(next(iter(windows.values())))
    with one_thread():
        learners = [_learner(pupil, layout, build(), recipe) for pupil in pupils]
        for epoch in range(recipe.epochs):
            order = torch.randperm(num, generator=draws[0].torch("mutual", draws[1], epoch))
            for index in torch.split(order, recipe.batch_size):
                _learn_step(learners, {m: x[index] for m, x in windows.items()})
        return [learner.network.params() for learner in learners]


def pull(logits_BK: Tensor, target_BK: Tensor) -> Tensor:
    """Gradient of the batch's mean ``KL(softmax(target) | softmax(logits))`` in ``logits``: 0 where they agree."""
    return (torch.softmax(logits_BK, 1) - torch.softmax(target_BK, 1)) / len(logits_BK)


def truncated(theta: Params, own: Selection, layout: GroupLayout) -> dict[GroupId, Tensor]:
    """Cut ``theta`` to the ranks of ``own``: LoRA factors are zero beyond them; other groups stay whole."""
    after = dict(theta)
    for j, part in own.items():
        if part.rank is not None:
            index = layout.indices(j, part)
            after[j] = torch.zeros_like(theta[j])
            after[j][index] = theta[j][index]
    return after


def _learner(pupil: Pupil, layout: GroupLayout, network: Network, recipe: Recipe) -> _Learner:
    network.load(pupil.params)
    parameters = [p for j in pupil.own for p in network.parameters[j]]
    fixed = []
    for j, part in pupil.own.items():
        for spec, p in zip(layout[j].tensors, network.parameters[j], strict=True):
            if (beyond := part.beyond(spec, p.detach())).numel():
                fixed.append((beyond, beyond.clone()))
    adam = torch.optim.AdamW(parameters, lr=recipe.lr, weight_decay=recipe.weight_decay, foreach=False)
    return _Learner(pupil=pupil, network=network, parameters=parameters, optimizer=adam, fixed=fixed)


def _learn_step(learners: Sequence[_Learner], windows: Mapping[str, Tensor]) -> None:
    """Take one step of every model towards the mean of all models' logits before the step."""
    logits_of_all = [learner.logits(windows) for learner in learners]
    # In float64 the mean of equal logits is that logit to the bit: models that agree do not move.
    weighted = [m.pupil.weight * z.detach().to(torch.float64) for m, z in zip(learners, logits_of_all, strict=True)]
    target = (torch.stack(weighted).sum(0) / sum(m.pupil.weight for m in learners)).to(torch.float32)
    for learner, logits in zip(learners, logits_of_all, strict=True):
        wanted = pull(logits.detach(), target)
        gradients = torch.autograd.grad(logits, learner.parameters, grad_outputs=wanted, allow_unused=True)
        for p, gradient in zip(learner.parameters, gradients, strict=True):
            p.grad = gradient
        learner.optimizer.step()
        for beyond, value in learner.fixed:
            beyond.copy_(value)


def own_models(config: HeLoRA, layout: GroupLayout, fleet: Fleet, streams: Streams, start: Params) -> ServerState:
    """Initial state: the common start for every client, at its own rank."""
    models = {model_of(c.id): truncated(start, sizes(config, layout, fleet, c), layout) for c in fleet.clients}
    return ServerState(models={**models, "global": canonical(config, models, layout, fleet)})


def teach(config: HeLoRA, state: ServerState, reduced: Reduced, tools: ServerTools) -> ServerState:
    """Let the participants' models learn from each other; absent clients keep their models."""
    layout, fleet, draws = tools.layout, tools.fleet, (tools.streams, tools.round)
    shares, recipe = config.shares(fleet), Recipe(epochs=config.kd_epochs, lr=config.kd_lr)
    pupils = [_pupil(state, update, tools, shares) for update in reduced.updates]
    windows = public_windows(tools, config.public_windows)
    after = teach_each_other(pupils, windows, layout, tools.build, recipe, draws)
    names = [model_of(u.receipt.assignment.client) for u in reduced.updates]
    models = {**state.models, **dict(zip(names, after, strict=True))}
    return replace(state, models={**models, "global": canonical(config, models, layout, fleet)})


def _pupil(state: ServerState, update: Update, tools: ServerTools, shares: list[float]) -> Pupil:
    task = update.receipt.assignment
    theta = apply_parts(state.models[task.view], update.delta, task.up, tools.layout)
    modalities = tools.fleet[task.client].modalities
    return Pupil(params=theta, own=task.up, modalities=modalities, weight=shares[task.client])


def fullest(config: HeLoRA, layout: GroupLayout, fleet: Fleet) -> list[ClientId]:
    """Clients that have most of the model among those with most sensors."""
    numel = {n: layout.num_values(sizes(config, layout, fleet, fleet[n])) for n in richest(fleet)}
    return [n for n in numel if numel[n] == max(numel.values())]


def canonical(config: HeLoRA, models: Models, layout: GroupLayout, fleet: Fleet) -> Params:
    """Mean of the fullest clients' models; it averages both factors of ``B A``, so it is a diagnostic only."""
    return mix_clients(models, fullest(config, layout, fleet), config.shares(fleet), layout.ids)


def public_windows(tools: ServerTools, most: int) -> dict[str, Tensor]:
    """Take at most ``most`` public windows at even distances: modality -> (n, C, T), standardised.

    Raises:
        UserError: there are none.
    """
    if tools.public is None or not len(tools.public):
        raise UserError("strategy helora, variant=kd: found no public windows, expected some; take variant=pad")
    num = min(most, len(tools.public))
    chosen = tools.public.take([i * len(tools.public) // num for i in range(num)])
    return {m: torch.from_numpy(x) for m, x in chosen.load().items()}


def each_its_own(state: ServerState, fleet: Fleet) -> EvalPlan:
    """Evaluate every client's model with its own sensors; canonical: the mean of the fullest."""
    targets = tuple(replace(own_target(c), view=model_of(c.id)) for c in fleet.clients)
    return EvalPlan(canonical=EvalTarget(label="global"), clients=targets)


# Padding: fills the ranks and rows that smaller models lack, to bring their updates to the server's size.
#
# Every rule is linear in what it pads, so that the padded sum of clients of one size is the sum of the padded clients.


# Fills with zero; the mean of the whole matrix; the mean rank (row, column); a copy of the last one.
Padding = Literal["zero", "mean", "linear", "adjacent"]


def rank_of(group: ParamGroup) -> int | None:
    """Rank ``R`` of a LoRA group; None for a dense one."""
    return next((t.shape[0 if t.kind == "lora_a" else 1] for t in group.tensors if "lora" in t.kind), None)


def relative_size(group: ParamGroup, part: Part) -> float:
    """Relative size ``r_k / R`` or ``kappa_k``; 1 for a group that every client trains whole."""
    full = rank_of(group)
    return part.rank / full if full and part.rank is not None else 1.0 if part.rows is None else part.rows


def filling(values: Tensor, axis: int, number: int, padding: Padding, mean: Tensor | None = None) -> Tensor:
    """Values to append to ``values`` so that they grow by ``number`` along ``axis``.

    ``mean``: the mean of the whole matrix where ``values`` are a block of it.
    """
    shape = [number if i == axis else size for i, size in enumerate(values.shape)]
    if padding == "zero" or not number:
        return values.new_zeros(shape)
    if padding == "mean":
        return (values.mean() if mean is None else mean).expand(shape)
    last = values.narrow(axis, values.shape[axis] - 1, 1)
    return (values.mean(axis, keepdim=True) if padding == "linear" else last).expand(shape)


def padded_sums(
    sums: Mapping[GroupId, GroupSum], up: Selection, theta: Params, layout: GroupLayout, padding: Padding
) -> dict[GroupId, Tensor]:
    """``sum_n w_n (pad(X_n) - theta_j)`` per group, in float64, over clients that all sent the parts ``up``.

    ``X_n`` is a client's LoRA factor, which is padded by rank; of dense tensors the update is padded, by rows.
    """
    # Steps at full length, zero where nothing was sent, and of factors what clients began from, so many times as they
    # weigh: the sum of the factors themselves is what is padded.
    steps: dict[GroupId, Tensor] = {}
    origins: dict[GroupId, Tensor] = {}
    leading: dict[GroupId, list[Tensor]] = {}
    for j, part in sums.items():
        steps[j] = torch.zeros(layout[j].numel, dtype=torch.float64)
        steps[j][layout.indices(j, up[j])] = part.weighted
        origins[j] = part.weight * theta[j].to(torch.float64)
        leading[j] = [_leading(up[j], spec, steps[j], origins[j]) for spec in layout[j].tensors]
    blocks = [values.reshape(-1) for j, own in leading.items() if layout[j].role == "fusion_a" for values in own]
    mean = torch.cat(blocks).mean() if blocks else None
    for j, step in steps.items():
        for spec, values in zip(layout[j].tensors, leading[j], strict=True):
            axis, number = up[j].lead(spec)
            shared = mean if layout[j].role == "fusion_a" else None
            filled = filling(values, axis, spec.shape[axis] - number, padding, shared)
            base = up[j].beyond(spec, spec.of(origins[j]))
            up[j].beyond(spec, spec.of(step)).copy_(filled - base if spec.is_factor else filled)
    return steps


def _leading(part: Part, spec: TensorSpec, step: Tensor, origin: Tensor) -> Tensor:
    """Values of a tensor to pad: the weighted sum of clients' LoRA factors, or of their updates of a dense tensor."""
    axis, number = part.lead(spec)
    sent, start = (spec.of(values).narrow(axis, 0, number) for values in (step, origin))
    return sent + start if spec.is_factor else sent


Part01 = Annotated[float, Field(gt=0.0, le=1.0)]
Share = Annotated[tuple[Part01, ...], Field(min_length=1)] | dict[str, Part01]


def _sizes_tried(middle: float, least: float, mid_width: float, least_width: float) -> dict[str, object]:
    """Ranks and, without LoRA, widths along the order of the device types; the first type always has all."""
    return {"rank_share": [1.0, middle, least], "width": [1.0, mid_width, least_width]}


class HeLoRA(StrategyConfig):
    """Configuration of HeLoRA."""

    title = "HeLoRA"
    kind = "baseline"
    about = "LoRA rank (dense model: output rows) by device type; the server pads and averages"
    citation = "fan2025helora"
    dense_stand_in = "ranks are leading output rows of every weight, and updates are padded"
    search_trades_speed = "the larger the share of a slow device, the longer its round"
    search: ClassVar[Search] = {
        "sizes0.5": _sizes_tried(0.5, 0.25, 0.75, 0.5),
        "sizes0.75": _sizes_tried(0.75, 0.5, 0.875, 0.75),
        "sizes0.9": _sizes_tried(0.875, 0.75, 0.95, 0.9),
    }
    read_with = (
        ("variant", "pad", ("padding", "by_rank", "alpha_over")),
        ("variant", "kd", ("kd_epochs", "kd_lr", "public_windows")),
    )
    name: Literal["helora"] = "helora"
    variant: Literal["pad", "kd"] = "pad"
    """``pad`` averages padded models; ``kd`` averages none: models learn from each other on public windows."""
    padding: Padding = "linear"
    """Filling of missing ranks or rows."""
    by_rank: bool = True
    """Whether clients weigh by their rank (reconstructed), besides ``weighting``."""
    rank_share: Share = (1.0, 0.75, 0.5)
    """Share of ``R`` from the most to the least capable device type, linear between these (8/6/4 of 8 for three types);
    or by a type's name, types left out: 1."""
    width: Share = (1.0, 0.875, 0.75)
    """Share of the output rows in the same way, for models without LoRA."""
    kd_epochs: int = Field(default=10, ge=1)
    """Epochs of mutual learning after a round."""
    kd_lr: float = Field(default=5e-5, gt=0.0)
    """Learning rate of AdamW in mutual learning."""
    public_windows: int = Field(default=256, ge=1)
    """Number of windows for mutual learning, at most."""
    alpha_over: Literal["server_rank", "own_rank"] = "server_rank"
    """Adapters are scaled by alpha over the server's rank ``R``, or over the client's own (official code)."""

    @property
    def no_average(self) -> str:  # type: ignore[override]
        """Why its models are no means of updates."""
        return (
            "the clients' models learn from each other on the server and are never averaged"
            if self.variant == "kd"
            else ""
        )

    def build(self) -> Strategy:
        """Build the strategy."""
        pad = Strategy(
            name=self.name,
            adapt=partial(known_types, self),
            allocate=partial(allocate, self),
            reduction=WeightedSum(weight=partial(weight, self), bucket=by_size),
            aggregate=partial(aggregate, self),
        )
        if self.variant == "pad":
            return pad
        return replace(
            pad,
            init=partial(own_models, self),
            reduction=Collect(),
            aggregate=partial(teach, self),
            evaluate=each_its_own,
        )


PRESETS = {
    "helora": Preset(HeLoRA()),
    "helora_table": Preset(
        HeLoRA(rank_share=(0.75,), width=(1.0, 0.89, 0.67)),
        title="HeLoRA, table",
        kind="baseline, FITTED",
        about="HeLoRA of the sizes that the paper's speedups and bytes imply",
    ),
}


def by_type(shares: Share, fleet: Fleet, client: ClientInfo) -> float:
    """Share of the client's device type: by its name (1 where it has none), or by its place in the fleet's order."""
    if isinstance(shares, dict):
        return shares.get(client.device, 1.0)
    place = fleet.order.index(client.device) * (len(shares) - 1) / max(1, len(fleet.order) - 1)
    before = shares[floor(place)]
    return before + (place - floor(place)) * (shares[ceil(place)] - before)


def known_types(config: HeLoRA, layout: GroupLayout, fleet: Fleet) -> tuple[ExtraModule, ...]:
    """Nothing is added to the backbone; types that ``rank_share`` and ``width`` name must be the fleet's."""
    for key in ("rank_share", "width"):
        if isinstance(shares := getattr(config, key), dict):
            check_types(key, shares, fleet)
    return ()


def sizes(config: HeLoRA, layout: GroupLayout, fleet: Fleet, client: ClientInfo) -> Selection:
    """Parts of each group that a client has: leading ranks, or leading rows of a model without LoRA; the head whole."""
    share, width = (by_type(shares, fleet, client) for shares in (config.rank_share, config.width))

    def part(group: ParamGroup) -> Part:
        if (full := rank_of(group)) is not None:
            rank = max(1, ceil(share * full - ROUNDING))
            return WHOLE if rank >= full else Part(rank=rank)
        return WHOLE if layout.lora or group.role == "head" or width >= 1.0 else Part(rows=width)

    return {g.id: part(g) for g in layout}


def weight(config: HeLoRA, group: ParamGroup, client: ClientInfo, task: Assignment) -> float:
    """Weight ``p_k r_k`` up to a factor that all clients share."""
    base = config.reduction().weight(group, client, task)
    return base * relative_size(group, task.up[group.id]) if config.by_rank else base


def by_size(task: Assignment) -> str:
    """Bucket of a client: those that send the same parts are summed together, before padding."""
    return f"size.{sorted({(p.rank or 0, p.rows or 0.0) for p in task.up.values()})}"


def allocate(config: HeLoRA, state: ServerState, context: RoundContext) -> tuple[Assignment, ...]:
    """Every participant gets, trains and sends the model at its own size; a dense model comes down whole."""
    tasks = []
    for client in context.participants:
        parts = sizes(config, context.layout, context.fleet, client)
        down = {j: WHOLE if part.rank is None else part for j, part in parts.items()}
        task = train_parts(context, client, parts, down)
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
    return replace(state, models={"global": after})
