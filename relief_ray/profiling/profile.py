"""Measures what this machine takes for the stages of a backbone: the rows of a device profile (docs/costs.md).

Short rounds of several assignments take turns, at two batch sizes, with all sensors and with the first alone, through
the very trainer that runs experiments. Every stage is timed in place; paces are medians over all turns.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from statistics import median, quantiles
from time import perf_counter

import torch

from relief_ray.config import ExperimentConfig
from relief_ray.devices.time import Conditions, Profile, Throughput, throughput
from relief_ray.devices.workload import Workload, num_steps, shares, workload
from relief_ray.experiment.clocks import BATCH, profile_settings
from relief_ray.experiment.setup import Setup, prepare
from relief_ray.federated import ClientContext, ClientProgram
from relief_ray.messages import NO_STATE, Assignment, ClientInfo, StageTimes, Update
from relief_ray.models.backbone import Backbone
from relief_ray.models.registry import backbone_name
from relief_ray.process import use_threads
from relief_ray.profiling.fit import (
    EPOCHS,
    EVERYTHING,
    LEAST,
    LEAST_LONG,
    SMALLEST_BATCH,
    Scene,
    Turn,
    scenes,
    stagewise,
)
from relief_ray.profiling.probe import Probes
from relief_ray.records.identity import commit, machine_facts
from relief_ray.streams import Streams
from relief_ray.training.forward_plan import CHUNK
from relief_ray.training.inputs import ClientInputs
from relief_ray.training.trainer import Trainer

# A full step that takes longer is profiled on fewer windows; a full round that takes longer has fewer epochs.
MAX_STEP_S, MAX_ROUND_S = 0.8, 0.4

STEPS_PER_EPOCH = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """Two trainers of one backbone, one of them under probes, and what they need to train."""

    setup: Setup
    plain: Trainer
    probed: Trainer
    probes: Probes

    def load(self, scene: Scene) -> Workload:
        """What the cost model makes of a scene."""
        counter, num_windows = self.setup.accountant.counter, STEPS_PER_EPOCH * scene.rows
        return workload(
            counter.costs,
            present=scene.present,
            trained=shares(self.setup.layout, self.setup.layout.select(scene.groups)),
            num_windows=num_windows,
            epochs=scene.epochs,
            num_steps=num_steps(num_windows, scene.epochs, scene.rows),
            engine=self.setup.engine,
            missing=counter.missing,
        )

    def train(self, scene: Scene) -> Turn:
        """Trains it twice: probes take time too, so the whole is timed without them."""
        wall_s, update = self._round(scene, self.plain, ClientProgram())
        self._round(scene, self.probed, ClientProgram(objective=self.probes.objective, is_mean=True))
        return Turn(
            load=self.load(scene),
            num_tensors=sum(len(self.plain.backbone.parameters[j]) for j in scene.groups),
            wall_s=wall_s,
            times=update.receipt.work.measured,
            spans=tuple(self.probes.take()),
        )

    def _round(self, scene: Scene, trainer: Trainer, program: ClientProgram) -> tuple[float, Update]:
        layout, num_windows = self.setup.layout, STEPS_PER_EPOCH * scene.rows
        info = ClientInfo(id=0, name="bench", device="A", modalities=scene.present, num_windows=num_windows)
        context = ClientContext(
            info=info, round=1, layout=layout, start=self.setup.start, state=NO_STATE, streams=Streams(seed=0)
        )
        chosen = layout.select(scene.groups)
        task = Assignment(client=0, down=layout.select(), train=chosen, up=chosen, epochs=scene.epochs)
        inputs = noise(trainer.backbone, scene.present, num_windows)
        trainer.config = replace(trainer.config, batch_size=scene.rows)
        began = perf_counter()
        update = trainer.train(context, task, inputs, program)
        return perf_counter() - began, update


class Profiler:
    """Profiles this machine for a configuration's backbone, data shape, batch size and engine, turn by turn."""

    def __init__(self, config: ExperimentConfig) -> None:
        """Opens the data, builds the backbone and warms up.

        Raises:
            UserError: the configuration's data or weights are not there.
        """
        self._load_before = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        use_threads(config.runtime.num_threads)
        self._bench = open_bench(prepare(config))
        layout, modalities = self._bench.setup.layout, self._bench.setup.fleet.modalities
        self._rows, epochs = fitting(self._bench, config.training.batch_size)
        self._scenes = scenes(layout, modalities, self._rows, epochs)
        self._seen: dict[str, list[Turn]] = {scene.name: [] for scene in self._scenes}
        for scene in self._scenes:
            self._bench.train(scene)

    def turn(self) -> None:
        """Every scene once."""
        for scene in self._scenes:
            self._seen[scene.name].append(self._bench.train(scene))

    def profile(self, types: Sequence[str]) -> Profile:
        """Medians over all turns; each of the device ``types`` is this machine, with the fleet's own link."""
        seen, setup = self._seen, self._bench.setup
        full, least = seen[EVERYTHING], [*seen[LEAST], *seen[LEAST_LONG]]
        conditions = describe(setup, self._rows, [t.wall_s for t in full], self._load_before)
        row = device_row(self._bench, full, least, [t for taken in seen.values() for t in taken])
        return Profile(
            origin=f"MEASURED {conditions.date}, {conditions.cpu}, threads: {conditions.num_threads}",
            backbone=backbone_name(setup.config.backbone),
            engine=setup.engine,
            measured=conditions,
            devices=dict.fromkeys(types, row),
        )


