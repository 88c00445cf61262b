"""The work: random windows in the shapes of a real data set, written once, seen by every harness."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.engine.eager import Task
from benchmarks.engine.effort import Dataset
from relief_ray.config import EvaluationConfig, ExperimentConfig, RuntimeConfig, preset
from relief_ray.data import DataConfig, FederatedData
from relief_ray.data.loader import DatasetSpec
from relief_ray.data.registry import get_spec
from relief_ray.data.window_set import WindowSet
from relief_ray.devices.fleet import FleetConfig, build_fleet, with_windows
from relief_ray.experiment.setup import Setup, assemble
from relief_ray.federated import RoundContext, Strategy
from relief_ray.messages import Assignment, ServerState
from relief_ray.stages import Engine
from relief_ray.training.config import TrainingConfig

NEVER = 10**6
STEP = 16  # rows from one window to the next: the signal stays small


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """``num_clients`` clients with ``num_windows`` windows each; ``mixed``: types 3/3/2, else all of type A."""

    dataset: Dataset
    num_clients: int
    num_windows: int
    folder: Path
    epochs: int = 1
    mixed: bool = False
    seed: int = 0

    @property
    def spec(self) -> DatasetSpec:
        """The data set whose shapes are used."""
        return get_spec(self.dataset)

    @property
    def task(self) -> Task:
        """What the bare harnesses need to know."""
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


def write(scene: Scene, peers: bool = True) -> Scene:
    """Writes the signal and, for the ``peers``, every client's windows, labels and the initial model."""
    scene.folder.mkdir(parents=True, exist_ok=True)
    spec, rng = scene.spec, np.random.default_rng(scene.seed)
    rows = scene.num_clients * scene.num_windows * STEP + spec.window
    np.save(scene.folder / "signal.npy", rng.standard_normal((rows, sum(c for _, c in spec.modalities)), np.float32))
    if peers:
        _write_for_peers(scene)
    return scene


def _write_for_peers(scene: Scene) -> None:
    sets = window_sets(scene)
    for modality in scene.spec.names:
        np.save(scene.folder / f"{modality}.npy", np.stack([s.load([modality])[modality] for s in sets]))
    np.save(scene.folder / "labels.npy", np.stack([s.labels for s in sets]))
    np.save(scene.folder / "start.npy", start_of(setup(scene)).numpy())
    (scene.folder / "task.json").write_text(json.dumps(asdict(scene.task)))


def start_of(setup: Setup) -> torch.Tensor:
    """The initial model as one vector."""
    return setup.layout.flatten(setup.start)


def window_sets(scene: Scene) -> tuple[WindowSet, ...]:
    """Every client's windows over the one signal; labels are random, since speed does not depend on them."""
    spec, rng = scene.spec, np.random.default_rng(scene.seed + 1)
    labels = rng.integers(0, len(spec.classes), (scene.num_clients, scene.num_windows))
    return tuple(_windows(scene, n, labels[n]) for n in range(scene.num_clients))


def _windows(scene: Scene, client: int, labels: NDArray[np.int64]) -> WindowSet:
    spec, number = scene.spec, scene.num_windows
    num_channels = sum(c for _, c in spec.modalities)
    return WindowSet(
        signal_path=str(scene.folder / "signal.npy"),
        starts=(client * number + np.arange(number)) * STEP,
        labels=labels,
        subjects=np.full(number, client % len(spec.subjects), np.int16),
        window=spec.window,
        columns=spec.columns(),
        mean=np.zeros(num_channels, np.float32),
        std=np.ones(num_channels, np.float32),
    )


def federated(scene: Scene) -> FederatedData:
    """The scene as the product's data."""
    sets = window_sets(scene)
    return FederatedData(
        spec=scene.spec,
        digest=f"benchmark-{scene.dataset}-{scene.num_clients}-{scene.num_windows}-{scene.seed}",
        origin="SYNTHETIC",
        clients=sets,
        validation=sets[0],
        validation_by_client=sets,
        coverage={
            "classes": list(scene.spec.classes),
            "clients": [],
            "train": [],
            "validation": [],
            "test": [],
            "single_class_clients": [],
            "notes": {},
            "overlap": 0.0,
        },
        test_or_none=sets[0],
    )


def configure(
    scene: Scene, strategy: str = "fedavg", engine: Engine = "gemm", num_hosts: int = 2, rounds: int = NEVER
) -> ExperimentConfig:
    """The product's defaults but for the work: no evaluation until the last round."""
    return ExperimentConfig(
        name="benchmark",
        strategy=preset(strategy),
        data=DataConfig(name=scene.dataset, num_clients=scene.num_clients),
        fleet=FleetConfig(counts=None if scene.mixed else (1, 0, 0)),
        training=TrainingConfig(epochs=scene.epochs, engine=engine),
        evaluation=EvaluationConfig(every=NEVER),
        runtime=RuntimeConfig(mode="packed", num_hosts=num_hosts),
        rounds=rounds,
        seed=scene.seed,
    )


def setup(
    scene: Scene, strategy: str = "fedavg", engine: Engine = "gemm", num_hosts: int = 2, rounds: int = NEVER
) -> Setup:
    """The product, ready to run on the scene."""
    config = configure(scene, strategy, engine, num_hosts, rounds)
    spec = scene.spec
    fleet, types = build_fleet(config.fleet, spec.names, spec.type_counts, scene.num_clients)
    return assemble(config, federated(scene), with_windows(fleet, [scene.num_windows] * len(fleet)), types, engine)


def without_training(given: Setup) -> Setup:
    """The same rounds with no epoch in them: weights out, nothing trained, weights back, summed, recorded."""
    return replace(given, strategy=idle(given.strategy))


def idle(strategy: Strategy) -> Strategy:
    """The strategy with zero epochs for everybody."""
    return replace(strategy, allocate=partial(_idle, strategy))


def _idle(strategy: Strategy, state: ServerState, context: RoundContext) -> tuple[Assignment, ...]:
    return tuple(replace(task, epochs=0) for task in strategy.allocate(state, context))
