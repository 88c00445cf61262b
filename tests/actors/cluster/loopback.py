"""A head and a device of type C on loopback, started by their commands, and a user's shell beside them."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from actors.cluster.start_line import NUM_PORTS

ROOT = Path(__file__).parents[3]
SMALL = [f"--set=backbone.{key}=2" for key in ("conv1", "conv2", "steps", "fusion")]
# Two clients, for the two places that the device has.
FLEET = [
    "--set=data.subjects=[1,2]",
    "--set=fleet.types={A: {count: 0}, B: {count: 0}, C: {sensors: [acc, gyro, mag]}}",
]


def free_range(number):
    """First of so many consecutive ports of which none of those that services take is in use."""
    for first in range(20_000 + os.getpid() % 10_000, 60_000, number):
        with suppress(OSError):
            for socket_ in [socket.create_server(("127.0.0.1", first + i)) for i in range(20)]:
                socket_.close()
            return first
    raise AssertionError("no free ports")


class Cluster:
    """Processes of a head and its devices, and a user's shell beside them."""

    def __init__(self, folder, **variables):
        """``variables``: of all its processes."""
        self.folder, self.temp = folder, Path(tempfile.mkdtemp(prefix="rc-", dir="/tmp"))
        first = free_range(NUM_PORTS)
        self.port, self.dashboard, self.next_port = first, first + 1, first + 2
        self.token, self.processes = folder / ".ray" / "auth_token", []
        self.url = f"http://127.0.0.1:{self.dashboard}"
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {
            "PYTHONPATH": str(ROOT), "HOME": str(folder), "RELIEF_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1",
            "RAY_worker_niceness": "0", **variables,
        }  # fmt: skip

    def start(self, name, *words, before=()):
        """Start a node; ``before``: a program that becomes it, such as `unshare`."""
        words = [*words, "--token", self.token, "--ports", self.next_port, "--temp-dir", self.temp / name]
        words += ["--num-cpus", 2, "--memory-mib", 4000, "--object-store-mib", 100]
        self.next_port += NUM_PORTS
        with (self.folder / f"{name}.log").open("wb") as log:
            command = [*before, sys.executable, "-m", "actors.cli.main", "cluster", *map(str, words)]
            process = subprocess.Popen(command, env=self.env, stdout=log, stderr=log, start_new_session=True)
        self.processes.append(process)
        return process

    def run(self, *words, cwd=None):
        command = [sys.executable, "-m", "actors.cli.main", *map(str, words)]
        done = subprocess.run(
            command, env=self.env, cwd=cwd or self.folder, capture_output=True, text=True, timeout=300
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def submit(self, *words, **options):
        return self.run("submit", "--address", self.url, "--token", self.token, *words, **options)

    def check(self, *words):
        return self.run("cluster", "check", "--address", f"127.0.0.1:{self.port}", "--token", self.token, *words)

    def num_nodes(self):
        """Nodes that `check` sees; 0 while the head does not answer."""
        done = self.check("--json")
        return len(json.loads(done.stdout)["nodes"]) if done.stdout else 0

    def get(self, path, token=None):
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        with urllib.request.urlopen(urllib.request.Request(self.url + path, headers=headers), timeout=30) as answer:
            return answer.read().decode()

    def status(self, path, token=None):
        try:
            self.get(path, token)
        except urllib.error.HTTPError as error:
            return error.code
        return 200

    def metrics_port(self, name):
        """Port of a node's gauges."""
        return self.port + 2 + {"head": 0, "device": 1}[name] * NUM_PORTS + 6

    def running(self, folder, *more):
        """A run of two clients without end, an actor each; prints to ``run.log``."""
        return self.going(folder, "run", "quick", "--set=runtime.mode=actors", *SMALL, *FLEET, *more)

    @contextmanager
    def going(self, folder, *words):
        """A command of 100,000 rounds on the cluster, for as long as the block lasts; prints to ``COMMAND.log``."""
        words = [*words, "--address", f"127.0.0.1:{self.port}", "--set=rounds=100000"]
        command = [sys.executable, "-m", "actors.cli.main", *words]
        with (folder / f"{words[0]}.log").open("wb") as log:
            process = subprocess.Popen(command, env=self.env, cwd=folder, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60)

    def close(self):
        for process in reversed(self.processes):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self.processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=20)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(self.temp, ignore_errors=True)


@contextmanager
def loopback(folder: Path, **variables: str) -> Iterator[Cluster]:
    """Both of them, up; they end with the block."""
    it = Cluster(folder, **variables)
    try:
        head = it.start("head", "head", "--port", it.port, "--dashboard-port", it.dashboard)
        until = time.monotonic() + 240
        while time.monotonic() < until and head.poll() is None:
            with suppress(OSError):
                it.status("/api/version")
                break
            time.sleep(0.5)
        it.start("device", "join", f"127.0.0.1:{it.port}", "--type", "c", "--count", 2)
        while it.num_nodes() < 2:
            assert time.monotonic() < until and all(p.poll() is None for p in it.processes), it.folder
        yield it
    finally:
        it.close()
