"""Debian's Prometheus beside a cluster: it scrapes every node, and each query of the Grafana file has a series.

Skipped where no `prometheus` is on PATH.
"""

import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from tests.actors.cluster.loopback import ROOT, SMALL, Cluster, free_range, loopback
from tests.devices.boards import BOARDS

PROGRAM = shutil.which("prometheus")
pytestmark = [
    pytest.mark.slow, pytest.mark.ray, pytest.mark.skipif(PROGRAM is None, reason="prometheus is not on PATH")
]  # fmt: skip
MONITORING = ROOT / "cluster" / "monitoring"
DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text())


class Prometheus:
    """A Prometheus with the project's configuration, but for the folder and port of the head beside it."""

    def __init__(self, cluster: Cluster, folder: Path, port: int) -> None:
        text = (MONITORING / "prometheus.yml").read_text()
        assert text.count("/tmp/ray/") == 1
        text = text.replace("/tmp/ray/", f"{cluster.temp / 'head'}/").replace("interval: 10s", "interval: 2s")
        (folder / "prometheus.yml").write_text(text)
        self.url = f"http://127.0.0.1:{port}/api/v1"
        words = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
        with (folder / "prometheus.log").open("wb") as log:
            self.process = subprocess.Popen(
                [str(PROGRAM), *words, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log
            )

    def get(self, path: str, **words: str) -> object:
        query = urllib.parse.urlencode(words)
        with suppress(OSError), urllib.request.urlopen(f"{self.url}/{path}?{query}", timeout=10) as answer:
            return json.load(answer)["data"]
        return []

    def query(self, text: str) -> list[dict[str, object]]:
        data = self.get("query", query=text)
        return data["result"] if isinstance(data, dict) else []

    def values(self, label: str, metric: str) -> list[str]:
        """The values of a label, as Grafana's variable ``label_values(metric, label)`` asks for them."""
        values = self.get(f"label/{label}/values", **{"match[]": metric})
        return values if isinstance(values, list) else []


# A gauge of each kind: of a run, a board and a grid; and two samples of a rate. Ray exports every ten seconds.
WANTED = (
    "ray_relief_f1", "rate(ray_relief_round[2m]) > 0", "ray_relief_board_watts",
    'ray_relief_cells{state="running"} > 0', 'ray_relief_f1{strategy="fedavg"}',
)  # fmt: skip


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """A cluster of boards with a physical run and a grid on it, and a Prometheus that has seen some rounds of both."""
    folder, port = tmp_path_factory.mktemp("run"), free_range(20) + 19
    board = BOARDS["orin_nx"](tmp_path_factory.mktemp("board") / "root")
    variables = {"RELIEF_SYSFS": str(board), "RAY_PROMETHEUS_HOST": f"http://127.0.0.1:{port}"}
    with loopback(tmp_path_factory.mktemp("cluster"), **variables) as cluster:
        prometheus = Prometheus(cluster, folder, port)
        grid = ["grid", "smoke", "--set=methods=[fedavg]", "--set=tracking.enabled=false", "--jobs=1", *SMALL]
        try:
            physical = cluster.running(folder, "--set=runtime.physical=true")
            with physical as run, cluster.going(folder, *grid) as cells:
                until = time.monotonic() + 300
                while missing := [text for text in WANTED if not prometheus.query(text)]:
                    log = "".join((folder / name).read_text()[-2000:] for name in ("run.log", "grid.log"))
                    is_up = run.poll() is None and cells.poll() is None
                    assert is_up and time.monotonic() < until, f"{missing}\n{log}"
                    time.sleep(1)
                yield cluster, prometheus
        finally:
            prometheus.process.terminate()
            prometheus.process.wait(timeout=30)


def choices(prometheus: Prometheus) -> dict[str, str]:
    """The dashboard's variables with all their values, as Grafana writes them into a query."""
    chosen = {}
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"]).groups()
            values = prometheus.values(label, metric)
            assert values, variable["name"]
            chosen[variable["name"]] = f"({'|'.join(values)})"
    return chosen


def test_every_node_is_scraped(seen):
    cluster, prometheus = seen
    up = {row["metric"]["instance"].rpartition(":")[2] for row in prometheus.query("up == 1")}
    # Ray writes the machine's own address for 127.0.0.1.
    assert {str(cluster.metrics_port(node)) for node in ("head", "device")} <= up


def test_every_query_of_the_dashboard_has_a_series(seen):
    _, prometheus = seen
    chosen = choices(prometheus)
    assert chosen == {"strategy": "(fedavg|relief)", "dataset": "(dsa_mini)"}
    targets = {(p["title"], t["expr"]) for p in DASHBOARD["panels"] for t in p["targets"]}
    without = []
    for title, text in sorted(targets):
        for name, values in chosen.items():
            text = text.replace(f"${name}", values)
        assert "$" not in text, text
        if not prometheus.query(text):
            without.append((title, text))
    print(f"{len(targets)} queries of {len(DASHBOARD['panels'])} panels, {len(targets) - len(without)} with a series")
    assert len(targets) >= 23 and not without


def test_boards_and_grids_have_the_values_of_their_records(seen):
    _, prometheus = seen

    def value(text):
        (row,) = prometheus.query(text)
        return float(row["value"][1])

    # What the files of the board say: 5 V x 1.6 A, the hottest zone, no alert.
    assert value("max(ray_relief_board_watts)") == pytest.approx(8.0, rel=0.05)
    assert value("max(ray_relief_board_celsius)") == 51.0 and value("max(ray_relief_board_throttled)") == 0.0
    states = {row["metric"]["state"]: float(row["value"][1]) for row in prometheus.query("ray_relief_cells")}
    assert states["running"] == 1 and states["done"] == states["failed"] == 0
    assert states["waiting"] == sum(states.values()) - 1 > 0
    grids = {row["metric"]["grid"] for row in prometheus.query("ray_relief_cells")}
    assert grids == {"smoke"}


def test_rays_dashboard_finds_the_prometheus_that_it_was_told_of(seen):
    cluster, _ = seen
    assert "prometheus running" in cluster.get("/api/prometheus_health", cluster.token.read_text())
