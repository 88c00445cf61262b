"""A worker trains and evaluates many virtual clients on one backbone.

A serial run has one worker, a Ray run one per worker process; both call the same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from relief_ray.core.client import ClientContext, send_all
from relief_ray.core.codec import rows_nbytes
from relief_ray.core.groups import Params
from relief_ray.core.messages import (
    NO_STATE,
    Assignment,
    ClientId,
    ClientState,
    EvalTarget,
    Models,
    Receipt,
    States,
    Trained,
    Update,
    WeightedSum,
    masked_label,
)
from relief_ray.core.stages import Missing, absent_groups, missing_mode, received_rows
from relief_ray.data.window_set import WindowSet
from relief_ray.kernels.library import squares
from relief_ray.models.backbone import build_verified
from relief_ray.models.modes import of_statistics
from relief_ray.plugins.blame import blamed
from relief_ray.server.aggregation import check_update
from relief_ray.server.reduction import Accumulator, blocks, leaf, measured, squares_by_blas
from relief_ray.support.errors import ClientFailed, LeftOut, UserError
from relief_ray.support.process import use_device, use_threads
from relief_ray.training.evaluation import CHUNK, Share, calibrate, confusion, predict, share_rows
from relief_ray.training.forward_plan import Values
from relief_ray.training.inputs import ClientInputs, InputCache, prepare, prepared_bytes
from relief_ray.training.job import BlockResult, Job, combine
from relief_ray.training.local_step import NOTHING, ClientRun, Received
from relief_ray.training.stacked_step import StackedTrainer
from relief_ray.training.trainer import Trainer, load_model, scale_adapters

# A worker's windows have names: those of a client, of a share of a part, and those of BatchNorm's calibration.
CALIBRATION = "calibration"
Readable = Callable[[str, WindowSet], WindowSet]


def client_windows(client: ClientId) -> str:
    """Name of a client's training windows."""
    return f"client.{client}"


def part_windows(part: str, share: Share) -> str:
    """Name of a share ``(i, n)`` of a part's windows."""
    return f"{part}.{share}"


