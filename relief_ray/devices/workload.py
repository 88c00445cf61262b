"""FLOPs and bytes of one client's round, under the naive engine and under the engine that reuses results.

Legend: ``n`` windows of the client, ``E`` local epochs, ``u`` optimizer steps. A stage is *live* where a trained group
can change its output, *constant* where it depends on no modality that the client owns (its input is the same zero
window always).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from relief_ray.core.groups import GroupId, GroupLayout, Selection
from relief_ray.core.stages import (
    MAX_KEPT_BYTES,
    CostTable,
    Engine,
    Missing,
    StageSpec,
    cheap_reads,
    descendants,
    modalities_below,
    only_for,
    read_by,
    recomputed,
)

Times = Literal["always", "round", "step", "once"]
# Which gradients a stage's backward pass computes.
BackwardMode = Literal["weights", "input", "both"]

# Adam per value and step: two moments (3 + 4), bias corrections (2), square root, division, the step itself (3).
ADAM_FLOPS_PER_VALUE = 12.0
# SGD: product and difference; momentum: product and sum more. An L2 penalty: product and sum; decoupled: a product.
_SGD_FLOPS_PER_VALUE, _MOMENTUM_FLOPS, _PENALTY_FLOPS, _DECOUPLED_FLOPS = 2.0, 2.0, 2.0, 1.0
# Clipping by norm: square, sum, product.
_CLIPPING_FLOPS = 3.0


def optimizer_flops_per_value(
    optimizer: Literal["adam", "adamw", "sgd"], *, momentum: bool, decay: bool, clipping: bool
) -> float:
    """FLOPs of a step per trained value."""
    flops = ADAM_FLOPS_PER_VALUE if optimizer != "sgd" else _SGD_FLOPS_PER_VALUE + _MOMENTUM_FLOPS * momentum
    return flops + (_DECOUPLED_FLOPS if optimizer == "adamw" else _PENALTY_FLOPS) * decay + _CLIPPING_FLOPS * clipping


@dataclass(frozen=True, kw_only=True, slots=True)
class StageRun:
    """One stage of a round, and its FLOPs.

    Attributes:
        stage: the stage's name.
        times: how often it runs: ``always``, ``round``, ``step`` or ``once``.
        live: whether a gradient comes back to its output.
        forward_flops: FLOPs per window.
        mode: how it goes backward; None: not at all.
        backward_flops: FLOPs per window.
        optimizer_flops: FLOPs of its trained groups per step.
    """

    stage: str
    times: Times
    live: bool
    forward_flops: float
    mode: BackwardMode | None = None
    backward_flops: float = 0.0
    optimizer_flops: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """Work of one client in one round.

    Attributes:
        forward_flops: FLOPs of forward passes.
        backward_flops: FLOPs of backward passes.
        optimizer_flops: FLOPs of optimizer steps.
        group_flops: the trained groups' own FLOPs, which the paper's time model counts.
        bytes_up: upload.
        bytes_down: download.
        num_steps: optimizer steps.
        runs: the same work stage by stage.
        repeats: (calls, windows) in the whole round by kind of repetition. Work of kind ``round`` counts as one call
            for all windows, however many the engine takes at a time.
        extra_flops: FLOPs beside stages and optimizer.
    """

    forward_flops: float
    backward_flops: float
    optimizer_flops: float
    group_flops: float
    bytes_up: int
    bytes_down: int
    num_steps: int = 0
    runs: tuple[StageRun, ...] = ()
    repeats: Mapping[Times, tuple[int, int]] = field(default_factory=dict)
    extra_flops: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Footprint:
    """Work of an assignment, before a client's number of windows n, epochs E and steps u is known.

    FLOPs are per window and by how often they are spent: ``always`` n E, ``round`` n, ``step`` u times, ``once``.

    Attributes:
        forward: FLOPs of forward passes by repetition.
        backward: FLOPs of backward passes by repetition.
        group: the trained groups' own FLOPs per window.
        optimizer_flops: FLOPs of an optimizer step.
        runs: the same stage by stage.
        kept_bytes: bytes per window held for the whole round; where that is too much, ``round`` is n E as well.
    """

    forward: Mapping[Times, float]
    backward: Mapping[Times, float]
    group: float
    optimizer_flops: float
    runs: tuple[StageRun, ...]
    kept_bytes: float

    def workload(
        self,
        *,
        num_windows: int,
        epochs: int,
        num_steps: int,
        bytes_up: int = 0,
        bytes_down: int = 0,
        extra_flops: float = 0.0,
    ) -> Workload:
        """The round of a client with so many windows, epochs and optimizer steps."""
        n = num_windows if epochs else 0
        kept = self.kept_bytes * n <= MAX_KEPT_BYTES
        always = num_steps, n * epochs
        repeats: dict[Times, tuple[int, int]] = {
            "always": always,
            "round": (min(n, 1), n) if kept else always,
            "step": (num_steps, num_steps),
            "once": (min(n, 1), min(n, 1)),
        }
        return Workload(
            forward_flops=sum(flops * repeats[times][1] for times, flops in self.forward.items()),
            backward_flops=sum(flops * repeats[times][1] for times, flops in self.backward.items()),
            optimizer_flops=self.optimizer_flops * num_steps,
            group_flops=self.group * n * epochs,
            bytes_up=bytes_up,
            bytes_down=bytes_down,
            num_steps=num_steps,
            runs=self.runs,
            repeats=repeats,
            extra_flops=extra_flops,
        )


def footprint(
    costs: CostTable,
    present: Collection[str],
    trained: Mapping[GroupId, float],
    engine: Engine,
    missing: Missing,
    wanted: Collection[str | None] = (None,),
    optimizer_flops: float = ADAM_FLOPS_PER_VALUE,
    receives: bool = False,
) -> Footprint:
    """Count the stages that a client of modalities ``present`` runs to train ``trained`` (group: share of its values).

    ``wanted``: the stages whose outputs are read (None: the logits); what lies behind them all is not run.
    ``optimizer_flops``: FLOPs of an optimizer step per trained value. ``receives``: outputs of absent modalities'
    networks come down and are not computed.

    ``naive`` runs every stage forward in every epoch, absent modalities too, as the paper's straggler does. ``reuse``
    runs what no trained group can change once a round, and constant stages on one window (once, or once a step where
    they learn); with ``zero_feature`` it leaves out absent features and all that feeds them. Backward: the gradient of
    a live stage's input where that input is live, and the weight gradients of trained groups alone.
    """
    stages = costs.running(wanted)
    reuse, below = engine != "naive", modalities_below(stages)
    constant = {s.id for s in stages if (reuse or receives) and below[s.id].isdisjoint(present)}
    zeroed = {s.id for s in stages if s.feature and s.id in constant} if missing == "zero_feature" else set()
    off = frozenset(constant) if receives else only_for(stages, zeroed)
    live = descendants(stages, trained) - off
    changing = recomputed(stages, trained, constant) - off
    again = changing | (cheap_reads(stages, changing) - constant)
    running = [(s, _times(s.id in again, s.id in constant, reuse)) for s in stages if s.id not in off]
    runs = tuple(_stage_run(costs, stage, often, live, trained, optimizer_flops) for stage, often in running)
    reached = {j for s in stages for j in s.groups}
    learning = reached - {j for s in stages if s.id in off for j in s.groups}
    # What is computed once a round and read in every step.
    read = read_by(stages, again)
    num_values = sum(share * costs.num_values[j] for j, share in trained.items() if j in learning)
    return Footprint(
        forward=_by_times((r.times, r.forward_flops) for r in runs),
        backward=_by_times((r.times, r.backward_flops) for r in runs if r.live),
        group=sum(share * costs.group_flops(j, stages) for j, share in trained.items() if j in reached),
        optimizer_flops=optimizer_flops * num_values,
        runs=runs,
        kept_bytes=sum(costs.flops[r.stage].output_bytes for r in runs if r.times == "round" and r.stage in read),
    )


def shares(layout: GroupLayout, selection: Selection) -> dict[GroupId, float]:
    """The share of each group's values that ``selection`` names: 1 for whole groups, less for a rank or a factor."""
    return {j: 1.0 if part.whole else layout.num_values({j: part}) / layout[j].numel for j, part in selection.items()}


