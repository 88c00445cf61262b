"""Says where a host hangs: a line of the user's own file, told before the host's time is over.

A hung host answers nothing, but a second thread of its process still can look at what the first one runs. It leaves the
place in Ray's key-value store, where the driver finds it when it ends the host. A process that is frozen, or in code
that never yields, leaves nothing.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import ray
from ray.exceptions import RayError
from ray.experimental import internal_kv

from relief_ray.plugins.blame import line_running

# Share of the seconds that a call has in any case after which the host is looked at: early enough to be told before it
# is ended. After that it is looked at again and again, since its limit is not known: answers of others move it.
_LOOK_AFTER: Final = 0.8
_NAMESPACE: Final = b"relief-ray"


@contextmanager
def hang_watched(least_s: float | None) -> Iterator[None]:
    """Run a block that is not ended before ``least_s``; note where it is, once most of that is over."""
    if least_s is None or not ray.is_initialized():
        yield
        return
    is_over, key = threading.Event(), _key_here()
    arguments = (threading.get_ident(), key, least_s, is_over)
    watch = threading.Thread(target=_look, args=arguments, name="hang-watch", daemon=True)
    watch.start()
    try:
        yield
    finally:
        is_over.set()


def _look(thread: int, key: bytes, least_s: float, is_over: threading.Event) -> None:
    """Leave the line that a thread runs, where it is in a user's file, and the next one until it is over."""
    told, wait_s = b"", _LOOK_AFTER * least_s
    while not is_over.wait(wait_s):
        frame = sys._current_frames().get(thread)
        line = (line_running(frame) if frame is not None else None) or ""
        if line.encode() != told:
            told = line.encode()
            _tell(key, told)
        wait_s = (1.0 - _LOOK_AFTER) * least_s
    if told:  # a later hang is not to be told with this line
        _tell(key, b"")


def _tell(key: bytes, line: bytes) -> None:
    with suppress(RayError, RuntimeError, ValueError):
        internal_kv._internal_kv_put(key, line, overwrite=True, namespace=_NAMESPACE)


def _key_here() -> bytes:
    return _key(str(ray.get_runtime_context().get_actor_id()))


def _key(actor_id: str) -> bytes:
    return f"hang.{actor_id}".encode()


def hanging_in(actor_id: str) -> str:
    """`` (it was in FILE, line N, in FUNCTION: ..)`` of a host whose time is over; empty where it left no word."""
    with suppress(RayError, RuntimeError, ValueError):
        line = internal_kv._internal_kv_get(_key(actor_id), namespace=_NAMESPACE)
        if line:
            internal_kv._internal_kv_del(_key(actor_id), namespace=_NAMESPACE)
            return f" (it was in {line.decode(errors='replace')})"
    return ""
