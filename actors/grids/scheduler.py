"""Cells several at a time: Ray Tune as their scheduler, on a local Ray or a cluster.

A trial reserves its bundles, as many run as the cluster has places for. Tune's own state decides nothing: which cells
are still to do is read from their folders, before and after.

ASHA (asynchronous successive halving, Li et al., MLSys 2020) stops a try of a search at a rung where its score is below
the best ``1 / reduction_factor`` of those that came there before it. A search compares the tries of one place only,
i.e. a method on a dataset, fold and backbone: otherwise weak methods would be stopped, not weak values.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler

from actors.grids.places import (
    SCRATCH,
    bundles_of,
    explain_places,
    num_at_once,
    refuse_shortage,
    remove_scratch,
    session_options,
)
from actors.grids.search import mark_stopped, rivals, rungs, scores_at
from actors.grids.trial import F1, ROUND, CellTrial, Trial, low_memory_ends_one_trial
from actors.runtime import serialization
from actors.runtime.errors import count_kills, describe_death
from actors.runtime.gauges import GridGauge
from actors.runtime.placement import Nodes, look_around
from actors.runtime.session import ray_session
from relief_ray.records.cells import EarlyStopping
from relief_ray.studies.copies import Say
from relief_ray.studies.loop import Loop
from relief_ray.studies.plan import State, keep_error, look_at
from relief_ray.support.errors import UserError
from tune_configs.search import Place

if TYPE_CHECKING:
    from ray.tune.experiment import Trial as TuneTrial

STOP_FILE = ".stop"
_SHOW_S = 5.0
_FEWER = "run fewer cells at a time (--jobs N)"
_ENVIRONMENT = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
}


def _stop_file(loop: Loop) -> Path:
    return loop.plan.out.absolute() / STOP_FILE


def side_by_side(loop: Loop, jobs: int | None, *, dashboard: bool, other_code: bool, lost: Say | None) -> None:
    """Compute a loop's cells as trials of Ray Tune, on a local Ray or on the cluster that was named.

    Errors are kept in the cells' folders and stop no other cell.

    Args:
        loop: the cells, and who hears of them.
        jobs: most cells at a time; None: as many as there are places.
        dashboard: open Ray's dashboard with a local cluster.
        other_code: go on with runs that another program began.
        lost: hears, in another thread, where Ray does not answer any more; None: nobody.

    Raises:
        UserError: the cluster cannot be joined or is too small, or a finished run is of other data.
    """
    if not loop.plan.is_grid:
        for state in (state for state in loop.states if state.is_finished):
            loop.reuse(state)
    _stop_file(loop).unlink(missing_ok=True)
    # Tune imports MLflow, which reads this once.
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    with ray_session(session_options(loop.todo, jobs, dashboard, loop.plan.resume), lost) as url:
        if url is not None:
            loop.callback.note(f"dashboard: {url}")
        fit(loop, jobs=jobs, other_code=other_code)


_AT_WORK: WeakValueDictionary[int, _StaysHere] = WeakValueDictionary()


class _StaysHere:
    """An object of the driver's process, which Tune pickles with its set-up and reads back in this same process.

    In another process, or from the copy that Tune keeps on disk and nobody reads, it is None.
    """

    def __reduce__(self) -> tuple[Callable[[int], _StaysHere | None], tuple[int]]:
        _AT_WORK[id(self)] = self
        return _at_work, (id(self),)


def _at_work(key: int) -> _StaysHere | None:
    return _AT_WORK.get(key)


def _name_of(trial: Any) -> str:
    """The cell of one of Tune's trials."""
    return str(trial.config["cell"])


