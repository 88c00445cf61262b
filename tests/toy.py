"""A two-sensor LoRA backbone, a fleet of four and a wired-up worker, all small enough to follow by hand.

Per sensor: raw window -> tanh(frozen W0 x + bias + s B A x) -> ``h_m``. Fusion: ReLU(W0 [h_acc | h_hr] +
s B (A_acc h_acc + A_hr h_hr)); head: a dense linear layer. Every frozen weight is a buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from relief_ray.core.extra_modules import ExtraModule
from relief_ray.core.federated import RoundContext, RoundResult, Strategy, nothing_added, run_round
from relief_ray.core.groups import GroupLayout
from relief_ray.core.messages import (
    Assignment,
    ClientCost,
    ClientId,
    ClientInfo,
    Fleet,
    GroupSum,
    Receipt,
    Reduced,
    RoundCost,
    ServerState,
    StageTimes,
    Trained,
    Update,
    Work,
)
from relief_ray.core.protocols import Planner
from relief_ray.core.stages import StageSpec
from relief_ray.core.streams import Streams
from relief_ray.data.window_set import WindowSet
from relief_ray.models.backbone import Backbone, GroupParameters, InputShape, Stage
from relief_ray.models.extra import with_extra_modules
from relief_ray.records.checkpoint import CheckpointStateStore
from relief_ray.server.aggregation import check_update
from relief_ray.server.reduction import Accumulator, Sums, blocks, leaf, measured, merge_blocks
from relief_ray.support.errors import LeftOut
from relief_ray.training.config import TrainerConfig
from relief_ray.training.executor import SerialExecutor
from relief_ray.training.job import BlockResult, Job, combine
from relief_ray.training.optimizer import UpdateRule

CHANNELS = (("acc", 2), ("hr", 1))
SHAPE = InputShape(channels=CHANNELS, window=8, num_classes=3)
FEATURES, FUSED, RANK, SCALE = 6, 5, 2, 2.0
FULL, ACC = ("acc", "hr"), ("acc",)
Adapt = Callable[[GroupLayout, Fleet], tuple[ExtraModule, ...]]


class LoraFactors(nn.Module):
    """``s B A x`` (optionally on top of a frozen ``W0 x``), B zero or seeded; s is ``times`` ``SCALE``."""

    times = 1.0

    def __init__(self, num_in: int, num_out: int, generator: torch.Generator, b_zero: bool) -> None:
        super().__init__()
        self.a = nn.Parameter(0.3 * torch.randn(RANK, num_in, generator=generator))
        b = torch.randn(num_out, RANK, generator=generator)
        self.b = nn.Parameter(torch.zeros_like(b) if b_zero else 0.3 * b)
        self.register_buffer("w0", torch.randn(num_out, num_in, generator=generator) / num_in**0.5)
        self.register_buffer("bias", 0.5 * torch.randn(num_out, generator=generator))

    def set_scale(self, adapter: str, scale: float) -> None:
        self.times = scale

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        return torch.tanh(flat @ self.w0.T + self.bias + self.times * SCALE * (flat @ self.a.T) @ self.b.T)


class ColumnA(nn.Module):
    """``A_m h_m``."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.a = nn.Parameter(0.3 * torch.randn(RANK, FEATURES, generator=generator))

    def forward(self, h: Tensor) -> Tensor:
        return h @ self.a.T


class Fusion(nn.Module):
    """``ReLU(W0 [h_1 | .. | h_M] + s B sum_m z_m)`` from ``h_1 .. h_M, z_1 .. z_M``."""

    times = 1.0

    def __init__(self, generator: torch.Generator, b_zero: bool) -> None:
        super().__init__()
        b = torch.randn(FUSED, RANK, generator=generator)
        self.b = nn.Parameter(torch.zeros_like(b) if b_zero else 0.3 * b)
        self.register_buffer("w0", torch.randn(FUSED, FEATURES * len(CHANNELS), generator=generator) / 3.0)

    def set_scale(self, adapter: str, scale: float) -> None:
        self.times = scale

    def forward(self, *inputs: Tensor) -> Tensor:
        h, z = inputs[: len(CHANNELS)], inputs[len(CHANNELS) :]
        return torch.relu(torch.cat(h, 1) @ self.w0.T + self.times * SCALE * sum(z) @ self.b.T)


