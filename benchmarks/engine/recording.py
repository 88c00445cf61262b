"""Part 7: what records and MLflow cost a round in which nothing is trained, on the way that ``relief-ray run`` takes.

A run goes through ``run_experiment``: this process with two hosts, every round recorded, hashed and saved. With
MLflow, the driver's process exports to a SQLite store beside the run; the rest is exported after the run's end.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter

from actors.runtime.single_run import Hooks, run_experiment
from actors.runtime.warm_pool import WorkerCache
from benchmarks.engine.machine import Figures
from benchmarks.engine.noop import scenario_of
from benchmarks.engine.pairs import averaged, take_turns, timed
from benchmarks.engine.product import Product
from benchmarks.engine.scenario import NEVER, setup, without_training, write
from relief_ray.core.federated import run_round
from relief_ray.core.protocols import Executor
from relief_ray.experiment.recording import run_record
from relief_ray.experiment.setup import Setup, context_of
from relief_ray.records.checkpoint import CheckpointStateStore
from relief_ray.records.run_folder import ROUNDS_FILE, RunFolder, read_rounds
from relief_ray.records.sync.mlflow import MlflowTarget, sync
from relief_ray.records.sync.sender import Senders

NUM_CLIENTS = 8
# Hosts learn the job and what clients take in the first ones; the last one is also evaluated.
FIRST, LAST = 3, 1
UNTOLD: tuple[str, ...] = ("run_mlflow_s", "mlflow_cost_s", "run_mlflow_vs_run", "export_after_s", "points_left")


def measure(folder: Path, num_turns: int, num_rounds: int) -> Figures:
    """Seconds of a round without record, with it, through ``run_experiment``, and with MLflow; in a Ray session."""
    scenario = write(scenario_of(folder / "recording", NUM_CLIENTS), peers=False)
    endless = without_training(setup(scenario))
    figures = _records(endless, scenario.folder / "in-process", num_turns, num_rounds)
    prepared = without_training(setup(scenario, rounds=FIRST + num_rounds + LAST))
    figures |= _tracking(prepared, scenario.folder / "runs", num_turns, num_rounds)
    figures |= {"turns": num_turns, "rounds": num_rounds}
    return {f"recording_n{NUM_CLIENTS}_{key}": value for key, value in figures.items()}


class Bare:
    """Bare rounds: models out, sums back, aggregated, costs accounted; not hashed, recorded or saved."""

    def __init__(self, prepared: Setup, executor: Executor) -> None:
        self._prepared, self._executor, self._round = prepared, executor, 0
        self.state = prepared.strategy.init(prepared.layout, prepared.fleet, prepared.streams, prepared.start)
        self._store = CheckpointStateStore({})

    def step(self) -> None:
        """One round."""
        self._round += 1
        context = context_of(self._prepared, self._round)
        prepared = self._prepared
        result = run_round(prepared.strategy, self.state, context, self._executor, self._store, prepared.accountant)
        self._store.commit()
        self.state = result.state


def _records(prepared: Setup, path: Path, num_turns: int, num_rounds: int) -> Figures:
    with closing(Product(prepared, path)) as product:
        assert product.executor is not None
        bare, unsaved = (
            Bare(prepared, product.executor),
            Product(_unsaved(prepared), path.with_name("unsaved"), product.executor),
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


def _unsaved(prepared: Setup) -> Setup:
    """The same experiment with a checkpoint at the end alone."""
    record = prepared.config.record.model_copy(update={"checkpoint_every": NEVER})
    return replace(prepared, config=prepared.config.model_copy(update={"record": record}))


def _tracking(prepared: Setup, folder: Path, num_turns: int, num_rounds: int) -> Figures:
    with closing(Runs(prepared, folder)) as runs:
        if find_spec("mlflow") is None:
            times = take_turns({"run": runs.without_mlflow}, num_turns, num_rounds)
            return {"run_s": times.median_s("run"), **dict.fromkeys(UNTOLD)}
        runs.with_mlflow(num_rounds)  # imports MLflow and makes its tables: once per process and store
        runs.export_s.clear()
        times = take_turns({"run": runs.without_mlflow, "mlflow": runs.with_mlflow}, num_turns, num_rounds)
        return {
            "run_s": times.median_s("run"),
            "run_mlflow_s": times.median_s("mlflow"),
            "mlflow_cost_s": times.difference_s("mlflow", "run"),
            "run_mlflow_vs_run": times.ratio("mlflow", "run"),
            "export_after_s": median(runs.export_s),
            "points_left": sync(runs.last).num_points,
        }


class Runs:
    """Runs of one experiment, each in its own folder, on the same hosts."""

    def __init__(self, prepared: Setup, folder: Path) -> None:
        self._prepared, self._folder, self._worker_cache, self._number = prepared, folder, WorkerCache(), 0
        self.export_s: list[float] = []
        self.last = folder

    def without_mlflow(self, num_rounds: int) -> list[float]:
        """The mean round of a run that is recorded in its folder alone."""
        return [self._run([], num_rounds)]

    def with_mlflow(self, num_rounds: int) -> list[float]:
        """The mean round of a run with export to MLflow; ``export_s``: seconds that the export took beyond its end."""
        return [self._run([MlflowTarget(self._folder)], num_rounds)]

    def _run(self, targets: list[MlflowTarget], num_rounds: int) -> float:
        self._number += 1
        self.last = path = self._folder / str(self._number)
        RunFolder.create(path, run_record(self._prepared)).close()
        senders, ledger, num_bytes = Senders(targets, print), path / ROUNDS_FILE, [0]
        senders.wake(path)

        def look() -> bool:
            """Wake the senders as a study's loop does: where the ledger has grown; the run goes on."""
            if (size := ledger.stat().st_size) > num_bytes[0]:
                num_bytes[0] = size
                senders.wake(path)
            return False

        try:
            run_experiment(self._prepared, path, Hooks(on_note=print, should_stop=look), self._worker_cache)
        finally:
            senders.end(path)
            began = perf_counter()
            senders.finish()
            self.export_s.append(perf_counter() - began)
        ended = [record.ended_unix_s for record in read_rounds(path)]
        assert len(ended) == FIRST + num_rounds + LAST, f"{len(ended)} rounds"
        return (ended[FIRST + num_rounds - 1] - ended[FIRST - 1]) / num_rounds

    def close(self) -> None:
        """End the hosts."""
        self._worker_cache.close()
