"""Copies while a run goes on: targets that are down at the start, in the middle, at the end, or hang; nothing lost.

Test 32 of the fault list is MLflow's: nothing lost, nothing twice, and no round waits.
"""

from __future__ import annotations

import csv
import logging
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

import pytest

from relief_ray.records.ledger import LineFormat, scan
from relief_ray.records.lock import FileLock
from relief_ray.records.run_folder import ROUNDS_FILE, RunFolder, read_rounds, read_run
from relief_ray.records.sync.mirror import Mirror
from relief_ray.records.sync.mlflow import MlflowRun, MlflowTarget, read_sync, sync
from relief_ray.records.sync.sender import Copy, Sender, Senders, Target
from relief_ray.support.errors import UserError
from tests.records.sync.stores import POINTS_A_ROUND, START_S, closed_port, expected, points, stored, wait_for
from tests.sealed import put_run

needs_mlflow = pytest.mark.skipif(find_spec("mlflow") is None, reason="mlflow comes with the server extra")


def with_pace(target: Target, **pace: float) -> Target:
    vars(target).update(pace)
    return target


def mlflow(run: Path, uri: str | None = None, **pace: float) -> Target:
    return with_pace(MlflowTarget(run.parent, uri), **{"limit_s": START_S, **pace})


def live(run: Path, senders: Senders | Sender, rounds: tuple, status: str = "done") -> float:
    """Replays a run; gives the seconds that telling the senders of it took."""
    spent_s = 0.0

    def timed(tell: Callable[[Path], None]) -> None:
        nonlocal spent_s
        began = time.perf_counter()
        tell(run)
        spent_s += time.perf_counter() - began

    with RunFolder.resume(run) as folder:
        folder.rewind(0)
        folder.update(status="running")
        timed(senders.wake)
        for record in rounds:
            folder.append(record)
            timed(senders.wake)
        folder.update(status=status)
        timed(senders.end)
    return spent_s


def done(sender: Sender) -> bool:
    sender.stop()
    return sender.wait()


@pytest.fixture
def notes() -> list[str]:
    return []


# A third target, in its whole length: every run's loss in a table of its own.
class Tables(Target):
    interval_s = 0.01
    retry_s = 0.01

    def __init__(self, out: Path) -> None:
        self._out, self.name, self.rest = out, f"tables {out}", "the records have it too"

    def copy_of(self, folder: Path) -> Copy:
        return TableOfRun(folder, self._out / f"{folder.name}.csv")


class TableOfRun:
    def __init__(self, run: Path, table: Path) -> None:
        self._run, self._table = run, table

    def connect(self) -> None:
        self._format, self._end = LineFormat.of(read_run(self._run)), None
        if not self._table.exists():
            self._table.write_text("round,loss\n")
        self._known = {int(row["round"]) for row in csv.DictReader(self._table.open())}

    def send(self) -> bool:
        lines = scan(self._run / ROUNDS_FILE, self._format, self._end)
        new = [record for record in lines.rounds if record.round not in self._known]
        with self._table.open("a") as table:
            csv.writer(table).writerows((record.round, record.loss) for record in new)
        self._known |= {record.round for record in new}
        self._end = lines.end
        return bool(new)

    def finish(self) -> None:
        self._table.with_suffix(".txt").write_text(read_run(self._run).status)

    def failed(self, error: Exception) -> bool:
        return isinstance(error, PermissionError)

    def close(self) -> None:
        pass


def losses(table: Path) -> list[int]:
    return [int(row["round"]) for row in csv.DictReader(table.open())] if table.exists() else []


def test_a_third_target_is_a_small_class(run: Path, tmp_path: Path, notes: list[str]) -> None:
    """It is down at first, comes back, is told of two runs, and only of one's end."""
    out, other, rounds = tmp_path / "tables", tmp_path / "other", tuple(read_rounds(run))
    shutil.copytree(run, other)
    sender = Sender(Tables(out), notes.append)
    live(run, sender, rounds)
    wait_for(lambda: len(notes) == 1)
    assert "FileNotFoundError" in notes[0] and notes[0].endswith("the runs go on, and it is tried again")
    assert sender.is_behind
    sender.wake(other)
    out.mkdir()
    wait_for(lambda: losses(out / "other.csv") == [1, 2, 3, 4])
    assert done(sender) and not sender.is_behind
    assert losses(out / "run.csv") == [1, 2, 3, 4] and (out / "run.txt").read_text() == "done"
    assert not (out / "other.txt").exists(), "closed without an end: the run has none"
    assert notes[1:] == [f"tables {out}: works again"]


