"""Computes one run as its configuration says: in this process, or in worker processes on Ray."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from actors.runtime.session import SessionOptions, owns_cluster, ray_session, total_of
from relief_ray.config.runtime import RuntimeConfig
from relief_ray.experiment.experiment import OnRound, ignore, never, run_opened
from relief_ray.experiment.setup import Setup
from relief_ray.records.schema import RunRecord
from relief_ray.support.process import use_threads
from relief_ray.support.text import typed
from relief_ray.training.executor import SerialExecutor

if TYPE_CHECKING:
    from actors.runtime.warm_pool import WorkerCache

RunMode = Literal["inline", "packed", "actors"]
WHERE: Mapping[RunMode, str] = {
    "inline": "in this process",
    "packed": "on Ray, packed",
    "actors": "on Ray, an actor each",
}
_MAX_ACTOR_CLIENTS = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Hooks:
    """How a single run is driven, and what hears of it in the process that asks for it.

    Attributes:
        on_note: called with messages for the user, e.g. repairs of the run folder.
        should_stop: polled; True asks the run to stop after its round.
        is_paused: says that a stop was a pause between two rounds: worker processes are idle and may be kept.
        on_round: called with every committed round, which this process then computes (a Tune trial). None: the
            rounds may be computed in a process of their own, and whoever wants to know reads the ledger.
    """

    on_note: Callable[[str], None] = ignore
    should_stop: Callable[[], bool] = never
    is_paused: Callable[[], bool] = never
    on_round: OnRound | None = None


def choose_mode(config: RuntimeConfig, num_clients: int, stack: int = 1) -> RunMode:
    """Resolve ``auto``: an actor per client up to ten clients or with typed placement, otherwise packed hosts.

    Stacked clients are always packed, since only clients of one process can share steps.
    """
    if config.mode != "auto":
        return config.mode
    few = num_clients <= _MAX_ACTOR_CLIENTS and stack == 1
    return "actors" if few or config.placement == "typed" else "packed"


def local_session(setup: Setup, path: Path) -> SessionOptions:
    """Options of the cluster to join, or of a local one whose node has the resources of all of the fleet's devices.

    ``path``: the run's folder, to go on with.
    """
    resources = total_of(setup.types[client.device].ray_resources for client in setup.fleet.clients)
    resume = f"relief-ray resume {typed(path)}"
    return SessionOptions(address=setup.config.runtime.address, resources=resources, resume=resume)


def run_experiment(
    setup: Setup, path: Path, hooks: Hooks | None = None, worker_cache: WorkerCache | None = None
) -> RunRecord:
    """Run the remaining rounds of the run in ``path``, a folder that ``lifecycle.create`` made and closed.

    ``worker_cache`` keeps worker processes and coordinator for the next run; without it they end with this one.

    Raises:
        UserError: bad input, a cluster without a needed resource, workers with other code.
        RoundVoid: too few usable answers; the folder stays resumable.
        ClientFailed: code of a client raised.
    """
    hooks = hooks or Hooks()
    mode = mode_of(setup)
    use_threads(setup.job.num_threads)
    if mode == "inline":
        on_round = hooks.on_round or ignore
        make = SerialExecutor if worker_cache is None else partial(SerialExecutor, inputs=worker_cache.inputs)
        return run_opened(setup, path, make, hooks.should_stop, on_round=on_round, on_note=hooks.on_note)
    with ray_session(local_session(setup, path)):
        return _run_on_ray(setup, path, hooks, setup.config.runtime.model_copy(update={"mode": mode}), worker_cache)


def _run_on_ray(
    setup: Setup, path: Path, hooks: Hooks, options: RuntimeConfig, worker_cache: WorkerCache | None
) -> RunRecord:
    from actors.runtime import serialization
    from actors.runtime.coordinator import RunRequest, run_on_workers
    from actors.runtime.coordinator_client import follow
    from actors.runtime.warm_pool import WorkerCache

    kept = worker_cache or WorkerCache(path.resolve().name)
    finished = False
    is_here = hooks.on_round is not None or _rounds_are_here(setup, options)
    try:
        # First of all: its process has the most to import, and all start at the same time.
        coordinator = None if is_here else kept.coordinator()
        group = kept.workers(setup.job, options, {name: device.ray_resources for name, device in setup.types.items()})
        if is_here:
            run = run_on_workers(setup, path, group, options, hooks.should_stop, hooks.on_note, hooks.on_round)
        else:
            setup_ref = serialization.put(setup, setup.job.modules)
            request = RunRequest(setup=setup_ref, path=path.resolve(), group=group, options=options)
            run = follow(coordinator, request, hooks.on_note, hooks.should_stop)
        finished = run.status == "done" or hooks.is_paused()
        return run
    finally:
        # Processes of an interrupted run may still be at work.
        if worker_cache is None or not finished:
            kept.close()


def _rounds_are_here(setup: Setup, options: RuntimeConfig) -> bool:
    """Whether this process computes the rounds and not a coordinator: one import of torch and its memory less.

    A cluster that this process has started ends with it, so a coordinator would not outlive it. Own code, which may end
    the process that it runs in, keeps one, and so do actors, which are run as on the boards that they stand for.
    """
    return options.mode == "packed" and owns_cluster() and not setup.config.modules()


def mode_of(setup: Setup) -> RunMode:
    """Resolve ``runtime.mode`` of a run."""
    return choose_mode(setup.config.runtime, len(setup.fleet), setup.config.training.stack)
