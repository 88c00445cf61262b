"""The driver's side of a separate coordinator: starts it, follows it, restarts its run where the process died."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import ray
from ray.exceptions import RayError, RayTaskError

from actors.runtime.coordinator import Coordinator, Progress, RunRequest
from actors.runtime.errors import CoordinatorLost, count_kills, describe_death, raised_there, reason
from actors.runtime.placement import start_named, stay_here
from actors.runtime.session import process_options
from actors.runtime.worker import Handle
from relief_ray.experiment.experiment import OnRound
from relief_ray.records.run_folder import RunFolder, read_run
from relief_ray.records.schema import RunRecord
from relief_ray.support.errors import UserError
from relief_ray.support.text import typed

# Where a process dies while Ray starts it, Ray notices after a minute, and others may wait for its place until then.
_MAX_DEATHS, _START_S, _POLL_S = 3, 180.0, 0.25
# A coordinator answers within milliseconds, also in mid-round; one that is silent for so long is frozen. After a stop
# was requested nobody waits that long.
_SILENT_S, _SILENT_AFTER_STOP_S = 30.0, 4.0
_LOCK_S = 4.0


@dataclass(kw_only=True)
class ProgressRelay:
    """Passes every round and every repair of a run on to callbacks, once each."""

    path: Path
    on_round: OnRound
    on_note: Callable[[str], None]
    seen: int = -1
    noted: set[str] = field(default_factory=set)
    num_notes: int = 0

    def pass_on(self, progress: Progress) -> None:
        """Pass on what is new; the coordinator may still speak of the run before this one."""
        if progress.path != self.path:
            return
        for repair in progress.repairs:
            if repair not in self.noted:
                self.noted.add(repair)
                self.on_note(f"repaired: {repair}")
        for note in progress.notes:
            self.on_note(note)
        self.num_notes += len(progress.notes)
        for record in progress.records:
            self.on_round(record)
            self.seen = record.round


@dataclass(kw_only=True)
class Pulse:
    """Asks a coordinator how far it is, without waiting for the answer."""

    coordinator: Handle
    question: ray.ObjectRef[Progress] | None = None
    """The one that is not answered yet."""
    silent_s: float = 0.0
    """Seconds since the last answer in which this process ran: a suspended driver hears nobody."""
    place: tuple[int, str] | None = None
    """Process id and node of its last answer; None before the first."""
    _last_s: float = field(default_factory=time.monotonic)
    _is_over: bool = False

    def listen(self, relay: ProgressRelay, is_over: bool) -> Progress | None:
        """The answer to a question, if it has come; once the run ``is_over``, to one that was asked after that."""
        if self.question is None or (is_over and not self._is_over):
            self.question = self.coordinator.progress.remote(relay.seen, relay.num_notes, relay.path)
        self._is_over = is_over
        answered, _ = ray.wait([self.question], timeout=_POLL_S)
        now_s = time.monotonic()
        self.silent_s += min(now_s - self._last_s, 4 * _POLL_S)
        self._last_s = now_s
        if not answered:
            return None
        self.question, self.silent_s = None, 0.0
        progress = cast(Progress, ray.get(answered[0]))
        self.place = progress.place
        return progress

    def is_frozen(self, stopping: bool) -> bool:
        """Whether a coordinator that has answered before is silent for too long."""
        return self.place is not None and self.silent_s > (_SILENT_AFTER_STOP_S if stopping else _SILENT_S)


class _Frozen(Exception):
    """The coordinator's process does not answer any more."""


@dataclass(kw_only=True)
class Deaths:
    """Deaths of a coordinator since a round was last heard of."""

    path: Path
    """The run's folder."""
    number: int = 0
    """How many; one that froze was ended."""
    seen: int = -1
    """The last round that was heard of when it last died."""
    kills_before: int | None = field(default_factory=count_kills)
    """``count_kills`` when the run began."""

    def add(self, seen: int, error: RayError | _Frozen) -> None:
        """Count a death after round ``seen``.

        Raises:
            CoordinatorLost: it was the third without another round.
        """
        self.number, self.seen = (self.number if seen == self.seen else 0) + 1, seen
        if self.number == _MAX_DEATHS:
            raise self.lost(
                describe_death(
                    self.path,
                    f"{type(error).__name__}: {error}",
                    self.kills_before,
                    died=f"died or froze {self.number} times without finishing another round",
                    fewer="use fewer hosts (runtime.num_hosts)",
                )
            )

    def lost(self, why: str) -> CoordinatorLost:
        """The error that ends the run, with the line that resumes it."""
        after = "before the first round" if self.seen < 0 else f"after round {self.seen}"
        return CoordinatorLost(
            f"the coordinator, which runs the rounds and saves them, is given up {after}: {why}\n"
            f"what is recorded is intact; once the cause is mended, go on with\n  relief-ray resume {typed(self.path)}"
        )


