"""Presets, their axes, and what settings do to them."""

import importlib
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from relief_ray.experiment.lifecycle import create
from relief_ray.records.cells import find_runs
from relief_ray.records.identity import config_hash
from relief_ray.records.lock import FileLock
from relief_ray.strategies import DESCRIBED
from relief_ray.studies.plan import Plan, load_spec
from relief_ray.studies.presets import PRESETS, make_preset
from relief_ray.support.errors import UserError
from tests.own import METHOD, Write
from tests.plans import cells_of, planned, typed
from tests.sealed import page, put_page


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_list_of_checked_configurations(name: str) -> None:
    cells = list(cells_of(make_preset(name), []))
    made = make_preset(name)
    assert len(cells) == len(made.methods) * max(1, len(made.folds or ())) * len(made.seeds or made.replicates)
    assert len({cell.name for cell in cells}) == len(cells)
    assert {cell.config.label() for cell in cells} == set(made.methods)


def test_presets_have_the_names_rounds_and_epochs_of_the_documentation() -> None:
    page = (Path(__file__).parents[3] / "docs" / "cli.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|.*\| (\d+) x (\d+) \|$", page, flags=re.M)
    made = {name: cells_of(make_preset(name), [])[0].config for name in PRESETS}
    assert rows == [(name, str(config.rounds), str(config.training.epochs)) for name, config in made.items()]


def test_the_papers_presets_have_the_papers_defaults() -> None:
    for name in ("pamap2", "mhealth"):
        for cell in cells_of(make_preset(name), []):
            config = cell.config
            assert (config.training.epochs, config.rounds, config.data.stride_s) == (5, 200, 1.0)


def test_demo_tests_every_subject_once_and_runs_strategies_fold_by_fold() -> None:
    cells = list(cells_of(make_preset("demo"), []))
    first = [(c.label, c.config.data.fold) for c in cells[:3]]
    assert first == [("fedavg", 0), ("relief", 0), ("fedavg", 1)]
    assert {c.config.data.fold for c in cells} == {0, 1, 2, 3}


def test_settings_fix_an_axis() -> None:
    demo = make_preset("demo")
    assert {c.config.data.fold for c in cells_of(demo, ["data.fold=2"])} == {2}
    within = list(cells_of(demo, ["data.split=within_subject"]))
    assert [c.name for c in within[:3]] == ["fedavg-r0", "relief-r0", "fedavg-r1"]
    seeded = list(cells_of(demo, ["seed=7"]))
    assert {(c.config.seed, c.config.fleet.rotation, c.config.replicate) for c in seeded} == {(7, 0, None)}


def test_replicates_have_seeds_by_fold_and_turn_the_devices() -> None:
    demo = make_preset("demo")
    found = [c.config for c in cells_of(demo, ["replicates=[0, 7]"]) if c.label == "relief"]
    assert [(c.data.fold, c.seed, c.fleet.rotation) for c in found] == [
        (fold, 10_000 + 100 * r + fold, r % 6) for r in (0, 7) for fold in range(4)
    ]
    one = list(cells_of(demo, ["data.fold=2", "replicates=1", "strategy=v1"]))
    assert [(c.name, c.config.seed) for c in one] == [("v1-f2-r0", 10_002)]
    own = list(cells_of(demo, ["fleet.rotation=1", "data.fold=2", "strategy=v1"]))
    assert [(c.name, c.config.fleet.rotation) for c in own] == [("v1-f2-s0", 1)], (
        "a rotation of one's own: no replicate"
    )
    with pytest.raises(UserError, match=r"expected --set 'replicates=\[3\]'"):
        list(cells_of(demo, ["replicate=3"]))


def test_the_demo_keeps_its_claims_beside_its_plan(tmp_path: Path) -> None:
    from relief_ray.records.cells import CLAIMS_FILE
    from relief_ray.report.claims import registry_of

    planned("demo", tmp_path).write()
    assert (tmp_path / CLAIMS_FILE).exists()
    (known,) = registry_of([tmp_path]).files
    assert all(len(known.planned_pairs(c.first, c.second)) == 28 for c in known.claims.claims)


@pytest.mark.parametrize("setting", ["strategy=v1", "strategy.name=v1"])
def test_a_strategy_that_is_set_is_the_only_one_and_gives_its_name(setting: str) -> None:
    demo = load_spec("demo")
    cells = list(cells_of(demo, [setting, "data.fold=0"]))
    assert [(c.label, c.name, c.config.label()) for c in cells] == [("v1", f"v1-f0-r{r}", "v1") for r in range(7)]


@pytest.mark.parametrize("name", PRESETS)
def test_a_presets_strategies_stand_in_the_registrys_order(name: str) -> None:
    strategies = make_preset(name).methods
    assert list(strategies) == sorted(strategies, key=list(DESCRIBED).index)


def test_a_strategy_that_is_set_wrong_is_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"unknown strategy 'reliev' \(did you mean 'relief'\?\)"):
        list(cells_of(load_spec("quick"), ["strategy=reliev"]))


