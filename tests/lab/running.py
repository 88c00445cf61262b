"""Commands inside the nodes of a lab: Ray in the background, anything else in the foreground."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from relief_ray.support.errors import UserError
from tests.lab.cgroup import find_controller
from tests.lab.lab import SOURCES, group_of, init_of, node_of
from tests.lab.node import enter
from tests.lab.plan import GCS_PORT, HEAD, HOME, environment, ray_line
from tests.lab.state import Node, Place, Process

# Whoever reads the log sees each end and each new start.
_SUPERVISED = 'while :; do "$@"; echo "ended with $?, starts again"; sleep 1; done'


def start_ray(place: Place, name: str, *, is_supervised: bool = False) -> Process:
    """Start Ray on a node, in the background; what it prints goes to ``logs/NODE.log``.

    ``is_supervised``: started anew whenever it ends, as systemd does with ``Restart=always``.

    Raises:
        UserError: it runs already.
    """
    with place.changing() as state:
        node, head = node_of(state, name), state.nodes[HEAD]
        init = init_of(node)
        if node.ray is not None and node.ray.is_alive:
            raise UserError(f"node {name!r}: Ray runs already (process {node.ray.pid}); end it with `kill {name}`")
        words = ray_line(node.plan, head.plan)
        if is_supervised:
            words = ["/bin/sh", "-c", _SUPERVISED, "supervise", *words]
        with (place.logs / f"{name}.log").open("ab") as log:
            pid = _outside(lambda: _spawn(place, node, init, words, log.fileno()))
        node.ray = Process.of(pid)
        return node.ray


def await_head(place: Place, wait_s: float = 90.0) -> None:
    """Wait until the head takes connections; nodes that knock earlier are sent away.

    Raises:
        UserError: its process ended, or time is up; with the end of its log.
    """
    node = node_of(place.read(), HEAD)
    init, process = init_of(node), node.ray
    assert process is not None
    if _outside(lambda: _knock(init, node.plan.address, process, wait_s)):
        log = place.logs / f"{HEAD}.log"
        raise UserError(f"the head is not up after {wait_s:g} s; the end of {log}:\n{log.read_text()[-2000:]}")


def _knock(init: Process, address: str, process: Process, wait_s: float) -> int:
    """0 once something listens there, 1 if nothing does in time or the process ends."""
    deadline = time.monotonic() + wait_s
    # Of the node's network alone: the machine's processes stay in sight.
    enter(init.pid, ["net"])
    while time.monotonic() < deadline and process.is_alive:
        try:
            socket.create_connection((address, GCS_PORT), timeout=1.0).close()
            return 0
        except OSError:
            time.sleep(0.2)
    return 1


def _spawn(place: Place, node: Node, init: Process, words: Sequence[str], log: int) -> int:
    """Start a command in a node that outlives this process."""
    _go_in(place, node, init)
    done = subprocess.Popen(
        words, env=_environment_of(node), cwd=HOME, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        start_new_session=True,
    )  # fmt: skip
    return done.pid


def _outside(work: Callable[[], int]) -> int:
    """Do something in a process of its own and return the number that comes of it: this one stays where it is.

    Raises:
        UserError: it failed, with its reason.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, str(work()).encode())
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    if not answer.isdigit():
        raise UserError(f"a command could not be started in the node: {answer}")
    return int(answer)


def _go_in(place: Place, node: Node, init: Process) -> None:
    """Join a node's control group, then its namespaces."""
    find_controller().join(group_of(place, node.plan.name), os.getpid())
    enter(init.pid)


def _environment_of(node: Node) -> dict[str, str]:
    return environment(str(Path(sys.executable).parent), str(SOURCES), node.data)


def execute(place: Place, name: str, words: Sequence[str], *, cwd: str = HOME, variables: Sequence[str] = ()) -> int:
    """Run a command in a node to its end, with this process' standard streams; this process stays in the node.

    Signals that would end this process go to the command instead.

    Returns:
        The command's exit code; 128 and the signal's number where one ended it, 127 where it cannot be started.
    """
    node = node_of(place.read(), name)
    init = init_of(node)
    if bad := [v for v in variables if "=" not in v]:
        raise UserError(f"--env {bad[0]}: expected NAME=VALUE")
    _go_in(place, node, init)
    env = {**_environment_of(node), **dict(v.split("=", 1) for v in variables)}
    env |= {"TERM": os.environ["TERM"]} if "TERM" in os.environ else {}
    return _run(words, env, cwd)


def _run(words: Sequence[str], env: dict[str, str], cwd: str) -> int:
    """Run a command in the foreground; signals that arrive before it has started reach it too."""
    started: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def forward(number: int, _: FrameType | None) -> None:
        if started:
            started[0].send_signal(number)
        else:
            early.append(number)

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, forward)
    has_terminal = sys.stdin.isatty()
    try:
        started.append(subprocess.Popen(words, env=env, cwd=cwd, start_new_session=not has_terminal))
    except OSError as error:
        print(f"error: {words[0]}: {error}", file=sys.stderr)
        return 127
    if has_terminal:
        # A terminal sends Ctrl-C to the command itself.
        signal.signal(signal.SIGINT, lambda *_: None)
    for waiting in early:
        started[0].send_signal(waiting)
    code = started[0].wait()
    return code if code >= 0 else 128 - code
