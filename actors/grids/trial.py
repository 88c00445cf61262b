"""One cell as a Ray Tune trial. Its process and worker processes serve the next cell with the same needs.

Where a cell of the command has code of a user's own, each cell has processes of its own.

A cell that may be stopped early is run in parts: it pauses after the rounds at which a scheduler judges it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ray
from ray import tune
from ray.air.execution._internal import RayActorManager
from ray.exceptions import OutOfMemoryError, RayActorError
from ray.tune.execution import tune_controller

from actors.grids.places import settled
from actors.runtime import serialization
from actors.runtime.gauges import Gauges
from actors.runtime.single_run import Hooks, run_experiment
from actors.runtime.warm_pool import WorkerCache
from relief_ray.experiment.experiment import open_cell
from relief_ray.experiment.setup import Setup
from relief_ray.experiment.verify import verified
from relief_ray.records.run_folder import forget_error
from relief_ray.records.schema import RoundRecord, RunStatus
from relief_ray.studies.plan import keep_error, look_at
from relief_ray.studies.spec import Cell

# Keys of a trial's results: the last round, and its validation F1.
ROUND, F1 = "round", "f1"


@dataclass(kw_only=True)
class Trial:
    """A cell that is run in parts, each up to a pause or to the cell's end.

    Attributes:
        cell: what to run.
        folder: its folder, absolute.
        parent: name of the grid that it is a cell of; None: of none.
        stop_file: exists once a stop was requested.
        environment: the driver's variables that decide where data lie.
        other_code: go on with a run that another program began.
        pauses: rounds after which it hands over, to be continued or not.
    """

    cell: Cell
    folder: Path
    parent: str | None
    stop_file: Path
    environment: Mapping[str, str]
    other_code: bool = False
    pauses: tuple[int, ...] = ()
    _setup: Setup | None = None

    def step(self, worker_cache: WorkerCache) -> dict[str, object]:
        """Run a part; return the result for Tune: a pause says its round and validation F1.

        An error is kept in the cell's folder and stops no other cell. ``worker_cache``: processes of earlier cells.
        """
        status, paused = self._run(worker_cache)
        facts: dict[str, object] = {"done": paused is None, "status": status}
        if paused is not None and (metrics := paused.validation) is not None and metrics.headline is not None:
            facts |= {ROUND: paused.round, F1: metrics.headline}
        return facts

    def _run(self, worker_cache: WorkerCache) -> tuple[RunStatus, RoundRecord | None]:
        """Return the run's status, and the record of the round after which it paused."""
        if self.stop_file.exists():
            return "interrupted", None
        os.environ.update(self.environment)
        try:
            if self._setup is None:
                forget_error(self.folder)
                if look_at(self.cell, self.folder).status == "done":
                    return "done", None
                runtime = settled(self.cell.config.runtime, _num_hosts())
                config = self.cell.config.model_copy(update={"runtime": runtime})
                self._setup = open_cell(config, self.folder, parent=self.parent, other_code=self.other_code)
            return self._part(self._setup, worker_cache)
        except Exception as error:
            keep_error(self.folder, error)
            self._setup = None
            return "failed", None

    def _part(self, setup: Setup, worker_cache: WorkerCache) -> tuple[RunStatus, RoundRecord | None]:
        gauges = Gauges(cell=self.cell.name, setup=setup)
        paused: list[RoundRecord] = []

        def on_round(record: RoundRecord) -> None:
            gauges.show(record)
            if record.round in self.pauses:
                paused.append(record)

        hooks = Hooks(
            on_round=on_round,
            should_stop=lambda: bool(paused) or self.stop_file.exists(),
            is_paused=lambda: bool(paused),
        )
        run = run_experiment(setup, self.folder, hooks, worker_cache)
        run = verified(run, setup, self.folder, self.stop_file.exists)
        return run.status, paused[-1] if paused and not self.stop_file.exists() else None


class CellTrial(tune.Trainable):
    """Carries out one cell per trial; Tune resets it for the next one instead of starting a process anew."""

    def setup(self, config: dict[str, str], trials: Mapping[str, ray.ObjectRef[Trial]] = MappingProxyType({})) -> None:
        """Initialise a process that has just started; ``trials``: references by cell, with the user's own files."""
        self._trials = trials
        self.reset_config(config)
        # Not a cell's name: Ray never renames an actor, and this process with its workers serves many cells.
        self._title = f"{self._trial.parent or 'run'}/process-{os.getpid()}"
        self._worker_cache = WorkerCache(self._title)

    def __repr__(self) -> str:
        """Name in Ray's dashboard."""
        return self._title

    def reset_config(self, new_config: dict[str, str]) -> bool:
        """Take another cell into the same process, with the same worker processes."""
        self._trial: Trial = serialization.get(self._trials[new_config["cell"]])
        return True

    def step(self) -> dict[str, object]:
        """Run the cell to its next pause, or to its end; its results are in its folder."""
        return self._trial.step(self._worker_cache)

    def cleanup(self) -> None:
        """End the worker processes."""
        self._worker_cache.close()


def _num_hosts() -> int:
    """Hosts that places were reserved for, beside this process; 0 outside a trial."""
    reserved = ray.util.get_current_placement_group() if ray.is_initialized() else None
    return 0 if reserved is None else len(reserved.bundle_specs) - 1


class _ActorManager(RayActorManager):
    """Tune's manager of trials' processes, for which an end by lack of memory is the death of one process."""

    def _actor_start_failed(self, tracked_actor: Any, exception: Exception) -> None:
        super()._actor_start_failed(tracked_actor, _as_death(exception))

    def _actor_task_failed(self, tracked_actor_task: Any, exception: Exception) -> None:
        super()._actor_task_failed(tracked_actor_task, _as_death(exception))


def _as_death(error: Exception) -> Exception:
    """Turn Ray's out-of-memory error into a worker death, so that Tune retries; return other errors unchanged."""
    return RayActorError(error_msg=f"OutOfMemoryError: {error}") if isinstance(error, OutOfMemoryError) else error


@contextmanager
def low_memory_ends_one_trial() -> Iterator[None]:
    """Inside the block, a trial whose node is low on memory counts as one whose process died, and is tried once more.

    Ray reports an ``OutOfMemoryError``, which is no ``RayActorError``: Tune raises in the driver, and with one cell the
    whole grid ends.

    Tune has no setting for it. Checked with a real end by Ray's memory monitor (``tests/actors/grids/test_killed.py``).
    """
    module: Any = tune_controller
    module.RayActorManager = _ActorManager
    try:
        yield
    finally:
        module.RayActorManager = RayActorManager
