"""A pool of hosts: hands out calls, takes answers as they come, survives lost hosts.

Ray's own retries stay off (they would train twice); whoever calls decides what is sent again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import ray
from ray.exceptions import ActorDiedError, RayError, RayTaskError

from actors.calls import Answer, Call, Flight, Host, Lost, Ref
from actors.failures import Interrupted, raise_cause, reason
from actors.handshake import Identity, check, identify
from actors.hosts import Handle
from relief_ray.errors import UserError

POLL_S, PROBE_S, RECOVERY_S = 0.25, 0.2, 60.0
# A host whose calls are shorter than this has its next one waiting; longer ones are dealt out as hosts get free.
BRIEF_S = 0.05
MAX_LOSSES = 5


@dataclass(kw_only=True)
class HostPool:
    """Hosts and what they are doing; ``per_node`` bounds the calls that run on a node at the same time."""

    hosts: list[Host]
    per_node: dict[str, int]
    should_stop: Callable[[], bool]
    recovery_s: float = RECOVERY_S
    moved_bytes: int = 0
    num_lost: int = 0
    _flights: dict[Ref, Flight] = field(default_factory=dict)
    _is_brief: bool = False

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
                yield from self._receive(todo)
                yield from self._overdue(todo)
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
        """The host with the fewest calls that may have one more."""
        load = dict.fromkeys(range(len(self.hosts)), 0)
        for flight in self._flights.values():
            load[flight.host.index] += 1
        running: dict[str, int] = {}
        for host in self.hosts:
            running[host.identity.node] = running.get(host.identity.node, 0) + (load[host.index] > 0)

        def may(host: Host) -> bool:
            if load[host.index]:
                return self._is_brief and load[host.index] == 1 and call.host is None
            return running[host.identity.node] < self.per_node.get(host.identity.node, 1)

        candidates = self.hosts if call.host is None else [self.hosts[call.host]]
        free = [host for host in candidates if host.usable and may(host)]
        return min(free, key=lambda host: load[host.index]) if free else None

    def _hopeless(self, todo: deque[Call]) -> Iterator[tuple[Call, Lost]]:
        """Calls whose hosts are gone, or in trouble for longer than a restart takes."""
        now = time.monotonic()
        for call in list(todo):
            candidates = self.hosts if call.host is None else [self.hosts[call.host]]
            if all(h.gone or (h.trouble and now - h.trouble_at_s > self.recovery_s) for h in candidates):
                todo.remove(call)
                yield call, Lost(why=f"no host: {candidates[0].name} {candidates[0].trouble}")

    def _receive(self, todo: deque[Call]) -> Iterator[tuple[Call, Answer | Lost]]:
        if not self._flights:
            time.sleep(PROBE_S if any(h.trouble for h in self.hosts) else 0.0)
            return
        ready, _ = ray.wait(list(self._flights), num_returns=1, timeout=POLL_S)
        for ref in ready:
            yield self._take(ref, todo)

    def _take(self, ref: Ref, todo: deque[Call]) -> tuple[Call, Answer | Lost]:
        flight = self._flights[ref]
        try:
            answer = ray.get(ref, timeout=RECOVERY_S)
        except RayTaskError as error:
            del self._flights[ref]
            raise_cause(error, f"{flight.host.name}, {flight.call.method} of clients {list(flight.call.clients)}")
            raise
        except RayError as error:
            return self._lose(flight.host, reason(error), todo)
        del self._flights[ref]
        check(identify(), answer.identity)
        flight.host.identity, flight.host.num_losses = answer.identity, 0
        self.moved_bytes += answer.nbytes
        now = time.monotonic()
        self._is_brief = now - flight.since_s < BRIEF_S
        for waiting in self._flights_of(flight.host):
            waiting.since_s = now
        return flight.call, answer

    def _flights_of(self, host: Host) -> list[Flight]:
        """In the order in which the host gets to them."""
        return [f for f in self._flights.values() if f.host is host]

    def _overdue(self, todo: deque[Call]) -> Iterator[tuple[Call, Lost]]:
        now = time.monotonic()
        for host in self.hosts:
            first, *_ = (*self._flights_of(host), None)
            if first is None or first.call.limit_s is None or now - first.since_s <= first.call.limit_s:
                continue
            # A hung process answers nothing, not even a polite end; Ray starts it anew.
            ray.kill(host.handle, no_restart=False)
            why = f"no answer within {first.call.limit_s:g} s; raise runtime.client_timeout_s if it was only slow"
            yield self._lose(host, why, todo)

    def _lose(self, host: Host, why: str, todo: deque[Call]) -> tuple[Call, Lost]:
        """The call that the host was at is lost with it; one that waited behind has had no part in it."""
        first, *waiting = self._flights_of(host)
        self._flights = {ref: f for ref, f in self._flights.items() if f.host is not host}
        todo.extendleft(f.call for f in waiting)
        self.num_lost += 1
        host.num_losses += 1
        # Ray starts a dead process anew for ever; one that dies on every call is given up.
        host.gone = host.num_losses >= MAX_LOSSES
        self._suspect(host, why)
        return first.call, Lost(why=f"{host.name}: {why}")

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
