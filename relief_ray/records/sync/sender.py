"""Copies of records elsewhere while runs go on: a thread for each target; one that cannot be reached stops no run.

The folders are the truth. A target is asked what it has and is sent what it lacks. A copy that failed rests for a
while, the longer the more often it failed, and keeps no other back; whatever a target lacks at the end, a later command
sends.
"""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from relief_ray.support.errors import UserError
from relief_ray.support.masking import mask_text

_TICK_S, _LONGEST_PAUSE_S, _POLL_S = 1.0, 60.0, 0.2


class Copy(Protocol):
    """The copy of one folder at a target; one thread calls it. All but ``failed`` and ``close`` may raise anything."""

    def connect(self) -> None:
        """Connect to the target and read what it already has; called first, and again after each failure."""

    def send(self) -> bool:
        """Send what the copy lacks; return whether there was anything."""

    def finish(self) -> None:
        """Say how the run has ended; only called where the folder is a run's that has."""

    def failed(self, error: Exception) -> bool:
        """Let go of the target, which raised ``error``; return whether it ends the copying, since no retry heals it."""

    def close(self) -> None:
        """Release what is held; called last."""


class Target(ABC):
    """A place that gets copies of records. A new one is a subclass, its ``Copy``, and a line in ``studies/copies.py``.

    The key of its address belongs in ``records.identity``, so that nothing is sent where only a record says, and beside
    those of the others in ``studies/plan.py``. Its fields are those of a usual one; seconds each.
    """

    name: str
    """What it is and where, without credentials: the beginning of each message."""
    rest: str
    """Where what it lacks at the end is, or what sends it."""
    folder: Path | None = None
    """The folder that is copied as one; None: every run is copied by itself."""
    is_needed = False
    """Whether a command that leaves it behind has failed."""
    interval_s = 1.0
    """From one look at a folder to the next: rounds that end within travel together."""
    delay_s = 0.0
    """From the begin of a run to the first look, unless a round ends earlier."""
    retry_s = 2.0
    """From a failure to the next try; doubled with each further one, up to a minute."""
    patience_s = 30.0
    """How long the end of a command waits for a target that fails."""
    limit_s = math.inf
    """How long it waits for one that is slow."""
    limit_after_stop_s = 10.0
    """How long it waits for either after a stop."""

    @abstractmethod
    def copy_of(self, folder: Path) -> Copy | None:
        """The copy of a run, or of ``self.folder``; nothing is connected yet. None: it gets none."""


@dataclass(kw_only=True)
class _Unit:
    folder: Path
    copy: Copy
    due_s: float = 0.0
    tried_s: float = 0.0
    has_ended: bool = False
    is_connected: bool = False
    num_failures: int = 0
    is_given_up: bool = False

    def hurry(self) -> None:
        """Look at it now, unless it rests after a failure."""
        if not self.num_failures:
            self.due_s = 0.0