class _TuneCallback(_StaysHere, tune.Callback):
    """Passes Tune's events on to the loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._kills_before = count_kills()
        self._gauge, self._shown_s = GridGauge(loop.plan.name), 0.0

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: object) -> None:
        self._loop.begin(_name_of(trial))

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: object) -> None:
        self._loop.end(_name_of(trial))

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: object) -> None:
        keep_death(self._loop, _name_of(trial), _words_of(trial), self._kills_before)
        self.on_trial_complete(iteration, trials, trial)

    def on_step_end(self, iteration: int, trials: list[Any], **info: object) -> None:
        self._loop.tick()
        # Ray forgets a gauge that is not set again.
        if time.monotonic() - self._shown_s > _SHOW_S:
            self._shown_s = time.monotonic()
            self._gauge.show(self._loop.view())
        if self._loop.disk_full or self._loop.stop_requested():
            _stop_file(self._loop).touch()


def keep_death(loop: Loop, name: str, trouble: str, kills_before: int | None) -> None:
    """Keep the error of a cell whose process died; ``trouble``: what Ray says."""
    state = next(state for state in loop.states if state.name == name)
    if look_at(state.cell, state.folder).is_open:
        keep_error(state.folder, describe_death(state.folder, trouble, kills_before, died="died twice", fewer=_FEWER))


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


def fit(loop: Loop, *, jobs: int | None = None, other_code: bool = False) -> None:
    """Run the loop's cells; Ray is up already. Results and errors are in their folders.

    Raises:
        UserError: the cluster is too small for one of them.
    """
    os.environ.update(_ENVIRONMENT)
    for name in ("ray.tune", "ray.train", "ray.air"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    nodes, out = look_around(), loop.plan.out.absolute()
    bundles = {state.name: bundles_of(state.config, nodes) for state in loop.todo}
    refuse_shortage(bundles, nodes)
    loop.callback.note(explain_places(bundles.values(), nodes))
    # Tune hands a free process to any trial that waits: few may wait, so that cells keep their order.
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(max(1, *(num_at_once(trial, nodes) for trial in bundles.values())))
    remove_scratch(out)
    try:
        with low_memory_ends_one_trial():
            _tuner(loop, nodes, jobs, other_code).fit()
    finally:
        remove_scratch(out)
    if not _stop_file(loop).exists():
        _explain_lost(loop.todo)


def _trial_of(loop: Loop, state: State, other_code: bool) -> ray.ObjectRef[Trial]:
    """The trial of a cell, with the files of the users' methods, data and backbones that it has, and of no other's."""
    plan, cell = loop.plan, state.cell
    trial = Trial(
        cell=cell,
        folder=plan.out.absolute() / cell.name,
        parent=plan.name if plan.is_grid else None,
        stop_file=_stop_file(loop),
        environment={key: value for key, value in os.environ.items() if key in ("RELIEF_DATA", "RELIEF_CACHE")},
        other_code=other_code,
        pauses=() if plan.stopping is None else rungs(plan.stopping, cell.config),
    )
    return serialization.put(trial, cell.config.modules())


class _Places(_StaysHere):
    """Resources of each trial when Tune asks for them: a node that has joined meanwhile gets cells too."""

    def __init__(self, loop: Loop, nodes: Nodes) -> None:
        """``nodes``: the cluster at the start."""
        self._configs = {state.name: state.config for state in loop.todo}
        self._nodes, self._note = nodes, loop.callback.note

    def __call__(self, config: dict[str, str]) -> tune.PlacementGroupFactory:
        nodes = look_around()
        bundles = bundles_of(self._configs[config["cell"]], nodes)
        if nodes.number != self._nodes.number:
            self._note(explain_places([bundles], nodes))
        self._nodes = nodes
        selectors = [dict(nodes.selector), *({} for _ in bundles[1:])]
        return tune.PlacementGroupFactory(list(bundles), strategy="PACK", bundle_label_selector=selectors)


def _tuner(loop: Loop, nodes: Nodes, jobs: int | None, other_code: bool) -> tune.Tuner:
    """A tuner with a trial per cell, in order; a trial whose process died is tried once more."""
    plan = loop.plan
    trials = {state.name: _trial_of(loop, state, other_code) for state in loop.todo}
    is_own = any(state.config.modules() for state in loop.todo)
    parameters = tune.with_parameters(CellTrial, trials=trials)
    trainable = tune.with_resources(parameters, _Places(loop, nodes))
    # Ray's dashboard shows this name as the class of a trial's process.
    trainable.__qualname__ = trainable.__name__ = f"{plan.name if plan.is_grid else 'run'}/cell"
    return tune.Tuner(
        trainable,
        param_space={"cell": tune.grid_search(list(trials))},
        tune_config=tune.TuneConfig(
            reuse_actors=not is_own,
            max_concurrent_trials=jobs,
            # None: Tune's own, which runs each trial to its end.
            scheduler=None if plan.stopping is None else SearchScheduler(loop.states, plan.stopping),
            trial_name_creator=_name_of,
            trial_dirname_creator=lambda trial: str(trial.trial_id),
        ),
        run_config=tune.RunConfig(
            name="trials",
            storage_path=str(plan.out.absolute() / SCRATCH),
            stop=_StopAll(_stop_file(loop)),
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            failure_config=tune.FailureConfig(max_failures=1),
            callbacks=[_TuneCallback(loop)],
            verbose=0,
        ),
    )


class SearchScheduler(FIFOScheduler):
    """Starts trials in order and lets the ASHA of each place decide which go on.

    Tune keeps no state of it: the rungs are filled from the ledgers of all cells, those of earlier sessions and of
    other batches included.
    """

    def __init__(self, states: Sequence[State], stopping: EarlyStopping) -> None:
        """Feed the scores of cells that have ended; ``states``: all cells of the search."""
        super().__init__()
        self._stopping = stopping
        self._entries = {state.name: state for state in states}
        # Untyped, since earlier cells are no trials of Tune: ASHA reads nothing but their id.
        self._by_place: dict[Place, Any] = {}
        for state in states:
            if state.status in ("done", "stopped"):
                self._add(state, SimpleNamespace(trial_id=state.name))

    def _add(self, state: State, trial: TuneTrial | SimpleNamespace) -> None:
        """Make a trial known to its place, with the scores that its ledger has; what was decided then stands."""
        config, place = state.config, rivals(state.cell)
        known: Any = self._by_place.get(place)
        if known is None:
            known = self._by_place[place] = ASHAScheduler(
                time_attr=ROUND,
                metric=F1,
                mode="max",
                max_t=config.rounds,
                grace_period=self._stopping.grace_rounds,
                reduction_factor=self._stopping.reduction_factor,
            )
        known.on_trial_add(None, trial)
        for round_, f1 in scores_at(state.folder, rungs(self._stopping, config)).items():
            known.on_trial_result(None, trial, {ROUND: round_, F1: f1})

    def on_trial_add(self, tune_controller: Any, trial: TuneTrial) -> None:
        """Take a new trial in."""
        self._add(self._entries[_name_of(trial)], trial)

    def on_trial_result(self, tune_controller: Any, trial: TuneTrial, result: dict[str, Any]) -> str:
        """Ask the place's ASHA; a trial that it stops is marked in its folder, which no process holds between parts."""
        state = self._entries[_name_of(trial)]
        decision = str(self._by_place[rivals(state.cell)].on_trial_result(tune_controller, trial, result))
        if decision == TrialScheduler.STOP:
            mark_stopped(state.folder, int(result[ROUND]))
        return decision


def _explain_lost(states: Sequence[State]) -> None:
    """Keep an error for cells that Tune left open without a word."""
    for state in states:
        if look_at(state.cell, state.folder).is_open:
            with suppress(UserError):
                keep_error(
                    state.folder,
                    "its trial ended before the cell did, and Ray gave no reason; a resume goes on with it; "
                    "Ray's logs of this node may say more",
                )
