"""A pool of workers: hands out calls, takes answers as they come, survives lost workers.

Ray's own retries stay off (they would train twice); the caller decides what is sent again.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

import ray
from ray.exceptions import ActorDiedError, RayError, RayTaskError

from actors.runtime.errors import Interrupted, hanging_in, raise_cause, reason
from actors.runtime.limits import Deadline, Limits
from actors.runtime.physical import AnswerBox
from actors.runtime.worker import Answer, Handle, Identity, TrainAnswer, check, identify
from relief_ray.core.messages import Assignment, ClientId
from relief_ray.experiment.experiment import ignore
from relief_ray.support.errors import Cause, LeftOut, UserError

# Workers as the driver sees them, the calls that lie with them, and how a call ends.

Piece = tuple[int, tuple[Assignment, ...]]

# A lost worker that was waited for already gets this long to answer the question whether it is back.
_GLANCE_S = 0.5

# Pause before a lost worker is asked again: twice as long after each question in vain, up to the second one.
PROBE_S, _LONGEST_PAUSE_S = 0.2, 5.0

# Ray starts a dead process anew for ever; one that dies so many times without finishing a call is given up.
_MAX_DEATHS = 5


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Call:
    """Call of a worker's method, equal to itself alone: the arrays of two are never compared."""

    method: str
    args: tuple[object, ...]
    clients: tuple[ClientId, ...]
    """Clients that it concerns."""
    limits: Limits | None = None
    """They say how long a worker may take for it; None: as long as it likes."""
    deadline: Deadline | None = None
    """When it is over, wherever it is by then; None: never."""
    pieces: tuple[Piece, ...] = ()
    """Parts of its answer, consecutive clients of one block each."""
    worker: int | None = None
    """Index of the only worker that may take it; None: any."""
    node: str = ""
    """Ray's id of the node whose workers take it first; others do where they have nothing else. Empty: no such node."""
    attempt: int = 0
    """0 for the first."""
    work: float = 0.0
    """Amount of work in any unit, for comparison."""
    nbytes: int = 0
    """Bytes that its client fetches, model and request."""

    @property
    def limit_s(self) -> float:
        """Seconds that a worker may take for it, as far as is known now."""
        return inf if self.limits is None else self.limits.call_s(len(self.clients))

    @property
    def until_s(self) -> float:
        """Monotonic clock at which it is over, as far as is known now."""
        return inf if self.deadline is None else self.deadline.at_s


@dataclass(slots=True)
class Flight:
    """A call that was sent."""

    call: Call
    ref: ray.ObjectRef[Answer]
    """Its answer, or the content of the box that came as its answer."""
    since_s: float
    """When the worker could begin with it, as far as the driver knows."""
    ready_s: float | None = None
    """When the driver heard that the boxed answer is ready; None before that, and without a box."""