class Exit(nn.Module):
    """A linear classifier on concatenated features: the head."""

    def __init__(self, num_in: int, generator: torch.Generator) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.3 * torch.randn(SHAPE.num_classes, num_in, generator=generator))
        self.bias = nn.Parameter(torch.zeros(SHAPE.num_classes))

    def forward(self, *h: Tensor) -> Tensor:
        return torch.cat(h, 1) @ self.weight.T + self.bias


def build(adapt: Adapt = nothing_added, b_zero: bool = True, layers: int = 1, fleet: Fleet | None = None) -> Backbone:
    """The backbone with what ``adapt`` adds to it for ``fleet`` (``FOUR`` by default)."""
    make = torch.Generator().manual_seed(5)
    stages: list[Stage] = []
    groups: dict[str, GroupParameters] = {}
    late: list[Stage] = []

    def add(name, inputs, module, role, tensors, *, modality=None, layer=None, feature=False, into=stages):
        spec = StageSpec(id=name, inputs=inputs, groups=frozenset([name]), modality=modality, feature=feature)
        into.append(Stage(spec=spec, module=module))
        groups[name] = GroupParameters(id=name, role=role, modality=modality, layer=layer, tensors=tensors)

    for m, channels in CHANNELS:
        source, width = f"x.{m}", channels * SHAPE.window
        for layer in range(1, layers + 1):
            lora = LoraFactors(width, FEATURES, make, b_zero)
            tensors = (("a", lora.a, "lora_a"), ("b", lora.b, "lora_b"))
            last = layer == layers
            add(f"encoder.{m}.{layer}", (source,), lora, "encoder", tensors, modality=m, layer=layer, feature=last)
            source, width = f"encoder.{m}.{layer}", FEATURES
        block = ColumnA(make)
        add(f"fusion.A.{m}", (source,), block, "fusion_a", (("a", block.a, "lora_a"),), modality=m)
    names = [m for m, _ in CHANNELS]
    inputs = (*(f"encoder.{m}.{layers}" for m in names), *(f"fusion.A.{m}" for m in names))
    fusion, head = Fusion(make, b_zero), Exit(FUSED, make)
    add("fusion.B", inputs, fusion, "fusion_b", (("b", fusion.b, "lora_b"),), into=late)
    add("head.1", ("fusion.B",), head, "head", dense(head), layer=1, into=late)
    backbone = Backbone(SHAPE, [*stages, *late], groups.values())
    return with_extra_modules(backbone, adapt(backbone.layout, fleet or FOUR), 5)


def dense(head: Exit):
    return (("weight", head.weight, "weight"), ("bias", head.bias, "bias"))


def fleet_of(*owned: Sequence[str], num_windows: int = 6, modalities: tuple[str, ...] = FULL) -> Fleet:
    """One client per tuple of modalities; client ``n`` has ``num_windows + n`` windows."""
    return Fleet(
        clients=tuple(
            ClientInfo(id=n, name=f"c{n}", device="A", modalities=tuple(m), num_windows=num_windows + n)
            for n, m in enumerate(owned)
        ),
        modalities=modalities,
    )


FOUR = fleet_of(FULL, FULL, ACC, ACC)


def windows_for(fleet: Fleet, folder: Path, seed: int = 0) -> tuple[tuple[WindowSet, ...], WindowSet]:
    """Seeded signals on disk; each client's windows, and a test set of two subjects."""
    make = np.random.default_rng(seed)
    width = sum(c for _, c in CHANNELS)
    path = folder / f"signal{seed}.npy"
    np.save(path, make.normal(1.0, 2.0, (400, width)).astype(np.float32))

    def windows(number: int) -> WindowSet:
        return WindowSet(
            signal_path=str(path),
            starts=make.integers(0, 390, number).astype(np.int64),
            labels=make.integers(0, SHAPE.num_classes, number).astype(np.int64),
            subjects=(np.arange(number) % 2).astype(np.int16),
            window=SHAPE.window,
            columns=(("acc", 0, 2), ("hr", 2, 3)),
            mean=np.ones(width, np.float32),
            std=np.full(width, 2.0, np.float32),
        )

    return tuple(windows(c.num_windows) for c in fleet.clients), windows(20)


