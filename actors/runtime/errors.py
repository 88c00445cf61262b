"""Errors between driver and workers, in a user's words."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NoReturn

import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    GetTimeoutError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayError,
    RayTaskError,
)
from ray.experimental import internal_kv

from relief_ray.core.federated import RoundVoid
from relief_ray.plugins.blame import line_running
from relief_ray.records.lock import LOCK_FILE
from relief_ray.support.errors import ClientFailed, UserError, first_line
from relief_ray.support.process import text_in


class EvaluationFailed(RoundVoid):
    """Raised where workers were lost while a model was tested, twice; the round is not committed."""


class Interrupted(KeyboardInterrupt):
    """Raised when a stop drops a long round. Not an ``Exception``, so that no handler swallows it."""


_REASONS: tuple[tuple[type[RayError], str], ...] = (
    (
        OutOfMemoryError,
        "its process was killed because the machine ran out of memory; use fewer hosts (runtime.num_hosts)",
    ),
    (ActorDiedError, "its process died"),
    (ActorUnavailableError, "its process died or its node cannot be reached"),
    (NodeDiedError, "its node died"),
    (ObjectLostError, "its answer was lost with its node"),
    (GetTimeoutError, "its answer could not be fetched in time"),
)


def reason(error: RayError) -> str:
    """Reason for a lost call that is no fault of the code it ran."""
    known = next((text for kind, text in _REASONS if isinstance(error, kind)), type(error).__name__)
    return f"{known} ({first_line(error)})"


@contextmanager
def errno_travels() -> Iterator[None]:
    """Keep the number of the system's error behind a ``UserError`` of the block, which decides the exit code.

    An exception leaves its process without its cause.
    """
    try:
        yield
    except UserError as error:
        if isinstance(error.__cause__, OSError):
            error.__dict__["errno"] = error.__cause__.errno
        raise


def raised_there(error: RayTaskError) -> BaseException:
    """The exception that another process raised: of its own class, with the system's error behind it.

    To be raised without ``from``, which would put another cause in the place of that one.
    """
    cause = error.cause
    assert isinstance(cause, BaseException)
    errno = getattr(cause, "errno", None)
    is_systems = isinstance(cause, UserError) and isinstance(errno, int)
    cause.__cause__ = OSError(errno, str(cause)) if is_systems else error
    return cause


def raise_cause(error: RayTaskError, where: str) -> NoReturn:
    """Raise what user code raised on a worker.

    Raises:
        UserError: bad input, as the worker found it.
        ClientFailed: everything else, with the client and the stage named.
    """
    cause = raised_there(error)
    if isinstance(cause, UserError | ClientFailed):
        raise cause
    raise ClientFailed(f"{where}: {type(cause).__name__}: {cause}") from error


# Reasons for the death of the process that runs rounds, as far as they are known; out of memory only with evidence.

# What Ray writes where its own memory monitor ended a process. Its text on any other death lists the kernel's
# out-of-memory killer among things that may have happened, which shows nothing.
_BY_RAY: Final = ("OutOfMemoryError", "NODE_OUT_OF_MEMORY", "node running low on memory")
_MAX_TAIL = 3


def count_kills(counters: Path = Path("/proc/vmstat")) -> int | None:
    """Processes that the kernel's out-of-memory killer has ended on this node since it started; None: not counted."""
    counted = re.search(r"^oom_kill (\d+)$", text_in(counters), flags=re.M)
    return int(counted[1]) if counted else None


def describe_death(folder: Path, trouble: str, kills_before: int | None, *, died: str, fewer: str) -> str:
    """Say why a run's process and its retries died, as far as that is known, and where to look.

    Args:
        folder: the run's, which that process held.
        trouble: what Ray said.
        kills_before: ``count_kills`` before the run began.
        died: the deaths in words, such as ``died twice``.
        fewer: advice that leaves more memory to each process.
    """
    pid, kills = _pid(folder), count_kills()
    who = "its process" if pid is None else f"its process {pid}"
    if any(sign in trouble for sign in _BY_RAY):
        return f"{who} was ended by Ray because this node ran low on memory; {fewer}, or give the node more"
    if kills is not None and kills_before is not None and kills > kills_before:
        return (
            f"{who} died, and the kernel's out-of-memory killer ended {kills - kills_before} processes on this node "
            f"since the start (dmesg names them); {fewer}, or give the node more memory"
        )
    memory = "not known whether memory ran out" if kills is None else "no sign of a lack of memory on this node"
    tail = _last_words(pid)
    looked = f"its last words: {tail}" if tail else "it left no last words; see `dmesg` and Ray's logs of this node"
    return f"{who} {died} ({_brief(trouble)}); {memory}; {looked}"


