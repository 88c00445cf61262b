"""Ctrl-C, SIGTERM and SIGHUP: the first asks to stop after the round, the second stops at once, the third ends.

The process ends at most ``END_S`` after the first signal, whatever it waits for; records are whole at any moment.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

from actors.runtime.session import abandon
from actors.terminal.exit_codes import HUNG_UP, INTERRUPTED, RAY_LOST, TERMINATED, Stopped, block
from relief_ray.support.errors import UserError

_CODES: Mapping[int, int] = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED, signal.SIGHUP: HUNG_UP}
# After the first signal: a round may still come to its end, then whatever runs is interrupted, then the process ends.
INTERRUPT_S, END_S = 6.0, 9.0
# From a second signal, or from a Ray that does not answer, to the end.
_LEAVE_S = 4.0
# So long Python may need until its main thread has heard a signal. Ray's calls hold that thread while Ray is frozen.
_UNHEARD_S = 0.5
# `timeout` signals its child and then the group, a terminal that closes hangs up twice: signals this close are one.
_SAME_S = 0.7


@dataclass(kw_only=True)
class _Ending:
    """The end of this process, which a thread carries out when its time has come.

    Attributes:
        is_ours: this process is the command line's own, which may be ended.
        code: the exit code.
        advice: what the user reads then.
        at_s: when (monotonic clock); infinite: never.
        is_unheard: it was set for a signal that the main thread has not heard yet.
    """

    is_ours: bool = False
    code: int = INTERRUPTED
    advice: str = "stopped; the same command does it again"
    at_s: float = math.inf
    is_unheard: bool = False
    _thread: threading.Thread | None = None

    def within(self, seconds: float, code: int) -> None:
        """End the process in so many seconds, unless it has ended by itself or an earlier end was set."""
        self.code, self.at_s = code, min(self.at_s, time.monotonic() + seconds)
        if self.is_ours and self._thread is None:
            self._thread = threading.Thread(target=self._wait, name="ending", daemon=True)
            self._thread.start()

    def listen(self, signals: socket.socket) -> None:
        """Set the end for signals (their numbers, as bytes) of which the main thread does not hear."""
        while number := signals.recv(1):
            if number[0] in _CODES:
                time.sleep(_UNHEARD_S)
                if self.at_s == math.inf:
                    self.is_unheard = True
                    self.within(END_S - _UNHEARD_S, _CODES[number[0]])

    def _wait(self) -> None:
        while (left_s := self.at_s - time.monotonic()) > 0:
            time.sleep(min(left_s, 0.1))
        self.now()

    def now(self) -> NoReturn:
        """End the process, and the Ray that it has started: no ``finally`` is waited for."""
        _write(self.advice)
        with suppress(Exception):
            abandon()
        os._exit(self.code)


_ending = _Ending()


def _write(text: str) -> None:
    """Write a line to the terminal from wherever the program is; if the terminal is gone, nothing is written any more.

    A signal may have come in the middle of another line, whose stream is not to be used then.
    """
    try:
        os.write(2, f"{text}\n".encode(errors="replace"))
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for number in (1, 2):
            # Not ``isatty``: a terminal that is gone is none any more.
            if stat.S_ISCHR(os.fstat(number).st_mode):
                os.dup2(nowhere, number)


def _reacts_to(number: int) -> bool:
    """Whether to react to this signal; under ``nohup`` a closing terminal is ignored."""
    return number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN


def _unwatched() -> None:
    """A forked child shares the descriptor; its signals are not meant for this process."""
    with suppress(ValueError):
        signal.set_wakeup_fd(-1)


def end_on_signals() -> None:
    """Let signals end the command line in good order where nothing else handles them; for its own process alone."""
    _ending.is_ours = True

    def stop(number: int, frame: FrameType | None) -> None:
        is_first, _ending.is_unheard = _ending.at_s == math.inf or _ending.is_unheard, False
        _ending.within(END_S if is_first else _LEAVE_S, _CODES[number])
        if is_first:
            raise KeyboardInterrupt

    for number in filter(_reacts_to, _CODES):
        signal.signal(number, stop)
    os.register_at_fork(after_in_child=_unwatched)
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    signal.set_wakeup_fd(theirs.detach(), warn_on_full_buffer=False)
    threading.Thread(target=_ending.listen, args=(ours,), name="signals", daemon=True).start()


def interrupted() -> int:
    """Say that a command which was interrupted has stopped; return its exit code."""
    _write(_ending.advice)
    return _ending.code


def leave_at_once(code: object) -> None:
    """End the command line's process after a signal: to tear down an interpreter with torch may take seconds more."""
    if _ending.is_ours and _ending.at_s < math.inf and isinstance(code, int):
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


