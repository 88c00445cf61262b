"""Measures this machine's speed at a backbone's stages: the rows of a device profile (docs/costs.md).

Short rounds of several scenarios alternate: different trained groups, two batch sizes, all modalities or the first
alone, with the trainer that runs experiments. Every stage is timed in place; paces are medians over all turns.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from statistics import median, quantiles
from time import perf_counter
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from relief_ray.config.experiment import ExperimentConfig
from relief_ray.core.client import ClientProgram, LocalStep, task_loss
from relief_ray.core.groups import GroupId, GroupLayout
from relief_ray.core.messages import StageTimes, Update
from relief_ray.devices.meter import PowerMeter, mean_w
from relief_ray.devices.power_sensors import board_root, power_mode
from relief_ray.devices.throughput import Overheads, Pace, StagePaces, Stagewise
from relief_ray.devices.time import Conditions, Profile, Throughput, throughput
from relief_ray.devices.workload import ADAM_FLOPS_PER_VALUE, BackwardMode, Workload, footprint, num_steps, shares
from relief_ray.experiment.setup import BATCH, Setup, prepare, profile_settings
from relief_ray.models.backbone import Backbone
from relief_ray.models.registry import backbone_name
from relief_ray.records.identity import commit, machine_facts, source_digest
from relief_ray.support.process import Moment, device_name, moment, seconds_between, use_device, use_threads
from relief_ray.training.forward_plan import CHUNK
from relief_ray.training.inputs import lone_client, noise
from relief_ray.training.trainer import Trainer

# Times single stages in place, while the trainer does its usual work.
#
# A stage run alone would find its inputs in the cache and its memory allocated, which it does not in a round. So the
# modules of a backbone are wrapped: forward is timed around the call, backward from the moment that a stage's output
# gradient is computed to the moment that the next stage's is (autograd runs one node after another, and so does a GPU's
# stream). On a GPU moments are marks in its work (``torch.cuda.Event``), which are read once a round is over.


Phase = Literal["live", "frozen", "weights", "input", "both"]
FORWARD: frozenset[Phase] = frozenset({"live", "frozen"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """One timed call of a stage.

    Attributes:
        stage: the stage.
        phase: forward with (``live``) or without gradient (``frozen``); backward to ``weights``, ``input`` or both.
        rows: windows of the call.
        seconds: duration.
    """

    stage: str
    phase: Phase
    rows: int
    seconds: float


class _Probe(nn.Module):
    """Wraps a stage's module and times its calls."""

    def __init__(self, module: nn.Module, stage: str, probes: Probes) -> None:
        super().__init__()
        self.module, self.stage, self.probes = module, stage, (probes,)

    def forward(self, *inputs: Tensor) -> Tensor:
        probes = self.probes[0]
        began = probes.now()
        output: Tensor = self.module(*inputs)
        ended, rows, live = probes.now(), max(map(len, inputs)), output.requires_grad
        probes.calls.append((self.stage, "live" if live else "frozen", rows, began, ended))
        if live:
            is_trained = any(p.requires_grad for p in self.module.parameters())
            reaches_input = any(x.requires_grad for x in inputs)
            phase: Phase = "weights" if not reaches_input else "both" if is_trained else "input"
            output.register_hook(partial(probes.arrive, self.stage, phase, rows))  # type: ignore[no-untyped-call]
        return output


def _same_loss(step: LocalStep) -> Tensor:
    return task_loss(step)


# Large tensors take their steps after the backward pass, where their seconds are seen; `fused` hides them in it.
_APART = ClientProgram(objective=_same_loss, is_mean=True)


