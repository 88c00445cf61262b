"""Steps of several clients at once: every tensor has a first axis over clients, and one pass is a pass of each.

One client's mini-batch is too little work for a GPU, which then waits for the next kernel launch. Batched with
``torch.vmap``, the matrix products of all clients are one, with the numbers that each client would have alone (up to
summation order).

Legend for shapes: N clients of a round, k clients of a step, b windows of a step.
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

from relief_ray.core.client import ClientProgram, LocalStep, task_loss
from relief_ray.core.groups import GroupId
from relief_ray.core.stages import RAW
from relief_ray.models.backbone import Backbone, Stage
from relief_ray.support.process import casting
from relief_ray.training.cuda_graph import CudaGraphStep, GraphMemory
from relief_ray.training.forward_plan import ForwardPlan, Values, compute_sources, stages_for
from relief_ray.training.local_step import ClientRun, GroupVectors, LoadedRun, objective_inputs, observe_batch
from relief_ray.training.optimizer import LocalOptimizer, clip_gradients
from relief_ray.training.trainer import Trainer

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


def begin_stacked_round(
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


def _sources(trainer: Trainer, run: LoadedRun, plan: ForwardPlan) -> dict[str, Tensor]:
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
        first: first client, a row of the stack.
        last: row behind the last client.
        start: first window, a place in each client's order of the epoch.
        stop: place behind the last window.
    """

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
        """A key that all steps of the same clients on as many windows share."""
        return self.first, self.last, self.stop - self.start

    @property
    def shape(self) -> tuple[int, int]:
        """Number of clients, and of windows of each."""
        return self.last - self.first, self.stop - self.start


def epoch_steps(num_windows: Sequence[int], batch_size: int) -> list[StepRange]:
    """Steps of an epoch of clients sorted by falling ``num_windows``: full batches, then each client's remainder.

    Every client takes the batches that it would take alone, in the same order.
    """
    steps = []
    for stop in range(batch_size, max(num_windows) + 1, batch_size):
        number = sum(n >= stop for n in num_windows)
        steps.append(StepRange(first=0, last=number, start=stop - batch_size, stop=stop))
    first = 0
    for number, equal in groupby(num_windows):
        last = first + len(list(equal))
        if rest := number % batch_size:
            steps.append(StepRange(first=first, last=last, start=number - rest, stop=number))
        first = last
    return steps


class StackedStep:
    """Steps of the same clients on equally many windows: forward, losses, backward, each client's optimizer.

    The tensors keep their place from one step to the next, so that a GPU can replay a recorded step.
    """

    def __init__(self, stacked: StackedRound, kind: StepRange, memory: GraphMemory) -> None:
        """Select the clients' tensors; ``kind``: any of the steps."""
        self._round, self._clients = stacked, kind.clients
        self._members = range(kind.first, kind.last)
        self._index = torch.zeros(*kind.shape, dtype=torch.int64, device=stacked.losses.device)
        trained = {key for i in self._members for keys in stacked.keys[i].values() for key in keys}
        self._leaves = stacked.models.leaves(kind.clients, trained)
        self._feature_masks = {name: on[kind.clients] for name, on in stacked.feature_masks.items()}
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
        if losses.requires_grad:
            torch.autograd.backward(losses.sum())
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
