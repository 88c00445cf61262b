"""A grid as a Ray job, submitted as the README says: a head on loopback, the code uploaded, the metrics scraped."""

import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from actors.runtime.gauges import GAUGES
from relief_ray.records.run_folder import read_run
from relief_ray.studies.plan import Plan

ROOT = Path(__file__).parents[3]
RAY = Path(sys.executable).with_name("ray")
CORES, MAX_TRIES = "2", 4


def free_ports(number):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def get(url, until_s):
    while True:
        try:
            return urllib.request.urlopen(url, timeout=5).read().decode()
        except urllib.error.HTTPError as error:
            return str(error)
        except OSError:
            assert time.monotonic() < until_s, f"nobody answers at {url}"
            time.sleep(0.5)


@pytest.fixture(params=[None, {"server": 1, "type_a": 2, "type_c": 1}], ids=["bare", "resources"])
def head(request, tmp_path):
    """A cluster of one node, without custom resources or with those of a testbed; its processes end as one group.

    The project is on it as an installed command alone: the environment's ``bin`` is on its PATH, the sources are not.
    """
    port, dashboard, metrics, agent = free_ports(4)
    folder = tempfile.mkdtemp(prefix="rj-", dir="/tmp")
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | token
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    words = [RAY, "start", "--head", "--block", f"--port={port}", f"--dashboard-port={dashboard}"]
    words += ["--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1", f"--num-cpus={CORES}"]
    words += [f"--temp-dir={folder}", f"--metrics-export-port={metrics}", f"--dashboard-agent-listen-port={agent}"]
    words += ["--object-store-memory=300000000"]
    words += [f"--resources={json.dumps(request.param)}"] if request.param else []
    with (tmp_path / "head.log").open("wb") as log:
        process = subprocess.Popen(words, env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        get(f"http://127.0.0.1:{dashboard}/api/version", time.monotonic() + 90)
        # The node's agent starts jobs and serves metrics; it is up later than the dashboard.
        get(f"http://127.0.0.1:{metrics}/metrics", time.monotonic() + 90)
        time.sleep(5)
        yield f"http://127.0.0.1:{dashboard}", f"http://127.0.0.1:{metrics}/metrics", env
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=20)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.ray
def test_the_smoke_grid_as_a_job(head, tmp_path):
    dashboard, metrics, env = head
    out = tmp_path / "out"
    words = [RAY, "job", "submit", "--address", dashboard, "--working-dir", ".", "--", "relief-ray", "grid", "smoke"]
    words += ["--out", str(out), "--set", "rounds=12", "--set", "tracking.enabled=false"]
    seen: set[str] = set()
    # The head takes jobs some time after it answers; until then a submission is refused before anything is run.
    for _ in range(MAX_TRIES):
        with (tmp_path / "job.log").open("wb") as log:
            job = subprocess.Popen(words, cwd=ROOT, env=env, stdout=log, stderr=log)
        while job.poll() is None:
            seen |= set(re.findall(r"^ray_relief_(\w+)\{", get(metrics, time.monotonic() + 60), flags=re.M))
            time.sleep(1)
        if "No available agent" not in (tmp_path / "job.log").read_text():
            break
        time.sleep(5)
    said = (tmp_path / "job.log").read_text()
    assert job.returncode == 0, said[-3000:]
    assert {e.status for e in Plan.read(out, kind="grid").look()} == {"done"}
    assert {read_run(e.folder).parent for e in Plan.read(out, kind="grid").look()} == {"smoke"}
    assert "smoke: 12 done of 12 cells" in said and "Traceback" not in said
    names = {name for labels, gauges in GAUGES.items() if "host" not in labels for name in gauges}
    assert seen == names - {"host_peak_mib"}, "of hosts in a `run`, of boards in a physical one"
