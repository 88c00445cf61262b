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

from relief_ray.faults import line_running

# Share of a call's time after which the host is looked at: early enough to be told before it is ended.
_LOOK_AFTER: Final = 0.8
_NAMESPACE: Final = b"relief-ray"


@contextmanager
def hang_watched(limit_s: float | None) -> Iterator[None]:
    """Run a block; note where it is, once most of its time is over."""
    if limit_s is None or not ray.is_initialized():
        yield
        return
    timer = threading.Timer(_LOOK_AFTER * limit_s, _note, [threading.get_ident(), _key_here()])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _key_here() -> bytes:
    return _key(str(ray.get_runtime_context().get_actor_id()))


def _key(actor_id: str) -> bytes:
    return f"hang.{actor_id}".encode()


def _note(thread: int, key: bytes) -> None:
    """Leave the line that a thread runs, where it is in a user's file."""
    frame = sys._current_frames().get(thread)
    line = None if frame is None else line_running(frame)
    if line is not None:
        with suppress(RayError, RuntimeError, ValueError):
            internal_kv._internal_kv_put(key, line.encode(), overwrite=True, namespace=_NAMESPACE)


def hanging_in(actor_id: str) -> str:
    """`` (it was in FILE, line N, in FUNCTION: ..)`` of a host whose time is over; empty where it left no word."""
    with suppress(RayError, RuntimeError, ValueError):
        line = internal_kv._internal_kv_get(_key(actor_id), namespace=_NAMESPACE)
        if line:
            internal_kv._internal_kv_del(_key(actor_id), namespace=_NAMESPACE)
            return f" (it was in {line.decode(errors='replace')})"
    return ""