def test_a_run_that_fails_for_reasons_of_its_own_keeps_no_other_back(run, tmp_path, notes) -> None:
    out, other = tmp_path / "tables", tmp_path / "other"
    shutil.copytree(run, other)
    (out / "run.csv").mkdir(parents=True)
    sender = Sender(Tables(out), notes.append)
    for folder in (run, other):
        sender.wake(folder)
        sender.end(folder)
    wait_for(lambda: (out / "other.txt").exists())
    sender.target.patience_s = 0.0
    assert not done(sender) and len(notes) == 1 and "IsADirectoryError" in notes[0]


def test_a_run_s_own_error_lets_that_run_rest_alone(run, tmp_path, notes) -> None:
    """A minute for the one that failed; the rounds of another that begins meanwhile arrive as they come."""
    out, other = tmp_path / "tables", tmp_path / "other"
    shutil.copytree(run, other)
    (out / "run.csv").mkdir(parents=True)
    sender = Sender(with_pace(Tables(out), retry_s=60.0, limit_s=0.1), notes.append)
    sender.wake(run)
    wait_for(lambda: len(notes) == 1)
    began_s = time.monotonic()
    live(other, sender, tuple(read_rounds(other)))
    wait_for(lambda: (out / "other.txt").exists())
    assert time.monotonic() - began_s < 10.0 and losses(out / "other.csv") == [1, 2, 3, 4]
    assert sender.is_behind and not done(sender) and len(notes) == 1


def test_an_error_that_no_retry_heals_ends_one_copy(run, tmp_path, notes, monkeypatch) -> None:
    """The target says which; it is told once, and the others go on."""
    out, other, tries, real = tmp_path / "tables", tmp_path / "other", [], TableOfRun.connect
    out.mkdir()
    shutil.copytree(run, other)

    def refused(self: TableOfRun) -> None:
        tries.append(self._run.name)
        if self._run == run:
            raise PermissionError("not yours")
        real(self)

    monkeypatch.setattr(TableOfRun, "connect", refused)
    senders = Senders([Tables(out)], notes.append)
    senders.wake(run)
    wait_for(lambda: len(notes) == 1)
    live(other, senders, tuple(read_rounds(other)))
    senders.wake(run)
    wait_for(lambda: (out / "other.txt").exists())
    senders.finish()
    assert tries == ["run", "other"] and senders.behind == (), "no command needs this target"
    assert notes == [
        f"tables {out}: PermissionError: not yours; nothing more of this run or folder is sent from here",
        f"tables {out}: behind; the records have it too",
    ]


@needs_mlflow
def test_a_store_gets_a_run_in_the_background(run, notes):
    sender = Sender(mlflow(run), notes.append)
    live(run, sender, tuple(read_rounds(run)))
    assert done(sender) and notes == []
    assert points(run) == expected(4)
    (stored_run,) = stored(run)
    assert stored_run.info.status == "FINISHED"
    assert sync(run).num_points == 0


@needs_mlflow
def test_a_resumed_run_goes_on_in_the_same_place_with_no_round_twice(run):
    rounds = tuple(read_rounds(run))
    first = Sender(mlflow(run), print)
    live(run, first, rounds[:3], status="interrupted")
    assert done(first)
    (stored_run,) = stored(run)
    assert stored_run.info.status == "KILLED" and points(run) == expected(3)
    with RunFolder.resume(run) as folder:
        folder.rewind(2)
        second = Sender(mlflow(run, interval_s=0.01, delay_s=0.0), print)
        folder.update(status="running")
        second.wake(run)
        wait_for(lambda: stored(run)[0].info.status == "RUNNING")
        for record in rounds[2:]:
            folder.append(record.model_copy(update={"wall_s": 9.0, "ended_unix_s": 1.8e9}))
            second.wake(run)
        wait_for(lambda: points(run) == expected(4))
        assert done(second)
    (stored_run,) = stored(run)
    assert stored_run.info.status == "RUNNING", "closed without an end: the run has none"
    assert points(run) == expected(4)
    FileLock(run / "sync.lock", "the export").release()


@needs_mlflow
def test_after_a_failure_the_store_is_left_alone_for_a_while(run, monkeypatch):
    attempts, real = [], MlflowRun.connect
    monkeypatch.setattr(MlflowRun, "connect", lambda self: attempts.append(self) or real(self))
    (run.parent / "blocked").write_text("")
    place = f"sqlite:///{run.parent / 'blocked' / 'mlflow.db'}"
    sender = Sender(mlflow(run, place, retry_s=1e6, delay_s=0.0), print)
    sender.wake(run)
    wait_for(lambda: read_sync(run).error is not None)
    for _ in read_rounds(run):
        sender.wake(run)
        time.sleep(0.02)
    sender.end(run)
    assert not done(sender)
    assert len(attempts) == 2, "at the start and at the end"