@dataclass(frozen=True, kw_only=True)
class LinearPlanner:
    """``T_o + tau_n |S_n|``: the uniform time of the paper's budget."""

    tau_s: Mapping[ClientId, float]
    overhead_s: float = 1.0

    def times(self, client: ClientId, assignment: Assignment) -> StageTimes:
        return StageTimes(backward_s=self.tau_s[client] * len(assignment.train), up_s=self.overhead_s)


@dataclass(frozen=True, kw_only=True)
class PlannedCosts:
    """Charges each receipt what the planner would have predicted."""

    planner: Planner

    def charged(self, done: Sequence[Receipt], participants: Sequence[ClientInfo]) -> tuple[Receipt, ...]:
        return tuple(done)

    def cost(self, receipts: Sequence[Receipt], fleet: Fleet, server_s: float = 0.0) -> Mapping[str, RoundCost]:
        times = {r.assignment.client: self.planner.times(r.assignment.client, r.assignment) for r in receipts}
        slowest = max((t.busy_s for t in times.values()), default=0.0)
        rows = tuple(
            ClientCost(client=c, times=t, wait_s=slowest - t.busy_s, energy_j=t.busy_s) for c, t in times.items()
        )
        return {"linear": RoundCost(clients=rows, round_s=slowest, energy_j=sum(r.energy_j for r in rows))}


EQUAL = LinearPlanner(tau_s=dict.fromkeys(range(16), 1.0))


def context_of(
    backbone_or_layout,
    fleet=FOUR,
    round_=1,
    planner=EQUAL,
    participants=None,
    epochs=1,
    seed=0,
    num_rounds=3,
    batch_size=4,
):
    """A round's context."""
    layout = getattr(backbone_or_layout, "layout", backbone_or_layout)
    chosen = fleet.clients if participants is None else tuple(fleet[n] for n in participants)
    return RoundContext(
        round=round_,
        num_rounds=num_rounds,
        fleet=fleet,
        layout=layout,
        participants=chosen,
        planner=planner,
        streams=Streams(seed=seed),
        epochs=epochs,
        batch_size=batch_size,
    )


@dataclass(kw_only=True)
class Bench:
    """A strategy on the real trainer, worker, serial executor and state store."""

    strategy: Strategy
    executor: SerialExecutor
    backbone: Backbone
    fleet: Fleet
    state: ServerState
    planner: Planner = EQUAL
    epochs: int = 1
    store: CheckpointStateStore = field(default_factory=CheckpointStateStore)
    start: Mapping[str, Tensor] = field(default_factory=dict)

    def round(self, round_: int, participants: Sequence[ClientId] | None = None) -> RoundResult:
        """One committed round."""
        context = context_of(self.backbone, self.fleet, round_, self.planner, participants, self.epochs)
        result = run_round(
            self.strategy, self.state, context, self.executor, self.store, PlannedCosts(planner=self.planner)
        )
        self.store.commit()
        self.state = result.state
        return result


def bench(
    strategy: Strategy,
    folder: Path,
    *,
    fleet: Fleet = FOUR,
    epochs: int = 1,
    batch_size: int = 4,
    missing: str = "zero_input",
    engine: str = "naive",
    planner: Planner = EQUAL,
    build_args: Mapping[str, object] | None = None,
    lr: float = 1e-2,
) -> Bench:
    """Everything wired up, before the first round."""
    make = partial(build, strategy.adapt, **{"fleet": fleet, **dict(build_args or {})})
    clients, test = windows_for(fleet, folder)
    job = Job(
        build=make,
        layout=make().layout,
        trainer=TrainerConfig(lr=lr, batch_size=batch_size, missing=missing, engine=engine),
        fleet=fleet,
        clients=clients,
        parts={"test": test},
        program=strategy.client,
        reduction=strategy.reduction,
        streams=Streams(seed=0),
        planner=planner,
    )
    backbone = make()
    start = backbone.params()
    state = strategy.init(backbone.layout, fleet, Streams(seed=0), start)
    executor = SerialExecutor(job)
    return Bench(
        strategy=strategy,
        executor=executor,
        backbone=backbone,
        fleet=fleet,
        state=state,
        planner=planner,
        epochs=epochs,
        start=start,
    )


