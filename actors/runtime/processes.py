"""Processes of a private Ray cluster: what signals they hear, which there are, and how they are ended.

A signal for the whole process group (``timeout``) or control group (systemd, Slurm) reaches Ray's processes as well as
this one. They would die first, and the run could neither save its state nor say how to go on.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

# Ray itself does the same for SIGINT.
_NOT_THEIRS = frozenset({signal.SIGTERM, signal.SIGHUP})
_PROC = Path("/proc")


@dataclass(kw_only=True, slots=True)
class _Shield:
    """``depth``: blocks of ``shielded`` that are open; ``is_registered``: the interpreter calls us after a fork."""

    depth: int = 0
    is_registered: bool = False


_shield = _Shield()


def _block_in_child() -> None:
    """Block the signals in a child of this process, before it runs another program."""
    if _shield.depth:
        signal.pthread_sigmask(signal.SIG_BLOCK, _NOT_THEIRS)


@contextmanager
def shielded() -> Iterator[None]:
    """Inside the block, processes that are started never hear SIGTERM and SIGHUP, nor do their children."""
    if not _shield.is_registered:
        os.register_at_fork(after_in_child=_block_in_child)
        _shield.is_registered = True
    _shield.depth += 1
    try:
        yield
    finally:
        _shield.depth -= 1


@dataclass(frozen=True, slots=True)
class Process:
    """A process; ``started`` (clock ticks since boot) tells it from a later one with the same number."""

    pid: int
    started: int
    parent: int = field(compare=False)
    name: str = field(compare=False)
    state: str = field(compare=False)


def look_up(pid: int) -> Process | None:
    """The process with this number; None where there is none, or no ``/proc``."""
    try:
        head, _, rest = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")
    except OSError:
        return None
    state, parent, *others = rest.split()
    return Process(pid, int(others[17]), int(parent), head.partition("(")[2], state)


def _everybody() -> list[Process]:
    """All processes of this machine; none where there is no ``/proc``."""
    numbers = (int(place.name) for place in _PROC.glob("[0-9]*"))
    return [process for pid in numbers if (process := look_up(pid)) is not None]


def naming(text: str) -> list[int]:
    """Processes whose command line holds ``text``."""
    found_pids = []
    for place in _PROC.glob("[0-9]*"):
        with suppress(OSError):
            if text.encode() in (place / "cmdline").read_bytes():
                found_pids.append(int(place.name))
    return found_pids


def family(folder: Path) -> list[Process]:
    """Children of this process that were started for the Ray cluster in ``folder``, and all that descend from them."""
    here, named = os.getpid(), set(naming(f"{folder}/"))
    everybody = _everybody()
    members = {p.pid for p in everybody if p.parent == here and p.pid in named}
    while more := {p.pid for p in everybody if p.parent in members} - members:
        members |= more
    return [p for p in everybody if p.pid in members]


def end(processes: list[Process]) -> None:
    """Kill those that are still there; a stopped one too."""
    for process in processes:
        if look_up(process.pid) == process:
            with suppress(OSError):
                os.kill(process.pid, signal.SIGKILL)
