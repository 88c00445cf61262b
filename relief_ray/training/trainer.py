"""Local training of one client: E epochs of mini-batches on its assigned groups (the green box of Algorithm 1).

A client's round goes ``begin`` (the client's program refines its task) -> ``load`` (model, trained tensors, forward
plan) -> epochs of optimizer steps -> ``finish`` (update and receipt). Groups outside ``S_n`` have no gradient and no
optimizer state; outputs that no trained group can change are computed once per round (``forward_plan``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache, partial

import torch
from torch import Tensor
from torch.nn import functional

from relief_ray.core.client import ClientContext, ClientProgram, Probed, send_all, task_loss
from relief_ray.core.codec import cut, lost_share, sent
from relief_ray.core.groups import GroupId, GroupLayout, Params, Part, Selection
from relief_ray.core.messages import Assignment, Receipt, Update, Work
from relief_ray.core.stages import MAX_KEPT_BYTES, Engine, Missing, missing_mode, most_windows
from relief_ray.devices.workload import num_steps
from relief_ray.kernels.library import coded, require_library, squares
from relief_ray.models.backbone import Backbone, move_frozen
from relief_ray.models.fused import KernelLinear, cross_entropy
from relief_ray.models.modes import TrainingMode, of_statistics, without_statistics
from relief_ray.support.errors import UserError
from relief_ray.support.process import casting, flushing, seconds_between
from relief_ray.training.config import TrainerConfig
from relief_ray.training.forward_plan import (
    BatchBuffers,
    ForwardPlan,
    Values,
    absent_rows,
    compute_sources,
    kept_bytes,
    output_bytes,
    plan_forward,
)
from relief_ray.training.inputs import ClientInputs
from relief_ray.training.local_step import (
    NOTHING,
    ClientRun,
    GroupVectors,
    LoadedRun,
    Received,
    Stopwatch,
    accumulate_gradients,
    observed_rows,
)
from relief_ray.training.optimizer import LARGE, Kernel, LocalOptimizer, clip_gradients

_KERNELS: Mapping[Engine, Kernel] = {"naive": "torch", "reuse": "torch_fused", "gemm": "torch_fused", "fused": "own"}


class Trainer:
    """Trains clients one after another on one backbone, whose parameters are views of one flat buffer.

    Attributes:
        backbone: the model; its frozen tensors are moved to ``device``.
        config: learning rate, batch size, missing mode, engine, device.
        device: where training runs.
        flat: all groups' values (numel,), in layout order.
        theta: each group's values (numel of the group,), views of ``flat``.
    """

    def __init__(self, backbone: Backbone, config: TrainerConfig) -> None:
        """Bind the backbone's parameters to the trainer's buffers.

        Raises:
            UserError: the engine's library is not here; the machine is named.
        """
        self.backbone, self.config = backbone, config
        if config.engine == "fused":
            require_library(config.device)
        self.device = torch.device(config.device)
        move_frozen(backbone, self.device)
        self.flat = torch.zeros(backbone.layout.numel, device=self.device)
        self.theta = backbone.layout.views(self.flat)
        for j, parameters in backbone.parameters.items():
            for p, view in zip(parameters, backbone.layout.unflatten(j, self.theta[j]).values(), strict=True):
                view.copy_(p.data)
                p.data = view
        # Of groups that a client never received it has these.
        self._initial = self.flat.clone()
        self._output_bytes = output_bytes(backbone)
        # Clients differ in a few ways only.
        self._plan_forward = lru_cache(maxsize=256)(partial(plan_forward, backbone))
        tensors = [p for parameters in backbone.parameters.values() for p in parameters]
        self._optimizer = LocalOptimizer(tensors, _KERNELS[config.engine], config.rule)

    def train(self, context: ClientContext, task: Assignment, data: ClientInputs, program: ClientProgram) -> Update:
        """Run one client's round: refine, E epochs, update, report.

        Returns:
            The update with ``delta = local - global`` for the groups of ``task.up``, measured stage times and new
            personal state.
        """
        return self.train_run(self.begin(context, task, data, program))

    def rows(self, theta: Params, missing: Missing) -> Values:
        """One row of every stage's output where all sensors are absent, of the whole model ``theta``."""
        for j, value in theta.items():
            self.theta[j].copy_(value)
        scale_adapters(self.backbone, 1.0)
        return absent_rows(self.backbone, missing)

    def begin(
        self,
        context: ClientContext,
        task: Assignment,
        data: ClientInputs,
        program: ClientProgram,
        received: Received = NOTHING,
    ) -> ClientRun:
        """Let the client's program refine its task, for which it may probe.

        ``received``: what stands for absent sensors' networks, where ``context.start`` lacks these.
        """
        clock = Stopwatch(on_gpu=self.device.type == "cuda")
        kept, context = of_statistics(context.state), replace(context, state=without_statistics(context.state))
        run = ClientRun(
            context=context, task=task, data=data, program=program, clock=clock, statistics=kept, received=received
        )
        context = replace(context, probe=partial(self._probe, run))
        return replace(run, context=context, task=program.refine(context, task))

    def train_run(self, run: ClientRun, in_place: bool = False) -> Update:
        """Train and report; ``in_place``: the delta occupies the trained model's memory until the next call."""
        loaded = self.load(run)
        with flushing():
            self._epochs(loaded)
        return self.finish(loaded, self.flat, in_place)

    def load(self, run: ClientRun) -> LoadedRun:
        """Load the client's model, enable gradients of its assigned tensors and plan its forward passes."""
        context, task = run.context, run.task
        if len(context.start) < len(self.theta):
            self.flat.copy_(self._initial)
        load_model(self.theta, context, task)
        scale_adapters(self.backbone, task.lora_scale)
        self.backbone.statistics.load(run.statistics)
        num_windows = len(run.data.labels)
        plan = self.plan(context.info.modalities, task, num_windows, receives=bool(run.received.rows))
        is_once = num_steps(num_windows, task.epochs, self.config.batch_size) == 1
        return LoadedRun(
            context=context,
            task=task,
            data=run.data,
            program=run.program,
            clock=run.clock,
            probes=run.probes,
            statistics=run.statistics,
            received=run.received,
            plan=plan,
            output=task.output or self.backbone.output,
            cross_entropy=cross_entropy if self.config.engine == "fused" else functional.cross_entropy,
            parameters=self._enable_gradients(context.round, task, once=is_once),
            vectors=GroupVectors(
                self.backbone.parameters, tuple(j for j in self.backbone.layout.ids if j in task.train)
            ),
            start=self._start(context, task),
            max_windows=self.max_windows(plan),
            autocast=self.config.autocast,
            mode=self._mode(context, plan),
        )

    def _mode(self, context: ClientContext, plan: ForwardPlan) -> TrainingMode:
        """Training mode of the stages that read a sensor of the client's; the other ones stay in test mode."""
        varying = [s for s in plan.every_step if s.spec.varies and s.spec.id not in plan.absent]
        seed = context.streams.torch("dropout", context.round, context.info.id).initial_seed() if varying else 0
        return TrainingMode(varying, seed, self.device)

    def finish(self, run: LoadedRun, flat: Tensor, in_place: bool = False) -> Update:
        """Build the update to the client's model ``flat`` (numel,), pass it to the client's program and send it.

        ``in_place``: the delta may overwrite ``flat``.
        """
        plain, is_rounded = self._update(run, flat, in_place)
        update = sent(
            self.backbone.layout, run.program.after(run.context, plain), self.config.wire, is_rounded=is_rounded
        )
        statistics = self.backbone.statistics.state()
        return replace(update, state={**update.state, **statistics}) if statistics else update

    def plan(self, present: Collection[str], task: Assignment, num_windows: int, receives: bool = False) -> ForwardPlan:
        """Plan which stages run once per round; outputs too large to keep (``MAX_KEPT_BYTES``) run in every step."""
        missing, reuse = missing_mode(self.config.missing, omit_absent=task.omit_absent), self.config.engine != "naive"
        chosen = frozenset(present), frozenset(task.train), missing, reuse, tuple(task.taps), task.output
        plan_for = partial(self._plan_forward, *chosen, receives=receives)
        plan: ForwardPlan = plan_for()
        kept = kept_bytes(plan, self._output_bytes) * num_windows
        return plan if kept <= MAX_KEPT_BYTES else plan_for(keep=False)

    def max_windows(self, plan: ForwardPlan) -> int:
        """Windows that go through forward and backward together.

        Decided by sizes alone, never by free memory, so that every machine sums in the same order.

        Raises:
            UserError: a batch would be split that BatchNorm needs as a whole.
        """
        size = self.config.batch_size
        most = min(size, self.config.micro_batch or most_windows(plan.step_bytes) or size)
        if most < size and self.backbone.statistics:
            raise UserError(
                f"training: batches of {size} windows go through in parts of {most}, whose statistics BatchNorm would "
                "take for the batch's; remove training.micro_batch, set a smaller batch_size, or take GroupNorm"
            )
        return most

    def _epochs(self, run: LoadedRun) -> None:
        context, clock, num_windows = run.context, run.clock, len(run.data.labels)
        batches = self._batches(run)
        order = context.streams.torch("batches", context.round, context.info.id)
        with ExitStack() as hooks:
            self._steps_in_backward(run, hooks)
            for epoch in range(1, run.task.epochs + 1):
                losses = []
                shuffled = torch.randperm(num_windows, generator=order).to(self.device)
                for index in torch.split(shuffled, self.config.batch_size):
                    loss = self._step(run, batches, index, is_observed=epoch == run.task.epochs)
                    losses.append((loss, len(index)))
                    clock.num_steps += 1
                clock.loss = _mean(losses, num_windows)

    def _step(self, run: LoadedRun, batches: BatchBuffers, index: Tensor, is_observed: bool = False) -> Tensor:
        """One optimizer step on the windows ``index`` (b,); returns the mean loss before it."""
        loss, clock = accumulate_gradients(run, batches, index, is_observed), run.clock
        began = clock.read()
        _mask_parts(self.backbone, run.task)
        if self.config.clip_norm is not None:
            live = [p for parameters in run.parameters.values() for p in parameters]
            clip_gradients(live, self.config.clip_norm, _KERNELS[self.config.engine])
        for lr, parameters in run.parameters.items():
            self._optimizer.step(parameters, lr)
        if self.config.rule.weight_decay:
            _restore_parts(self.backbone, run)
        clock.add("optimizer", began)
        return loss

    def _batches(self, run: LoadedRun) -> BatchBuffers:
        """Compute the outputs that no step changes, and allocate buffers for their mini-batches."""
        clock, num_windows = run.clock, len(run.data.labels)
        began = clock.read()
        with casting(self.config.autocast, self.device):
            sources = compute_sources(self.backbone, run.plan, run.data.inputs, num_windows, run.received.rows)
        batches = BatchBuffers(sources, num_windows, run.max_windows)
        clock.add("forward", began)
        return batches

    def _steps_in_backward(self, run: LoadedRun, hooks: ExitStack) -> None:
        """Let large tensors take their steps in the backward pass, until ``hooks`` are closed.

        A large gradient is then consumed while it is in the CPU's cache (a GPU has none that would be worth it), and
        its memory is reused. A step depends on its own tensor's gradient alone, so no bit changes. Not done where a
        gradient is incomplete at that moment: micro-batches, tensors trained in parts, objectives that may still read
        the parameters. Clipping needs all gradients before the first step, weight decay a step of all tensors at once.
        """
        config = self.config
        is_fusing = config.engine in ("gemm", "fused") and self.device.type == "cpu"
        is_apart = config.clip_norm is None and not config.rule.weight_decay and run.program.objective is task_loss
        has_parts = run.max_windows < config.batch_size or any(part.cuts for part in run.task.train.values())
        if not (is_fusing and is_apart) or has_parts:
            return
        modules = [m for stage in run.plan.every_step for m in stage.module.modules()]
        linear = {id(m.weight): m for m in modules if isinstance(m, KernelLinear)}
        for lr, parameters in run.parameters.items():
            for p in (p for p in parameters if p.numel() >= LARGE):
                if module := linear.get(id(p)):
                    hooks.enter_context(module.stepping(partial(self._optimizer.begin, lr=lr)))
                else:
                    step = partial(_step_in_backward, self._optimizer, lr, run.clock)
                    hooks.callback(p.register_post_accumulate_grad_hook(step).remove)  # type: ignore[no-untyped-call]

    def _enable_gradients(self, round_: int, task: Assignment, once: bool) -> dict[float, list[Tensor]]:
        """Require gradients of exactly the assigned tensors and reset their moments; the tensors by learning rate.

        ``once``: the run takes a single optimizer step.
        """
        chosen: dict[float, list[Tensor]] = {}
        common_lr = self.config.lr * self.config.schedule.share(round_)
        for group in self.backbone.layout:
            part = task.train.get(group.id)
            for spec, p in zip(group.tensors, self.backbone.parameters[group.id], strict=True):
                is_trained = part is not None and (part.kinds is None or spec.kind in part.kinds)
                p.requires_grad_(is_trained)
                if is_trained:
                    chosen.setdefault(common_lr * task.lr_scale.get(group.id, 1.0), []).append(p)
        self._optimizer.reset([p for parameters in chosen.values() for p in parameters], once=once)
        return chosen

    def _start(self, context: ClientContext, task: Assignment) -> Params:
        """The model as it was loaded: a copy only where it differs from the received one."""
        is_changed = task.keep or any(part.rank is not None for part in task.down.values())
        if not is_changed and len(context.start) == len(self.backbone.layout) and self.device.type == "cpu":
            return context.start
        return self.backbone.layout.views(self.flat.clone())

    def _update(self, run: LoadedRun, flat: Tensor, in_place: bool) -> tuple[Update, bool]:
        """The update, and whether its values are what int8 says already."""
        layout, context, task, clock = self.backbone.layout, run.context, run.task, run.clock
        # Updates leave on the CPU: one transfer from a GPU, none otherwise.
        theta = layout.views(flat.cpu())
        kept = {j: value.clone() for j, value in cut(layout, task.keep, theta).items()}
        local = cut(layout, task.up, theta)
        origin = cut(layout, task.up, context.start)
        delta = {j: local[j] if in_place else torch.empty_like(local[j]) for j in task.up}
        # What nobody changes on its way is measured, and rounded to int8, while it is in the cache. A payload is
        # written before that.
        wire = self.config.wire
        is_final = self.config.engine == "fused" and run.program.after is send_all
        to_int8 = is_final and wire.up == "int8" and not wire.keeps_payload
        sq_norm: dict[GroupId, float] = {}
        numbers: list[tuple[int, int]] = []
        for j, into in delta.items():
            if to_int8:
                lengths = layout.lengths(j, task.up[j])
                sq_norm[j], before, after = coded(local[j], origin[j].contiguous(), into, lengths)
                numbers.append((before, after))
            elif is_final and wire.up == "float32":
                sq_norm[j] = squares(local[j], origin[j].contiguous(), into)
            else:
                torch.sub(local[j], origin[j], out=into)
        is_rounded = to_int8 and all(before >= 0 for before, _ in numbers)
        work = Work(
            num_windows=len(run.data.labels),
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
            bytes_down=run.received.nbytes,
            stats=observed_rows(run),
            probes=tuple(run.probes),
            sq_norm=sq_norm,
            underflow=lost_share(*map(sum, zip(*numbers, strict=True))) if is_rounded and numbers else 0.0,
        )
        return Update(receipt=receipt, delta=delta, state={**context.state, **kept}), is_rounded

    def _probe(self, run: ClientRun, trial: Assignment) -> Probed:
        """Take one step ``-lr g`` of ``trial`` on one batch and the gradient after it; ``load`` undoes the step."""
        context, data = run.context, run.data
        order = context.streams.torch("probe", context.round, context.info.id)
        index = torch.randperm(len(data.labels), generator=order)[: self.config.batch_size]
        batch = ClientInputs(inputs={m: x[index] for m, x in data.inputs.items()}, labels=data.labels[index])
        loaded = self.load(replace(run, task=trial, data=batch))
        run.probes.append((trial, len(index)))
        batches, positions = self._batches(loaded), torch.arange(len(index), device=self.device)
        accumulate_gradients(loaded, batches, positions)
        _mask_parts(self.backbone, trial)
        before = loaded.vectors.pop_gradients()
        # Kept as it is: the difference of two float32 models would lose the small steps.
        step = {j: -self.config.lr * trial.lr_scale.get(j, 1.0) * g for j, g in before.items()}
        for j, change in step.items():
            self.theta[j].add_(change)
        accumulate_gradients(loaded, batches, positions)
        after = loaded.vectors.pop_gradients()
        return Probed(step={j: x.cpu() for j, x in step.items()}, gradient={j: g.cpu() for j, g in after.items()})


