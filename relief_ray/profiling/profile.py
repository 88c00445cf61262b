"""Measures this machine's speed at a backbone's stages: the rows of a device profile (docs/costs.md).

Short rounds of several scenarios alternate: different trained groups, two batch sizes, all modalities or the first
alone, with the trainer that runs experiments. Every stage is timed in place; paces are medians over all turns.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from statistics import median, quantiles
from time import perf_counter

import torch

from relief_ray.config.experiment import ExperimentConfig
from relief_ray.core.client import ClientContext, ClientProgram
from relief_ray.core.groups import GroupId, GroupLayout
from relief_ray.core.messages import NO_STATE, Assignment, ClientInfo, StageTimes, Update
from relief_ray.core.streams import Streams
from relief_ray.devices.board.facts import board_root, power_mode
from relief_ray.devices.meter import PowerMeter, mean_w
from relief_ray.devices.time import Conditions, Profile, Throughput, throughput
from relief_ray.devices.workload import Workload, num_steps, shares, workload
from relief_ray.experiment.clocks import BATCH, profile_settings
from relief_ray.experiment.setup import Setup, prepare
from relief_ray.models.backbone import Backbone
from relief_ray.models.registry import backbone_name
from relief_ray.profiling.fit import TimedRound, stagewise
from relief_ray.profiling.probe import Probes
from relief_ray.records.identity import commit, machine_facts
from relief_ray.support.process import device_name, use_device, use_threads
from relief_ray.training.forward_plan import CHUNK
from relief_ray.training.inputs import CPU, ClientInputs
from relief_ray.training.trainer import Trainer

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
        conditions = describe(setup, self._rows, [r.wall_s for r in full], self._load_before, self._watts)
        row = device_row(self._bench, full, least, [r for rounds in timed.values() for r in rounds])
        return Profile(
            origin=f"MEASURED {conditions.date}, {_place(conditions)}",
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
        return workload(
            counter.costs,
            present=scenario.present,
            trained=shares(self.setup.layout, self.setup.layout.select(scenario.groups)),
            num_windows=num_windows,
            epochs=scenario.epochs,
            num_steps=num_steps(num_windows, scenario.epochs, scenario.rows),
            engine=self.setup.engine,
            missing=counter.missing,
        )

    def train(self, scenario: Scenario) -> TimedRound:
        """Train a scenario twice, since probes take time themselves: total times are measured without them."""
        wall_s, update = self._round(scenario, self.plain, ClientProgram())
        self._round(scenario, self.probed, ClientProgram(objective=self.probes.objective, is_mean=True))
        return TimedRound(
            load=self.load(scenario),
            num_tensors=sum(len(self.plain.backbone.parameters[j]) for j in scenario.groups),
            wall_s=wall_s,
            times=update.receipt.work.measured,
            spans=tuple(self.probes.take()),
        )

    def _round(self, scenario: Scenario, trainer: Trainer, program: ClientProgram) -> tuple[float, Update]:
        layout, num_windows = self.setup.layout, _STEPS_PER_EPOCH * scenario.rows
        info = ClientInfo(id=0, name="bench", device="A", modalities=scenario.present, num_windows=num_windows)
        context = ClientContext(
            info=info, round=1, layout=layout, start=self.setup.start, state=NO_STATE, streams=Streams(seed=0)
        )
        chosen = layout.select(scenario.groups)
        task = Assignment(client=0, down=layout.select(), train=chosen, up=chosen, epochs=scenario.epochs)
        inputs = noise(trainer.backbone, scenario.present, num_windows, trainer.device)
        trainer.config = replace(trainer.config, batch_size=scenario.rows)
        began = perf_counter()
        update = trainer.train(context, task, inputs, program)
        return perf_counter() - began, update


def open_bench(setup: Setup) -> Bench:
    """Build two trainers, each with its own copy of the setup's backbone."""
    use_device(setup.job.trainer.device)
    plain, probed = (Trainer(setup.job.build(), setup.job.trainer) for _ in range(2))
    on_gpu = probed.device.type == "cuda"
    return Bench(setup=setup, plain=plain, probed=probed, probes=Probes(probed.backbone, on_gpu))


def noise(backbone: Backbone, present: Sequence[str], num_windows: int, device: torch.device = CPU) -> ClientInputs:
    """Seeded noise in the data's shape, on the device that trains: speed does not depend on what was recorded."""
    shape, make = backbone.shape, torch.Generator().manual_seed(0)
    raw = {m: torch.randn(num_windows, c, shape.window, generator=make) for m, c in shape.channels}
    labels = torch.randint(shape.num_classes, (num_windows,), generator=make)
    inputs = {m: backbone.prepare(m, raw[m]).to(device) for m in present}
    return ClientInputs(inputs=inputs, labels=labels.to(device))


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

    ``least``: the rounds that train the last group alone.
    """
    times = StageTimes(
        forward_s=median(r.times.forward_s for r in full),
        backward_s=median(r.times.backward_s for r in full),
        optimizer_s=median(r.times.optimizer_s for r in full),
    )
    backbone = bench.plain.backbone
    tensors = {s.id: sum(len(backbone.parameters[j]) for j in s.groups) for s in backbone.specs}
    kept = {s.spec.id: s.step_bytes for s in backbone.stages}
    paces = stagewise(rounds, least, tensors, backbone.chunk or CHUNK, bench.plain.config.micro_batch, kept)
    return throughput(full[0].load, times).model_copy(update={"stagewise": paces})


def _place(seen: Conditions) -> str:
    """The GPU that the speeds are of, or the processor and its threads."""
    return f"{seen.cpu}, threads: {seen.num_threads}" if seen.device == "cpu" else seen.device


def describe(
    setup: Setup,
    rows: int,
    walls_s: Sequence[float],
    load_before: float | None,
    watts: Sequence[float | None] = (),
) -> Conditions:
    """The machine, software and date of a measurement, with the spread of its total times.

    ``watts``: the board's mean power in every turn, None where it was not measured.
    """
    machine, seen_w = machine_facts(), [w for w in watts if w is not None]
    return Conditions(
        cpu=machine.cpu,
        num_cores=machine.num_cores,
        num_threads=machine.num_threads,
        torch=machine.torch,
        torch_build=torch_build(),
        date=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        commit=commit(),
        settings={BATCH: rows, **profile_settings(setup.config, setup.job.build().shape)},
        turns=len(walls_s),
        spread=spread(walls_s),
        load_before=load_before,
        device=device_name(setup.job.trainer.device),
        power_w=median(seen_w) if seen_w else None,
        power_mode=power_mode(board_root()),
    )


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
