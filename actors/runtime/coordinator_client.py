"""The driver's side of a separate coordinator: starts it, follows it, restarts its run where the process died."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import ray
from ray.exceptions import RayError, RayTaskError

from actors.runtime.coordinator import Coordinator, Progress, RunRequest
from actors.runtime.errors import count_kills, describe_death, raised_there, reason
from actors.runtime.placement import driver_node, start_named, stay_here
from actors.runtime.session import process_options
from actors.runtime.worker import Handle
from relief_ray.records.run_folder import RunFolder, read_rounds, read_run
from relief_ray.records.schema import RunRecord
from relief_ray.support.errors import CoordinatorLost, UserError
from relief_ray.support.text import typed

# Where a process dies while Ray starts it, Ray notices after a minute, and others may wait for its place until then.
_MAX_DEATHS, _START_S, _POLL_S = 3, 180.0, 0.25
# A coordinator answers within milliseconds, also in mid-round; one that is silent for so long is frozen. After a stop
# was requested nobody waits that long.
_SILENT_S, _SILENT_AFTER_STOP_S = 30.0, 4.0
_LOCK_S = 4.0


@dataclass(kw_only=True)
class Pulse:
    """Asks a coordinator how a run goes on, without waiting for the answer, and passes each of its notes on once."""

    coordinator: Handle
    path: Path
    """The run's folder."""
    on_note: Callable[[str], None]
    silent_s: float = 0.0
    """Seconds since the last answer in which this process ran: a suspended driver hears nobody."""
    place: tuple[int, str] | None = None
    """Process id and node of its last answer; None before the first."""
    _question: ray.ObjectRef[Progress] | None = None
    _num_notes: int = 0
    _last_s: float = field(default_factory=time.monotonic)
    _is_over: bool = False

    def listen(self, is_over: bool) -> bool:
        """Whether an answer has come; once the run ``is_over``, to a question that was asked after that."""
        if self._question is None or (is_over and not self._is_over):
            self._question = self.coordinator.progress.remote(self._num_notes)
        self._is_over = is_over
        answered, _ = ray.wait([self._question], timeout=_POLL_S)
        now_s = time.monotonic()
        self.silent_s += min(now_s - self._last_s, 4 * _POLL_S)
        self._last_s = now_s
        if not answered:
            return False
        self._question, self.silent_s = None, 0.0
        progress = cast(Progress, ray.get(answered[0]))
        self.place = progress.place
        if progress.path == self.path:  # it may still speak of the run before this one
            self._num_notes += len(progress.notes)
            for note in progress.notes:
                self.on_note(note)
        return True


class _Frozen(Exception):
    """The coordinator's process does not answer any more."""


@dataclass(kw_only=True)
class Deaths:
    """Deaths of a coordinator since its run last got farther."""

    path: Path
    """The run's folder."""
    number: int = 0
    """How many; one that froze was ended."""
    last: int = 0
    """The last round that was committed when it died, in any of its lives."""
    kills_before: int | None = field(default_factory=count_kills)
    """``count_kills`` when the run began."""

    def add(self, last: int, error: RayError | _Frozen) -> None:
        """Count a death after round ``last``.

        Raises:
            CoordinatorLost: it was the third without another round.
        """
        self.number = (0 if last > self.last else self.number) + 1
        self.last = max(last, self.last)
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
        after = "before the first round" if self.last < 1 else f"after round {self.last}"
        return CoordinatorLost(
            f"the coordinator, which runs the rounds and saves them, is given up {after}: {why}\n"
            f"what is recorded is intact; once the cause is mended, go on with\n  relief-ray resume {typed(self.path)}"
        )


