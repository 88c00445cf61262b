"""A job is stopped within seconds in a container whose first process takes in no ended children.

Such is every container whose first process is the head itself (`docker run` without `--init`, a pod). Needs root.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from actors.cluster.jobs import entrypoint
from tests.actors.cluster.loopback import SMALL, Cluster

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="namespaces need root and util-linux"
)
ALONE = ("unshare", "--pid", "--mount-proc", "--fork", "--kill-child=SIGKILL")
# The first process waits for one child alone, which stops a command of a shell with Ray's own functions.
STOPPING = """
import asyncio, os, signal, subprocess, sys, time
from pathlib import Path
if child := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
import psutil
from ray.dashboard.modules.job.job_supervisor import JobSupervisor
shell = subprocess.Popen(sys.argv[1], shell=True, start_new_session=True)
while not Path("ready").exists():
    time.sleep(0.05)
processes = [psutil.Process(shell.pid), *psutil.Process(shell.pid).children(recursive=True)]
began_s = time.monotonic()
JobSupervisor._kill_processes(None, processes, signal.SIGTERM)
try:
    asyncio.run(asyncio.wait_for(JobSupervisor._poll_all(JobSupervisor, processes), 10))
    print(time.monotonic() - began_s, Path("ended").exists())
except asyncio.TimeoutError:
    print("after 10 s it still counts as running", Path("ended").exists())
"""
COMMAND = """#!/bin/sh
trap 'sleep 0.3; touch ended; exit 130' TERM
touch ready
while :; do sleep 0.1; done
"""


@pytest.mark.ci
@pytest.mark.parametrize("words", [["grid", "smoke"], ["run", "demo", "--out=~/x"], ["data", "list"]], ids=" ".join)
def test_a_command_whose_shell_nobody_would_take_in_counts_as_ended_when_it_ends(tmp_path, words):
    (tmp_path / "relief-ray").write_text(COMMAND)
    (tmp_path / "relief-ray").chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def stop(command: str) -> str:
        for name in ("ready", "ended"):
            (tmp_path / name).unlink(missing_ok=True)
        program = [*ALONE, sys.executable, "-c", STOPPING, command]
        done = subprocess.run(program, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    command = entrypoint(words, "j")
    seconds, ended = stop(command).split()
    assert float(seconds) < 5 and ended == "True"
    if words == ["data", "list"]:
        # What the kernel does, without which this would show nothing.
        assert stop(command.removeprefix("exec ")) == "after 10 s it still counts as running True\n"


def until(is_so: Callable[[], object], within_s: float) -> float:
    """Wait until something is so; return the seconds that it took."""
    began_s = time.monotonic()
    while not is_so():
        assert time.monotonic() - began_s < within_s
        time.sleep(0.1)
    return time.monotonic() - began_s


@pytest.fixture
def head(tmp_path):
    """A head that is the first process of a namespace."""
    cluster = Cluster(tmp_path)
    try:
        cluster.start("head", "head", "--port", cluster.port, "--dashboard-port", cluster.dashboard, before=ALONE)
        until(lambda: cluster.num_nodes() == 1, 240)
        yield cluster
    finally:
        cluster.close()


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.ray
def test_a_job_whose_ended_children_nobody_takes_in_is_stopped_within_ten_seconds(head, tmp_path):
    begun = head.submit(
        "--detach",
        "--env",
        "NOTE=seen",
        "--",
        "run",
        "quick",
        "--set=rounds=100000",
        "--set=runtime.num_hosts=1",
        *SMALL,
    )
    (job,) = re.findall(r"--attach (run-quick-\w+)", begun.stderr)
    assert f"--token {head.token} --attach {job}" in begun.stderr, "the hint can be typed as it is"
    records = tmp_path / "relief-ray" / job
    until(lambda: [*records.glob("*/rounds.jsonl")], 240)
    (ledger,) = records.glob("*/rounds.jsonl")
    until(lambda: ledger.read_text().count("\n") > 3, 240)

    def details() -> dict:
        return json.loads(head.get(f"/api/jobs/{job}", head.token.read_text()))

    assert details()["status"] == "RUNNING" and details()["runtime_env"]["env_vars"] == {"NOTE": "seen"}
    assert "is asked to stop" in head.submit("--stop", job).stdout
    seconds = until(lambda: details()["status"] == "STOPPED", 120)
    assert seconds < 10, seconds
    assert json.loads((ledger.parent / "run.json").read_text())["status"] == "interrupted"
