"""Runs from folders and nested folders."""

from dataclasses import replace
from pathlib import Path

import pytest

from relief_ray.report.runs import load_runs, require_complete
from relief_ray.support.errors import UserError
from tests.sealed import put_page


def test_folders_nested_folders_and_repeats(make, put, tmp_path):
    one = put(make("fedavg"), tmp_path / "a" / "fedavg")
    put(make("relief", seed=3, fold=2), tmp_path / "a" / "relief")
    loaded = load_runs([tmp_path, one, tmp_path / "a"])
    assert [(r.label, r.replicate) for r in loaded] == [("fedavg", (0, 0, 0)), ("relief", (2, 0, 3))]
    assert [r.round for r in loaded[1].rounds] == [1, 2]


def test_a_folder_without_runs_is_named(tmp_path):
    with pytest.raises(UserError, match=r"no run\.json"):
        load_runs([tmp_path])


def test_incomplete_runs_are_left_out_by_name(make, put, tmp_path):
    whole = make("fedavg")
    (cut,) = load_runs([put(make("relief", planned=20, seed=4), tmp_path / "cut")])
    complete, notes = require_complete([whole, cut])
    assert complete == (whole,)
    (note,) = notes
    assert note.startswith("relief, fold 0, seed 4: 2 of 20 rounds (failed: ") and note.endswith("), left out")
    assert "ends with round 2 (2 of 20 rounds), expected round 20 of a finished run" in note
    with pytest.raises(UserError, match=r"no run is complete.*2 of 20"):
        require_complete([cut])


def test_a_run_with_all_its_rounds_that_did_not_finish_is_left_out_too(make):
    """As for a grid: a resume has its end to do."""
    whole, cut = make("fedavg"), make("relief", seed=4)
    cut = replace(cut, run=cut.run.model_copy(update={"status": "running"}))
    assert require_complete([whole, cut]) == (
        (whole,),
        ("relief, fold 0, seed 4: 2 of 2 rounds (interrupted), left out",),
    )


def test_why_a_run_failed_is_said_in_a_line(make, put, tmp_path):
    cut = make("relief", planned=20, seed=4)
    said = "round 3: the updates of 7 of 8 clients can be used"
    cut = replace(cut, run=cut.run.model_copy(update={"status": "failed", "note": f"{said}\nmore"}))
    expected = "relief, fold 0, seed 4: 2 of 20 rounds (failed: {}), left out"
    assert require_complete([make("fedavg"), cut])[1] == (expected.format(said),)
    folder = put(cut, tmp_path / "relief")
    put_page(folder / "error.json", {"error": "OSError: of a grid's cell"})
    assert require_complete([make("fedavg"), *load_runs([folder])])[1] == (
        expected.format("OSError: of a grid's cell"),
    )


def test_a_reconstruction_is_shown_as_one(make, put, tmp_path):
    put(make("fedicu"), tmp_path / "a")
    (loaded,) = load_runs([tmp_path])
    assert loaded.run.strategy == "fedicu" and loaded.label == "FedICU (reconstructed)"
    assert loaded.title == "FedICU (reconstructed), fold 0, seed 0"


def test_runs_set_aside_and_mlflow_s_copies_are_no_runs(make, put, tmp_path):
    for where in ("a", "stale/a-1234", "mlartifacts/relief-ray/0/artifacts", "mlruns/0"):
        put(make("fedavg"), tmp_path / where)
    assert [Path(r.where).name for r in load_runs([tmp_path])] == ["a"]
