"""Steps of several clients at once: every tensor has a first axis over clients, and one pass is a pass of each.

One client's mini-batch is too little work for a GPU, which then waits for the next kernel launch. Batched with
``torch.vmap``, the matrix products of all clients are one, with the numbers that each client would have alone (up to
summation order).

Legend for shapes: N clients of a round, k clients of a step, b windows of a step.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from relief_ray.core.client import ClientProgram, LocalStep, observe_nothing, task_loss
from relief_ray.core.groups import WHOLE, GroupId
from relief_ray.core.messages import Update
from relief_ray.core.stages import MAX_STEP_BYTES, RAW
from relief_ray.devices.workload import num_steps
from relief_ray.models.backbone import Backbone, Stage
from relief_ray.support.process import casting, flushing, seconds_between
from relief_ray.training.forward_plan import ForwardPlan, Values, compute_sources, stages_for
from relief_ray.training.inputs import LazyRows
from relief_ray.training.local_step import (
    ClientRun,
    GroupVectors,
    LoadedRun,
    Stopwatch,
    backward,
    objective_inputs,
    observe_batch,
)
from relief_ray.training.optimizer import LocalOptimizer, clip_gradients
from relief_ray.training.trainer import Trainer

# CUDA graphs of training steps: a step recorded once and replayed spares the launch of each of its kernels.


def graph_memory(device: torch.device) -> Any:
    """Reserve a memory pool that CUDA graphs share which never run at the same time; None on a CPU."""
    return torch.cuda.graph_pool_handle() if device.type == "cuda" else None


class CudaGraphStep:
    """Calls a step that reads and writes the same tensors each time; on a GPU it is replayed as a CUDA graph.

    The first call runs eagerly on a side stream, since libraries initialise themselves in their first call. The second
    call records the graph, which computes nothing, and replays it. A step that cannot be recorded keeps running
    eagerly. No reference to the step is kept: a cycle would keep all its tensors alive until the garbage collector
    runs.
    """

    def __init__(self, device: torch.device, memory: Any) -> None:
        """Prepare a graph on ``device``; nothing is recorded yet."""
        self._memory, self._num_calls = memory, 0
        self._graph = torch.cuda.CUDAGraph() if device.type == "cuda" else None

    def __call__(self, step: Callable[[], None]) -> None:
        """Run ``step``, which must be the same at every call."""
        self._num_calls += 1
        if self._graph is not None and self._num_calls == 1:
            _on_side_stream(step)
        elif self._graph is None or (self._num_calls == 2 and not self._record(self._graph, step)):
            step()
        else:
            self._graph.replay()

    def _record(self, graph: torch.cuda.CUDAGraph, step: Callable[[], None]) -> bool:
        usual = torch.cuda.current_stream()
        try:
            with torch.cuda.graph(graph, pool=self._memory):
                step()
        except RuntimeError as error:
            # A recording that was broken off may leave its stream current.
            torch.cuda.set_stream(usual)
            self._graph = None
            warnings.warn(f"training.stack: a step runs unrecorded, and slower: {error}", stacklevel=2)
        return self._graph is not None


def _on_side_stream(step: Callable[[], None]) -> None:
    make: Callable[[], torch.cuda.Stream] = torch.cuda.Stream
    usual, side = torch.cuda.current_stream(), make()
    side.wait_stream(usual)
    with torch.cuda.stream(side):
        step()
    usual.wait_stream(side)


# A tensor of the model: its group and its position there.
Key = tuple[GroupId, int]

Leaves = Mapping[Key, Tensor]

LABELS = "labels"


@dataclass(frozen=True, kw_only=True, slots=True)
class StackedRound:
    """Clients that train together, in falling order of their windows; client i has row i of the stack.

    Attributes:
        program: the method's client-side functions, the same for all.
        plan: the stages that run in every step for at least one of the clients.
        models: the clients' parameters.
        optimizer: the optimizer of all rows.
        clip_norm: largest norm of a client's gradient; longer ones are scaled to it; None: any.
        runs: each client's run; its own plan tells what this client lacks.
        keys: of each client's trained tensors, by learning rate.
        sources: what the steps read, by stage or raw input; ``LABELS`` are the windows' labels.
        feature_masks: (N,) for each feature that runs in every step although some clients lack it: 0 for those, else 1.
        losses: (N,), summed over the windows of the current epoch.
    """

    program: ClientProgram
    plan: ForwardPlan
    models: StackedModels
    optimizer: LocalOptimizer
    clip_norm: float | None
    runs: tuple[LoadedRun, ...]
    keys: tuple[Mapping[float, tuple[Key, ...]], ...]
    sources: Mapping[str, StackedSource]
    feature_masks: Mapping[str, Tensor]
    losses: Tensor

    @property
    def num_windows(self) -> list[int]:
        """Windows of each client."""
        return [len(r.data.labels) for r in self.runs]


def _begin_stacked_round(
    trainer: Trainer, models: StackedModels, optimizer: LocalOptimizer, plan: ForwardPlan, runs: Sequence[ClientRun]
) -> StackedRound:
    """Load the clients' models, compute the outputs that no step changes and clear the optimizer's state."""
    loaded, sources = [], []
    for i, run in enumerate(runs):
        client = trainer.load(run)
        models.flat[i].copy_(trainer.flat)
        loaded.append(client)
        sources.append(_sources(trainer, client, plan))
    num_windows = [len(r.data.labels) for r in runs]
    stacked = StackedRound(
        program=runs[0].program,
        plan=plan,
        models=models,
        optimizer=optimizer,
        clip_norm=trainer.config.clip_norm,
        runs=tuple(loaded),
        keys=tuple({lr: tuple(map(models.key, ps)) for lr, ps in r.parameters.items()} for r in loaded),
        sources={s: StackedSource([x[s] for x in sources], num_windows) for s in sources[0]},
        feature_masks=_feature_masks(plan, loaded, trainer.device),
        losses=torch.zeros(len(runs), device=trainer.device),
    )
    trained = [models.rows[i][key] for i, by_lr in enumerate(stacked.keys) for keys in by_lr.values() for key in keys]
    optimizer.reset(trained)
    optimizer.clear(trained)
    return stacked


def _sources(trainer: Trainer, run: LoadedRun, plan: ForwardPlan) -> Values:
    """One client's sources of the stack's steps, with its labels; its model is loaded."""
    zeroed = run.plan.zero_features
    before = stages_for(trainer.backbone, {s for s in plan.sources if not s.startswith(RAW)}, zeroed)
    client_plan = replace(plan, before=before, absent=run.plan.absent, zero_features=zeroed)
    with casting(run.autocast, trainer.device):
        sources = compute_sources(trainer.backbone, client_plan, run.data.inputs, len(run.data.labels))
    read = {s: x for s, x in sources.items() if s in plan.sources and isinstance(x, Tensor)}
    return read | {LABELS: run.data.labels}


def _feature_masks(plan: ForwardPlan, runs: Sequence[LoadedRun], device: torch.device) -> dict[str, Tensor]:
    lacking = {s.spec.id: [s.spec.id in x.plan.zero_features for x in runs] for s in plan.every_step}
    return {name: torch.tensor([float(not x) for x in off]).to(device) for name, off in lacking.items() if any(off)}


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRange:
    """Clients and windows of one common step: batches of the same size, since none is padded.

    Attributes:
        clients: rows of the stack.
        windows: places in each client's order of the epoch.
    """

    clients: slice
    windows: slice

    @property
    def kind(self) -> tuple[int, int, int]:
        """First client, the one behind the last, number of windows: what may run as one recorded step."""
        return self.clients.start, self.clients.stop, self.windows.stop - self.windows.start


def epoch_steps(num_windows: Sequence[int], batch_size: int) -> list[StepRange]:
    """Steps of an epoch of clients sorted by falling ``num_windows``: full batches, then each client's remainder.

    Every client takes the batches that it would take alone, in the same order.
    """
    steps = []
    for stop in range(batch_size, max(num_windows) + 1, batch_size):
        number = sum(n >= stop for n in num_windows)
        steps.append(StepRange(clients=slice(0, number), windows=slice(stop - batch_size, stop)))
    first = 0
    for number, equal in groupby(num_windows):
        last = first + len(list(equal))
        if rest := number % batch_size:
            steps.append(StepRange(clients=slice(first, last), windows=slice(number - rest, number)))
        first = last
    return steps


class StackedStep:
    """Steps of the same clients on equally many windows: forward, losses, backward, each client's optimizer.

    The tensors keep their place from one step to the next, so that a GPU can replay a recorded step.
    """

    def __init__(self, stacked: StackedRound, kind: tuple[int, int, int], memory: Any) -> None:
        """Select the clients' tensors; ``kind``: the steps'."""
        first, last, num_windows = kind
        self._round, self._clients, self._members = stacked, slice(first, last), range(first, last)
        self._index = torch.zeros(last - first, num_windows, dtype=torch.int64, device=stacked.losses.device)
        trained = {key for i in self._members for keys in stacked.keys[i].values() for key in keys}
        self._leaves = stacked.models.leaves(self._clients, trained)
        self._feature_masks = {name: on[self._clients] for name, on in stacked.feature_masks.items()}
        self._graph = CudaGraphStep(self._index.device, memory)

    def take(self, index: Tensor, is_observed: bool) -> None:
        """One step of each client on its windows ``index`` (k, b); ``is_observed``: the program observes it."""
        self._index.copy_(index)
        if is_observed:
            self._step(is_observed=True)
        else:
            self._graph(self._step)

    def _step(self, is_observed: bool = False) -> None:
        try:
            self._update(is_observed)
        finally:
            for leaf in self._leaves.values():
                leaf.grad = None

    def _update(self, is_observed: bool) -> None:
        stacked, values = self._round, self._outputs()
        labels = stacked.sources[LABELS].take(self._clients, self._index)
        losses = self._objectives(values, labels)
        if is_observed:
            for i in self._members:
                observe_batch(stacked.runs[i], self._local_step(i, values, labels))
        backward(losses.sum(), stacked.program.objective)
        self._optimizer_step()
        stacked.losses[self._clients].add_(losses.detach() * labels.shape[1])

    def _outputs(self) -> Values:
        """The objectives' inputs by stage: (k, b, ...)."""
        stacked, stages = self._round, self._round.plan.every_step
        sources = {s: stacked.sources[s].take(self._clients, self._index) for s in stacked.plan.sources}
        forward = partial(stacked.models.run, stages, sources, self._leaves, self._feature_masks)
        return objective_inputs(stacked.runs[0], self._index.device, forward)

    def _objectives(self, values: Values, labels: Tensor) -> Tensor:
        """Each client's objective (k,)."""
        stacked = self._round
        if stacked.program.objective is task_loss:
            logits = values[stacked.runs[0].output]
            single = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
            return single.view(labels.shape).mean(1)
        steps = (self._local_step(i, values, labels) for i in self._members)
        return torch.stack([stacked.program.objective(step) for step in steps])

    def _local_step(self, client: int, values: Values, labels: Tensor) -> LocalStep:
        run, place = self._round.runs[client], client - self._members.start
        return LocalStep(
            logits=values[run.output][place],
            labels=labels[place],
            taps={t: values[t][place] for t in sorted(run.task.taps)},
            params=GroupVectors(self._tensors(place), tuple(run.vectors)),
            start=run.start,
            args=run.task.args,
        )

    def _tensors(self, place: int) -> Mapping[str, list[Tensor]]:
        tensors = defaultdict(list)
        for (group, _), leaf in self._leaves.items():
            tensors[group].append(leaf[place])
        return tensors

    def _optimizer_step(self) -> None:
        """Every client's optimizer step: its own tensors, learning rates, norm and step count."""
        stacked, rows_by_lr = self._round, defaultdict(list)
        for place, client in enumerate(self._members):
            rows = []
            for lr, keys in stacked.keys[client].items():
                for key in keys:
                    gradient = self._leaves[key].grad
                    row = stacked.models.rows[client][key]
                    row.grad = None if gradient is None else gradient[place]
                    rows_by_lr[lr].append(row)
                    rows.append(row)
            if stacked.clip_norm is not None:
                clip_gradients(rows, stacked.clip_norm)
        for lr, rows in rows_by_lr.items():
            stacked.optimizer.step(rows, lr)