def load_model(theta: Mapping[GroupId, Tensor], context: ClientContext, task: Assignment) -> None:
    """Copy the client's model into ``theta`` and overlay its personal parts."""
    for j, value in context.start.items():
        theta[j].copy_(value)
    zero_unsent_ranks(theta, context.layout, task.down)
    _overlay_personal(theta, context, task.keep)


def zero_unsent_ranks(theta: Mapping[GroupId, Tensor], layout: GroupLayout, down: Selection) -> None:
    """Zero both factors of a LoRA group beyond the rank at which it was received."""
    for j, part in down.items():
        for spec in layout[j].tensors if part.rank is not None else ():
            if spec.is_factor:
                part.beyond(spec, spec.of(theta[j])).zero_()


def _overlay_personal(theta: Mapping[GroupId, Tensor], context: ClientContext, keep: Mapping[GroupId, Part]) -> None:
    """Restore the client's personal parts, where it has any yet."""
    for j, part in keep.items():
        if j in context.state:
            theta[j][context.layout.indices(j, part)] = context.state[j].to(theta[j].device)


def scale_adapters(backbone: Backbone, factor: float) -> None:
    """Scale every LoRA layer, PEFT's or built in, by ``factor`` times its ``s = alpha / R``."""
    for set_scale in backbone.adapter_scales:
        set_scale("default", factor)


