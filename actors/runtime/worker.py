"""A worker: the process (Ray actor) that trains and tests one or many virtual clients."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from time import perf_counter
from typing import Any, cast

import ray
import torch
from ray.exceptions import RayError
from torch import Tensor

from actors.runtime import serialization
from actors.runtime.errors import errno_travels, hang_watched
from actors.runtime.physical import AnswerBox, DeviceWatch, ModelBox
from actors.runtime.serialization import EncodedModel, EncodedSums, Packed, pack, unpack
from actors.runtime.worker_data import JobBox, NodeData, RowBoxes, Wanted, WorkerData
from relief_ray import __version__
from relief_ray.core.groups import GroupLayout
from relief_ray.core.messages import Assignment, EvalTarget, Models, OnDevice, States
from relief_ray.records.identity import source_digest
from relief_ray.server.reduction import Accumulator, Node, Sums, Tree, merge_blocks
from relief_ray.support.errors import UserError
from relief_ray.support.process import peak_mib
from relief_ray.training.executor import Worker, client_windows
from relief_ray.training.inputs import InputCache
from relief_ray.training.job import BlockResult


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """A process: the code it runs and where. Every worker reports it before it gets any work.

    ``digest`` is that of the sources; ``node`` is Ray's id, empty where Ray does not run.
    """

    version: str
    digest: str
    python: str
    torch: str
    hostname: str
    pid: int
    node: str


def identify() -> Identity:
    """Identity of this process."""
    return Identity(
        version=__version__,
        digest=source_digest(),
        python=platform.python_version(),
        torch=str(torch.__version__),
        hostname=socket.gethostname(),
        pid=os.getpid(),
        node=ray.get_runtime_context().get_node_id() if ray.is_initialized() else "",
    )


def check(mine: Identity, theirs: Identity) -> None:
    """Refuse a worker that runs other code than the driver.

    Raises:
        UserError: version or source digest differ; both are shown.
    """
    if (mine.version, mine.digest) != (theirs.version, theirs.digest):
        raise UserError(
            f"host {theirs.hostname} (process {theirs.pid}) runs relief-ray {theirs.version}, sources "
            f"{theirs.digest[:12]}; this process runs {mine.version}, sources {mine.digest[:12]}; "
            "install the same version on every node"
        )


# Sums as they travel.
SentSums = tuple["Sums | EncodedSums", ...]
# What stays on a node; its worker owns it, so it is lost with that process.
SumsRef = ray.ObjectRef[Packed[SentSums]]

# Sums that do not come within this time lie on a node that is lost.
FETCH_S = 20.0

# Ray types the methods of a handle as taking and giving nothing that a checker could use.
Handle = Any


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainRequest:
    """Request to train clients."""

    round: int
    """Number of the round."""
    parts: tuple[tuple[Assignment, ...], ...]
    """Assignments of consecutive clients, each part within one block of the reduction."""
    states: States
    """Committed personal state of the clients that have one."""
    whole_blocks: tuple[tuple[int, ...], int] | None
    """Where the parts are complete blocks, their ascending numbers and the number of all blocks."""
    least_s: float | None = None
    """Seconds for which the worker is not ended; None: for ever."""
    keeps_sums: bool = False
    """Whether the sums stay on the worker's node until a worker adds them up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalRequest:
    """Request to evaluate the share ``(i, of)`` of the windows of ``part`` for every target."""

    targets: tuple[EvalTarget, ...]
    states: States
    part: str
    share: tuple[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a worker answers: which process it was, and what travels to the driver."""

    identity: Identity
    fetched_bytes: int = 0
    """Bytes of raw windows that the worker fetched for it."""

    @property
    def nbytes(self) -> int:
        """Bytes that travel to the driver, and those that the worker fetched."""
        values = (getattr(self, field.name) for field in fields(self))
        return self.fetched_bytes + sum(value.nbytes for value in values if isinstance(value, Packed))


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainAnswer(Answer):
    """Result of a ``TrainRequest``."""

    busy_s: float
    """Seconds that it took."""
    peak_mib: float
    """The most memory (MiB) that the process has held since it began."""
    sums: Packed[SentSums] | SumsRef
    """Per part, or per node of the reduction tree; apart from ``rest``, since they are consumed at once."""
    nodes: tuple[Node, ...] | None
    """Nodes of the tree into which the sums of complete blocks were merged; None: sums are by part."""
    rest: Packed[tuple[BlockResult, ...]]
    """Everything else of each part's result."""
    on_device: OnDevice | None = None
    """Measurements of a physical run; None in any other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SumAnswer(Answer):
    """Sum of sums that lay on nodes."""

    sums: Packed[SentSums] | SumsRef | None
    """None where an addend was lost; a reference to what stays on this worker's node."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalAnswer(Answer):
    """Confusion matrices of a share, by target."""

    counts: Packed[dict[str, Tensor]]


@dataclass(frozen=True, kw_only=True, slots=True)
class NeedsRows(Answer):
    """Answer of a worker that cannot read these windows: the call is sent again with their rows."""

    wanted: Wanted

    @property
    def nbytes(self) -> int:
        """Bytes that travel."""
        return sum(w.starts.nbytes + w.labels.nbytes + w.subjects.nbytes for w, _ in self.wanted.values())


class ClientWorker:
    """Trains and tests clients; keeps nothing that a restart may lose. Wrapped once by ``ray.remote``."""

    def __init__(self, name: str = "host") -> None:
        """Start without a job: it comes with each call, so that a restarted process needs nothing else."""
        self._worker: Worker | None = None
        self._data: WorkerData | None = None
        self._inputs = InputCache()
        self._name = name

    def __repr__(self) -> str:
        """Name in Ray's dashboard and logs."""
        return self._name

    def hello(self) -> Identity:
        """Identity of this worker."""
        return identify()

    @errno_travels()
    def node_data(self, box: JobBox) -> NodeData:
        """The part of the job's data that this worker's node has.

        Raises:
            UserError: other data than the driver's.
        """
        return self._look(box, {}).node_data

    @errno_travels()
    def train(
        self,
        box: JobBox,
        models: Packed[Models] | Packed[EncodedModel] | ModelBox,
        request: Packed[TrainRequest],
        rows: RowBoxes,
    ) -> TrainAnswer | NeedsRows | AnswerBox[TrainAnswer]:
        """Train the request's clients in order; ``rows``: windows that were sent along.

        A model in a box is fetched here, the call is measured, and the answer stays in a box too.

        Raises:
            UserError: this node may not have the windows, or has others than the driver.
            ClientFailed: a client's code raised; the client is named.
        """
        unpacked = unpack(request)
        with hang_watched(unpacked.least_s):
            data = self._look(box, rows)
            job, clients = data.job, [task.client for part in unpacked.parts for task in part]
            if missing := data.lacking({client_windows(c): (job.clients[c], job.fleet[c].modalities) for c in clients}):
                return NeedsRows(identity=identify(), wanted=missing)
            if not isinstance(models, ModelBox):
                return self._trained(data, unpack(cast("Packed[Models | EncodedModel]", models)), unpacked)
            watch = DeviceWatch()
            with watch:
                answer = self._trained(data, unpack(watch.fetch(models)), unpacked)
            device = self._ready(data).job.trainer.device
            return AnswerBox(ref=ray.put(replace(answer, on_device=watch.measured(device))))

    def _trained(self, data: WorkerData, models: Models | EncodedModel, request: TrainRequest) -> TrainAnswer:
        worker, began, received = self._ready(data), perf_counter(), None
        if isinstance(models, EncodedModel):
            received, models = models.received(), {models.view: models.start(data.job.layout)}
        results = worker.train_blocks(request.round, models, request.parts, request.states, received)
        sums: SentSums
        if request.whole_blocks is None:
            parts, nodes = tuple(results), None
            rest, sums = tuple(map(_without_values, parts)), tuple(map(_sums_of, parts))
        else:
            rest, merged = merge_whole(results, *request.whole_blocks)
            sums, nodes = tuple(merged.values()), tuple(merged)
        packed, busy_s = pack(sums), perf_counter() - began
        return TrainAnswer(
            identity=identify(),
            busy_s=busy_s,
            peak_mib=peak_mib(),
            sums=ray.put(packed) if request.keeps_sums else packed,
            nodes=nodes,
            rest=pack(rest),
            fetched_bytes=data.fetched_bytes,
        )

    def add_up(self, addends: Sequence[SumsRef], are_blocks: bool, layout: GroupLayout, wait_s: float) -> SumAnswer:
        """Add up the sums of consecutive clients of a block, in their order; or of all blocks, along the tree."""
        packed = added_up(addends, are_blocks, layout, wait_s)
        return SumAnswer(identity=identify(), sums=packed if packed is None or are_blocks else ray.put(packed))

    @errno_travels()
    def evaluate(
        self, box: JobBox, models: Packed[Models], request: Packed[EvalRequest], rows: RowBoxes
    ) -> EvalAnswer | NeedsRows:
        """Confusion matrices of this worker's share; ``rows``: windows that were sent along.

        Raises:
            UserError: this node may not have the windows, or has others than the driver.
        """
        of, data = unpack(request), self._look(box, rows)
        worker = self._ready(data)
        if missing := data.lacking(worker.tested_windows(of.part, of.share)):
            return NeedsRows(identity=identify(), wanted=missing)
        counts = worker.evaluate(unpack(models), of.targets, of.states, of.part, of.share)
        return EvalAnswer(identity=identify(), counts=pack(counts), fetched_bytes=data.fetched_bytes)

    def _look(self, box: JobBox, rows: RowBoxes) -> WorkerData:
        """The job of the call, with its data."""
        if self._data is None or self._data.box != box:
            self._worker = self._data = None
            self._data = WorkerData(serialization.get(box.job), box, identify().node)
        self._data.sent, self._data.fetched_bytes = rows, 0
        return self._data

    def _ready(self, data: WorkerData) -> Worker:
        if self._worker is None:
            if data.node_data.kind == "none":  # rows that were sent count as moved in the job that fetches them
                self._inputs = InputCache()
            job = data.job.on_this_machine()
            if data.box.encoded:
                job = replace(job, trainer=replace(job.trainer, wire=replace(job.trainer.wire, keeps_payload=True)))
            self._worker = Worker(job, data.readable, inputs=self._inputs)
        return self._worker


def _sums_of(result: BlockResult) -> Sums | EncodedSums:
    """A part's sums, encoded where they are of one client whose update is."""
    return EncodedSums.of(result.sums, result.payloads[0]) if result.sums and result.payloads else result.sums


def _without_values(result: BlockResult) -> BlockResult:
    """Everything else: single updates have their payload in place of their values, where there is one."""
    pairs = zip(result.updates, result.payloads, strict=False)
    encoded = tuple(replace(update, delta={}, payload=payload) for update, payload in pairs)
    return replace(result, sums={}, updates=encoded or result.updates, payloads=())


def decoded(sums: Sums | EncodedSums, layout: GroupLayout) -> Sums:
    """Sums with their values."""
    return sums.decoded(layout) if isinstance(sums, EncodedSums) else sums


def added_up(
    addends: Sequence[SumsRef], are_blocks: bool, layout: GroupLayout, wait_s: float = FETCH_S
) -> Packed[SentSums] | None:
    """Add up sums that lie on nodes, as ``add_up`` does; None if one is lost or late."""
    # A `ray.get` of several brings none while one of them cannot be found; this brings each.
    if ray.wait(list(addends), num_returns=len(addends), timeout=wait_s)[1]:
        return None
    try:
        packs = ray.get(list(addends), timeout=wait_s)
    except RayError:
        return None
    parts = [decoded(sums, layout) for packed in packs for sums in unpack(packed)]
    if are_blocks:
        return pack((merge_blocks(parts),))
    running = Accumulator()
    for part in parts:
        running.add(part)
    return pack((running.sums(),))


def merge_whole(
    results: Iterator[BlockResult], numbers: Sequence[int], num_blocks: int
) -> tuple[tuple[BlockResult, ...], dict[Node, Sums]]:
    """Merge the sums of the blocks ``numbers`` (of ``num_blocks``) along the reduction tree.

    Returns the results without their sums, and the sums by node of the tree. Each block is merged before the next one
    is computed, so that few sums are held; a block's sums are used up.
    """
    tree = Tree(num_blocks)
    rest = tuple(_merge(tree, Node(level=0, index=i), next(results)) for i in numbers)
    assert next(results, None) is None, f"more blocks than the numbers {numbers}"
    return rest, tree.nodes()


def _merge(tree: Tree, node: Node, result: BlockResult) -> BlockResult:
    tree.add(node, Accumulator(result.sums, owns=True))
    return replace(result, sums={})
