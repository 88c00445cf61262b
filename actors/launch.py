"""Runs an experiment where its configuration says: in this process, or in worker processes on Ray."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from actors.runtime.session import SessionOptions, ray_session
from relief_ray.config.runtime import RuntimeConfig
from relief_ray.core.protocols import Executor
from relief_ray.experiment.experiment import Experiment, MakeExecutor, OnRound, ignore, ignore_note, never, run_inline
from relief_ray.experiment.setup import Setup
from relief_ray.records.run_folder import RunFolder
from relief_ray.records.schema import RunRecord
from relief_ray.records.tracking import NullTracker, Tracker
from relief_ray.support.process import use_threads
from relief_ray.training.job import Job

if TYPE_CHECKING:
    from actors.runtime.placement import HostGroup, RuntimeOptions
    from actors.runtime.warm_pool import WorkerCache
    from actors.runtime.worker import Handle

RunMode = Literal["inline", "packed", "actors"]
_MAX_ACTOR_CLIENTS = 10
# Worker processes on which a method has to have the bits of the plain loop.
_NUM_COMPARED = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class RunCallbacks:
    """Callbacks and options of a run.

    Attributes:
        on_round: called with every committed round.
        on_note: called with messages for the user, e.g. repairs of the run folder.
        should_stop: polled; True asks the run to stop after its round.
        make_tracker: builds the tracker in the process that runs the rounds.
        is_paused: says that a stop was a pause between two rounds: worker processes are idle and may be kept.
        separate: the coordinator is a process of its own (not in a Tune trial).
    """

    on_round: OnRound = ignore
    on_note: Callable[[str], None] = ignore_note
    should_stop: Callable[[], bool] = never
    make_tracker: Callable[[], Tracker] = NullTracker
    is_paused: Callable[[], bool] = never
    separate: bool = True


def choose_mode(config: RuntimeConfig, num_clients: int, stack: int = 1) -> RunMode:
    """Resolve ``auto``: an actor per client up to ten clients or with typed placement, otherwise packed hosts.

    Stacked clients are always packed, since only clients of one process can share steps.
    """
    if config.mode != "auto":
        return config.mode
    few = num_clients <= _MAX_ACTOR_CLIENTS and stack == 1
    return "actors" if few or config.placement == "typed" else "packed"


def local_session(setup: Setup) -> SessionOptions:
    """Options of the cluster to join, or of a local one whose node has the resources of all of the fleet's devices."""
    resources: dict[str, float] = {}
    for client in setup.fleet.clients:
        for name, amount in setup.types[client.device].ray_resources.items():
            resources[name] = resources.get(name, 0.0) + amount
    return SessionOptions(address=setup.config.runtime.address, resources=resources)


def run_experiment(
    setup: Setup, path: Path, callbacks: RunCallbacks | None = None, worker_cache: WorkerCache | None = None
) -> RunRecord:
    """Run the remaining rounds of the run in ``path``, a folder that ``lifecycle.create`` made and closed.

    ``worker_cache`` keeps worker processes and coordinator for the next run; without it they end with this one.

    Raises:
        UserError: bad input, a cluster without a needed resource, hosts with other code.
        RoundVoid: too few usable answers; the folder stays resumable.
        ClientFailed: code of a client raised.
    """
    callbacks = callbacks or RunCallbacks()
    mode = choose_mode(setup.config.runtime, len(setup.fleet), setup.config.training.stack)
    use_threads(setup.job.num_threads)
    if mode == "inline":
        return run_inline(
            setup,
            path,
            on_round=callbacks.on_round,
            on_note=callbacks.on_note,
            should_stop=callbacks.should_stop,
            make_tracker=callbacks.make_tracker,
        )
    with ray_session(local_session(setup)):
        return _run_on_ray(setup, path, callbacks, _runtime_options(setup.config.runtime, mode), worker_cache)


def _run_on_ray(
    setup: Setup, path: Path, callbacks: RunCallbacks, options: RuntimeOptions, worker_cache: WorkerCache | None
) -> RunRecord:
    from actors.runtime.warm_pool import WorkerCache

    kept = worker_cache or WorkerCache(path.resolve().name)
    finished = False
    try:
        # First of all: its process has the most to import, and all start at the same time.
        coordinator = kept.coordinator() if callbacks.separate else None
        group = kept.hosts(setup.job, options, {name: device.ray_resources for name, device in setup.types.items()})
        if coordinator is None:
            run = _run_here(setup, path, callbacks, group, options)
        else:
            run = _run_separate(setup, path, callbacks, group, options, coordinator)
        finished = run.status == "done" or callbacks.is_paused()
        return run
    finally:
        # Processes of an interrupted run may still be at work.
        if worker_cache is None or not finished:
            kept.close()


def _runtime_options(config: RuntimeConfig, mode: Literal["packed", "actors"]) -> RuntimeOptions:
    """The executor's part of the configuration."""
    from actors.runtime.placement import RuntimeOptions

    return RuntimeOptions(
        mode=mode,
        num_hosts=config.num_hosts,
        placement=config.placement,
        client_timeout_s=config.client_timeout_s,
        data=config.data,
        on_timeout=config.on_timeout,
        lost_wait_s=config.lost_wait_s,
        physical=config.physical,
    )


def _run_here(
    setup: Setup, path: Path, callbacks: RunCallbacks, group: HostGroup, options: RuntimeOptions
) -> RunRecord:
    from actors.runtime.coordinator import GracePeriod, run_with_retries
    from actors.runtime.executor import RayExecutor

    grace_period = GracePeriod(callbacks.should_stop)
    executor = RayExecutor(setup.job, group, options, grace_period.is_over, owns_hosts=False, on_note=callbacks.on_note)
    with RunFolder.resume(path) as folder, closing(callbacks.make_tracker()) as tracker:
        experiment = Experiment(setup=setup, folder=folder, executor=executor, tracker=tracker, facts=executor.facts)
        for repair in experiment.repairs:
            callbacks.on_note(f"repaired: {repair}")
        return run_with_retries(
            experiment, callbacks.on_round, callbacks.should_stop, callbacks.on_note, executor.recover
        )


def _run_separate(
    setup: Setup, path: Path, callbacks: RunCallbacks, group: HostGroup, options: RuntimeOptions, coordinator: Handle
) -> RunRecord:
    from actors.runtime import serialization
    from actors.runtime.coordinator import RunRequest
    from actors.runtime.coordinator_client import follow

    request = RunRequest(
        setup=serialization.put(setup, setup.job.modules),
        path=path.resolve(),
        group=group,
        options=options,
        make_tracker=callbacks.make_tracker,
    )
    return follow(coordinator, request, callbacks.on_round, callbacks.on_note, callbacks.should_stop)


def ray_executors(stack: ExitStack) -> dict[str, MakeExecutor]:
    """Executors that a method is compared on: packed Ray hosts, started with the first run that asks for them."""
    opened: list[bool] = []

    def packed(job: Job) -> Executor:
        if not opened:
            stack.enter_context(ray_session(SessionOptions(num_cpus=_NUM_COMPARED)))
            opened.append(True)
        from actors.runtime.executor import open_executor
        from actors.runtime.placement import RuntimeOptions

        return open_executor(job, RuntimeOptions(num_hosts=_NUM_COMPARED))

    return {"packed on Ray": packed}
