"""Several clients' models side by side: every tensor has a first axis over clients, and one pass is a pass of each.

A batch of one client is too little work for a GPU, which then waits for the next kernel to be launched. Batched, the
matrix products of all clients are one, with the numbers that each would have on its own (up to summation order).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from relief_ray.federated import ClientProgram, LocalStep, task_loss
from relief_ray.groups import GroupId
from relief_ray.models.backbone import Backbone, Stage
from relief_ray.process import casting
from relief_ray.stages import RAW
from relief_ray.training.cuda_graph import Memory, Replay
from relief_ray.training.forward_plan import ForwardPlan, Values, compute_sources, needed
from relief_ray.training.local_step import GroupVectors, LocalRound, Session, observe, wanted
from relief_ray.training.optimizer import Adam
from relief_ray.training.trainer import Trainer

# A tensor of the model: its group and its place there.
Key = tuple[GroupId, int]

Leaves = Mapping[Key, Tensor]


class Stack:
    """``size`` models of one backbone in one buffer ``flat`` (size, numel): client i's is row i."""

    def __init__(self, backbone: Backbone, size: int) -> None:
        """All zero."""
        self.size = size
        self.flat = torch.zeros(size, backbone.layout.numel, device=backbone.device)
        self._tensors = {
            (group.id, i): columns[:, t.offset : t.offset + t.numel].view(size, *t.shape)
            for group in backbone.layout
            for columns in [self.flat[:, backbone.layout.span(group.id)]]
            for i, t in enumerate(group.tensors)
        }
        # Contiguous views: what an optimizer moves.
        self.rows = [{key: tensor[i] for key, tensor in self._tensors.items()} for i in range(size)]
        keys = self._keys = {
            id(p): (j, i) for j, parameters in backbone.parameters.items() for i, p in enumerate(parameters)
        }
        self._own = {
            stage.spec.id: {name: keys[id(p)] for name, p in stage.module.named_parameters() if id(p) in keys}
            for stage in backbone.stages
        }

    def key(self, parameter: Tensor) -> Key:
        """Where a parameter of the backbone belongs."""
        return self._keys[id(parameter)]

    def leaves(self, clients: slice, trained: Collection[Key]) -> Leaves:
        """The tensors (k, ...) of ``clients``, views that gather gradients of their own where they are ``trained``."""
        return {key: x[clients].detach().requires_grad_(key in trained) for key, x in self._tensors.items()}

    def run(self, stages: Collection[Stage], values: Values, leaves: Leaves, off: Mapping[str, Tensor]) -> Values:
        """Runs ``stages`` on top of ``values`` (k, b, ...); ``off``: features that are 0 for the clients of a 0."""
        for stage in stages:
            name = stage.spec.id
            own = {parameter: leaves[key] for parameter, key in self._own[name].items()}
            found = _each(stage, own, [values[i] for i in stage.spec.inputs])
            values[name] = found * off[name].view(-1, *[1] * (found.ndim - 1)) if name in off else found
        return values


def _each(stage: Stage, own: Mapping[str, Tensor], inputs: Sequence[Tensor]) -> Tensor:
    """``module_i(inputs_i)`` of every client i at once."""

    def one(parameters: dict[str, Tensor], given: tuple[Tensor, ...]) -> Tensor:
        output: Tensor = functional_call(stage.module, parameters, given)
        return output

    output: Tensor = torch.vmap(one)(dict(own), tuple(inputs))
    return output


# A stack of clients in one round: their sessions, and what they read in every step.


LABELS = "labels"


class Pool:
    """What all clients read of one source, one behind the other: a row per window, or one for all of a client's."""

    def __init__(self, sources: Sequence[Tensor], num_windows: Sequence[int]) -> None:
        """One source (r_i, ...) per client."""
        lengths = [len(x) for x in sources]
        self._rows = torch.cat(list(sources))
        first = [sum(lengths[:i]) for i in range(len(lengths))]
        own = [int(length == num) for length, num in zip(lengths, num_windows, strict=True)]
        self._first, self._own = (torch.tensor(x).to(self._rows.device).view(-1, 1) for x in (first, own))

    def take(self, clients: slice, index: Tensor) -> Tensor:
        """The rows (k, b, ...) of their windows ``index`` (k, b)."""
        rows = self._first[clients] + index * self._own[clients]
        return self._rows.index_select(0, rows.flatten()).view(*rows.shape, *self._rows.shape[1:])


