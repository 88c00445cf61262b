"""Tests which cells fit into a budget, and the number of cores that counts."""

import math
import os
import subprocess
import sys

import pytest

from actors.commands.plan_text import num_places
from actors.commands.run import Options, within_budget
from actors.grids.estimate import START_S
from relief_ray.support.process import num_cores
from tests.actors.grids.tiny_plans import tiny_plan
from tests.actors.trials import run_alone

JOINED = """
from pathlib import Path
from actors.commands.plan_text import num_places
from relief_ray.studies.plan import Plan
plan = Plan(kind="grid", out=Path(), name="g", cells=())
print(num_places(plan, (), None), num_places(plan, (), None))
"""


def test_a_budget_leaves_time_for_ray_to_start(tmp_path, capsys):
    """Cells of a tenth of a second: without Ray's start all of them would fit into either budget."""
    plan = tiny_plan(tmp_path, methods=("fedavg",), seeds=(0, 1, 2)).write()
    run_alone(plan.look()[0])
    entries = plan.look()
    todo = [e for e in entries if e.status == "planned"]
    assert len(todo) == 2
    assert within_budget(plan, entries, todo, Options(budget=f"{START_S - 1.0}s")) == []
    assert "0 of 2 cells to do fit; give it more" in capsys.readouterr().out
    assert within_budget(plan, entries, todo, Options(budget=f"{START_S + 60.0}s")) == todo
    assert "2 of 2 cells to do fit" in capsys.readouterr().out
    assert within_budget(plan, entries, todo, Options()) == todo and math.isinf(Options().left_s())


def test_without_a_cluster_the_cores_are_this_processs(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    plan = tiny_plan(tmp_path)
    assert num_places(plan, plan.look(), None) == num_cores()


@pytest.mark.ci
@pytest.mark.ray
def test_the_cores_of_a_cluster_are_the_cluster_s(cluster):
    """Joined twice by another process: for the forecast, then for the cells."""
    import ray

    joined = {**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    done = subprocess.run([sys.executable, "-c", JOINED], env=joined, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.split()) == (0, ["3", "3"]), done.stderr
