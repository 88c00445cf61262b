"""The green box: E local epochs on one client, restricted to its assigned groups.

Groups outside ``S_n`` have no gradient and no optimizer state; what they determine is computed once (see ``reuse``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter

import torch
from torch import Tensor

from relief_ray.codec import cut, encoded_nbytes
from relief_ray.federated import ClientContext, ClientProgram, LocalStep, Probed
from relief_ray.groups import Params
from relief_ray.messages import Assignment, Receipt, Update, Work
from relief_ray.models.backbone import Backbone
from relief_ray.stages import MAX_KEPT_BYTES, Engine, Missing
from relief_ray.training.optimizer import Adam
from relief_ray.training.parts import load_model, mask_parts
from relief_ray.training.reuse import (
    BatchBuffers,
    ForwardPlan,
    Values,
    compute_sources,
    kept_bytes,
    output_bytes,
    plan_forward,
    run,
)
from relief_ray.training.vectors import Clock, GroupVectors


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerConfig:
    """Local training: Adam's ``lr``, mini-batch size, missing mode and the engine that runs it."""

    lr: float
    batch_size: int
    missing: Missing
    engine: Engine


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientInputs:
    """A client's windows, ready for the first stage: modality -> (n, ...) float32, and labels (n,) int64."""

    inputs: Mapping[str, Tensor]
    labels: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class _Visit:
    """One client's round: whose program runs, what it took so far, what was probed."""

    program: ClientProgram
    clock: Clock = field(default_factory=Clock)
    probes: list[tuple[Assignment, int]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Session:
    """Training or a probe while it runs; ``start`` is the model as it was loaded, personal parts included.

    ``parameters``: the trained ones by their learning rate.
    """

    context: ClientContext
    task: Assignment
    client: ClientInputs
    visit: _Visit
    plan: ForwardPlan
    parameters: Mapping[float, list[torch.nn.Parameter]]
    vectors: GroupVectors
    start: Params
    seen: list[Mapping[str, Tensor]] = field(default_factory=list)


class Trainer:
    """Trains one client after the other on one backbone; parameters are views of one flat buffer."""

    def __init__(self, backbone: Backbone, config: TrainerConfig) -> None:
        """Binds the backbone's parameters to the trainer's buffers."""
        self.backbone, self.config = backbone, config
        self._output_bytes = output_bytes(backbone)
        self.flat = torch.zeros(backbone.layout.numel)
        self.theta = backbone.layout.views(self.flat)
        for j, parameters in backbone.parameters.items():
            start = 0
            for p in parameters:
                self.theta[j][start : start + p.numel()] = p.data.reshape(-1)
                p.data = self.theta[j][start : start + p.numel()].view(p.shape)
                start += p.numel()
        self._adam = Adam([p for ps in backbone.parameters.values() for p in ps], fused=config.engine != "naive")

    def train(self, context: ClientContext, task: Assignment, client: ClientInputs, program: ClientProgram) -> Update:
        """One client's round: refine, E epochs, update, report.

        Returns:
            The update with ``delta = local - global`` for the groups of ``task.up``, measured stage times and new
            personal state.
        """
        visit = _Visit(program=program)
        context = replace(context, probe=partial(self._probe, context, client, visit))
        session = self._session(context, program.refine(context, task), client, visit)
        self._epochs(session)
        return program.after(context, self._update(session))

    def _probe(self, context: ClientContext, client: ClientInputs, visit: _Visit, trial: Assignment) -> Probed:
        """One optimizer step of ``trial`` on one batch, and the gradient behind it; the next session starts afresh."""
        order = context.streams.torch("probe", context.round, context.info.id)
        index = torch.randperm(len(client.labels), generator=order)[: self.config.batch_size]
        batch = ClientInputs(inputs={m: x[index] for m, x in client.inputs.items()}, labels=client.labels[index])
        session = self._session(context, trial, batch, visit)
        visit.probes.append((trial, len(index)))
        batches, whole = self._batches(session), torch.arange(len(index))
        self._batch(session, batches, whole)
        step = {j: self.theta[j] - session.start[j] for j in session.vectors}
        self._gradients(session, batches, whole)
        return Probed(step=step, gradient=session.vectors.gradients())

    def _session(self, context: ClientContext, task: Assignment, client: ClientInputs, visit: _Visit) -> _Session:
        load_model(self.theta, context, task)
        return _Session(
            context=context,
            task=task,
            client=client,
            visit=visit,
            plan=self._plan(context.info.modalities, task, len(client.labels)),
            parameters=self._freeze(task),
            vectors=GroupVectors(self.backbone, tuple(j for j in self.backbone.layout.ids if j in task.train)),
            start=self._start(context, task),
        )

    def _plan(self, present: Collection[str], task: Assignment, num_windows: int) -> ForwardPlan:
        """What runs when; what would be too much to keep for the whole round runs in every step."""
        missing, reuse = self.config.missing, self.config.engine != "naive"
        plan_for = partial(plan_forward, self.backbone, present, task.train, missing, reuse, task.taps, task.output)
        plan: ForwardPlan = plan_for()
        kept = kept_bytes(plan, self._output_bytes) * num_windows
        return plan if kept <= MAX_KEPT_BYTES else plan_for(keep=False)

    def _start(self, context: ClientContext, task: Assignment) -> Params:
        """The model as it was loaded: the received one where nothing of the client's own lies over it."""
        own = task.keep or any(part.rank is not None for part in task.down.values())
        if not own and len(context.start) == len(self.backbone.layout):
            return context.start
        return self.backbone.layout.views(self.flat.clone())

    def _freeze(self, task: Assignment) -> dict[float, list[torch.nn.Parameter]]:
        """Switches gradients on for exactly the assigned tensors and clears their moments; by learning rate."""
        chosen: dict[float, list[torch.nn.Parameter]] = {}
        for group in self.backbone.layout:
            part = task.train.get(group.id)
            for spec, p in zip(group.tensors, self.backbone.parameters[group.id], strict=True):
                wanted = part is not None and (part.kinds is None or spec.kind in part.kinds)
                p.requires_grad_(wanted)
                if wanted:
                    chosen.setdefault(self.config.lr * task.lr_scale.get(group.id, 1.0), []).append(p)
        self._adam.reset([p for parameters in chosen.values() for p in parameters])
        return chosen

    def _epochs(self, session: _Session) -> None:
        context, clock, num_windows = session.context, session.visit.clock, len(session.client.labels)
        batches = self._batches(session)
        order = context.streams.torch("batches", context.round, context.info.id)
        for epoch in range(1, session.task.epochs + 1):
            total = 0.0
            for index in torch.split(torch.randperm(num_windows, generator=order), self.config.batch_size):
                loss = self._batch(session, batches, index, is_observed=epoch == session.task.epochs)
                total += loss * len(index)
                clock.num_steps += 1
            clock.loss = total / num_windows

    def _batches(self, session: _Session) -> BatchBuffers:
        """Computes once what no step changes."""
        began, num_windows = perf_counter(), len(session.client.labels)
        sources = compute_sources(self.backbone, session.plan, session.client.inputs, num_windows)
        batches = BatchBuffers(sources, num_windows, self.config.batch_size)
        session.visit.clock.forward_s += perf_counter() - began
        return batches

    def _batch(self, session: _Session, batches: BatchBuffers, index: Tensor, is_observed: bool = False) -> float:
        """One optimizer step on the windows ``index`` (b,); returns the mean loss before it."""
        loss = self._gradients(session, batches, index, is_observed)
        began = perf_counter()
        mask_parts(self.backbone, session.task)
        for lr, parameters in session.parameters.items():
            self._adam.step(parameters, lr)
        session.visit.clock.optimizer_s += perf_counter() - began
        return loss

    def _gradients(self, session: _Session, batches: BatchBuffers, index: Tensor, is_observed: bool = False) -> float:
        """Forward and backward on the windows ``index`` (b,); returns the mean loss."""
        began = perf_counter()
        values = run(session.plan.every_step, batches.take(index), session.plan, len(index))
        step = self._local_step(session, values, index)
        loss = session.visit.program.objective(step)
        if is_observed:
            # Copies: the next batch is gathered into the same buffers.
            observed = session.visit.program.observe(step)
            session.seen.append({name: rows.detach().clone() for name, rows in observed.items()})
        forwarded = perf_counter()
        if loss.requires_grad:
            torch.autograd.backward(loss)
        session.visit.clock.forward_s += forwarded - began
        session.visit.clock.backward_s += perf_counter() - forwarded
        return float(loss.detach())

    def _local_step(self, session: _Session, values: Values, index: Tensor) -> LocalStep:
        return LocalStep(
            logits=values[session.task.output or self.backbone.output],
            labels=session.client.labels[index],
            taps={t: values[t] for t in sorted(session.task.taps)},
            params=session.vectors,
            start=session.start,
            args=session.task.args,
        )

    def _update(self, session: _Session) -> Update:
        layout, context, task, clock = self.backbone.layout, session.context, session.task, session.visit.clock
        local = cut(layout, task.up, self.theta)
        origin = cut(layout, task.up, context.start)
        delta = {j: local[j] - origin[j] for j in task.up}
        work = Work(
            num_windows=len(session.client.labels),
            epochs=task.epochs,
            num_steps=clock.num_steps,
            engine=self.config.engine,
            loss=clock.loss,
            measured=clock.stage_times(),
        )
        receipt = Receipt(
            assignment=task,
            work=work,
            bytes_down=encoded_nbytes(layout, task.down) if task.down else 0,
            bytes_up=encoded_nbytes(layout, task.up) if task.up else 0,
            stats={name: torch.cat([s[name] for s in session.seen]) for name in (session.seen or [{}])[0]},
            probes=tuple(session.visit.probes),
        )
        kept = {j: value.clone() for j, value in cut(layout, task.keep, self.theta).items()}
        return Update(receipt=receipt, delta=delta, state={**context.state, **kept})
