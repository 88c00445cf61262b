"""The ledger of a grid: states come from folders, and survive whatever happened to them."""

import json
from dataclasses import replace

import pytest

from actors.commands.run import _finish
from actors.terminal.exit_codes import Stopped
from relief_ray.experiment.lifecycle import create
from relief_ray.models.moment.weights import load_frozen
from relief_ray.records.identity import source_digest
from relief_ray.records.run_folder import ERROR_FILE, RunFolder, read_run
from relief_ray.records.sync.sender import Senders
from relief_ray.studies.plan import Plan, keep_error
from relief_ray.support.errors import UserError
from tests.actors.grids.tiny_plans import tiny_plan
from tests.actors.trials import run_alone
from tests.models.test_backbone_frozen import put_weights
from tests.plans import cells_of, typed
from tune_configs.registry import load_grid


def states(plan):
    return [e.status for e in plan.look()]


def test_states_of_a_grid_with_every_kind_of_cell(tmp_path):
    plan = tiny_plan(tmp_path, methods=("fedavg", "fedprox", "v1", "v2", "v3")).write()
    done, failed, begun, stale, _ = plan.look()
    assert states(plan) == ["planned"] * 5
    assert run_alone(done) == "done"
    keep_error(failed.folder, ValueError("no"))
    create(begun.cell.config, begun.folder)[1].close()
    create(stale.cell.config, stale.folder)[1].close()
    with RunFolder.resume(stale.folder) as folder:
        folder.update(source_digest="0" * 64)
    entries = plan.look()
    assert [e.status for e in entries] == ["done", "failed", "interrupted", "stale", "planned"]
    assert entries[0].num_rounds == entries[0].cell.config.rounds == 3
    assert entries[1].why == "ValueError: no" and "sources 000000000000 there" in entries[3].why
    assert read_run(done.folder).parent == "tiny"
    senders = Senders([], print)
    with pytest.raises(Stopped, match=f"1 cell is stale.*\ncompute again with: .* resume {tmp_path} --rerun-") as ended:
        list(_finish(plan, senders, {stale.cell.name}))
    assert ended.value.code == 5
    with pytest.raises(Stopped, match=r"^1 cells failed; (.|\n)*1 cell is stale"):
        list(_finish(plan, senders, {stale.cell.name, failed.cell.name}))
    assert len(list(_finish(plan, senders, {done.cell.name}))) == 1


def test_a_failed_cell_keeps_its_error_and_a_new_try_forgets_it(tmp_path):
    plan = tiny_plan(tmp_path, methods=("fedavg",)).write()
    (entry,) = plan.look()
    broken = replace(
        entry, cell=replace(entry.cell, config=entry.cell.config.model_copy(update={"backbone": "nonsense"}))
    )
    assert run_alone(broken) == "failed"
    (cell,) = plan.look()
    kept = json.loads((entry.folder / ERROR_FILE).read_text())
    assert cell.status == "failed" and kept["error"] == cell.why and "Traceback" in kept["traceback"]
    assert run_alone(entry) == "done"
    assert states(plan) == ["done"] and not (entry.folder / ERROR_FILE).exists()


def test_a_cell_stops_between_rounds_and_goes_on(tmp_path):
    plan = tiny_plan(tmp_path, methods=("relief",)).write()
    (entry,) = plan.look()
    (tmp_path / ".stop").touch()
    assert run_alone(entry) == "interrupted" and not entry.folder.exists()
    (tmp_path / ".stop").unlink()
    create(entry.cell.config, entry.folder, parent="tiny")[1].close()
    assert run_alone(entry) == "done"
    assert read_run(entry.folder).num_resumes == 1 and states(plan) == ["done"]


def test_a_plan_file_is_read_as_it_was_written(tmp_path):
    plan = tiny_plan(tmp_path).write()
    assert Plan.read(tmp_path, kind="grid") == plan
    changed = Plan.read(tmp_path, typed("runtime.num_hosts=2"), kind="grid")
    assert [c.hash for c in changed.cells] == [c.hash for c in plan.cells]
    assert {c.config.runtime.num_hosts for c in changed.cells} == {2}


def test_a_second_call_adds_cells(tmp_path):
    tiny_plan(tmp_path, methods=("fedavg",)).write()
    plan = tiny_plan(tmp_path, methods=("relief", "fedavg")).write()
    assert (
        [c.label for c in plan.cells]
        == ["fedavg", "relief"]
        == [c.label for c in Plan.read(tmp_path, kind="grid").cells]
    )


def test_another_grids_folder_is_refused(tmp_path):
    tiny_plan(tmp_path).write()
    with pytest.raises(UserError, match="holds the grid tiny, asked: other"):
        replace(tiny_plan(tmp_path), name="other").write()


@pytest.mark.parametrize("text", ["", "{}", '{"name": 1, "title": 2, "cells": [{}]}', "[]"])
def test_a_damaged_plan_file_is_named(tmp_path, text):
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(UserError, match="damaged"):
        Plan.read(tmp_path, kind="grid")
    with pytest.raises(UserError, match=r"no plan.json; expected a folder that `relief-ray grid` made"):
        Plan.read(tmp_path / "elsewhere", kind="grid")