@needs_mlflow
def test_short_rounds_travel_together(run, monkeypatch):
    """The thread shares the interpreter with the run: one export per interval, not one per round."""
    exports, real = [], MlflowRun.connect
    sends, send = [], MlflowRun.send
    monkeypatch.setattr(MlflowRun, "connect", lambda self: exports.append(self) or real(self))
    monkeypatch.setattr(MlflowRun, "send", lambda self: sends.append(send(self)) or sends[-1])
    sender = Sender(mlflow(run, interval_s=1e6, delay_s=0.0), print)
    rounds = tuple(read_rounds(run))
    with RunFolder.resume(run) as folder:
        folder.rewind(0)
        sender.wake(run)
        wait_for(lambda: sends == [False])
        for record in rounds:
            folder.append(record)
            sender.wake(run)
            time.sleep(0.02)
        sender.end(run)
    assert done(sender)
    assert sends == [False, True, False] and len(exports) == 1 and points(run) == expected(4)


@pytest.mark.ci
@needs_mlflow
def test_a_store_gets_a_run_with_its_first_round_or_after_a_while(run, monkeypatch):
    """Importing MLflow takes cores that the processes starting with a run need."""
    exports, real = [], MlflowRun.connect
    monkeypatch.setattr(MlflowRun, "connect", lambda self: exports.append(self) or real(self))
    patient = Sender(mlflow(run, delay_s=1e6), print)
    patient.wake(run)
    time.sleep(1.2)
    assert exports == []
    patient.wake(run)
    wait_for(lambda: len(exports) == 1)
    assert done(patient)
    exports.clear()
    quick = Sender(mlflow(run, delay_s=0.05), print)
    quick.wake(run)
    wait_for(lambda: len(exports) == 1)
    assert done(quick)


@pytest.fixture
def hanging_store() -> Iterator[str]:
    """A server that takes every request and answers none of them."""
    over, asked = threading.Event(), threading.Event()

    class Hanging(BaseHTTPRequestHandler):
        def _hang(self) -> None:
            asked.set()
            over.wait(60.0)

        do_GET = do_POST = _hang

        def log_message(self, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hanging)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    server.asked = asked
    yield server
    over.set()
    server.shutdown()
    server.server_close()


@pytest.mark.ci
@needs_mlflow
def test_a_store_that_hangs_delays_no_mirror_and_no_run(run, tmp_path, hanging_store, notes):
    """Each in a thread of its own: what is committed is in the mirror within two seconds, as without the store."""
    uri, copy = f"http://127.0.0.1:{hanging_store.server_port}", tmp_path / "copy"
    rounds, delays_s, spent_s = tuple(read_rounds(run)), [], []

    def num_mirrored() -> int:
        return len(read_rounds(copy / "run")) if (copy / "run" / "rounds.jsonl").exists() else 0

    with RunFolder.resume(run) as folder:
        folder.rewind(0)
        folder.update(status="running")
        senders = Senders(
            [mlflow(run, uri, delay_s=0.0, limit_s=0.5), Mirror(run.parent, None, f"file://{copy}")], notes.append
        )
        senders.wake(run)
        assert hanging_store.asked.wait(START_S), "MLflow waits for its first answer now"
        for number, record in enumerate(rounds, 1):
            began_s = time.monotonic()
            folder.append(record)
            senders.wake(run)
            spent_s.append(time.monotonic() - began_s)
            wait_for(
                lambda number=number: (
                    (copy / "run" / "rounds.jsonl").exists() and len(read_rounds(copy / "run")) == number
                )
            )
            delays_s.append(time.monotonic() - began_s)
        folder.update(status="done")
        senders.end(run)
    began_s = time.monotonic()
    senders.finish()
    assert max(delays_s) < 2.0 and max(spent_s) < 0.05, (delays_s, spent_s)
    assert time.monotonic() - began_s < 2.0, "the end waits as long as it was told to"
    assert read_run(copy / "run").status == "done" and senders.behind == ()
    assert f"mirror file://{copy}: up to date" in notes
    assert f"MLflow {uri}: behind; `relief-ray sync {run.parent}` sends the rest" in notes


@needs_mlflow
def test_a_dead_server_costs_no_round_and_one_note(run, notes):
    senders = Senders([mlflow(run, f"http://user:canary-pw@127.0.0.1:{closed_port()}", retry_s=0.1)], notes.append)
    began = time.monotonic()
    spent_s = live(run, senders, tuple(read_rounds(run)))
    assert spent_s < 0.05, "a round only wakes a thread"
    senders.finish()
    assert time.monotonic() - began < 15.0
    failed, behind = notes
    assert "failed (" in failed and behind.endswith(f"behind; `relief-ray sync {run.parent}` sends the rest")
    assert "canary" not in failed + behind
    assert read_run(run).status == "done" and len(read_rounds(run)) == 4
    assert read_sync(run).error is not None
    assert "canary" not in (run / "sync.json").read_text()


