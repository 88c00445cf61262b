"""Hosts as the driver sees them: who they are, what they were asked, whether they are in trouble."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

import ray
from ray.exceptions import RayError

from actors.failures import reason
from actors.handshake import Identity, check, identify
from actors.hosts import EvalAnswer, Handle, TrainAnswer
from relief_ray.errors import UserError
from relief_ray.messages import Assignment, ClientId

Piece = tuple[int, tuple[Assignment, ...]]
Answer = TrainAnswer | EvalAnswer
# Calls that lie with a host: the one it works on and the next, so that it never waits for the driver.
DEPTH = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A piece of work: ``method`` of a host, for these clients; ``host`` where only one will do.

    ``pieces``: what its answer is made of, consecutive clients of one block each. ``work``: how much, in any unit.
    """

    method: str
    args: tuple[object, ...]
    clients: tuple[ClientId, ...]
    limit_s: float | None
    pieces: tuple[Piece, ...] = ()
    host: int | None = None
    attempt: int = 0
    work: float = 0.0


@dataclass(slots=True)
class Flight:
    """A call under way; ``since_s``: when the host could begin with it, as far as the driver knows."""

    call: Call
    ref: ray.ObjectRef[Answer]
    since_s: float


@dataclass(slots=True)
class Host:
    """One actor; it works on the first of its ``flights``. ``trouble`` says why it was lost, ``probe`` asks again.

    ``work_s``: seconds that it took for a unit of work the last time, once it has answered.
    """

    index: int
    name: str
    handle: Handle
    identity: Identity
    flights: deque[Flight] = field(default_factory=deque)
    work_s: float | None = None
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

    def left_s(self, now_s: float) -> float:
        """Expected seconds until it is through with what lies there; infinite where it was never heard of."""
        if not self.flights:
            return 0.0
        if self.work_s is None:
            return inf
        first, *behind = (self.work_s * flight.call.work for flight in self.flights)
        return max(0.0, first - (now_s - self.flights[0].since_s)) + sum(behind)

    def send(self, call: Call) -> None:
        """Sends a call; Ray runs a host's calls in the order in which they were sent."""
        ref: ray.ObjectRef[Answer] = getattr(self.handle, call.method).remote(*call.args)
        self.flights.append(Flight(call=call, ref=ref, since_s=time.monotonic()))

    def land(self) -> Flight:
        """Takes the first flight, which is over; the host is at the next one since now."""
        done = self.flights.popleft()
        if self.flights:
            self.flights[0].since_s = time.monotonic()
        return done

    def suspect(self, why: str) -> list[Call]:
        """Notes a trouble; returns the calls that lay behind the one in which it happened."""
        self.trouble, self.trouble_at_s = why, time.monotonic()
        self.probe, self.probe_at_s = None, 0.0
        behind = [flight.call for flight in self.flights]
        self.flights.clear()
        return behind


def greet(handles: Sequence[Handle], names: Sequence[str], within_s: float) -> list[Host]:
    """Waits until every host has said who it is.

    Raises:
        UserError: a host did not start in time, could not start, or runs other code.
    """
    refs = [handle.hello.remote() for handle in handles]
    ready, late = ray.wait(refs, num_returns=len(refs), timeout=within_s)
    if late:
        missing = [name for name, ref in zip(names, refs, strict=True) if ref in set(late)]
        raise UserError(
            f"{len(ready)} of {len(refs)} hosts started within {within_s:g} s; missing: {', '.join(missing[:8])}; "
            "use fewer hosts (runtime.num_hosts) or look at the cluster with `ray status`"
        )
    mine, hosts = identify(), []
    for i, (name, handle, ref) in enumerate(zip(names, handles, refs, strict=True)):
        try:
            identity: Identity = ray.get(ref)
        except RayError as error:
            raise UserError(
                f"{name} could not start: {reason(error)}; is the same relief-ray installed on its node?"
            ) from error
        check(mine, identity)
        hosts.append(Host(index=i, name=name, handle=handle, identity=identity))
    return hosts
