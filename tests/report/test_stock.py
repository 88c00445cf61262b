"""Cells by state: everything that was planned or found is listed once, and nothing that is not done counts."""

import json

import pytest

from relief_ray.errors import UserError
from relief_ray.report.stock import take_stock


def plan(folder, runs, name="grid.json"):
    rows = [{"label": r.label, "folder": n, "config": r.run.config} for n, r in runs.items()]
    (folder / name).write_text(json.dumps({"name": "g", "title": "a grid", "cells": rows}))


@pytest.fixture
def grid(make, put, tmp_path):
    """A cell of every state, planned; and one that nobody planned."""
    runs = {
        "done": make("fedavg"),
        "half": make("v1", planned=9),
        "broken": make("v2"),
        "missing": make("v3"),
        "errored": make("v2_mandatory"),
        "untested": make("fedprox", scores=(None, None)),
    }
    plan(tmp_path, runs)
    for name in ("done", "half", "broken", "untested"):
        put(runs[name], tmp_path / name)
    (tmp_path / "broken" / "run.json").write_text('{"schema_version": 1')
    (tmp_path / "errored").mkdir()
    (tmp_path / "errored" / "error.json").write_text(json.dumps({"error": "OSError: disk full\nmore"}))
    put(make("relief"), tmp_path / "extra")
    put(make("relief", seed=3), tmp_path / "stale" / "old")
    put(make("relief", seed=4), tmp_path / "mlartifacts" / "relief-ray" / "0" / "artifacts")
    return tmp_path


def test_every_cell_is_listed_once_with_its_state(grid):
    stock = take_stock([grid, grid / "done"])
    found = {s.name: (s.label, s.state) for s in stock.slots}
    assert found == {
        "done": ("fedavg", "done"),
        "half": ("v1", "unfinished"),
        "broken": ("v2", "failed"),
        "missing": ("v3", "missing"),
        "errored": ("v2_mandatory", "failed"),
        "untested": ("fedprox", "untested"),
        "extra": ("relief", "done"),
    }
    assert [r.label for r in stock.done] == ["fedavg", "relief"]
    assert stock.titles == ("a grid",)


def test_the_reason_is_kept(grid):
    why = {s.name: s.why for s in take_stock([grid]).slots}
    assert why["errored"] == "OSError: disk full"
    assert why["half"] == "2 of 9 rounds, finished"
    assert "run.json" in why["broken"] and "unreadable" in why["broken"]
    assert why["done"] == why["missing"] == ""


def test_a_failed_run_with_rounds_names_both(make, put, tmp_path):
    loaded = make("fedavg", planned=4)
    put(loaded, tmp_path / "x")
    record = loaded.run.model_copy(update={"status": "failed", "note": "round 3 was void"})
    (tmp_path / "x" / "run.json").write_text(record.model_dump_json())
    (slot,) = take_stock([tmp_path]).slots
    assert (slot.state, slot.why) == ("failed", "round 3 was void (2 of 4 rounds)")


def test_a_plan_of_a_run_and_a_collected_file_are_read(make, put, collected, tmp_path):
    plan(tmp_path, {"a": make("fedavg")}, name="plan.json")
    file = tmp_path / "runs.jsonl"
    file.write_text(collected([make("v1")]))
    assert [(s.label, s.state) for s in take_stock([tmp_path, file]).slots] == [("fedavg", "missing"), ("v1", "done")]


def test_a_folder_without_plan_and_run_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"found no run\.json and no grid\.json or plan\.json in or below it"):
        take_stock([tmp_path])


def test_a_damaged_plan_is_an_error_that_names_the_file(tmp_path):
    (tmp_path / "grid.json").write_text('{"cells": [1]}')
    with pytest.raises(UserError, match=r"grid\.json: damaged"):
        take_stock([tmp_path])


def test_a_planned_cell_is_called_as_its_run_will_be(make, tmp_path):
    plan(tmp_path, {"a": make("fedicu")})
    rows = json.loads((tmp_path / "grid.json").read_text())
    rows["cells"][0]["label"] = "fedicu"
    (tmp_path / "grid.json").write_text(json.dumps(rows))
    assert [s.label for s in take_stock([tmp_path]).slots] == ["FedICU (reconstructed)"]
