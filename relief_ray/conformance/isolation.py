"""An executor that finds out whether clients compute with values that never reached them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from relief_ray.conformance.rules import Broken
from relief_ray.core.groups import GroupLayout, Params
from relief_ray.core.messages import NO_STATE, Assignment, ClientId, ClientState, Trained
from relief_ray.training.executor import SerialExecutor
from relief_ray.training.job import BlockResult, Job


class IsolationCheck(SerialExecutor):
    """Trains every client twice more, the second time with other values wherever nothing was received or kept.

    A client has the values that came ``down``, those that it ``keep``s, and the model that all began with.
    """

    def __init__(self, job: Job) -> None:
        """Build the worker; the first model that it trains counts as the one that all clients began with."""
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
        """Train one round.

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
        result, changed_result = (
            next(self._worker.train_blocks(round_, {**models, task.view: view}, [[task]], states))
            for view in (models[task.view], other)
        )
        if _bits(result) != _bits(changed_result):
            unsent = [j for j in self._layout.ids if not torch.equal(other[j], models[task.view][j])]
            raise Broken(
                "received",
                f"round {round_}: client {task.client} depends on values that it neither received nor kept, of groups "
                f"{', '.join(unsent)}",
            )


def changed(layout: GroupLayout, theta: Params, start: Params, task: Assignment, state: ClientState) -> Params:
    """Replace the values of ``theta`` that the client does not have: not in ``down``, not kept, not in ``start``."""
    other: dict[str, Tensor] = {}
    for j, values in theta.items():
        known = values == start[j]
        for selection in (task.down, {k: part for k, part in task.keep.items() if k in state}):
            if j in selection:
                known[layout.indices(j, selection[j])] = True  # indices: positions within the group
        other[j] = torch.where(known, values, 3.0 * values + 0.1)
    return other


def _bits(result: BlockResult) -> dict[str, bytes]:
    """Return the bits of everything that a client returns, except times."""
    tensors: dict[str, Tensor] = {}
    for update in result.updates:
        tensors |= {f"delta {j}": x for j, x in update.delta.items()}
    for groups in result.sums.values():
        tensors |= {f"sum {j}": part.plain for j, part in groups.items()}
    for state in result.states.values():
        tensors |= {f"state {name}": x for name, x in state.items()}
    for receipt in result.receipts:
        tensors |= {f"stats {name}": x for name, x in receipt.stats.items()}
        tensors["loss"] = torch.tensor(receipt.work.loss, dtype=torch.float64)
    return {name: value.contiguous().numpy().tobytes() for name, value in tensors.items()}
