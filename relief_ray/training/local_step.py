"""One mini-batch forward and backward: whole, or in micro-batches whose gradients add up to the whole batch's.

An objective that is a mean over windows is taken of each micro-batch, weighted by its share ``b_i / b`` of the windows.
Any other needs the whole batch: a pass without gradient collects what it reads, it is taken once, and its gradient
there is carried through the micro-batches, which costs a second forward pass. Both are exact; sums are in batch order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import torch
from torch import Tensor

from relief_ray.federated import ClientContext, ClientProgram, LocalStep, task_loss
from relief_ray.groups import GroupId, Params
from relief_ray.messages import Assignment, StageTimes
from relief_ray.process import Autocast, casting
from relief_ray.training.forward_plan import BatchBuffers, ForwardPlan, Values, run, spread
from relief_ray.training.inputs import ClientInputs

# What the trainer carries through a client's round: the trained groups as vectors, measured seconds.


class GroupVectors(Mapping[GroupId, Tensor]):
    """The trained groups' vectors ``theta_j`` with their gradient history, built when asked for."""

    def __init__(self, tensors: Mapping[GroupId, Sequence[Tensor]], trained: tuple[GroupId, ...]) -> None:
        """Vectors of the groups in ``trained``, out of the groups' ``tensors``."""
        self._tensors, self._trained = tensors, trained

    def __getitem__(self, group: GroupId) -> Tensor:
        """``theta_j`` (numel,)."""
        if group not in self._trained:
            raise KeyError(group)
        return torch.cat([p.reshape(-1) for p in self._tensors[group]])

    def __iter__(self) -> Iterator[GroupId]:
        """Trained groups in storage order."""
        return iter(self._trained)

    def __len__(self) -> int:
        """How many are trained."""
        return len(self._trained)

    def gradients(self) -> dict[GroupId, Tensor]:
        """Each group's gradient (numel,), zero where nothing reaches it; they are dropped."""
        found = {}
        for j in self._trained:
            parameters = self._tensors[j]
            found[j] = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in parameters])
            for p in parameters:
                p.grad = None
        return found


