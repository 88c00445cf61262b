"""Test 32 of the fault list: MLflow down at the start, in the middle, at the end; nothing lost, nothing twice."""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from relief_ray.errors import UserError
from relief_ray.records import (
    MlflowTracker,
    NullTracker,
    RunFolder,
    Tracker,
    mlflow_store,
    read_rounds,
    read_run,
    sync,
    tracking,
)
from relief_ray.records.lock import FileLock
from relief_ray.records.metrics import METRICS
from relief_ray.records.mlflow_store import Store, read_sync, store_uri

if find_spec("mlflow") is None:
    pytest.skip("mlflow comes with the server extra", allow_module_level=True)
POINTS_A_ROUND = 9  # of the toy run, which is never evaluated
START_S = 60.0


@pytest.fixture(scope="session")
def empty_store(finished, tmp_path_factory) -> Path:
    """A store that only knows its schema: making one takes seconds."""
    folder = tmp_path_factory.mktemp("store")
    shutil.copytree(finished, folder / "run")
    mlflow_store._connect(Store(uri=store_uri(folder / "run")))
    return folder / "mlflow.db"


@pytest.fixture
def run(finished, empty_store, tmp_path) -> Path:
    """A finished run beside a store that does not have it yet."""
    shutil.copytree(finished, tmp_path / "run")
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return tmp_path / "run"


def stored(folder: Path, uri: str | None = None, name: str = "relief-ray") -> list[object]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=store_uri(folder, uri))
    experiment = client.get_experiment_by_name(name)
    return list(client.search_runs([experiment.experiment_id])) if experiment else []