def start_coordinator(run: str) -> Handle:
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
    coordinator: Handle, request: RunRequest, on_note: Callable[[str], None], should_stop: Callable[[], bool]
) -> RunRecord:
    """Wait for a coordinator's run; who wants to hear of its rounds reads its ledger, which grows on this node.

    Where its process dies or freezes, the run goes on from its checkpoint in a new one.

    Raises:
        UserError, RoundVoid, ClientFailed: as the run raised them.
        CoordinatorLost: the coordinator did not start in time, or died or froze again and again.
    """
    deaths = Deaths(path=request.path)
    while True:
        pulse = Pulse(coordinator=coordinator, path=request.path, on_note=on_note)
        try:
            return _follow(coordinator.run.remote(request), pulse, deaths, should_stop)
        except RayTaskError as error:
            raise raised_there(error)  # noqa: B904 - it has its cause
        except (RayError, _Frozen) as error:
            if should_stop() and isinstance(error, _Frozen):
                return _interrupted(pulse)
            how = _end(pulse, error)
            deaths.add(_last_round(request.path), error)
            on_note(f"{how}; it goes on from the last checkpoint")
            _await(coordinator, deaths)


def _follow(run: ray.ObjectRef[RunRecord], pulse: Pulse, deaths: Deaths, should_stop: Callable[[], bool]) -> RunRecord:
    """Wait for a run in one process.

    Raises:
        CoordinatorLost: the process has not answered since it was started.
        _Frozen: it has answered before, and does not any more.
        RayError: it died, or the run raised an error.
    """
    while True:
        if stopping := should_stop():
            pulse.coordinator.stop.remote()
        is_over = bool(ray.wait([run], timeout=_POLL_S)[0])
        if pulse.listen(is_over):
            if is_over:
                return ray.get(run)
        elif pulse.place is not None:
            if pulse.silent_s > (_SILENT_AFTER_STOP_S if stopping else _SILENT_S):
                raise _Frozen(f"the coordinator has not answered for {pulse.silent_s:.0f} s")
        elif pulse.silent_s > _START_S:
            raise deaths.lost(f"it did not answer for {_START_S:g} s; `ray status` shows what it waits for")


def _last_round(path: Path) -> int:
    """The last round in the ledger; 0 without one, or where it is damaged: the next process will say so."""
    with suppress(UserError):
        return max(read_rounds(path).numbers, default=0)
    return 0


def _end(pulse: Pulse, error: RayError | _Frozen) -> str:
    """End a frozen process, which Ray starts anew; say what happened."""
    if isinstance(error, RayError):
        return "the coordinator's process died"
    _kill(pulse, no_restart=False)
    return f"{error}: its process was ended"


def _kill(pulse: Pulse, *, no_restart: bool) -> None:
    """End a coordinator's process; on this node at once, elsewhere Ray takes some seconds for a frozen one."""
    ray.kill(pulse.coordinator, no_restart=no_restart)
    if pulse.place is not None and pulse.place[1] == driver_node():
        with suppress(OSError):
            os.kill(pulse.place[0], signal.SIGKILL)


def _interrupted(pulse: Pulse) -> RunRecord:
    """End a frozen coordinator for good and say in its place that the run was stopped."""
    _kill(pulse, no_restart=True)
    until_s = time.monotonic() + _LOCK_S
    while True:
        try:
            with RunFolder.resume(pulse.path) as folder:
                return folder.update(status="interrupted")
        except UserError:  # its lock goes with its process
            if time.monotonic() > until_s:
                return read_run(pulse.path)
            time.sleep(_POLL_S)


def _await(coordinator: Handle, deaths: Deaths) -> None:
    """Wait until Ray has started the process anew.

    Raises:
        CoordinatorLost: it does not answer in time.
    """
    until_s, why = time.monotonic() + _START_S, "no answer"
    while (left_s := until_s - time.monotonic()) > 0:
        try:
            ray.get(coordinator.progress.remote(), timeout=left_s)
            return
        except RayError as error:  # it died once more, or the time is over
            why = reason(error)
            time.sleep(_POLL_S)
    raise deaths.lost(f"it was not started anew within {_START_S:g} s ({why}); `ray status` shows what it waits for")