@dataclass(slots=True)
class Clock:
    """Measured seconds by stage, and the running loss of the last epoch.

    ``waits``: read once the GPU has done what it was given, which it does behind the program's back.
    """

    forward_s: float = 0.0
    backward_s: float = 0.0
    optimizer_s: float = 0.0
    loss: float = 0.0
    num_steps: int = 0
    waits: bool = False

    def read(self) -> float:
        """Seconds of a monotonic clock."""
        if self.waits:
            torch.cuda.synchronize()
        return perf_counter()

    def stage_times(self) -> StageTimes:
        """What was measured so far."""
        return StageTimes(forward_s=self.forward_s, backward_s=self.backward_s, optimizer_s=self.optimizer_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class Visit:
    """One client's round: whose program runs, what it took so far, what was probed."""

    program: ClientProgram
    clock: Clock = field(default_factory=Clock)
    probes: list[tuple[Assignment, int]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalRound:
    """What one client is about to do: its task as it made it its own, and its windows."""

    context: ClientContext
    task: Assignment
    client: ClientInputs
    visit: Visit


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """Training or a probe while it runs; ``start`` is the model as it was loaded, personal parts included.

    ``parameters``: the trained ones by their learning rate; ``output``: the stage that gives the logits; ``most``: as
    many windows go forward and backward together.
    """

    context: ClientContext
    task: Assignment
    client: ClientInputs
    visit: Visit
    plan: ForwardPlan
    output: str
    parameters: Mapping[float, list[Tensor]]
    vectors: GroupVectors
    start: Params
    most: int
    autocast: Autocast = "none"
    seen: list[Mapping[str, Tensor]] = field(default_factory=list)


def gradients(session: Session, batches: BatchBuffers, index: Tensor, is_observed: bool = False) -> Tensor:
    """Adds the gradient of the objective on the windows ``index`` (b,) to the parameters'; returns the loss."""
    if len(index) <= session.most:
        return _whole(session, batches, index, is_observed)
    take = _by_parts if adds_up(session.visit.program) else _in_two_passes
    return take(session, batches, index, torch.split(index, session.most), is_observed)


def adds_up(program: ClientProgram) -> bool:
    """Whether a batch's objective is the mean of its parts', weighted by their windows."""
    return program.is_mean or program.objective is task_loss


def _whole(session: Session, batches: BatchBuffers, index: Tensor, is_observed: bool) -> Tensor:
    clock = session.visit.clock
    began = clock.read()
    step = _local_step(session, _outputs(session, batches, index), index)
    loss = session.visit.program.objective(step)
    if is_observed:
        observe(session, step)
    forwarded = clock.read()
    if loss.requires_grad:
        torch.autograd.backward(loss)
    clock.forward_s += forwarded - began
    clock.backward_s += clock.read() - forwarded
    return loss.detach()


def _by_parts(
    session: Session, batches: BatchBuffers, index: Tensor, parts: Sequence[Tensor], is_observed: bool
) -> Tensor:
    clock, losses, seen = session.visit.clock, [], []
    for part in parts:
        began = clock.read()
        values = _outputs(session, batches, part)
        loss = session.visit.program.objective(_local_step(session, values, part)) * (len(part) / len(index))
        if is_observed:
            seen.append(_copies(values))
        forwarded = clock.read()
        if loss.requires_grad:
            torch.autograd.backward(loss)
        clock.forward_s += forwarded - began
        clock.backward_s += clock.read() - forwarded
        losses.append(loss.detach())
    if is_observed:
        observe(session, _local_step(session, _joined(seen), index))
    return torch.stack(losses).sum()


def _in_two_passes(
    session: Session, batches: BatchBuffers, index: Tensor, parts: Sequence[Tensor], is_observed: bool
) -> Tensor:
    clock = session.visit.clock
    began = clock.read()
    with torch.no_grad():
        pieces = [_copies(_outputs(session, batches, part)) for part in parts]
    leaves = {name: value.requires_grad_() for name, value in _joined(pieces).items()}
    step = _local_step(session, leaves, index)
    loss = session.visit.program.objective(step)
    if is_observed:
        observe(session, step)
    forwarded, start = clock.read(), 0
    # What depends on the parameters alone reaches them here, the rest stops at the leaves.
    torch.autograd.backward(loss)
    clock.forward_s += forwarded - began
    clock.backward_s += clock.read() - forwarded
    for part in parts:
        began = clock.read()
        values = _outputs(session, batches, part)
        forwarded = clock.read()
        _carry_back(values, {name: leaf.grad for name, leaf in leaves.items()}, start, len(part))
        start += len(part)
        clock.forward_s += forwarded - began
        clock.backward_s += clock.read() - forwarded
    return loss.detach()


def _carry_back(values: Values, upper: Mapping[str, Tensor | None], start: int, num: int) -> None:
    """Backward from ``values``, whose gradients are the rows ``start`` .. of ``upper``."""
    found, given = [], []
    for name, gradient in upper.items():
        if gradient is not None and values[name].requires_grad:
            found.append(values[name])
            given.append(gradient[start : start + num])
    if found:
        torch.autograd.backward(found, given)


def _outputs(session: Session, batches: BatchBuffers, index: Tensor) -> Values:
    """What the objective reads of the windows ``index`` (b,): b rows each, for a sensor that is absent too."""
    read, plan, batch = batches.take(index), session.plan, len(index)
    found = wanted(session, index.device, lambda: run(plan.every_step, read, plan, batch))
    return {name: spread(x, batch) for name, x in found.items()}


def wanted(session: Session, device: torch.device, forward: Callable[[], Values]) -> Values:
    """What the objective reads of a forward pass, by stage: the logits and the taps, float32 under autocast too."""
    with casting(session.autocast, device):
        values = forward()
    names = (session.output, *sorted(session.task.taps))
    return {name: values[name] if session.autocast == "none" else values[name].float() for name in names}


def _local_step(session: Session, values: Values, index: Tensor) -> LocalStep:
    return LocalStep(
        logits=values[session.output],
        labels=session.client.labels.index_select(0, index),
        taps={t: values[t] for t in sorted(session.task.taps)},
        params=session.vectors,
        start=session.start,
        args=session.task.args,
    )


def observe(session: Session, step: LocalStep) -> None:
    """Keeps what the client's program observes of a batch."""
    observed = session.visit.program.observe(step)
    session.seen.append(_copies(observed))


def _copies(values: Mapping[str, Tensor]) -> Values:
    # The next batch is gathered into the same buffers.
    return {name: rows.detach().clone() for name, rows in values.items()}


def _joined(pieces: Sequence[Values]) -> Values:
    """The whole batch's values from its parts'."""
    return {name: torch.cat([p[name] for p in pieces]) for name in pieces[0]}


def joined_rows(session: Session) -> dict[str, Tensor]:
    """What was observed of all batches, on the CPU."""
    names = (session.seen or [{}])[0]
    return {name: torch.cat([rows[name] for rows in session.seen]).cpu() for name in names}