def points(folder: Path, uri: str | None = None) -> Counter[tuple[str, int]]:
    """How often each (metric, round) is in the store, over all runs."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=store_uri(folder, uri))
    logged = [
        p for r in stored(folder, uri) for key in r.data.metrics for p in client.get_metric_history(r.info.run_id, key)
    ]
    return Counter((p.key, p.step) for p in logged)


def expected(rounds: int) -> Counter[tuple[str, int]]:
    costs = ("round_s", "time_s", "energy_j", "bytes_up", "bytes_down", "wall_s")
    keys = ("loss", "speedup", "trained_fraction", *costs)
    return Counter((key, round_) for key in keys for round_ in range(rounds))


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + START_S
    while not condition():
        assert time.monotonic() < until, "the export did not get there"
        time.sleep(0.05)


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_sync_copies_everything_once(run):
    first = sync(run)
    assert first.num_points == 4 * POINTS_A_ROUND
    assert sync(run).num_points == 0 and sync(run).run_id == first.run_id
    assert points(run) == expected(4)
    (stored_run,) = stored(run)
    record = read_run(run)
    assert stored_run.info.status == "FINISHED" and stored_run.info.run_name == record.name
    assert stored_run.data.params == {"strategy.name": "toy", "seed": "3"}
    assert (
        stored_run.data.tags["relief.cell"] == record.cell and stored_run.data.tags["relief.data_origin"] == "SYNTHETIC"
    )
    last = read_rounds(run)[-1]
    assert (
        stored_run.data.metrics["time_s"] == last.totals["split"].time_s
        and stored_run.data.metrics["loss"] == last.loss
    )
    artifacts = Path(stored_run.info.artifact_uri.removeprefix("file://"))
    assert artifacts.is_absolute() and artifacts.is_relative_to(run.parent)
    for name in ("run.json", "rounds.jsonl"):
        assert (artifacts / name).read_bytes() == (run / name).read_bytes()
    target = read_sync(run).targets[store_uri(run)]
    assert (target.step, target.status, target.run_id) == (3, "done", stored_run.info.run_id)
    assert set(METRICS) >= {key for key, _ in expected(1)}


def test_the_experiment_is_one_of_models_that_are_trained(run):
    from mlflow import MlflowClient

    sync(run)
    experiment = MlflowClient(tracking_uri=store_uri(run)).get_experiment_by_name("relief-ray")
    assert experiment is not None and experiment.tags["mlflow.experimentKind"] == "custom_model_development"


def test_only_what_is_missing_is_sent(run):
    whole = (run / "rounds.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    (run / "rounds.jsonl").write_bytes(b"".join(lines[:2]) + lines[2][:30])
    assert sync(run).num_points == 2 * POINTS_A_ROUND
    (run / "rounds.jsonl").write_bytes(whole)
    assert sync(run).num_points == 2 * POINTS_A_ROUND
    (run / "sync.json").unlink()
    assert sync(run).num_points == 0
    assert points(run) == expected(4) and len(stored(run)) == 1


def test_large_ledgers_go_in_batches(run, monkeypatch):
    monkeypatch.setattr(mlflow_store, "MAX_BATCH_POINTS", 5)
    monkeypatch.setattr(mlflow_store, "MAX_BATCH_PARAMS", 1)
    assert sync(run).num_points == 4 * POINTS_A_ROUND
    assert points(run) == expected(4)


@pytest.mark.parametrize("moment", ["before-watermark"])
def test_an_export_killed_between_log_and_watermark_repeats_nothing(run, program, moment):
    assert program("sync-killed", run, moment, check=False).returncode == -9
    assert not (run / "sync.json").exists() and points(run) == expected(4)
    assert sync(run).num_points == 0
    assert points(run) == expected(4) and len(stored(run)) == 1


def test_a_process_killed_while_it_makes_the_store_leaves_none(run, program):
    (run.parent / "mlflow.db").unlink()
    assert program("sync-killed", run, "making-the-store", check=False).returncode == -9
    assert stored(run) == []
    assert sync(run).num_points == 4 * POINTS_A_ROUND
    assert [p.name for p in run.parent.iterdir() if p.name.endswith(".new")] == []


@pytest.mark.parametrize("number", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_processes_open_one_fresh_store_at_once(finished, program, tmp_path, number):
    folders = [tmp_path / f"run{i}" for i in range(number)]
    for folder in folders:
        shutil.copytree(finished, folder)
        record = read_run(folder).model_copy(update={"parent": "grid one"})
        (folder / "run.json").write_text(record.model_dump_json())
    assert json.loads(program("sync-together", tmp_path / "mlflow.db", *folders).stdout) == [0] * number
    assert points(folders[0]) == Counter({key: number for key in expected(4)})
    runs = stored(folders[0])
    (parent,) = [r for r in runs if r.data.tags.get("relief.kind") == "grid"]
    children = [r for r in runs if r.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert len(runs) == number + 1 and len(children) == number and parent.info.run_name == "grid one"


def test_cells_of_a_grid_share_one_parent(run):
    folders = [run, run.with_name("other")]
    shutil.copytree(run, folders[1])
    for folder in folders:
        record = read_run(folder).model_copy(update={"parent": "it's a grid"})
        (folder / "run.json").write_text(record.model_dump_json())
        sync(folder)
    parents = [r for r in stored(run) if r.data.tags.get("relief.grid") == "it's a grid"]
    assert len(parents) == 1 and len(stored(run)) == 3
    children = {r.data.tags["mlflow.parentRunId"] for r in stored(run) if "relief.cell" in r.data.tags}
    assert children == {parents[0].info.run_id}
    ends = [r.info.end_time for r in stored(run) if "relief.cell" in r.data.tags]
    assert parents[0].info.end_time >= max(ends), "a grid lasts until its last cell's end"


def configured(run: Path, **tracking: object) -> None:
    record = read_run(run)
    changed = record.model_copy(update={"config": {**record.config, "tracking": tracking}})
    (run / "run.json").write_text(changed.model_dump_json())


def test_sync_goes_to_the_runs_own_store_and_experiment(run, tmp_path):
    configured(run, uri=f"sqlite:///{tmp_path / 'own.db'}", experiment="mine")
    done = sync(run)
    assert done.uri.endswith("own.db") and done.num_points == 4 * POINTS_A_ROUND
    assert [r.info.run_id for r in stored(run, store_uri(run, done.uri), "mine")] == [done.run_id]
    assert stored(run) == []


def test_sync_asks_for_a_store_whose_credentials_were_masked(run):
    configured(run, uri="https://***@tracker.example", experiment="mine")
    with pytest.raises(UserError, match=r"needs credentials, which are not kept; name it with --uri"):
        sync(run)


def live(run: Path, tracker: Tracker, rounds: tuple, status: str = "done") -> float:
    """Replays a run through a tracker; gives the seconds that the rounds' calls took."""
    with RunFolder.resume(run, min_free_bytes=0) as folder:
        folder.rewind(None)
        folder.update(status="running")
        tracker.start(folder.run, run)
        spent_s = 0.0
        for record in rounds:
            folder.append(record)
            began = time.perf_counter()
            tracker.round(record)
            spent_s += time.perf_counter() - began
        folder.update(status=status)
        tracker.finish(status)
    return spent_s


def test_a_tracker_writes_to_a_store_in_the_background(run):
    tracker = MlflowTracker(finish_s=START_S)
    live(run, tracker, read_rounds(run))
    assert points(run) == expected(4)
    (stored_run,) = stored(run)
    assert stored_run.info.status == "FINISHED"
    assert sync(run).num_points == 0


