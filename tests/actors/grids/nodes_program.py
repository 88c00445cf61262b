"""A cluster of real raylets on this machine, in a process of its own: ``grid FOLDER`` and, inside it, ``run FOLDER``.

``grid``: one node to begin with; a second joins once a cell has ended. Then a driver that belongs to the second node
starts ``run``. What was seen is printed as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

from actors.grids.scheduler import fit
from actors.runtime.placement import driver_node
from actors.runtime.single_run import run_experiment
from relief_ray.config.experiment import parse
from relief_ray.experiment.lifecycle import create
from relief_ray.studies.loop import Loop
from relief_ray.studies.progress import Callback, End
from relief_ray.studies.spec import Cell
from tests.actors.grids.tiny_plans import TINY, tiny_plan
from tests.actors.runtime.struck import struck

BOARD_IP = "127.0.0.2"
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}


def busy_nodes() -> set[str]:
    """Nodes without a free core."""
    free = ray._private.state.available_resources_per_node()
    return {node for node, offered in free.items() if offered.get("CPU", 0.0) < 0.5}


def grid(out: Path) -> None:
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    plan, notes, ended, busy = tiny_plan(out, seeds=(0, 1, 2, 3)).write(), [], [], set()

    def tick() -> None:
        if ended and len(ray.nodes()) == 1:
            cluster.add_node(node_ip_address=BOARD_IP, **NODE)
        busy.update(busy_nodes())

    class Seen(Callback):
        """Keeps notes and ends."""

        def end(self, cell: Cell, end: End) -> None:
            ended.append([cell.name, end.why])

        def note(self, text: str) -> None:
            notes.append(text)

    fit(Loop(plan, Seen(), plan.look(), lambda: bool(tick())))
    head, nodes = driver_node(), {node["NodeID"] for node in ray.nodes()}
    ray.shutdown()
    words = [sys.executable, __file__, "run", str(out / "run"), cluster.address]
    driven = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert driven.returncode == 0, driven.stderr[-3000:]
    cluster.shutdown()
    facts = {"head": head, "joined": sorted(nodes - {head}), "busy": sorted(busy), "notes": notes, "ended": ended}
    print(json.dumps({**facts, **json.loads(driven.stdout)}))


def run(folder: Path, address: str) -> None:
    ray.init(address=address, _node_ip_address=BOARD_IP, log_to_driver=False, logging_level="ERROR")
    values = {"strategy": "relief", "data": {"name": "dsa_mini", "max_windows_per_client": 6}, "rounds": 1}
    config = parse({**values, "backbone": TINY["backbone"], "runtime": {"mode": "packed", "num_hosts": 2}})
    setup, opened = create(config, folder)
    opened.close()
    seen = folder.with_name("coordinator")
    status = run_experiment(struck(setup, lambda round_: seen.write_text(driver_node())), folder).status
    print(json.dumps({"run": status, "driver": driver_node(), "coordinator": seen.read_text()}))
    ray.shutdown()


if __name__ == "__main__":
    command, place, *rest = sys.argv[1:]
    grid(Path(place)) if command == "grid" else run(Path(place), *rest)
