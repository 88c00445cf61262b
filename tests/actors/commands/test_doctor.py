"""`doctor`: every part in the state that it has to find, made on this machine and not pretended."""

import http.server
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from actors.cli.main import app
from actors.commands.device import DoctorLine, TorchFacts, doctor_lines
from relief_ray.records.sync.mlflow import sqlite_address
from tests.devices.boards import write

NOBODY = 65534
PROBLEM, ROOT = 2, Path(__file__).parents[3]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """Caches and data of this machine are none of these tests' business."""
    monkeypatch.setenv("RELIEF_CACHE", str(tmp_path / "cache"))
    for name in ("RELIEF_DATA", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)


def lines(out, uri=None, root=Path("/")):
    """The parts but for those of the installation, which `test_device_board.py` has."""
    torch = TorchFacts(version="2", build="without CUDA")
    return {line.part: line for line in doctor_lines(root, torch, Path(out), uri, None, None)}


def test_where_all_is_well_nothing_is_left_behind(tmp_path):
    (tmp_path / "runs").mkdir()
    seen = lines(tmp_path / "runs")
    assert {part for part, line in seen.items() if line.status == "problem"} == set()
    assert seen["locks"].seen.endswith("a lock keeps a second process out") and seen["clock"].status == "ok"
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "runs"]


def test_a_folder_that_is_not_there_is_looked_at_from_above_and_not_made(tmp_path):
    seen = lines(tmp_path / "a" / "b")
    assert seen["runs"].seen.startswith(f"{tmp_path}: ") and seen["cache"].seen.startswith(f"{tmp_path}: ")
    assert seen["MLflow"].seen == f"sqlite:///{tmp_path}/a/b/mlflow.db: n/a, not asked before a run"
    assert not list(tmp_path.iterdir())


@pytest.fixture
def foreign():
    """A folder that may be read and not be written; as another user where this one may do everything."""
    place = Path(tempfile.mkdtemp(prefix="doctor-", dir="/tmp"))
    place.chmod(0o555)
    if is_root := os.geteuid() == 0:
        os.seteuid(NOBODY)
    try:
        yield place
    finally:
        if is_root:
            os.seteuid(0)
        place.chmod(0o755)
        shutil.rmtree(place)


def test_a_folder_without_permission_is_a_problem_and_what_cannot_be_tried_there_says_so(foreign):
    seen = lines(foreign)
    assert seen["runs"].status == "problem" and "Permission denied" in seen["runs"].seen
    assert seen["runs"].fix == "choose a folder that you may write to (--out DIR) or change its permissions"
    assert seen["locks"].status == "warning" and seen["locks"].seen.startswith("n/a: cannot be looked at (Permission")


def test_a_cache_without_permission_names_its_variable(foreign, monkeypatch):
    monkeypatch.setenv("RELIEF_CACHE", str(foreign))
    cache = lines(foreign)["cache"]
    assert cache.status == "problem" and cache.fix == "set RELIEF_CACHE to a folder of yours with room"


def test_a_folder_that_may_not_even_be_entered_is_a_problem(foreign, monkeypatch):
    euid = os.geteuid()
    if euid == NOBODY:
        os.seteuid(0)
    foreign.chmod(0o000)
    os.seteuid(euid)
    monkeypatch.setenv("RELIEF_DATA", str(foreign))
    seen = lines(foreign / "runs")
    assert seen["runs"].status == "problem" and str(foreign) in seen["runs"].seen
    assert seen["data"].status == "warning" and "Permission denied" in seen["data"].seen
    assert seen["memory"].status == "ok"


def test_data_folders(tmp_path, monkeypatch):
    assert lines(tmp_path)["data"].seen.startswith("dsa_mini (")
    monkeypatch.setenv("RELIEF_DATA", str(tmp_path / "gone"))
    data = lines(tmp_path)["data"]
    assert data.status == "problem" and data.seen == f"RELIEF_DATA: {tmp_path}/gone is no folder"
    assert data.fix == "name the one that holds the datasets, or unset it"
    (tmp_path / "gone").write_text("a file")
    assert lines(tmp_path)["data"].status == "problem"


def test_memory_within_the_groups_of_a_container(tmp_path):
    limits = {"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": 2**29}
    memory = lines(tmp_path, root=write(tmp_path / "root", limits))["memory"]
    assert memory.status == "warning" and memory.seen == "0.5 GiB for processes of this user"


def test_a_folder_that_was_changed_in_the_future_shows_that_the_clock_is_behind(tmp_path):
    later_s = time.time() + 3600
    os.utime(tmp_path, (later_s, later_s))
    clock = lines(tmp_path)["clock"]
    assert clock.status == "problem" and clock.fix == "set it: timedatectl set-ntp true"
    assert re.search(rf"UTC, 3,[56]\d\d s before {re.escape(str(tmp_path))} was changed$", clock.seen)
    os.utime(tmp_path, (time.time() + 5, time.time() + 5))
    assert lines(tmp_path)["clock"].status == "ok"


