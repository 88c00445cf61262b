"""Runs on two raylets whose second has a cache and data of its own: a program, since a process has one cluster only.

``python two_nodes.py FOLDER`` prints a JSON object: the outcome of every case by name.
"""

import json
import os
import shutil
import sys
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

from actors.runtime.session import short_folder
from actors.runtime.single_run import Hooks, run_experiment
from relief_ray.config.experiment import ExperimentConfig, parse
from relief_ray.data import open_dataset
from relief_ray.data.shard import write_shard
from relief_ray.experiment.experiment import ignore
from relief_ray.experiment.lifecycle import create
from relief_ray.records.run_folder import read_rounds, read_run
from relief_ray.records.schema import comparable
from relief_ray.support.errors import UserError
from tests.loaders import MODULE, write_people

MINI = {"data": {"name": "dsa_mini", "subjects": [1, 2, 3], "stride_s": 10.0, "max_windows_per_client": 20}}
LAB = {
    "data": {"name": "lab:MINE"},
    "fleet": {"types": {"B": {"sensors": ["wrist", "hip"]}, "C": {"sensors": ["wrist"]}}},
}
Values = dict[str, dict[str, object]]


def config(values: Values, **runtime: object) -> ExperimentConfig:
    """Two rounds of three or four clients of all device types; those of type C are on the second node."""
    common = {
        "strategy": "relief",
        "rounds": 2,
        "training": {"epochs": 1},
        "backbone": {"conv1": 2, "conv2": 2, "steps": 4, "fusion": 8},
        "evaluation": {"every": 1},
        "runtime": {"mode": "actors", "placement": "typed"} | runtime,
    }
    return parse(common | values)


def start(folder: Path) -> Cluster:
    """A head for types A and B, and a node for type C with folders of its own."""
    theirs = {"RELIEF_CACHE": str(folder / "board" / "cache"), "RELIEF_DATA": str(folder / "board" / "data")}
    (folder / "board" / "data").mkdir(parents=True)
    common = {"object_store_memory": 80 * 2**20, "include_dashboard": False}
    # `Cluster` writes its address there, whatever its own folder is.
    Path("/tmp/ray").mkdir(mode=0o700, exist_ok=True)
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 2,
            "resources": {"server": 1, "type_a": 2, "type_b": 2},
            "temp_dir": str(short_folder()),
            **common,
        },
    )
    cluster.add_node(num_cpus=1, resources={"type_c": 2}, env_vars=theirs, **common)
    ray.init(address=cluster.address, log_to_driver=False)
    return cluster


def outcome(folder: Path, run: ExperimentConfig, separate: bool = False) -> dict[str, object]:
    """The records of a run without what is measured, what it moved, and its facts; or its refusal."""
    setup, opened = create(run, folder)
    opened.close()
    try:
        run_experiment(setup, folder, Hooks(on_round=None if separate else ignore))
    except UserError as error:
        return {"refused": str(error)}
    rounds = read_rounds(folder)
    return {
        "records": [comparable(r) for r in rounds],
        "moved": [r.moved_bytes for r in rounds],
        "facts": read_run(folder).runtime,
    }


def main(folder: Path) -> dict[str, dict[str, object]]:
    """All cases, one after the other: each finds what the one before it left on the second node."""
    board, done = folder / "board", dict[str, dict[str, object]]()

    def case(name: str, values: Values, **runtime: object) -> None:
        done[name] = outcome(folder / name, config(values, **runtime), separate=name == "excerpt")

    case("excerpt-inline", MINI, mode="inline", placement="virtual")
    case("excerpt", MINI)
    done["excerpt"]["parsed"] = sorted(path.name for path in (board / "cache" / "parsed").iterdir())
    case("refused", LAB, data="node")
    case("inline", LAB, mode="inline", placement="virtual")
    case("sent", LAB)
    settings = config(LAB).data
    for client in (2, 3):
        write_shard(open_dataset(settings), settings, client, board / "data" / f"client-{client}")
    case("shards", LAB)
    shutil.rmtree(board / "data" / "client-3")
    case("stranger", LAB)
    return done


if __name__ == "__main__":
    place = Path(sys.argv[1])
    os.environ |= {"RELIEF_CACHE": str(place / "cache"), "RELIEF_DATA": str(place / "data")}
    write_people(place / "data")
    (place / "code").mkdir()
    (place / "code" / "lab.py").write_text(MODULE + "MINE = GOOD")
    sys.path.insert(0, str(place / "code"))
    running = start(place)
    try:
        print(json.dumps(main(place)))
    finally:
        ray.shutdown()
        running.shutdown()
