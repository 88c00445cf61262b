"""Users' code has a process of its own: what it does there meets no other run, and what depends on it is named."""

import json
from contextlib import nullcontext
from pathlib import Path

import pytest

import relief_ray as rr
from relief_ray.experiment.experiment import ignore, never
from relief_ray.plugins import blame
from relief_ray.plugins.fresh import call_fresh
from relief_ray.records.run_folder import read_rounds, read_run
from relief_ray.strategies.fedavg import aggregate
from tests import leaky
from tests.own import METHOD
from tests.studies.conftest import SMALL

WORDS = {"backbone": SMALL, "rounds": 2, "training": {"epochs": 1}, "quiet": True}
OTHERS = ["fedavg", "relief"]
NOBODY = """from dataclasses import replace

import relief_ray as rr


def nobody(state, context):
    return ()


class Mine(rr.FedAvg):
    def build(self):
        return replace(super().build(), allocate=nobody)
"""
ALL = leaky.FREE | leaky.BOUND


@pytest.fixture(scope="module")
def alone(run_cache, tmp_path_factory):
    """Final models of both methods, computed before any of users' code is here."""
    assert not blame.has_users_code()
    study = rr.run("quick", strategies=OTHERS, out=tmp_path_factory.mktemp("alone") / "a", **WORDS)
    return models(study, OTHERS)


def models(study, methods):
    return [study.run(method).ledger[-1].model_sha256 for method in methods]


def judge(study, name, what):
    """A method that repeats itself is verified; of another one the first client and group are named."""
    said = study.run(f"{name}:Mine").record.own_code
    if what in leaky.BOUND:
        assert said.startswith("differs "), (what, said)
        place = leaky.DEPENDS[what.removeprefix("depends on ")][0]
        named = {"aggregate": "on the server", "refine": ""}.get(place, " client ")
        assert named in said, (what, said)
    else:
        assert said == "verified", (what, said)


def test_there_are_sixty():
    assert len(ALL) == 60 and len(set(ALL.values())) == 60


@pytest.mark.ci
@pytest.mark.parametrize(
    "what",
    [
        "a patched loss, objective",
        "a patched average, imported",
        "depends on a counter",
        "depends on a counter of clients",
    ],
)
def test_methods_beside_one_that_meddles_are_as_alone(what, alone, write, tmp_path, monkeypatch):
    # Importing a file is what the tests' own process does: what that patches is put back.
    monkeypatch.setattr("relief_ray.strategies.fedavg.aggregate", aggregate)
    name = write(ALL[what])
    with pytest.warns(UserWarning, match="own code: differs") if what in leaky.BOUND else nullcontext():
        study = rr.run("quick", strategies=[f"{name}:Mine", *OTHERS], out=tmp_path / "s", **WORDS)
    assert models(study, OTHERS) == alone
    judge(study, name, what)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["inline", "packed"])
@pytest.mark.filterwarnings("ignore:.*own code")
def test_methods_beside_sixty_that_meddle_are_as_alone(mode, alone, write, tmp_path):
    names = {write(text): what for what, text in ALL.items()}
    methods = [f"{name}:Mine" for name in names]
    runtime = {"mode": mode, "num_hosts": 2 if mode == "packed" else None}
    # Importing them all would leave little of this process.
    call_fresh(_run, methods, tmp_path / "s", runtime, hear=ignore, stop=never)
    study = rr.load(tmp_path / "s")
    assert models(study, OTHERS) == alone
    for name, what in names.items():
        judge(study, name, what)


def _run(asker, methods, out, runtime):
    rr.run("quick", strategies=[*methods, *OTHERS], out=out, runtime=runtime, on="ray", **WORDS)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("line", "how"),
    [("os._exit(0)", "exit code 0"), ("os.closerange(3, 256)", "exit code"), ("os.kill(os.getpid(), 9)", "signal 9")],
)
def test_code_that_ends_its_process_ends_neither_the_others_nor_the_command(
    write, run_cache, tmp_path, capfd, line, how
):
    name = write(leaky.text_of(objective=line))
    with pytest.raises(rr.UserCodeFailed, match=rf"{how}.*expected that it ends with the run"):
        rr.run("quick", strategies=["fedavg", f"{name}:Mine"], out=tmp_path / "s", **WORDS)
    assert read_run(tmp_path / "s" / "fedavg-s0").status == "done"
    assert not read_rounds(tmp_path / "s" / f"{name}.Mine-s0")
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.ci
def test_a_round_whose_updates_are_all_zero_is_a_warning_once_in_a_row(write, run_cache, tmp_path):
    name = write(leaky.text_of(objective="loss = 0.0 * loss"))
    with pytest.warns(UserWarning) as caught:
        study = rr.run("quick", strategies=f"{name}:Mine", out=tmp_path / "s", **WORDS)
    said = [str(w.message) for w in caught if "exactly zero" in str(w.message)]
    assert len(said) == 1 and "round 1: the update of every client is exactly zero in every group" in said[0]
    assert [len(r.warnings) for r in study.run(f"{name}:Mine").ledger] == [1, 0]


@pytest.mark.ci
def test_rounds_in_which_the_method_asks_nobody_are_a_warning_once_in_a_row(write, run_cache, tmp_path):
    name = write(NOBODY)
    with pytest.warns(UserWarning) as caught:
        rr.run("quick", strategies=f"{name}:Mine", out=tmp_path / "s", **WORDS)
    said = [str(w.message) for w in caught if "gave no participant a task" in str(w.message)]
    assert len(said) == 1 and "Mine gave no participant a task, so the round passes without a step" in said[0]


WANDERS = """import os

import relief_ray as rr


class Mine(rr.FedAvg):
    def weight(self, client, fleet):
        os.chdir("/")
        return 1.0
"""


@pytest.mark.ci
def test_own_code_may_change_the_working_folder(write, run_cache):
    name = write(WANDERS)
    study = rr.run("quick", strategies=[f"{name}:Mine", "fedavg"], out="relative/s", **WORDS)
    assert [run.status for run in study.runs] == ["done", "done"]
    assert len([*Path("relative/s").glob("*/run.json")]) == 2


@pytest.mark.ci
def test_verification_can_be_switched_off_and_is_then_said_to_be_missing(write, run_cache, tmp_path):
    name = write(METHOD)
    out = tmp_path / "s"
    study = rr.run("quick", strategies=f"{name}:Mine", out=out, runtime={"verify_own": False}, **WORDS)
    assert study.run(f"{name}:Mine").record.own_code == ""
    assert json.loads((out / f"{name}.Mine-s0" / "run.json").read_text()).get("own_code", "") == ""
