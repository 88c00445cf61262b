"""The status of a cell, from what its folder holds; plan files of runs and of grids."""

import shutil
from typing import get_args

import pytest

from relief_ray.records.cells import (
    STATUS_TEXT,
    CellState,
    PlanFile,
    PlannedCell,
    find_runs,
    look,
    read_plan_file,
    write_plan_file,
)
from relief_ray.records.identity import machine_facts, source_digest
from relief_ray.records.lock import LOCK_FILE, FileLock, is_locked
from relief_ray.records.run_folder import ERROR_FILE, RUN_FILE, RunFolder, read_rounds
from relief_ray.records.schema import MethodFacts, RunStatus, Status
from relief_ray.support.errors import UserError
from relief_ray.support.files import PAGE, sealed
from tests.sealed import page, put_page


@pytest.fixture
def change(finished, tmp_path):
    """A copy of the finished run whose record is changed as asked."""
    folder = tmp_path / "cell"
    shutil.copytree(finished, folder)
    last = read_rounds(folder)[-1].round

    def update(**fields):
        with RunFolder.resume(folder) as opened:
            facts = {"source_digest": source_digest(), "machine": machine_facts().model_dump(), "own_sources": {}}
            opened.update(**{**facts, "config": {"rounds": last}, **fields})
        return folder

    return update


def test_every_status_comes_from_the_folder_alone(change, tmp_path):
    assert look(tmp_path / "nowhere") == CellState(status="planned")
    folder = change()
    done = look(folder)
    assert (done.status, done.why, done.is_open) == ("done", "", False) and done.num_rounds == len(read_rounds(folder))
    change(status="interrupted")
    assert (look(folder).status, look(folder).is_open) == ("interrupted", True)
    change(status="failed", note="round 3 was void")
    assert (look(folder).status, look(folder).why) == ("failed", "round 3 was void")
    change(status="interrupted")
    assert (look(folder).status, look(folder).why) == ("interrupted", "round 3 was void"), "stopped before another try"
    assert set(STATUS_TEXT) == set(get_args(Status)) and set(get_args(RunStatus)) < set(get_args(Status))


def test_a_record_that_says_running_is_believed_only_while_the_folder_is_locked(change):
    folder = change(status="running")
    assert look(folder).status == "interrupted" and not is_locked(folder / LOCK_FILE)
    with FileLock(folder / LOCK_FILE, "the run folder"):
        assert look(folder).status == "running" and is_locked(folder / LOCK_FILE)
    assert look(folder).status == "interrupted" and not is_locked(folder / "no.lock")


def test_a_finished_run_that_lost_rounds_or_is_damaged_failed(change):
    folder = change()
    ledger = folder / "rounds.jsonl"
    first, *rest = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(first)
    assert look(folder).status == "failed" and "rounds.jsonl: ends with round 1 (1 of 4 rounds)" in look(folder).why
    ledger.write_bytes(b"{\n" + b"".join(rest))
    assert look(folder).status == "failed" and "line 1 is damaged" in look(folder).why
    (folder / "run.json").write_text("{")
    assert look(folder).status == "failed" and look(folder).run is None


def test_an_error_counts_unless_the_run_was_done_after_all(change, tmp_path):
    (tmp_path / "bare").mkdir()
    for folder in (tmp_path / "bare", change(status="interrupted")):
        put_page(folder / "error.json", {"error": "ValueError: https://me:secret@host\nmore"})
        assert look(folder).status == "failed" and look(folder).why == "ValueError: https://***@host\nmore"
    assert look(change(status="done")).status == "done"
    (tmp_path / "bare" / "error.json").write_text('{"error": "not what was written"}')
    assert look(tmp_path / "bare").why == "failed; its error.json is damaged"


def test_a_process_at_work_beats_the_error_of_an_earlier_attempt(change):
    folder = change(status="failed", note="round 3 was void")
    put_page(folder / ERROR_FILE, {"error": "OSError: disk full"})
    assert (look(folder).status, look(folder).why) == ("failed", "OSError: disk full")
    with FileLock(folder / LOCK_FILE, "the run folder"):
        assert (look(folder).status, look(folder).why) == ("running", "")
    assert look(folder).status == "failed", "it ended without a new attempt"
    (folder / RUN_FILE).unlink()
    with FileLock(folder / LOCK_FILE, "the run folder"):
        assert look(folder).status == "running", "its record is not written yet"
    assert look(folder).status == "failed"


