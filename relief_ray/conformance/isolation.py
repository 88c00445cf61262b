"""A plain loop that tells whether clients compute with anything that never reached them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from relief_ray.conformance.rules import Broken
from relief_ray.groups import GroupLayout, Params
from relief_ray.messages import NO_STATE, Assignment, ClientId, ClientState, Trained
from relief_ray.training.job import BlockResult, Job
from relief_ray.training.serial_executor import SerialExecutor


class WatchedTraining(SerialExecutor):
    """Trains every client twice more, the second time with other values wherever nothing was received or kept.

    A client has what came ``down``, what it ``keep``s where it has kept it, and the model that all began with.
    """

    def __init__(self, job: Job) -> None:
        """Builds the worker; the first model that it sees is what all began with."""
        super().__init__(job)
        self._layout = self._worker.backbone.layout
        self._start: Params = {}

    def train(
        self,
        round_: int,
        models: Mapping[str, Params],
        tasks: Sequence[Assignment],
        states: Mapping[ClientId, ClientState],
    ) -> Trained:
        """One round.

        Raises:
            Broken: rule ``received``.
        """
        self._start = self._start or next(iter(models.values()))
        for task in tasks:
            self._compare(round_, models, task, states)
        return super().train(round_, models, tasks, states)

    def _compare(
        self, round_: int, models: Mapping[str, Params], task: Assignment, states: Mapping[ClientId, ClientState]
    ) -> None:
        other = changed(self._layout, models[task.view], self._start, task, states.get(task.client, NO_STATE))
        found, again = (
            next(self._worker.train_blocks(round_, {**models, task.view: view}, [[task]], states))
            for view in (models[task.view], other)
        )
        if _bits(found) != _bits(again):
            unsent = [j for j in self._layout.ids if not torch.equal(other[j], models[task.view][j])]
            raise Broken(
                "received",
                f"round {round_}: client {task.client} depends on values that it neither received nor kept, of groups "
                f"{', '.join(unsent)}",
            )


def changed(layout: GroupLayout, theta: Params, start: Params, task: Assignment, state: ClientState) -> Params:
    """``theta`` with other values wherever the client has none: not in ``down``, not kept, not those of ``start``."""
    other: dict[str, Tensor] = {}
    for j, values in theta.items():
        known = values == start[j]
        for selection in (task.down, {k: part for k, part in task.keep.items() if k in state}):
            if j in selection:
                known[layout.indices(j, selection[j])] = True  # indices: positions within the group
        other[j] = torch.where(known, values, 3.0 * values + 0.1)
    return other


def _bits(result: BlockResult) -> dict[str, bytes]:
    """All that a client returns, but for clocks."""
    found: dict[str, Tensor] = {}
    for update in result.updates:
        found |= {f"delta {j}": x for j, x in update.delta.items()}
    for groups in result.sums.values():
        found |= {f"sum {j}": part.plain for j, part in groups.items()}
    for state in result.states.values():
        found |= {f"state {name}": x for name, x in state.items()}
    for receipt in result.receipts:
        found |= {f"stats {name}": x for name, x in receipt.stats.items()}
        found["loss"] = torch.tensor(receipt.work.loss, dtype=torch.float64)
    return {name: value.contiguous().numpy().tobytes() for name, value in found.items()}
