"""A worker: one backbone, many virtual clients. Serial runs have one, Ray runs one per host, same functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from relief_ray.data.window_set import WindowSet
from relief_ray.federated import ClientContext, ClientProgram, send_all
from relief_ray.groups import Params
from relief_ray.messages import (
    NO_STATE,
    Assignment,
    ClientId,
    ClientState,
    EvalTarget,
    Fleet,
    Receipt,
    Reduction,
    Update,
    WeightedSum,
)
from relief_ray.models.backbone import Backbone
from relief_ray.models.frozen import build_same
from relief_ray.process import use_device, use_threads
from relief_ray.protocols import Planner
from relief_ray.server.aggregation import check_update, without
from relief_ray.server.reduction import Accumulator, Sums, leaf, measured
from relief_ray.stages import missing_mode
from relief_ray.streams import Streams
from relief_ray.training.evaluation import CHUNK, confusion, predict, share_rows
from relief_ray.training.inputs import InputCache, prepare
from relief_ray.training.parts import load_model, scale_adapters
from relief_ray.training.rows import ClientInputs
from relief_ray.training.trainer import Trainer, TrainerConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """Everything a worker needs, small enough to send: signals stay in the memory-mapped cache.

    ``modules``: the user's own, which a host has to have before it can read the rest; ``frozen``: what the backbone's
    frozen part has to be on every host (``Backbone.facts``).
    """

    build: Callable[[], Backbone]
    trainer: TrainerConfig
    fleet: Fleet
    clients: tuple[WindowSet, ...]
    parts: Mapping[str, WindowSet]
    program: ClientProgram
    reduction: Reduction
    streams: Streams
    planner: Planner | None = None
    modules: tuple[str, ...] = ()
    num_threads: int = 1
    cache_mib: int = 256
    pairwise_every: int = 0
    frozen: Mapping[str, str | int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockResult:
    """What clients come back as: sums (a single client's in float32), or single updates where the strategy needs them.

    ``rejected``: why a client's update is not among them; ``refused``: the receipts of those that did answer.
    """

    sums: Sums
    receipts: tuple[Receipt, ...]
    states: Mapping[ClientId, ClientState]
    rejected: Mapping[ClientId, str] = field(default_factory=dict)
    refused: tuple[Receipt, ...] = ()
    updates: tuple[Update, ...] = ()
    pairwise: tuple[Update, ...] = field(default=())


class Worker:
    """Trains and evaluates on one host; stateless between rounds but for caches."""

    def __init__(self, job: Job) -> None:
        """Builds the backbone on its device and pins the thread count (sums depend on it)."""
        use_threads(job.num_threads)
        use_device(job.trainer.device)
        self.job = job
        self.backbone = build_same(job.build, job.frozen)
        self.trainer = Trainer(self.backbone, job.trainer)
        self._cache = InputCache(job.cache_mib)

    def train_block(
        self,
        round_: int,
        models: Mapping[str, Params],
        tasks: Iterable[Assignment],
        states: Mapping[ClientId, ClientState],
    ) -> BlockResult:
        """Trains consecutive clients in order; each update is validated and added before the next one is trained."""
        job, layout = self.job, self.backbone.layout
        total, updates, fusion, rejected, refused = Accumulator(), list[Update](), list[Update](), {}, list[Receipt]()
        is_watched = bool(job.pairwise_every) and round_ % job.pairwise_every == 0
        # Where nobody but the sums needs a delta, it takes no memory of its own: the less there is, the faster.
        is_spent = isinstance(job.reduction, WeightedSum) and job.program.after is send_all and not is_watched
        for task in tasks:
            in_place = is_spent and bool(updates)  # the first one is kept: so far it is the sum
            state = states.get(task.client, NO_STATE)
            update = measured(self._train(round_, models[task.view], task, state, in_place))
            if reason := check_update(update, layout):
                rejected[task.client] = reason
                refused.append(update.receipt)
                continue
            if is_watched:
                fusion.append(replace(without(update, lambda g: g.role == "fusion_a", layout), state={}))
            if isinstance(job.reduction, WeightedSum):
                total.add(leaf(update, job.reduction, layout, job.fleet), borrowed=in_place)
                update = replace(update, delta={})
            updates.append(update)
        told = [(u, u.receipt.assignment) for u in updates]
        return BlockResult(
            sums=total.sums(),
            receipts=tuple(u.receipt for u in updates),
            # Who had something, or was to keep it, and returns nothing forgets what it had.
            states={t.client: u.state for u, t in told if u.state or t.keep or states.get(t.client)},
            rejected=rejected,
            refused=tuple(refused),
            updates=() if isinstance(job.reduction, WeightedSum) else tuple(updates),
            pairwise=tuple(fusion),
        )

    def _train(
        self, round_: int, start: Params, task: Assignment, state: ClientState, in_place: bool = False
    ) -> Update:
        job = self.job
        info = job.fleet[task.client]
        context = ClientContext(
            info=info,
            round=round_,
            layout=self.backbone.layout,
            start=start,
            state=state,
            streams=job.streams,
            planner=job.planner,
        )
        windows = job.clients[task.client]
        inputs = self._cache.get(f"client.{task.client}", lambda: self._prepare(windows, info.modalities))
        return self.trainer.train(context, task, inputs, job.program, in_place)

    def evaluate(
        self,
        models: Mapping[str, Params],
        targets: Sequence[EvalTarget],
        states: Mapping[ClientId, ClientState],
        part: str,
        share: tuple[int, int] = (0, 1),
    ) -> dict[str, Tensor]:
        """Confusion matrices on this worker's ``share = (i, of)`` of the part's windows; shares add up exactly."""
        windows = self.job.parts[part]
        rows = share_rows(len(windows), share, self.backbone.chunk or CHUNK)
        subjects = torch.from_numpy(subject_index(windows))
        inputs = self._cache.get(f"{part}.{share}", lambda: self._share(windows, rows))
        labels = inputs.labels.cpu()
        num_subjects, num_classes = int(subjects.max()) + 1, self.backbone.shape.num_classes
        found: dict[str, Tensor] = {}
        for target in targets:
            self._load(models, target, states)
            masks = target_masks(target, self.job.fleet.modalities)
            missing = missing_mode(self.job.trainer.missing, omit_absent=target.omit_absent)
            predicted = predict(self.backbone, inputs.inputs, list(masks.values()), missing, target.output)
            for label, mask in masks.items():
                found[label] = confusion(labels, predicted[mask], subjects[rows], num_subjects, num_classes)
        return found

    def _share(self, windows: WindowSet, rows: Tensor) -> ClientInputs:
        return self._prepare(windows.take(rows.numpy()), self.job.fleet.modalities)

    def _prepare(self, windows: WindowSet, modalities: Sequence[str]) -> ClientInputs:
        return prepare(windows, modalities, self.backbone, self._cache.limit_bytes)

    def _load(self, models: Mapping[str, Params], target: EvalTarget, states: Mapping[ClientId, ClientState]) -> None:
        info = self.job.fleet[target.client or 0]
        state = NO_STATE if target.client is None else states.get(target.client, NO_STATE)
        context = ClientContext(
            info=info,
            round=0,
            layout=self.backbone.layout,
            start=models[target.view],
            state=state,
            streams=self.job.streams,
        )
        task = Assignment(client=info.id, down={}, train={}, up={}, epochs=0, keep=target.keep)
        load_model(self.trainer.theta, context, task)
        scale_adapters(self.backbone, 1.0)


def target_masks(target: EvalTarget, modalities: Sequence[str]) -> dict[str, frozenset[str]]:
    """A client's target has its own mask; the canonical one is also seen through each single modality."""
    if target.modalities is not None:
        return {target.label: frozenset(target.modalities)}
    return {target.label: frozenset(modalities)} | {f"{target.label}|{m}": frozenset([m]) for m in modalities}


def subject_index(windows: WindowSet) -> NDArray[np.int64]:
    """Subjects numbered from 0 in ascending order (n,)."""
    return np.unique(windows.subjects, return_inverse=True)[1].astype(np.int64)
