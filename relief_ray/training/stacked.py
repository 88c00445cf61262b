"""Local training of several clients at once: a step of the stack is a step of each (``training.stack``).

For GPUs, where a small model's step is spent on kernel launches. Each client takes its own batches in its own order,
has optimizer state of its own and trains its own groups. Its numbers are those of training alone, up to summation
order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from relief_ray.core.client import observe_nothing
from relief_ray.core.groups import WHOLE
from relief_ray.core.messages import Update
from relief_ray.core.stages import MAX_STEP_BYTES
from relief_ray.devices.workload import num_steps
from relief_ray.support.process import seconds_between
from relief_ray.training.cuda_graph import GraphMemory
from relief_ray.training.forward_plan import ForwardPlan
from relief_ray.training.inputs import LazyRows
from relief_ray.training.local_step import ClientRun, Stopwatch
from relief_ray.training.optimizer import LocalOptimizer
from relief_ray.training.stacked_step import StackedModels, StackedRound, StackedStep, begin_stacked_round, epoch_steps
from relief_ray.training.trainer import Trainer


class StackedTrainer:
    """Trains up to ``max_clients`` clients at once with a trainer's backbone and settings; keeps their memory."""

    def __init__(self, trainer: Trainer, max_clients: int) -> None:
        """Allocate nothing yet: memory is reserved for the largest stack that occurs."""
        self._trainer, self._max_clients = trainer, max_clients
        self._models = StackedModels(trainer.backbone, 0)
        self._optimizer = LocalOptimizer([], fused=True)

    def train(self, runs: Sequence[ClientRun]) -> list[Update]:
        """The clients' updates in their order; a client that can share its steps with no other is trained alone."""
        updates: dict[int, Update] = {}
        for places in _compatible(runs):
            plan = self._plan([runs[i] for i in places])
            size = self._size(plan)
            for chunk in (places[i : i + size] for i in range(0, len(places), size)):
                chosen = [runs[i] for i in chunk]
                trained = self._train_stack(chosen, plan) if len(chosen) > 1 else map(self._trainer.train_run, chosen)
                updates.update(zip(chunk, trained, strict=True))
        return [updates[i] for i in range(len(runs))]

    def _plan(self, runs: Sequence[ClientRun]) -> ForwardPlan:
        """Plan the stages that have to run in every step for at least one of the clients."""
        all_modalities, task = self._trainer.backbone.shape.modalities, runs[0].task
        trained = {j: WHOLE for r in runs for j in r.task.train}
        return self._trainer.plan(all_modalities, replace(task, train=trained), sum(len(r.data.labels) for r in runs))

    def _size(self, plan: ForwardPlan) -> int:
        """Clients at once: decided by sizes alone, so that every machine sums in the same order."""
        batch = self._trainer.config.batch_size
        # Dropout draws from a generator per client, and batch norm counts each client's windows.
        varies = any(s.spec.varies for s in plan.every_step)
        if varies or self._trainer.max_windows(plan) < batch:
            return 1
        return max(1, min(self._max_clients, MAX_STEP_BYTES // max(1, plan.step_bytes * batch)))

    def _train_stack(self, runs: Sequence[ClientRun], plan: ForwardPlan) -> list[Update]:
        if self._models.size < len(runs):
            self._models = StackedModels(self._trainer.backbone, len(runs))
            tensors = [x for row in self._models.rows for x in row.values()]
            self._optimizer = LocalOptimizer(tensors, fused=True, rule=self._trainer.config.rule)
        order = sorted(range(len(runs)), key=lambda i: -len(runs[i].data.labels))
        stacked = begin_stacked_round(self._trainer, self._models, self._optimizer, plan, [runs[i] for i in order])
        self._epochs(stacked)
        # Updates leave on the CPU: one transfer from a GPU, none otherwise.
        models = self._models.flat.cpu()
        pairs = zip(stacked.runs, models, strict=False)
        updates = dict(zip(order, (self._trainer.finish(run, model) for run, model in pairs), strict=True))
        return [updates[i] for i in range(len(runs))]

    def _epochs(self, stacked: StackedRound) -> None:
        """Run all epochs; the measured seconds count as every client's backward pass, in equal shares."""
        device = self._trainer.device
        clock, memory = Stopwatch(on_gpu=device.type == "cuda"), GraphMemory(device)
        ranges = epoch_steps(stacked.num_windows, self._trainer.config.batch_size)
        steps = {kind: StackedStep(stacked, r, memory) for kind, r in {r.kind: r for r in ranges}.items()}
        orders = [r.context.streams.torch("batches", r.context.round, r.context.info.id) for r in stacked.runs]
        num_epochs, began = stacked.runs[0].task.epochs, clock.read()
        for epoch in range(1, num_epochs + 1):
            order = _shuffled(stacked.num_windows, orders).to(device)
            is_observed = epoch == num_epochs and stacked.program.observe is not observe_nothing
            stacked.losses.zero_()
            for step in ranges:
                steps[step.kind].take(order[step.clients, step.windows], is_observed)
        seconds, losses = seconds_between(began, clock.read()), _values(stacked.losses)
        for run, num, loss in zip(stacked.runs, stacked.num_windows, losses, strict=True):
            run.clock.backward_s += seconds / len(losses)
            run.clock.loss = loss / num
            run.clock.num_steps = num_steps(num, num_epochs, self._trainer.config.batch_size)


def _values(losses: Tensor) -> list[float]:
    """The losses as numbers: read once a round, so that a GPU is not synchronised in every step."""
    return [float(loss) for loss in losses.cpu()]


def _shuffled(num_windows: Sequence[int], orders: Sequence[torch.Generator]) -> Tensor:
    """Each client's windows in the order of its next epoch (N, longest), as if it trained alone."""
    order = torch.zeros(len(num_windows), max(num_windows), dtype=torch.int64)
    for row, num, generator in zip(order, num_windows, orders, strict=True):
        row[:num] = torch.randperm(num, generator=generator)
    return order


def _compatible(runs: Sequence[ClientRun]) -> list[list[int]]:
    """Groups of clients, by position, whose steps compute the same outputs.

    A client that trains parts of tensors (ranks, rows), or has more windows than are held in memory, stays alone.
    """
    groups: dict[object, list[int]] = {}
    for i, run in enumerate(runs):
        task = run.task
        has_parts = any(part.cuts for part in task.train.values())
        is_held = not any(isinstance(x, LazyRows) for x in run.data.inputs.values())
        kind = (task.epochs, task.taps, task.output, task.omit_absent, task.lora_scale)
        groups.setdefault(kind if is_held and not has_parts else i, []).append(i)
    return list(groups.values())