@dataclass(slots=True)
class RemoteWorker:
    """A worker as the driver sees it; it works on the first of its ``flights``."""

    index: int
    name: str
    """Ray's name of it."""
    handle: Handle
    """Its actor handle."""
    identity: Identity
    """The code that it runs."""
    flights: deque[Flight] = field(default_factory=deque)
    """Calls that were sent and not answered."""
    work_s: float | None = None
    """Seconds per unit of work in its last answer; None before the first."""
    probe: ray.ObjectRef[Identity] | None = None
    """Pending question whether it is back."""
    probe_at_s: float = 0.0
    """Monotonic clock at which it was asked, or from which on it is."""
    pause_s: float = PROBE_S
    """Seconds until it is asked again where the question fails."""
    probe_failed: bool = False
    """The question failed in this round."""
    trouble: str = ""
    """Reason why it was lost; empty where it is well."""
    cause: Cause = "lost"
    """Kind of that reason."""
    waited_s: float = 0.0
    """Seconds that it was waited for since it was lost."""
    passed_over: bool = False
    """A round has gone on, or ended, without it since it was lost."""
    is_reported: bool = False
    """The user heard of the loss."""
    num_deaths: int = 0
    """Deaths of its process since its last answer; silence, its node's included, is none."""
    gone: bool = False
    """Given up for good."""

    @property
    def loss(self) -> LeftOut:
        """Why a call of a worker in trouble brought nothing, with the worker's name."""
        return LeftOut(why=f"{self.name}: {self.trouble}", cause=self.cause)

    @property
    def usable(self) -> bool:
        """True where a call may be sent."""
        return not self.trouble and not self.gone

    def serves(self, call: Call, is_near: bool) -> bool:
        """True where it may take the call: one of its node, or one for any worker that has nothing to do."""
        return self.usable and (call.node in ("", self.identity.node) if is_near else not self.flights)

    def is_absent(self, now_s: float) -> bool:
        """True where a lost worker was asked whether it is back, in this round or a while ago, and did not say so."""
        if self.probe is None:
            return self.probe_failed or now_s < self.probe_at_s
        return self.probe_failed or now_s > self.probe_at_s + _GLANCE_S

    def left_s(self, now_s: float) -> float:
        """Expected seconds until its pending calls are finished; infinite before its first answer."""
        if not self.flights:
            return 0.0
        if self.work_s is None:
            return inf
        first, *behind = (self.work_s * flight.call.work for flight in self.flights)
        return max(0.0, first - (now_s - self.flights[0].since_s)) + sum(behind)

    def send(self, call: Call) -> None:
        """Send a call; Ray runs a worker's calls in the order in which they were sent."""
        ref: ray.ObjectRef[Answer] = getattr(self.handle, call.method).remote(*call.args)
        self.flights.append(Flight(call=call, ref=ref, since_s=time.monotonic()))

    def land(self) -> Flight:
        """Remove the first flight, which is over; the worker works on the next one from now on."""
        done = self.flights.popleft()
        if self.flights:
            self.flights[0].since_s = time.monotonic()
        return done

    def suspect(self, why: str, cause: Cause = "lost") -> list[Call]:
        """Note that the worker was lost; return the calls that it had not begun."""
        self.trouble, self.cause, self.waited_s, self.passed_over = why, cause, 0.0, False
        self.probe, self.probe_at_s, self.pause_s = None, 0.0, PROBE_S
        behind = [flight.call for flight in self.flights]
        self.flights.clear()
        return behind

    def put_off(self) -> None:
        """Note that it was asked in vain whether it is back, and when to ask again."""
        self.probe_failed, self.probe_at_s = True, time.monotonic() + self.pause_s
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


def await_workers(handles: Sequence[Handle], names: Sequence[str], within_s: float) -> list[RemoteWorker]:
    """Wait until every worker has reported its identity.

    Raises:
        UserError: a worker did not start in time, could not start, or runs other code.
    """
    refs = [handle.hello.remote() for handle in handles]
    ready, late = ray.wait(refs, num_returns=len(refs), timeout=within_s)
    if late:
        missing = [name for name, ref in zip(names, refs, strict=True) if ref in set(late)]
        raise UserError(
            f"{len(ready)} of {len(refs)} hosts started within {within_s:g} s; missing: {', '.join(missing[:8])}; "
            "use fewer hosts (runtime.num_hosts) or look at the cluster with `ray status`"
        )
    mine, workers = identify(), []
    for i, (name, handle, ref) in enumerate(zip(names, handles, refs, strict=True)):
        try:
            identity: Identity = ray.get(ref)
        except RayError as error:
            raise UserError(
                f"{name} could not start: {reason(error)}; is the same relief-ray installed on its node?"
            ) from error
        check(mine, identity)
        workers.append(RemoteWorker(index=i, name=name, handle=handle, identity=identity))
    return workers


# Calls that lie with a worker: the one it works on and the next, so that it never waits for the driver.
DEPTH = 2

_POLL_S, _FETCH_S = 0.25, 60.0


