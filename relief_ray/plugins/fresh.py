"""A fresh process: a Python that has run nothing of a user's, for one call.

A user's code may change anything of the process that it runs in (grad mode, default types, patched modules, threads,
the working folder), and no list of that could be complete: what must not meet it is computed in another process. That
has the terminal of its asker, hears of a stop from the asker alone, and ends with it, however that ends.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from types import FrameType
from typing import TypeVar, cast

from relief_ray.plugins.blame import unchanged
from relief_ray.support.errors import UserCodeFailed
from relief_ray.support.masking import mask_logs

T = TypeVar("T")
_POLL_S = 0.05
# How long an interrupted call is waited for, and a process whose connection was closed.
_LEAVE_S = 3.0
_PR_SET_PDEATHSIG = 1
_START = "import sys; sys.path[:] = sys.argv[2:]; from relief_ray.plugins.fresh import serve; serve(int(sys.argv[1]))"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Answer:
    """What a call returned, or the error that it raised, with the system's error number and the traceback as text."""

    value: object = None
    error: BaseException | None = None
    errno: int | None = None
    trace: str = ""


class _There(Exception):
    """Traceback of another process, shown as the cause of the error that it raised."""


def call_fresh(
    function: Callable[..., T], *arguments: object, hear: Callable[..., object], stop: Callable[[], bool]
) -> T:
    """Call ``function(asker, *arguments)`` in a fresh process.

    Args:
        function: a function of a module.
        arguments: what can be pickled.
        hear: called with the arguments of each ``asker.tell``.
        stop: polled; from True on ``asker.stopping`` is set.

    Raises:
        UserCodeFailed: the process ended by itself.
        BaseException: what the function raised. A KeyboardInterrupt here is raised there as well.
    """
    ours, theirs = Pipe()
    with unchanged():
        words = [sys.executable, "-c", _START, str(theirs.fileno()), *sys.path]
        process = subprocess.Popen(words, pass_fds=[theirs.fileno()])
    theirs.close()
    try:
        ours.send_bytes(pickle.dumps((function, arguments)))
        return cast(T, _followed(ours, hear, stop))
    except KeyboardInterrupt:
        with suppress(EOFError, OSError):
            ours.send("interrupt")
            while ours.poll(_LEAVE_S) and not isinstance(ours.recv(), _Answer):
                pass
        raise
    except (EOFError, ConnectionError) as error:
        code = process.wait()
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        raise UserCodeFailed(
            f"process {process.pid} of this run ended by itself ({how}), expected that it ends with the run; code of "
            "your own that ends the process or closes its files does that, and so does the system where memory is "
            "short; what was recorded is intact; mend it, and go on with `relief-ray resume DIR --other-code`"
        ) from error
    finally:
        ours.close()  # where it is still at work, it ends with that
        with suppress(subprocess.TimeoutExpired):
            process.wait(_LEAVE_S)
        process.kill()
        process.wait()


def _followed(connection: Connection, hear: Callable[..., object], stop: Callable[[], bool]) -> object:
    """Pass on messages until the answer comes.

    Raises:
        BaseException: the error that it brings, with the system's error or the traceback there as its cause.
    """
    is_told = False
    while True:
        if not is_told and stop():
            is_told = True
            connection.send("stop")
        if not connection.poll(_POLL_S):
            continue
        message = connection.recv()
        if not isinstance(message, _Answer):
            hear(*message)
        elif message.error is None:
            return message.value
        else:
            systems = None if message.errno is None else OSError(message.errno, str(message.error))
            raise message.error from (systems or _There(message.trace))


# Below: the fresh process itself.


@dataclass(kw_only=True)
class Asker:
    """The process that asked, as a fresh one sees it; ``stopping`` is set once it wants a stop."""

    connection: Connection
    stopping: threading.Event = field(default_factory=threading.Event)
    _telling: threading.Lock = field(default_factory=threading.Lock)
    _is_interrupted: bool = False

    def tell(self, *message: object) -> None:
        """Tell the asker something, from any thread; it is not waited for."""
        with self._telling:
            self.connection.send(message)

    def listen(self) -> None:
        """Hear the asker; where it is gone, this process ends at once."""
        try:
            while True:
                word = self.connection.recv()
                self.stopping.set()
                if word == "interrupt":
                    self._is_interrupted = True
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        except (EOFError, OSError):
            os._exit(1)

    def take_signal(self, number: int, frame: FrameType | None) -> None:
        """Ignore signals, since the parent process gets those of the terminal as well.

        A function, so that programs which are started from here hear them again.
        """
        if self._is_interrupted:
            self._is_interrupted = False
            raise KeyboardInterrupt


def serve(descriptor: int) -> None:
    """Be a fresh process: answer the call that comes over a connection, and end."""
    asker = Asker(connection=Connection(descriptor))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, asker.take_signal)
    with suppress(AttributeError, OSError):  # Linux: at once, whatever runs here
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    mask_logs()
    body = asker.connection.recv_bytes()
    threading.Thread(target=asker.listen, name="asker", daemon=True).start()
    try:
        function, arguments = pickle.loads(body)
        answer = _Answer(value=function(asker, *arguments))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt that comes now has nothing left to stop
    except BaseException as error:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        cause, trace = error.__cause__, "".join(traceback.format_exception(error)).rstrip()
        answer = _Answer(error=error, errno=cause.errno if isinstance(cause, OSError) else None, trace=trace)
    try:
        pickle.loads(pickle.dumps(answer))
    except Exception:  # an error of a class that cannot be pickled travels in words
        answer = _Answer(error=RuntimeError(answer.trace.rpartition("\n")[2]), trace=answer.trace)
    with suppress(OSError):  # users' code closed it: the asker sees that this process ends
        asker.connection.send(answer)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)