class Sender:
    """Sends to one target, from its making to ``wait``."""

    def __init__(self, target: Target, on_note: Callable[[str], None]) -> None:
        """Start; a folder that is copied as one is looked for at the target before that.

        Raises:
            UserError: what the target has there is something else.
        """
        self.target, self._on_note = target, on_note
        self._units: dict[Path, _Unit] = {}
        self._woken, self._is_ending, self._patience_s, self._is_told = threading.Event(), False, math.inf, False
        if target.folder is not None and (copy := target.copy_of(target.folder)) is not None:
            self._connect(_Unit(folder=target.folder, copy=copy))
        self._thread = threading.Thread(target=self._work, name=target.name, daemon=True)
        self._thread.start()

    def _connect(self, unit: _Unit) -> None:
        """Refuse at once what would end the copying of the one folder; any other failure is one of many."""
        self._units[unit.folder] = unit
        try:
            unit.copy.connect()
            unit.is_connected = True
        except Exception as error:  # whatever a store raises
            if unit.copy.failed(error):
                raise
            self._failed(unit, error)

    @property
    def is_behind(self) -> bool:
        """Whether the target lacks something, as far as is known; after the end, whatever was not sent to its end."""
        return any(self._is_ending or unit.num_failures for unit in list(self._units.values()))

    def wake(self, run: Path) -> None:
        """Say that a run has begun, or has a new round."""
        if (unit := self._units.get(self.target.folder or run)) is not None:
            if not unit.is_connected:
                unit.hurry()
        elif (copy := self.target.copy_of(run)) is not None:
            self._units[run] = _Unit(folder=run, copy=copy, due_s=time.monotonic() + self.target.delay_s)
        self._woken.set()

    def end(self, run: Path) -> None:
        """Say that nothing more is written to a run."""
        if (unit := self._units.get(run)) is not None and self.target.folder is None:
            unit.has_ended = True
            unit.hurry()
        self._woken.set()

    def stop(self, is_stopped: bool = False) -> None:
        """Announce the end of all runs; ``is_stopped``: the command was stopped, so that it waits for seconds only."""
        self._patience_s = min(self.target.patience_s, self.target.limit_after_stop_s if is_stopped else math.inf)
        limit_s = self.target.limit_after_stop_s if is_stopped else self.target.limit_s
        self._until_s = time.monotonic() + limit_s
        self._is_ending = True
        self._woken.set()

    def wait(self) -> bool:
        """Wait after ``stop`` until the target has everything, or patience is out; return whether it has."""
        # In short steps, so that a signal is heard.
        while self._thread.is_alive() and time.monotonic() < self._until_s:
            self._thread.join(_POLL_S)
        return not self._thread.is_alive() and not self.is_behind

    def _work(self) -> None:
        while not self._is_ending:
            self._woken.wait(min(_TICK_S, self.target.interval_s))
            self._woken.clear()
            for unit in self._due():
                # Of copies that fail again and again one is tried at a time: the target may be down.
                if self._is_ending or (not self._try(unit) and unit.num_failures > 1):
                    break
        ended_s = time.monotonic()
        while left := [unit for unit in list(self._units.values()) if not unit.is_given_up]:
            for unit in left:
                self._try(unit)
            if time.monotonic() - ended_s > self._patience_s:
                return
            if any(unit.num_failures for unit in left):
                time.sleep(self.target.retry_s)

    def _due(self) -> list[_Unit]:
        """Units to check now: the longest waiting first, failed ones last."""
        now_s = time.monotonic()
        due = [unit for unit in list(self._units.values()) if unit.due_s <= now_s and not unit.is_given_up]
        return sorted(due, key=lambda unit: (unit.num_failures > 0, unit.tried_s))

    def _try(self, unit: _Unit) -> bool:
        """Send what a copy lacks, to its end where nothing more is written; return False where that failed."""
        # Asked before sending: what was written before the end is sent.
        # The ending first: a run's own end is announced before it.
        is_ending, has_ended = self._is_ending, unit.has_ended
        is_last = has_ended or is_ending
        try:
            if not unit.is_connected:
                unit.copy.connect()
                unit.is_connected = True
            while unit.copy.send() and is_last:
                pass
            if has_ended:
                unit.copy.finish()
        except Exception as error:  # whatever a store raises: a copy is no condition of a run
            unit.is_given_up = unit.copy.failed(error)
            self._failed(unit, error)
            return False
        unit.tried_s = time.monotonic()
        unit.due_s = unit.tried_s + self.target.interval_s
        self._worked(unit, is_last)
        return True

    def _worked(self, unit: _Unit, is_last: bool) -> None:
        if is_last:
            unit.copy.close()
            self._units.pop(unit.folder)
        unit.num_failures = 0
        if self._is_told and not any(u.num_failures and not u.is_given_up for u in list(self._units.values())):
            self._is_told = False
            self._on_note(f"{self.target.name}: works again")

    def _failed(self, unit: _Unit, error: Exception) -> None:
        unit.is_connected, unit.tried_s = False, time.monotonic()
        unit.due_s = unit.tried_s + min(self.target.retry_s * 2.0 ** min(unit.num_failures, 10), _LONGEST_PAUSE_S)
        unit.num_failures += 1
        if unit.is_given_up:
            self._on_note(f"{self.target.name}: {brief(error)}; nothing more of this run or folder is sent from here")
            return
        if not self._is_told:
            self._is_told = True
            self._on_note(f"{self.target.name}: failed ({brief(error)}); the runs go on, and it is tried again")


class Senders:
    """One sender for each target; a call costs a run microseconds, whatever becomes of the targets."""

    def __init__(self, targets: Iterable[Target], on_note: Callable[[str], None]) -> None:
        """Start them.

        Raises:
            UserError: a target has something else where the copy is to be.
        """
        self._senders, self._on_note = [Sender(target, on_note) for target in targets], on_note
        self.behind: tuple[str, ...] = ()
        """After ``finish``: names of the targets that a command needs and that lack something."""

    def wake(self, run: Path) -> None:
        """Say that the run in a folder has begun, or has a new round in its ledger."""
        for sender in self._senders:
            sender.wake(run)

    def end(self, run: Path) -> None:
        """Say that the run in a folder has ended, or the process that computed it has."""
        for sender in self._senders:
            sender.end(run)

    def finish(self, is_stopped: bool = False) -> None:
        """Wait until the targets have everything or the time is over, and tell which of them lack something."""
        for sender in self._senders:
            sender.stop(is_stopped)
        behind = [sender.target for sender in self._senders if not sender.wait()]
        for target in behind:
            self._on_note(f"{target.name}: behind; {target.rest}")
        for target in (sender.target for sender in self._senders if sender.target.is_needed):
            if target not in behind:
                self._on_note(f"{target.name}: up to date")
        self.behind = tuple(target.name for target in behind if target.is_needed)


def brief(error: Exception) -> str:
    """An error's first line, shortened, without credentials; of a message for users the whole line."""
    lines = str(error).splitlines() or [""]
    return mask_text(lines[0] if isinstance(error, UserError) else f"{type(error).__name__}: {lines[0][:300]}")
