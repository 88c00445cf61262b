"""Cells by status: everything that was planned or found is listed once, and nothing that is not done counts."""

import dataclasses

import pytest

from relief_ray.records.lock import FileLock
from relief_ray.report.build import build
from relief_ray.report.comparison import by_setting
from relief_ray.report.runs import take_inventory
from relief_ray.support.errors import UserError
from tests.sealed import put_page, put_run


def plan(folder, runs):
    rows = [
        {
            "label": r.run.strategy,
            "method": r.run.method.model_dump(),
            "folder": n,
            "hash": r.run.config_hash,
            "config": r.run.config,
        }
        for n, r in runs.items()
    ]
    put_page(folder / "plan.json", {"kind": "grid", "name": "g", "title": "a grid", "cells": rows})


def interrupted(loaded):
    return dataclasses.replace(loaded, run=loaded.run.model_copy(update={"status": "interrupted"}))


@pytest.fixture
def grid(make, put, tmp_path):
    """A cell of every status, planned; and one that nobody planned."""
    runs = {
        "done": make("fedavg"),
        "half": make("v1", planned=9),
        "broken": make("v2"),
        "planned": make("v3"),
        "errored": make("v2_mandatory"),
        "untested": make("fedprox", scores=(None, None)),
    }
    plan(tmp_path, runs)
    for name in ("done", "broken", "untested"):
        put(runs[name], tmp_path / name)
    put(interrupted(runs["half"]), tmp_path / "half")
    (tmp_path / "broken" / "run.json").write_text('{"schema_version": 1')
    (tmp_path / "errored").mkdir()
    put_page(tmp_path / "errored" / "error.json", {"error": "OSError: disk full\nmore"})
    put(make("relief", seed=2), tmp_path / "extra")
    put(make("relief", seed=3), tmp_path / "stale" / "old")
    put(make("relief", seed=4), tmp_path / "mlartifacts" / "relief-ray" / "0" / "artifacts")
    return tmp_path


def test_every_cell_is_listed_once_with_its_state(grid):
    inventory = take_inventory([grid, grid / "done"])
    states = {s.name: (s.label, s.status) for s in inventory.items}
    assert states == {
        "done": ("fedavg", "done"),
        "half": ("v1", "interrupted"),
        "broken": ("v2", "failed"),
        "planned": ("v3", "planned"),
        "errored": ("v2_mandatory", "failed"),
        "untested": ("fedprox", "untested"),
        "extra": ("relief", "done"),
    }
    assert [r.label for r in inventory.done] == ["fedavg", "relief"]
    assert inventory.titles == ("a grid",)


def test_the_reason_is_kept(grid):
    why = {s.name: s.why for s in take_inventory([grid]).items}
    assert why["errored"] == "OSError: disk full"
    assert why["half"] == "2 of 9 rounds"
    assert "run.json" in why["broken"] and "unreadable" in why["broken"]
    assert why["done"] == why["planned"] == ""


def test_a_failed_run_with_rounds_names_both(make, put, tmp_path):
    loaded = make("fedavg", planned=4)
    put(loaded, tmp_path / "x")
    record = loaded.run.model_copy(update={"status": "failed", "note": "round 3 was void"})
    put_run(tmp_path / "x", record)
    (item,) = take_inventory([tmp_path]).items
    assert (item.status, item.why) == ("failed", "round 3 was void (2 of 4 rounds)")


def test_a_killed_run_is_interrupted_and_one_whose_folder_is_locked_is_running(make, put, tmp_path):
    loaded = make("fedavg")
    put(loaded, tmp_path / "x")
    put_run(tmp_path / "x", loaded.run.model_copy(update={"status": "running"}))
    (item,) = take_inventory([tmp_path]).items
    assert (item.status, item.why) == ("interrupted", "2 of 2 rounds")
    with FileLock(tmp_path / "x" / "driver.lock", "the run folder"):
        (item,) = take_inventory([tmp_path]).items
        assert (item.status, item.why) == ("running", "2 of 2 rounds")


def test_a_plan_of_a_run_is_read(make, put, tmp_path):
    plan(tmp_path, {"a": make("fedavg")})
    put(make("v1"), tmp_path / "b")
    assert [(s.label, s.status) for s in take_inventory([tmp_path]).items] == [("fedavg", "planned"), ("v1", "done")]


def test_a_folder_without_plan_and_run_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"found no run\.json and no plan\.json in or below it"):
        take_inventory([tmp_path])


def test_a_damaged_plan_is_an_error_that_names_the_file(tmp_path):
    (tmp_path / "plan.json").write_text('{"cells": [1]}')
    with pytest.raises(UserError, match=r"plan\.json: damaged"):
        take_inventory([tmp_path])


def test_a_planned_cell_is_called_as_its_run_will_be(make, tmp_path):
    plan(tmp_path, {"a": make("fedicu")})
    assert [s.label for s in take_inventory([tmp_path]).items] == ["FedICU (reconstructed)"]


@pytest.mark.parametrize("draw", [{}, {"replicate": 2}])
def test_a_planned_cell_has_the_title_of_its_run(draw, make, tmp_path):
    run = make("fedicu", extra={"fleet": {"rotation": 1}, **draw})
    plan(tmp_path, {"a": run})
    assert [s.title for s in take_inventory([tmp_path]).items] == [run.title]


