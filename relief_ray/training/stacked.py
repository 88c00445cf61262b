"""Local training of several clients at once: a step of the stack is a step of each (``training.stack``).

For GPUs, where one small model's step is spent on launches. Each client takes its own batches in its own order, has an
Adam of its own and trains its own groups: its numbers are those of training alone, up to summation order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from relief_ray.devices.workload import num_steps
from relief_ray.federated import observe_nothing
from relief_ray.groups import WHOLE
from relief_ray.messages import Update
from relief_ray.stages import MAX_STEP_BYTES
from relief_ray.training.cuda_graph import Memory
from relief_ray.training.forward_plan import ForwardPlan
from relief_ray.training.inputs import LazyRows
from relief_ray.training.local_step import Clock, LocalRound
from relief_ray.training.optimizer import Adam
from relief_ray.training.stacked_step import JointStep, Lesson, Stack, epoch_steps, open_lesson
from relief_ray.training.trainer import Trainer


class StackedTrainer:
    """Trains up to ``most`` clients at once with a trainer's backbone and settings; their memory is kept."""

    def __init__(self, trainer: Trainer, most: int) -> None:
        """Memory comes when it is known for how many."""
        self._trainer, self._most = trainer, most
        self._stack = Stack(trainer.backbone, 0)
        self._adam = Adam([], fused=True)

    def train(self, rounds: Sequence[LocalRound]) -> list[Update]:
        """Their updates in their order; a client that can share its steps with nobody is trained alone."""
        found: dict[int, Update] = {}
        for alike in _alike(rounds):
            plan = self._plan([rounds[i] for i in alike])
            size = self._size(plan)
            for chosen in (alike[i : i + size] for i in range(0, len(alike), size)):
                given = [rounds[i] for i in chosen]
                updates = self._together(given, plan) if len(given) > 1 else map(self._trainer.local_round, given)
                found.update(zip(chosen, updates, strict=True))
        return [found[i] for i in range(len(rounds))]

    def _plan(self, rounds: Sequence[LocalRound]) -> ForwardPlan:
        """What has to run in every step for one of them at least."""
        everywhere, task = self._trainer.backbone.shape.modalities, rounds[0].task
        trained = {j: WHOLE for r in rounds for j in r.task.train}
        return self._trainer.plan(everywhere, replace(task, train=trained), sum(len(r.client.labels) for r in rounds))

    def _size(self, plan: ForwardPlan) -> int:
        """Clients at once: decided by sizes, so that every machine adds up alike."""
        batch = self._trainer.config.batch_size
        if self._trainer.most_windows(plan) < batch:
            return 1
        return max(1, min(self._most, MAX_STEP_BYTES // max(1, plan.step_bytes * batch)))

    def _together(self, rounds: Sequence[LocalRound], plan: ForwardPlan) -> list[Update]:
        if self._stack.size < len(rounds):
            self._stack = Stack(self._trainer.backbone, len(rounds))
            self._adam = Adam([x for row in self._stack.rows for x in row.values()], fused=True)
        order = sorted(range(len(rounds)), key=lambda i: -len(rounds[i].client.labels))
        lesson = open_lesson(self._trainer, self._stack, self._adam, plan, [rounds[i] for i in order])
        self._epochs(lesson)
        # What leaves is on the CPU: one transfer, and none where it is there already.
        models = self._stack.flat.cpu()
        ended = zip(lesson.sessions, models, strict=False)
        updates = dict(zip(order, (self._trainer.close(session, model) for session, model in ended), strict=True))
        return [updates[i] for i in range(len(rounds))]

    def _epochs(self, lesson: Lesson) -> None:
        """All of them; what was measured of the steps counts as every client's backward pass, in equal shares."""
        clock, memory = Clock(waits=self._trainer.device.type == "cuda"), Memory(self._trainer.device)
        steps = epoch_steps(lesson.num_windows, self._trainer.config.batch_size)
        joint = {kind: JointStep(lesson, like, memory) for kind, like in {s.kind: s for s in steps}.items()}
        orders = [s.context.streams.torch("batches", s.context.round, s.context.info.id) for s in lesson.sessions]
        num_epochs, began = lesson.sessions[0].task.epochs, clock.read()
        for epoch in range(1, num_epochs + 1):
            order = _shuffled(lesson.num_windows, orders).to(self._trainer.device)
            watched = epoch == num_epochs and lesson.program.observe is not observe_nothing
            lesson.losses.zero_()
            for step in steps:
                joint[step.kind].take(order[step.clients, step.windows], watched)
        seconds, losses = clock.read() - began, _values(lesson.losses)
        for session, num, loss in zip(lesson.sessions, lesson.num_windows, losses, strict=True):
            own = session.visit.clock
            own.backward_s += seconds / len(losses)
            own.loss, own.num_steps = loss / num, num_steps(num, num_epochs, self._trainer.config.batch_size)


def _values(losses: Tensor) -> list[float]:
    """Read once a round, so that a GPU is not waited for in every step."""
    return [float(loss) for loss in losses.cpu()]


def _shuffled(num_windows: Sequence[int], orders: Sequence[torch.Generator]) -> Tensor:
    """Each client's windows in the order of its next epoch (N, longest), as if it trained alone."""
    order = torch.zeros(len(num_windows), max(num_windows), dtype=torch.int64)
    for row, num, make in zip(order, num_windows, orders, strict=True):
        row[:num] = torch.randperm(num, generator=make)
    return order


def _alike(rounds: Sequence[LocalRound]) -> list[list[int]]:
    """Whose steps compute the same outputs, by place.

    Alone stays who trains parts of tensors (ranks, rows), or has more windows than are held.
    """
    groups: dict[object, list[int]] = {}
    for i, given in enumerate(rounds):
        task = given.task
        parts = any(part.cuts for part in task.train.values())
        held = not any(isinstance(x, LazyRows) for x in given.client.inputs.values())
        kind = (task.epochs, task.taps, task.output, task.omit_absent, task.lora_scale)
        groups.setdefault(kind if held and not parts else i, []).append(i)
    return list(groups.values())