class StopSignals:
    """Inside the block, signals are remembered; ``code`` is the exit code of the first one, 0 before.

    What the block raises once it was interrupted leaves it as ``Stopped`` with ``advice``, the line that resumes.
    """

    def __init__(self, advice: str) -> None:
        """Start without a signal."""
        self.code = 0
        self._advice, self._why, self._outside = advice, "", ""
        self._num_signals, self._last_s = 0, -math.inf
        self._before: dict[int, signal._HANDLER] = {}
        self._alarm: threading.Timer | None = None

    def requested(self) -> bool:
        """True where a run should stop after its round."""
        return self.code != 0

    def advise(self, advice: str) -> None:
        """Replace the advice, once a stop would leave something else undone."""
        self._advice = advice
        _ending.advice = f"{self._why}{advice}"

    def lost(self, why: str) -> None:
        """End the block because Ray does not answer; called in another thread than the block's."""
        if not self.code:
            self.code, self._why, self._num_signals = RAY_LOST, f"{block('error: ', why)}\n", 1
            _ending.advice = f"{self._why}{self._advice}"
            _ending.within(_LEAVE_S, self.code)
            self._interrupt()

    def _remember(self, number: int, frame: FrameType | None) -> None:
        now_s = time.monotonic()
        is_same = now_s - self._last_s < _SAME_S
        if is_same and self._num_signals:
            return
        _ending.is_unheard = False
        # Of signals that count alone: an impatient user's presses, each close to the one before, are no echo for ever.
        self._last_s = now_s
        self._num_signals += 1
        if self._num_signals == 1:
            self.code = _CODES[number]
            _ending.within(END_S, self.code)
            self._alarm = threading.Timer(INTERRUPT_S, self._interrupt)
            self._alarm.daemon = True
            self._alarm.start()
            _write(f"stopping after this round, within {END_S + 1:.0f} s; press Ctrl-C again to stop at once")
        elif self._num_signals == 2:
            _ending.within(_LEAVE_S, self.code)
            raise KeyboardInterrupt
        elif _ending.is_ours:
            _ending.now()

    def _interrupt(self) -> None:
        """Do in the main thread what a second signal does, unless one has come."""
        self._last_s = -math.inf
        if self._num_signals == 1:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def __enter__(self) -> StopSignals:
        self._outside, _ending.advice = _ending.advice, self._advice
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._remember) for number in filter(_reacts_to, _CODES)}
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        if not self.code:
            _ending.advice = self._outside
        for number, handler in self._before.items():
            signal.signal(number, handler)
        is_end = isinstance(error, KeyboardInterrupt) or self._why or (self.code and isinstance(error, Exception))
        if is_end and not isinstance(error, UserError | Stopped):
            raise Stopped(self.code or INTERRUPTED, f"{self._why}{self._advice}") from None


# Between one alarm and the next, where the first was lost.
_AGAIN_S = 0.05


class TimeIsUp(BaseException):
    """Raised wherever the program is. Like Ctrl-C it is no ``Exception``, so that no code there handles it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Inside the block ``TimeIsUp`` is raised once ``seconds`` are over; outside the main thread it never is."""
    if seconds <= 0:
        raise TimeIsUp
    if math.isinf(seconds) or threading.current_thread() is not threading.main_thread():
        yield
        return

    def too_long(number: int, frame: FrameType | None) -> None:
        # Raised in a callback of the garbage collector it is lost: it comes again, unless the block is on its way out.
        if not isinstance(sys.exc_info()[1], TimeIsUp):
            raise TimeIsUp

    before = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