# Options of mounts, and whether a second machine is kept out.
MOUNTS = {
    "nfs4 rw,vers=4.2,local_lock=none": "ok",
    "nfs rw,vers=3,nolock,local_lock=all": "warning",
    "nfs rw,vers=3,local_lock=flock": "warning",
    "lustre rw,flock": "ok",
    "lustre rw,localflock": "warning",
    "cifs rw,nobrl": "warning",
}


@pytest.mark.parametrize("mount", MOUNTS)
def test_locks_that_hold_on_one_machine_only(tmp_path, monkeypatch, mount):
    """The table of mounts is another one; nothing here can mount these."""
    (tmp_path / "a b").mkdir()
    place = str(tmp_path / "a b").replace(" ", "\\040")
    table = f"/dev/sda / ext4 rw,nolock 0 0\nserver:/old {place} nfs rw,nolock 0 0\nserver:/x {place} {mount} 0 0"
    write(tmp_path / "proc", {"self/mounts": table})
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "proc"))
    locks = lines(tmp_path / "a b")["locks"]
    kind, options = mount.split()
    assert locks.seen == f"{kind} ({options}): a lock keeps a second process out"
    assert locks.status == MOUNTS[mount]
    assert not locks.fix or locks.fix.startswith("two machines may write one run")


# MLflow


@pytest.fixture
def server():
    """An HTTP server that answers ``/health`` as MLflow does, and nothing else."""

    class Health(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Health) as it:
        threading.Thread(target=it.serve_forever, daemon=True).start()
        yield f"http://user:secret@127.0.0.1:{it.server_port}"
        it.shutdown()


def test_an_mlflow_server(tmp_path, server):
    store = lines(tmp_path, server)["MLflow"]
    assert store.status == "ok" and store.seen.startswith("http://***@127.0.0.1:")
    other = lines(tmp_path, f"{server}/prefix")["MLflow"]
    assert other.status == "problem" and "404" in other.seen and "secret" not in other.seen + other.fix


@pytest.mark.parametrize("uri", ["http://user:secret@127.0.0.1:9", "http://", "https://[::1", "http:/127.0.0.1:9"])
def test_a_broken_mlflow_address_is_a_problem(tmp_path, uri):
    store = lines(tmp_path, uri)["MLflow"]
    assert store.status == "problem" and "no MLflow store" in store.seen and "secret" not in store.seen
    assert store.fix == "start it, or name another"


def test_an_mlflow_file(tmp_path):
    database = tmp_path / "a?b %20.db"
    database.write_text("no database, but text that is longer than the head of one " * 20)
    assert "not a database" in lines(tmp_path, sqlite_address(database))["MLflow"].seen
    database.unlink()
    with closing(sqlite3.connect(database)) as opened:
        opened.execute("CREATE TABLE others (id INTEGER)")
    assert "no such table: experiments" in lines(tmp_path, sqlite_address(database))["MLflow"].seen
    assert [path.name for path in tmp_path.iterdir()] == [database.name]


@pytest.mark.ci
def test_a_store_that_mlflow_has_made(tmp_path):
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    MlflowClient(tracking_uri=uri).search_experiments(max_results=1)
    store = lines(tmp_path)["MLflow"]
    assert (store.status, store.seen) == ("ok", uri)


def test_a_part_that_cannot_be_looked_at_says_so_and_hides_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "nothing"))
    seen = lines(tmp_path)
    assert seen["locks"].status == "warning" and seen["locks"].seen.startswith("n/a: cannot be looked at (")
    assert list(seen)[-2:] == ["MLflow", "head"]


def test_a_problem_is_exit_code_2_in_words_and_in_json(tmp_path, monkeypatch):
    monkeypatch.setenv("RELIEF_DATA", str(tmp_path / "gone"))
    shown = CliRunner().invoke(app, ["doctor", "--out", str(tmp_path)])
    assert shown.exit_code == PROBLEM and "not ready: data" in shown.output
    rows = shown.stdout.splitlines()
    (row,) = (i for i, text in enumerate(rows) if text.startswith("problem  data"))
    assert "fix: name the one that holds" in " ".join(rows[row : row + 4])
    facts = CliRunner().invoke(app, ["doctor", "--out", str(tmp_path), "--json"])
    report = json.loads(facts.stdout)
    assert facts.exit_code == PROBLEM and report["ready"] is False
    assert [check["part"] for check in report["checks"] if check["status"] == "problem"] == ["data"]


def test_a_line_with_a_fix_is_a_problem_only_where_the_part_is_needed():
    assert [DoctorLine("a", "b", fix, needed).status for fix, needed in (("", True), ("c", False), ("c", True))] == [
        "ok",
        "warning",
        "problem",
    ]