def with_same_data(run: Bench) -> Bench:
    """The same bench, everybody on client 0's windows; with a batch for all of them the order does not matter."""
    job = run.executor._worker.job
    run.executor = SerialExecutor(replace(job, clients=(job.clients[0],) * len(run.fleet)))
    return run


def with_sgd(run: Bench) -> Bench:
    """The same bench, its clients on plain SGD: what the methods' theory is stated for."""
    job = run.executor._worker.job
    run.executor = SerialExecutor(replace(job, trainer=replace(job.trainer, rule=UpdateRule(name="sgd"))))
    return run


def task_of(layout, client: ClientId, groups, phase: str = "train") -> Assignment:
    """Whole model down; ``groups`` trained and sent up."""
    chosen = layout.select(groups)
    return Assignment(client=client, down=layout.select(), train=chosen, up=chosen, epochs=1, phase=phase)


def receipt_of(task: Assignment, **facts) -> Receipt:
    work = Work(num_windows=6, epochs=1, num_steps=2, engine="naive", loss=1.0, measured=StageTimes())
    return Receipt(assignment=task, work=work, bytes_down=0, bytes_up=0, **facts)


def update_of(task: Assignment, delta: Mapping[str, Tensor], **facts) -> Update:
    return measured(Update(receipt=receipt_of(task), delta=dict(delta), **facts))


def sum_block(updates: Iterable[Update], reduction, layout, fleet) -> Sums:
    """A block's sums, one update after the other."""
    total = Accumulator()
    for update in updates:
        total.add(leaf(update, reduction, layout, fleet))
    return total.sums()


def reduced_of(updates: Sequence[Update], reduction, layout, fleet) -> Reduced:
    """The real reduction of hand-made updates."""
    by_client = {u.receipt.assignment.client: u for u in updates}
    order = blocks([u.receipt.assignment for u in updates])
    parts = [sum_block([by_client[t.client] for t in block], reduction, layout, fleet) for block in order]
    return Reduced(sums=merge_blocks(parts), receipts=tuple(by_client[c].receipt for c in sorted(by_client)))


@dataclass(frozen=True, kw_only=True)
class Given:
    """An executor that returns prepared updates: what a network could have brought."""

    updates: Mapping[ClientId, Update]
    strategy: Strategy
    layout: object
    fleet: Fleet

    def train(self, round_, models, tasks, states) -> Trained:
        results = []
        for block in blocks(tasks):
            sent = [measured(self.updates[t.client]) for t in block]
            reasons = {u.receipt.assignment.client: check_update(u, self.layout) for u in sent}
            good = [u for u in sent if reasons[u.receipt.assignment.client] is None]
            results.append(
                BlockResult(
                    sums=sum_block(good, self.strategy.reduction, self.layout, self.fleet),
                    receipts=tuple(u.receipt for u in good),
                    states={u.receipt.assignment.client: u.state for u in good if u.state},
                    rejected={c: LeftOut(cause="update", why=why) for c, why in reasons.items() if why},
                )
            )
        return combine(results)

    def evaluate(self, models, targets, states, part):
        raise NotImplementedError

    def close(self) -> None:
        """Does nothing: there is nothing to release."""


def sum_of(layout, group: str, deltas: Sequence[Sequence[float]], weights: Sequence[float] | None = None) -> GroupSum:
    """A group's sums from plain lists."""
    values = torch.tensor(deltas, dtype=torch.float64)
    scale = torch.ones(len(values), dtype=torch.float64) if weights is None else torch.tensor(weights).double()
    return GroupSum(
        weight=float(scale.sum()),
        weighted=(scale[:, None] * values).sum(0),
        plain=values.sum(0),
        sq_norm=float(values.square().sum()),
        members=tuple(range(len(values))),
    )