class Probes:
    """Wraps all stages of a backbone, permanently, and collects the spans of the rounds that it trains."""

    def __init__(self, backbone: Backbone, on_gpu: bool = False) -> None:
        """Build the trainer before: it rebinds the parameters. ``on_gpu``: that is where it trains."""
        # Stage, phase and rows of each call, its begin and its end: moments are not read yet.
        self.calls: list[tuple[str, Phase, int, Moment, Moment | None]] = []
        self._arrivals: list[tuple[str, Phase, int, Moment]] = []
        self._touched: Moment | None = None
        self._on_gpu = on_gpu
        stages, backbone.joined = backbone.stages, ()
        backbone.stages = tuple(replace(s, module=_Probe(s.module, s.spec.id, self)) for s in stages)
        for p in (p for ps in backbone.parameters.values() for p in ps):
            p.requires_grad_(True).register_post_accumulate_grad_hook(self._touch)  # type: ignore[no-untyped-call]

    def now(self) -> Moment:
        """Now, by the clock of the device that trains."""
        return moment(self._on_gpu)

    def objective(self, step: LocalStep) -> Tensor:
        """The task loss; also closes the spans of the previous step."""
        self._close()
        return task_loss(step)

    def arrive(self, stage: str, phase: Phase, rows: int, _gradient: Tensor) -> None:
        """Note when the gradient of a stage's output is computed: until then the stage above it ran."""
        self._arrivals.append((stage, phase, rows, self.now()))

    def take(self) -> list[Span]:
        """Return the spans since the last call."""
        self._close()
        calls, self.calls = self.calls, []
        return [
            # The last parameter may be touched before the last gradient is there.
            Span(stage=s, phase=p, rows=n, seconds=0.0 if ended is None else max(0.0, seconds_between(began, ended)))
            for s, p, n, began, ended in calls
        ]

    def _touch(self, _parameter: Tensor) -> None:
        self._touched = self.now()

    def _close(self) -> None:
        """End each call of a backward pass where the next begins, the last one where a parameter was touched last."""
        ends = [*(began for *_, began in self._arrivals[1:]), self._touched]
        self.calls += [(*arrival, ended) for arrival, ended in zip(self._arrivals, ends, strict=False)]
        self._arrivals = []


# Fits paces to timed rounds: one line through the medians of every stage, least squares for the optimizer.


# Least share of a stage's time that counts as per window: one as slow for a window as for many has a finite speed.
LEAST_SHARE = 1e-3

_Key = tuple[str, Phase]


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedRound:
    """A short round of a scenario, trained twice: without probes for its total time, with them for its stages.

    Attributes:
        load: the cost model's workload of the round.
        num_tensors: trained tensors.
        wall_s: seconds without probes.
        times: seconds by phase without probes.
        spans: seconds of each call of a stage, with probes.
    """

    load: Workload
    num_tensors: int
    wall_s: float
    times: StageTimes
    spans: tuple[Span, ...]

    def left_s(self, forward: bool) -> float:
        """Forward or backward seconds that are not part of any stage's spans."""
        total = self.times.forward_s if forward else self.times.backward_s
        return total - sum(s.seconds for s in self.spans if (s.phase in FORWARD) == forward)


def line(points: Mapping[int, Sequence[float]], least_share: float = 0.0) -> tuple[float, float]:
    """Fit ``each * n + constant`` through the median seconds at the fewest and the most ``n``; neither is negative.

    The line always meets the median at the most, where most of the work is; ``least_share`` of its seconds belong to
    ``each`` in any case. ``points``: seconds by ``n``, a number of steps or of windows.
    """
    least, most = min(points), max(points)
    # Probed spans may sum to more than the round without probes took: then no overhead is left.
    low_s, high_s = max(0.0, median(points[least])), max(0.0, median(points[most]))
    slope_s = high_s / most if least == most else (high_s - low_s) / (most - least)
    each_s = min(max(slope_s, least_share * high_s / most), high_s / most)
    return each_s, max(0.0, high_s - most * each_s)


def pace(points: Mapping[int, Sequence[float]], flops: float) -> Pace:
    """Fit ``call_s + rows * flops / flops_per_s``; ``points``: seconds by rows; ``flops``: FLOPs of a row."""
    window_s, call_s = line(points, LEAST_SHARE)
    return Pace(call_s=call_s, flops_per_s=flops / max(window_s, 1e-12))


def _per_step(rounds: Sequence[TimedRound], seconds: Callable[[TimedRound], float]) -> tuple[float, float]:
    """Seconds of a step and of a round, of those that ``seconds`` tells of each round."""
    points: dict[int, list[float]] = {}
    for timed in rounds:
        points.setdefault(timed.load.num_steps, []).append(seconds(timed))
    return line(points)


def fit_optimizer(rounds: Sequence[TimedRound]) -> tuple[float, float, float]:
    """Seconds of an optimizer step: constant, per tensor and per value; non-negative least squares."""
    steps = [
        (1.0, float(r.num_tensors), r.load.optimizer_flops / r.load.num_steps / ADAM_FLOPS_PER_VALUE) for r in rounds
    ]
    seconds = np.array([r.times.optimizer_s / r.load.num_steps for r in rounds])
    # Relative errors: a step over a head should fit as well as one over everything.
    scaled = np.array(steps) / seconds[:, None]
    constant_s, tensor_s, value_s = _positive_fit(scaled).tolist()
    return constant_s, tensor_s, value_s


