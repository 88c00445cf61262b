"""A grid whose driver is killed again and again ends as if nobody had touched it: every cell once, bit for bit."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from relief_ray.records.run_folder import read_rounds, read_run
from relief_ray.records.schema import comparable
from relief_ray.studies.plan import Plan

ROOT = Path(__file__).parents[3]
SETTINGS = ["--set", "rounds=5", "--set", "tracking.enabled=false"]
CELLS = ["--strategies", "fedavg,relief"]
NUM_CELLS, NUM_KILLS = 8, 5


def grid(*words, log, **variables):
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables}
    with log.open("ab") as file:
        command = [sys.executable, "-m", "actors.cli.main", "grid", *words]
        return subprocess.Popen(command, stdout=file, stderr=file, env=env, cwd=log.parent, start_new_session=True)


def finish(*words, log):
    process = grid(*words, log=log)
    assert process.wait(timeout=300) == 0, log.read_text()[-3000:]


def results(out):
    cells = [cell.name for cell in Plan.read(out, kind="grid").cells]
    return {name: [comparable(r) for r in read_rounds(out / name)] for name in cells}


def rounds_in(out):
    return sum(path.read_bytes().count(b"\n") for path in out.glob("*/rounds.jsonl"))


@pytest.mark.slow
@pytest.mark.ray
def test_sigkill_of_the_driver_at_random_moments(tmp_path):
    log, undisturbed, killed = tmp_path / "log", tmp_path / "undisturbed", tmp_path / "killed"
    finish("smoke", *SETTINGS, *CELLS, "--out", str(undisturbed), log=log)
    expected = results(undisturbed)
    total = rounds_in(undisturbed)
    assert len(expected) == NUM_CELLS
    chance, finished, moments = random.Random(time.time_ns()), {}, []
    words = ["smoke", *SETTINGS, *CELLS, "--out", str(killed)]
    for kill in range(NUM_KILLS):
        process = grid(*words, log=log)
        goal = total * (kill + chance.random()) / (NUM_KILLS + 1)
        while rounds_in(killed) < goal:
            assert process.poll() is None, log.read_text()[-3000:]
            time.sleep(0.01)
        time.sleep(0.5 * chance.random())
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        moments.append(rounds_in(killed))
        for path in killed.glob("*/run.json"):
            run = json.loads(path.read_text())
            if run["status"] == "done":
                # A cell that was done before a kill is never touched again.
                assert finished.setdefault(path.parent.name, path.read_bytes()) == path.read_bytes()
        words = ["resume", str(killed)]
    finish(*words, log=log)
    print(f"killed after {moments} of {total} rounds; {len(finished)} cells were done before the last kill")
    assert results(killed) == expected, moments
    entries = Plan.read(killed, kind="grid").look()
    assert [e.status for e in entries] == ["done"] * NUM_CELLS
    assert sorted(p.parent.name for p in killed.glob("*/run.json")) == sorted(expected)
    for name, content in finished.items():
        assert (killed / name / "run.json").read_bytes() == content, name
    assert {read_run(killed / n).parent for n in expected} == {"smoke"}
    assert not (killed / ".tune").exists()


@pytest.mark.slow
@pytest.mark.ray
def test_cells_that_ray_ends_for_memory_are_named_and_a_resume_computes_them(tmp_path):
    """With a threshold below what any machine uses, Ray's monitor ends every cell's process."""
    log, out = tmp_path / "log", tmp_path / "out"
    words = ["smoke", *SETTINGS, "--strategies", "fedavg", "--folds", "[0]", "--seeds", "0,1", "--out", str(out)]
    process = grid(*words, log=log, RAY_memory_usage_threshold="0.001")
    assert process.wait(timeout=300) == 5, log.read_text()[-3000:]
    said = " ".join(log.read_text().split())
    assert "internal error" not in said and "Traceback" not in said
    entries = Plan.read(out, kind="grid").look()
    assert [e.status for e in entries] == ["failed"] * len(entries)
    for entry in entries:
        assert "ended by Ray because this node ran low on memory" in entry.why, entry.why
    finish("resume", str(out), log=log)
    assert {e.status for e in Plan.read(out, kind="grid").look()} == {"done"}
