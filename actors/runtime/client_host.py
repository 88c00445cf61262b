"""The process in which clients live: a ``Worker`` behind Ray, one or many virtual clients each."""

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

# Who runs what: every host reports its version and its sources before it gets any work.


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """A process: the code it runs and where; ``node`` is Ray's id, empty where Ray does not run."""

    version: str
    digest: str
    python: str
    torch: str
    hostname: str
    pid: int
    node: str


def identify() -> Identity:
    """This process."""
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
    """Refuses a host that runs other code than the driver.

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
    """Consecutive clients of one or more blocks, with the committed personal state that each client starts from.

    ``whole``: the blocks' ascending numbers and the number of all blocks, where ``parts`` are whole blocks.
    """

    round: int
    parts: tuple[tuple[Assignment, ...], ...]
    states: States
    whole: tuple[tuple[int, ...], int] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalRequest:
    """A host's ``share = (i, of)`` of the windows of ``part``."""

    targets: tuple[EvalTarget, ...]
    states: States
    part: str
    share: tuple[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainAnswer:
    """What became of each part: ``sums`` apart from the ``rest``, since they are consumed at once and it is kept.

    Sums of whole blocks are merged as far as this host can: by ``nodes`` instead of by part. ``busy_s``: what it took;
    ``peak_mib``: the most memory that the host's process has held since it began.
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
    """A share's confusion matrices."""

    identity: Identity
    found: Packed[dict[str, Tensor]]

    @property
    def nbytes(self) -> int:
        """Bytes that travel."""
        return self.found.nbytes


class ClientHost:
    """Trains and tests; keeps nothing that a restart may lose. Wrapped once by ``ray.remote``."""

    def __init__(self) -> None:
        """Nothing to do yet: the job comes with each call, so that a process that started anew needs nothing else."""
        self._worker: Worker | None = None
        self._job = ""

    def hello(self) -> Identity:
        """Who this is."""
        return identify()

    def train(self, job: JobBox, models: Packed[Models], request: Packed[TrainRequest]) -> TrainAnswer:
        """Trains the request's clients in order.

        Raises:
            ClientFailed: a client's code raised; the client is named.
        """
        worker, view, asked, began = self._ready(job), unpack(models), unpack(request), perf_counter()
        results = worker.train_blocks(asked.round, view, asked.parts, asked.states)
        if asked.whole is None:
            parts, nodes = tuple(results), None
            rest, sums = tuple(replace(r, sums={}) for r in parts), tuple(r.sums for r in parts)
        else:
            rest, merged = merge_whole(results, *asked.whole)
            sums, nodes = tuple(merged.values()), tuple(merged)
        packed, busy_s = pack(sums), perf_counter() - began
        return TrainAnswer(
            identity=identify(), busy_s=busy_s, peak_mib=peak_mib(), sums=packed, nodes=nodes, rest=pack(rest)
        )

    def evaluate(self, job: JobBox, models: Packed[Models], request: Packed[EvalRequest]) -> EvalAnswer:
        """Confusion matrices of this host's share."""
        asked = unpack(request)
        found = self._ready(job).evaluate(unpack(models), asked.targets, asked.states, asked.part, asked.share)
        return EvalAnswer(identity=identify(), found=pack(found))

    def _ready(self, job: JobBox) -> Worker:
        if self._worker is None or self._job != job[0].hex():
            self._worker = None  # frees the last job's windows before the next one's are loaded
            self._worker, self._job = Worker(user_code.get(job[0])), job[0].hex()
        return self._worker


def merge_whole(
    results: Iterator[BlockResult], numbers: Sequence[int], num_blocks: int
) -> tuple[tuple[BlockResult, ...], dict[Node, Sums]]:
    """The blocks ``numbers`` of ``num_blocks`` without their sums, which are merged as far as they are halves.

    Each is merged before the next one is asked for, so that few sums are held; a block's own are used up.
    """
    tree = Tree(num_blocks)
    rest = tuple(_merge(tree, Node(level=0, index=i), next(results)) for i in numbers)
    assert next(results, None) is None, f"more blocks than the numbers {numbers}"
    return rest, tree.nodes()


def _merge(tree: Tree, node: Node, result: BlockResult) -> BlockResult:
    tree.add(node, Accumulator(result.sums, owns=True))
    return replace(result, sums={})
