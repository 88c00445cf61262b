"""A grid whose whole cluster is destroyed three times and goes on from its copy outside, on clusters that are new."""

import random
from pathlib import Path

import pytest

from relief_ray.records.run_folder import read_rounds
from relief_ray.records.schema import comparable
from relief_ray.studies.plan import Plan
from tests.cluster.labs import ADDRESS, NO_LAB, TINY, is_possible, left_of, make_lab

pytestmark = [
    pytest.mark.lab_long,
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.skipif(not is_possible(), reason=NO_LAB),
]
GRID = ["grid", "smoke", "--json", ADDRESS, *TINY, "--set=rounds=30", "--set=tracking.enabled=false"]
NUM_KILLS = 3


def rounds_in(folder: Path) -> dict[str, list[object]]:
    return {path.parent.name: [comparable(r) for r in read_rounds(path.parent)] for path in folder.glob("*/run.json")}


def num_sent(copy: Path) -> int:
    """Rounds that have arrived."""
    return sum(path.read_bytes().count(b"\n") for path in copy.glob("*/rounds.jsonl"))


def test_a_grid_survives_the_loss_of_its_whole_cluster(tmp_path):
    copy, total, moments = tmp_path / "copy", 12 * 30, list[int]()
    words = [*GRID, "--mirror", f"file://{copy}", "--out=grid"]
    for life in range(NUM_KILLS + 1):
        with make_lab(f"m{life}", "a", "b", "--store", tmp_path) as lab:
            lab.start("head", "all")
            if life == NUM_KILLS:
                lab.run("head", *words)
                assert {e.status for e in Plan.read(lab.files("head") / "grid", kind="grid").look()} == {"done"}
                lab.run("head", *GRID, "--set=runtime.mode=inline", "--out=whole")
                assert rounds_in(lab.files("head") / "grid") == rounds_in(lab.files("head") / "whole")
                assert rounds_in(copy) == rounds_in(lab.files("head") / "whole") and len(rounds_in(copy)) == 12
                break
            # Each life gets on by a round at least.
            goal = max(num_sent(copy) + 1, total * (life + random.random()) / (NUM_KILLS + 1))
            running = lab.go("head", *words)
            running.until(lambda goal=goal: num_sent(copy) >= goal, 300)
            lab.command("down")
            moments.append(num_sent(copy))
            assert left_of(lab.name) == []
        words = ["grid", "resume", f"file://{copy}", "--json", "--out=grid"]
    print(f"destroyed after {moments} of {total} rounds had arrived")