def test_a_second_plan_for_the_folder_does_not_forget_the_first(tmp_path: Path) -> None:
    first, second = (
        planned("quick", tmp_path, strategies="relief,v1"),
        planned("quick", tmp_path, strategies="fedavg,v1"),
    )
    first.write()
    second.write()
    assert [c.label for c in Plan.read(tmp_path).cells] == ["relief", "fedavg", "v1"]


def test_one_command_at_a_time_writes_a_plan(tmp_path: Path) -> None:
    with FileLock(tmp_path / "plan.lock", "the plan"), pytest.raises(UserError, match=r"the plan is in use by process"):
        planned("quick", tmp_path).write()
    assert not (tmp_path / "plan.json").exists()


def test_credentials_are_not_kept_and_a_resume_asks_for_them(tmp_path: Path) -> None:
    secret = "tracking.uri=https://me:hunter2@tracker.example"
    planned("quick", tmp_path, secret, "tracking.enabled=true").write()
    assert "hunter2" not in (tmp_path / "plan.json").read_text()
    with pytest.raises(UserError, match=r"credentials of tracking.uri = https://\*\*\*@tracker.example are not kept"):
        Plan.read(tmp_path)
    assert Plan.read(tmp_path, typed(secret)).cells[0].config.tracking.uri == secret.partition("=")[2]
    assert not Plan.read(tmp_path, typed("tracking.enabled=false")).cells[0].config.tracking.enabled


def test_a_resume_may_not_change_the_number_of_threads(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="but num_threads, which decides bits"):
        Plan.read(tmp_path, typed("runtime.num_threads=2"))


def test_settings_reach_into_a_strategy() -> None:
    (cell,) = cells_of(load_spec("quick"), ["strategy.gamma=0.5"])
    assert cell.config.strategy.model_dump()["gamma"] == 0.5


def test_a_plan_comes_back_from_its_file(tmp_path: Path) -> None:
    plan = planned("demo", tmp_path, strategies="relief,v2")
    plan.write()
    there = Plan.read(tmp_path)
    assert replace(there, claims=None) == replace(plan, claims_file=None) and there.claims is not None


def test_a_begun_cell_keeps_its_hash_whatever_this_program_would_give_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_cache: Path
) -> None:
    before = planned("quick", tmp_path, strategies="relief,v1")
    before.write()
    create(before.cells[0].config, tmp_path / "relief-s0")[1].close()
    monkeypatch.setattr("relief_ray.config.experiment.SCHEMA", 99)
    begun, open_one = Plan.read(tmp_path, typed("runtime.mode=inline")).cells
    assert begun.hash == before.cells[0].hash and begun.config.runtime.mode == "inline"
    assert open_one.hash == config_hash(open_one.config.identity()) != before.cells[1].hash, "this program begins it"
    assert Plan.read(tmp_path / "relief-s0").cells[0].hash == before.cells[0].hash
    there, here = begun.hash[:8], config_hash(begun.config.identity())[:8]
    why = rf"same settings under another hash \({there} there, {here} here\).* resume \S+/relief-s0 --other-code"
    with pytest.raises(UserError, match=why):
        planned("quick", tmp_path, strategies="relief")


def test_a_default_of_a_user_s_own_method_may_change_before_a_resume(
    tmp_path: Path, write: Write, run_cache: Path
) -> None:
    name = write(METHOD)
    chosen = ["strategy.alpha=0.5", "data.name=dsa_mini"]
    plan = planned("quick", tmp_path / "runs", *chosen, strategies=f"{name}:Mine")
    plan.write()
    (cell,) = plan.cells
    create(cell.config, tmp_path / "runs" / cell.name)[1].close()
    write(METHOD.replace("alpha: float = 0.5", "alpha: float = 0.625"), name)
    del sys.modules[name]
    importlib.invalidate_caches()
    with pytest.raises(
        UserError, match=r"has other code in own_.*put that file back, compute it again with --rerun-stale"
    ):
        Plan.read(tmp_path / "runs")
    (again,) = Plan.read(tmp_path / "runs", other_code=True).cells
    assert again.hash == cell.hash != config_hash(again.config.identity())


def test_a_plan_edited_by_hand_is_another_run_than_the_one_that_was_begun(tmp_path: Path, run_cache: Path) -> None:
    plan = planned("quick", tmp_path, strategies="relief")
    plan.write()
    create(plan.cells[0].config, tmp_path / "relief-s0")[1].close()
    file = tmp_path / "plan.json"
    put_page(file, json.loads(json.dumps(page(file)).replace('"seed": 0', '"seed": 3')))
    with pytest.raises(UserError, match=r"holds another run \(data.seed is 0 there, asked: 3; seed is 0"):
        Plan.read(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", '{"name": "x"}', '{"name": "x", "cells": [{"label": "a"}]}'])
def test_a_damaged_plan_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(UserError, match=r"plan\.json: damaged"):
        Plan.read(tmp_path)


def test_runs_are_found_one_folder_below_and_named_once(runs: Path) -> None:
    folders = find_runs([runs, runs / "v1-s0"])
    assert [p.name for p in folders] == ["fedavg-s0", "relief-s0", "v1-s0", "v3-s0"]
