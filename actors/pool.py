"""A pool of hosts: hands out calls, takes answers as they come, survives lost hosts.

Ray's own retries stay off (they would train twice); whoever calls decides what is sent again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

import ray
from ray.exceptions import ActorDiedError, RayError, RayTaskError

from actors.failures import Interrupted, raise_cause, reason
from actors.handshake import Identity, check, identify
from actors.hosts import EvalAnswer, Handle, TrainAnswer
from relief_ray.errors import UserError
from relief_ray.messages import Assignment, ClientId

Piece = tuple[int, tuple[Assignment, ...]]
Answer = TrainAnswer | EvalAnswer
Ref = ray.ObjectRef[Answer]
POLL_S, PROBE_S, RECOVERY_S = 0.25, 0.2, 60.0
MAX_LOSSES = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A piece of work: ``method`` of a host, for these clients; ``host`` where only one will do.

    ``pieces``: what its answer is made of, consecutive clients of one block each.
    """

    method: str
    args: tuple[object, ...]
    clients: tuple[ClientId, ...]
    limit_s: float | None
    pieces: tuple[Piece, ...] = ()
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
    """A call under way."""

    call: Call
    host: Host
    since_s: float


@dataclass(kw_only=True)
class HostPool:
    """Hosts and what they are doing; ``per_node`` bounds the calls that run on a node at the same time.

    ``client_s``: seconds per client of the last call that was answered.
    """

    hosts: list[Host]
    per_node: dict[str, int]
    should_stop: Callable[[], bool]
    recovery_s: float = RECOVERY_S
    moved_bytes: int = 0
    num_lost: int = 0
    client_s: float = inf
    _flights: dict[Ref, Flight] = field(default_factory=dict)

    def run(self, todo: deque[Call]) -> Iterator[tuple[Call, Answer | Lost]]:
        """Yields every call of ``todo`` with its outcome as it arrives; the caller may add calls meanwhile.

        Raises:
            UserError, ClientFailed: code of a host raised, or the host runs other code.
            Interrupted: the user asked to stop.
        """
        for host in self.hosts:
            if host.probe is None:
                host.trouble_at_s = time.monotonic()
        try:
            while todo or self._flights:
                if self.should_stop():
                    raise Interrupted
                self._send(todo)
                self._probe()
                yield from self._receive()
                yield from self._overdue()
                yield from self._hopeless(todo)
        finally:
            # Where the caller gives up, hosts finish what they do and then answer the probe behind it.
            for flight in self._flights.values():
                self._suspect(flight.host, "its last call was given up")
            self._flights.clear()

    def _send(self, todo: deque[Call]) -> None:
        for _ in range(len(todo)):
            call = todo.popleft()
            host = self._free_host(call)
            if host is None:
                todo.append(call)
                continue
            ref: Ref = getattr(host.handle, call.method).remote(*call.args)
            self._flights[ref] = Flight(call=call, host=host, since_s=time.monotonic())

    def _free_host(self, call: Call) -> Host | None:
        candidates = self.hosts if call.host is None else [self.hosts[call.host]]
        busy = {f.host.index for f in self._flights.values()}
        running: dict[str, int] = {}
        for flight in self._flights.values():
            running[flight.host.identity.node] = running.get(flight.host.identity.node, 0) + 1
        for host in candidates:
            node = host.identity.node
            if host.usable and host.index not in busy and running.get(node, 0) < self.per_node.get(node, 1):
                return host
        return None

    def _hopeless(self, todo: deque[Call]) -> Iterator[tuple[Call, Lost]]:
        """Calls whose hosts are gone, or in trouble for longer than a restart takes."""
        now = time.monotonic()
        for call in list(todo):
            candidates = self.hosts if call.host is None else [self.hosts[call.host]]
            if all(h.gone or (h.trouble and now - h.trouble_at_s > self.recovery_s) for h in candidates):
                todo.remove(call)
                yield call, Lost(why=f"no host: {candidates[0].name} {candidates[0].trouble}")

    def _receive(self) -> Iterator[tuple[Call, Answer | Lost]]:
        if not self._flights:
            time.sleep(PROBE_S if any(h.trouble for h in self.hosts) else 0.0)
            return
        ready, _ = ray.wait(list(self._flights), num_returns=1, timeout=POLL_S)
        for ref in ready:
            yield self._take(self._flights.pop(ref), ref)

    def _take(self, flight: Flight, ref: Ref) -> tuple[Call, Answer | Lost]:
        try:
            answer = ray.get(ref, timeout=RECOVERY_S)
        except RayTaskError as error:
            raise_cause(error, f"{flight.host.name}, {flight.call.method} of clients {list(flight.call.clients)}")
            raise
        except RayError as error:
            return flight.call, self._lose(flight.host, reason(error))
        check(identify(), answer.identity)
        flight.host.identity, flight.host.num_losses = answer.identity, 0
        self.moved_bytes += answer.nbytes
        if flight.call.clients:
            self.client_s = (time.monotonic() - flight.since_s) / len(flight.call.clients)
        return flight.call, answer

    def _overdue(self) -> Iterator[tuple[Call, Lost]]:
        now = time.monotonic()
        for ref, flight in list(self._flights.items()):
            limit_s = flight.call.limit_s
            if limit_s is not None and now - flight.since_s > limit_s:
                del self._flights[ref]
                # A hung process answers nothing, not even a polite end; Ray starts it anew.
                ray.kill(flight.host.handle, no_restart=False)
                why = f"no answer within {limit_s:g} s; raise runtime.client_timeout_s if it was only slow"
                yield flight.call, self._lose(flight.host, why)

    def _lose(self, host: Host, why: str) -> Lost:
        self.num_lost += 1
        host.num_losses += 1
        # Ray starts a dead process anew for ever; one that dies on every call is given up.
        host.gone = host.num_losses >= MAX_LOSSES
        self._suspect(host, why)
        return Lost(why=f"{host.name}: {why}")

    def _suspect(self, host: Host, why: str) -> None:
        host.trouble, host.trouble_at_s = why, time.monotonic()
        host.probe, host.probe_at_s = None, 0.0

    def _probe(self) -> None:
        """Asks hosts in trouble whether they are back, and hears those that answered."""
        now = time.monotonic()
        for host in self.hosts:
            if host.trouble and not host.gone and host.probe is None and now >= host.probe_at_s:
                host.probe = host.handle.hello.remote()
        asked = {h.probe: h for h in self.hosts if h.probe is not None}
        if asked:
            for ref in ray.wait(list(asked), num_returns=len(asked), timeout=0)[0]:
                self._take_probe(asked[ref])

    def _take_probe(self, host: Host) -> None:
        assert host.probe is not None
        ref, host.probe = host.probe, None
        try:
            host.identity = ray.get(ref, timeout=RECOVERY_S)
        except ActorDiedError:
            host.gone = True
        except RayError:
            host.probe_at_s = time.monotonic() + PROBE_S
        else:
            check(identify(), host.identity)
            host.trouble = ""


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
