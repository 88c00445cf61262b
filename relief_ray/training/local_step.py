"""Gradient of one mini-batch: in a single pass, or in micro-batches that sum to the same gradient.

An objective that is a mean over windows is evaluated per micro-batch and weighted by its share ``b_i / b`` of the
windows. Any other objective needs the whole batch: a pass without gradient collects the outputs that it reads, it is
evaluated once, and its gradient with respect to these outputs is propagated through the micro-batches, which costs a
second forward pass. Both are exact; gradients are added in batch order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from relief_ray.core.client import ClientContext, ClientProgram, LocalStep, task_loss
from relief_ray.core.groups import GroupId, Params
from relief_ray.core.messages import Assignment, StageTimes
from relief_ray.models.modes import TrainingMode
from relief_ray.plugins.blame import AnyFunction, require, users_function
from relief_ray.support.process import Autocast, Moment, casting, moment, seconds_between
from relief_ray.training.forward_plan import BatchBuffers, ForwardPlan, Values, run_stages, spread
from relief_ray.training.inputs import ClientInputs

Phase: TypeAlias = Literal["forward", "backward", "optimizer"]


@dataclass(slots=True)
class Stopwatch:
    """Measured seconds by phase, and the counters of one client's run.

    Attributes:
        forward_s: seconds in forward passes, outputs computed once a round included.
        backward_s: seconds in backward passes.
        optimizer_s: seconds in optimizer steps.
        loss: mean loss of the last finished epoch.
        num_steps: optimizer steps taken so far.
        on_gpu: whether moments are marks in the GPU's work.
        spans: phases on the GPU that are not yet added up.
    """

    forward_s: float = 0.0
    backward_s: float = 0.0
    optimizer_s: float = 0.0
    loss: float = 0.0
    num_steps: int = 0
    on_gpu: bool = False
    spans: list[tuple[Phase, Moment, Moment]] = field(default_factory=list)

    def read(self) -> Moment:
        """Now."""
        return moment(self.on_gpu)

    def add(self, phase: Phase, began: Moment) -> Moment:
        """Add the time since ``began`` to a phase; return the moment at which it ended."""
        ended = self.read()
        if self.on_gpu:
            self.spans.append((phase, began, ended))
        else:
            self._count(phase, seconds_between(began, ended))
        return ended

    def _count(self, phase: Phase, seconds: float) -> None:
        name = f"{phase}_s"
        setattr(self, name, getattr(self, name) + seconds)

    def stage_times(self) -> StageTimes:
        """Seconds measured so far; a GPU's marks are read now, so that steps need not wait for them."""
        for phase, began, ended in self.spans:
            self._count(phase, seconds_between(began, ended))
        self.spans.clear()
        return StageTimes(forward_s=self.forward_s, backward_s=self.backward_s, optimizer_s=self.optimizer_s)


