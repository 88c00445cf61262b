"""Ends the wait for a Ray that does not answer: its head (GCS), or the process of the driver's own node (raylet).

Calls into Ray return only once these answer, so two threads look after them. One keeps asking the head for its nodes;
the other counts the seconds of silence, and those in which the node's process was stopped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from actors.runtime import processes

# Ray gives up a head after 60 s of silence, by ending the driver without a word.
_FROZEN_S = 30.0
_EVERY_S, _LOOK_S, _LEAVE_S = 5.0, 0.5, 1.0
_STOPPED = frozenset("Tt")


@dataclass(kw_only=True)
class HeadWatch:
    """Watches the head and the driver's node; tells ``on_lost`` once, in a sentence, where one has been silent.

    Attributes:
        on_lost: called in a thread of its own.
        frozen_s: seconds of silence, counted while this process runs: a suspended driver hears nobody.
        silent_s: seconds since the head's last answer.
        stopped_s: seconds since the node's process was last seen running.
    """

    on_lost: Callable[[str], None]
    frozen_s: float = _FROZEN_S
    silent_s: float = 0.0
    stopped_s: float = 0.0
    _raylet: processes.Process | None = None
    _is_dead: bool = False
    _closed: threading.Event = field(default_factory=threading.Event)
    _asking: threading.Thread | None = None

    def start(self) -> None:
        """Begin to watch; Ray is up."""
        self._asking = threading.Thread(target=self._ask, name="head-watch-asks", daemon=True)
        self._asking.start()
        threading.Thread(target=self._judge, name="head-watch-judges", daemon=True).start()

    def close(self) -> None:
        """Stop watching: nothing may ask Ray while it is shut down."""
        self._closed.set()
        if self._asking is not None:
            self._asking.join(_LEAVE_S)

    def _ask(self) -> None:
        import ray

        here = ray.get_runtime_context().get_node_id()
        while True:
            # An error is an answer's absence: the other thread counts.
            with suppress(Exception):
                mine = next((node for node in ray.nodes() if node["NodeID"] == here), None)
                self.silent_s = 0.0
                self._is_dead = mine is not None and not mine["Alive"]
                if self._raylet is None and mine is not None:
                    pids = processes.naming(str(mine["RayletSocketName"]))
                    raylets = [p for p in map(processes.look_up, pids) if p is not None and p.name == "raylet"]
                    self._raylet = raylets[0] if raylets else None
            if self._closed.wait(_EVERY_S):
                return

    def _judge(self) -> None:
        last_s = time.monotonic()
        while not self._closed.wait(_LOOK_S):
            now_s = time.monotonic()
            passed_s, last_s = min(now_s - last_s, 4 * _LOOK_S), now_s
            self.silent_s += passed_s
            raylet = None if self._raylet is None else processes.look_up(self._raylet.pid)
            is_stopped = raylet is not None and raylet == self._raylet and raylet.state in _STOPPED
            self.stopped_s = self.stopped_s + passed_s if is_stopped else 0.0
            if (why := self._why()) is not None:
                self.on_lost(why)
                return

    def _why(self) -> str | None:
        if self._is_dead:
            return "Ray's process of this machine (raylet) has ended, or its head does not hear it any more"
        if self.stopped_s > self.frozen_s:
            return f"Ray's process of this machine (raylet) has been frozen for {self.frozen_s:g} s"
        if self.silent_s > self.frozen_s:
            return f"Ray's head (GCS) has not answered for {self.frozen_s:g} s"
        return None


@contextmanager
def head_watched(on_lost: Callable[[str], None] | None) -> Iterator[None]:
    """Watch Ray inside the block, where somebody wants to hear of it."""
    if on_lost is None:
        yield
        return
    watch = HeadWatch(on_lost=on_lost)
    watch.start()
    try:
        yield
    finally:
        watch.close()