class StackedSource:
    """One source of all clients, concatenated: a row per window, or a single row for all windows of a client."""

    def __init__(self, sources: Sequence[Tensor], num_windows: Sequence[int]) -> None:
        """``sources``: (r_i, ...) of each client, r_i its number of windows or 1."""
        lengths = [len(x) for x in sources]
        self._rows = torch.cat(list(sources))
        first = [sum(lengths[:i]) for i in range(len(lengths))]
        per_window = [int(length == num) for length, num in zip(lengths, num_windows, strict=True)]
        self._first, self._per_window = (torch.tensor(x).to(self._rows.device).view(-1, 1) for x in (first, per_window))

    def take(self, clients: slice, index: Tensor) -> Tensor:
        """The rows (k, b, ...) of the clients' windows ``index`` (k, b)."""
        rows = self._first[clients] + index * self._per_window[clients]
        return self._rows.index_select(0, rows.flatten()).view(*rows.shape, *self._rows.shape[1:])


class StackedModels:
    """Parameters of ``size`` models of one backbone in one buffer ``flat`` (size, numel): client i's is row i."""

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
        # Contiguous views, which an optimizer updates.
        self.rows = [{key: tensor[i] for key, tensor in self._tensors.items()} for i in range(size)]
        keys = self._keys = {
            id(p): (j, i) for j, parameters in backbone.parameters.items() for i, p in enumerate(parameters)
        }
        self._stage_keys = {
            stage.spec.id: {name: keys[id(p)] for name, p in stage.module.named_parameters() if id(p) in keys}
            for stage in backbone.stages
        }

    def key(self, parameter: Tensor) -> Key:
        """The group and position of one of the backbone's parameters."""
        return self._keys[id(parameter)]

    def leaves(self, clients: slice, trained: Collection[Key]) -> Leaves:
        """The tensors (k, ...) of ``clients``: views with gradients of their own where they are ``trained``."""
        return {key: x[clients].detach().requires_grad_(key in trained) for key, x in self._tensors.items()}

    def run(self, stages: Collection[Stage], values: Values, leaves: Leaves, masks: Mapping[str, Tensor]) -> Values:
        """Run ``stages`` on top of ``values`` (k, b, ...); ``masks``: factors 0 or 1 (k,) of features by name."""
        for stage in stages:
            name = stage.spec.id
            parameters = {parameter: leaves[key] for parameter, key in self._stage_keys[name].items()}
            output = _run_each(stage, parameters, [values[i] for i in stage.spec.inputs])
            values[name] = output * masks[name].view(-1, *[1] * (output.ndim - 1)) if name in masks else output
        return values


