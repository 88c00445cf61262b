"""Bytes that a round moves to and from the coordinator, by clients, workers and nodes; every layout gives equal bits.

``python -m benchmarks.traffic [--clients 100 400] [--workers 2 5 8] [--nodes 1 4]`` runs three rounds of FedAvg for
each combination on a Ray cluster of its own here. It prints a line of JSON each: ``moved_mb``, of which the model takes
``model_mb`` a node, and the digest of the trained model, which depends on the clients alone. No data is needed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

from actors.runtime.session import short_folder
from benchmarks.engine.noop import scenario_of
from benchmarks.engine.product import Product
from benchmarks.engine.scenario import setup, start_of, write

STORE_BYTES = 300 * 2**20
MB = 10**6
ROUNDS = 3


def measure(folder: Path, num_clients: int, num_workers: int, num_nodes: int) -> dict[str, object]:
    """Figures of the last round; of several nodes none is the coordinator's own."""
    prepared = setup(write(scenario_of(folder, num_clients), peers=False), num_hosts=num_workers)
    cpus = -(-num_workers // num_nodes)
    common = {"object_store_memory": STORE_BYTES, "include_dashboard": False}
    head = {"num_cpus": cpus if num_nodes == 1 else 0, "resources": {"server": 1}, "temp_dir": str(short_folder())}
    Path("/tmp/ray").mkdir(mode=0o700, exist_ok=True)  # `Cluster` writes its address there
    cluster: Any = Cluster(initialize_head=True, head_node_args=head | common)
    try:
        for _ in range(num_nodes if num_nodes > 1 else 0):
            cluster.add_node(num_cpus=cpus, **common)
        ray.init(address=cluster.address, log_to_driver=False)
        with closing(Product(prepared, folder / "run")) as running:
            running.run(ROUNDS)
            record = running.records[-1]
            return {
                "clients": num_clients,
                "workers": num_workers,
                "nodes": num_nodes,
                "moved_mb": round(record.moved_bytes / MB, 1),
                "model_mb": round(4 * len(start_of(prepared)) / MB, 1),
                "sha256": record.model_sha256,
            }
    finally:
        ray.shutdown()
        cluster.shutdown()


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every combination, each in a process of its own: a process has one cluster."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, values in (("clients", [100, 400]), ("workers", [2, 5, 8]), ("nodes", [1, 4])):
        parser.add_argument(f"--{name}", type=int, nargs="+", default=values, metavar="N")
    chosen = parser.parse_args(arguments)
    combinations = list(product(chosen.clients, chosen.workers, chosen.nodes))
    if len(combinations) == 1:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measure(Path(folder), *combinations[0])), flush=True)
        return
    for clients, workers, nodes in combinations:
        layout = ["--clients", str(clients), "--workers", str(workers), "--nodes", str(nodes)]
        subprocess.run([sys.executable, "-m", "benchmarks.traffic", *layout], check=True)


if __name__ == "__main__":
    main()
