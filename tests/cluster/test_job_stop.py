"""A job is stopped within seconds in a container whose first process takes in no ended children.

Such is every container whose first process is the head itself (`docker run` without `--init`, a pod). Needs root.
"""

import json
import os
import re
import shutil
import time
from collections.abc import Callable

import pytest

from tests.actors.cluster.loopback import SMALL, Cluster

pytestmark = [
    pytest.mark.lab, pytest.mark.slow, pytest.mark.ray,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="namespaces need root, util-linux"),
]  # fmt: skip
ALONE = ("unshare", "--pid", "--mount-proc", "--fork", "--kill-child=SIGKILL")


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


def test_a_job_whose_ended_children_nobody_takes_in_is_stopped_within_ten_seconds(head, tmp_path):
    begun = head.submit("--detach", "--env", "NOTE=seen", "--", "run", "quick", "--set=rounds=100000", *SMALL)
    (job,) = re.findall(r"--attach (run-quick-\w+)", begun.stderr)
    assert f"--token {head.token} --attach {job}" in begun.stderr, "the hint can be typed as it is"
    records = tmp_path / "relief-ray" / job
    until(lambda: [*records.glob("*/rounds.jsonl")], 120)
    (ledger,) = records.glob("*/rounds.jsonl")
    until(lambda: ledger.read_text().count("\n") > 3, 60)

    def details() -> dict:
        return json.loads(head.get(f"/api/jobs/{job}", head.token.read_text()))

    assert details()["status"] == "RUNNING" and details()["runtime_env"]["env_vars"] == {"NOTE": "seen"}
    assert "is asked to stop" in head.submit("--stop", job).stdout
    seconds = until(lambda: details()["status"] == "STOPPED", 120)
    assert seconds < 10, seconds
    assert json.loads((ledger.parent / "run.json").read_text())["status"] == "interrupted"
