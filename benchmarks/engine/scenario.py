"""Scenarios to measure: random windows in the shapes of a real data set, written once, read by every harness."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.engine.eager import Task
from benchmarks.engine.effort import Dataset
from relief_ray.config.experiment import EvaluationConfig, ExperimentConfig, TransferConfig, preset
from relief_ray.config.runtime import RuntimeConfig
from relief_ray.core.federated import RoundContext, Strategy
from relief_ray.core.messages import Assignment, ServerState
from relief_ray.core.stages import Engine
from relief_ray.data import DataConfig, FederatedData
from relief_ray.data.loader import DatasetSpec
from relief_ray.data.registry import get_spec
from relief_ray.data.window_set import WindowSet
from relief_ray.devices.fleet import FleetConfig, build_fleet, with_windows
from relief_ray.experiment.setup import Setup, assemble
from relief_ray.training.config import TrainingConfig

NEVER = 10**6
OURS: Engine = "fused"
STEP = 16  # rows from one window to the next: the signal stays small


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """A federated task on random windows.

    Attributes:
        dataset: data set whose shapes are used.
        num_clients: number of clients.
        num_windows: windows of each client.
        folder: where the windows are written.
        epochs: epochs of a round.
        mixed: device types 3/3/2 of A, B, C; else all of type A.
        seed: seed of the windows.
        transfer: formats on the wire.
    """

    dataset: Dataset
    num_clients: int
    num_windows: int
    folder: Path
    epochs: int = 1
    mixed: bool = False
    seed: int = 0
    transfer: TransferConfig = field(default_factory=TransferConfig)

    @property
    def spec(self) -> DatasetSpec:
        """The data set whose shapes are used."""
        return get_spec(self.dataset)

    @property
    def task(self) -> Task:
        """The task as the bare harnesses read it."""
        training = TrainingConfig()
        return Task(
            channels=self.spec.modalities,
            window=self.spec.window,
            num_classes=len(self.spec.classes),
            num_clients=self.num_clients,
            num_windows=self.num_windows,
            epochs=self.epochs,
            batch_size=training.batch_size,
            lr=training.lr,
            seed=self.seed,
        )


def write(scenario: Scenario, peers: bool = True) -> Scenario:
    """Write the signal and, for the ``peers``, every client's windows, labels and the initial model."""
    scenario.folder.mkdir(parents=True, exist_ok=True)
    spec, rng = scenario.spec, np.random.default_rng(scenario.seed)
    rows = scenario.num_clients * scenario.num_windows * STEP + spec.window
    np.save(scenario.folder / "signal.npy", rng.standard_normal((rows, sum(c for _, c in spec.modalities)), np.float32))
    if peers:
        _write_for_peers(scenario)
    return scenario


def _write_for_peers(scenario: Scenario) -> None:
    sets = window_sets(scenario)
    for modality in scenario.spec.names:
        np.save(scenario.folder / f"{modality}.npy", np.stack([s.load([modality])[modality] for s in sets]))
    np.save(scenario.folder / "labels.npy", np.stack([s.labels for s in sets]))
    np.save(scenario.folder / "start.npy", start_of(setup(scenario)).numpy())
    (scenario.folder / "task.json").write_text(json.dumps(asdict(scenario.task)))


def start_of(setup: Setup) -> torch.Tensor:
    """The initial model as one vector."""
    return setup.layout.flatten(setup.start)


def window_sets(scenario: Scenario) -> tuple[WindowSet, ...]:
    """Every client's windows over the one signal; labels are random, since speed does not depend on them."""
    spec, rng = scenario.spec, np.random.default_rng(scenario.seed + 1)
    labels = rng.integers(0, len(spec.classes), (scenario.num_clients, scenario.num_windows))
    return tuple(_windows(scenario, n, labels[n]) for n in range(scenario.num_clients))


def _windows(scenario: Scenario, client: int, labels: NDArray[np.int64]) -> WindowSet:
    spec, number = scenario.spec, scenario.num_windows
    num_channels = sum(c for _, c in spec.modalities)
    return WindowSet(
        signal_path=str(scenario.folder / "signal.npy"),
        starts=(client * number + np.arange(number)) * STEP,
        labels=labels,
        subjects=np.full(number, client % len(spec.subjects), np.int16),
        window=spec.window,
        columns=spec.columns(),
        mean=np.zeros(num_channels, np.float32),
        std=np.ones(num_channels, np.float32),
    )


def federated(scenario: Scenario) -> FederatedData:
    """The scenario as the product's data."""
    sets = window_sets(scenario)
    return FederatedData(
        spec=scenario.spec,
        digest=f"benchmark-{scenario.dataset}-{scenario.num_clients}-{scenario.num_windows}-{scenario.seed}",
        origin="SYNTHETIC",
        clients=sets,
        validation=sets[0],
        coverage={
            "classes": list(scenario.spec.classes),
            "clients": [],
            "train": [],
            "validation": [],
            "test": [],
            "single_class_clients": [],
            "window_s": scenario.spec.window_s,
        },
        test_or_none=sets[0],
    )


def configure(
    scenario: Scenario, strategy: str = "fedavg", engine: Engine = OURS, num_hosts: int = 2, rounds: int = NEVER
) -> ExperimentConfig:
    """The product's defaults but for the work: no evaluation until the last round."""
    return ExperimentConfig(
        name="benchmark",
        strategy=preset(strategy),
        data=DataConfig(name=scenario.dataset, num_clients=scenario.num_clients),
        fleet=FleetConfig(types={} if scenario.mixed else {"A": {"count": scenario.num_clients}}),
        training=TrainingConfig(epochs=scenario.epochs, engine=engine),
        evaluation=EvaluationConfig(every=NEVER),
        runtime=RuntimeConfig(mode="packed", num_hosts=num_hosts),
        transfer=scenario.transfer,
        rounds=rounds,
        seed=scenario.seed,
    )


def setup(
    scenario: Scenario, strategy: str = "fedavg", engine: Engine = OURS, num_hosts: int = 2, rounds: int = NEVER
) -> Setup:
    """The product, ready to run on the scenario."""
    config = configure(scenario, strategy, engine, num_hosts, rounds)
    spec = scenario.spec
    fleet, types = build_fleet(config.fleet, spec.names, (None,) * scenario.num_clients, spec.name)
    return assemble(
        config, federated(scenario), with_windows(fleet, [scenario.num_windows] * len(fleet)), types, engine
    )


def without_training(prepared: Setup) -> Setup:
    """The same rounds with no epoch in them: weights out, nothing trained, weights back, summed, recorded."""
    return replace(prepared, strategy=idle(prepared.strategy))


def idle(strategy: Strategy) -> Strategy:
    """The strategy with zero epochs for everybody."""
    return replace(strategy, allocate=partial(_idle, strategy))


def _idle(strategy: Strategy, state: ServerState, context: RoundContext) -> tuple[Assignment, ...]:
    return tuple(replace(task, epochs=0) for task in strategy.allocate(state, context))
