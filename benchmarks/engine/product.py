"""The product as a harness: an experiment on Ray hosts, records and checkpoints included, some rounds at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from torch import Tensor

from actors.runtime.executor import RayExecutor
from actors.runtime.placement import open_workers
from benchmarks.engine.machine import Figures
from relief_ray.config.runtime import RuntimeConfig
from relief_ray.core.messages import Assignment, EvalTarget, Models, States, Trained
from relief_ray.core.protocols import Executor
from relief_ray.experiment.experiment import Experiment
from relief_ray.experiment.recording import run_record
from relief_ray.experiment.setup import Setup
from relief_ray.records.run_folder import RunFolder
from relief_ray.records.schema import RoundRecord
from relief_ray.support.process import use_threads


class Stopwatch:
    """An executor that notes how long training rounds keep the driver waiting (an ``Executor``)."""

    def __init__(self, executor: Executor) -> None:
        self._executor, self.seconds = executor, list[float]()

    def train(self, round_: int, models: Models, tasks: Sequence[Assignment], states: States) -> Trained:
        """Delegate to the executor."""
        began = perf_counter()
        trained = self._executor.train(round_, models, tasks, states)
        self.seconds.append(perf_counter() - began)
        return trained

    def evaluate(
        self, models: Models, targets: Sequence[EvalTarget], states: States, part: str
    ) -> Mapping[str, Tensor]:
        """Delegate to the executor."""
        return self._executor.evaluate(models, targets, states, part)

    def close(self) -> None:
        """Delegate to the executor."""
        self._executor.close()


class Product:
    """An experiment that runs some rounds at a time; its executor may serve several experiments of the same job."""

    def __init__(self, setup: Setup, path: Path, executor: RayExecutor | None = None) -> None:
        options = RuntimeConfig(mode="packed", num_hosts=setup.config.runtime.num_hosts)
        self._group = open_workers(setup.job, options) if executor is None else None
        self.executor = RayExecutor(setup.job, self._group, options, owns_workers=True) if self._group else executor
        self._folder = RunFolder.create(path, run_record(setup))
        assert self.executor is not None
        watch = Stopwatch(self.executor)
        self._experiment = Experiment(setup=setup, folder=self._folder, executor=watch)
        self.train_s = watch.seconds
        self.round_s: list[float] = []
        self.records: list[RoundRecord] = []

    def run(self, num_rounds: int) -> list[float]:
        """Seconds of each of the next rounds, from commit to commit."""
        seconds: list[float] = []
        began = perf_counter()

        def note(record: RoundRecord) -> None:
            nonlocal began
            now = perf_counter()
            seconds.append(now - began)
            self.records.append(record)
            began = now

        self._experiment.run(note, lambda: len(seconds) == num_rounds)
        self.round_s += seconds
        return seconds

    def segment(self, num_rounds: int) -> list[float]:
        """Run ``num_rounds`` after one round that is not counted, in which the run's record is also rewritten."""
        return self.run(num_rounds + 1)[1:]

    @property
    def busy_s(self) -> float:
        """Seconds that hosts spent on training calls so far, all of them together."""
        assert self.executor is not None
        return self.executor.pool.busy_s

    @property
    def num_hosts(self) -> int:
        """Number of worker processes."""
        assert self.executor is not None
        return int(str(self.executor.facts()["num_hosts"]))

    @property
    def flat(self) -> Tensor:
        """The current global model."""
        setup = self._experiment.setup
        return setup.layout.flatten(self._experiment.state.models["global"])

    def close(self) -> None:
        """End the worker processes that this object started, and close the folder."""
        self._folder.close()
        if self._group is not None:
            self._group.close()


@dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """Shares of a product's rounds from now on that its parts take of their wall time."""

    product: Product
    busy_s: float
    num_rounds: int

    @classmethod
    def of(cls, product: Product) -> Shares:
        """Start measuring ``product``."""
        return cls(product=product, busy_s=product.busy_s, num_rounds=len(product.round_s))

    def figures(self) -> Figures:
        """Shares of the hosts' work (mean over hosts), of the driver's wait beyond it, and of the driver's own work."""
        seen = self.product
        wall_s, waited_s = sum(seen.round_s[self.num_rounds :]), sum(seen.train_s[self.num_rounds :])
        hosts_s = (seen.busy_s - self.busy_s) / seen.num_hosts
        parts_s = {"hosts": hosts_s, "wire": waited_s - hosts_s, "server": wall_s - waited_s}
        return {f"{name}_share": seconds / wall_s for name, seconds in parts_s.items()}


def deviation(actual: Tensor, expected: Tensor, start: Tensor) -> float:
    """Relative L2 distance of two updates from the same start."""
    return float((actual.double() - expected.double()).norm() / (expected.double() - start.double()).norm())


def straggler_s(record: RoundRecord) -> float:
    """The slowest client's measured compute seconds."""
    stages = [c.measured_stages for c in record.clients]
    return max(s.forward_s + s.backward_s + s.optimizer_s for s in stages)


def use_one_thread() -> None:
    """Limit this process to one thread, as every worker and every peer."""
    use_threads(1)
