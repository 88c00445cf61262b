"""What differs from run to run is not called verified; what users' code reads by itself is told."""

import pytest

import relief_ray as rr
from relief_ray.experiment import verify
from relief_ray.experiment.experiment import never
from relief_ray.experiment.lifecycle import reopen
from relief_ray.records.run_folder import read_run
from relief_ray.records.schema import PARTLY
from tests.studies.conftest import SMALL

WORDS = {"backbone": SMALL, "rounds": 3, "training": {"epochs": 1}, "quiet": True}
HEAD = "import os, random\nfrom pathlib import Path\nimport relief_ray as rr\nclass Mine(rr.FedAvg):\n"
START = """
    def server_step(self, mean, memory):
        w = memory.get("w") or random.random()
        return {j: w * d for j, d in mean.items()}, {"w": w}
"""
EARLY = """
    def server_step(self, mean, memory):
        n = memory.get("n", 0)
        scale = random.random() if n < 2 else 1.0
        return {j: scale * d for j, d in mean.items()}, {"n": n + 1}
"""
COSTS = """
    @property
    def flops_per_value(self):
        return 1000 * random.random()
    def client_loss(self, step):
        return super().client_loss(step) * 1.0
"""
FILE = """
    def client_loss(self, step):
        return super().client_loss(step) * float(Path("scale.txt").read_text())
"""
VARIABLE = """
    def client_loss(self, step):
        return super().client_loss(step) * float(os.environ.get("SCALE", "1"))
"""
PLAIN = """
    def client_loss(self, step):
        return super().client_loss(step) * 2.0
"""


def said(write, tmp_path, body: str) -> str:
    name = write(HEAD + body)
    return str(rr.run("quick", strategies=f"{name}:Mine", out=tmp_path / "s", **WORDS).runs[0].record.own_code)


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore:.*own code")
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (START, "differs on the server, after equal updates, in round 1"),
        (EARLY, "differs on the server, after equal updates, in round 1"),
        (COSTS, "differs in client 0, its costs"),
        (FILE, "verified, but reads "),
        (VARIABLE, "verified, but reads SCALE of the environment: no record has it"),
        (PLAIN, "verified"),
    ],
)
def test_the_first_round_costs_and_reads_are_compared(write, run_cache, tmp_path, body, expected) -> None:
    (tmp_path / "scale.txt").write_text("2")
    told = said(write, tmp_path, body.replace("scale.txt", f"{tmp_path}/scale.txt"))
    assert told.startswith(expected) and (body != FILE or f"{tmp_path}/scale.txt: no record has it" in told)
    assert body != PLAIN or told == "verified"


@pytest.mark.ci
def test_a_long_first_round_is_not_repeated_and_not_called_verified(write, run_cache, tmp_path, monkeypatch) -> None:
    name = write(HEAD + PLAIN)
    folder = rr.run("quick", strategies=f"{name}:Mine", out=tmp_path / "s", **WORDS).runs[0].folder
    setup, opened = reopen(folder)
    opened.close()
    monkeypatch.setattr(verify, "_AFFORDABLE_S", 0.0)
    assert verify._verdict(read_run(folder), setup, folder, never) == PARTLY


@pytest.mark.ci
def test_the_metric_that_differs_is_named(write, run_cache, tmp_path) -> None:
    name = write("import random\ndef jitter(confusion):\n    return random.random()\n")
    with pytest.warns(
        UserWarning, match="own code: differs in jitter, of equal models; likely random numbers without a seed"
    ):
        rr.run("quick", strategies="fedavg", metrics=[f"{name}:jitter"], out=tmp_path / "s", **WORDS)
