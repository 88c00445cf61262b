"""Carries a run out where its configuration says: in this process, or on Ray with one host per core or per client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import torch

from actors.session import SessionOptions, ray_session
from relief_ray.config import RuntimeConfig
from relief_ray.errors import UserError
from relief_ray.records.ledger import RunFolder
from relief_ray.records.schema import RunRecord
from relief_ray.records.tracking import NullTracker, Tracker
from relief_ray.setup import Setup
from relief_ray.simulation import Experiment, OnRound, ignore, never
from relief_ray.training.serial import SerialExecutor

if TYPE_CHECKING:
    import ray
    from ray.actor import ActorHandle

    from actors.coordinator import Coordinator
    from actors.group import HostGroup, RuntimeOptions

RunMode = Literal["inline", "packed", "actors"]
MAX_ACTOR_CLIENTS = 10
MAX_COORDINATOR_STARTS = 3
POLL_S = 0.25


@dataclass(frozen=True, kw_only=True, slots=True)
class Watch:
    """How a run is followed and stopped; ``separate``: its coordinator is a process of its own (not in a Tune trial)."""

    on_round: OnRound = ignore
    on_note: Callable[[str], None] = lambda text: None
    should_stop: Callable[[], bool] = never
    make_tracker: Callable[[], Tracker] = NullTracker
    separate: bool = True


def choose_mode(config: RuntimeConfig, num_clients: int) -> RunMode:
    """``auto``: an actor per client up to ten clients or with typed placement, else packed hosts."""
    if config.mode != "auto":
        return config.mode
    return "actors" if num_clients <= MAX_ACTOR_CLIENTS or config.placement == "typed" else "packed"


def local_session(setup: Setup) -> SessionOptions:
    """A session for this run: its cluster, or a local one whose node plays all of the fleet's devices."""
    resources: dict[str, float] = {"server": 1.0}
    for client in setup.fleet.clients:
        for name, amount in setup.types[client.device].ray_resources.items():
            resources[name] = resources.get(name, 0.0) + amount
    return SessionOptions(address=setup.config.runtime.address, resources=resources)


def run_experiment(setup: Setup, path: Path, watch: Watch | None = None) -> RunRecord:
    """Runs the remaining rounds of the run in ``path``, a folder that ``simulation.create`` or ``reopen`` made and closed.

    Raises:
        UserError: bad input, a cluster without a needed resource, hosts with other code.
        RoundVoid: too few usable answers; the folder stays resumable.
        ClientFailed: code of a client raised.
    """
    watch = watch or Watch()
    mode = choose_mode(setup.config.runtime, len(setup.fleet))
    torch.set_num_threads(setup.job.num_threads)
    if mode == "inline":
        return _run_inline(setup, path, watch)
    with ray_session(local_session(setup)):
        return _run_on_ray(setup, path, watch, mode)


def _run_inline(setup: Setup, path: Path, watch: Watch) -> RunRecord:
    with (
        RunFolder.resume(path) as folder,
        closing(watch.make_tracker()) as tracker,
        closing(SerialExecutor(setup.job)) as executor,
    ):
        folder.update(runtime={"mode": "inline"})
        experiment = Experiment(setup=setup, folder=folder, executor=executor, tracker=tracker)
        _note(watch, experiment.repairs)
        return experiment.run(watch.on_round, watch.should_stop)


def _run_on_ray(setup: Setup, path: Path, watch: Watch, mode: Literal["packed", "actors"]) -> RunRecord:
    from actors.group import open_hosts

    options = runtime_options(setup.config.runtime, mode)
    types = {name: device.ray_resources for name, device in setup.types.items()}
    group = open_hosts(setup.job, options, types)
    try:
        return (_run_separate if watch.separate else _run_here)(setup, path, watch, group, options)
    finally:
        group.close()


def runtime_options(config: RuntimeConfig, mode: Literal["packed", "actors"]) -> RuntimeOptions:
    """The executor's part of the configuration."""
    from actors.group import RuntimeOptions

    return RuntimeOptions(
        mode=mode,
        num_hosts=config.num_hosts,
        placement=config.placement,
        client_timeout_s=config.client_timeout_s,
        quorum=config.quorum,
    )


def _run_here(setup: Setup, path: Path, watch: Watch, group: HostGroup, options: RuntimeOptions) -> RunRecord:
    from actors.coordinator import Patience, conduct
    from actors.executor import RayExecutor

    patience = Patience(watch.should_stop)
    executor = RayExecutor(setup.job, group, options, patience.is_over, own=False)
    with RunFolder.resume(path) as folder, closing(watch.make_tracker()) as tracker:
        folder.update(runtime=executor.facts())
        experiment = Experiment(setup=setup, folder=folder, executor=executor, tracker=tracker)
        _note(watch, experiment.repairs)
        return conduct(experiment, watch.on_round, watch.should_stop, lambda: executor.num_lost)


def _run_separate(setup: Setup, path: Path, watch: Watch, group: HostGroup, options: RuntimeOptions) -> RunRecord:
    import ray

    ref = ray.put(setup)
    coordinator = start_coordinator(ref, path.resolve(), group, options, watch.make_tracker)
    try:
        return follow(coordinator, watch)
    finally:
        ray.kill(coordinator)


def start_coordinator(
    setup: ray.ObjectRef[Setup],
    path: Path,
    group: HostGroup,
    options: RuntimeOptions,
    make_tracker: Callable[[], Tracker],
) -> ActorHandle[Coordinator]:
    """The coordinator's actor, on the ``server`` node where the cluster has one."""
    import ray

    from actors.coordinator import Coordinator

    methods = {"progress": "control", "stop": "control"}
    for name, control in methods.items():
        ray.method(concurrency_group=control)(getattr(Coordinator, name))
    actor = ray.remote(Coordinator).options(
        num_cpus=0,
        resources={"server": 0.001} if "server" in ray.cluster_resources() else {},
        max_restarts=-1,
        max_task_retries=0,
        concurrency_groups={"control": 2},
        runtime_env={"env_vars": {"OMP_NUM_THREADS": "1"}},
    )
    return cast("ActorHandle[Coordinator]", actor.remote([setup], path, group, options, make_tracker))


def follow(coordinator: ActorHandle[Coordinator], watch: Watch) -> RunRecord:
    """Waits for a coordinator's run, passes its rounds on, and starts it again where its process died.

    Raises:
        UserError, RoundVoid, ClientFailed: as the run raised them.
    """
    import ray

    starts, seen, stopped = 1, -1, False
    run = coordinator.run.remote()
    while True:
        if watch.should_stop() and not stopped:
            coordinator.stop.remote()
            stopped = True
        done = bool(ray.wait([run], timeout=POLL_S)[0])
        try:
            seen = _report(coordinator, watch, seen)
            if done:
                return ray.get(run)
        except ray.exceptions.RayTaskError as error:
            raise _cause(error) from error
        except ray.exceptions.RayActorError:
            if starts == MAX_COORDINATOR_STARTS:
                raise
            starts, stopped = starts + 1, False
            run = _start_again(coordinator)
