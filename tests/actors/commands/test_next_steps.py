"""What a user is told to type next: after a run, and where one run is expected and a folder of several is named."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from actors.commands.plan_text import activation
from tests.actors.conftest import SMALL, Invoke


@pytest.mark.ci
def test_a_run_ends_with_the_next_two_commands_which_work(invoke: Invoke, runs: Path):
    done = invoke("run", "quick", "--out", runs, "--strategies", "fedavg,relief,v1,v3", *SMALL,
                  "--set=costs.utilisation=3e-7")  # fmt: skip
    *_, report, explain = done.stdout.splitlines()
    assert report.endswith(f"relief-ray report {runs}")
    assert explain.strip().startswith(f"relief-ray explain {runs}/relief-s0 --round 2 --client ")
    explained = invoke(*explain.split()[1:])
    assert explained.exit_code == 0 and "what it trains, and why" in explained.stdout
    assert re.search(r"Its data +\d+ windows of subject \d", explained.stdout), "whose data the client has"


def test_the_environment_is_activated_first_where_relief_ray_is_no_command(monkeypatch, tmp_path):
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    activate = tmp_path / "venv" / "bin" / "activate"
    activate.touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    for here, expected in (
        (None, [". venv/bin/activate"]),
        ("/usr/bin/relief-ray", [". venv/bin/activate"]),
        (str(activate.with_name("relief-ray")), []),
    ):
        monkeypatch.setattr(shutil, "which", lambda name, here=here: here)
        assert activation() == expected
    monkeypatch.setattr(sys, "base_prefix", sys.prefix)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert activation() == [], "there is nothing to activate outside of an environment"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("explain",), ("--round", "1", "--client", "0")),
        (("fleet", "show"), ()),
        (("model", "describe"), ()),
        (("model", "export"), ("--out", "exported")),
        (("model", "export"), ("--out", "exported", "--round", "1", "--with-encoder")),
    ],
)
def test_a_folder_of_several_runs_is_answered_with_a_command_for_each(invoke: Invoke, runs: Path, before, after):
    done = invoke(*before, runs, *after)
    assert done.exit_code == 2 and "holds 4 runs, expected one; type one of:" in flat(done)
    commands = [line.strip() for line in done.stderr.splitlines() if line.strip().startswith("relief-ray")]
    assert commands == [
        " ".join(["relief-ray", *before, str(runs / name), *after])
        for name in ("fedavg-s0", "relief-s0", "v1-s0", "v3-s0")
    ]


@pytest.mark.parametrize("command", [("compare",), ("model", "evaluate"), ("sync",), ("fleet", "whatif")])
def test_a_folder_of_folders_of_runs_is_answered_with_a_command_for_each(invoke: Invoke, runs: Path, command):
    done = invoke(*command, runs.parent, *(["--epochs", 2] if command[-1] == "whatif" else []))
    assert done.exit_code == 2 and "1 folders of runs" not in done.stdout
    assert f"relief-ray {' '.join(command)} {runs}" in done.stderr


def test_a_folder_that_is_no_run_says_so(invoke: Invoke, tmp_path):
    assert "no such folder" in flat(invoke("explain", tmp_path / "x", "--round", 1, "--client", 0))
    assert "no run.json there or below" in flat(invoke("explain", tmp_path, "--round", 1, "--client", 0))
    (tmp_path / "runs").mkdir()
    done = invoke("run", tmp_path / "runs")
    assert done.exit_code == 2 and "go on with its runs: relief-ray resume" in flat(done)


def test_json_of_a_run_has_no_advice(invoke: Invoke, runs: Path):
    done = invoke(
        "run", "quick", "--out", runs, "--strategies", "relief", *SMALL, "--set=costs.utilisation=3e-7", "--json"
    )
    assert all(json.loads(line) for line in done.stdout.splitlines())


def flat(done) -> str:
    """Standard error with its line breaks undone."""
    return " ".join(done.stderr.split())