class GroupVectors(Mapping[GroupId, Tensor]):
    """The trained groups' vectors ``theta_j`` with their autograd history, concatenated on access."""

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
        """Number of trained groups."""
        return len(self._trained)

    def pop_gradients(self) -> dict[GroupId, Tensor]:
        """Each group's gradient (numel,), zero for tensors without one; resets the parameters' gradients to None."""
        gradients = {}
        for j in self._trained:
            parameters = self._tensors[j]
            pieces = [(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in parameters]
            gradients[j] = torch.cat(pieces)
            for p in parameters:
                p.grad = None
        return gradients


@dataclass(frozen=True, kw_only=True, slots=True)
class Received:
    """Outputs (1, ...) of absent sensors' networks that a client does not have, by stage (``absent_rows``).

    ``nbytes``: length of those that came down; the others are known to be 0.
    """

    rows: Values = field(default_factory=dict)
    nbytes: int = 0


NOTHING = Received()


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientRun:
    """One client's local training in one round, before its model is loaded.

    Attributes:
        context: what the client's program may read: its state, the received model, random streams, a probe.
        task: the server's assignment after the client's program refined it.
        data: the client's prepared windows and labels.
        program: the method's client-side functions (refine, objective, observe, after).
        clock: seconds and steps of this run, probes included.
        probes: each probe that was made: its trial assignment and its number of windows.
        statistics: running statistics of BatchNorm layers that the client has kept.
        received: what stands for absent sensors' networks, where the client does not have these.
    """

    context: ClientContext
    task: Assignment
    data: ClientInputs
    program: ClientProgram
    clock: Stopwatch = field(default_factory=Stopwatch)
    probes: list[tuple[Assignment, int]] = field(default_factory=list)
    statistics: Params = field(default_factory=dict)
    received: Received = NOTHING


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedRun(ClientRun):
    """A client's run (or a probe of it) whose model is loaded into the trainer's parameters.

    Attributes:
        plan: which stages run once per round and which in every step.
        output: the stage whose output is the logits.
        cross_entropy: the engine's, for objectives.
        parameters: the trained tensors by learning rate.
        vectors: the trained groups as vectors, for objectives that read parameters.
        start: the model as it was loaded, the client's personal parts included.
        max_windows: the most windows that go through forward and backward together; larger batches are split.
        autocast: precision of matrix products in training.
        mode: switches dropout and batch norm on for the forward passes of steps.
        observed: the rows that the client's program observed, one mapping per batch of the last epoch.
    """

    plan: ForwardPlan
    output: str
    cross_entropy: Callable[[Tensor, Tensor], Tensor]
    parameters: Mapping[float, list[Tensor]]
    vectors: GroupVectors
    start: Params
    max_windows: int
    autocast: Autocast
    mode: TrainingMode
    observed: list[Mapping[str, Tensor]] = field(default_factory=list)


def accumulate_gradients(run: LoadedRun, batches: BatchBuffers, index: Tensor, is_observed: bool = False) -> Tensor:
    """Add the objective's gradient on the windows ``index`` (b,) to the parameters' gradients; return the loss.

    ``is_observed``: the client's program observes this batch.
    """
    if len(index) <= run.max_windows:
        return _single_pass(run, batches, index, is_observed)
    in_parts = _weighted_parts if is_mean_over_windows(run.program) else _two_passes
    return in_parts(run, batches, index, torch.split(index, run.max_windows), is_observed)


def is_mean_over_windows(program: ClientProgram) -> bool:
    """Whether a batch's objective is the mean of its parts' objectives, weighted by their windows."""
    return program.is_mean or program.objective is task_loss


def backward(loss: Tensor, objective: AnyFunction) -> None:
    """Add the gradient of an objective's value; do nothing for a constant.

    Raises:
        UserCodeFailed: autograd cannot take it through a user's objective, which changed in place what it had used.
    """
    try:
        if loss.requires_grad:
            torch.autograd.backward(loss)
    except RuntimeError as error:
        is_autograds = any(words in str(error) for words in ("inplace operation", "a second time"))
        if users_function(objective) is None or not is_autograds:
            raise
        fix = "expected one that autograd takes; change no tensor in place"
        said = f"returned a loss whose gradient fails ({error}), {fix}"
        require(objective, "client.objective", "", lambda: said)


def objective_inputs(run: LoadedRun, device: torch.device, forward: Callable[[], Values]) -> Values:
    """Run ``forward`` and return the outputs that the objective reads: logits and taps, always float32."""
    with casting(run.autocast, device):
        values = forward()
    names = (run.output, *sorted(run.task.taps))
    return {name: values[name] if run.autocast == "none" else values[name].float() for name in names}


def observe_batch(run: LoadedRun, step: LocalStep) -> None:
    """Append the rows that the client's program observes of a batch."""
    run.observed.append(_copies(run.program.observe(step)))


def observed_rows(run: LoadedRun) -> Values:
    """Concatenate the observed rows of all batches, on the CPU."""
    names = (run.observed or [{}])[0]
    return {name: torch.cat([rows[name] for rows in run.observed]).cpu() for name in names}


def _single_pass(run: LoadedRun, batches: BatchBuffers, index: Tensor, is_observed: bool) -> Tensor:
    clock = run.clock
    began = clock.read()
    step = _local_step(run, _outputs(run, batches, index), index)
    loss = run.program.objective(step)
    if is_observed:
        observe_batch(run, step)
    forwarded = clock.add("forward", began)
    backward(loss, run.program.objective)
    clock.add("backward", forwarded)
    return loss.detach()


def _weighted_parts(
    run: LoadedRun, batches: BatchBuffers, index: Tensor, parts: Sequence[Tensor], is_observed: bool
) -> Tensor:
    clock, losses, outputs = run.clock, [], []
    for part in parts:
        began = clock.read()
        values = _outputs(run, batches, part)
        loss = run.program.objective(_local_step(run, values, part)) * (len(part) / len(index))
        if is_observed:
            outputs.append(_copies(values))
        forwarded = clock.add("forward", began)
        backward(loss, run.program.objective)
        clock.add("backward", forwarded)
        losses.append(loss.detach())
    if is_observed:
        observe_batch(run, _local_step(run, _concatenated(outputs), index))
    return torch.stack(losses).sum()


def _two_passes(
    run: LoadedRun, batches: BatchBuffers, index: Tensor, parts: Sequence[Tensor], is_observed: bool
) -> Tensor:
    clock = run.clock
    began, drawn = clock.read(), run.mode.again()
    with torch.no_grad():
        pieces = [_copies(_outputs(run, batches, part)) for part in parts]
    leaves = {name: value.requires_grad_() for name, value in _concatenated(pieces).items()}
    step = _local_step(run, leaves, index)
    loss = run.program.objective(step)
    if is_observed:
        observe_batch(run, step)
    forwarded, start = clock.add("forward", began), 0
    # Terms of parameters alone get their gradient here; the rest stops at the leaves.
    backward(loss, run.program.objective)
    clock.add("backward", forwarded)
    run.mode.again(drawn)  # the second pass drops what the first one dropped
    for part in parts:
        began = clock.read()
        values = _outputs(run, batches, part)
        forwarded = clock.add("forward", began)
        _backward_from(values, {name: leaf.grad for name, leaf in leaves.items()}, start, len(part))
        start += len(part)
        clock.add("backward", forwarded)
    return loss.detach()


def _backward_from(values: Values, upper: Mapping[str, Tensor | None], start: int, num: int) -> None:
    """Backward from ``values``, whose gradients are the ``num`` rows of ``upper`` from ``start`` on."""
    outputs, gradients = [], []
    for name, gradient in upper.items():
        if gradient is not None and values[name].requires_grad:
            outputs.append(values[name])
            gradients.append(gradient[start : start + num])
    if outputs:
        torch.autograd.backward(outputs, gradients)


def _outputs(run: LoadedRun, batches: BatchBuffers, index: Tensor) -> Values:
    """The objective's inputs for the windows ``index`` (b,): b rows each, for absent modalities too."""
    sources, plan, batch = batches.take(index), run.plan, len(index)
    with run.mode.step(batch):
        values = objective_inputs(run, index.device, lambda: run_stages(plan.every_step, sources, plan, batch))
    return {name: spread(x, batch) for name, x in values.items()}


def _local_step(run: LoadedRun, values: Values, index: Tensor) -> LocalStep:
    return LocalStep(
        logits=values[run.output],
        labels=run.data.labels.index_select(0, index),
        taps={t: values[t] for t in sorted(run.task.taps)},
        params=run.vectors,
        start=run.start,
        args=run.task.args,
        cross_entropy=run.cross_entropy,
    )


def _copies(values: Mapping[str, Tensor]) -> Values:
    # The next batch is gathered into the same buffers.
    return {name: rows.detach().clone() for name, rows in values.items()}


def _concatenated(pieces: Sequence[Values]) -> Values:
    """The whole batch's values from its micro-batches'."""
    return {name: torch.cat([p[name] for p in pieces]) for name in pieces[0]}