def start_coordinator(run: str = "run") -> Handle:
    """The coordinator's actor, ``RUN/coordinator``, on the driver's node: it writes the records into a folder there."""
    # Ray's typing does not know this option of actors.
    remote = cast(Any, ray.remote)
    options = {
        "scheduling_strategy": stay_here(),
        "max_restarts": -1,
        "max_task_retries": 0,
        **process_options(1, hide_gpus=False),
    }
    actor = remote(num_cpus=0, concurrency_groups={"control": 2})(Coordinator)
    return start_named(actor, f"{run}/coordinator", options)


def follow(
    coordinator: Handle,
    request: RunRequest,
    on_round: OnRound,
    on_note: Callable[[str], None],
    should_stop: Callable[[], bool],
) -> RunRecord:
    """Wait for a coordinator's run and pass its rounds on.

    Where its process dies or freezes, the run goes on from its checkpoint in a new one.

    Raises:
        UserError, RoundVoid, ClientFailed: as the run raised them.
        CoordinatorLost: the coordinator did not start in time, or died or froze again and again.
    """
    relay, deaths = ProgressRelay(path=request.path, on_round=on_round, on_note=on_note), Deaths(path=request.path)
    run, pulse = coordinator.run.remote(request), Pulse(coordinator=coordinator)
    while True:
        try:
            if should_stop():
                coordinator.stop.remote()
            done = bool(ray.wait([run], timeout=_POLL_S)[0])
            if _has_heard(pulse, relay, deaths, done, should_stop) and done:
                return cast(RunRecord, ray.get(run))
        except RayTaskError as error:
            raise raised_there(error)  # noqa: B904 - it has its cause
        except (RayError, _Frozen) as error:
            if should_stop() and isinstance(error, _Frozen):
                return _interrupted(pulse, relay.path)
            how = _end(pulse, error)
            deaths.add(relay.seen, error)
            on_note(f"{how}; it goes on from the last checkpoint")
            _await(coordinator, deaths)
            relay.num_notes, pulse = 0, Pulse(coordinator=coordinator)
            run = coordinator.run.remote(replace(request, reported=relay.seen if relay.seen >= 0 else None))


def _has_heard(pulse: Pulse, relay: ProgressRelay, deaths: Deaths, done: bool, should_stop: Callable[[], bool]) -> bool:
    """Pass on what the coordinator answers, if it does; otherwise check that it may still be at work.

    Raises:
        CoordinatorLost: it has not answered since it was started.
        _Frozen: it has answered before.
    """
    progress = pulse.listen(relay, done)
    if progress is not None:
        relay.pass_on(progress)
        return True
    if pulse.is_frozen(should_stop()):
        raise _Frozen(f"the coordinator has not answered for {pulse.silent_s:.0f} s")
    if pulse.place is None and pulse.silent_s > _START_S:
        raise deaths.lost(f"it did not answer for {_START_S:g} s; `ray status` shows what it waits for")
    return False


def _end(pulse: Pulse, error: RayError | _Frozen) -> str:
    """End a frozen process, which Ray starts anew; say what happened."""
    if isinstance(error, RayError):
        return "the coordinator's process died"
    _kill(pulse, no_restart=False)
    return f"{error}: its process was ended"


def _kill(pulse: Pulse, *, no_restart: bool) -> None:
    """End a coordinator's process; on this node at once, elsewhere Ray takes some seconds for a frozen one."""
    ray.kill(pulse.coordinator, no_restart=no_restart)
    if pulse.place is not None and pulse.place[1] == ray.get_runtime_context().get_node_id():
        with suppress(OSError):
            os.kill(pulse.place[0], signal.SIGKILL)


def _interrupted(pulse: Pulse, path: Path) -> RunRecord:
    """End a frozen coordinator for good and say in its place that the run was stopped."""
    _kill(pulse, no_restart=True)
    until_s = time.monotonic() + _LOCK_S
    while True:
        try:
            with RunFolder.resume(path) as folder:
                return folder.update(status="interrupted")
        except UserError:  # its lock goes with its process
            if time.monotonic() > until_s:
                return read_run(path)
            time.sleep(_POLL_S)


def _await(coordinator: Handle, deaths: Deaths) -> None:
    """Wait until Ray has started the process anew.

    Raises:
        CoordinatorLost: it does not answer in time.
    """
    until_s, why = time.monotonic() + _START_S, "no answer"
    while (left_s := until_s - time.monotonic()) > 0:
        try:
            ray.get(coordinator.progress.remote(0), timeout=left_s)
            return
        except RayError as error:  # it died once more, or the time is over
            why = reason(error)
            time.sleep(_POLL_S)
    raise deaths.lost(f"it was not started anew within {_START_S:g} s ({why}); `ray status` shows what it waits for")