def _run_each(stage: Stage, parameters: Mapping[str, Tensor], inputs: Sequence[Tensor]) -> Tensor:
    """``module_i(inputs_i)`` of every client i at once."""

    def run_one(client_parameters: dict[str, Tensor], client_inputs: tuple[Tensor, ...]) -> Tensor:
        output: Tensor = functional_call(stage.module, client_parameters, client_inputs)
        return output

    outputs: Tensor = torch.vmap(run_one)(dict(parameters), tuple(inputs))
    return outputs


# Local training of several clients at once: a step of the stack is a step of each (``training.stack``).
#
# For GPUs, where a small model's step is spent on kernel launches. Each client takes its own batches in its own order,
# has optimizer state of its own and trains its own groups. Its numbers are those of training alone, up to summation
# order.


class StackedTrainer:
    """Trains up to ``max_clients`` clients at once with a trainer's backbone and settings; keeps their memory."""

    def __init__(self, trainer: Trainer, max_clients: int) -> None:
        """Allocate nothing yet: memory is reserved for the largest stack that occurs."""
        self._trainer, self._max_clients = trainer, max_clients
        self._models = StackedModels(trainer.backbone, 0)
        self._optimizer = LocalOptimizer([], "torch_fused")

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
            self._optimizer = LocalOptimizer(tensors, "torch_fused", rule=self._trainer.config.rule)
        order = sorted(range(len(runs)), key=lambda i: -len(runs[i].data.labels))
        stacked = _begin_stacked_round(self._trainer, self._models, self._optimizer, plan, [runs[i] for i in order])
        with flushing():
            self._epochs(stacked)
        # Updates leave on the CPU: one transfer from a GPU, none otherwise.
        models = self._models.flat.cpu()
        pairs = zip(stacked.runs, models, strict=False)
        updates = dict(zip(order, (self._trainer.finish(run, model) for run, model in pairs), strict=True))
        return [updates[i] for i in range(len(runs))]

    def _epochs(self, stacked: StackedRound) -> None:
        """Run all epochs; the measured seconds count as every client's backward pass, in equal shares."""
        device = self._trainer.device
        clock, memory = Stopwatch(on_gpu=device.type == "cuda"), graph_memory(device)
        ranges = epoch_steps(stacked.num_windows, self._trainer.config.batch_size)
        steps = {kind: StackedStep(stacked, kind, memory) for kind in dict.fromkeys(r.kind for r in ranges)}
        orders = [r.context.streams.torch("batches", r.context.round, r.context.info.id) for r in stacked.runs]
        num_epochs, began = stacked.runs[0].task.epochs, clock.read()
        for epoch in range(1, num_epochs + 1):
            order = _shuffled(stacked.num_windows, orders).to(device)
            is_observed = epoch == num_epochs and stacked.program.observe is not observe_nothing
            stacked.losses.zero_()
            for step in ranges:
                steps[step.kind].take(order[step.clients, step.windows], is_observed)
        # Losses are read once a round, so that a GPU is not synchronised in every step.
        seconds, losses = seconds_between(began, clock.read()), stacked.losses.tolist()
        for run, num, loss in zip(stacked.runs, stacked.num_windows, losses, strict=True):
            run.clock.backward_s += seconds / len(losses)
            run.clock.loss = loss / num
            run.clock.num_steps = num_steps(num, num_epochs, self._trainer.config.batch_size)


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
