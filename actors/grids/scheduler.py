"""Ray Tune as the scheduler of a grid: a trial reserves its bundles, as many run as the cluster has places for.

Tune's own state decides nothing: which cells are still to do is read from their folders, before and after.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import ray
from ray import tune

from actors.grids.early_stopping import rungs
from actors.grids.low_memory import low_memory_ends_one_trial
from actors.grids.places import bundles_of, explain_places, num_at_once, refuse_shortage
from actors.grids.side_by_side import SCRATCH, remove_scratch
from actors.grids.trial import CellTrial, TrialSpec
from actors.runtime import serialization
from actors.runtime.placement import Nodes, look_around
from relief_ray.records.cells import CellState, EarlyStopping
from relief_ray.studies.plan import keep_error, look_at
from relief_ray.studies.spec import Cell
from relief_ray.support.errors import UserError

STOP_FILE = ".stop"
_ENVIRONMENT = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Listener:
    """Callbacks for a grid's trials.

    ``begun`` and ``ended`` get a cell's name, ``ended`` also what Tune says of a trial that died; ``tick`` comes many
    times a second; ``note`` gets lines for the user.
    """

    begun: Callable[[str], None]
    ended: Callable[[str, str], None]
    tick: Callable[[], None]
    note: Callable[[str], None]


def _ignore(*words: str) -> None:
    """Do nothing."""


class _TuneCallback(tune.Callback):
    """Passes Tune's events on to the listener."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def __reduce__(self) -> tuple[type[_TuneCallback], tuple[Listener]]:
        # Tune keeps a copy of its set-up on disk, which is not read here; a terminal cannot be copied.
        return _TuneCallback, (Listener(begun=_ignore, ended=_ignore, tick=_ignore, note=_ignore),)

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: object) -> None:
        self._listener.begun(trial.config["cell"])

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: object) -> None:
        self._listener.ended(trial.config["cell"], "")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: object) -> None:
        self._listener.ended(trial.config["cell"], _words_of(trial))

    def on_step_end(self, iteration: int, trials: list[Any], **info: object) -> None:
        self._listener.tick()


def _words_of(trial: Any) -> str:
    """Return what Ray said of a trial's last failure: Tune brings it to its storage later, if at all."""
    with suppress(OSError, TypeError):
        return Path(trial.error_file).read_text(encoding="utf-8", errors="replace")
    return str(trial.get_pickled_error() or "no reason")


class _StopAll(tune.Stopper):
    """Ends the experiment once a stop was requested and a trial has come to its end."""

    def __init__(self, stop_file: Path) -> None:
        self._stop_file = stop_file

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._stop_file.exists()


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialPlan:
    """Settings of a command's trials.

    Attributes:
        out: folder of the cells.
        parent: name of the grid that the runs name as their parent; None: they are of no grid.
        jobs: most trials at a time; None: as many as the cluster has places for.
        other_code: go on with runs that another program began.
        stopping: how weak tries of a search are stopped early; None: every trial runs to its end.
        rivals: all cells of that search, also those that have ended.
    """

    out: Path
    parent: str | None
    jobs: int | None = None
    other_code: bool = False
    stopping: EarlyStopping | None = None
    rivals: Sequence[CellState[Cell]] = ()