def test_a_resumed_run_goes_on_in_the_same_place_with_no_round_twice(run):
    rounds = read_rounds(run)
    first = MlflowTracker(finish_s=START_S)
    live(run, first, rounds[:3], status="interrupted")
    (stored_run,) = stored(run)
    assert stored_run.info.status == "KILLED" and points(run) == expected(3)
    with RunFolder.resume(run, min_free_bytes=0) as folder:
        folder.rewind(1)
        second = MlflowTracker(finish_s=START_S, interval_s=0.0, delay_s=0.0)
        second.start(folder.update(status="running"), run)
        wait_for(lambda: stored(run)[0].info.status == "RUNNING")
        for record in rounds[2:]:
            folder.append(record.model_copy(update={"wall_s": 9.0, "ended_unix_s": 1.8e9}))
            second.round(record)
        wait_for(lambda: points(run) == expected(4))
        second.close()
    (stored_run,) = stored(run)
    assert stored_run.info.status == "RUNNING", "closed without an end: the run has none"
    assert points(run) == expected(4)


def test_after_a_failure_the_store_is_left_alone_for_a_while(run, monkeypatch):
    attempts, real = [], tracking.Exporter
    monkeypatch.setattr(tracking, "Exporter", lambda *args: attempts.append(args) or real(*args))
    (run.parent / "blocked").write_text("")
    place = f"sqlite:///{run.parent / 'blocked' / 'mlflow.db'}"
    tracker = MlflowTracker(place, finish_s=START_S, retry_s=1e6, delay_s=0.0)
    tracker.start(read_run(run), run)
    wait_for(lambda: read_sync(run).error is not None)
    for record in read_rounds(run):
        tracker.round(record)
        time.sleep(0.02)
    tracker.finish("done")
    assert len(attempts) == 2, "at the start and at the end"


def test_short_rounds_travel_together(run, monkeypatch):
    """The thread shares the interpreter with the run: one export per interval, not one per round."""
    exports, real = [], mlflow_store.Exporter.catch_up
    monkeypatch.setattr(mlflow_store.Exporter, "catch_up", lambda self: exports.append(self) or real(self))
    tracker = MlflowTracker(finish_s=START_S, interval_s=1e6, delay_s=0.0)
    rounds = read_rounds(run)
    with RunFolder.resume(run, min_free_bytes=0) as folder:
        folder.rewind(None)
        tracker.start(folder.run, run)
        wait_for(lambda: len(exports) == 1)
        for record in rounds:
            folder.append(record)
            tracker.round(record)
            time.sleep(0.02)
        tracker.finish("done")
    assert len(exports) == 2 and points(run) == expected(4)


def test_a_store_gets_a_run_with_its_first_round_or_after_a_while(run, monkeypatch):
    """Importing MLflow takes cores that the processes starting with a run need."""
    exports, real = [], mlflow_store.Exporter.catch_up
    monkeypatch.setattr(mlflow_store.Exporter, "catch_up", lambda self: exports.append(self) or real(self))
    patient = MlflowTracker(finish_s=START_S, delay_s=1e6)
    patient.start(read_run(run), run)
    time.sleep(0.2)
    assert exports == []
    patient.round(read_rounds(run)[0])
    wait_for(lambda: len(exports) == 1)
    patient.close()
    exports.clear()
    quick = MlflowTracker(finish_s=START_S, delay_s=0.05)
    quick.start(read_run(run), run)
    wait_for(lambda: len(exports) == 1)
    quick.close()


@pytest.fixture
def silent_server() -> Iterator[str]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(16)
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_dead_server_costs_no_round_and_one_warning(run, caplog):
    tracker = MlflowTracker(f"http://user:canary-pw@127.0.0.1:{closed_port()}", finish_s=5.0, retry_s=0.0)
    began = time.monotonic()
    with caplog.at_level(logging.WARNING, "relief_ray"):
        spent_s = live(run, tracker, read_rounds(run))
    assert time.monotonic() - began < 15.0
    assert spent_s < 0.05, "a round only puts a nudge in a queue"
    (warning,) = [r.getMessage() for r in caplog.records if r.name.startswith("relief_ray")]
    assert "relief-ray sync" in warning and "canary" not in warning
    assert read_run(run).status == "done" and len(read_rounds(run)) == 4
    wait_for(lambda: read_sync(run).error is not None)
    assert "canary" not in (run / "sync.json").read_text()


