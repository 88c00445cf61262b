"""Part 7: what records and MLflow cost a round in which nothing is trained, on the way that ``relief-ray run`` takes.

A run goes through ``run_experiment``: a coordinator of its own, two hosts, every round recorded, hashed and saved. With
MLflow, the driver's process tells a SQLite store beside the run; what is not told when the run ends is told after it.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter

from actors.launch import RunCallbacks, run_experiment
from actors.runtime.warm_pool import WorkerCache
from actors.terminal.mlflow_export import Exports
from benchmarks.engine.machine import Figures
from benchmarks.engine.noop import scene_of
from benchmarks.engine.pairs import averaged, take_turns, timed
from benchmarks.engine.product import Product
from benchmarks.engine.scene import NEVER, setup, without_training, write
from relief_ray.config import TrackingConfig
from relief_ray.experiment.recording import run_record
from relief_ray.experiment.setup import Setup, context_of
from relief_ray.federated import run_round
from relief_ray.protocols import Executor
from relief_ray.records.checkpoint import CheckpointStateStore
from relief_ray.records.run_folder import RunFolder
from relief_ray.records.schema import RoundRecord
from relief_ray.records.tracking import sync

NUM_CLIENTS = 8
# Hosts learn the job and what clients take in the first ones; the last one is also evaluated.
FIRST, LAST = 3, 1
UNTOLD: tuple[str, ...] = ("run_mlflow_s", "mlflow_cost_s", "run_mlflow_vs_run", "export_after_s", "points_left")


def measure(folder: Path, num_turns: int, num_rounds: int) -> Figures:
    """Seconds of a round without record, with it, through ``run_experiment``, and with MLflow; in a Ray session."""
    scene = write(scene_of(folder / "recording", NUM_CLIENTS), peers=False)
    endless = without_training(setup(scene))
    found = _records(endless, scene.folder / "in-process", num_turns, num_rounds)
    given = without_training(setup(scene, rounds=FIRST + num_rounds + LAST))
    found |= _tracking(given, scene.folder / "runs", num_turns, num_rounds)
    found |= {"turns": num_turns, "rounds": num_rounds}
    return {f"recording_n{NUM_CLIENTS}_{key}": value for key, value in found.items()}


class Bare:
    """Rounds of which nothing remains: models out, sums back, aggregated, billed; not hashed, recorded or saved."""

    def __init__(self, given: Setup, executor: Executor) -> None:
        self._given, self._executor, self._round = given, executor, 0
        self.state = given.strategy.init(given.layout, given.fleet, given.streams, given.start)
        self._store = CheckpointStateStore({})

    def step(self) -> None:
        """One round."""
        self._round += 1
        context = context_of(self._given, self._round)
        given = self._given
        result = run_round(given.strategy, self.state, context, self._executor, self._store, given.accountant)
        self._store.commit()
        self.state = result.state


def _records(given: Setup, path: Path, num_turns: int, num_rounds: int) -> Figures:
    with closing(Product(given, path)) as product:
        assert product.executor is not None
        bare, unsaved = (
            Bare(given, product.executor),
            Product(_unsaved(given), path.with_name("unsaved"), product.executor),
        )
        product.run(FIRST)
        unsaved.run(FIRST)
        timed(bare.step)(FIRST)
        harnesses = {
            "recorded": averaged(product.segment),
            "unsaved": averaged(unsaved.segment),
            "bare": averaged(timed(bare.step)),
        }
        times = take_turns(harnesses, num_turns, num_rounds)
        unsaved.close()
    return {
        "bare_s": times.median_s("bare"),
        "unsaved_s": times.median_s("unsaved"),
        "recorded_s": times.median_s("recorded"),
        "checkpoint_cost_s": times.difference_s("recorded", "unsaved"),
        "records_cost_s": times.difference_s("recorded", "bare"),
        "recorded_vs_bare": times.ratio("recorded", "bare"),
    }


def _unsaved(given: Setup) -> Setup:
    """The same without checkpoints but the last one."""
    record = given.config.record.model_copy(update={"checkpoint_every": NEVER})
    return replace(given, config=given.config.model_copy(update={"record": record}))


def _tracking(given: Setup, folder: Path, num_turns: int, num_rounds: int) -> Figures:
    with closing(Runs(given, folder)) as runs:
        if find_spec("mlflow") is None:
            times = take_turns({"run": runs.untold}, num_turns, num_rounds)
            return {"run_s": times.median_s("run"), **dict.fromkeys(UNTOLD)}
        runs.told(num_rounds)  # imports MLflow and makes its tables: once per process and store
        runs.export_s.clear()
        times = take_turns({"run": runs.untold, "mlflow": runs.told}, num_turns, num_rounds)
        return {
            "run_s": times.median_s("run"),
            "run_mlflow_s": times.median_s("mlflow"),
            "mlflow_cost_s": times.difference_s("mlflow", "run"),
            "run_mlflow_vs_run": times.ratio("mlflow", "run"),
            "export_after_s": median(runs.export_s),
            "points_left": sync(runs.last).num_points,
        }


class Runs:
    """Runs of one experiment, each in its own folder, on the same hosts and coordinator."""

    def __init__(self, given: Setup, folder: Path) -> None:
        self._given, self._folder, self._worker_cache, self._number = given, folder, WorkerCache(), 0
        self.export_s: list[float] = []
        self.last = folder

    def untold(self, num_rounds: int) -> list[float]:
        """The mean round of a run whose folder is all that remains."""
        return [self._run(TrackingConfig(enabled=False), num_rounds)]

    def told(self, num_rounds: int) -> list[float]:
        """The mean round of a run that is told to MLflow meanwhile; ``export_s``: how much longer the telling took."""
        return [self._run(TrackingConfig(), num_rounds)]

    def _run(self, tracking: TrackingConfig, num_rounds: int) -> float:
        self._number += 1
        self.last = path = self._folder / str(self._number)
        RunFolder.create(path, run_record(self._given)).close()
        exports, ended = Exports(print), list[float]()
        tracker = exports.begin(tracking, path)

        def on_round(record: RoundRecord) -> None:
            ended.append(record.ended_unix_s)
            tracker.round(record)

        try:
            run_experiment(self._given, path, RunCallbacks(on_round=on_round, on_note=print), self._worker_cache)
        finally:
            exports.end(tracker, path)
            began = perf_counter()
            exports.close()
            self.export_s.append(perf_counter() - began)
        assert len(ended) == FIRST + num_rounds + LAST, f"{len(ended)} rounds"
        return (ended[FIRST + num_rounds - 1] - ended[FIRST - 1]) / num_rounds

    def close(self) -> None:
        """Ends hosts and coordinator."""
        self._worker_cache.close()