def test_a_damaged_cell_is_a_failed_one(tmp_path):
    plan = tiny_plan(tmp_path, methods=("fedavg",)).write()
    (entry,) = plan.look()
    entry.folder.mkdir()
    (entry.folder / "run.json").write_text("{")
    (cell,) = plan.look()
    assert cell.status == "failed" and "unreadable" in cell.why


@pytest.mark.ci
@pytest.mark.parametrize("left", ["nothing", "one round", "half a line", "damage"])
def test_a_finished_cell_whose_ledger_was_cut_is_a_failed_one(tmp_path, left):
    plan = tiny_plan(tmp_path, methods=("fedavg",)).write()
    (entry,) = plan.look()
    run_alone(entry)
    assert states(plan) == ["done"]
    ledger = entry.folder / "rounds.jsonl"
    first, second, third = ledger.read_bytes().splitlines(keepends=True)
    cut = {"nothing": b"", "one round": first, "half a line": first + second[:99], "damage": b"{\n" + second + third}
    ledger.write_bytes(cut[left])
    (cell,) = plan.look()
    assert cell.status == "failed" and str(ledger) in cell.why
    words = {"nothing": "no round (0 of 3", "damage": "line 1 is damaged"}.get(
        left, "round 1 (1 of 3 rounds), expected round"
    )
    assert words in cell.why
    # A new try does not go on silently behind what is lost; what was there goes on once it is restored.
    assert run_alone(cell) == "failed"
    ledger.write_bytes(first + second + third)
    assert states(plan) == ["done"]


def test_a_cell_that_a_program_with_other_keys_finished_is_stale(tmp_path):
    plan = tiny_plan(tmp_path, methods=("fedavg",)).write()
    (entry,) = plan.look()
    run_alone(entry)
    with RunFolder.resume(entry.folder) as folder:
        folder.update(source_digest="0" * 64, config_hash="1" * 64)
    (cell,) = plan.look()
    assert cell.status == "stale" and "sources 000000000000 there" in cell.why and cell.num_rounds == 3
    with RunFolder.resume(entry.folder) as folder:
        folder.update(source_digest=source_digest())
    assert "holds another run" in plan.look()[0].why


def test_added_cells_stand_where_they_belong(tmp_path):
    def order(plan):
        return [(c.config.seed, c.config.data.fold, c.label) for c in plan.cells]

    def ask(*settings):
        cells = cells_of(load_grid("smoke"), settings)
        return Plan(kind="grid", out=tmp_path, name="smoke", title="", cells=cells).write()

    ask("methods=[fedavg]")
    whole = ask()
    assert order(whole) == [(s, f, m) for s in (0, 1) for f in (0, 1) for m in ("fedavg", "relief", "v1")]
    assert order(ask("seeds=[0]")) == order(whole)
    assert order(ask("seeds=[2]", "folds=[1]")) == [*order(whole), *((2, 1, m) for m in ("fedavg", "relief", "v1"))]
    assert order(ask("seeds=[1]", "folds=[2]"))[12:15] == [(1, 2, m) for m in ("fedavg", "relief", "v1")]


def test_stale_cells_are_set_aside_not_lost(tmp_path):
    plan = tiny_plan(tmp_path, methods=("fedavg",)).write()
    (entry,) = plan.look()
    run_alone(entry)
    with RunFolder.resume(entry.folder) as folder:
        folder.update(source_digest="ab" * 32)
    plan.without_stale()
    assert states(plan) == ["planned"]
    assert read_run(tmp_path / "stale" / f"{entry.folder.name}-abababab").status == "done"


@pytest.mark.ci
def test_a_cell_on_weights_that_have_changed_is_stale(tmp_path, run_cache):
    put_weights(tmp_path / "weights", 0)
    backbone = {"name": "moment_lora", "size": "tiny", "rank": 2, "weights": str(tmp_path / "weights")}
    plan = tiny_plan(tmp_path / "grid", methods=("fedavg",), rounds=1, backbone=backbone).write()
    (entry,) = plan.look()
    assert run_alone(entry) == "done" and states(plan) == ["done"]
    was = str(read_run(entry.folder).backbone["weights_sha256"])
    put_weights(tmp_path / "weights", 1)
    load_frozen.cache_clear()
    (cell,) = plan.look()
    assert cell.status == "stale" and cell.why.startswith(f"weights_sha256 {was[:12]} there, ")
    plan.without_stale()
    assert states(plan) == ["planned"] and run_alone(entry) == "done"
    assert states(plan) == ["done"] and read_run(entry.folder).backbone["weights_sha256"] != was
    put_weights(tmp_path / "weights", 0)
    assert states(plan) == ["stale"]
    plan.without_stale()
    assert sorted(p.suffix for p in (plan.out / "stale").iterdir()) == ["", ".2"], "same program, set aside twice"