# States that other processes have to be put into.

FOLDERS = """
import json, sys
from pathlib import Path
from actors.commands.device import TorchFacts, doctor_lines
shown = {}
for out in sys.argv[1:]:
    lines = doctor_lines(Path("/"), TorchFacts(version="2"), Path(out), None, None, None)
    shown[out] = {line.part: [line.status, line.seen, line.fix] for line in lines}
print(json.dumps({"folders": shown, "has_ray": "ray" in sys.modules}))
"""
# Size, number of files, and what else is done before the doctor comes.
DISKS = """
set -e
mount -t tmpfs -o size=64k tmpfs full; head -c 200000 /dev/zero > full/file || true
mount -t tmpfs -o size=64m tmpfs small
mount -t tmpfs -o size=8g,nr_inodes=3 tmpfs no_inodes; touch no_inodes/a no_inodes/b
mount -t tmpfs -o size=8g,nr_inodes=500 tmpfs few_inodes
mount -t tmpfs -o size=8g,ro tmpfs read_only
exec "$@" full small no_inodes few_inodes read_only
"""


def run(*words, cwd, **variables):
    env = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run([*map(str, words)], cwd=cwd, env=env, capture_output=True, text=True, timeout=200)


def can_mount():
    return os.geteuid() == 0 and subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0


@pytest.mark.ci
@pytest.mark.skipif(not can_mount(), reason="mounting needs root")
def test_disks_without_room_without_inodes_and_for_reading_only(tmp_path):
    for name in ("full", "small", "no_inodes", "few_inodes", "read_only"):
        (tmp_path / name).mkdir()
    done = run("unshare", "-m", "sh", "-c", DISKS, "sh", sys.executable, "-c", FOLDERS, cwd=tmp_path)
    shown = json.loads(done.stdout)
    assert not shown["has_ray"], "Ray is not even imported where no cluster is named"
    runs = {name: lines["runs"] for name, lines in shown["folders"].items()}
    assert {name: status for name, (status, *_) in runs.items()} == {
        "full": "problem", "small": "problem", "no_inodes": "problem", "few_inodes": "warning", "read_only": "problem",
    }  # fmt: skip
    for name in ("full", "no_inodes"):
        assert "No space left on device" in runs[name][1] and "df -i" in runs[name][2]
    assert "0.1 GiB" in runs["small"][1] and runs["small"][2].startswith("remove something, or choose a folder")
    assert "498 of 500 inodes free" in runs["few_inodes"][1] or "499 of 500" in runs["few_inodes"][1]
    assert "Read-only file system" in runs["read_only"][1]
    status, seen, _ = shown["folders"]["small"]["locks"]
    assert status == "ok" and seen.startswith("tmpfs (rw,")


LIES = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <time.h>
int flock(int descriptor, int operation) {
    if (getenv("NO_LOCKS") == NULL) return 0;
    errno = ENOLCK;
    return -1;
}
int clock_gettime(clockid_t which, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(which, now);
    if (which == CLOCK_REALTIME) now->tv_sec = 86400;
    return code;
}
"""


@pytest.fixture(scope="module")
def lies(tmp_path_factory):
    """A library that answers in the place of the system's: every lock is given, or none, and it is 1970."""
    place = tmp_path_factory.mktemp("lies")
    (place / "lies.c").write_text(LIES)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", "lies.so", "lies.c", "-ldl"], cwd=place, check=True)
    return str(place / "lies.so")


@pytest.mark.ci
@pytest.mark.skipif(shutil.which("cc") is None, reason="no compiler")
@pytest.mark.parametrize(
    ("variables", "seen", "fix"),
    [
        ({}, "two processes get one lock at once; two commands may then write one run", "mount it with locks"),
        ({"NO_LOCKS": "1"}, "this file system locks nothing (No locks available)", "choose another folder (--out DIR)"),
    ],
    ids=["everybody gets the lock", "no locks"],
)
def test_a_file_system_that_does_not_lock_and_a_clock_of_1970(tmp_path, lies, variables, seen, fix):
    words = [sys.executable, "-m", "actors.cli.main", "doctor", "--out", tmp_path, "--json"]
    done = run(*words, cwd=tmp_path, LD_PRELOAD=lies, **variables)
    shown = {check["part"]: check for check in json.loads(done.stdout)["checks"]}
    assert done.returncode == PROBLEM and "not ready: clock, locks" in done.stderr
    assert seen in shown["locks"]["seen"] and fix in shown["locks"]["fix"]
    assert shown["clock"]["seen"].startswith("1970-01-02 00:00:00 UTC, ")
    assert {path.name for path in tmp_path.iterdir()} <= {"cache"}, "the kernels that were compiled"
