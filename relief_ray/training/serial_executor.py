"""The serial executor: one worker in this process, without Ray. The reference for every other executor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from relief_ray.core.groups import Params
from relief_ray.core.messages import Assignment, ClientId, ClientState, EvalTarget, Trained
from relief_ray.server.reduction import blocks
from relief_ray.training.executor import Worker
from relief_ray.training.job import Job, combine


class SerialExecutor:
    """Runs blocks of clients one after another in this process (an ``Executor``)."""

    def __init__(self, job: Job) -> None:
        """Build the one worker."""
        self._worker = Worker(job)

    def train(
        self,
        round_: int,
        models: Mapping[str, Params],
        tasks: Sequence[Assignment],
        states: Mapping[ClientId, ClientState],
    ) -> Trained:
        """Train one round's assignments and sum their updates."""
        return combine(self._worker.train_blocks(round_, models, blocks(tasks), states))

    def evaluate(
        self,
        models: Mapping[str, Params],
        targets: Sequence[EvalTarget],
        states: Mapping[ClientId, ClientState],
        part: str,
    ) -> Mapping[str, Tensor]:
        """Confusion matrices of every target on the windows of ``part``."""
        return self._worker.evaluate(models, targets, states, part)

    def close(self) -> None:
        """Release nothing."""
