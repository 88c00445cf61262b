"""The green box: E local epochs on one client, restricted to its assigned groups.

Groups outside ``S_n`` have no gradient and no optimizer state; what they determine is computed once (see ``reuse``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import lru_cache, partial

import torch
from torch import Tensor, nn

from relief_ray.codec import cut, encoded_nbytes
from relief_ray.devices.workload import num_steps
from relief_ray.federated import ClientContext, ClientProgram, Probed, task_loss
from relief_ray.groups import GroupId, GroupLayout, Params, Part, Selection
from relief_ray.messages import Assignment, Receipt, Update, Work
from relief_ray.models.backbone import Backbone
from relief_ray.process import casting
from relief_ray.stages import MAX_KEPT_BYTES, missing_mode, most_windows
from relief_ray.training.config import TrainerConfig
from relief_ray.training.forward_plan import (
    BatchBuffers,
    ForwardPlan,
    compute_sources,
    kept_bytes,
    output_bytes,
    plan_forward,
)
from relief_ray.training.inputs import ClientInputs as ClientInputs
from relief_ray.training.local_step import Clock, GroupVectors, LocalRound, Session, Visit, gradients, joined_rows
from relief_ray.training.optimizer import LARGE, Adam

# Optimizer steps inside the backward pass: a large gradient is used while it is in the cache, and its memory again.
#
# A step depends on nothing but its own tensor's gradient, so no bit changes.


@contextmanager
def stepped_at_once(session: Session, adam: Adam, batch_size: int) -> Iterator[None]:
    """Inside, large trained tensors take their step as soon as a batch's gradient is theirs; the others share one.

    Not where a gradient is not ready then: batches that go in parts, tensors that are trained in parts, objectives that
    may still read what moves.
    """
    has_parts = session.most < batch_size or any(part.cuts for part in session.task.train.values())
    if has_parts or session.visit.program.objective is not task_loss:
        yield
        return
    with ExitStack() as hooks:
        for lr, parameters in session.parameters.items():
            for p in parameters:
                if p.numel() >= LARGE:
                    take = partial(_take, adam, lr, session.visit.clock)
                    hooks.callback(p.register_post_accumulate_grad_hook(take).remove)  # type: ignore[no-untyped-call]
        yield


def _take(adam: Adam, lr: float, clock: Clock, parameter: Tensor) -> None:
    """One tensor's step; what it takes is the optimizer's, not the backward pass'."""
    began = clock.read()
    adam.step([parameter], lr)
    seconds = clock.read() - began
    clock.optimizer_s += seconds
    clock.backward_s -= seconds


# Parts of groups on a client: what it starts from, and what must not move.


def load_model(theta: Mapping[GroupId, Tensor], context: ClientContext, task: Assignment) -> None:
    """Copies the received model and lays the client's personal parts over it."""
    for j, value in context.start.items():
        theta[j].copy_(value)
    drop_ranks(theta, context.layout, task.down)
    overlay(theta, context, task.keep)


def scale_adapters(backbone: Backbone, factor: float) -> None:
    """Lets every LoRA layer, PEFT's or our own, count ``factor`` times its ``s = alpha / R``."""
    for set_scale in backbone.adapter_scales:
        set_scale("default", factor)


def drop_ranks(theta: Mapping[GroupId, Tensor], layout: GroupLayout, down: Selection) -> None:
    """LoRA that came down at a lower rank has no ranks beyond it: both its factors are zero there."""
    for j, part in down.items():
        for spec in layout[j].tensors if part.rank is not None else ():
            if spec.kind in ("lora_a", "lora_b"):
                axis, number = part.lead(spec)
                whole = theta[j][spec.offset : spec.offset + spec.numel].view(spec.shape)
                whole.narrow(axis, number, spec.shape[axis] - number).zero_()


