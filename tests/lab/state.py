"""A lab's memory between commands: a file that names every process, so that ``down`` ends these and no others."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from relief_ray.support.errors import UserError
from relief_ray.support.files import write_atomic
from tests.lab.plan import NodePlan

ROOT = Path("/tmp/relief-lab")
# Variable of every process that holds a namespace: finds those that a killed `up` did not write down.
MARK = "RELIEF_LAB"
_FILE, _LOCK = "lab.json", "lock"
# Fields of /proc/PID/stat behind the command's name: state is the first, start time the twentieth.
_STATE, _START = 0, 19


class Process(BaseModel):
    """A process by id and start time: an id that was given to another process since does not match."""

    model_config = ConfigDict(frozen=True)
    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> Process:
        """The process that has this id now.

        Raises:
            ProcessLookupError: there is none.
        """
        fields = _stat(pid)
        if fields is None:
            raise ProcessLookupError(pid)
        return cls(pid=pid, start_ticks=int(fields[_START]))

    @property
    def is_alive(self) -> bool:
        """Whether it runs; one that has ended and waits for its parent does not."""
        fields = _stat(self.pid)
        return fields is not None and int(fields[_START]) == self.start_ticks and fields[_STATE] not in "ZX"

    def kill(self) -> None:
        """End it, if it runs."""
        if self.is_alive:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def _stat(pid: int) -> list[str] | None:
    """Fields of ``/proc/PID/stat`` behind the name, which may hold anything; None without such a process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


class Link(BaseModel):
    """A node's link: rates in Mbit/s (None: as fast as the machine), and whether it is cut."""

    down_mbit: float | None = None
    up_mbit: float | None = None
    is_cut: bool = False


class Node(BaseModel):
    """A node as it is now.

    Attributes:
        plan: as requested.
        holder: the process of this machine that keeps the namespaces.
        init: the first process inside; its end is the end of all others.
        ray: ``ray start``, or the loop that starts it again; None before ``head`` or ``node``.
        quota_percent: share of one core that all its processes have together; None: no limit.
        link: its link.
        data: folder with data sets that this node sees.
    """

    plan: NodePlan
    holder: Process | None = None
    init: Process | None = None
    ray: Process | None = None
    quota_percent: int | None = None
    link: Link = Link()
    data: str | None = None


class State(BaseModel):
    """The whole lab: the process that holds the bridge's namespace, and the nodes by name."""

    switch: Process | None = None
    nodes: dict[str, Node] = {}

    @property
    def processes(self) -> list[Process]:
        """Those that hold namespaces, inner ones first."""
        inner = [p for node in self.nodes.values() for p in (node.init, node.holder)]
        return [p for p in (*inner, self.switch) if p is not None]


class Place:
    """The folder of a lab: its state, the logs of its nodes, its token."""

    def __init__(self, name: str, root: Path = ROOT) -> None:
        """``name``: tells labs of one machine apart.

        Raises:
            UserError: not at most 8 small letters and digits.
        """
        if not (name.isascii() and name.isalnum() and name.islower() and len(name) <= 8):
            raise UserError(f"--lab {name!r}: expected at most 8 small letters and digits, e.g. --lab two")
        self.name, self.root, self.folder = name, root, root / name

    @property
    def token(self) -> Path:
        """File with the cluster's token, readable by its owner alone."""
        return self.folder / "token"

    @property
    def logs(self) -> Path:
        """Folder with a file for each node: what its ``ray start`` printed."""
        return self.folder / "logs"

    @property
    def is_up(self) -> bool:
        """Whether there is a lab of this name, or what is left of one."""
        return (self.folder / _FILE).exists()

    def read(self) -> State:
        """The lab as it is.

        Raises:
            UserError: there is none, or its file is damaged.
        """
        if not self.is_up:
            raise UserError(f"lab {self.name!r}: not up (no {self.folder / _FILE}); start it: `up a:3 b:3 c:2`")
        try:
            return State.model_validate_json((self.folder / _FILE).read_bytes())
        except ValidationError as error:
            raise UserError(
                f"{self.folder / _FILE}: not a lab's state ({error.error_count()} errors); remove the lab with `down`"
            ) from error

    def write(self, state: State) -> None:
        """Replace the file as a whole."""
        write_atomic(self.folder / _FILE, state.model_dump_json(indent=1).encode())

    @contextmanager
    def changing(self) -> Iterator[State]:
        """Read, change, write, while no other command does; what was changed before an error is kept."""
        state = self.read()
        with (self.folder / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = self.read()
            try:
                yield state
            finally:
                self.write(state)


def marked(place: Place) -> list[Process]:
    """Processes that hold this lab's namespaces, whether its file knows them or not."""
    mark = f"{MARK}={place.folder}".encode()
    return _found(lambda folder: mark in (folder / "environ").read_bytes().split(b"\0"))


def inside(init: Process) -> list[Process]:
    """Processes of a node but its first one: those in the same process namespace."""
    try:
        namespace = os.readlink(f"/proc/{init.pid}/ns/pid")
    except FileNotFoundError:
        return []
    return [p for p in _found(lambda folder: os.readlink(folder / "ns/pid") == namespace) if p.pid != init.pid]


def _found(is_one: Callable[[Path], bool]) -> list[Process]:
    """Processes of this machine by their folders below ``/proc``, which may be gone, or not ours to read."""
    processes = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, PermissionError, ProcessLookupError):
            if is_one(folder):
                processes.append(Process.of(int(folder.name)))
    return processes


def end(processes: list[Process], wait_s: float = 10.0) -> list[Process]:
    """Kill processes by their ids and wait for their end; returns those that are left after ``wait_s``."""
    for process in processes:
        process.kill()
    deadline = time.monotonic() + wait_s
    while (left := [p for p in processes if p.is_alive]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left
