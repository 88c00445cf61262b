"""Cuts a round's blocks into calls: large enough to be worth the transfer, small enough to balance the workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from actors.runtime.worker_pool import Piece, WorkerPool
from relief_ray.core.messages import Assignment, ClientId, Receipt, WeightedSum
from relief_ray.server.reduction import evenly
from relief_ray.training.job import Job

# What an answer's float32 values cost a round: packing, shared memory, reading and adding up, measured on two busy
# cores. Sums of several clients are float64 and cost twice that; below, only ratios to training's seconds matter.
ANSWER_S_PER_BYTE = 1.5e-9
CALL_S = 1e-3
# Least gain that justifies scheduling by predicted seconds; and the longest round for which it is done at all: a user
# who asks a run to stop should not wait for longer.
LEAST_GAIN, LONG_S = 0.03, 5.0


def _group_epochs(task: Assignment) -> int:
    return len(task.train) * task.epochs


class Scheduler:
    """Cuts the rounds of a job for the workers of a pool."""

    def __init__(self, job: Job, pool: WorkerPool, *, by_client: bool) -> None:
        """``by_client``: every client has a worker of its own."""
        self._job, self._pool, self._by_client = job, pool, by_client
        # Seconds of each client the last time it trained, and its work then.
        self._timed: dict[ClientId, tuple[float, int]] = {}
        self._answer_nbytes = 0

    def note(self, receipts: Sequence[Receipt], busy_s: float) -> None:
        """Learn from a round in which workers were busy for ``busy_s``; time beside training is shared equally."""
        trained_s = {r.assignment.client: r.work.measured.compute_s for r in receipts}
        beside_s = max(0.0, busy_s - sum(trained_s.values())) / max(1, len(trained_s))
        for task in (receipt.assignment for receipt in receipts):
            self._timed[task.client] = trained_s[task.client] + beside_s, _group_epochs(task)
        self._answer_nbytes = max((r.bytes_up for r in receipts), default=0)

    def foresee(self, tasks: Iterable[Assignment]) -> dict[ClientId, float] | None:
        """Predicted seconds of every client's task: its last ones by its work; None where one was never timed."""
        predicted_s: dict[ClientId, float] = {}
        for task in tasks:
            if task.client not in self._timed:
                return None
            seconds, work = self._timed[task.client]
            predicted_s[task.client] = seconds * (_group_epochs(task) / work if work else 1.0)
        return predicted_s

    def work(self, task: Assignment) -> int:
        """Amount of work of a task, without unit: compares tasks that were never timed."""
        return self._job.fleet[task.client].num_windows * _group_epochs(task)

    def calls(self, blocks: Sequence[tuple[Assignment, ...]]) -> Sequence[tuple[Piece, ...]]:
        """The pieces of every call, in the order of sending."""
        cut, tasks = list(enumerate(blocks)), [task for block in blocks for task in block]
        if self._by_client:
            return one_by_one(cut)
        workers, slots = self._pool.workers, self._pool.num_places
        if self._job.trainer.stack > 1:
            return stacked_calls(cut, slots)
        are_equal = len(self._pool.nodes) == 1 and all(worker.usable for worker in workers)
        # Single updates (Collect) do not become fewer on the way: they had better come as they arise.
        if are_equal and isinstance(self._job.reduction, WeightedSum) and (paces := self.foresee(tasks)):
            merged = merged_calls(cut, slots, paces, self._answer_nbytes)
            if merged is not None:
                return merged
        return single_calls(cut, slots, {task.client: self.work(task) for task in tasks})


def stacked_calls(cut: Sequence[Piece], slots: int) -> list[tuple[Piece, ...]]:
    """One call for each worker, of as many consecutive blocks: only clients of one call can share their steps."""
    return evenly(cut, min(slots, len(cut)))


def single_calls(cut: Sequence[Piece], slots: int, work: Mapping[ClientId, float]) -> list[tuple[Piece, ...]]:
    """A call per block, most work first; single clients in client order where ``slots`` workers share few blocks."""
    if 2 * slots > len(cut) and any(len(tasks) > 1 for _, tasks in cut):
        # In client order: only few may wait in memory for one before them.
        return one_by_one(cut)
    return [(piece,) for piece in sorted(cut, key=lambda piece: -_sum(piece, work))]


def one_by_one(cut: Iterable[Piece]) -> list[tuple[Piece, ...]]:
    """A call for each client."""
    return [((i, (task,)),) for i, tasks in cut for task in tasks]


def merged_calls(
    cut: Sequence[Piece], slots: int, seconds: Mapping[ClientId, float], nbytes: int
) -> list[tuple[Piece, ...]] | None:
    """One call for each of ``slots`` equal workers, where that is expected to end the round sooner than single calls.

    Single calls balance better; blocks that are halves of one another in the reduction tree are one sum where one
    worker has them. Tried are runs of 1, 2, 4, .. such blocks, given to workers longest first: expected is the busiest
    worker's seconds, ``CALL_S`` a call and ``ANSWER_S_PER_BYTE`` of what travels; ``nbytes``: a client's values. None
    where single calls are as good but for ``LEAST_GAIN``, or the round is longer than ``LONG_S``.
    """
    apart = single_calls(cut, slots, seconds)
    _, busiest_s = _spread(apart, slots, seconds)
    if busiest_s > LONG_S:
        return None
    least_s = (1 - LEAST_GAIN) * (busiest_s + CALL_S * len(apart) + _answers_s(apart, nbytes))
    best = None
    for level in range((len(cut) - 1).bit_length() + 1):
        runs = [cut[i : i + (1 << level)] for i in range(0, len(cut), 1 << level)]
        workers, longest_s = _spread(runs, slots, seconds)
        expected_s = longest_s + CALL_S * len(workers) + _answers_s(runs, nbytes)
        if expected_s < least_s:
            least_s, best = expected_s, [tuple(sorted(worker, key=lambda piece: piece[0])) for worker in workers]
    return best


def _answers_s(runs: Sequence[Sequence[Piece]], nbytes: int) -> float:
    """Seconds for transferring these runs' answers, each one sum: single clients in float32, sums in float64."""
    singles = sum(sum(len(tasks) for _, tasks in run) == 1 for run in runs)
    return ANSWER_S_PER_BYTE * nbytes * (2 * len(runs) - singles)


def _sum(piece: Piece, seconds: Mapping[ClientId, float]) -> float:
    return sum(seconds[task.client] for task in piece[1])


def _spread(
    runs: Sequence[Sequence[Piece]], slots: int, seconds: Mapping[ClientId, float]
) -> tuple[list[list[Piece]], float]:
    """Longest first, each to the worker with the least so far: those with any, and the busiest one's seconds."""
    workers: list[list[Piece]] = [[] for _ in range(slots)]
    loads = [0.0] * slots
    timed = [(sum(_sum(piece, seconds) for piece in run), run) for run in runs]
    for run_s, run in sorted(timed, key=lambda each: -each[0]):
        least = loads.index(min(loads))
        workers[least] += run
        loads[least] += run_s
    return [worker for worker in workers if worker], max(loads)
