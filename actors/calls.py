"""What a pool of hosts hands out and keeps track of: calls, answers, hosts as the driver sees them."""

from __future__ import annotations

from dataclasses import dataclass

import ray

from actors.handshake import Identity
from actors.hosts import EvalAnswer, Handle, TrainAnswer
from relief_ray.messages import ClientId

Answer = TrainAnswer | EvalAnswer
Ref = ray.ObjectRef[Answer]


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A piece of work: ``method`` of a host, for these clients; ``host`` where only one will do."""

    key: int
    method: str
    args: tuple[object, ...]
    clients: tuple[ClientId, ...]
    limit_s: float | None
    host: int | None = None
    attempt: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Lost:
    """A call that came to nothing without being at fault."""

    why: str


@dataclass(slots=True)
class Host:
    """One actor as the driver sees it; ``probe`` asks whether it is back, ``trouble`` says why it was lost."""

    index: int
    name: str
    handle: Handle
    identity: Identity
    probe: ray.ObjectRef[Identity] | None = None
    probe_at_s: float = 0.0
    trouble: str = ""
    trouble_at_s: float = 0.0
    num_losses: int = 0
    gone: bool = False

    @property
    def usable(self) -> bool:
        """True where a call may be sent."""
        return not self.trouble and not self.gone


@dataclass(slots=True)
class Flight:
    """A call under way; ``since_s`` is when its host got to it."""

    call: Call
    host: Host
    since_s: float
