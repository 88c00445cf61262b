"""A host: the worker process (Ray actor) that trains and tests one or many virtual clients."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import ray
import torch
from torch import Tensor

from actors.runtime import user_code
from actors.runtime.serialization import Packed, pack, unpack
from relief_ray import __version__
from relief_ray.errors import UserError
from relief_ray.groups import Params
from relief_ray.messages import Assignment, ClientId, ClientState, EvalTarget
from relief_ray.process import peak_mib
from relief_ray.records.identity import source_digest
from relief_ray.server.reduction import Accumulator, Node, Sums, Tree
from relief_ray.training.job import BlockResult, Job
from relief_ray.training.worker import Worker


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """A process: the code it runs and where. Every host reports it before it gets any work.

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
    """Refuse a host that runs other code than the driver.

    Raises:
        UserError: version or source digest differ; both are shown.
    """
    if (mine.version, mine.digest) != (theirs.version, theirs.digest):
        raise UserError(
            f"host {theirs.hostname} (process {theirs.pid}) runs relief-ray {theirs.version}, sources "
            f"{theirs.digest[:12]}; this process runs {mine.version}, sources {mine.digest[:12]}; "
            "install the same version on every node"
        )


Models = Mapping[str, Params]

States = Mapping[ClientId, ClientState]

# Ray types the methods of a handle as taking and giving nothing that a checker could use.
Handle = Any

# In a box Ray does not fetch it: a host reads it once, after the handshake.
JobBox = tuple["ray.ObjectRef[Job]"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainRequest:
    """Request to train clients.

    Attributes:
        round: number of the round.
        parts: assignments of consecutive clients, each part within one block of the reduction.
        states: committed personal state of the clients that have one.
        whole_blocks: where the parts are complete blocks, their ascending numbers and the number of all blocks.
    """

    round: int
    parts: tuple[tuple[Assignment, ...], ...]
    states: States
    whole_blocks: tuple[tuple[int, ...], int] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalRequest:
    """Request to evaluate the share ``(i, of)`` of the windows of ``part`` for every target."""

    targets: tuple[EvalTarget, ...]
    states: States
    part: str
    share: tuple[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainAnswer:
    """Result of a ``TrainRequest``.

    Attributes:
        identity: the host.
        busy_s: seconds that it took.
        peak_mib: the most memory (MiB) that the process has held since it began.
        sums: per part, or per node of the reduction tree; apart from ``rest``, since they are consumed at once.
        nodes: nodes of the tree into which the sums of complete blocks were merged; None: sums are by part.
        rest: everything else of each part's result.
    """

    identity: Identity
    busy_s: float
    peak_mib: float
    sums: Packed[tuple[Sums, ...]]
    nodes: tuple[Node, ...] | None
    rest: Packed[tuple[BlockResult, ...]]

    @property
    def nbytes(self) -> int:
        """Bytes that travel."""
        return self.sums.nbytes + self.rest.nbytes


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalAnswer:
    """Confusion matrices of a share, by target."""

    identity: Identity
    counts: Packed[dict[str, Tensor]]

    @property
    def nbytes(self) -> int:
        """Bytes that travel."""
        return self.counts.nbytes


class ClientHost:
    """Trains and tests clients; keeps nothing that a restart may lose. Wrapped once by ``ray.remote``."""

    def __init__(self, name: str = "host") -> None:
        """Start without a job: it comes with each call, so that a restarted process needs nothing else."""
        self._worker: Worker | None = None
        self._job, self._name = "", name

    def __repr__(self) -> str:
        """Name in Ray's dashboard and logs."""
        return self._name

    def hello(self) -> Identity:
        """Identity of this host."""
        return identify()

    def train(self, job: JobBox, models: Packed[Models], request: Packed[TrainRequest]) -> TrainAnswer:
        """Train the request's clients in order.

        Raises:
            ClientFailed: a client's code raised; the client is named.
        """
        worker, view, train_request, began = self._ready(job), unpack(models), unpack(request), perf_counter()
        results = worker.train_blocks(train_request.round, view, train_request.parts, train_request.states)
        if train_request.whole_blocks is None:
            parts, nodes = tuple(results), None
            rest, sums = tuple(replace(r, sums={}) for r in parts), tuple(r.sums for r in parts)
        else:
            rest, merged = merge_whole(results, *train_request.whole_blocks)
            sums, nodes = tuple(merged.values()), tuple(merged)
        packed, busy_s = pack(sums), perf_counter() - began
        return TrainAnswer(
            identity=identify(), busy_s=busy_s, peak_mib=peak_mib(), sums=packed, nodes=nodes, rest=pack(rest)
        )

    def evaluate(self, job: JobBox, models: Packed[Models], request: Packed[EvalRequest]) -> EvalAnswer:
        """Confusion matrices of this host's share."""
        eval_request = unpack(request)
        counts = self._ready(job).evaluate(
            unpack(models), eval_request.targets, eval_request.states, eval_request.part, eval_request.share
        )
        return EvalAnswer(identity=identify(), counts=pack(counts))

    def _ready(self, job: JobBox) -> Worker:
        if self._worker is None or self._job != job[0].hex():
            self._worker = None  # frees the last job's windows before the next one's are loaded
            self._worker, self._job = Worker(user_code.get(job[0])), job[0].hex()
        return self._worker


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