class Worker:
    """Trains and evaluates a job's clients in one process; stateless between rounds but for caches."""

    def __init__(
        self,
        job: Job,
        readable: Readable = lambda name, windows: windows,
        *,
        backwards: bool = False,
        inputs: InputCache | None = None,
    ) -> None:
        """Build the backbone on its device and pin the thread count, which the last bits of sums depend on.

        ``readable`` turns windows into the same ones where this process can read them, by default themselves;
        ``backwards``: the last client is trained first, and sums are added up in client order all the same; ``inputs``:
        prepared windows of the job before this one, which it may have too.
        """
        use_threads(job.num_threads)
        use_device(job.trainer.device)
        self.job = job
        self.backbone = build_verified(job.build, job.frozen)
        self.trainer = Trainer(self.backbone, job.trainer)
        # Own code may have changed what it was given.
        data, limit_mib = None if job.modules else job.data, job.cache_limit_mib
        how = self.backbone.prepare, self.backbone.device, limit_mib
        source = object() if data is None else (data, job.fleet, *how)
        self._cache, self._readable = (inputs or InputCache()).begin(limit_mib, source), readable
        self._digests: dict[str, str] = {}
        self.runs = ClientRuns(job, self.trainer, self._client_inputs)
        self._backwards = backwards
        self._square = squares if job.trainer.engine == "fused" else squares_by_blas

    def train_blocks(
        self,
        round_: int,
        models: Models,
        blocks: Sequence[Sequence[Assignment]],
        states: States,
        received: Received | None = None,
    ) -> Iterator[BlockResult]:
        """Yield the results of blocks of consecutive clients in order, lazily; the caller owns what it received.

        With ``training.stack`` clients of all blocks may share their steps. ``received``: given where ``models`` is
        what a client has already, and not the server's.

        Raises:
            ClientFailed: a client's code raised; the client is named.
        """
        job, is_watched = self.job, bool(self.job.pairwise_every) and round_ % self.job.pairwise_every == 0
        # Deltas that only the sums read need no memory of their own, which is faster.
        reuses_memory = isinstance(job.reduction, WeightedSum) and job.program.after is send_all and not is_watched
        updates = self.runs.updates(round_, models, blocks, states, received, reuses_memory=reuses_memory)
        if self._backwards:
            alone = [[task] for block in reversed(blocks) for task in reversed(block)]
            updates = reversed(list(self.runs.updates(round_, models, alone, states, reuses_memory=False)))
        return (self._sum_block(islice(updates, len(block)), states, is_watched) for block in blocks)

    def _sum_block(
        self,
        updates_with_loans: Iterable[tuple[Update, bool]],
        states: States,
        is_watched: bool,
    ) -> BlockResult:
        """Validate each update and add it to the sums before the next one is computed."""
        job, layout = self.job, self.backbone.layout
        total, updates, fusion, rejected, refused = Accumulator(), list[Update](), list[Update](), {}, list[Receipt]()
        payloads = []
        for update, is_borrowed in updates_with_loans:
            payload, update = update.payload, replace(update, payload=b"")
            if not (update.receipt.sq_norm and job.program.after is send_all):  # measured on its way already
                update = measured(update, self._square)
            if reason := check_update(update, layout):
                rejected[update.receipt.assignment.client] = LeftOut(cause="update", why=reason)
                refused.append(update.receipt)
                continue
            if is_watched:
                of_blocks = {j: delta for j, delta in update.delta.items() if layout[j].role == "fusion_a"}
                fusion.append(replace(update, delta=of_blocks, state={}))
            if isinstance(job.reduction, WeightedSum):
                total.add(leaf(update, job.reduction, layout, job.fleet), borrowed=is_borrowed)
                update = replace(update, delta={})
            updates.append(update)
            payloads += [payload] if payload else []
        answers = [(u, u.receipt.assignment) for u in updates]
        return BlockResult(
            sums=total.sums(),
            receipts=tuple(u.receipt for u in updates),
            # A client that had personal state, or was to keep some, and returns none loses what it had.
            states={t.client: u.state for u, t in answers if u.state or t.keep or states.get(t.client)},
            rejected=rejected,
            refused=tuple(refused),
            updates=() if isinstance(job.reduction, WeightedSum) else tuple(updates),
            pairwise=tuple(fusion),
            payloads=tuple(payloads),
        )

    def evaluate(
        self,
        models: Models,
        targets: Sequence[EvalTarget],
        states: States,
        part: str,
        share: Share = (0, 1),
    ) -> dict[str, Tensor]:
        """Confusion matrices (subjects, K, K) by label on this worker's share ``(i, n)`` of the part's windows.

        The shares of all workers sum to the matrices of a single worker.
        """
        windows = self.job.parts[part]
        rows = self._share_rows(part, share)
        subjects = torch.from_numpy(subject_index(windows))
        shared = windows.take(rows.numpy())
        inputs = self._cached(part_windows(part, share), shared, self.job.fleet.modalities)
        lacking = [(lacked, torch.from_numpy(of_them)) for lacked, of_them in shared.lacking()]
        labels = inputs.labels.cpu()
        num_subjects, num_classes = int(subjects.max()) + 1, self.backbone.shape.num_classes
        matrices: dict[str, Tensor] = {}
        counted: dict[tuple[object, ...], Tensor] = {}  # clients with equal sensors may share a model
        for target in targets:
            counts = target.client if self.backbone.statistics else None  # statistics are the client's own
            same = (target.view, target.output, target.modalities, target.omit_absent, counts)
            if not target.keep and same in counted:
                matrices[target.label] = counted[same].clone()
                continue
            self._load(models, target, states)
            masks = target_masks(target, self.job.fleet.modalities, [c.modalities for c in self.job.fleet.clients])
            missing = missing_mode(self.job.trainer.missing, omit_absent=target.omit_absent)
            predicted = predict(self.backbone, inputs.inputs, list(masks.values()), missing, target.output, lacking)
            for label, mask in masks.items():
                matrices[label] = confusion(labels, predicted[mask], subjects[rows], num_subjects, num_classes)
            if not target.keep and target.modalities is not None:
                counted[same] = matrices[target.label]
        return matrices

    def tested_windows(self, part: str, share: Share) -> dict[str, tuple[WindowSet, tuple[str, ...]]]:
        """Windows that ``evaluate`` reads, by name, and the modalities that it reads of them."""
        windows = {part_windows(part, share): self.job.parts[part].take(self._share_rows(part, share).numpy())}
        if self.job.calibration is not None:
            windows[CALIBRATION] = self.job.calibration
        return {name: (each, self.job.fleet.modalities) for name, each in windows.items()}

    def _share_rows(self, part: str, share: Share) -> Tensor:
        return share_rows(len(self.job.parts[part]), share, self.backbone.chunk or CHUNK)

    def _client_inputs(self, client: ClientId) -> ClientInputs:
        return self._cached(client_windows(client), self.job.clients[client], self.job.fleet[client].modalities)

    def _cached(self, name: str, windows: WindowSet, modalities: Sequence[str]) -> ClientInputs:
        arguments = modalities, self.backbone, self._cache.limit_bytes
        if name not in self._digests:
            self._digests[name] = windows.digest(modalities)
        return self._cache.get(
            self._digests[name],
            partial(prepared_bytes, windows, *arguments),
            lambda: prepare(self._readable(name, windows), *arguments),
        )

    def _load(self, models: Models, target: EvalTarget, states: States) -> None:
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
        # BatchNorm's running statistics are the client's own, or those of the calibration windows under the model.
        if kept := of_statistics(state):
            self.backbone.statistics.load(kept)
        elif self.backbone.statistics:
            assert self.job.calibration is not None, "set for every backbone with statistics"
            calibrate(self.backbone, self._cached(CALIBRATION, self.job.calibration, self.job.fleet.modalities).inputs)