def overlay(theta: Mapping[GroupId, Tensor], context: ClientContext, keep: Mapping[GroupId, Part]) -> None:
    """Restores the parts that stay with the client, where it has any yet."""
    for j, part in keep.items():
        if j in context.state:
            theta[j][context.layout.indices(j, part)] = context.state[j].to(theta[j].device)


def mask_parts(backbone: Backbone, task: Assignment) -> None:
    """Zeroes gradients outside the assigned ranks and rows: with fresh moments Adam then never moves those entries."""
    for j, part in task.train.items():
        if not part.cuts:
            continue
        for spec, p in zip(backbone.layout[j].tensors, backbone.parameters[j], strict=True):
            if p.grad is not None:
                axis, number = part.lead(spec)
                p.grad.narrow(axis, number, spec.shape[axis] - number).zero_()


# Moving a backbone to where it computes; its trained parameters follow the trainer's buffer.


def place(backbone: Backbone, device: torch.device) -> None:
    """Gives the stages copies of all frozen tensors on ``device``, one of each; the groups' parameters are not touched.

    Copies, because other backbones of this process share what is frozen, and the server's own stays on the CPU.
    """
    if device.type == "cpu":
        return
    own = {id(p) for parameters in backbone.parameters.values() for p in parameters}
    moved: dict[int, tuple[Tensor, Tensor]] = {}
    roots = [root for stage in backbone.stages for root in (stage.module, stage.pool) if root is not None]
    for module in (m for root in roots for m in root.modules()):
        for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            if id(tensor) in own or tensor.device.type == device.type:
                continue
            # The old one is kept beside the new one: an id is a tensor's only as long as it lives.
            if id(tensor) not in moved:
                moved[id(tensor)] = (tensor, _copy(tensor, device))
            setattr(module, name, moved[id(tensor)][1])


def _copy(tensor: Tensor, device: torch.device) -> Tensor:
    new = tensor.detach().to(device)
    return nn.Parameter(new, requires_grad=False) if isinstance(tensor, nn.Parameter) else new