def _mask_parts(backbone: Backbone, task: Assignment) -> None:
    """Zero gradients outside the assigned ranks and rows: fresh optimizers then never move those entries."""
    for j, part in task.train.items():
        if not part.cuts:
            continue
        for spec, p in zip(backbone.layout[j].tensors, backbone.parameters[j], strict=True):
            if p.grad is not None:
                part.beyond(spec, p.grad).zero_()


@torch.no_grad()
def _restore_parts(backbone: Backbone, run: LoadedRun) -> None:
    """Undo the decay outside the assigned ranks and rows: these entries stay as they were loaded."""
    for j, part in run.task.train.items():
        for spec, p in zip(backbone.layout[j].tensors, backbone.parameters[j], strict=True) if part.cuts else ():
            part.beyond(spec, p).copy_(part.beyond(spec, spec.of(run.start[j])))


def _step_in_backward(optimizer: LocalOptimizer, lr: float, clock: Stopwatch, parameter: Tensor) -> None:
    """Take one tensor's step on the CPU; its seconds count as the optimizer's, not as the backward pass'."""
    began = clock.read()
    optimizer.step([parameter], lr)
    seconds = seconds_between(began, clock.read())
    clock.optimizer_s += seconds
    clock.backward_s -= seconds


def _mean(losses: Sequence[tuple[Tensor, int]], num_windows: int) -> float:
    """Mean of the steps' losses weighted by their windows; read once an epoch, so that a GPU is not synchronised."""
    total = 0.0
    for loss, num in losses:  # not sum(), which adds up in other ways since Python 3.12
        total += float(loss) * num
    return total / num_windows
