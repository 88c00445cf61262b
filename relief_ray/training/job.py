"""The job that a worker receives for a whole run, and the results that it returns for each block of clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from relief_ray.core.client import ClientProgram
from relief_ray.core.groups import GroupLayout
from relief_ray.core.messages import ClientId, Fleet, Receipt, Reduced, Reduction, States, Trained, Update
from relief_ray.core.protocols import Planner
from relief_ray.core.streams import Streams
from relief_ray.data.dataset import DataReference
from relief_ray.data.window_set import WindowSet
from relief_ray.models.backbone import Backbone, Facts
from relief_ray.server.reduction import Sums, merge_blocks
from relief_ray.support.errors import LeftOut
from relief_ray.support.process import Device, choose_device
from relief_ray.training.config import TrainerConfig

# Default capacity of a worker's input cache, MiB, by the memory it is in: a hundred clients then stay below 2 GiB.
CACHE_MIB: Mapping[Device, int] = {"cpu": 224, "cuda": 8192}


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A worker's inputs for a whole run, small enough to send: windows stay in the memory-mapped cache.

    Attributes:
        build: builds the backbone, with the modules that the method adds.
        layout: its groups.
        trainer: settings of local training.
        fleet: all clients with their modalities and device types.
        clients: each client's training windows, by client id.
        parts: windows to evaluate on, by name of the part (``test``, ``validation``).
        program: the method's client-side functions.
        reduction: whether updates are summed on the worker, and how, or returned one by one.
        streams: random streams by purpose, round and client.
        planner: prices assignments for clients that choose their own; None where no method asks.
        modules: names of the user's modules, which a worker process must import before it can unpickle the rest.
        num_threads: torch threads of a worker, which the last bits of sums depend on.
        cache_mib: capacity of the input cache, MiB; None: ``CACHE_MIB`` of the device.
        pairwise_every: rounds between returns of single clients' fusion updates; 0: never.
        frozen: identity of the backbone's frozen part, the same on every worker (``Backbone.facts``).
        calibration: windows whose statistics the BatchNorm layers of an evaluated global model take; None: it has none.
        data: the dataset by name, for machines where the windows' file is not; None: every worker can read that file.
        device_by_host: whether each machine takes its GPU where it has one, whatever ``trainer.device`` is elsewhere.
    """

    build: Callable[[], Backbone]
    layout: GroupLayout
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
    cache_mib: int | None = None
    pairwise_every: int = 0
    frozen: Facts = field(default_factory=dict)
    calibration: WindowSet | None = None
    data: DataReference | None = None
    device_by_host: bool = False

    def on_this_machine(self) -> Job:
        """The job with the device of the machine that this process is on."""
        if not self.device_by_host:
            return self
        return replace(self, trainer=replace(self.trainer, device=choose_device("auto")))

    @property
    def cache_limit_mib(self) -> int:
        """Capacity of a worker's input cache, MiB."""
        return CACHE_MIB[self.trainer.device] if self.cache_mib is None else self.cache_mib


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockResult:
    """A block's results: sums of its clients' updates, or the single updates where the strategy needs them.

    Attributes:
        sums: sums by model and group; a single client's are float32.
        receipts: of the clients whose updates were accepted, in order.
        states: new personal state by client; empty: the client's earlier state is dropped.
        rejected: reason by client whose update was not accepted.
        refused: receipts of the rejected clients, whose work is charged too.
        updates: single updates, where the reduction collects them.
        pairwise: single clients' fusion updates, in rounds that record them.
        payloads: encoded updates of the accepted clients, where these travel in place of values
            (``Wire.keeps_payload``).
    """

    sums: Sums
    receipts: tuple[Receipt, ...]
    states: States
    rejected: Mapping[ClientId, LeftOut] = field(default_factory=dict)
    refused: tuple[Receipt, ...] = ()
    updates: tuple[Update, ...] = ()
    pairwise: tuple[Update, ...] = ()
    payloads: tuple[bytes, ...] = ()


def combine(results: Iterable[BlockResult], moved_bytes: int = 0, sums: Sums | None = None) -> Trained:
    """Merge all blocks of a round in block order, the same for every executor.

    ``moved_bytes``: as in ``Trained``; ``sums``: those of all blocks, where they are merged already.
    """
    parts = list(results)
    reduced = Reduced(
        sums=merge_blocks(p.sums for p in parts) if sums is None else sums,
        receipts=tuple(r for p in parts for r in p.receipts),
        updates=tuple(u for p in parts for u in p.updates),
    )
    return Trained(
        reduced=reduced,
        states={c: s for p in parts for c, s in p.states.items()},
        rejected={c: why for p in parts for c, why in p.rejected.items()},
        refused=tuple(r for p in parts for r in p.refused),
        pairwise=tuple(u for p in parts for u in p.pairwise),
        moved_bytes=moved_bytes,
    )
