"""One cell as a Ray Tune trial. Its process and worker processes serve the next cell with the same needs.

A cell that may be stopped early is run in parts: it pauses after the rounds at which a scheduler judges it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import ray
from ray import tune

from actors.grids.places import settled
from actors.launch import RunCallbacks, run_experiment
from actors.runtime import serialization
from actors.runtime.coordinator import Gauges
from actors.runtime.warm_pool import WorkerCache
from relief_ray.experiment.lifecycle import create, reopen
from relief_ray.experiment.setup import Setup
from relief_ray.records.run_folder import RUN_FILE, forget_error
from relief_ray.records.schema import RoundRecord, RunStatus
from relief_ray.studies.plan import keep_error, look_at
from relief_ray.studies.spec import Cell

# Keys of a trial's results: the last round, and its validation F1.
ROUND, F1 = "round", "f1"


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
        pauses: rounds after which the trial hands over, to be continued or not.
    """

    cell: Cell
    folder: Path
    parent: str | None
    stop_file: Path
    environment: Mapping[str, str]
    other_code: bool = False
    pauses: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Rounds of a cell up to a pause or to its end.

    Attributes:
        status: of the run.
        paused: the record of the round after which it paused; None where it did not.
        setup: what the next part goes on with, in the same process.
    """

    status: RunStatus
    paused: RoundRecord | None = None
    setup: Setup | None = None

    def result(self) -> dict[str, object]:
        """The result for Tune; a pause says its round and validation F1."""
        facts: dict[str, object] = {"done": self.paused is None, "status": self.status}
        metrics = None if self.paused is None else self.paused.validation
        if self.paused is not None and metrics is not None and metrics.headline is not None:
            facts |= {ROUND: self.paused.round, F1: metrics.headline}
        return facts


class CellTrial(tune.Trainable):
    """Carries out one cell per trial; Tune resets it for the next one instead of starting a process anew."""

    def setup(self, config: dict[str, str], specs: Sequence[ray.ObjectRef[Mapping[str, TrialSpec]]] = ()) -> None:
        """Initialise a process that has just started; ``specs``: one reference, with the user's own files."""
        self._name = config["cell"]
        self._specs = serialization.get(specs[0])
        parent = self._specs[self._name].parent
        self._title = self._name if parent is None else f"{parent}/{self._name}"
        self._worker_cache = WorkerCache(self._title)
        self._setup: Setup | None = None

    def __repr__(self) -> str:
        """Name in Ray's dashboard, which keeps that of the process's first cell."""
        return f"{self._title} and later cells"

    def reset_config(self, new_config: dict[str, str]) -> bool:
        """Take another cell into the same process, with the same worker processes."""
        self._name, self._setup = new_config["cell"], None
        return True

    def step(self) -> dict[str, object]:
        """Run the cell to its next pause, or to its end; its results are in its folder."""
        part = run_part(self._specs[self._name], self._worker_cache, self._setup)
        self._setup = part.setup
        return part.result()

    def cleanup(self) -> None:
        """End the worker processes."""
        self._worker_cache.close()


def run_trial(spec: TrialSpec, worker_cache: WorkerCache) -> RunStatus:
    """Run a cell from wherever its folder is, to its next pause or its end."""
    return run_part(spec, worker_cache).status


def run_part(spec: TrialSpec, worker_cache: WorkerCache, setup: Setup | None = None) -> Part:
    """Run a cell to its next pause or its end; an error is kept in its folder and stops no other cell.

    ``setup``: that of the part before, where this process ran it.
    """
    if spec.stop_file.exists():
        return Part(status="interrupted")
    os.environ.update(spec.environment)
    try:
        if setup is None:
            forget_error(spec.folder)
            if look_at(spec.cell, spec.folder).status == "done":
                return Part(status="done")
            setup = _open(spec)
        return _run(spec, setup, worker_cache)
    except Exception as error:
        keep_error(spec.folder, error)
        return Part(status="failed")


def _num_hosts() -> int:
    """Hosts that places were reserved for, beside this process; 0 outside a trial."""
    reserved = ray.util.get_current_placement_group() if ray.is_initialized() else None
    return 0 if reserved is None else len(reserved.bundle_specs) - 1


def _open(spec: TrialSpec) -> Setup:
    """Prepare the cell's run, begun or not."""
    config = spec.cell.config
    config = config.model_copy(update={"runtime": settled(config.runtime, _num_hosts())})
    if (spec.folder / RUN_FILE).exists():
        setup, folder = reopen(spec.folder, runtime=config.runtime, other_code=spec.other_code)
    else:
        setup, folder = create(config, spec.folder, parent=spec.parent)
    folder.close()
    return setup


def _run(spec: TrialSpec, setup: Setup, worker_cache: WorkerCache) -> Part:
    gauges = Gauges(cell=spec.folder.name, setup=setup)
    paused: list[RoundRecord] = []

    def on_round(record: RoundRecord) -> None:
        gauges.show(record)
        if record.round in spec.pauses:
            paused.append(record)

    def is_paused() -> bool:
        return bool(paused)

    callbacks = RunCallbacks(
        on_round=on_round, should_stop=lambda: is_paused() or spec.stop_file.exists(), is_paused=is_paused,
        separate=False,
    )  # fmt: skip
    run = run_experiment(setup, spec.folder, callbacks, worker_cache)
    if paused and not spec.stop_file.exists():
        return Part(status=run.status, paused=paused[-1], setup=setup)
    return Part(status=run.status)
