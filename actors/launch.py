"""Runs an experiment where its configuration says: in this process, or in worker processes on Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from actors.runtime.session import SessionOptions, owns_cluster, ray_session
from relief_ray.config.experiment import settings_of
from relief_ray.config.runtime import RuntimeConfig
from relief_ray.conformance.trial import Conformance, judged_of
from relief_ray.core.protocols import Executor
from relief_ray.data.loader import Loader
from relief_ray.experiment.experiment import (
    MakeExecutor,
    OnRound,
    ignore,
    never,
    run_opened,
)
from relief_ray.experiment.setup import Setup
from relief_ray.records.schema import RunRecord
from relief_ray.studies.loop import Computer
from relief_ray.studies.request import BackboneLike, StrategyLike, check_words, named_target
from relief_ray.support.errors import in_python
from relief_ray.support.process import use_threads
from relief_ray.training.executor import SerialExecutor
from relief_ray.training.job import Job

if TYPE_CHECKING:
    from actors.runtime.warm_pool import WorkerCache
    from relief_ray.studies.loop import Tell

RunMode = Literal["inline", "packed", "actors"]
_WHERE: Mapping[RunMode, str] = {
    "inline": "in this process",
    "packed": "on Ray, packed",
    "actors": "on Ray, an actor each",
}
_MAX_ACTOR_CLIENTS = 10
# Worker processes on which a method has to have the bits of the plain loop.
_NUM_COMPARED = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Hooks:
    """Options of a single run, and the callbacks in the process that starts it.

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


def local_session(setup: Setup) -> SessionOptions:
    """Options of the cluster to join, or of a local one whose node has the resources of all of the fleet's devices."""
    resources: dict[str, float] = {}
    for client in setup.fleet.clients:
        for name, amount in setup.types[client.device].ray_resources.items():
            resources[name] = resources.get(name, 0.0) + amount
    return SessionOptions(address=setup.config.runtime.address, resources=resources)


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
    mode = _mode(setup)
    use_threads(setup.job.num_threads)
    if mode == "inline":
        on_round = hooks.on_round or ignore
        make = SerialExecutor if worker_cache is None else partial(SerialExecutor, inputs=worker_cache.inputs)
        return run_opened(setup, path, make, hooks.should_stop, on_round=on_round, on_note=hooks.on_note)
    with ray_session(local_session(setup)):
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
    note, should_stop = hooks.on_note, hooks.should_stop
    is_here = hooks.on_round is not None or _rounds_are_here(setup, options)
    try:
        # First of all: its process has the most to import, and all start at the same time.
        coordinator = None if is_here else kept.coordinator()
        group = kept.workers(setup.job, options, {name: device.ray_resources for name, device in setup.types.items()})
        if is_here:
            run = run_on_workers(setup, path, group, options, should_stop, note, hooks.on_round)
        else:
            setup_ref = serialization.put(setup, setup.job.modules)
            request = RunRequest(setup=setup_ref, path=path.resolve(), group=group, options=options)
            run = follow(coordinator, request, note, should_stop)
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


def ray_executors(stack: ExitStack) -> dict[str, MakeExecutor]:
    """Executors that a method is compared on: packed Ray hosts, started with the first run that asks for them."""

    def packed(job: Job) -> Executor:
        stack.enter_context(ray_session(SessionOptions(num_cpus=_NUM_COMPARED)))  # but for the first it is up already
        from actors.runtime.executor import open_executor

        return open_executor(job, RuntimeConfig(mode="packed", num_hosts=_NUM_COMPARED))

    return {"packed on Ray": packed}


@dataclass(kw_only=True, slots=True)
class OnRay(Computer):
    """Computes the cells of one study on Ray, which is opened with the first that needs it and ended with ``session``.

    Attributes:
        name: first part of the names of worker processes; empty: the first run's.
        session: what ends Ray and the workers.
        dashboard: open Ray's dashboard with a local cluster, whose address ``on_note`` hears.
        on_note: hears of it.
        lost: called where Ray does not answer any more.
        workers: worker processes that the next run takes over; None before the first on Ray.
    """

    name: str = ""
    session: ExitStack = field(default_factory=ExitStack)
    dashboard: bool = False
    on_note: Callable[[str], None] = ignore
    lost: Callable[[str], None] | None = None
    workers: WorkerCache | None = None

    def where(self, setup: Setup) -> str:
        """A worker process, or this one."""
        return _WHERE[_mode(setup)]

    def compute(self, setup: Setup, path: Path, stop: Callable[[], bool], on_note: Callable[[str], None]) -> RunRecord:
        """Compute the missing rounds of a run; worker processes stay for the next run."""
        if _mode(setup) == "inline":
            return Computer.compute(self, setup, path, stop, on_note)  # `super()` knows no class with slots
        if self.workers is None:
            options = replace(local_session(setup), dashboard=self.dashboard)
            if (url := self.session.enter_context(ray_session(options, self.lost))) is not None:
                self.on_note(f"dashboard: {url}")
            from actors.runtime.warm_pool import WorkerCache

            self.workers = WorkerCache(self.name or setup.config.name)
            self.session.callback(self.workers.close)
        return run_experiment(setup, path, Hooks(on_note=on_note, should_stop=stop), self.workers)

    def unopened(self) -> OnRay:
        """Return one without session and listeners."""
        return OnRay(name=self.name, dashboard=self.dashboard, lost=self.lost and ignore)

    def opened(self, tell: Tell) -> AbstractContextManager[object]:
        """Open the session, print its notes, and return it."""
        self.on_note, self.lost = partial(tell, "note", ""), self.lost and partial(tell, "lost")
        return self.session


def _mode(setup: Setup) -> RunMode:
    return choose_mode(setup.config.runtime, len(setup.fleet), setup.config.training.stack)


def on_ray() -> AbstractContextManager[OnRay]:
    """What computes the runs of ``relief_ray.run(.., on="ray")``; Ray is up from the first that needs it to the end.

    Raises:
        ImportError: Ray is not installed.
    """
    if find_spec("ray") is None:
        raise ImportError("No module named 'ray'")
    return _opened()


@contextmanager
def _opened() -> Iterator[OnRay]:
    with (ray := OnRay()).session:
        yield ray


def conformance(
    target: StrategyLike | BackboneLike | Loader,
    *,
    set: Mapping[str, object] | None = None,
    ray: bool = True,
    equals: str = "",
    within: float = 0.0,
) -> Conformance:
    """Judge the rules that every method, backbone or data set keeps, as `relief-ray conformance` does.

    Args:
        target: a name, an import path, a class, a configuration or a loader.
        set: settings by dotted key; a key without a section is the method's or the backbone's own: ``{"mu": 0}``.
        ray: compare a method with a run on Ray too; without it nothing of Ray is loaded.
        equals: judge only whether the method's rounds are those of this one.
        within: the largest difference of a value that ``equals`` allows.

    Raises:
        UserError: there is no such target, or a setting is wrong.
    """
    with in_python(), ExitStack() as stack:
        name, fields = named_target(target)
        check_words({}, set or {})
        executors = ray_executors(stack) if ray else {}
        return judged_of(name, [*fields, *settings_of(set or {})], executors, equals, within).judge()