def test_a_silent_server_does_not_hold_the_end_up(run, silent_server):
    tracker = MlflowTracker(silent_server, finish_s=0.5)
    rounds = read_rounds(run)
    began = time.monotonic()
    assert live(run, tracker, rounds) < 0.05
    assert time.monotonic() - began < 5.0
    assert len(read_rounds(run)) == 4
    tracker.close()


def test_a_store_that_comes_back_gets_every_point_once(run, empty_store):
    """Down at the start and in the middle, back before the end."""
    place = run.parent / "later"
    place.write_text("a file where the store's folder will be")
    uri = f"sqlite:///{place / 'mlflow.db'}"
    tracker = MlflowTracker(uri, finish_s=START_S, retry_s=0.0)
    rounds = read_rounds(run)
    with RunFolder.resume(run, min_free_bytes=0) as folder:
        folder.rewind(None)
        tracker.start(folder.update(status="running"), run)
        for record in rounds[:3]:
            folder.append(record)
            tracker.round(record)
        wait_for(lambda: read_sync(run).error is not None)
        place.unlink()
        place.mkdir()
        shutil.copy(empty_store, place / "mlflow.db")
        folder.append(rounds[3])
        tracker.round(rounds[3])
        tracker.finish("done")
    assert points(run, uri) == expected(4)
    assert read_sync(run).error is None
    assert sync(run, uri).num_points == 0


def test_a_store_that_fails_in_the_middle_is_asked_again_what_it_knows(run, monkeypatch):
    """The worst failure: the store has taken the points, and says that it has not."""
    from mlflow import MlflowClient

    real, failures = MlflowClient.log_batch, []

    def taken_but_denied(self, run_id, metrics=(), **rest):
        real(self, run_id, metrics=metrics, **rest)
        if metrics and not failures:
            failures.append(len(metrics))
            raise ConnectionError("reset by peer")

    monkeypatch.setattr(MlflowClient, "log_batch", taken_but_denied)
    with pytest.raises(UserError, match=r"cannot export .*ConnectionError: reset by peer.*sync again"):
        sync(run)
    assert failures == [4 * POINTS_A_ROUND]
    assert sync(run).num_points == 0 and points(run) == expected(4)


def test_sync_to_a_dead_server_says_so(run):
    with pytest.raises(
        UserError, match=r"http://\*\*\*@127\.0\.0\.1:\d+: cannot export .*expected a reachable MLflow store"
    ):
        sync(run, f"http://me:pw@127.0.0.1:{closed_port()}")
    assert read_sync(run).error is not None


def test_two_exports_of_one_run_exclude_each_other(run):
    with (
        FileLock(run / "sync.lock", "the export"),
        pytest.raises(UserError, match="export of this run is in use by process"),
    ):
        sync(run)
    assert points(run) == Counter()


def test_a_folder_that_vanishes_cannot_stop_the_driver(run, caplog):
    tracker = MlflowTracker(finish_s=START_S, retry_s=0.0)
    record = read_run(run)
    shutil.rmtree(run)
    tracker.start(record, run)
    tracker.finish("failed")
    assert sum(r.name.startswith("relief_ray") for r in caplog.records) == 1


def test_the_user_s_own_mlflow_settings_are_kept(run, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "77")
    monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY", raising=False)
    sync(run)
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "77" and os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"


def test_store_uris_are_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert store_uri(Path("runs/a")) == f"sqlite:///{tmp_path}/runs/mlflow.db"
    assert store_uri(Path("a"), "sqlite:///x.db") == f"sqlite:///{tmp_path}/x.db"
    assert store_uri(Path("a"), "http://h:5000") == "http://h:5000"


def test_the_null_tracker_writes_nothing(run):
    before = sorted(p.name for p in run.parent.rglob("*"))
    live(run, NullTracker(), read_rounds(run))
    NullTracker().close()
    assert sorted(p.name for p in run.parent.rglob("*")) == before


@pytest.mark.slow
def test_a_real_server_that_starts_after_the_run_gets_every_point_once(run, tmp_path):
    port = closed_port()
    uri = f"http://127.0.0.1:{port}"
    live(run, MlflowTracker(uri), read_rounds(run))
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    backend = [
        "--backend-store-uri",
        f"sqlite:///{tmp_path / 'server.db'}",
        "--artifacts-destination",
        str(tmp_path / "art"),
    ]
    line = [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1", *backend]
    log = (tmp_path / "server.log").open("w")
    server = subprocess.Popen(line, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:

        def up() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        wait_for(up)
        assert sync(run, uri).num_points == 4 * POINTS_A_ROUND
        assert sync(run, uri).num_points == 0 and points(run, uri) == expected(4)
    finally:
        os.killpg(server.pid, 15)
        server.wait(30)
        log.close()
