"""Test 32 of the fault list: MLflow down at the start, in the middle, at the end; nothing lost, nothing twice."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from relief_ray.records import MlflowTracker, NullTracker, RunFolder, Tracker, read_rounds, read_run, tracking
from relief_ray.records.sync import mlflow as mlflow_store
from relief_ray.records.sync_state import read_sync
from relief_ray.records.tracking import sync
from relief_ray.support.errors import UserError
from tests.records.stores import POINTS_A_ROUND, START_S, closed_port, expected, points, stored, wait_for

if find_spec("mlflow") is None:
    pytest.skip("mlflow comes with the server extra", allow_module_level=True)


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
    live(run, tracker, tuple(read_rounds(run)))
    assert points(run) == expected(4)
    (stored_run,) = stored(run)
    assert stored_run.info.status == "FINISHED"
    assert sync(run).num_points == 0


def test_a_resumed_run_goes_on_in_the_same_place_with_no_round_twice(run):
    rounds = tuple(read_rounds(run))
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
    rounds = tuple(read_rounds(run))
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
        spent_s = live(run, tracker, tuple(read_rounds(run)))
    assert time.monotonic() - began < 15.0
    assert spent_s < 0.05, "a round only puts a nudge in a queue"
    (warning,) = [r.getMessage() for r in caplog.records if r.name.startswith("relief_ray")]
    assert "relief-ray sync" in warning and "canary" not in warning
    assert read_run(run).status == "done" and len(read_rounds(run)) == 4
    wait_for(lambda: read_sync(run).error is not None)
    assert "canary" not in (run / "sync.json").read_text()


def test_a_token_in_the_address_is_masked_where_no_command_line_does_it(run, caplog, monkeypatch):
    """As for `rr.run`, which exports too: urllib3 warns of its retries with the path of the address."""
    monkeypatch.setattr(logging, "_logRecordFactory", logging.LogRecord)
    with caplog.at_level(logging.WARNING), pytest.raises(UserError):
        sync(run, f"http://127.0.0.1:{closed_port()}/?token=CANARY")
    assert "Retrying" in caplog.text and "token=***" in caplog.text and "CANARY" not in caplog.text


def test_a_silent_server_does_not_hold_the_end_up(run, silent_server):
    tracker = MlflowTracker(silent_server, finish_s=0.5)
    rounds = tuple(read_rounds(run))
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
    rounds = tuple(read_rounds(run))
    with RunFolder.resume(run, min_free_bytes=0) as folder:
        folder.rewind(None)
        tracker.start(folder.update(status="running"), run)
        for record in rounds[:3]:
            folder.append(record)
            tracker.round(record)
        wait_for(lambda: read_sync(run).error is not None)
        place.unlink()
        place.mkdir(exist_ok=True)  # the thread that asks again and again may be first
        if not (place / "mlflow.db").exists():
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


def test_a_folder_that_vanishes_cannot_stop_the_driver(run, caplog):
    tracker = MlflowTracker(finish_s=START_S, retry_s=0.0)
    record = read_run(run)
    shutil.rmtree(run)
    tracker.start(record, run)
    tracker.finish("failed")
    assert sum(r.name.startswith("relief_ray") for r in caplog.records) == 1
    assert not run.exists(), "it is not made anew for a note on the failure"


def test_the_user_s_own_mlflow_settings_are_kept(run, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "77")
    monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY", raising=False)
    sync(run)
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "77" and os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"


def test_the_null_tracker_writes_nothing(run):
    before = sorted(p.name for p in run.parent.rglob("*"))
    live(run, NullTracker(), tuple(read_rounds(run)))
    NullTracker().close()
    assert sorted(p.name for p in run.parent.rglob("*")) == before


@pytest.mark.slow
def test_a_real_server_that_starts_after_the_run_gets_every_point_once(run, tmp_path):
    port = closed_port()
    uri = f"http://127.0.0.1:{port}"
    live(run, MlflowTracker(uri), tuple(read_rounds(run)))
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
