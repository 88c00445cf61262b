"""One cell as a Ray Tune trial. Its process and worker processes serve the next cell with the same needs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import ray
from ray import tune

from actors.launch import RunCallbacks, run_experiment
from actors.runtime import user_code
from actors.runtime.prometheus import Gauges
from actors.runtime.warm_pool import WorkerCache
from relief_ray.experiment.lifecycle import create, reopen
from relief_ray.records.run_folder import RUN_FILE, forget_error
from relief_ray.records.schema import RoundRecord, RunStatus
from relief_ray.studies.cells import Cell
from relief_ray.studies.plans import keep_error, look_at


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialSpec:
    """Specification of a trial.

    Attributes:
        cell: what to run.
        folder: its folder, absolute.
        parent: name of the grid that it is a cell of; None: of none.
        stop_file: exists once a stop was requested.
        environment: the driver's variables that decide where data lie.
        other_code: go on with a run that another program began.
    """

    cell: Cell
    folder: Path
    parent: str | None
    stop_file: Path
    environment: Mapping[str, str]
    other_code: bool = False


class CellTrial(tune.Trainable):
    """Carries out one cell per trial; Tune resets it for the next one instead of starting a process anew."""

    def setup(self, config: dict[str, str], specs: Sequence[ray.ObjectRef[Mapping[str, TrialSpec]]] = ()) -> None:
        """Initialise a process that has just started; ``specs``: one reference, with the user's own files."""
        self._name = config["cell"]
        self._specs = user_code.get(specs[0])
        parent = self._specs[self._name].parent
        self._title = self._name if parent is None else f"{parent}/{self._name}"
        self._worker_cache = WorkerCache(self._title)

    def __repr__(self) -> str:
        """Name in Ray's dashboard, which keeps that of the process's first cell."""
        return f"{self._title} and later cells"

    def reset_config(self, new_config: dict[str, str]) -> bool:
        """Take another cell into the same process, with the same worker processes."""
        self._name = new_config["cell"]
        return True

    def step(self) -> dict[str, object]:
        """Run the whole cell; its results are in its folder."""
        return {"done": True, "status": run_trial(self._specs[self._name], self._worker_cache)}

    def cleanup(self) -> None:
        """End the worker processes."""
        self._worker_cache.close()


def run_trial(spec: TrialSpec, worker_cache: WorkerCache) -> RunStatus:
    """Run a cell from wherever its folder is; an error is kept there and stops no other cell."""
    if spec.stop_file.exists():
        return "interrupted"
    os.environ.update(spec.environment)
    try:
        forget_error(spec.folder)
        return _run(spec, worker_cache)
    except Exception as error:
        keep_error(spec.folder, error)
        return "failed"


def _run(spec: TrialSpec, worker_cache: WorkerCache) -> RunStatus:
    config = spec.cell.config
    entry = look_at(spec.cell, spec.folder)
    if entry.status == "done":
        return "done"
    if (spec.folder / RUN_FILE).exists():
        setup, folder = reopen(spec.folder, runtime=config.runtime, other_code=spec.other_code)
    else:
        setup, folder = create(config, spec.folder, parent=spec.parent)
    folder.close()
    gauges = Gauges(cell=spec.folder.name, setup=setup)

    def on_round(record: RoundRecord) -> None:
        gauges.show(record)

    callbacks = RunCallbacks(on_round=on_round, should_stop=spec.stop_file.exists, separate=False)
    return run_experiment(setup, spec.folder, callbacks, worker_cache).status
