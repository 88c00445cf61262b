"""A fleet of five types through run, grid, report, explain and conformance: nothing knows three letters."""

import re
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

import relief_ray as rr
from actors.cli.main import app
from relief_ray.config.experiment import assign, parse
from relief_ray.conformance.runner import PROBLEM, check
from relief_ray.records.run_folder import read_rounds
from relief_ray.strategies import PRESETS
from relief_ray.support.errors import Setting
from tests.conformance.cases import drive
from tests.pages import ROOT

pytestmark = pytest.mark.usefixtures("run_cache")
FIVE = {
    "hub": {"tops": 21, "active_power_w": 15, "sensors": "all", "uplink_mbit_s": 80, "downlink_mbit_s": 80, "count": 1},
    "gateway": {"tops": 10, "active_power_w": 8, "count": 1},
    "phone": {"tops": 5, "active_power_w": 4, "sensors": ["acc", "gyro"], "uplink_mbit_s": 20, "share": 3},
    "watch": {"like": "phone", "tops": 0.8, "active_power_w": 1.2, "sensors": "acc", "uplink_mbit_s": 2, "share": 2},
    "ring": {"like": "watch", "tops": 0.1, "active_power_w": 0.3, "people": [3, 7]},
}
# A letter as a type, a resource of one, and the type of letters that was: nowhere in the product but in the presets.
PATTERN = r"[^(]['\"][ABC]['\"]|\btype_[abc]\b|DeviceLetter"
OF_PRESETS = ("relief_ray/devices/fleet.py", "relief_ray/report/tables/paper.py")


def config_of(name, **values):
    base = assign(PROBLEM, [Setting("strategy", name), Setting("fleet", {"types": FIVE})])
    return parse(assign(base, [Setting(key.replace("__", "."), value) for key, value in values.items()]))


@pytest.mark.ci
@pytest.mark.parametrize("name", PRESETS)
def test_every_method_keeps_all_rules_with_five_types(name):
    """Where a method trains nobody who was drawn, the round passes without a step."""
    broken = [f"{v.rule}: {v.found}" for v in check(config_of(name)) if v.status == "broken"]
    assert not broken


@pytest.fixture(scope="module")
def runs(run_cache, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("five") / "runs"
    rr.run("quick", strategies=["fedavg", "relief", "helora", "darkdistill"], rounds=3, fleet={"types": FIVE}, out=out,
           quiet=True)  # fmt: skip
    return out


@pytest.mark.ci
def test_tables_explain_and_the_report_say_the_names(runs):
    run = next(iter(runs.glob("relief*/run.json"))).parent
    told = CliRunner().invoke(app, ["explain", str(run), "--round", "2", "--client", "2"])
    assert told.exit_code == 0 and "Type ring, 0.1 TOPS, 0.3 W" in told.output
    shown = CliRunner().invoke(app, ["fleet", "show", str(run)]).output
    rows = {
        line.split()[0]: line.split()[1] for line in shown.splitlines() if line.split()[:1] and line.split()[0] in FIVE
    }
    assert rows == {"hub": "1", "gateway": "1", "phone": "2", "watch": "2", "ring": "2"}
    page = CliRunner().invoke(app, ["report", str(runs), "--out", str(runs / "page")])
    assert page.exit_code == 0, page.output
    text = next(iter((runs / "page").glob("*.md"))).read_text()
    sent = [text.index(f"sent by {name} %") for name in FIVE]
    assert sent == sorted(sent) and not re.search(r"[Tt]ype [ABC]\b", text)
    assert set(rr.load(runs).runs[0].clients.type) == set(FIVE)


@pytest.mark.ci
def test_a_type_that_is_rarely_there_is_drawn_alike_for_every_method(tmp_path):
    """A ring is there with 0.3: of 2 x 50 draws 16 to 44 (three deviations of 4.6); both methods meet the same."""
    rare = {**FIVE, "ring": {**FIVE["ring"], "available": 0.3}}
    values = {"fleet__types": rare, "rounds": 50, "participation": 1.0, "data__max_windows_per_client": 4}
    seen = {}
    for name in ("fedavg", "relief"):
        assert drive(config_of(name, **values), tmp_path / name).status == "done"
        rounds = read_rounds(tmp_path / name)
        seen[name] = [record.participants for record in rounds]
        alone = [r for r in rounds if any("nobody of type ring is there" in w for w in r.warnings)]
        assert alone and all(not {2, 6} & set(r.participants) for r in alone)
    assert seen["fedavg"] == seen["relief"] and len(seen["fedavg"]) == 50
    assert 16 <= sum(len({2, 6} & set(who)) for who in seen["fedavg"]) <= 44
    assert all({0, 1, 3, 4, 5, 7} <= set(who) for who in seen["fedavg"]), "the others are always there"


@pytest.mark.parametrize("name", PRESETS)
def test_rounds_with_few_or_nobody_pass(name, tmp_path):
    """All are there with 0.1: a round in five has nobody, the bootstrap's among them, and leaves the model as it is."""
    lazy = {name: row | {"available": 0.1} for name, row in FIVE.items()}
    run = drive(config_of(name, fleet__types=lazy, rounds=8, seed=1), tmp_path / "run")
    rounds = read_rounds(tmp_path / "run")
    assert run.status == "done" and len(rounds) == 8
    empty = [n for n, record in enumerate(rounds) if not record.participants]
    assert empty, [r.participants for r in rounds]
    for n in empty:
        assert rounds[n].phase == "idle" and not any(cost.round_s for cost in rounds[n].costs.values())
        assert n == 0 or rounds[n].model_sha256 == rounds[n - 1].model_sha256


def test_no_letter_is_a_type_outside_of_the_presets():
    lines = subprocess.run(
        ["git", "grep", "-nE", PATTERN, "--", "relief_ray/*.py", "actors/*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    assert not [line for line in lines if not line.startswith(OF_PRESETS)]
