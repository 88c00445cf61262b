"""Another user of the machine, while a run has a Ray cluster of its own: a real process with another uid tries."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.actors.commands.test_stops import ON_RAY, Output, a_run
from tests.actors.conftest import Start
from tests.actors.runtime.test_launch import descendants

STRANGER = 65534
pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root starts others' processes"),
]

# Everything is imported first: this Python and its packages may be closed to others.
BECOME = """
import encodings.idna, json, os, socket, sys, urllib.error, urllib.request
from pathlib import Path

def become_another():
    if uid := int(sys.argv[1]):
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
"""
TRY = """
become_another()
facts, out = json.load(sys.stdin), {"files": {}, "environments": {}, "token_in_titles": False, "http": {}}
for path in facts["paths"] + facts["sockets"]:
    try:
        if path in facts["sockets"]:
            socket.socket(socket.AF_UNIX).connect(path)
        else:
            os.listdir(path) if path.endswith("/") else open(path).read()
        out["files"][path] = "open"
    except OSError as error:
        out["files"][path] = type(error).__name__
for pid in facts["pids"]:
    try:
        open(f"/proc/{pid}/environ").read()
        out["environments"][pid] = "open"
    except OSError as error:
        out["environments"][pid] = type(error).__name__
    try:
        out["token_in_titles"] |= facts["token"] in Path(f"/proc/{pid}/cmdline").read_text()
    except FileNotFoundError:
        pass
for port in facts["ports"]:
    for path in ("/", "/api/jobs/", "/nodes?view=summary", "/metrics"):
        url = f"http://127.0.0.1:{port}{path}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                out["http"][url] = [answer.status, answer.read(10**6).decode(errors="replace")]
        except urllib.error.HTTPError as error:
            out["http"][url] = [error.code, ""]
        except Exception as error:
            out["http"][url] = [0, type(error).__name__]
try:
    body = json.dumps({"entrypoint": "id"}).encode()
    asked = urllib.request.Request(facts["dashboard"] + "/api/jobs/", data=body, method="POST")
    out["job"] = urllib.request.urlopen(asked, timeout=5).status
except urllib.error.HTTPError as error:
    out["job"] = error.code
print(json.dumps(out))
"""
# A driver that would join the run's cluster without its token.
JOIN = """
import ray
try:
    ray.init(address=sys.argv[2], logging_level="ERROR", log_to_driver=False)
    print("joined")
except BaseException as error:
    print("refused", type(error).__name__, str(error)[:300].replace(chr(10), " "))
"""


def listening(pids: set[int]) -> list[int]:
    """TCP ports on which these processes listen."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                target = os.readlink(link)
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    ports = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                ports.add(int(words[1].rpartition(":")[2], 16))
    return sorted(ports)


def as_user(uid: int, program: str, *words: str, variables: dict[str, str] | None = None, **facts: object) -> str:
    """What the program printed, run by this user in an environment that holds nothing of ours."""
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "RAY_USAGE_STATS_ENABLED": "0", **(variables or {})}
    done = subprocess.run(
        [sys.executable, "-c", BECOME + program, str(uid), *words], input=json.dumps(facts), env=env, cwd="/",
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def run(start: Start, tmp_path):
    """A run in mid-course on a cluster of its own with a dashboard: its processes, folder, addresses and token."""
    process = start(*a_run(tmp_path, *ON_RAY, "--dashboard"), preexec=os.setsid)
    output = Output(process)
    output.wait_for("5/100000")
    pids = set(descendants(process.pid)) | {process.pid}
    variables = [Path(f"/proc/{p}/environ").read_bytes().split(b"\0") for p in pids - {process.pid}]
    token = next(v.partition(b"=")[2].decode() for values in variables for v in values if b"RAY_AUTH_TOKEN=" in v)
    titles = {p: Path(f"/proc/{p}/cmdline").read_bytes().replace(b"\0", b" ").decode() for p in pids}
    (folder,) = (p for p in Path("/tmp").glob(f"rr-{process.pid}-*"))
    (gcs,) = (pid for pid, title in titles.items() if title.split(" ")[0].endswith("/gcs_server"))
    yield {"pids": sorted(pids), "folder": folder, "token": token, "gcs": listening({gcs}), "lines": output.lines}
    process.send_signal(signal.SIGINT)
    process.wait(60)
    output.whole()


def test_another_user_reads_no_log_joins_no_socket_and_starts_no_job(run):
    session = run["folder"] / "r" / "session_latest"
    sockets = [str(path) for path in (session / "sockets").iterdir()]
    logs = [str(path) for path in (session / "logs").glob("*.log")]
    assert len(logs) > 5 and sockets
    dashboard = next(word.rstrip(",") for line in run["lines"] for word in line.split() if word.startswith("http://"))
    ports = listening(set(run["pids"]))
    paths = [f"{run['folder']}/", f"{session}/", *logs]
    facts = {"paths": paths, "sockets": sockets, "pids": run["pids"], "token": run["token"], "ports": ports}
    seen = json.loads(as_user(STRANGER, TRY, dashboard=dashboard, **facts))
    assert set(seen["files"].values()) == {"PermissionError"}, seen["files"]
    # They are there, and open to whom they belong to.
    mine = json.loads(as_user(0, TRY, dashboard=dashboard, **facts | {"ports": [], "pids": []}))
    assert set(mine["files"].values()) == {"open"}, mine["files"]
    assert set(seen["environments"].values()) <= {"PermissionError", "FileNotFoundError"}
    assert not seen["token_in_titles"]
    assert seen["job"] == 401
    opened = {url: text for url, (status, text) in seen["http"].items() if status == 200}
    print(len(ports), "ports; open to read:", sorted(opened))
    assert all(run["token"] not in text for text in opened.values())
    # Gauges, and the dashboard's page without its data.
    assert all("# HELP" in text or "<!doctype html>" in text.lower() for text in opened.values()), opened


def test_nobody_joins_the_cluster_without_its_token(run):
    """Whoever it is: under another uid this Python could not import Ray, which would prove nothing."""
    (port,) = run["gcs"]
    said = as_user(0, JOIN, f"127.0.0.1:{port}")
    assert said.startswith("refused ConnectionError"), said
    key = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": run["token"]}
    assert as_user(0, JOIN, f"127.0.0.1:{port}", variables=key).strip() == "joined"