class Trainer:
    """Trains one client after the other on one backbone; parameters are views of one flat buffer."""

    def __init__(self, backbone: Backbone, config: TrainerConfig) -> None:
        """Binds the backbone's parameters to the trainer's buffers."""
        self.backbone, self.config = backbone, config
        self.device = torch.device(config.device)
        place(backbone, self.device)
        self.flat = torch.zeros(backbone.layout.numel, device=self.device)
        self.theta = backbone.layout.views(self.flat)
        for j, parameters in backbone.parameters.items():
            start = 0
            for p in parameters:
                self.theta[j][start : start + p.numel()] = p.data.reshape(-1)
                p.data = self.theta[j][start : start + p.numel()].view(p.shape)
                start += p.numel()
        self._output_bytes = output_bytes(backbone)
        # Clients differ in a few ways only.
        self._plan_forward = lru_cache(maxsize=256)(partial(plan_forward, backbone))
        self._adam = Adam([p for ps in backbone.parameters.values() for p in ps], fused=config.engine != "naive")

    def train(self, context: ClientContext, task: Assignment, client: ClientInputs, program: ClientProgram) -> Update:
        """One client's round: refine, E epochs, update, report.

        Returns:
            The update with ``delta = local - global`` for the groups of ``task.up``, measured stage times and new
            personal state.
        """
        return self.local_round(self.begin(context, task, client, program))

    def begin(
        self, context: ClientContext, task: Assignment, client: ClientInputs, program: ClientProgram
    ) -> LocalRound:
        """Lets the client's program refine the task, for which it may probe."""
        visit = Visit(program=program, clock=Clock(waits=self.device.type == "cuda"))
        context = replace(context, probe=partial(self._probe, context, client, visit))
        return LocalRound(context=context, task=program.refine(context, task), client=client, visit=visit)

    def local_round(self, given: LocalRound, in_place: bool = False) -> Update:
        """Trains and reports; ``in_place``: the delta is in the trained model's memory, until the next call."""
        session = self.open(given)
        self._epochs(session)
        return self.close(session, self.flat, in_place)

    def close(self, session: Session, flat: Tensor, in_place: bool = False) -> Update:
        """What the client's program makes of the update to its model ``flat``, whose memory the delta may take."""
        return session.visit.program.after(session.context, self._update(session, flat, in_place))

    def _probe(self, context: ClientContext, client: ClientInputs, visit: Visit, trial: Assignment) -> Probed:
        """One optimizer step of ``trial`` on one batch, and the gradient behind it; the next session starts afresh."""
        order = context.streams.torch("probe", context.round, context.info.id)
        index = torch.randperm(len(client.labels), generator=order)[: self.config.batch_size]
        batch = ClientInputs(inputs={m: x[index] for m, x in client.inputs.items()}, labels=client.labels[index])
        once = replace(trial, epochs=1)  # whatever it would do as a round
        session = self.open(LocalRound(context=context, task=once, client=batch, visit=visit))
        visit.probes.append((trial, len(index)))
        batches, whole = self._batches(session), torch.arange(len(index), device=self.device)
        self._batch(session, batches, whole)
        step = {j: (self.theta[j] - session.start[j]).cpu() for j in session.vectors}
        gradients(session, batches, whole)
        return Probed(step=step, gradient={j: g.cpu() for j, g in session.vectors.gradients().items()})

    def open(self, given: LocalRound) -> Session:
        """Loads the client's model and decides what is computed when."""
        context, task = given.context, given.task
        load_model(self.theta, context, task)
        scale_adapters(self.backbone, task.lora_scale)
        num_windows = len(given.client.labels)
        plan = self.plan(context.info.modalities, task, num_windows)
        is_once = num_steps(num_windows, task.epochs, self.config.batch_size) == 1
        return Session(
            context=context,
            task=task,
            client=given.client,
            visit=given.visit,
            plan=plan,
            output=task.output or self.backbone.output,
            parameters=self._freeze(task, once=is_once),
            vectors=GroupVectors(
                self.backbone.parameters, tuple(j for j in self.backbone.layout.ids if j in task.train)
            ),
            start=self._start(context, task),
            most=self.most_windows(plan),
            autocast=self.config.autocast,
        )

    def most_windows(self, plan: ForwardPlan) -> int:
        """Windows that go forward and backward together: decided by sizes, so that every machine adds up alike."""
        size = self.config.batch_size
        return min(size, self.config.micro_batch or most_windows(plan.step_bytes) or size)

    def plan(self, present: Collection[str], task: Assignment, num_windows: int) -> ForwardPlan:
        """What runs when; what would be too much to keep for the whole round runs in every step."""
        missing, reuse = missing_mode(self.config.missing, omit_absent=task.omit_absent), self.config.engine != "naive"
        chosen = frozenset(present), frozenset(task.train), missing, reuse, tuple(task.taps), task.output
        plan_for = partial(self._plan_forward, *chosen)
        plan: ForwardPlan = plan_for()
        kept = kept_bytes(plan, self._output_bytes) * num_windows
        return plan if kept <= MAX_KEPT_BYTES else plan_for(keep=False)

    def _start(self, context: ClientContext, task: Assignment) -> Params:
        """The model as it was loaded: the received one where nothing of the client's own lies over it."""
        own = task.keep or any(part.rank is not None for part in task.down.values())
        if not own and len(context.start) == len(self.backbone.layout) and self.device.type == "cpu":
            return context.start
        return self.backbone.layout.views(self.flat.clone())

    def _freeze(self, task: Assignment, once: bool) -> dict[float, list[Tensor]]:
        """Switches gradients on for exactly the assigned tensors and forgets their moments; by learning rate."""
        chosen: dict[float, list[Tensor]] = {}
        for group in self.backbone.layout:
            part = task.train.get(group.id)
            for spec, p in zip(group.tensors, self.backbone.parameters[group.id], strict=True):
                wanted = part is not None and (part.kinds is None or spec.kind in part.kinds)
                p.requires_grad_(wanted)
                if wanted:
                    chosen.setdefault(self.config.lr * task.lr_scale.get(group.id, 1.0), []).append(p)
        self._adam.reset([p for parameters in chosen.values() for p in parameters], once=once)
        return chosen

    def _epochs(self, session: Session) -> None:
        context, clock, num_windows = session.context, session.visit.clock, len(session.client.labels)
        batches = self._batches(session)
        order = context.streams.torch("batches", context.round, context.info.id)
        with self._early_steps(session):
            for epoch in range(1, session.task.epochs + 1):
                losses = []
                shuffled = torch.randperm(num_windows, generator=order).to(self.device)
                for index in torch.split(shuffled, self.config.batch_size):
                    loss = self._batch(session, batches, index, is_observed=epoch == session.task.epochs)
                    losses.append((loss, len(index)))
                    clock.num_steps += 1
                clock.loss = _mean(losses, num_windows)

    def _early_steps(self, session: Session) -> AbstractContextManager[None]:
        """For our own stages on a CPU: they read a tensor once, and no cache is worth waiting for a GPU."""
        if self.config.engine != "gemm" or self.device.type != "cpu":
            return nullcontext()
        return stepped_at_once(session, self._adam, self.config.batch_size)

    def _batches(self, session: Session) -> BatchBuffers:
        """Computes once what no step changes."""
        clock, num_windows = session.visit.clock, len(session.client.labels)
        began = clock.read()
        with casting(self.config.autocast, self.device):
            sources = compute_sources(self.backbone, session.plan, session.client.inputs, num_windows)
        batches = BatchBuffers(sources, num_windows, session.most)
        clock.forward_s += clock.read() - began
        return batches

    def _batch(self, session: Session, batches: BatchBuffers, index: Tensor, is_observed: bool = False) -> Tensor:
        """One optimizer step on the windows ``index`` (b,); returns the mean loss before it."""
        loss, clock = gradients(session, batches, index, is_observed), session.visit.clock
        began = clock.read()
        mask_parts(self.backbone, session.task)
        for lr, parameters in session.parameters.items():
            self._adam.step(parameters, lr)
        clock.optimizer_s += clock.read() - began
        return loss

    def _update(self, session: Session, flat: Tensor, in_place: bool) -> Update:
        layout, context, task, clock = self.backbone.layout, session.context, session.task, session.visit.clock
        # What leaves is on the CPU: one transfer, and none where it is there already.
        theta = layout.views(flat.cpu())
        kept = {j: value.clone() for j, value in cut(layout, task.keep, theta).items()}
        local = cut(layout, task.up, theta)
        origin = cut(layout, task.up, context.start)
        delta = {j: torch.sub(local[j], origin[j], out=local[j] if in_place else None) for j in task.up}
        work = Work(
            num_windows=len(session.client.labels),
            epochs=task.epochs,
            num_steps=clock.num_steps,
            engine=self.config.engine,
            loss=clock.loss,
            measured=clock.stage_times(),
            extra_flops=clock.num_steps * task.step_flops,
        )
        receipt = Receipt(
            assignment=task,
            work=work,
            bytes_down=encoded_nbytes(layout, task.down) if task.down else 0,
            bytes_up=encoded_nbytes(layout, task.up) if task.up else 0,
            stats=joined_rows(session),
            probes=tuple(session.visit.probes),
        )
        return Update(receipt=receipt, delta=delta, state={**context.state, **kept})


def _mean(losses: Sequence[tuple[Tensor, int]], num_windows: int) -> float:
    """Of the steps' losses by their windows; read now, so that a GPU is not waited for in every step."""
    total = 0.0
    for loss, num in losses:  # not sum(), which adds up in other ways since Python 3.12
        total += float(loss) * num
    return total / num_windows