def profile_device(config: ExperimentConfig, types: Sequence[str], turns: int) -> Profile:
    """This machine's profile from so many turns.

    Raises:
        UserError: the configuration's data or weights are not there.
    """
    profiler = Profiler(config)
    for _ in range(turns):
        profiler.turn()
    return profiler.profile(types)


def open_bench(setup: Setup) -> Bench:
    """Trainers of their own for the setup's backbone."""
    config = replace(setup.job.trainer, device="cpu")
    plain, probed = (Trainer(setup.job.build(), config) for _ in range(2))
    return Bench(setup=setup, plain=plain, probed=probed, probes=Probes(probed.backbone))


def noise(backbone: Backbone, present: Sequence[str], num_windows: int) -> ClientInputs:
    """Seeded noise in the data's shape: speed does not depend on what was recorded."""
    shape, make = backbone.shape, torch.Generator().manual_seed(0)
    raw = {m: torch.randn(num_windows, c, shape.window, generator=make) for m, c in shape.channels}
    labels = torch.randint(shape.num_classes, (num_windows,), generator=make)
    return ClientInputs(inputs={m: backbone.prepare(m, raw[m]) for m in present}, labels=labels)


def fitting(bench: Bench, batch_size: int) -> tuple[int, int]:
    """Windows in a batch, and epochs in a round, that this machine manages in fair time."""
    small = min(SMALLEST_BATCH, batch_size)
    scene = scenes(bench.setup.layout, bench.setup.fleet.modalities, small, 1)[0]
    window_s = min(bench.train(scene).wall_s for _ in range(2)) / STEPS_PER_EPOCH / small
    rows = max(small, min(batch_size, int(MAX_STEP_S / window_s)))
    return rows, max(1, min(EPOCHS, int(MAX_ROUND_S / (STEPS_PER_EPOCH * rows * window_s))))


def device_row(bench: Bench, full: Sequence[Turn], least: Sequence[Turn], turns: Sequence[Turn]) -> Throughput:
    """Whole phases from the full rounds, stages from all."""
    times = StageTimes(
        forward_s=median(t.times.forward_s for t in full),
        backward_s=median(t.times.backward_s for t in full),
        optimizer_s=median(t.times.optimizer_s for t in full),
    )
    backbone = bench.plain.backbone
    tensors = {s.id: sum(len(backbone.parameters[j]) for j in s.groups) for s in backbone.specs}
    kept = {s.spec.id: s.step_bytes for s in backbone.stages}
    paces = stagewise(turns, least, tensors, backbone.chunk or CHUNK, bench.plain.config.micro_batch, kept)
    return throughput(full[0].load, times).model_copy(update={"stagewise": paces})


def describe(setup: Setup, rows: int, walls_s: Sequence[float], load_before: float | None) -> Conditions:
    """Where, when and with what it was measured."""
    machine = machine_facts()
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
    )


def spread(values: Sequence[float]) -> float:
    """(q3 - q1) / median; 0 for a single value."""
    if len(values) < 2:
        return 0.0
    low, _, high = quantiles(values, n=4, method="inclusive")
    return (high - low) / median(values)


def torch_build() -> str:
    """Instruction set and libraries that torch computes with."""
    backends = torch.backends
    found = [name for name, part in (("MKL", backends.mkl), ("oneDNN", backends.mkldnn)) if part.is_available()]
    return ", ".join([backends.cpu.get_cpu_capability(), *found])
