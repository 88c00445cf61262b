"""Labs for tests: their commands, commands that go on meanwhile, and what a lab may leave behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from relief_ray.records.run_folder import read_rounds
from relief_ray.support.errors import UserError
from tests.lab.cgroup import find_controller
from tests.lab.lab import check_machine
from tests.lab.plan import GCS_PORT
from tests.lab.state import Place, marked

ROOT = Path(__file__).parents[2]
ADDRESS = f"--address=10.77.0.1:{GCS_PORT}"
# A backbone of a few hundred values: rounds of milliseconds.
TINY = [f"--set=backbone.{key}=2" for key in ("conv1", "conv2", "steps", "fusion")]
NO_LAB = "a lab needs Linux, root and iproute2"
Command = Callable[..., "subprocess.CompletedProcess[str]"]


def is_possible() -> bool:
    """Whether this machine and user can build labs."""
    try:
        check_machine()
    except UserError:
        return False
    return True


def _environment(name: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "RELIEF_LAB_NAME": name}


def make_command(name: str) -> Command:
    """``python -m tests.lab`` for the lab of this name."""

    def run(*words: object, check: bool = True, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "tests.lab", *map(str, words)], env=_environment(name), cwd=ROOT,
            capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=timeout_s,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run


def rows(command: Command) -> dict[str, dict[str, object]]:
    """What ``status`` says of each node."""
    return {row["node"]: row for row in json.loads(command("status", "--json").stdout)}


def left_of(name: str) -> list[str]:
    """Whatever a lab may leave: processes, namespaces, mounts, control groups, its folder."""
    place = Place(name)
    left = [f"process {p.pid}" for p in marked(place)]
    left += [f"group {group}" for group in find_controller().groups(f"relief-lab-{name}-")]
    left += [f"mount {line}" for line in Path("/proc/self/mounts").read_text().splitlines() if "relief-lab" in line]
    return left + ([str(place.folder)] if place.folder.exists() else [])


class Running:
    """A command inside a node that goes on meanwhile; keeps its lines with the moments at which they came."""

    def __init__(self, name: str, node: str, words: Sequence[object]) -> None:
        """Start it."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.lab", "exec", node, "--", *map(str, words)], env=_environment(name),
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self._lines: list[tuple[float, str]] = []
        self._notes: list[tuple[float, str]] = []
        streams = ((self._process.stdout, self._lines), (self._process.stderr, self._notes))
        self._readers = [threading.Thread(target=self._read, args=pair, daemon=True) for pair in streams]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _read(stream: IO[str], lines: list[tuple[float, str]]) -> None:
        for line in stream:
            lines.append((time.monotonic(), line.rstrip()))

    def events(self, kind: str = "round") -> list[dict[str, Any]]:
        """The JSON objects of a kind on its stdout, where nothing else may be, each with its moment (``at_s``)."""
        objects = [{"at_s": at_s, **json.loads(line)} for at_s, line in list(self._lines)]
        return [event for event in objects if event.get("event") == kind]

    def until(self, is_so: Callable[[], bool], within_s: float) -> None:
        """Wait, while it runs, until something is so."""
        deadline_s = time.monotonic() + within_s
        while not is_so():
            assert self._process.poll() is None and time.monotonic() < deadline_s, self.text()
            time.sleep(0.05)

    def end(self, within_s: float = 120, number: int | None = None) -> int:
        """Wait for its end, after a signal if one is named; its exit code."""
        if number is not None:
            self._process.send_signal(number)
        code = self._process.wait(timeout=within_s)
        for reader in self._readers:
            reader.join(timeout=10)
        return code

    def kill(self) -> None:
        """End it, if it still runs."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def text(self) -> str:
        """The end of what it printed."""
        return "\n".join(line for _, line in sorted([*self._lines[-5:], *self._notes[-40:]]))


class Lab:
    """A lab with Ray on it."""

    def __init__(self, name: str) -> None:
        """Only name it."""
        self.name, self.command, self._running = name, make_command(name), list[Running]()

    def start(self, *nodes: str) -> None:
        """Start Ray on nodes, as a supervisor does, one after the other: Ray gives each of them 30 s."""
        for node in nodes:
            self.command(*(["head"] if node == "head" else ["node", node]), "--supervised")
            self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until all nodes on which Ray was started are members."""
        said = self.command("wait-ready", "--timeout-s", "200", check=False)
        assert said.stdout == '{"missing": []}\n', said.stdout + said.stderr

    def run(self, node: str, *words: object, code: int = 0, timeout_s: float = 900) -> str:
        """Run ``relief-ray`` in a node to its end; what it printed."""
        done = self.command("exec", node, "--", "relief-ray", *words, check=False, timeout_s=timeout_s)
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
        return done.stdout + done.stderr

    def go(self, node: str, *words: object) -> Running:
        """Start ``relief-ray`` in a node."""
        self._running.append(Running(self.name, node, ["relief-ray", *words]))
        return self._running[-1]

    def files(self, node: str) -> Path:
        """The node's home folder, seen from outside."""
        return Path(str(rows(self.command)[node]["files"]))

    def close(self) -> None:
        """End what still runs, remove the lab."""
        for running in self._running:
            running.kill()
        self.command("down", timeout_s=120)


@contextmanager
def make_lab(name: str, *words: object) -> Iterator[Lab]:
    """A lab, ``up`` with these words; what its nodes printed is shown where the test fails."""
    lab = Lab(f"{name}{os.getpid() % 10**6}")
    lab.command("up", *words)
    try:
        yield lab
    except BaseException:
        for path in sorted(Place(lab.name).logs.glob("*.log")):
            print(f"--- {path.name}\n{path.read_text()[-1500:]}")
        raise
    finally:
        lab.close()


def digests(folder: Path) -> list[str]:
    """The model's digest after each round of a run."""
    return [r.model_sha256 for r in read_rounds(folder)]