def _pid(folder: Path) -> int | None:
    """The process that last held the folder's lock."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads((folder / LOCK_FILE).read_text(encoding="utf-8"))["pid"])
    return None


def _brief(trouble: str) -> str:
    """Ray's name for the end of a process, else the last line of its message."""
    if exit_type := re.search(r"Worker exit type: (\w+)", trouble):
        return f"Ray: {exit_type[1]}"
    lines = [line.strip() for line in trouble.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "Ray gave no reason"


def _last_words(pid: int | None) -> str:
    """The last lines that a process of this node wrote to its standard error, in Ray's logs."""
    node = getattr(ray._private.worker, "_global_node", None)
    if pid is None or node is None:
        return ""
    lines: list[str] = []
    for path in Path(node.get_logs_dir_path()).glob(f"worker-*-{pid}.err"):
        with suppress(OSError):
            text = path.read_text(encoding="utf-8", errors="replace")
            lines += [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(":")]
    return " / ".join(lines[-_MAX_TAIL:])


# Says where a worker hangs: a line of the user's own file, told before the worker's time is over.
#
# A hung worker answers nothing, but a second thread of its process still can look at what the first one runs. It leaves
# the place in Ray's key-value store, where the driver finds it when it ends the worker. A process that is frozen, or in
# code that never yields, leaves nothing.

# Share of the seconds that a call has in any case after which the worker is looked at: early enough to say so before
# it is ended. After that it is looked at again and again, since its limit is not known: answers of others move it.
_LOOK_AFTER: Final = 0.8
_NAMESPACE: Final = b"relief-ray"


@contextmanager
def hang_watched(least_s: float | None) -> Iterator[None]:
    """Run a block that is not ended before ``least_s``; note where it is, once most of that is over."""
    if least_s is None or not ray.is_initialized():
        yield
        return
    is_over, key = threading.Event(), _key(str(ray.get_runtime_context().get_actor_id()))
    arguments = (threading.get_ident(), key, least_s, is_over)
    watch = threading.Thread(target=_look, args=arguments, name="hang-watch", daemon=True)
    watch.start()
    try:
        yield
    finally:
        is_over.set()


def _look(thread: int, key: bytes, least_s: float, is_over: threading.Event) -> None:
    """Leave the line that a thread runs, where it is in a user's file, and the next one until it is over."""
    left, wait_s = b"", _LOOK_AFTER * least_s
    while not is_over.wait(wait_s):
        frame = sys._current_frames().get(thread)
        line = ((frame and line_running(frame)) or "").encode()
        if line != left:
            left = line
            _leave(key, line)
        wait_s = (1.0 - _LOOK_AFTER) * least_s
    if left:  # it would be taken for that of a later hang
        _leave(key, b"")


def _leave(key: bytes, line: bytes) -> None:
    with suppress(RayError, RuntimeError, ValueError):
        internal_kv._internal_kv_put(key, line, overwrite=True, namespace=_NAMESPACE)


def _key(actor_id: str) -> bytes:
    return f"hang.{actor_id}".encode()


def hanging_in(actor_id: str) -> str:
    """`` (it was in FILE, line N, in FUNCTION: ..)`` of a worker whose time is over; empty where it left no word."""
    with suppress(RayError, RuntimeError, ValueError):
        line = internal_kv._internal_kv_get(_key(actor_id), namespace=_NAMESPACE)
        if line:
            internal_kv._internal_kv_del(_key(actor_id), namespace=_NAMESPACE)
            return f" (it was in {line.decode(errors='replace')})"
    return ""
