"""Ctrl-C and SIGTERM: the first asks to stop after the round, the second stops at once."""

from __future__ import annotations

import math
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

from actors.terminal.exit_codes import INTERRUPTED, TERMINATED, say

_CODES = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}


class StopSignals:
    """Inside the block, signals are remembered; ``code`` is the exit code of the first one, 0 before."""

    def __init__(self) -> None:
        """Start without a signal."""
        self.code = 0
        self._before: dict[signal.Signals, signal._HANDLER] = {}

    def requested(self) -> bool:
        """True where a run should stop after its round."""
        return self.code != 0

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self.code:
            raise KeyboardInterrupt
        self.code = _CODES[signal.Signals(number)]
        say("stopping after this round; press Ctrl-C again to stop at once")

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._remember) for number in _CODES}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


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
