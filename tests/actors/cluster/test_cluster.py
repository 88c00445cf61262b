"""A head and a device on loopback, as their commands start them: who is let in, what is shown, jobs and exit codes."""

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.actors.cluster.loopback import SMALL, loopback
from tests.sealed import put_page

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
# Two cells of one round; records only, no copy in MLflow.
SHORT = ["--set=folds=[0]", "--set=seeds=[0]", "--set=rounds=1", "--set=tracking.enabled=false", *SMALL]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with loopback(tmp_path_factory.mktemp("cluster")) as it:
        yield it


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


# A clock that is two hours ahead, for Python's processes: Ray's own ones compare their times with one another.
AHEAD = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <time.h>
static int is_python;
/* Later a worker of Ray changes its name. */
__attribute__((constructor)) static void look(void) {
    is_python = strstr(program_invocation_short_name, "python") != NULL;
}
int clock_gettime(clockid_t which, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(which, now);
    if (which == CLOCK_REALTIME && is_python) now->tv_sec += 7200;
    return code;
}
"""


def test_the_doctor_names_versions_and_clocks_of_all_nodes(cluster, monkeypatch):
    place = f"127.0.0.1:{cluster.port}"
    done = cluster.run("doctor", "--address", place, "--token", cluster.token, "--json")
    lines = [check for check in json.loads(done.stdout)["checks"] if check["part"] in ("head", "node", "nodes")]
    assert [(line["part"], line["status"]) for line in lines] == [("head", "ok"), ("node", "ok"), ("node", "ok")]
    python = ".".join(map(str, sys.version_info[:3]))
    assert all(f": Python {python}, Ray " in line["seen"] for line in lines[1:])
    if shutil.which("cc") is None:
        pytest.skip("no compiler: no node has another clock")
    (cluster.folder / "ahead.c").write_text(AHEAD)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", "ahead.so", "ahead.c", "-ldl"], cwd=cluster.folder, check=True)
    monkeypatch.setitem(cluster.env, "LD_PRELOAD", str(cluster.folder / "ahead.so"))
    late = cluster.start("late", "join", place)
    monkeypatch.delitem(cluster.env, "LD_PRELOAD")
    while cluster.num_nodes() < 3:
        assert late.poll() is None, (cluster.folder / "late.log").read_text()
    done = cluster.run("doctor", "--address", place, "--token", cluster.token, "--json")
    (line,) = (check for check in json.loads(done.stdout)["checks"] if check["part"] == "nodes")
    assert re.search(r"is \+7,[12]\d\d s from this machine's", line["seen"]) and line["status"] == "warning"
    assert line["fix"] == "there: timedatectl set-ntp true" and done.returncode == 0
    os.killpg(late.pid, signal.SIGTERM)
    late.wait(timeout=60)


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
    command = [sys.executable, "-m", "actors.cli.main", *map(str, [*words, *SMALL])]
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
    token = cluster.token.read_text()
    wanted, until, names = {"quick/client-0 type C", "quick/client-1 type C", "quick/coordinator"}, time.monotonic(), {}
    with cluster.running(tmp_path) as process:
        while not wanted <= names.keys():
            assert process.poll() is None and time.monotonic() < until + 120, (tmp_path / "run.log").read_text()
            time.sleep(1)
            actors = json.loads(cluster.get("/api/v0/actors?detail=true", token))["data"]["result"]["result"]
            names = {a["name"]: a["repr_name"] for a in actors if a["state"] == "ALIVE" and a["repr_name"]}
        assert all(names[name] == name for name in wanted)


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