@needs_mlflow
def test_a_token_in_the_address_is_masked_where_no_command_line_does_it(run, caplog, monkeypatch):
    """As for `rr.run`, which exports too: urllib3 warns of its retries with the path of the address."""
    monkeypatch.setattr(logging, "_logRecordFactory", logging.LogRecord)
    with caplog.at_level(logging.WARNING), pytest.raises(UserError):
        sync(run, f"http://127.0.0.1:{closed_port()}/?token=CANARY")
    assert "Retrying" in caplog.text and "token=***" in caplog.text and "CANARY" not in caplog.text


@needs_mlflow
def test_a_store_that_comes_back_gets_every_point_once(run, empty_store, notes):
    """Down at the start and in the middle, back before the end."""
    place = run.parent / "later"
    place.write_text("a file where the store's folder will be")
    uri = f"sqlite:///{place / 'mlflow.db'}"
    sender = Sender(mlflow(run, uri, retry_s=0.0, delay_s=0.0), notes.append)
    rounds = tuple(read_rounds(run))
    with RunFolder.resume(run) as folder:
        folder.rewind(0)
        folder.update(status="running")
        for record in rounds[:3]:
            folder.append(record)
            sender.wake(run)
        wait_for(lambda: read_sync(run).error is not None)
        place.unlink()
        place.mkdir(exist_ok=True)  # the thread that asks again and again may be first
        if not (place / "mlflow.db").exists():
            shutil.copy(empty_store, place / "mlflow.db")
        folder.append(rounds[3])
        folder.update(status="done")
        sender.end(run)
    assert done(sender)
    assert points(run, uri) == expected(4) and [note.rpartition(": ")[2] for note in notes[1:]] == ["works again"]
    assert read_sync(run).error is None
    assert sync(run, uri).num_points == 0


@needs_mlflow
def test_a_store_that_fails_in_the_middle_is_asked_again_what_it_knows(run, monkeypatch, notes):
    """The worst failure: the store has taken the points, and says that it has not."""
    from mlflow import MlflowClient

    real, failures = MlflowClient.log_batch, []

    def taken_but_denied(self, run_id, metrics=(), **rest):
        real(self, run_id, metrics=metrics, **rest)
        if metrics and len(failures) < 2:
            failures.append(len(metrics))
            raise ConnectionError("reset by peer")

    monkeypatch.setattr(MlflowClient, "log_batch", taken_but_denied)
    with pytest.raises(UserError, match=r"cannot export .*ConnectionError: reset by peer.*sync again"):
        sync(run)
    (run / "sync.json").unlink()
    assert failures == [4 * POINTS_A_ROUND]
    assert sync(run).num_points == 0 and points(run) == expected(4)


@needs_mlflow
def test_a_store_that_refuses_a_value_is_not_asked_again(run, notes):
    sync(run)
    put_run(run, read_run(run).model_copy(update={"config": {"seed": 4}}))
    sender = Sender(mlflow(run, interval_s=0.01, retry_s=0.01, delay_s=0.0), notes.append)
    sender.wake(run)
    wait_for(lambda: len(notes) == 1)
    time.sleep(0.2)
    assert not done(sender) and len(notes) == 1
    assert "'seed'" in notes[0] or ("INVALID" in notes[0] and "nothing more" in notes[0])


@needs_mlflow
def test_a_folder_that_vanishes_cannot_stop_the_driver(run, notes):
    senders = Senders([mlflow(run, retry_s=0.01)], notes.append)
    senders.wake(run)
    shutil.rmtree(run)
    senders.end(run)
    senders.finish()
    assert len(notes) == 2 and "failed (" in notes[0] and "behind" in notes[1]
    assert not run.exists(), "it is not made anew for a note on the failure"


@needs_mlflow
def test_the_user_s_own_mlflow_settings_are_kept(run, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "77")
    monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY", raising=False)
    sync(run)
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "77" and os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"


def test_a_store_gets_the_runs_that_name_it_alone(run):
    target = MlflowTarget(run.parent, runs=[run])
    assert target.copy_of(run) is not None and target.copy_of(run.parent / "other") is None


@needs_mlflow
@pytest.mark.slow
def test_a_real_server_that_starts_after_the_run_gets_every_point_once(run, tmp_path):
    port = closed_port()
    uri = f"http://127.0.0.1:{port}"
    sender = Sender(mlflow(run, uri), print)
    live(run, sender, tuple(read_rounds(run)))
    assert not done(sender)
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