def num_steps(num_windows: int, epochs: int, batch_size: int) -> int:
    """Optimizer steps of a round; the last short batch is kept."""
    return epochs * -(-num_windows // batch_size)


def _by_times(flops: Iterable[tuple[Times, float]]) -> dict[Times, float]:
    total: dict[Times, float] = {}
    for times, value in flops:
        total[times] = total.get(times, 0.0) + value
    return total


def _times(live: bool, constant: bool, reuse: bool) -> Times:
    if constant:
        return "step" if live else "once"
    return "always" if live or not reuse else "round"


def _stage_run(
    costs: CostTable,
    stage: StageSpec,
    often: Times,
    live: frozenset[str],
    trained: Mapping[GroupId, float],
    flops_per_value: float,
) -> StageRun:
    spent = costs.flops[stage.id]
    if stage.id not in live:
        return StageRun(stage=stage.id, times=often, live=False, forward_flops=spent.forward_flops)
    chosen = [j for j in stage.groups if j in trained]
    to_input = not live.isdisjoint(stage.inputs)
    mode: BackwardMode = "weights" if not to_input else "both" if chosen else "input"
    weights = sum(trained[j] * spent.weight_grad_flops[j] for j in chosen)
    inner = max((spent.inner_grad_flops.get(j, 0.0) for j in chosen), default=0.0)
    return StageRun(
        stage=stage.id,
        times=often,
        live=True,
        forward_flops=spent.forward_flops,
        mode=mode,
        backward_flops=weights + (spent.input_grad_flops if to_input else inner),
        optimizer_flops=flops_per_value * sum(trained[j] * costs.num_values[j] for j in chosen),
    )
