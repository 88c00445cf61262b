"""The Ray runtime of the library and the command line: computes studies, and compares methods with the plain loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from actors.runtime.session import SessionOptions, ray_session
from actors.runtime.single_run import WHERE, Hooks, local_session, mode_of, run_experiment
from relief_ray.config.experiment import settings_of
from relief_ray.config.runtime import RuntimeConfig
from relief_ray.conformance.trial import Conformance, concluded, judged_of
from relief_ray.core.protocols import Executor
from relief_ray.data.loader import Loader
from relief_ray.experiment.experiment import MakeExecutor, Stop, ignore
from relief_ray.experiment.setup import Setup
from relief_ray.records.schema import RunRecord
from relief_ray.studies.loop import Computer
from relief_ray.studies.request import BackboneLike, StrategyLike, check_words, named_target
from relief_ray.support.errors import in_python
from relief_ray.training.job import Job

if TYPE_CHECKING:
    from actors.runtime.warm_pool import WorkerCache
    from relief_ray.studies.copies import Say
    from relief_ray.studies.loop import Loop, Tell

# Worker processes on which a method has to have the bits of the plain loop.
_NUM_COMPARED = 2


def ray_executors(stack: ExitStack) -> dict[str, MakeExecutor]:
    """Executors that a method is compared on: packed Ray hosts, started with the first run that asks for them."""

    def packed(job: Job) -> Executor:
        stack.enter_context(ray_session(SessionOptions(num_cpus=_NUM_COMPARED)))  # but for the first it is up already
        from actors.runtime.executor import open_executor

        return open_executor(job, RuntimeConfig(mode="packed", num_hosts=_NUM_COMPARED))

    return {"packed on Ray": packed}


@dataclass(kw_only=True, slots=True)
class OnRay(Computer):
    """Computes the cells of a study on Ray, which is opened with the first that needs it and ended with ``session``.

    Attributes:
        name: first part of the names of worker processes; empty: the first run's.
        session: what ends Ray and the workers.
        dashboard: open Ray's dashboard with a local cluster, whose address ``on_note`` hears.
        on_note: hears of it.
        workers: worker processes that the next run takes over; None before the first on Ray.
    """

    name: str = ""
    session: ExitStack = field(default_factory=ExitStack)
    dashboard: bool = False
    on_note: Say = ignore
    workers: WorkerCache | None = None

    def where(self, setup: Setup) -> str:
        """A worker process, or this one."""
        return WHERE[mode_of(setup)]

    def compute(self, setup: Setup, path: Path, stop: Stop, on_note: Say) -> RunRecord:
        """Compute the missing rounds of a run; worker processes stay for the next run."""
        if mode_of(setup) == "inline":
            return Computer.compute(self, setup, path, stop, on_note)  # `super()` knows no class with slots
        if self.workers is None:
            options = replace(local_session(setup, path), dashboard=self.dashboard)
            if (url := self.session.enter_context(ray_session(options, self.lost))) is not None:
                self.on_note(f"dashboard: {url}")
            from actors.runtime.warm_pool import WorkerCache

            self.workers = WorkerCache(self.name or setup.config.name)
            self.session.callback(self.workers.close)
        return run_experiment(setup, path, Hooks(on_note=on_note, should_stop=stop), self.workers)

    def carry_out(self, loop: Loop, jobs: int | None = 1, *, other_code: bool = False) -> None:
        """Compute a grid's cells, and several runs with ``jobs``, as trials of Ray Tune; others one after the other."""
        if not loop.plan.is_grid and (jobs == 1 or len(loop.todo) < 2):
            return Computer.carry_out(self, loop, jobs, other_code=other_code)
        from actors.grids.scheduler import side_by_side

        return side_by_side(loop, jobs, dashboard=self.dashboard, other_code=other_code, lost=self.lost)

    def unopened(self) -> OnRay:
        """Return one without session and listeners."""
        return OnRay(name=self.name, dashboard=self.dashboard, lost=self.lost and ignore)

    def opened(self, tell: Tell) -> AbstractContextManager[object]:
        """Open the session, print its notes, and return it."""
        self.on_note, self.lost = partial(tell, "note", ""), self.lost and partial(tell, "lost")
        return self.session


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
        judged, verdicts = judged_of(name, [*fields, *settings_of(set or {})], executors, equals, within)
        return concluded(judged, verdicts)
