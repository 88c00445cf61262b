"""`relief-ray plan-study`, and claims of a grid: before the first cell, and not after it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from actors.commands.study import cannot_decide, claims_text, powers_of
from relief_ray.report.frames import read_cells
from relief_ray.studies.plan import Plan
from relief_ray.support.errors import UserError
from tests.actors.conftest import Invoke
from tests.actors.grids.tiny_plans import tiny_plan
from tests.actors.trials import run_alone

CLAIMS = "data: dsa_mini\nsplit: within_subject\nclaims:\n  - {first: relief, second: fedavg}\n"


def test_the_answer_comes_first(invoke: Invoke):
    shown = invoke("plan-study", "--sd", "4", "--difference", "2", "--pairs", "48").stdout.splitlines()
    assert shown[0] == "48 paired runs find a difference of 2 points in 76 of 100 studies."
    assert shown[1] == "52 paired runs find it in 80 of 100."
    (row,) = [line.split() for line in shown if line.split()[:1] == ["1"]]
    assert row == ["1", "198", "17"]


def test_a_study_that_cannot_decide_says_so_first(invoke: Invoke):
    shown = invoke("plan-study", "--sd", "4", "--pairs", "6").stdout
    assert shown.startswith("This study cannot decide: 6 paired runs give no adjusted p below 0.19.")
    facts = json.loads(invoke("plan-study", "--sd", "4", "--pairs", "6", "--json").stdout)
    assert (facts["power"], facts["smallest_adjusted_p"]) == (0.0, 6 * 2 / 2**6)
    one = json.loads(
        invoke("plan-study", "--sd", "4", "--margin", "1", "--claims", "1", "--pairs", "101", "--json").stdout
    )
    assert (one["sides"], one["pairs_needed"]) == (1, 101) and one["power"] >= 0.8


def test_records_give_the_scatter(invoke: Invoke):
    done = invoke("plan-study", "results/smoke", "--first", "relief", "--second", "v1")
    told = " ".join(done.stdout.split())
    assert done.exit_code == 0 and "from 4 paired runs of relief and v1 (F1, mean difference" in told


def test_the_scatter_of_few_runs_is_told_with_its_interval(invoke: Invoke):
    words = ("plan-study", "results/smoke", "--first", "relief", "--second", "v1")
    shown, facts = invoke(*words).stdout, json.loads(invoke(*words, "--json").stdout)
    assert max(map(len, shown.splitlines())) <= 80
    low, high = facts["sd_interval"]
    # Quantiles of chi squared with 3 degrees of freedom: 0.216 and 9.348.
    assert low == pytest.approx(facts["sd"] * (3 / 9.348) ** 0.5, rel=1e-3)
    assert high == pytest.approx(facts["sd"] * (3 / 0.216) ** 0.5, rel=1e-3)
    fewest, most = facts["pairs_needed_interval"]
    assert fewest <= facts["pairs_needed"] and (most is None or facts["pairs_needed"] <= most)
    told = " ".join(shown.split())
    assert f"if the scatter is {low:.1f} or {high:.1f} points, the ends of its 95 % interval" in told
    assert f"(95 % interval {low:.1f} to {high:.1f}), from 4 paired runs" in told


def test_a_scatter_of_made_up_data_says_so(invoke: Invoke, monkeypatch):
    cells = read_cells([Path("results/smoke")])
    made_up = replace(cells, runs=cells.runs.assign(data_origin="SYNTHETIC"))
    monkeypatch.setattr("actors.commands.study.read_cells", lambda folders: made_up)
    shown = " ".join(invoke("plan-study", "results/smoke", "--first=relief", "--second=v1").stdout.split())
    assert "4 paired runs of relief and v1 on SYNTHETIC data (F1" in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "expected folders of finished runs, or --sd POINTS"),
        (("results/smoke", "--sd", "4"), "one of the two"),
        (("--sd", "0"), "expected points above 0"),
        (("--sd", "4", "--figure", "f1_rares"), "unknown (did you mean 'f1_rare'?)"),
    ],
)
def test_what_is_missing_is_asked_for(arguments, words, invoke: Invoke):
    done = invoke("plan-study", *arguments)
    assert done.exit_code == 2 and words in " ".join(done.stderr.split())


@pytest.mark.ci
def test_a_dry_run_tells_what_a_grid_can_decide(invoke: Invoke, tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text(CLAIMS.replace("within", "held_out"))
    common = ("grid", "smoke", "--dry-run", "--out", tmp_path / "g", "--set", "data.max_windows_per_client=5")
    done = invoke(*common, "--claims", file)
    assert "relief > fedavg in F1: 4 pairs (2 folds x 2 replicates); too short to judge" in " ".join(
        done.stdout.split()
    )
    facts = json.loads(invoke(*common, "--claims", file, "--json", "--set", "replicates=3").stdout)
    (claim,) = facts["claims"]
    assert (claim["pairs"], claim["replicates"], claim["cannot_decide"]) == (6, 3, None)
    assert claim["smallest_adjusted_p"] == 2 / 2**6 and not (tmp_path / "g").exists()
    file.write_text(CLAIMS + "  - {first: v1, second: fedavg, why: no}\n")
    assert invoke(*common, "--claims", file).exit_code == 2


def test_claims_are_taken_in_before_the_first_cell_and_kept(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text(CLAIMS)
    plan = tiny_plan(tmp_path / "g", seeds=(0, 1))
    known = replace(plan, claims_file=file).write()
    assert known.claims is not None and Plan.read(plan.out, kind="grid").claims == known.claims
    assert plan.write().claims == known.claims, "the same grid again, without the option"
    assert cannot_decide(Plan.read(plan.out, kind="grid")) == [
        "relief > fedavg in F1: too short to judge: 2 replicates; at least 6 seeds or replicates are needed (0-5)"
    ]
    assert "claims: 1, judged over paired runs" in claims_text(powers_of(known))
    assert claims_text(powers_of(tiny_plan(tmp_path / "h"))) == ""
    run_alone(plan.look()[0])
    file.write_text(CLAIMS + "  - {first: v1, second: fedavg}\n")
    with pytest.raises(UserError, match="holds 1 cells that were begun under other claims"):
        replace(plan, claims_file=file).write()


def test_claims_about_unknown_methods_are_refused_before_anything_runs(invoke: Invoke, tmp_path):
    (tmp_path / "c.yaml").write_text(CLAIMS.replace("first: relief", "first: reliev"))
    done = invoke("run", "quick", "--claims", tmp_path / "c.yaml", "--strategies", "fedavg,relief", "--dry-run")
    assert done.exit_code == 2 and "'reliev': no planned method (did you mean 'relief'?)" in " ".join(
        done.stderr.split()
    )
    (tmp_path / "c.yaml").write_text(CLAIMS)
    known = invoke("run", "quick", "--claims", tmp_path / "c.yaml", "--strategies", "fedavg", "--dry-run")
    assert known.exit_code == 0, "a method that a later call may add"


def test_the_pair_and_the_number_of_claims_are_those_of_the_folder(invoke: Invoke, tmp_path):
    (tmp_path / "c.yaml").write_text(CLAIMS.replace("first: relief", "first: fedprox"))
    words = ("--set", "tracking.enabled=false", "--claims", tmp_path / "c.yaml", "--seeds", "0-3")
    assert invoke("run", "quick", "--strategies", "fedavg,fedprox", "--out", tmp_path / "r", *words).exit_code == 0
    shown = " ".join(invoke("plan-study", tmp_path / "r").stdout.split())
    assert "over 1 claim " in shown and "4 paired runs of fedprox and fedavg" in shown