def _positive_fit(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Coefficients that bring every row to 1, by least squares; negative ones are removed, the most negative first."""
    coefficients, kept = np.zeros(rows.shape[1]), list(range(rows.shape[1]))
    while kept:
        solved = np.linalg.lstsq(rows[:, kept], np.ones(len(rows)), rcond=None)[0]
        if solved.min() >= 0:
            coefficients[kept] = solved
            break
        kept.pop(int(solved.argmin()))
    return coefficients


def _points(rounds: Iterable[TimedRound]) -> dict[_Key, dict[int, list[float]]]:
    points: dict[_Key, dict[int, list[float]]] = {}
    for span in (s for r in rounds for s in r.spans):
        points.setdefault((span.stage, span.phase), {}).setdefault(span.rows, []).append(span.seconds)
    return points


def _flops(rounds: Iterable[TimedRound]) -> dict[_Key, float]:
    """FLOPs of a window by stage and phase; a forward pass has the same number with and without gradient."""
    flops: dict[_Key, float] = {}
    for run in (run for r in rounds for run in r.load.runs):
        flops[run.stage, "live"] = flops[run.stage, "frozen"] = run.forward_flops
        if run.mode is not None:
            flops[run.stage, run.mode] = run.backward_flops
    return flops


# A step of everything that takes longer is profiled on fewer windows; such a round that takes longer has fewer epochs.
_MAX_STEP_S, _MAX_ROUND_S = 0.8, 0.4

_STEPS_PER_EPOCH = 2
EPOCHS, _SMALLEST_BATCH = 4, 4

# Names of the scenarios that the fit needs: all groups trained, the last group alone, and that with more epochs.
EVERYTHING, LEAST, LEAST_LONG = "everything", "last group", "last group, more epochs"


def profile_device(config: ExperimentConfig, types: Sequence[str], turns: int) -> Profile:
    """This machine's profile from ``turns`` passes over all scenarios.

    Raises:
        UserError: the configuration's data or weights are not there.
    """
    profiler = Profiler(config)
    for _ in range(turns):
        profiler.turn()
    return profiler.profile(types)


class Profiler:
    """Profiles this machine for a configuration's backbone, data shape, batch size and engine, turn by turn."""

    def __init__(self, config: ExperimentConfig) -> None:
        """Open the data, build the backbone and train every scenario once to warm up.

        Raises:
            UserError: the configuration's data or weights are not there.
        """
        self._load_before = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        use_threads(config.runtime.num_threads)
        self._bench = open_bench(prepare(config))
        layout, modalities = self._bench.setup.layout, self._bench.setup.fleet.modalities
        self._rows, epochs = fitting(self._bench, config.training.batch_size)
        self._scenarios = scenarios(layout, modalities, self._rows, epochs)
        self._timed: dict[str, list[TimedRound]] = {scenario.name: [] for scenario in self._scenarios}
        self._watts: list[float | None] = []
        for scenario in self._scenarios:
            self._bench.train(scenario)

    def turn(self) -> None:
        """Time every scenario once, and measure the board's power meanwhile where it tells it."""
        with PowerMeter(board_root()) as meter:
            for scenario in self._scenarios:
                self._timed[scenario.name].append(self._bench.train(scenario))
        self._watts.append(mean_w(meter))

    def profile(self, types: Sequence[str]) -> Profile:
        """Medians over all turns; each of the device ``types`` is this machine, with the fleet's link."""
        timed, setup = self._timed, self._bench.setup
        full, least = timed[EVERYTHING], [*timed[LEAST], *timed[LEAST_LONG]]
        machine, watts, walls_s = machine_facts(), [w for w in self._watts if w is not None], [r.wall_s for r in full]
        conditions = Conditions(
            cpu=machine.cpu,
            num_cores=machine.num_cores,
            num_threads=machine.num_threads,
            torch=machine.torch,
            torch_build=torch_build(),
            date=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
            commit=commit() or f"sources {source_digest()[:12]}",
            settings={BATCH: self._rows, **profile_settings(setup.config, self._bench.plain.backbone.shape)},
            turns=len(walls_s),
            spread=spread(walls_s),
            load_before=self._load_before,
            device=device_name(setup.job.trainer.device),
            power_w=median(watts) if watts else None,
            power_mode=power_mode(board_root()),
        )
        row = device_row(self._bench, full, least, [r for rounds in timed.values() for r in rounds])
        processor = f"{conditions.cpu}, threads: {conditions.num_threads}"
        return Profile(
            origin=f"MEASURED {conditions.date}, {processor if conditions.device == 'cpu' else conditions.device}",
            backbone=backbone_name(setup.config.backbone),
            engine=setup.engine,
            measured=conditions,
            devices=dict.fromkeys(types, row),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """Two trainers of one backbone, one of them with probes.

    Attributes:
        setup: the configuration's data shape, costs and start model.
        plain: trains without probes, for total times.
        probed: trains with probes, for the times of stages.
        probes: collects the spans of ``probed``.
    """

    setup: Setup
    plain: Trainer
    probed: Trainer
    probes: Probes

    def load(self, scenario: Scenario) -> Workload:
        """The cost model's workload of a scenario."""
        counter, num_windows = self.setup.accountant.counter, _STEPS_PER_EPOCH * scenario.rows
        return footprint(
            counter.costs,
            scenario.present,
            shares(self.setup.layout, self.setup.layout.select(scenario.groups)),
            self.setup.engine,
            counter.missing,
        ).workload(
            num_windows=num_windows,
            epochs=scenario.epochs,
            num_steps=num_steps(num_windows, scenario.epochs, scenario.rows),
        )

    def train(self, scenario: Scenario) -> TimedRound:
        """Train a scenario twice, since probes take time themselves: total times are measured without them."""
        wall_s, update = self._round(scenario, self.plain, _APART if self.setup.engine == "fused" else ClientProgram())
        self._round(scenario, self.probed, ClientProgram(objective=self.probes.objective, is_mean=True))
        return TimedRound(
            load=self.load(scenario),
            num_tensors=sum(len(self.plain.backbone.parameters[j]) for j in scenario.groups),
            wall_s=wall_s,
            times=update.receipt.work.measured,
            spans=tuple(self.probes.take()),
        )

    def _round(self, scenario: Scenario, trainer: Trainer, program: ClientProgram) -> tuple[float, Update]:
        backbone, groups = trainer.backbone, scenario.groups
        data = noise(backbone, scenario.present, _STEPS_PER_EPOCH * scenario.rows)
        context, task = lone_client(backbone, data, groups, scenario.epochs, self.setup.start)
        trainer.config = replace(trainer.config, batch_size=scenario.rows)
        began = perf_counter()
        update = trainer.train(context, task, data, program)
        return perf_counter() - began, update


def open_bench(setup: Setup) -> Bench:
    """Build two trainers, each with its own copy of the setup's backbone."""
    use_device(setup.job.trainer.device)
    plain, probed = (Trainer(setup.job.build(), setup.job.trainer) for _ in range(2))
    on_gpu = probed.device.type == "cuda"
    return Bench(setup=setup, plain=plain, probed=probed, probes=Probes(probed.backbone, on_gpu))


def fitting(bench: Bench, batch_size: int) -> tuple[int, int]:
    """Windows of a batch and epochs of a round that keep to 0.8 s a step and 0.4 s a round on this machine."""
    small = min(_SMALLEST_BATCH, batch_size)
    scenario = scenarios(bench.setup.layout, bench.setup.fleet.modalities, small, 1)[0]
    window_s = min(bench.train(scenario).wall_s for _ in range(2)) / _STEPS_PER_EPOCH / small
    rows = max(small, min(batch_size, int(_MAX_STEP_S / window_s)))
    return rows, max(1, min(EPOCHS, int(_MAX_ROUND_S / (_STEPS_PER_EPOCH * rows * window_s))))


def device_row(
    bench: Bench, full: Sequence[TimedRound], least: Sequence[TimedRound], rounds: Sequence[TimedRound]
) -> Throughput:
    """A profile's row: paces of phases from the rounds that train everything (``full``), of stages from all ``rounds``.

    ``least``: the rounds that train the last group alone. They train almost nothing and differ in their number of
    steps, which separates the overhead of a step from that of a round.
    """
    times = StageTimes(
        forward_s=median(r.times.forward_s for r in full),
        backward_s=median(r.times.backward_s for r in full),
        optimizer_s=median(r.times.optimizer_s for r in full),
    )
    backbone, (constant_s, tensor_s, value_s) = bench.plain.backbone, fit_optimizer(rounds)
    points, flops = _points(rounds), _flops(rounds)
    trained = {run.stage for r in rounds for run in r.load.runs if run.optimizer_flops}
    stages = {}
    for stage in backbone.stages:
        name, num_tensors = stage.spec.id, sum(len(backbone.parameters[j]) for j in stage.spec.groups)
        paces = {p: pace(points[name, p], flops[name, p]) for p in get_args(Phase) if (name, p) in points}
        if not paces:
            continue
        stages[name] = StagePaces(
            live=paces.get("live"),
            frozen=paces.get("frozen"),
            backward={mode: paces[mode] for mode in get_args(BackwardMode) if mode in paces},
            optimizer=Pace(call_s=num_tensors * tensor_s, flops_per_s=ADAM_FLOPS_PER_VALUE / max(value_s, 1e-15))
            if name in trained
            else None,
            step_bytes=stage.step_bytes,
        )
    forward_step_s, forward_round_s = _per_step(least, lambda r: r.left_s(True))
    backward_step_s, backward_round_s = _per_step(least, lambda r: r.left_s(False))
    outside_step_s, outside_round_s = _per_step(least, lambda r: r.wall_s - r.times.compute_s)
    overheads = Overheads(
        forward_step_s=forward_step_s + outside_step_s,
        backward_step_s=backward_step_s,
        optimizer_step_s=constant_s,
        round_s=forward_round_s + backward_round_s + outside_round_s,
    )
    paces_of_stages = Stagewise(
        overheads=overheads,
        chunk=backbone.chunk or CHUNK,
        micro_batch=bench.plain.config.micro_batch,
        stages=stages,
    )
    return throughput(full[0].load, times).model_copy(update={"stagewise": paces_of_stages})


def spread(values: Sequence[float]) -> float:
    """Interquartile range over median, (q3 - q1) / median; 0 for a single value."""
    if len(values) < 2:
        return 0.0
    low, _, high = quantiles(values, n=4, method="inclusive")
    return (high - low) / median(values)


def torch_build() -> str:
    """The instruction set and the libraries that torch computes with."""
    backends = torch.backends
    libraries = [name for name, part in (("MKL", backends.mkl), ("oneDNN", backends.mkldnn)) if part.is_available()]
    return ", ".join([backends.cpu.get_cpu_capability(), *libraries])


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """A short round to time.

    Attributes:
        name: label, unique among the scenarios.
        groups: trained groups.
        present: modalities of the client.
        rows: windows of a batch.
        epochs: epochs of the round.
    """

    name: str
    groups: tuple[GroupId, ...]
    present: tuple[str, ...]
    rows: int
    epochs: int = 1


def scenarios(layout: GroupLayout, modalities: tuple[str, ...], rows: int, epochs: int) -> list[Scenario]:
    """All scenarios: everything, the last group alone, then each of ``groups_to_train`` by modalities and batch size.

    ``rows``: windows of a large batch; ``epochs``: of the rounds that train everything.
    """
    small, first = min(_SMALLEST_BATCH, rows), modalities[:1]
    sizes = [(modalities, rows), *([(modalities, small)] if small < rows else []), (first, rows)]
    everything = Scenario(name=EVERYTHING, groups=layout.ids, present=modalities, rows=rows, epochs=epochs)
    last = replace(everything, groups=layout.ids[-1:])
    return [everything, replace(last, name=LEAST, epochs=1), replace(last, name=LEAST_LONG, epochs=EPOCHS)] + [
        replace(
            everything,
            name=f"{name}, {len(present)} sensors, {size} windows",
            groups=groups,
            present=present,
            rows=size,
        )
        for present, size in sizes
        for name, groups in groups_to_train(layout).items()
        if (groups, present, size) != (everything.groups, modalities, rows)
    ]


def groups_to_train(layout: GroupLayout) -> dict[str, tuple[GroupId, ...]]:
    """Set of trained groups, by name, that time each stage with and without the gradients of weights and of inputs."""
    layers = sorted({g.layer or 0 for g in layout if g.role == "encoder"})
    chosen = {"everything": layout.ids}
    for layer in sorted({layers[0], layers[len(layers) // 2], layers[-1]}):
        chosen[f"layer {layer}"] = tuple(g.id for g in layout if g.role == "encoder" and g.layer == layer)
    chosen["fusion blocks"] = tuple(g.id for g in layout if g.role == "fusion_a")
    chosen["shared"] = tuple(g.id for g in layout if g.role in ("fusion_b", "head"))
    chosen["last"] = layout.ids[-1:]
    return chosen
