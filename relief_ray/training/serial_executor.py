"""The plain loop: one worker, no Ray. The oracle for every other executor, and the debugger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from relief_ray.groups import Params
from relief_ray.messages import Assignment, ClientId, ClientState, EvalTarget, Reduced, Trained
from relief_ray.server.reduction import blocks, merge_blocks
from relief_ray.training.job import BlockResult, Job
from relief_ray.training.worker import Worker


def combine(results: Iterable[BlockResult], moved_bytes: int = 0) -> Trained:
    """Merges block results in block order: the one place where a round's pieces come together, for every executor."""
    parts = list(results)
    reduced = Reduced(
        sums=merge_blocks(p.sums for p in parts),
        receipts=tuple(r for p in parts for r in p.receipts),
        updates=tuple(u for p in parts for u in p.updates),
    )
    return Trained(
        reduced=reduced,
        states={c: s for p in parts for c, s in p.states.items()},
        rejected={c: why for p in parts for c, why in p.rejected.items()},
        refused=tuple(r for p in parts for r in p.refused),
        pairwise=tuple(u for p in parts for u in p.pairwise),
        moved_bytes=moved_bytes,
    )


class SerialExecutor:
    """Runs blocks one after the other in this process (an ``Executor``)."""

    def __init__(self, job: Job) -> None:
        """Builds the one worker."""
        self._worker = Worker(job)

    def train(
        self,
        round_: int,
        models: Mapping[str, Params],
        tasks: Sequence[Assignment],
        states: Mapping[ClientId, ClientState],
    ) -> Trained:
        """One round."""
        return combine(self._worker.train_blocks(round_, models, blocks(tasks), states))

    def evaluate(
        self,
        models: Mapping[str, Params],
        targets: Sequence[EvalTarget],
        states: Mapping[ClientId, ClientState],
        part: str,
    ) -> Mapping[str, Tensor]:
        """Confusion matrices of every target."""
        return self._worker.evaluate(models, targets, states, part)

    def close(self) -> None:
        """Nothing to release."""
