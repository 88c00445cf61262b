"""Test that a run is copied to MLflow once, whatever interrupts it, by `sync`; and what is copied, by which names."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest

from actors.terminal.mlflow_export import PAGE
from relief_ray.records.cells import PlanFile, PlannedCell, write_plan_file
from relief_ray.records.checkpoint import STATE_FILE, generations
from relief_ray.records.identity import note_begun
from relief_ray.records.lock import FileLock
from relief_ray.records.metrics import _TAKEN, METRICS, round_scalars
from relief_ray.records.run_folder import read_rounds, read_run
from relief_ray.records.schema import Metrics
from relief_ray.records.sync import mlflow as mlflow_store
from relief_ray.records.sync.mlflow import (
    SIMULATED,
    VIEW,
    Exported,
    Store,
    StudySummary,
    SyncState,
    exported_scalars,
    log_run,
    log_study,
    read_sync,
    store_uri,
    sync,
    write_sync,
)
from relief_ray.records.sync.sender import brief
from relief_ray.support.errors import UserError
from tests.records.sync.stores import POINTS_A_ROUND, closed_port, configured, expected, points, stored
from tests.sealed import change_run, put_rounds, put_run

if find_spec("mlflow") is None:
    pytest.skip("mlflow comes with the server extra", allow_module_level=True)


def test_sync_copies_everything_once(run):
    first = sync(run)
    assert first.num_points == 4 * POINTS_A_ROUND
    assert sync(run).num_points == 0 and sync(run).run_id == first.run_id
    assert points(run) == expected(4)
    (stored_run,) = stored(run)
    record = read_run(run)
    assert stored_run.info.status == "FINISHED" and stored_run.info.run_name == f"{record.method.name}, seed 3"
    assert stored_run.data.tags["relief.method"] == record.method.name
    assert stored_run.data.params == {"strategy.name": "toy", "seed": "3"}
    assert (
        stored_run.data.tags["relief.cell"] == record.cell and stored_run.data.tags["relief.data_origin"] == "SYNTHETIC"
    )
    last = read_rounds(run)[-1]
    assert (
        stored_run.data.metrics["sim_time_s"] == last.totals["split"].time_s
        and stored_run.data.metrics["loss"] == last.loss
    )
    artifacts = Path(stored_run.info.artifact_uri.removeprefix("file://"))
    assert artifacts.is_absolute() and artifacts.is_relative_to(run.parent)
    for name in ("run.json", "rounds.jsonl"):
        assert (artifacts / name).read_bytes() == (run / name).read_bytes()
    target = read_sync(run).targets[store_uri(run)]
    assert (target.step, target.status, target.run_id) == (4, "done", stored_run.info.run_id)
    assert SIMULATED.keys() <= round_scalars(last, "split").keys()


@pytest.mark.parametrize(
    ("status", "there"),
    [
        ("done", "FINISHED"),
        ("failed", "FAILED"),
        ("interrupted", "KILLED"),
        ("stopped", "KILLED"),
        ("running", "RUNNING"),
    ],
)
def test_how_a_run_ended_is_its_status_in_the_store(run, status, there):
    change_run(run, status=status)
    sync(run)
    (stored_run,) = stored(run)
    assert stored_run.info.status == there


@pytest.mark.parametrize("status", ["done", "interrupted"])
def test_a_run_whose_last_line_is_damaged_is_not_exported_as_if_it_ended_there(run, status):
    change_run(run, status=status, config=read_run(run).config | {"rounds": 4})
    data = bytearray((run / "rounds.jsonl").read_bytes())
    data[-100] ^= 1
    (run / "rounds.jsonl").write_bytes(data)
    with pytest.raises(UserError, match=r"rounds\.jsonl: line 4.* damaged"):
        sync(run)
    assert stored(run) == []


def test_a_cell_that_is_computed_again_gets_a_run_of_its_own(run):
    """As `--rerun-stale` does: the same folder and cell, another parameter, other points."""
    old = sync(run)
    record = read_run(run)
    changed = {**record.config, "strategy": {"name": "toy", "trim": 0.3}}
    rerun = record.model_copy(update={"created": "2030-01-01T00:00:00Z", "config": changed})
    put_run(run, rerun)
    new = sync(run)
    assert new.run_id != old.run_id and new.num_points == 4 * POINTS_A_ROUND
    assert sync(run).run_id == new.run_id and sync(run).num_points == 0
    names = {r.info.run_id: r.info.run_name for r in stored(run)}
    name = f"{record.method.name}, seed 3"
    assert names == {old.run_id: f"{name} (replaced)", new.run_id: name}
    (earlier,) = [r for r in stored(run) if r.info.run_id == old.run_id]
    assert earlier.data.tags["relief.replaced_by"] == new.run_id and "strategy.trim" not in earlier.data.params


def test_a_store_that_refuses_a_value_is_not_called_unreachable(run):
    """The run in the store has another value under a name: no retry can heal that, and the message says so."""
    sync(run)
    record = read_run(run)
    put_run(run, record.model_copy(update={"config": {"seed": 4}}))
    with pytest.raises(UserError, match=r"'seed'.*name another with --uri, or delete that run") as refused:
        sync(run)
    assert "reachable" not in str(refused.value)


def test_a_run_lasts_in_the_store_as_long_as_its_rounds_took(run):
    """However late it is exported: it begins with its first round and ends with its last."""
    sync(run)
    (stored_run,) = stored(run)
    rounds = read_rounds(run)
    began, ended = rounds[0].ended_unix_s - rounds[0].wall_s, rounds[-1].ended_unix_s
    assert stored_run.info.start_time == round(1000 * began) and stored_run.info.end_time == round(1000 * ended)


def test_a_runs_page_is_filled_and_says_what_is_simulated(run):
    sync(run)
    (stored_run,) = stored(run)
    tags, record = stored_run.data.tags, read_run(run)
    assert (tags["mlflow.source.name"], tags["mlflow.source.type"]) == ("relief-ray", "LOCAL")
    assert "Metrics that begin with `sim_` are simulated by the clock `split`" in tags["mlflow.note.content"]
    assert str(run) in tags["mlflow.note.content"]
    (dataset,) = stored_run.inputs.dataset_inputs
    assert record.data_digest.startswith(dataset.dataset.digest) and "SYNTHETIC" in dataset.dataset.source
    assert not {"time_s", "round_s", "energy_j", "speedup"} & stored_run.data.metrics.keys()


def test_why_a_run_failed_is_a_tag_until_the_run_has_gone_on(run):
    left = {"client": 2, "device": "A", "cause": "update", "rounds": [4], "why": "too far"}
    change_run(run, status="failed", note="round 4: 7 of 8 clients\nmore", left_out=[left])
    sync(run)
    tags = stored(run)[0].data.tags
    assert tags["relief.note"] == "round 4: 7 of 8 clients" and stored(run)[0].info.status == "FAILED"
    assert tags["relief.left_out.2.update"].startswith("client 2 (type A) was left out of 1 round (4): ")
    change_run(run, status="done", note="", left_out=[])
    sync(run)
    assert not [tag for tag in stored(run)[0].data.tags if tag.startswith(("relief.note", "relief.left_out"))]


def test_the_curve_of_used_updates_has_every_round_and_returns_with_a_client(run):
    from mlflow import MlflowClient

    rounds = list(read_rounds(run))
    whole = {"rejected": {}, "left_out": {}}
    put_rounds(run, [r if r.round == 2 else r.model_copy(update=whole) for r in rounds])
    client, run_id = MlflowClient(tracking_uri=store_uri(run)), sync(run).run_id
    used = {point.step: point.value for point in client.get_metric_history(run_id, "clients_used")}
    number = len(rounds[0].participants)
    assert used == {1: number, 2: number - 1, 3: number, 4: number}


def test_f1_of_each_sensor_alone_is_a_metric(run):
    record = read_rounds(run)[1]
    metrics = Metrics(f1=0.5, f1_by_modality={"acc": 0.25, "mag": 0.125})
    scalars = exported_scalars(record.model_copy(update={"metrics": metrics}), "split")
    assert (scalars["f1_sensor_acc"], scalars["f1_sensor_mag"], scalars["f1"]) == (0.25, 0.125, 0.5)
    assert scalars["sim_time_s"] == record.totals["split"].time_s and scalars["wall_s"] == record.wall_s


@pytest.mark.parametrize("wanted", [False, True])
def test_the_last_checkpoint_is_an_artifact_where_it_is_wanted(run, wanted):
    configured(run, model=wanted)
    sync(run)
    copy = Path(stored(run)[0].info.artifact_uri.removeprefix("file://")) / "model" / STATE_FILE
    assert copy.exists() == wanted
    assert not wanted or copy.read_bytes() == (run / "checkpoints" / "round-000004" / STATE_FILE).read_bytes()


@pytest.mark.parametrize("how", ["a bit", "cut", "gone"])
def test_a_damaged_checkpoint_is_no_artifact(run, how):
    configured(run, model=True)
    state = generations(run)[0] / STATE_FILE
    content = state.read_bytes()
    state.write_bytes(content[:-9] + (bytes([content[-9] ^ 1]) + content[-8:]) * (how == "a bit"))
    if how == "gone":
        state.unlink()
    with pytest.raises(UserError, match=r"round-000004: does not match its sha256, .*resume its study"):
        sync(run)
    assert stored(run)[0].info.status == "RUNNING", "not said to be there whole"


def test_files_of_a_study_are_artifacts_of_one_run_of_its_name(run):
    sync(run)
    page = run.parent / "index.html"
    began, ended = "2026-01-02T03:04:05Z", "2026-01-02T03:05:35Z"
    tags = {"relief.methods": "fedavg, relief"}
    summary = StudySummary(started=began, finished=ended, note="2 of 2 runs done", tags=tags)
    for text in ("first", "second"):
        page.write_text(text)
        log_study(Store(uri=store_uri(run)), "demo", [page], summary)
    (study,) = [r for r in stored(run) if r.data.tags.get("relief.grid") == "demo"]
    assert study.info.run_name == "demo" and study.info.status == "FINISHED"
    assert study.info.end_time - study.info.start_time == 90_000, "it lasts from its first run to its last"
    assert study.data.metrics == {} and study.data.tags["relief.methods"] == "fedavg, relief"
    assert study.data.tags["mlflow.note.content"] == "2 of 2 runs done"
    copy = Path(study.info.artifact_uri.removeprefix("file://")) / "index.html"
    assert copy.read_text() == "second"


def test_the_report_of_a_run_is_an_artifact_of_that_run_where_it_was_exported(run):
    page = run.parent / "index.html"
    page.write_text("of one run")
    store = Store(uri=store_uri(run))
    assert log_run(store, run, [page]) is None, "never exported there"
    sync(run)
    (row,) = stored(run)
    assert log_run(store, run, [page]) == row.info.run_id
    assert (Path(row.info.artifact_uri.removeprefix("file://")) / "report" / "index.html").read_text() == "of one run"


def test_the_experiment_is_one_of_models_that_are_trained(run):
    from mlflow import MlflowClient

    sync(run)
    experiment = MlflowClient(tracking_uri=store_uri(run)).get_experiment_by_name("relief-ray")
    assert experiment is not None and experiment.tags["mlflow.experimentKind"] == "custom_model_development"


def test_only_what_is_missing_is_sent(run):
    change_run(run, status="running")
    whole = (run / "rounds.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    (run / "rounds.jsonl").write_bytes(b"".join(lines[:2]) + lines[2][:30])
    assert sync(run).num_points == 2 * POINTS_A_ROUND
    (run / "rounds.jsonl").write_bytes(whole)
    assert sync(run).num_points == 2 * POINTS_A_ROUND
    (run / "sync.json").unlink()
    assert sync(run).num_points == 0
    assert points(run) == expected(4) and len(stored(run)) == 1


def test_a_finished_run_without_its_last_line_is_refused(run):
    change_run(run, config=read_run(run).config | {"rounds": 4})
    path = run / "rounds.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    with pytest.raises(UserError, match="expected round 4 of a finished run"):
        sync(run)
    assert [stored_run.info.status for stored_run in stored(run)] == ["RUNNING"]


def test_large_ledgers_go_in_batches(run, monkeypatch):
    monkeypatch.setattr(mlflow_store, "MAX_BATCH_POINTS", 5)
    monkeypatch.setattr(mlflow_store, "MAX_BATCH_PARAMS", 1)
    assert sync(run).num_points == 4 * POINTS_A_ROUND
    assert points(run) == expected(4)


@pytest.mark.ci
@pytest.mark.parametrize("moment", ["before-watermark"])
def test_an_export_killed_between_log_and_watermark_repeats_nothing(run, program, moment):
    assert program("sync-killed", run, moment, check=False).returncode == -9
    assert not (run / "sync.json").exists() and points(run) == expected(4)
    assert sync(run).num_points == 0
    assert points(run) == expected(4) and len(stored(run)) == 1


@pytest.mark.ci
def test_a_process_killed_while_it_makes_the_store_leaves_none(run, program):
    (run.parent / "mlflow.db").unlink()
    assert program("sync-killed", run, "making-the-store", check=False).returncode == -9
    assert stored(run) == []
    assert sync(run).num_points == 4 * POINTS_A_ROUND
    assert [p.name for p in run.parent.iterdir() if p.name.endswith(".new")] == []


@pytest.mark.ci
@pytest.mark.parametrize("name", ["a%20b", "what?x=1", "h#y", "two words", "[1]", "100%", "é"])
def test_a_folder_of_any_name_has_its_store_and_nothing_else(finished, empty_store, tmp_path, name):
    folder = tmp_path / name / "run"
    shutil.copytree(finished, folder)
    shutil.copy(empty_store, folder.parent / "mlflow.db")
    assert sync(folder).num_points == 4 * POINTS_A_ROUND and sync(folder).num_points == 0
    assert {p.name for p in tmp_path.iterdir()} == {name}
    made = {p.name for p in folder.parent.iterdir()}
    assert made == {"run", "mlflow.db", "mlflow.db.lock", "mlartifacts"}


@pytest.mark.ci
@pytest.mark.parametrize("name", ["what?x=1", "plain"])
def test_a_store_that_cannot_be_made_leaves_nothing(finished, tmp_path, monkeypatch, name):
    """Neither the part of the schema that was written nor a folder of MLflow's own."""
    folder = tmp_path / name / "run"
    shutil.copytree(finished, folder)

    def full(*paths):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(mlflow_store, "move", full)
    with pytest.raises(UserError, match=r"cannot export .*No space left on device"):
        sync(folder)
    assert [p.name for p in tmp_path.iterdir()] == [name]
    assert {p.name for p in folder.parent.iterdir()} == {"run", "mlflow.db.lock"}


