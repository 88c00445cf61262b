"""Where work and records lie, in a lab of private disks and empty caches: the serial run's bits, and all nodes busy."""

import os
import time
from pathlib import Path

import pytest

from relief_ray.records.run_folder import read_run
from relief_ray.studies.plan import Plan
from tests.cluster.labs import ADDRESS, NO_LAB, Lab, digests, is_possible, make_lab

pytestmark = [
    pytest.mark.lab_long,
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.skipif(not is_possible(), reason=NO_LAB),
]
QUOTA_PERCENT = 40
NODES = ("a:3", "b:3", "c:2")
# The public data set where it is, else the excerpt that ships with the package.
DATA = os.environ.get("RELIEF_DATA")
DSA = ["run", "dsa" if DATA else "demo", "--json", "--strategies=fedavg,relief", "--folds=0", "--rounds=10"]
DSA += ["--set=tracking.enabled=false"] if DATA else ["--seeds=[0]", "--set=tracking.enabled=false"]


def up(name: str):
    """A lab whose nodes see the data set's own file at most: nothing is parsed."""
    return make_lab(name, *NODES, *(["--data", DATA] if DATA else []))


def runs_in(folder: Path) -> dict[str, list[str]]:
    return {path.parent.name: digests(path.parent) for path in sorted(folder.glob("*/run.json"))}


def test_a_typed_run_from_the_head_and_from_a_device_has_the_serial_bits():
    with up("p") as lab:
        lab.start("head", "all")
        lab.command("quota", "head,a,b,c", QUOTA_PERCENT)
        typed = [*DSA, "--placement=typed", ADDRESS]
        took_s = {}
        for node in ("head", "a"):
            began_s = time.monotonic()
            lab.run(node, *typed, f"--out=from-{node}")
            took_s[node] = time.monotonic() - began_s
        lab.command("quota", "head", "none")
        lab.run("head", *DSA, "--set=runtime.mode=inline", "--out=serial")
        serial = runs_in(lab.files("head") / "serial")
        assert len(serial) == 2 and all(len(rounds) >= 10 for rounds in serial.values())
        for node in ("head", "a"):
            folder = lab.files(node) / f"from-{node}"
            assert runs_in(folder) == serial, node
            facts = [read_run(path.parent).runtime for path in folder.glob("*/run.json")]
            assert [f["placement"] for f in facts] == ["typed"] * 2 and [f["num_nodes"] for f in facts] == [3] * 2
            print(f"from {node}: {took_s[node]:.0f} s, {serial and {k: v[-1][:8] for k, v in serial.items()}}")


FIVE = """{hub: {tops: 21, active_power_w: 15, count: 1}, phone: {tops: 5, active_power_w: 4, share: 1},
watch: {like: phone, tops: 0.8, sensors: acc, count: 2}}"""


def test_a_fleet_of_other_types_runs_where_its_types_joined():
    """`cluster join --type watch`: each client on a node of its type, with the serial run's bits."""
    line = [
        "run",
        "quick",
        "--json",
        "--strategies=relief",
        f"--set=fleet.types={FIVE}",
        "--set=tracking.enabled=false",
    ]
    with make_lab("t", "hub:1", "phone:5", "watch:2") as lab:
        lab.start("head", "all")
        lab.run("head", *line, "--placement=typed", ADDRESS, "--out=typed")
        lab.run("head", *line, "--set=runtime.mode=inline", "--out=serial")
        typed, serial = (runs_in(lab.files("head") / out) for out in ("typed", "serial"))
        assert typed == serial and len(typed) == 1
        (run,) = (read_run(path.parent) for path in (lab.files("head") / "typed").glob("*/run.json"))
        assert run.runtime["placement"] == "typed"


def cells_of(lab: Lab, out: str) -> dict[str, list[str]]:
    entries = Plan.read(lab.files("head") / out, kind="grid").look()
    assert {entry.status for entry in entries} == {"done"}
    return {entry.cell.name: digests(entry.folder) for entry in entries}


def test_a_grid_of_long_cells_is_faster_on_four_nodes_than_on_the_head():
    """Six cells of over a minute of processor time each, at 40 % of a core for each node.

    The head starts a process for each cell, does the server's part of each round and computes cells too. With four
    cells the others waited for its own; of 160 short rounds the server's part alone kept it busy. So there are six
    cells of long rounds: the others take what the head has no time for.
    """
    grid = ["grid", "smoke", "--json", ADDRESS, "--set=tracking.enabled=false", "--set=evaluation.every=1000"]
    grid += ["--strategies=fedavg,relief", "--seeds=0-2", "--folds=[0]"]
    grid += [
        f"--set=rounds={os.environ.get('LAB_ROUNDS', '32')}",
        "--set=training.epochs=10",
        "--set=runtime.data=auto",
    ]
    with up("g") as lab:
        lab.start("head")
        lab.command("quota", "head,a,b,c", QUOTA_PERCENT)
        began_s = time.monotonic()
        lab.run("head", *grid, "--out=alone", timeout_s=3000)
        alone_s = time.monotonic() - began_s
        lab.command("quota", "all", "none")
        lab.start("all")
        lab.command("quota", "all", QUOTA_PERCENT)
        began_s = time.monotonic()
        lab.run("head", *grid, "--out=four", timeout_s=3000)
        four_s = time.monotonic() - began_s
        print(f"{alone_s:.0f} s on the head, {four_s:.0f} s on four nodes: {alone_s / four_s:.2f} times as fast")
        assert cells_of(lab, "four") == cells_of(lab, "alone")
        assert alone_s >= 2.2 * four_s
