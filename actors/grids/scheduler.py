"""Ray Tune as the scheduler of a grid: a trial reserves its bundles, as many run as the cluster has places for.

Tune's own state decides nothing: which cells are still to do is read from their folders, before and after.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray import tune

from actors.grids.early_stopping import rungs
from actors.grids.trial import CellTrial, TrialSpec
from actors.launch import choose_mode
from actors.runtime import user_code
from actors.runtime.placement import GRAIN, HostSpec, Resources, plan_actors, plan_packed, shortage
from relief_ray.config import ExperimentConfig
from relief_ray.data import num_clients, open_dataset
from relief_ray.devices.fleet import build_fleet
from relief_ray.devices.types import DeviceType
from relief_ray.errors import UserError
from relief_ray.messages import Fleet
from relief_ray.process import choose_device
from relief_ray.records.cells import EarlyStopping
from relief_ray.studies.plans import CellFolder, keep_error, look_at

_SCRATCH, STOP_FILE = ".tune", ".stop"
# What a trial's process needs, and what it needs where all clients live in it.
_TRIAL_BYTES, _INLINE_BYTES = 400 * 2**20, 1024 * 2**20
_ENVIRONMENT = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
}
Bundles = tuple[dict[str, float], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Listener:
    """Callbacks for a grid's trials.

    ``begun`` and ``ended`` get a cell's name, ``ended`` also what Tune says of a trial that died; ``tick`` comes many
    times a second.
    """

    begun: Callable[[str], None]
    ended: Callable[[str, str], None]
    tick: Callable[[], None]


def fleet_of(config: ExperimentConfig) -> tuple[Fleet, dict[str, DeviceType]]:
    """The clients and device types of a cell, without its windows."""
    dataset = open_dataset(config.data)
    number = num_clients(dataset, config.data)
    return build_fleet(config.fleet, dataset.spec.names, dataset.spec.type_counts, number)


def bundles_of(config: ExperimentConfig, cluster: Resources) -> Bundles:
    """Resources that one cell's trial reserves: for its own process first, then for each of its worker processes.

    The trial's process asks for no core where hosts do the work, and for the ``server`` node where there is one,
    so that it does not take a device's place.

    Raises:
        UserError: a typed placement or a GPU that the cluster cannot give.
    """
    pin = {"server": 0.001} if "server" in cluster else {}
    fleet, types = fleet_of(config) if config.runtime.mode != "inline" else (None, {})
    if fleet is None or (mode := choose_mode(config.runtime, len(fleet), config.training.stack)) == "inline":
        return ({"CPU": 1.0, "memory": float(_INLINE_BYTES), **pin},)
    needs_gpu = choose_device(config.training.device) == "cuda"
    if mode == "packed":
        plan = plan_packed(config.runtime.num_hosts, cluster, needs_gpu, config.training.stack)
    else:
        offered = {name: device.ray_resources for name, device in types.items()}
        plan = plan_actors(fleet, offered, config.runtime.placement, cluster, needs_gpu)
    return ({"memory": float(_TRIAL_BYTES), **pin}, *(host.bundle or {"CPU": GRAIN} for host in plan.hosts))


def refuse_shortage(bundles: Mapping[str, Bundles], cluster: Resources) -> None:
    """Check that the cluster has room for every trial; otherwise Tune would wait for ever.

    Raises:
        UserError: a cell asks for more than there is.
    """
    for name, trial in bundles.items():
        hosts = [HostSpec(name=name, client=None, num_cpus=0.0, resources=bundle) for bundle in trial]
        if short := shortage(hosts, cluster):
            raise UserError(
                f"{name}: the cluster is too small for one trial: {short}; add nodes, or use --set runtime.mode=inline"
            )


def num_at_once(bundles: Bundles, cluster: Resources) -> int:
    """Number of such trials that the cluster has places for."""
    total: dict[str, float] = {}
    for bundle in bundles:
        for name, amount in bundle.items():
            total[name] = total.get(name, 0.0) + amount
    return max(1, min(int(cluster.get(name, 0.0) / amount + GRAIN) for name, amount in total.items() if amount))


def _ignore(*words: str) -> None:
    """Do nothing."""


class _TuneCallback(tune.Callback):
    """Passes Tune's events on to the listener."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def __reduce__(self) -> tuple[type[_TuneCallback], tuple[Listener]]:
        # Tune keeps a copy of its set-up on disk, which is not read here; a terminal cannot be copied.
        return _TuneCallback, (Listener(begun=_ignore, ended=_ignore, tick=_ignore),)

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: object) -> None:
        self._listener.begun(trial.config["cell"])

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: object) -> None:
        self._listener.ended(trial.config["cell"], "")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: object) -> None:
        self._listener.ended(trial.config["cell"], str(trial.get_error() or trial.get_pickled_error() or "no reason"))

    def on_step_end(self, iteration: int, trials: list[Any], **info: object) -> None:
        self._listener.tick()


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
    rivals: Sequence[CellFolder] = ()


def fit(entries: Sequence[CellFolder], trials: TrialPlan, listener: Listener) -> None:
    """Run these cells; Ray is up already. Results and errors are in their folders.

    Raises:
        UserError: the cluster is too small for one of them.
    """
    os.environ.update(_ENVIRONMENT)
    for name in ("ray.tune", "ray.train", "ray.air"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    cluster = ray.cluster_resources()
    bundles = {entry.cell.name: bundles_of(entry.cell.config, cluster) for entry in entries}
    refuse_shortage(bundles, cluster)
    # Tune hands a free process to any trial that waits: few may wait, so that cells keep their order.
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(max(num_at_once(trial, cluster) for trial in bundles.values()))
    stop_file = trials.out / STOP_FILE
    shutil.rmtree(trials.out / _SCRATCH, ignore_errors=True)
    try:
        _tuner(_make_specs(entries, trials), bundles, trials, listener).fit()
    finally:
        shutil.rmtree(trials.out / _SCRATCH, ignore_errors=True)
    if not stop_file.exists():
        _explain_lost(entries)


def _make_specs(entries: Sequence[CellFolder], trials: TrialPlan) -> dict[str, TrialSpec]:
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


def _tuner(
    specs: Mapping[str, TrialSpec], bundles: Mapping[str, Bundles], trials: TrialPlan, listener: Listener
) -> tune.Tuner:
    """A tuner with a trial per cell, in order; a trial whose process died is tried once more."""

    def factory(config: dict[str, str]) -> tune.PlacementGroupFactory:
        return tune.PlacementGroupFactory(list(bundles[config["cell"]]), strategy="PACK")

    def name_of(trial: Any) -> str:
        return str(trial.config["cell"])

    return tune.Tuner(
        tune.with_resources(tune.with_parameters(CellTrial, specs=[_put(specs)]), factory),
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
            storage_path=str(trials.out / _SCRATCH),
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
    return user_code.put(dict(specs), tuple(sorted(modules)))


def _explain_lost(entries: Sequence[CellFolder]) -> None:
    """Keep an error for cells whose process died twice and could not do so itself."""
    for entry in entries:
        if look_at(entry.cell, entry.folder).state.is_open:
            with suppress(UserError):
                keep_error(entry.folder, "its process died twice, or could not start (out of memory? see Ray's logs)")