def test_a_cell_of_two_folders_is_one_and_done_where_any_finished_it(make, put, tmp_path):
    """Two grids plan the same four cells; the second holds what the first lacks, and one cell of both by other code."""
    runs = {f"c{i}": make(m, seed=s) for i, (m, s) in enumerate((m, s) for m in ("fedavg", "v1") for s in (0, 1))}
    for top, finished in (("a", ("c0", "c1")), ("b", ("c1", "c2"))):
        (tmp_path / top).mkdir()
        plan(tmp_path / top, runs)
        for name in finished:
            renamed = runs[name].run.config | {"name": top, "runtime": {"mode": top}}
            record = runs[name].run.model_copy(update={"config": renamed, "source_digest": top * 64})
            put(dataclasses.replace(runs[name], run=record), tmp_path / top / name)
    inventory = take_inventory([tmp_path / "a", tmp_path / "b"])
    assert [(s.title, s.status, len(s.repeats)) for s in inventory.items] == [
        ("fedavg, fold 0, seed 0", "done", 0), ("fedavg, fold 0, seed 1", "done", 1),
        ("v1, fold 0, seed 0", "done", 0), ("v1, fold 0, seed 1", "planned", 0),
    ]  # fmt: skip
    assert [r.run.source_digest[0] for r in inventory.done] == ["a", "a", "b"]
    (experiment,) = by_setting(inventory)
    assert experiment.row("fedavg").num_runs == 2
    assert experiment.notes == ("fedavg, fold 0, seed 1 was given twice, with the same bits; the first counts",)


def test_a_key_that_was_added_since_makes_no_other_cell_and_no_other_experiment(make, put, tmp_path):
    new = make("fedavg", extra={"training": {"epochs": 2, "missing": "zero_input", "stack": 1}})
    old, other = make("fedavg"), make("v1", seed=1)
    for top, loaded in (("new", new), ("old", old), ("other", other)):
        put(loaded, tmp_path / top)
    inventory = take_inventory([tmp_path])
    assert [(s.label, s.status, len(s.repeats)) for s in inventory.items] == [("fedavg", "done", 1), ("v1", "done", 0)]
    (experiment,) = by_setting(inventory)
    assert experiment.differs == {}


def test_a_default_that_a_user_changed_is_another_cell_of_the_same_hash(make, put, tmp_path):
    for alpha in (0.5, 0.7):
        put(make("my.own:Mine", extra={"strategy": {"name": "my.own:Mine", "alpha": alpha}}), tmp_path / f"a{alpha}")
    assert [s.label for s in take_inventory([tmp_path]).items] == ["my.own:Mine (alpha=0.5)", "my.own:Mine (alpha=0.7)"]


def test_a_cell_is_its_stored_hash(make, put, tmp_path):
    """Of one configuration that two programs hash otherwise, the schema that was raised in between makes two cells."""
    loaded = make("fedavg")
    put(loaded, tmp_path / "a")
    put(dataclasses.replace(loaded, run=loaded.run.model_copy(update={"config_hash": "g"})), tmp_path / "b")
    assert len(take_inventory([tmp_path]).items) == 2


def test_runs_on_synthetic_data_are_no_repeats_of_real_ones(make, put, tmp_path):
    for name, origin in (("a", "real"), ("b", "SYNTHETIC")):
        put(make("fedavg", origin=origin), tmp_path / name)
    assert [s.loaded.run.data_origin for s in take_inventory([tmp_path]).items] == ["real", "SYNTHETIC"]


def test_of_several_accounts_of_an_open_cell_the_furthest_counts(make, put, tmp_path):
    for name, status in (("a", "planned"), ("b", "failed"), ("c", "interrupted")):
        (tmp_path / name).mkdir()
        plan(tmp_path / name, {"x": make("fedavg", planned=4)})
        if status == "interrupted":
            put(interrupted(make("fedavg", planned=4)), tmp_path / name / "x")
        elif status == "failed":
            (tmp_path / name / "x").mkdir()
            put_page(tmp_path / name / "x" / "error.json", {"error": "OSError: disk full"})
    (item,) = take_inventory([tmp_path / n for n in "abc"]).items
    assert (item.status, item.why) == ("interrupted", "2 of 4 rounds")
    (item,) = take_inventory([tmp_path / n for n in "ab"]).items
    assert (item.status, item.why) == ("failed", "OSError: disk full")


def test_the_bare_name_is_the_preset_s_whichever_cell_is_missing(make, put, tmp_path, registry):
    """A grid over gamma: the paper's 0.9 is missing, so V0's row is a gap and 0.5 does not stand in its place."""

    def relief(gamma):
        strategy = {"strategy": {"name": "relief", "select": "divergence", "mandatory": True, "gamma": gamma}}
        return make("relief", extra=strategy)

    runs = {"fedavg": make("fedavg"), "half": relief(0.5), "usual": relief(0.9)}
    plan(tmp_path, runs)
    for name in ("fedavg", "half"):
        put(runs[name], tmp_path / name)
    inventory = take_inventory([tmp_path])
    assert [(s.label, s.status) for s in inventory.items] == [
        ("fedavg", "done"), ("relief (gamma=0.5)", "done"), ("relief", "planned"),
    ]  # fmt: skip
    document = build(inventory)
    main = next(s for s in document.tables if s.slug == "e1-main")
    rows = {line.name: line.cells[0].text for line in main.rows}
    assert (rows["relief"], rows["relief (gamma=0.5)"]) == ("planned", "1")
    judged = build(inventory, registry({"first": "relief", "second": "fedavg"}))
    verdicts = next(s for s in judged.tables if s.slug == "e1-verdicts")
    assert verdicts.rows[-1].cells[0].text == "no runs", "0.5 does not speak for RELIEF"
