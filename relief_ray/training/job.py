"""What a worker is given for a whole run, and what its clients come back as."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from relief_ray.data.window_set import WindowSet
from relief_ray.federated import ClientProgram
from relief_ray.messages import ClientId, ClientState, Fleet, Receipt, Reduction, Update
from relief_ray.models.backbone import Backbone
from relief_ray.process import Device
from relief_ray.protocols import Planner
from relief_ray.server.reduction import Sums
from relief_ray.streams import Streams
from relief_ray.training.config import TrainerConfig

# Of prepared windows that a host keeps, by where they lie: with full caches a hundred clients stay below 2 GiB.
CACHE_MIB: Mapping[Device, int] = {"cpu": 224, "cuda": 8192}


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
    cache_mib: int | None = None
    pairwise_every: int = 0
    frozen: Mapping[str, str | int] = field(default_factory=dict)

    @property
    def held_mib(self) -> int:
        """Of prepared windows that a host keeps."""
        return CACHE_MIB[self.trainer.device] if self.cache_mib is None else self.cache_mib


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