class ClientRuns:
    """Runs a job's clients: one after another, or several at once (``training.stack``)."""

    def __init__(self, job: Job, trainer: Trainer, inputs: Callable[[ClientId], ClientInputs]) -> None:
        """``inputs`` returns a client's prepared windows."""
        self._job, self._trainer, self._inputs = job, trainer, inputs
        self._rows: dict[tuple[str, Missing], tuple[Params, Values]] = {}
        """By view and mode: the model, and its rows."""
        self._stacked = StackedTrainer(trainer, job.trainer.stack)

    def updates(
        self,
        round_: int,
        models: Models,
        blocks: Sequence[Sequence[Assignment]],
        states: States,
        received: Received | None = None,
        *,
        reuses_memory: bool,
    ) -> Iterator[tuple[Update, bool]]:
        """Yield each client's update in order, and whether its delta is valid only until the next update.

        ``reuses_memory``: each update but the first of a block may be overwritten once the next one is requested;
        callers copy what they keep. ``received``: as in ``Worker.train_blocks``.

        Raises:
            ClientFailed: a client's code raised; the client is named.
        """
        tasks = [(task, reuses_memory and place > 0) for block in blocks for place, task in enumerate(block)]
        size = self._job.trainer.stack
        for chunk in (tasks[i : i + size] for i in range(0, len(tasks), size)):
            runs = []
            for task, _ in chunk:
                with self._blames(task, round_):
                    runs.append(self._begin(round_, models, task, states.get(task.client, NO_STATE), received))
            if len(runs) == 1:
                yield self._train_one(runs[0], round_, chunk[0][1]), chunk[0][1]
            else:
                yield from ((update, False) for update in self._train_stack(runs, round_))

    def _train_one(self, run: ClientRun, round_: int, in_place: bool) -> Update:
        with self._blames(run.task, round_):
            return self._trainer.train_run(run, in_place)

    def _train_stack(self, runs: Sequence[ClientRun], round_: int) -> list[Update]:
        try:
            return self._stacked.train(runs)
        except Exception as error:
            for run in runs:  # trained alone, the client at fault is named
                self._train_one(run, round_, in_place=True)
            raise UserError(
                f"training.stack = {self._job.trainer.stack}: clients {[r.task.client for r in runs]} failed in a "
                f"common step ({type(error).__name__}: {error}), but each of them works alone; take training.stack=1"
            ) from error

    def _begin(
        self, round_: int, models: Models, task: Assignment, state: ClientState, given: Received | None
    ) -> ClientRun:
        job = self._job
        info = job.fleet[task.client]
        start, received = self.received(models, task) if given is None else (models[task.view], given)
        context = ClientContext(
            info=info,
            round=round_,
            layout=self._trainer.backbone.layout,
            start=start,
            state=state,
            streams=job.streams,
            planner=job.planner,
        )
        return self._trainer.begin(context, task, self._inputs(task.client), job.program, received)

    def received(self, models: Models, task: Assignment) -> tuple[Params, Received]:
        """What the client has of the model, and rows in place of absent sensors' networks that it has not.

        Clients of a stack step through each other's stages, so they compute with everything.
        """
        theta, backbone, config = models[task.view], self._trainer.backbone, self._job.trainer
        if all(map(task.holds, theta)):
            return theta, NOTHING
        is_stacked = config.stack > 1
        held = theta if is_stacked else {j: value for j, value in theta.items() if task.holds(j)}
        present, wanted = self._job.fleet[task.client].modalities, {task.output or backbone.output, *task.taps}
        if all(map(task.holds, absent_groups(backbone.running(wanted), present))):
            return held, NOTHING
        missing = missing_mode(config.missing, omit_absent=task.omit_absent)
        model, rows = self._rows.get((task.view, missing), ({}, {}))
        if model is not theta:
            rows = self._trainer.rows(theta, missing)
            self._rows[task.view, missing] = theta, rows
        nbytes = rows_nbytes({s: rows[s].numel() for s in self.charged(task)})
        return held, Received(rows={} if is_stacked else rows, nbytes=nbytes)

    def charged(self, task: Assignment) -> tuple[str, ...]:
        """Stages whose rows come down to the client, where it receives what its sensors reach alone."""
        if not self._job.trainer.wire.reachable or task.omit_absent:
            return ()
        layout, present = self._trainer.backbone.layout, self._job.fleet[task.client].modalities
        return received_rows(self._trainer.backbone.running(), present, layout.blocks, self._job.trainer.missing)

    @contextmanager
    def _blames(self, task: Assignment, round_: int) -> Iterator[None]:
        """Turn an exception of a client's code into a ``ClientFailed`` that names the client."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            client = self._job.fleet[task.client]
            where = f"client {client.id} ({client.name}, type {client.device}) failed while training round {round_}: "
            raise blamed(error, where) or ClientFailed(f"{where}{type(error).__name__}: {error}") from error


def target_masks(
    target: EvalTarget, modalities: Sequence[str], owned: Iterable[Sequence[str]] = ()
) -> dict[str, frozenset[str]]:
    """Sensor masks by label (``messages.masked_label``): a client's own modalities where the target names them.

    For the canonical model all, each single modality, and the sets of modalities that clients own.
    """
    if target.modalities is not None:
        return {target.label: frozenset(target.modalities)}
    sets = dict.fromkeys([tuple(modalities), *((m,) for m in modalities), *map(tuple, owned)])
    return {masked_label(target.label, sensors, modalities): frozenset(sensors) for sensors in sets}


def subject_index(windows: WindowSet) -> NDArray[np.int64]:
    """Each window's subject (n,), numbered from 0 in ascending order."""
    return np.unique(windows.subjects, return_inverse=True)[1].astype(np.int64)


# The serial executor: one worker in this process, without Ray. The reference for every other executor.


class SerialExecutor:
    """Runs blocks of clients one after another in this process (an ``Executor``)."""

    def __init__(self, job: Job, *, backwards: bool = False, inputs: InputCache | None = None) -> None:
        """Build the one worker; ``backwards``: its last client is trained first; ``inputs``: as ``Worker`` has them."""
        self._worker = Worker(job, backwards=backwards, inputs=inputs)

    def train(
        self,
        round_: int,
        models: Models,
        tasks: Sequence[Assignment],
        states: States,
    ) -> Trained:
        """Train one round's assignments and sum their updates."""
        return combine(self._worker.train_blocks(round_, models, blocks(tasks), states))

    def evaluate(
        self,
        models: Models,
        targets: Sequence[EvalTarget],
        states: States,
        part: str,
    ) -> Mapping[str, Tensor]:
        """Confusion matrices of every target on the windows of ``part``."""
        return self._worker.evaluate(models, targets, states, part)

    def close(self) -> None:
        """Release nothing."""