@dataclass(kw_only=True)
class WorkerPool:
    """Workers with their pending calls."""

    workers: list[RemoteWorker]
    """All of them, lost ones included."""
    per_node: dict[str, int]
    """By node, how many of its workers may work at the same time."""
    should_stop: Callable[[], bool]
    """Polled; True interrupts."""
    lost_wait_s: float = 60.0
    """Seconds that calls wait for a lost worker, once per loss."""
    moved_bytes: int = 0
    """Bytes that travelled so far."""
    num_lost: int = 0
    """Calls that were lost so far."""
    busy_s: float = 0.0
    """Seconds that workers spent in training so far, all together."""
    peak_mib: float = 0.0
    """The most memory (MiB) that one of them held."""
    boxed: bool = False
    """Whether answers to training wait on their workers, in boxes, until they are fetched (a physical run)."""
    took_s: float = 0.0
    """Seconds of the answer that came last, from when its worker could begin."""
    up_s: float | None = None
    """Seconds from when it was ready until it was here; None where it came by itself."""
    on_note: Callable[[str], None] = ignore
    """Called with a sentence for the user where a worker is lost or is back."""

    @property
    def num_places(self) -> int:
        """Number of calls that can run at the same time."""
        return max(1, min(len(self.workers), sum(self.per_node.values())))

    @property
    def nodes(self) -> set[str]:
        """Ray's ids of the nodes that the workers are on."""
        return {worker.identity.node for worker in self.workers}

    def run(self, todo: deque[Call]) -> Iterator[tuple[Call, Answer | LeftOut]]:
        """Yield every call of ``todo`` with its outcome as it arrives; the caller may add calls meanwhile.

        Raises:
            UserError, ClientFailed: code of a worker raised, or the worker runs other code.
            Interrupted: the user asked to stop.
        """
        before_s = time.monotonic()
        for worker in self.workers:
            worker.probe_failed = False
        try:
            while todo or any(worker.flights for worker in self.workers):
                if self.should_stop():
                    raise Interrupted
                self._send(todo)
                self._probe()
                yield from self._receive(todo)
                yield from self._overdue(todo)
                now_s = time.monotonic()
                yield from self._hopeless(todo, now_s - before_s)
                before_s = now_s
        finally:
            # Where the caller gives up, workers finish the calls that lie with them, then answer the probe: Ray
            # cancels no call that has reached an actor, begun or not. Answers are dropped with their references.
            for worker in self.workers:
                if worker.flights:
                    worker.suspect("its last call was given up")

    def _send(self, todo: deque[Call]) -> None:
        """Send what has a place: every call on its node first, then what is left to workers that have nothing to do."""
        for is_near in (True, False) if any(call.node for call in todo) else (True,):
            kept: list[Call] = []
            # A look at every call after each answer would take seconds of a round with a thousand clients.
            while todo and any(worker.usable and len(worker.flights) < DEPTH for worker in self.workers):
                call = todo.popleft()
                worker = self._worker_for(call, is_near)
                if worker is None:
                    kept.append(call)
                else:
                    worker.send(call)
            todo.extendleft(reversed(kept))

    def _worker_for(self, call: Call, is_near: bool) -> RemoteWorker | None:
        """The worker that is expected to be free first, or None where the call has to wait."""
        working = Counter(worker.identity.node for worker in self.workers if worker.flights)

        def has_place(worker: RemoteWorker) -> bool:
            node = worker.identity.node
            return bool(worker.flights) or working[node] < self.per_node.get(node, 1)

        now_s = time.monotonic()
        if now_s > call.until_s:  # its worker would be ended before it could answer
            return None
        first = min(
            (worker for worker in self._candidates(call) if worker.serves(call, is_near) and has_place(worker)),
            key=lambda worker: (worker.left_s(now_s), len(worker.flights)),
            default=None,
        )
        if first is None or not first.flights:
            return first
        # Not heard of yet, or full: the call waits for the next free worker. What was lost before is sent there alone:
        # a call's answer dies with its process if the next one kills that at once, and neither is known to blame.
        is_open = len(first.flights) < DEPTH and first.left_s(now_s) < inf
        is_suspect = call.attempt > 0 or any(f.call.attempt > 0 for f in first.flights)
        return first if is_open and not is_suspect else None

    def _hopeless(self, todo: deque[Call], elapsed_s: float) -> Iterator[tuple[Call, LeftOut]]:
        """Yield calls whose time is over, and calls whose workers are gone or were waited for long enough.

        ``elapsed_s``: seconds since the last look.
        """
        now_s = time.monotonic()
        candidates = ((call, self._candidates(call)) for call in todo)
        stuck = [(call, workers) for call, workers in candidates if not any(worker.usable for worker in workers)]
        for worker in {worker.index: worker for _, workers in stuck for worker in workers}.values():
            worker.waited_s += elapsed_s
        for call, workers in stuck:
            if all(
                worker.gone or ((worker.passed_over or worker.waited_s > self.lost_wait_s) and worker.is_absent(now_s))
                for worker in workers
            ):
                todo.remove(call)
                yield call, workers[0].loss
        for call in [c for c in todo if now_s > c.until_s]:
            todo.remove(call)
            lost = next((worker for worker in self._candidates(call) if worker.trouble), None)
            no_turn = LeftOut(why="its turn did not come before the round's time was over", cause="timeout")
            yield call, no_turn if lost is None else lost.loss

    def _candidates(self, call: Call) -> list[RemoteWorker]:
        return self.workers if call.worker is None else [self.workers[call.worker]]

    def pass_over(self, worker: int) -> None:
        """Note that a round's time was over before this worker was back: later ones do not wait for it.

        Nor for others of its node that are lost.
        For workers with clients of their own. Where any may take a call, a round without workers would use nobody.
        """
        node = self.workers[worker].identity.node
        for each in (each for each in self.workers if each.identity.node == node):
            each.passed_over |= bool(each.trouble)

    def is_doubtful(self, nodes: Collection[str]) -> bool:
        """Whether a worker of one of these nodes is in trouble, so that the whole node may be."""
        return any(each.trouble and not each.gone and each.identity.node in nodes for each in self.workers)

    def doubt(self, nodes: Collection[str], is_over: bool) -> None:
        """Ask idle workers of nodes that gave out no sums whether they are there; a call to each would cost a limit.

        Where the round's time is over, the next one does not wait for them, if it has others.
        """
        is_over &= any(worker.usable and worker.identity.node not in nodes for worker in self.workers)
        for worker in (worker for worker in self.workers if worker.identity.node in nodes):
            if worker.usable and not worker.flights:
                worker.suspect("its node did not give out the sums that it held")
                worker.is_reported = True
                self.on_note(worker.loss.why)
            worker.passed_over |= is_over and bool(worker.trouble)

    def recover(self) -> None:
        """Wait until all lost workers answer again, for each once per loss and ``lost_wait_s`` at most.

        Raises:
            Interrupted: the user asked to stop.
        """
        while awaited := [
            worker
            for worker in self.workers
            if worker.trouble and not worker.gone and worker.waited_s <= self.lost_wait_s
        ]:
            if self.should_stop():
                raise Interrupted
            before_s = time.monotonic()
            self._probe()
            time.sleep(PROBE_S)
            for worker in awaited:
                worker.waited_s += time.monotonic() - before_s

    def _receive(self, todo: deque[Call]) -> Iterator[tuple[Call, Answer | LeftOut]]:
        """Yield answers as they arrive; send a worker its next call before its answer is processed."""
        awaited = {worker.flights[0].ref: worker for worker in self.workers if worker.flights}
        if not awaited:
            time.sleep(PROBE_S if any(worker.trouble for worker in self.workers) else 0.0)
            return
        ready, _ = ray.wait(list(awaited), num_returns=1, timeout=_POLL_S)
        for ref in ready:
            worker = awaited[ref]
            if self.boxed and self._opens(worker.flights[0]):
                continue
            flight = worker.land()
            now_s = time.monotonic()
            self.took_s = now_s - flight.since_s
            self.up_s = None if flight.ready_s is None else now_s - flight.ready_s
            self._send(todo)
            yield self._take(worker, flight, todo)

    def _opens(self, flight: Flight) -> bool:
        """Begin to fetch an answer whose box has come; the next look at all flights goes on with it."""
        if flight.ready_s is not None:
            return False
        try:
            box: object = ray.get(flight.ref, timeout=_FETCH_S)
        except RayError:
            return False  # `_take` meets it again
        if not isinstance(box, AnswerBox):
            return False
        flight.ref, flight.ready_s = box.ref, time.monotonic()
        return True

    def _take(self, worker: RemoteWorker, flight: Flight, todo: deque[Call]) -> tuple[Call, Answer | LeftOut]:
        try:
            answer = ray.get(flight.ref, timeout=_FETCH_S)
        except RayTaskError as error:
            raise_cause(error, f"{worker.name}, {flight.call.method} of clients {list(flight.call.clients)}")
        except RayError as error:
            return flight.call, self._lose(worker, reason(error), todo)
        check(identify(), answer.identity)
        worker.identity, worker.num_deaths = answer.identity, 0
        self.moved_bytes += answer.nbytes
        if isinstance(answer, TrainAnswer):
            self.busy_s += answer.busy_s
            self.peak_mib = max(self.peak_mib, answer.peak_mib)
            if flight.call.work:
                worker.work_s = answer.busy_s / flight.call.work
        return flight.call, answer

    def _overdue(self, todo: deque[Call]) -> Iterator[tuple[Call, LeftOut]]:
        """Yield calls that a worker has not answered in time; its process is ended."""
        now_s = time.monotonic()
        for worker in (worker for worker in self.workers if worker.flights):
            call, took_s = worker.flights[0].call, now_s - worker.flights[0].since_s
            is_late = took_s > call.limit_s
            # An answer may have come while the driver was busy.
            if (is_late or now_s > call.until_s) and not ray.wait([worker.flights[0].ref], timeout=0)[0]:
                worker.land()
                place = hanging_in(worker.handle._actor_id.hex())
                # A hung process answers nothing, not even a polite end; Ray starts it anew.
                ray.kill(worker.handle, no_restart=False)
                after = "" if is_late else ", when the round's time was over"
                why = (
                    f"no answer within {took_s:.3g} s{after}{place}; raise runtime.client_timeout_s if it was only slow"
                )
                yield call, self._lose(worker, why, todo, "timeout")

    def _lose(self, worker: RemoteWorker, why: str, todo: deque[Call], cause: Cause = "lost") -> LeftOut:
        """The worker is in trouble; calls that it had not begun go to another one, as if they had never been sent."""
        self.num_lost += 1
        todo.extendleft(reversed(worker.suspect(why, cause)))
        worker.is_reported = True
        self.on_note(f"{worker.name}: {why}")
        return worker.loss

    def _probe(self) -> None:
        """Ask lost workers whether they are back, and use those that answer."""
        now = time.monotonic()
        for worker in self.workers:
            if worker.trouble and not worker.gone and worker.probe is None and now >= worker.probe_at_s:
                worker.probe, worker.probe_at_s = worker.handle.hello.remote(), now
        probed = {worker.probe: worker for worker in self.workers if worker.probe is not None}
        if probed:
            for ref in ray.wait(list(probed), num_returns=len(probed), timeout=0)[0]:
                self._take_probe(probed[ref])

    def _take_probe(self, worker: RemoteWorker) -> None:
        assert worker.probe is not None
        ref, worker.probe = worker.probe, None
        try:
            identity: Identity = ray.get(ref, timeout=_FETCH_S)
        except ActorDiedError:
            worker.gone = True  # Ray starts it no more
        except RayError:
            worker.put_off()
        else:
            check(identify(), identity)
            worker.welcome(identity)
            if worker.gone or worker.is_reported or worker.waited_s:
                self.on_note(f"{worker.name}: {worker.trouble or 'answers again'}")
            worker.is_reported = False