def fit(entries: Sequence[CellState[Cell]], trials: TrialPlan, listener: Listener) -> None:
    """Run these cells; Ray is up already. Results and errors are in their folders.

    Raises:
        UserError: the cluster is too small for one of them.
    """
    os.environ.update(_ENVIRONMENT)
    for name in ("ray.tune", "ray.train", "ray.air"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    nodes = look_around()
    bundles = {entry.cell.name: bundles_of(entry.cell.config, nodes) for entry in entries}
    refuse_shortage(bundles, nodes)
    listener.note(explain_places(bundles.values(), nodes))
    # Tune hands a free process to any trial that waits: few may wait, so that cells keep their order.
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(max(num_at_once(trial, nodes) for trial in bundles.values()))
    stop_file = trials.out / STOP_FILE
    remove_scratch(trials.out)
    try:
        with low_memory_ends_one_trial():
            _tuner(_make_specs(entries, trials), _Places(entries, nodes, listener.note), trials, listener).fit()
    finally:
        remove_scratch(trials.out)
    if not stop_file.exists():
        _explain_lost(entries)


def _make_specs(entries: Sequence[CellState[Cell]], trials: TrialPlan) -> dict[str, TrialSpec]:
    """Specifications of the trials, by cell name."""
    kept = {key: value for key, value in os.environ.items() if key in ("RELIEF_DATA", "RELIEF_CACHE")}
    return {
        e.cell.name: TrialSpec(
            cell=e.cell,
            folder=e.folder.absolute(),
            parent=trials.parent,
            stop_file=trials.out / STOP_FILE,
            environment=kept,
            other_code=trials.other_code,
            pauses=() if trials.stopping is None else rungs(trials.stopping, e.cell.config),
        )
        for e in entries
    }


_AT_WORK: WeakValueDictionary[int, _Places] = WeakValueDictionary()


def _at_work(key: int) -> _Places | None:
    """The object of this process that was pickled; None in another process."""
    return _AT_WORK.get(key)


class _Places:
    """Resources of each trial when Tune asks for them: a node that has joined meanwhile gets cells too."""

    def __init__(self, entries: Sequence[CellState[Cell]], nodes: Nodes, note: Callable[[str], None]) -> None:
        """``nodes``: the cluster at the start."""
        self._configs = {entry.cell.name: entry.cell.config for entry in entries}
        self._nodes, self._note = nodes, note
        _AT_WORK[id(self)] = self

    def __reduce__(self) -> tuple[Callable[[int], _Places | None], tuple[int]]:
        # Tune reads it back from a pickle in this same process; trials get one too, and never ask it.
        return _at_work, (id(self),)

    def __call__(self, config: dict[str, str]) -> tune.PlacementGroupFactory:
        nodes = look_around()
        bundles = bundles_of(self._configs[config["cell"]], nodes)
        if nodes.number != self._nodes.number:
            self._note(explain_places([bundles], nodes))
        self._nodes = nodes
        selectors = [dict(nodes.selector), *({} for _ in bundles[1:])]
        return tune.PlacementGroupFactory(list(bundles), strategy="PACK", bundle_label_selector=selectors)


def _tuner(specs: Mapping[str, TrialSpec], places: _Places, trials: TrialPlan, listener: Listener) -> tune.Tuner:
    """A tuner with a trial per cell, in order; a trial whose process died is tried once more."""

    def name_of(trial: Any) -> str:
        return str(trial.config["cell"])

    trainable = tune.with_resources(tune.with_parameters(CellTrial, specs=[_put(specs)]), places)
    # Ray's dashboard shows this name as the class of a trial's process.
    trainable.__qualname__ = trainable.__name__ = f"{trials.parent or 'run'}/cell"
    return tune.Tuner(
        trainable,
        param_space={"cell": tune.grid_search(list(specs))},
        tune_config=tune.TuneConfig(
            reuse_actors=True,
            max_concurrent_trials=trials.jobs,
            scheduler=_early_stopping(trials),
            trial_name_creator=name_of,
            trial_dirname_creator=lambda trial: str(trial.trial_id),
        ),
        run_config=tune.RunConfig(
            name="trials",
            storage_path=str(trials.out / SCRATCH),
            stop=_StopAll(trials.out / STOP_FILE),
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            failure_config=tune.FailureConfig(max_failures=1),
            callbacks=[_TuneCallback(listener)],
            verbose=0,
        ),
    )


def _early_stopping(trials: TrialPlan) -> Any:
    """Tune's scheduler where trials may be stopped early; None: Tune's own, which runs each to its end."""
    from actors.grids.asha import SearchScheduler

    return None if trials.stopping is None else SearchScheduler(trials.rivals, trials.stopping)


def _put(specs: Mapping[str, TrialSpec]) -> ray.ObjectRef[Mapping[str, TrialSpec]]:
    """Put the specifications where every trial finds them, with the files of methods, data and backbones of users."""
    modules = {module for spec in specs.values() for module in spec.cell.config.modules()}
    return serialization.put(dict(specs), tuple(sorted(modules)))


def _explain_lost(entries: Sequence[CellState[Cell]]) -> None:
    """Keep an error for cells that Tune left open without a word."""
    for entry in entries:
        if look_at(entry.cell, entry.folder).is_open:
            with suppress(UserError):
                keep_error(
                    entry.folder,
                    "its trial ended before the cell did, and Ray gave no reason; a resume goes on with it; "
                    "Ray's logs of this node may say more",
                )
