"""Hosts (worker processes) as the driver sees them, the calls that lie with them, and how a call ends."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

import ray
from ray.exceptions import RayError

from actors.runtime.errors import reason
from actors.runtime.limits import Deadline, Limits
from actors.runtime.worker import EvalAnswer, Handle, Identity, NeedsRows, TrainAnswer, check, identify
from relief_ray.core.messages import Assignment, ClientId
from relief_ray.support.errors import Cause, UserError

Piece = tuple[int, tuple[Assignment, ...]]

Answer = TrainAnswer | EvalAnswer | NeedsRows

# A lost host that was waited for already gets this long to answer the question whether it is back.
_GLANCE_S = 0.5

# Pause before a lost host is asked again: twice as long after each question in vain, up to the second one.
PROBE_S, _LONGEST_PAUSE_S = 0.2, 5.0

# Ray starts a dead process anew for ever; one that dies so many times without finishing a call is given up.
_MAX_DEATHS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Lost:
    """Outcome of a call that brought nothing.

    Attributes:
        why: the reason, with the host's name.
        cause: whether its time was over, or its host was lost.
    """

    why: str
    cause: Cause = "lost"


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """Call of a host's method.

    Attributes:
        method: its name.
        args: its arguments.
        clients: clients that it concerns.
        limits: they say how long a host may take for it; None: as long as it likes.
        deadline: when it is over, wherever it is by then; None: never.
        pieces: parts of its answer, consecutive clients of one block each.
        host: index of the only host that may take it; None: any.
        attempt: 0 for the first.
        work: amount of work in any unit, for comparison.
        nbytes: bytes that its client fetches, model and request.
    """

    method: str
    args: tuple[object, ...]
    clients: tuple[ClientId, ...]
    limits: Limits | None = None
    deadline: Deadline | None = None
    pieces: tuple[Piece, ...] = ()
    host: int | None = None
    attempt: int = 0
    work: float = 0.0
    nbytes: int = 0

    @property
    def limit_s(self) -> float:
        """Seconds that a host may take for it, as far as is known now."""
        return inf if self.limits is None else self.limits.call_s(len(self.clients))

    @property
    def until_s(self) -> float:
        """Monotonic clock at which it is over, as far as is known now."""
        return inf if self.deadline is None else self.deadline.at_s


@dataclass(slots=True)
class Flight:
    """A call that was sent.

    Attributes:
        call: the call.
        ref: its answer, or the content of the box that came as its answer.
        since_s: when the host could begin with it, as far as the driver knows.
        ready_s: when the driver heard that the boxed answer is ready; None before that, and without a box.
    """

    call: Call
    ref: ray.ObjectRef[Answer]
    since_s: float
    ready_s: float | None = None


@dataclass(slots=True)
class Host:
    """A host as the driver sees it; it works on the first of its ``flights``.

    Attributes:
        index: its number.
        name: Ray's name of it.
        handle: its actor handle.
        identity: the code that it runs.
        flights: calls that were sent and not answered.
        work_s: seconds per unit of work in its last answer; None before the first.
        probe: pending question whether it is back.
        probe_at_s: monotonic clock at which it was asked, or from which on it is.
        pause_s: seconds until it is asked again where the question fails.
        asked_in_vain: the question failed in this round.
        trouble: reason why it was lost; empty where it is well.
        cause: kind of that reason.
        waited_s: seconds that it was waited for since it was lost.
        passed_over: a round has gone on, or ended, without it since it was lost.
        is_told: the user was told of the loss.
        num_deaths: deaths of its process since its last answer; silence, its node's included, is none.
        gone: given up for good.
    """

    index: int
    name: str
    handle: Handle
    identity: Identity
    flights: deque[Flight] = field(default_factory=deque)
    work_s: float | None = None
    probe: ray.ObjectRef[Identity] | None = None
    probe_at_s: float = 0.0
    pause_s: float = PROBE_S
    asked_in_vain: bool = False
    trouble: str = ""
    cause: Cause = "lost"
    waited_s: float = 0.0
    passed_over: bool = False
    is_told: bool = False
    num_deaths: int = 0
    gone: bool = False

    @property
    def usable(self) -> bool:
        """True where a call may be sent."""
        return not self.trouble and not self.gone

    def is_absent(self, now_s: float) -> bool:
        """True where a lost host was asked whether it is back, in this round or a while ago, and did not say so."""
        if self.probe is None:
            return self.asked_in_vain or now_s < self.probe_at_s
        return self.asked_in_vain or now_s > self.probe_at_s + _GLANCE_S

    def left_s(self, now_s: float) -> float:
        """Expected seconds until its pending calls are finished; infinite before its first answer."""
        if not self.flights:
            return 0.0
        if self.work_s is None:
            return inf
        first, *behind = (self.work_s * flight.call.work for flight in self.flights)
        return max(0.0, first - (now_s - self.flights[0].since_s)) + sum(behind)

    def send(self, call: Call) -> None:
        """Send a call; Ray runs a host's calls in the order in which they were sent."""
        ref: ray.ObjectRef[Answer] = getattr(self.handle, call.method).remote(*call.args)
        self.flights.append(Flight(call=call, ref=ref, since_s=time.monotonic()))

    def land(self) -> Flight:
        """Remove the first flight, which is over; the host works on the next one from now on."""
        done = self.flights.popleft()
        if self.flights:
            self.flights[0].since_s = time.monotonic()
        return done

    def suspect(self, why: str, cause: Cause = "lost") -> list[Call]:
        """Note that the host was lost; return the calls that it had not begun."""
        self.trouble, self.cause, self.waited_s, self.passed_over = why, cause, 0.0, False
        self.probe, self.probe_at_s, self.pause_s = None, 0.0, PROBE_S
        behind = [flight.call for flight in self.flights]
        self.flights.clear()
        return behind

    def put_off(self) -> None:
        """Note that it was asked in vain whether it is back, and when to ask again."""
        self.asked_in_vain, self.probe_at_s = True, time.monotonic() + self.pause_s
        self.pause_s = min(2 * self.pause_s, _LONGEST_PAUSE_S)

    def welcome(self, identity: Identity) -> None:
        """Take it back, as it has answered; give it up where its process has died too often.

        It has died where another process answers from the node of the last one. After a timeout it was ended by us.
        """
        is_another = identity.node == self.identity.node and identity.pid != self.identity.pid
        self.num_deaths += is_another and self.cause == "lost"
        self.identity = identity
        if self.num_deaths >= _MAX_DEATHS:
            self.gone = True
            self.trouble += f"; it is given up, since its process died {self.num_deaths} times without an answer"
        else:
            self.trouble = ""


def await_hosts(handles: Sequence[Handle], names: Sequence[str], within_s: float) -> list[Host]:
    """Wait until every host has reported its identity.

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
