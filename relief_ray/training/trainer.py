"""The green box: E local epochs on one client, restricted to its assigned groups.

Groups outside ``S_n`` have no gradient and no optimizer state; what they determine is computed once (see ``reuse``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from time import perf_counter

import torch
from torch import Tensor

from relief_ray.codec import cut, encoded_nbytes
from relief_ray.federated import ClientContext, ClientProgram, LocalStep
from relief_ray.groups import GroupId, Params
from relief_ray.messages import Assignment, Receipt, StageTimes, Update, Work
from relief_ray.models.backbone import Backbone
from relief_ray.stages import Engine, Missing
from relief_ray.training.optimizer import Adam
from relief_ray.training.parts import load_model, mask_parts
from relief_ray.training.reuse import BatchBuffers, ForwardPlan, Values, compute_sources, plan_forward, run


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


class GroupVectors(Mapping[GroupId, Tensor]):
    """The trained groups' vectors ``theta_j`` with their gradient history, built when asked for."""

    def __init__(self, backbone: Backbone, trained: tuple[GroupId, ...]) -> None:
        """Vectors of the groups in ``trained``."""
        self._backbone, self._trained = backbone, trained

    def __getitem__(self, group: GroupId) -> Tensor:
        """``theta_j`` (numel,)."""
        if group not in self._trained:
            raise KeyError(group)
        return torch.cat([p.reshape(-1) for p in self._backbone.parameters[group]])

    def __iter__(self) -> Iterator[GroupId]:
        """Trained groups in storage order."""
        return iter(self._trained)

    def __len__(self) -> int:
        """How many are trained."""
        return len(self._trained)


@dataclass(slots=True)
class _Clock:
    """Measured seconds by stage, and the running loss of the last epoch."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    optimizer_s: float = 0.0
    loss: float = 0.0
    num_steps: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Session:
    """One client's round while it runs; ``start`` is the model as it was loaded, personal parts included.

    ``parameters``: the trained ones by their learning rate.
    """

    context: ClientContext
    task: Assignment
    client: ClientInputs
    program: ClientProgram
    plan: ForwardPlan
    parameters: Mapping[float, list[torch.nn.Parameter]]
    vectors: GroupVectors
    start: Params
    clock: _Clock = field(default_factory=_Clock)


class Trainer:
    """Trains one client after the other on one backbone; parameters are views of one flat buffer."""

    def __init__(self, backbone: Backbone, config: TrainerConfig) -> None:
        """Binds the backbone's parameters to the trainer's buffers."""
        self.backbone, self.config = backbone, config
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
        task = program.refine(context, task)
        load_model(self.theta, context, task)
        present, reuse = context.info.modalities, self.config.engine != "naive"
        session = _Session(
            context=context,
            task=task,
            client=client,
            program=program,
            plan=plan_forward(self.backbone, present, task.train, self.config.missing, reuse, task.taps, task.output),
            parameters=self._freeze(task),
            vectors=GroupVectors(self.backbone, tuple(j for j in self.backbone.layout.ids if j in task.train)),
            start=self._start(context, task),
        )
        self._epochs(session)
        return program.after(context, self._update(session))

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
        context, clock, num_windows = session.context, session.clock, len(session.client.labels)
        began = perf_counter()
        sources = compute_sources(self.backbone, session.plan, session.client.inputs, num_windows)
        batches = BatchBuffers(sources, num_windows, self.config.batch_size)
        clock.forward_s += perf_counter() - began
        order = context.streams.torch("batches", context.round, context.info.id)
        for _ in range(session.task.epochs):
            total = 0.0
            for index in torch.split(torch.randperm(num_windows, generator=order), self.config.batch_size):
                total += self._batch(session, batches, index) * len(index)
            clock.loss = total / num_windows

    def _batch(self, session: _Session, batches: BatchBuffers, index: Tensor) -> float:
        """One optimizer step on the windows ``index`` (b,); returns the mean loss before it."""
        clock, task = session.clock, session.task
        began = perf_counter()
        values = run(session.plan.every_step, batches.take(index), session.plan, len(index))
        loss = session.program.objective(self._local_step(session, values, index))
        forwarded = perf_counter()
        if loss.requires_grad:
            torch.autograd.backward(loss)
        differentiated = perf_counter()
        mask_parts(self.backbone, task)
        for lr, parameters in session.parameters.items():
            self._adam.step(parameters, lr)
        clock.forward_s += forwarded - began
        clock.backward_s += differentiated - forwarded
        clock.optimizer_s += perf_counter() - differentiated
        clock.num_steps += 1
        return float(loss.detach())

    def _local_step(self, session: _Session, values: Values, index: Tensor) -> LocalStep:
        return LocalStep(
            logits=values[session.task.output or self.backbone.output],
            labels=session.client.labels[index],
            taps={t: values[t] for t in session.task.taps},
            params=session.vectors,
            start=session.start,
            args=session.task.args,
        )

    def _update(self, session: _Session) -> Update:
        layout, context, task, clock = self.backbone.layout, session.context, session.task, session.clock
        local = cut(layout, task.up, self.theta)
        origin = cut(layout, task.up, context.start)
        delta = {j: local[j] - origin[j] for j in task.up}
        work = Work(
            num_windows=len(session.client.labels),
            epochs=task.epochs,
            num_steps=clock.num_steps,
            engine=self.config.engine,
            loss=clock.loss,
            measured=StageTimes(forward_s=clock.forward_s, backward_s=clock.backward_s, optimizer_s=clock.optimizer_s),
        )
        receipt = Receipt(
            assignment=task,
            work=work,
            bytes_down=encoded_nbytes(layout, task.down) if task.down else 0,
            bytes_up=encoded_nbytes(layout, task.up) if task.up else 0,
        )
        kept = {j: value.clone() for j, value in cut(layout, task.keep, self.theta).items()}
        return Update(receipt=receipt, delta=delta, state={**context.state, **kept})
