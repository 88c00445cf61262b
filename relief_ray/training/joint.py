"""A step that several clients take together: forward, their losses, backward, each client's Adam."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from relief_ray.federated import LocalStep, task_loss
from relief_ray.training.lesson import LABELS, Lesson
from relief_ray.training.replay import Memory, Replay
from relief_ray.training.reuse import Values
from relief_ray.training.stack_steps import StackStep
from relief_ray.training.steps import observe, wanted
from relief_ray.training.vectors import GroupVectors


class JointStep:
    """All steps of the same clients on as many windows: their tensors stay where they are from one to the next."""

    def __init__(self, lesson: Lesson, like: StackStep, memory: Memory) -> None:
        """Chooses the clients' tensors."""
        self._lesson, self._clients = lesson, like.clients
        self._members = range(like.first, like.last)
        self._index = torch.zeros(*like.shape, dtype=torch.int64, device=lesson.losses.device)
        trained = {key for i in self._members for keys in lesson.keys[i].values() for key in keys}
        self._leaves = lesson.stack.leaves(like.clients, trained)
        self._off = {name: on[like.clients] for name, on in lesson.off.items()}
        self._replay = Replay(self._index.device, memory)

    def take(self, index: Tensor, watched: bool) -> None:
        """One step of each client on its windows ``index`` (k, b); ``watched``: the clients' programs observe it."""
        self._index.copy_(index)
        if watched:
            self._step(watched=True)
        else:
            self._replay(self._step)

    def _step(self, watched: bool = False) -> None:
        try:
            self._learn(watched)
        finally:
            for leaf in self._leaves.values():
                leaf.grad = None

    def _learn(self, watched: bool) -> None:
        lesson, values = self._lesson, self._outputs()
        labels = lesson.pools[LABELS].take(self._clients, self._index)
        losses = self._objectives(values, labels)
        if watched:
            for i in self._members:
                observe(lesson.sessions[i], self._local_step(i, values, labels))
        if losses.requires_grad:
            torch.autograd.backward(losses.sum())
        self._adam()
        lesson.losses[self._clients].add_(losses.detach() * labels.shape[1])

    def _outputs(self) -> Values:
        """What the objectives read, by stage: (k, b, ...)."""
        lesson, stages = self._lesson, self._lesson.plan.every_step
        read = {s: lesson.pools[s].take(self._clients, self._index) for s in lesson.plan.sources}
        forward = partial(lesson.stack.run, stages, read, self._leaves, self._off)
        return wanted(lesson.sessions[0], self._index.device, forward)

    def _objectives(self, values: Values, labels: Tensor) -> Tensor:
        """Each client's own objective (k,)."""
        lesson = self._lesson
        if lesson.program.objective is task_loss:
            logits = values[lesson.sessions[0].output]
            single = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
            return single.view(labels.shape).mean(1)
        steps = (self._local_step(i, values, labels) for i in self._members)
        return torch.stack([lesson.program.objective(step) for step in steps])

    def _local_step(self, client: int, values: Values, labels: Tensor) -> LocalStep:
        session, place = self._lesson.sessions[client], client - self._members.start
        return LocalStep(
            logits=values[session.output][place],
            labels=labels[place],
            taps={t: values[t][place] for t in sorted(session.task.taps)},
            params=GroupVectors(self._tensors(place), tuple(session.vectors)),
            start=session.start,
            args=session.task.args,
        )

    def _tensors(self, place: int) -> Mapping[str, list[Tensor]]:
        tensors = defaultdict(list)
        for (group, _), leaf in self._leaves.items():
            tensors[group].append(leaf[place])
        return tensors

    def _adam(self) -> None:
        """Every client's own: its tensors, its rates, its count of steps."""
        lesson, moving = self._lesson, defaultdict(list)
        for place, client in enumerate(self._members):
            for lr, keys in lesson.keys[client].items():
                for key in keys:
                    gradient = self._leaves[key].grad
                    row = lesson.stack.rows[client][key]
                    row.grad = None if gradient is None else gradient[place]
                    moving[lr].append(row)
        for lr, rows in moving.items():
            lesson.adam.step(rows, lr)
