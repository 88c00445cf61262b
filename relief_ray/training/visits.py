"""A job's clients in training: one after the other, or several at once (``training.stack``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from relief_ray.errors import ClientFailed, UserError
from relief_ray.federated import ClientContext
from relief_ray.groups import Params
from relief_ray.messages import NO_STATE, Assignment, ClientId, ClientState, Update
from relief_ray.training.job import Job
from relief_ray.training.rows import ClientInputs
from relief_ray.training.stacked import StackedTrainer
from relief_ray.training.steps import LocalRound
from relief_ray.training.trainer import Trainer


class Visits:
    """Visits clients; ``inputs`` gives a client's prepared windows."""

    def __init__(self, job: Job, trainer: Trainer, inputs: Callable[[ClientId], ClientInputs]) -> None:
        """Nobody was visited yet."""
        self._job, self._trainer, self._inputs = job, trainer, inputs
        self._stacked = StackedTrainer(trainer, job.trainer.stack)

    def updates(
        self,
        round_: int,
        models: Mapping[str, Params],
        blocks: Sequence[Sequence[Assignment]],
        states: Mapping[ClientId, ClientState],
        *,
        spent: bool,
    ) -> Iterator[tuple[Update, bool]]:
        """The clients' updates in order, as many at a time as are trained together; whether a delta's memory is lent.

        ``spent``: each is done with when the next one is asked for, but for the first of a block. The deltas of all
        others may be in the trained models' memory.

        Raises:
            ClientFailed: a client's code raised; the client is named.
        """
        tasks = [(task, spent and place > 0) for block in blocks for place, task in enumerate(block)]
        size = self._job.trainer.stack
        for chunk in (tasks[i : i + size] for i in range(0, len(tasks), size)):
            rounds = []
            for task, _ in chunk:
                with self._named(task, round_):
                    rounds.append(self._begin(round_, models[task.view], task, states.get(task.client, NO_STATE)))
            if len(rounds) == 1:
                yield self._alone(rounds[0], round_, chunk[0][1]), chunk[0][1]
            else:
                yield from ((update, False) for update in self._together(rounds, round_))

    def _alone(self, given: LocalRound, round_: int, in_place: bool) -> Update:
        with self._named(given.task, round_):
            return self._trainer.local_round(given, in_place)

    def _together(self, rounds: Sequence[LocalRound], round_: int) -> list[Update]:
        try:
            return self._stacked.train(rounds)
        except Exception as error:
            for given in rounds:  # Whose fault is it?
                self._alone(given, round_, in_place=True)
            raise UserError(
                f"training.stack = {self._job.trainer.stack}: clients {[r.task.client for r in rounds]} failed in a "
                f"common step ({type(error).__name__}: {error}), but each of them works alone; take training.stack=1"
            ) from error

    def _begin(self, round_: int, start: Params, task: Assignment, state: ClientState) -> LocalRound:
        job = self._job
        info = job.fleet[task.client]
        context = ClientContext(
            info=info,
            round=round_,
            layout=self._trainer.backbone.layout,
            start=start,
            state=state,
            streams=job.streams,
            planner=job.planner,
        )
        return self._trainer.begin(context, task, self._inputs(task.client), job.program)

    @contextmanager
    def _named(self, task: Assignment, round_: int) -> Iterator[None]:
        """Says whose code it is that raises."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            client = self._job.fleet[task.client]
            raise ClientFailed(
                f"client {client.id} ({client.name}, type {client.device}) failed while training round {round_}: "
                f"{type(error).__name__}: {error}"
            ) from error