def test_an_attempt_forgets_the_error_of_an_earlier_one(change):
    folder = change(status="interrupted")
    put_page(folder / ERROR_FILE, {"error": "OSError: disk full"})
    assert look(folder).status == "failed"
    with RunFolder.resume(folder):
        assert look(folder).status == "running" and not (folder / ERROR_FILE).exists()
    assert (look(folder).status, look(folder).why) == ("interrupted", "")
    put_page(folder / ERROR_FILE, {"error": "OSError: disk full"})
    with FileLock(folder / LOCK_FILE, "the run folder"), pytest.raises(UserError, match="in use"):
        RunFolder.resume(folder)
    assert (folder / ERROR_FILE).exists(), "no attempt began"


def test_staleness_needs_a_planned_configuration_to_compare_with(change):
    folder = change(source_digest="0" * 64)
    known = look(folder).run.config_hash
    assert look(folder).status == "done"
    assert look(folder, expected_hash=known).status == "stale"
    assert look(folder, expected_hash="other").status == "stale", "another program may hash it differently"
    change()
    assert look(folder, expected_hash=known).status == "done"
    assert "holds another run" in look(folder, expected_hash="other").why
    stale = look(folder, expected_hash=known, other_weights=lambda run: "weights a there, b here")
    assert (stale.status, stale.why) == ("stale", "weights a there, b here") and stale.num_rounds > 0


def test_plans_of_runs_and_grids_come_back_as_they_were_written(tmp_path):
    facts = MethodFacts(name="a", title="A", kind="own")
    run = PlanFile(
        kind="run", name="demo", cells=(PlannedCell(folder="a-s0", label="a", method=facts, config={"rounds": 2}),)
    )
    cell = PlannedCell(folder="x-a-s0", label="a", method=facts, setting="x", hash="12", config={"rounds": 2})
    for plan in (run, PlanFile(kind="grid", name="smoke", title="Smoke", cells=(cell, *run.cells))):
        write_plan_file(tmp_path / "plan.json", plan)
        assert read_plan_file(tmp_path / "plan.json") == plan
    write_plan_file(tmp_path / "plan.json", run)
    row = {"folder": "a-s0", "label": "a", "method": facts.model_dump(exclude_defaults=True), "config": {"rounds": 2}}
    assert page(tmp_path / "plan.json") == {"kind": "run", "name": "demo", "cells": [row]}


@pytest.mark.parametrize("name", ["../x", "/abs", "..", "a/b", "", "a\0b", "a/../../b", "x\n", "./x"])
def test_a_plan_leads_to_no_other_place(tmp_path, name):
    facts = MethodFacts(name="a", title="A", kind="own")
    row = {"folder": "x", "label": "a", "method": facts.model_dump(), "config": {}}
    put_page(tmp_path / "plan.json", {"kind": "run", "name": "demo", "cells": [row | {"folder": name}]})
    with pytest.raises(UserError, match=r"plan\.json: damaged \(cells\.0\.folder: .*expected one plain name"):
        read_plan_file(tmp_path / "plan.json")


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"name": 1, "cells": [{}]}', '{"name": "a", "cells": [1]}'])
def test_a_damaged_plan_is_named(tmp_path, text):
    for data in (text.encode(), sealed(text.encode(), PAGE)):
        (tmp_path / "plan.json").write_bytes(data)
        with pytest.raises(UserError, match=r"plan\.json: damaged .*move it away; start again every `relief-ray grid`"):
            read_plan_file(tmp_path / "plan.json")


def test_a_damaged_plan_says_what_keeps_the_runs_beside_it(tmp_path):
    (tmp_path / "plan.json").write_text("{")
    kept = (
        rf"goes on with the cells.*finish what was begun \(relief-ray resume {tmp_path}/RUN\), .*reuses finished runs"
    )
    with pytest.raises(UserError, match=kept):
        read_plan_file(tmp_path / "plan.json")


def test_runs_are_found_in_and_below_folders(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "b")
    shutil.copytree(finished, tmp_path / "a")
    assert find_runs([tmp_path / "b", tmp_path]) == [tmp_path / "b", tmp_path / "a"]
    with pytest.raises(UserError, match=r"no run\.json there or one folder below"):
        find_runs([tmp_path / "a" / "checkpoints"])