@dataclass(frozen=True, kw_only=True, slots=True)
class Lesson:
    """Clients in falling order of their windows; client i has row i of the stack.

    ``keys``: of each client's trained tensors, by learning rate; ``off``: features that run in every step although some
    clients lack them, (N,), 0 for those and else 1; ``losses``: (N,), summed over the windows of the current epoch.
    """

    program: ClientProgram
    plan: ForwardPlan
    stack: Stack
    adam: Adam
    sessions: tuple[Session, ...]
    keys: tuple[Mapping[float, tuple[Key, ...]], ...]
    pools: Mapping[str, Pool]
    off: Mapping[str, Tensor]
    losses: Tensor

    @property
    def num_windows(self) -> list[int]:
        """Of each client."""
        return [len(s.client.labels) for s in self.sessions]


def open_lesson(trainer: Trainer, stack: Stack, adam: Adam, plan: ForwardPlan, rounds: Sequence[LocalRound]) -> Lesson:
    """Loads the clients' models, computes what no step changes and clears Adam's moments."""
    sessions, sources = [], []
    for i, given in enumerate(rounds):
        session = trainer.open(given)
        stack.flat[i].copy_(trainer.flat)
        sessions.append(session)
        sources.append(_sources(trainer, session, plan))
    num_windows = [len(r.client.labels) for r in rounds]
    lesson = Lesson(
        program=rounds[0].visit.program,
        plan=plan,
        stack=stack,
        adam=adam,
        sessions=tuple(sessions),
        keys=tuple({lr: tuple(map(stack.key, ps)) for lr, ps in s.parameters.items()} for s in sessions),
        pools={s: Pool([x[s] for x in sources], num_windows) for s in sources[0]},
        off=_switched_off(plan, sessions, trainer.device),
        losses=torch.zeros(len(rounds), device=trainer.device),
    )
    moved = [stack.rows[i][key] for i, by_lr in enumerate(lesson.keys) for keys in by_lr.values() for key in keys]
    adam.reset(moved)
    adam.clear(moved)
    return lesson


def _sources(trainer: Trainer, session: Session, plan: ForwardPlan) -> dict[str, Tensor]:
    """What the stack's steps read of one client, with its labels; its model is loaded."""
    zeroed = session.plan.zero_features
    before = needed(trainer.backbone, {s for s in plan.sources if not s.startswith(RAW)}, zeroed)
    own = replace(plan, before=before, absent=session.plan.absent, zero_features=zeroed)
    with casting(session.autocast, trainer.device):
        found = compute_sources(trainer.backbone, own, session.client.inputs, len(session.client.labels))
    held = {s: x for s, x in found.items() if s in plan.sources and isinstance(x, Tensor)}
    return held | {LABELS: session.client.labels}


def _switched_off(plan: ForwardPlan, sessions: Sequence[Session], device: torch.device) -> dict[str, Tensor]:
    lacking = {s.spec.id: [s.spec.id in x.plan.zero_features for x in sessions] for s in plan.every_step}
    return {name: torch.tensor([float(not x) for x in off]).to(device) for name, off in lacking.items() if any(off)}


# Which clients of a stack take a step together: those with a batch of the same size, since none is padded.


@dataclass(frozen=True, kw_only=True, slots=True)
class StackStep:
    """Clients ``first`` .. ``last - 1`` of a stack take their windows ``start`` .. ``stop - 1`` of an epoch's order."""

    first: int
    last: int
    start: int
    stop: int

    @property
    def clients(self) -> slice:
        """Rows of the stack."""
        return slice(self.first, self.last)

    @property
    def windows(self) -> slice:
        """Columns of the order."""
        return slice(self.start, self.stop)

    @property
    def kind(self) -> tuple[int, int, int]:
        """What all steps of the same clients on as many windows have in common."""
        return self.first, self.last, self.stop - self.start

    @property
    def shape(self) -> tuple[int, int]:
        """Number of clients and of windows of each."""
        return self.last - self.first, self.stop - self.start


def epoch_steps(num_windows: Sequence[int], batch_size: int) -> list[StackStep]:
    """An epoch of clients that are sorted by falling ``num_windows``: full batches first, then what remains of each.

    Every client takes the batches that it would take alone, in the same order.
    """
    found = []
    for stop in range(batch_size, max(num_windows) + 1, batch_size):
        number = sum(n >= stop for n in num_windows)
        found.append(StackStep(first=0, last=number, start=stop - batch_size, stop=stop))
    first = 0
    for number, alike in groupby(num_windows):
        last = first + len(list(alike))
        if rest := number % batch_size:
            found.append(StackStep(first=first, last=last, start=number - rest, stop=number))
        first = last
    return found


# A step that several clients take together: forward, their losses, backward, each client's Adam.


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
