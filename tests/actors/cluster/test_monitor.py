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

from tests.actors.cluster.loopback import ROOT, Cluster, free_range, loopback

PROGRAM = shutil.which("prometheus")
pytestmark = [
    pytest.mark.slow, pytest.mark.ray, pytest.mark.skipif(PROGRAM is None, reason="prometheus is not on PATH")
]  # fmt: skip
DASHBOARD = json.loads((ROOT / "cluster" / "grafana-dashboard.json").read_text())


class Prometheus:
    """A Prometheus that scrapes the nodes which Ray's head lists in a file."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        port = free_range(20) + 19
        listed = cluster.temp / "head" / "prom_metrics_service_discovery.json"
        (folder / "prometheus.yml").write_text(
            "global: {scrape_interval: 2s}\nscrape_configs:\n  - job_name: ray\n    file_sd_configs:\n"
            f"      - files: [{listed}]\n        refresh_interval: 2s\n"
        )
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


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """A cluster with a run on it, and a Prometheus that has seen some rounds of it."""
    with loopback(tmp_path_factory.mktemp("cluster")) as cluster:
        folder = tmp_path_factory.mktemp("run")
        prometheus = Prometheus(cluster, folder)
        try:
            with cluster.running(folder) as process:
                until = time.monotonic() + 150
                # Two samples of a rate; Ray exports every ten seconds.
                while not all(prometheus.query(text) for text in ("ray_relief_f1", "rate(ray_relief_round[2m]) > 0")):
                    log = (folder / "run.log").read_text()[-2000:]
                    assert process.poll() is None and time.monotonic() < until, log
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
    assert chosen == {"strategy": "(relief)", "dataset": "(dsa_mini)"}
    targets = {(p["title"], t["expr"]) for p in DASHBOARD["panels"] for t in p["targets"]}
    without = []
    for title, text in sorted(targets):
        for name, values in chosen.items():
            text = text.replace(f"${name}", values)
        assert "$" not in text, text
        if not prometheus.query(text):
            without.append((title, text))
    print(f"{len(targets)} queries of {len(DASHBOARD['panels'])} panels, {len(targets) - len(without)} with a series")
    assert len(targets) >= 14 and not without