@pytest.mark.ci
def test_the_remedy_for_a_deleted_experiment_works_as_it_is_written(run):
    """It is typed into a shell."""
    client = mlflow_store._connect(Store(uri=store_uri(run)))
    experiment = client.create_experiment("relief-ray", (run.parent / "mlartifacts").as_uri())
    client.delete_experiment(experiment)
    with pytest.raises(
        UserError, match="its experiment 'relief-ray' was deleted, expected one that takes runs"
    ) as told:
        sync(run)
    (line,) = re.findall(r"restore it with `(.*)`", brief(told.value))  # as notes and pages of runs say it
    here = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-c", line], env=here, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert sync(run).num_points == 4 * POINTS_A_ROUND


@pytest.mark.ci
@pytest.mark.parametrize("number", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_processes_open_one_fresh_store_at_once(finished, program, tmp_path, number):
    folders = [tmp_path / f"run{i}" for i in range(number)]
    for folder in folders:
        shutil.copytree(finished, folder)
        record = read_run(folder).model_copy(update={"parent": "grid one"})
        put_run(folder, record)
    assert json.loads(program("sync-together", tmp_path / "mlflow.db", *folders).stdout) == [0] * number
    assert points(folders[0]) == Counter({key: number for key in expected(4)})
    runs = stored(folders[0])
    (parent,) = [r for r in runs if r.data.tags.get("relief.kind") == "grid"]
    children = [r for r in runs if r.data.tags.get("relief.study_run") == parent.info.run_id]
    assert not any("mlflow.parentRunId" in r.data.tags for r in runs), "the list is flat"
    assert len(runs) == number + 1 and len(children) == number and parent.info.run_name == "grid one"


def test_a_level_of_a_grid_stands_in_the_runs_name_and_group(run):
    record = read_run(run)
    choice = {"kind": "level", "parameters": ["training.epochs"], "level": "e1"}
    config = {**record.config, "choice": choice, "data": {"split": "held_out_subject", "fold": 2}, "replicate": 7}
    put_run(run, record.model_copy(update={"config": config}))
    sync(run)
    (row,) = stored(run)
    name = f"{record.method.name} (e1)"
    assert (row.info.run_name, row.data.tags["relief.method"]) == (f"{name}, fold 2, replicate 7", name)


def test_runs_of_several_fleets_are_groups_of_their_own(run):
    """A mean over two fleets says nothing; a grid of one setting does not repeat its name."""
    record = read_run(run)
    own = {"choice": {"kind": "level", "parameters": [], "level": "e1"}}
    put_run(run, record.model_copy(update={"parent": "fleets", "config": {**record.config, **own}}))
    other = run.with_name("other")
    shutil.copytree(run, other)

    def cell(folder, setting, config):
        facts = {"label": "toy", "setting": setting, "config": {**record.config, **config}}
        return PlannedCell(folder=folder, method=record.method, **facts)

    cells = [cell(run.name, "dsa-cnn-gap55-e1", own), cell("other", "dsa-cnn-gap10-e1", own)]
    for names, groups in ((cells[:1], {"toy (e1)"}), (cells, {"toy (e1), dsa-cnn-gap55", "toy (e1), dsa-cnn-gap10"})):
        write_plan_file(run.parent / "plan.json", PlanFile(kind="grid", name="fleets", title="Two", cells=tuple(names)))
        for folder in (run, other)[: len(names)]:
            change_run(folder, created=f"2026-01-0{len(names)}T00:00:00Z")
            sync(folder)
        rows = [row for row in stored(run) if not row.info.run_name.endswith("(replaced)")]
        assert {row.data.tags["relief.method"] for row in rows if "relief.cell" in row.data.tags} == groups
    assert sum(row.info.run_name.startswith("toy (e1), dsa-cnn-gap10, seed") for row in stored(run)) == 1


def test_an_experiment_has_the_view_that_the_address_opens(run):
    """Also one that somebody else made."""
    from mlflow import MlflowClient

    store = Store(uri=store_uri(run))
    client = MlflowClient(tracking_uri=store.uri)
    client.create_experiment(store.experiment, artifact_location=(run.parent / "mlartifacts").as_uri())
    sync(run)
    tags = client.get_experiment_by_name(store.experiment).tags
    (by,) = json.loads(tags[f"mlflow.sharedViewState.{VIEW}"])["groupBy"]["groupByKeys"]
    assert by == {"mode": "tag", "groupByData": "relief.method"} and by["groupByData"] in stored(run)[0].data.tags
    assert PAGE.endswith(f"viewStateShareKey={VIEW}")


def test_cells_of_a_grid_share_one_parent(run):
    folders = [run, run.with_name("other")]
    shutil.copytree(run, folders[1])
    for folder in folders:
        record = read_run(folder).model_copy(update={"parent": "it's a grid"})
        put_run(folder, record)
        sync(folder)
    parents = [r for r in stored(run) if r.data.tags.get("relief.grid") == "it's a grid"]
    assert len(parents) == 1 and len(stored(run)) == 3
    children = {r.data.tags["relief.study_run"] for r in stored(run) if "relief.cell" in r.data.tags}
    assert children == {parents[0].info.run_id}
    ends = [r.info.end_time for r in stored(run) if "relief.cell" in r.data.tags]
    assert parents[0].info.end_time >= max(ends), "a grid lasts until its last cell's end"


@pytest.mark.ci
def test_sync_goes_to_the_runs_own_store_and_experiment(run, tmp_path):
    configured(run, uri=f"sqlite:///{tmp_path / 'own.db'}", experiment="mine")
    note_begun(read_run(run).config, {})
    done = sync(run)
    assert done.uri.endswith("own.db") and done.num_points == 4 * POINTS_A_ROUND
    assert [r.info.run_id for r in stored(run, store_uri(run, done.uri), "mine")] == [done.run_id]
    assert stored(run) == []


def test_sync_asks_for_a_store_whose_credentials_were_masked(run):
    configured(run, uri="https://***@tracker.example", experiment="mine")
    with pytest.raises(UserError, match=r"needs credentials, which are not kept; name it with --uri"):
        sync(run)


def test_sync_to_a_dead_server_says_so(run):
    with pytest.raises(
        UserError, match=r"http://\*\*\*@127\.0\.0\.1:\d+: cannot export .*expected a reachable MLflow store"
    ):
        sync(run, f"http://me:pw@127.0.0.1:{closed_port()}")
    assert read_sync(run).error is not None


def test_a_file_that_is_no_database_is_not_called_a_store_to_start(run):
    database, notes = run.parent / "mlflow.db", "notes of mine\n" * 100
    database.write_text(notes)
    with pytest.raises(UserError, match=r"not a database.*expected a database that MLflow made.*move that file away"):
        sync(run)
    assert database.read_text() == notes


def test_two_exports_of_one_run_exclude_each_other(run):
    with (
        FileLock(run / "sync.lock", "the export"),
        pytest.raises(UserError, match="export of this run is in use by process"),
    ):
        sync(run)
    assert points(run) == Counter()


def test_store_uris_are_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert store_uri(Path("runs/a")) == f"sqlite:///{tmp_path}/runs/mlflow.db"
    assert store_uri(Path("a"), "sqlite:///x.db") == f"sqlite:///{tmp_path}/x.db"
    assert store_uri(Path("a"), "http://h:5000") == "http://h:5000"


def test_a_round_gives_its_scalars(finished):
    metrics = Metrics(f1=0.5, f1_fleet=0.25, f1_rare=0.125, accuracy=0.625)
    record = read_rounds(finished)[1].model_copy(update={"metrics": metrics, "speedup": 2.0, "trained_fraction": 0.75})
    assert round_scalars(record, "split") == {
        "f1": 0.5,
        "f1_fleet": 0.25,
        "f1_rare": 0.125,
        "accuracy": 0.625,
        "loss": 0.5,
        "speedup": 2.0,
        "trained_fraction": 0.75,
        "round_s": 2.5,
        "time_s": 4.0,
        "energy_j": 30.0,
        "bytes_up": 162.0,
        "bytes_down": 400.0,
        "wall_s": 0.5,
    }
    taken = [name for name in round_scalars(record, "split") if name in METRICS or _TAKEN.fullmatch(name)]
    assert taken == list(round_scalars(record, "split")), "no metric of a user's own has such a name"


def test_a_long_value_is_cut_to_what_the_store_takes(run):
    change_run(run, config=read_run(run).config | {"f": "x" * 600})
    sync(run)
    assert stored(run)[0].data.params["f"] == "x" * 500


def test_what_is_not_known_or_not_finite_is_left_out(finished):
    record = read_rounds(finished)[0].model_copy(update={"clients": (), "speedup": math.nan, "trained_fraction": None})
    assert set(round_scalars(record, "measured")) == {"wall_s"}


def test_the_watermark_is_kept_per_store_and_holds_no_credentials(tmp_path):
    assert read_sync(tmp_path) == SyncState()
    write_sync(tmp_path, {"http://me:pw@h": Exported(run_id="r", step=3)})
    write_sync(tmp_path, {}, "cannot reach http://me:pw@h")
    write_sync(tmp_path, {"sqlite:////x": Exported(run_id="s")})
    assert read_sync(tmp_path).targets == {
        "http://***@h": Exported(run_id="r", step=3),
        "sqlite:////x": Exported(run_id="s"),
    }
    write_sync(tmp_path, {}, "cannot reach http://me:pw@h")
    assert read_sync(tmp_path).error == "cannot reach http://***@h" and len(read_sync(tmp_path).targets) == 2
    (tmp_path / "sync.json").write_text("{torn")
    assert read_sync(tmp_path) == SyncState()


@pytest.mark.parametrize("address", ["http://127.0.0.1:9/x", "file:{}", "file://host{}", "{}", "mlartifacts/../../x"])
def test_a_store_that_names_another_place_for_its_files_takes_none(run, tmp_path_factory, address):
    """Whatever the address looks like: nothing is sent to it, nothing written there."""
    victim = tmp_path_factory.mktemp("elsewhere") / "victim"
    sync(run)
    with closing(sqlite3.connect(run.parent / "mlflow.db")) as store, store:
        store.execute("UPDATE runs SET artifact_uri = ?", (address.format(victim),))
    with pytest.raises(UserError, match=r"keeps files of runs in .*, expected a place in .*remove mlflow\.db and"):
        sync(run)
    assert not victim.exists()


def test_a_backup_of_hard_links_keeps_its_store(run, tmp_path):
    sync(run)
    database, backup = run.parent / "mlflow.db", tmp_path / "backup.db"
    os.link(database, backup)
    before = backup.read_bytes()
    with pytest.raises(UserError, match=r"mlflow\.db: has another name, in a backup of hard links say.*cp .*mv copy"):
        sync(run)
    assert backup.read_bytes() == before


@pytest.mark.parametrize("kind", ["link", "pipe", "link to a device"])
def test_a_store_beside_a_run_is_a_file_of_its_own(run, tmp_path, kind):
    database, elsewhere = run.parent / "mlflow.db", tmp_path / "elsewhere.db"
    shutil.move(database, elsewhere)
    before = elsewhere.read_bytes()
    if kind == "pipe":
        os.mkfifo(database)
    else:
        database.symlink_to(elsewhere if kind == "link" else "/dev/zero")
    with pytest.raises(UserError, match="Not a regular file" if kind == "pipe" else "is a link to"):
        sync(run)
    assert elsewhere.read_bytes() == before
    sync(run, f"sqlite:///{elsewhere}")


@pytest.mark.parametrize("how", ["moved", "linked"])
def test_a_store_whose_files_lie_elsewhere_takes_none(run, tmp_path, tmp_path_factory, how):
    sync(run)
    victim = tmp_path_factory.mktemp("elsewhere") / "victim"
    if how == "moved":  # it still names the old place
        shutil.copytree(run.parent, tmp_path / "moved", ignore=shutil.ignore_patterns("moved", "mlartifacts"))
        run, victim = tmp_path / "moved" / run.name, run.parent / "mlartifacts"
        shutil.rmtree(victim)
    else:
        shutil.move(run.parent / "mlartifacts", victim)
        (run.parent / "mlartifacts").symlink_to(victim)
        shutil.rmtree(victim)
        victim.mkdir()
        victim = victim / "relief-ray"
    with pytest.raises(UserError, match=r"keeps files of runs in .*, expected a place in .*remove mlflow\.db and"):
        sync(run)
    assert not victim.exists()
