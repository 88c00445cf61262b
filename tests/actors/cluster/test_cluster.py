"""A head and a device on loopback, as their commands start them: who is let in, what is shown, jobs and exit codes."""

import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from actors.cluster.start_line import NUM_PORTS
from tests.sealed import put_page

ROOT = Path(__file__).parents[3]
BAD_METHOD = '''"""A method whose server fails."""
from dataclasses import replace
from typing import ClassVar

from relief_ray.strategies.common import StrategyConfig
from relief_ray.strategies.fedavg import FedAvg


class Bad(StrategyConfig):
    title: ClassVar[str] = "bad"

    def build(self):
        return replace(FedAvg().build(), aggregate=None)
'''
SMALL = [f"--set=backbone.{key}=2" for key in ("conv1", "conv2", "steps", "fusion")]
# Two cells of one round; records only, no copy in MLflow.
SHORT = ["--set=folds=[0]", "--set=seeds=[0]", "--set=rounds=1", "--set=tracking.enabled=false", *SMALL]


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

    def __init__(self, folder):
        self.folder, self.temp = folder, Path(tempfile.mkdtemp(prefix="rc-", dir="/tmp"))
        first = free_range(NUM_PORTS)
        self.port, self.dashboard, self.next_port = first, first + 1, first + 2
        self.token, self.processes = folder / "secret" / "token", []
        self.url = f"http://127.0.0.1:{self.dashboard}"
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {
            "PYTHONPATH": str(ROOT), "HOME": str(folder), "RELIEF_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1",
            "RAY_worker_niceness": "0",
        }  # fmt: skip

    def start(self, name, *words):
        words = [*words, "--token", self.token, "--ports", self.next_port, "--temp-dir", self.temp / name]
        words += ["--num-cpus", 2, "--memory-mib", 4000, "--object-store-mib", 100]
        self.next_port += NUM_PORTS
        with (self.folder / f"{name}.log").open("wb") as log:
            command = [sys.executable, "-m", "actors.cli", "cluster", *map(str, words)]
            process = subprocess.Popen(command, env=self.env, stdout=log, stderr=log, start_new_session=True)
        self.processes.append(process)
        return process

    def run(self, *words, cwd=None):
        command = [sys.executable, "-m", "actors.cli", *map(str, words)]
        done = subprocess.run(
            command, env=self.env, cwd=cwd or self.folder, capture_output=True, text=True, timeout=300
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def submit(self, *words, **options):
        return self.run("submit", "--address", self.url, "--token", self.token, *words, **options)

    def check(self, *words):
        return self.run("cluster", "check", "--address", f"127.0.0.1:{self.port}", "--token", self.token, *words)

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


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A head and a device for two clients of type C."""
    it = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        head = it.start("head", "head", "--port", it.port, "--dashboard-port", it.dashboard)
        until = time.monotonic() + 120
        while time.monotonic() < until and head.poll() is None:
            with suppress(OSError):
                it.status("/api/version")
                break
            time.sleep(0.5)
        it.start("device", "join", f"127.0.0.1:{it.port}", "--type", "c", "--count", 2)
        while len(json.loads(it.check("--json").stdout)["nodes"]) < 2:
            assert time.monotonic() < until and all(p.poll() is None for p in it.processes), it.folder
        yield it
    finally:
        it.close()


pytestmark = [pytest.mark.slow, pytest.mark.ray]


def test_only_the_right_token_opens_the_head(cluster):
    token = cluster.token.read_text()
    assert stat.S_IMODE(cluster.token.stat().st_mode) == 0o600
    assert [cluster.status("/api/jobs/", t) for t in (None, "wrong", token)] == [401, 403, 200]
    assert token not in (cluster.folder / "head.log").read_text()


def test_a_node_with_a_wrong_token_is_told_before_anything_starts(cluster):
    wrong = cluster.folder / "wrong"
    wrong.write_text("0" * 64)
    wrong.chmod(0o600)
    began = time.monotonic()
    done = cluster.run("cluster", "join", f"127.0.0.1:{cluster.port}", "--type", "a", "--token", wrong)
    assert done.returncode == 2 and "does not let this machine in" in done.stderr and time.monotonic() - began < 60
    job = cluster.run("submit", "--address", cluster.url, "--token", wrong, "--", "grid", "smoke")
    assert job.returncode == 2 and "no job server that lets this machine in" in job.stderr


def test_check_shows_the_nodes_and_the_smallest_change(cluster):
    facts = cluster.check("demo", "--json")
    assert facts.returncode == 2, facts.stderr
    shown = json.loads(facts.stdout)
    head, device = shown["nodes"]
    assert head["is_head"] and head["resources"]["server"] == 1 and device["resources"]["type_c"] == 2
    assert head["answer"]["digest"] == device["answer"]["digest"] and len(head["answer"]["digest"]) == 64
    assert device["answer"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert "dsa_mini" in device["answer"]["datasets"] and shown["faults"] == []
    target = shown["target"]
    assert not target["fits"] and target["missing"] == {"type_a": 2, "type_b": 2}
    place = f"127.0.0.1:{cluster.port}"
    assert target["changes"] == [f"relief-ray cluster join {place} --type {t} --count 2" for t in "ab"]
    grid = cluster.check("grid", "smoke")
    assert grid.returncode == 0 and "fits" in grid.stdout, grid.stderr
    assert all(len(line) <= 80 for line in grid.stdout.splitlines())


def test_a_grid_as_a_job_lists_its_files_and_ends_as_the_grid_does(cluster, tmp_path):
    (tmp_path / "bad_method.py").write_text(BAD_METHOD)
    (tmp_path / "results").mkdir()
    (tmp_path / ".rayignore").write_text("results/\n")
    choices = {"dataset": "dsa_mini_held_out", "fold": 0, "backbone": "cnn", "method": "fedavg"}
    choices |= {"settings": {"training.lr": 0.002}, "num_cells": 1}
    choices["choice"] = {"kind": "tuned", "parameters": ["training.lr"], "num_tries": 1, "f1_validation": 0.5}
    tuned = {"grid": "search_lr", "score": "F1", "choices": [choices]}
    put_page(tmp_path / "results" / "tuned.json", tuned)
    good = cluster.submit(
        "--", "grid", "smoke", *SHORT, "--set=methods=[fedavg]", "--set=tuned=results/tuned.json", cwd=tmp_path
    )
    assert good.returncode == 0, good.stdout + good.stderr
    assert "upload: 2 files" in good.stderr and "named  results/tuned.json" in good.stderr
    assert "smoke: 1 done of 1 cells" in good.stdout
    (cell,) = (cluster.folder / "relief-ray").glob("grid-smoke-*/*/run.json")
    assert json.loads(cell.read_text())["config"]["training"]["lr"] == 0.002
    bad = cluster.submit("--", "grid", "smoke", *SHORT, "--set=methods=[fedavg, bad_method:Bad]", cwd=tmp_path)
    assert bad.returncode == 5, bad.stdout + bad.stderr
    assert "1 done, 1 failed of 2 cells" in bad.stdout and "ended with exit code 5" in bad.stderr


def test_ctrl_c_leaves_the_job_running_and_says_how_to_go_on(cluster, tmp_path):
    words = ["submit", "--address", cluster.url, "--token", cluster.token, "--", "run", "quick", "--set=rounds=100000"]
    command = [sys.executable, "-m", "actors.cli", *map(str, [*words, *SMALL])]
    process = subprocess.Popen(
        command, env=cluster.env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert any("1/100000" in line for line in process.stdout), "the job's output is followed"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    (job,) = re.findall(r"--attach (run-quick-\w+)", said)
    details = json.loads(cluster.get(f"/api/jobs/{job}", cluster.token.read_text()))
    assert details["status"] == "RUNNING"
    assert "is asked to stop" in cluster.submit("--stop", job).stdout
    end = cluster.submit("--attach", job)
    assert end.returncode != 0 and "stopping after this round" in end.stdout
    unknown = cluster.submit("--attach", "nothing")
    assert unknown.returncode == 2 and job in unknown.stderr


def test_actors_are_named_after_run_client_and_type(cluster, tmp_path):
    place, token = f"127.0.0.1:{cluster.port}", cluster.token.read_text()
    words = ["run", "quick", "--address", place, "--set=runtime.mode=actors", "--set=rounds=100000", *SMALL]
    env = cluster.env | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(cluster.token)}
    fleet = ["--set=fleet.counts=[0,0,2]", "--set=data.subjects=[1,2]", "--set=fleet.owned={C: [acc, gyro, mag]}"]
    command = [sys.executable, "-m", "actors.cli", *words, *fleet]
    log = (tmp_path / "run.log").open("wb")
    process = subprocess.Popen(command, env=env, cwd=tmp_path, stdout=log, stderr=log)
    wanted, until, names = {"quick/client-0 type C", "quick/client-1 type C", "quick/coordinator"}, time.monotonic(), {}
    try:
        while not wanted <= names.keys():
            assert process.poll() is None and time.monotonic() < until + 120, (tmp_path / "run.log").read_text()
            time.sleep(1)
            actors = json.loads(cluster.get("/api/v0/actors?detail=true", token))["data"]["result"]["result"]
            names = {a["name"]: a["repr_name"] for a in actors if a["state"] == "ALIVE" and a["repr_name"]}
        assert all(names[name] == name for name in wanted)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
        log.close()


def test_a_silent_device_counts_as_lost_within_fifteen_seconds(cluster):
    """The last test of this file: the device does not come back. Ray's own settings would take 65 s."""
    pids = [int(p.name) for p in Path("/proc").glob("[0-9]*") if _is_raylet_of(p, cluster.temp / "device")]
    (pid,) = pids
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    try:
        while _num_alive(cluster) == 2:
            assert time.monotonic() - began < 15
            time.sleep(0.5)
        assert time.monotonic() - began > 3, "a short silence is no loss"
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _is_raylet_of(place, folder):
    with suppress(OSError):
        return (place / "comm").read_text().strip() == "raylet" and str(folder) in (place / "cmdline").read_text()
    return False


def _num_alive(cluster):
    nodes = json.loads(cluster.get("/api/v0/nodes", cluster.token.read_text()))["data"]["result"]["result"]
    return sum(node["state"] == "ALIVE" for node in nodes)
