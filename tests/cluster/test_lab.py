"""A real lab on this machine: nodes apart in disk, network and processor time; nothing is left of it.

Run by `-m lab`, skipped without root.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from relief_ray.records.run_folder import read_run
from tests.cluster.labs import (
    ADDRESS,
    NO_LAB,
    ROOT,
    Command,
    digests,
    is_possible,
    left_of,
    make_command,
    make_lab,
    rows,
)
from tests.lab.state import Place, Process, marked

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.skipif(not is_possible(), reason=NO_LAB)]


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    """A folder outside of the lab that all nodes write to."""
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def lab(store) -> Iterator[Command]:
    """A head and two nodes, without Ray."""
    command = make_command(f"t{os.getpid() % 10**6}")
    command("up", "a:3", "c", "--store", store)
    yield command
    command("down")


def namespaces() -> set[str]:
    """Network, mount and process namespaces that some process of this machine is in; one that has ended is in none."""
    names = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if Process.of(int(folder.name)).is_alive:
                names |= {os.readlink(folder / "ns" / kind) for kind in ("net", "mnt", "pid")}
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            pass
    return names


def test_no_node_reads_what_another_one_wrote(lab):
    own = "$HOME /tmp /var/tmp /dev/shm"
    lab("exec", "a", "--", "sh", "-ec", f"for p in {own}; do echo from a > $p/note; done")
    assert lab("exec", "c", "--", "sh", "-c", f"for p in {own}; do cat $p/note && exit 1; done; true")
    # All other disks are for reading.
    others = (ROOT, sys.prefix, "/etc", "/var/lib", Path.home())
    done = lab(
        "exec", "a", "--", "sh", "-c", f"for p in {' '.join(map(str, others))}; do touch $p/note && exit 1; done; true"
    )
    assert done.stderr.count("Read-only file system") == len(others)


def test_what_is_outside_of_the_lab_is_for_all_of_them(lab, store):
    lab("exec", "a", "--", "sh", "-c", f"echo from a > {store}/note")
    assert lab("exec", "c", "--", "cat", f"{store}/note").stdout == (store / "note").read_text() == "from a\n"
    assert lab("exec", "c", "--", "touch", store.parent / "note", check=False).returncode == 0
    assert not (store.parent / "note").exists(), "all else there is the node's own"


def test_a_node_runs_this_checkout_under_its_own_name(lab):
    code = "import os, socket, relief_ray; print(socket.gethostname(), relief_ray.__file__, os.getcwd())"
    said = lab("exec", "a", "--", "python", "-c", code).stdout.split()
    assert said == ["a", str(ROOT / "relief_ray" / "__init__.py"), "/tmp/home"]
    assert (
        lab("exec", "a", "--cwd", str(ROOT), "--env", "X=1", "--", "sh", "-c", "pwd; echo $X").stdout == f"{ROOT}\n1\n"
    )
    assert lab("exec", "a", "--", "getent", "hosts", "c").stdout.split() == ["10.77.0.12", "c"]
    token = lab("exec", "a", "--", "sh", "-c", "cat $RAY_AUTH_TOKEN_PATH; stat -c %a $RAY_AUTH_TOKEN_PATH").stdout
    assert token == lab("exec", "c", "--", "sh", "-c", "cat ~/.ray/auth_token; echo 600").stdout and len(token) > 40


def test_a_nodes_processes_are_its_own(lab):
    """Ids of the machine mean nothing inside; programs that look for all Rays of a machine see this node's."""
    listed = lab("exec", "a", "--", "sh", "-c", "ls -d /proc/[0-9]* | wc -l").stdout
    assert int(listed) < 10 and int(listed) < len(list(Path("/proc").glob("[0-9]*")))


def test_exit_codes_are_the_commands(lab):
    assert lab("exec", "a", "--", "sh", "-c", "exit 7", check=False).returncode == 7
    assert lab("exec", "a", "--", "sh", "-c", "kill -9 $$", check=False).returncode == 137
    done = lab("exec", "a", "--", "no-such-program", check=False)
    assert done.returncode == 127 and "error: no-such-program" in done.stderr
    done = lab("exec", "z", "--", "true", check=False)
    assert done.returncode == 2 and "expected one of head, a, c" in done.stderr


def test_signals_reach_the_command(lab, tmp_path):
    words = [sys.executable, "-m", "tests.lab", "exec", "a", "--", "sh", "-c"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "RELIEF_LAB_NAME": f"t{os.getpid() % 10**6}"}
    script = "trap 'echo stopped; exit 3' TERM; echo ready; while :; do sleep 0.1; done"
    process = subprocess.Popen(
        [*words, script], env=env, cwd=ROOT, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=20)[0] == "stopped\n" and process.returncode == 3


SEND = """
import socket, sys, time
began = time.monotonic()
with socket.create_connection((sys.argv[1], 7000), timeout=20) as s:
    s.sendall(bytes(int(sys.argv[2])))
    s.shutdown(socket.SHUT_WR)
    s.recv(1)
print(time.monotonic() - began)
"""
RECEIVE = """
import socket
with socket.create_server(("0.0.0.0", 7000)) as server:
    print("ready", flush=True)
    while True:
        s, _ = server.accept()
        while s.recv(1 << 16):
            pass
        s.sendall(b"1")
        s.close()
"""


@pytest.fixture(scope="module")
def receivers(lab) -> Iterator[None]:
    """Programs on the head and on a that take bytes on port 7000."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "RELIEF_LAB_NAME": f"t{os.getpid() % 10**6}"}
    processes = []
    for name in ("head", "a"):
        words = [sys.executable, "-m", "tests.lab", "exec", name, "--", "python", "-c", RECEIVE]
        processes.append(
            subprocess.Popen(words, env=env, cwd=ROOT, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
        )
        assert processes[-1].stdout.readline() == "ready\n"
    yield
    for process in processes:
        process.terminate()
        process.communicate()


def seconds_to_send(lab: Command, sender: str, address: str, num_bytes: int) -> float:
    return float(lab("exec", sender, "--", "python", "-c", SEND, address, str(num_bytes)).stdout)


@pytest.mark.usefixtures("receivers")
def test_a_link_has_the_rate_of_its_direction(lab):
    """1 MB up at 8 Mbit/s: 1 s; 1 MB down at 16: 0.5 s; the first 64 KiB pass at once."""
    lab("shape", "a", "--down-mbit", "16", "--up-mbit", "8")
    before = rows(lab)["a"]
    up_s = seconds_to_send(lab, "a", "10.77.0.1", 1_000_000)
    down_s = seconds_to_send(lab, "head", "10.77.0.11", 1_000_000)
    after = rows(lab)["a"]
    assert 0.85 < up_s < 1.6 and 0.42 < down_s < 1.1, (up_s, down_s)
    assert 1_000_000 < after["up_bytes"] - before["up_bytes"] < 1_200_000
    assert 1_000_000 < after["down_bytes"] - before["down_bytes"] < 1_200_000
    assert (after["down_mbit"], after["up_mbit"]) == (16, 8)
    lab("shape", "a")
    assert seconds_to_send(lab, "a", "10.77.0.1", 1_000_000) < 0.5 * up_s


@pytest.mark.usefixtures("receivers")
def test_a_cut_link_carries_nothing_and_connections_outlive_it(lab):
    lab("cut", "a")
    assert rows(lab)["a"]["cut"]
    code = "import socket; socket.create_connection(('10.77.0.1', 7000), timeout=0.5)"
    assert lab("exec", "a", "--", "python", "-c", code, check=False).returncode == 1
    lab("heal", "a")
    assert not rows(lab)["a"]["cut"] and seconds_to_send(lab, "a", "10.77.0.1", 1000) < 3


def test_a_quota_bounds_processor_time(lab):
    """Half a second of wall time at 20 % of a core: 0.1 s of processor time, give or take a period."""
    code = "import time; t = time.monotonic()\nwhile time.monotonic() < t + 1: pass\nprint(time.process_time())"
    lab("quota", "a", "20")
    assert rows(lab)["a"]["quota_percent"] == 20
    assert float(lab("exec", "a", "--", "python", "-Sc", code).stdout) < 0.45
    lab("quota", "a", "none")
    assert rows(lab)["a"]["quota_percent"] is None
    done = lab("quota", "a", "0", check=False)
    assert done.returncode == 2 and "expected 1 or more" in done.stderr


def test_a_killed_node_keeps_its_disk_and_can_be_used_again(lab):
    lab("exec", "c", "--", "sh", "-c", "echo kept > $HOME/file; sleep 300 > /dev/null 2>&1 &")
    assert "sleep 300" in lab("exec", "c", "--", "ps", "ax").stdout
    assert re.fullmatch(r"c: [1-9] processes ended\n", lab("kill", "c").stdout), "the sleeper, and a shell still ending"
    listed = lab("exec", "c", "--", "sh", "-c", "cat $HOME/file; ps ax").stdout
    assert listed.startswith("kept\n") and "sleep 300" not in listed
    assert Path(f"{rows(lab)['c']['files']}/file").read_text() == "kept\n"


def test_a_lab_of_this_name_is_not_built_twice(lab):
    done = lab("up", "a", check=False)
    assert done.returncode == 2 and "up already" in done.stderr and rows(lab)["a"]["alive"]


def test_down_leaves_nothing_behind():
    name, before = f"d{os.getpid() % 10**6}", namespaces()
    command = make_command(name)
    command("up", "a")
    during = namespaces() - before
    assert len(during) >= 7, "network, mount and process namespaces of two nodes, the switch's network"
    assert left_of(name)
    command("down")
    assert left_of(name) == [] and not during & namespaces()
    assert command("down").returncode == 0


def test_down_removes_what_a_killed_up_left():
    name, before = f"k{os.getpid() % 10**6}", namespaces()
    command = make_command(name)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-m", "tests.lab", "up", "a", "b", "c", "--lab", name]
    process = subprocess.Popen(words, env=env, cwd=ROOT, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(marked(Place(name))) < 4 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert left_of(name)
    (Place(name).folder / "lab.json").write_text("{")  # not even its file is of use
    during = namespaces() - before
    command("down")
    assert left_of(name) == [] and not during & namespaces()


@pytest.mark.ray
def test_typed_nodes_without_a_common_disk_give_the_serial_runs_bits():
    with make_lab("r", "a:3", "b:3", "c:2") as lab:
        lab.start("head", "all")
        quick = ["run", "quick", "--json"]
        lab.run("head", *quick, ADDRESS, "--placement=typed", "--out=typed")
        lab.run("head", *quick, "--out=serial")
        files = lab.files("head")
        serial, on_nodes = files / "serial" / "relief-s0", files / "typed" / "relief-s0"
        assert read_run(on_nodes).runtime["placement"] == "typed" and read_run(serial).runtime["mode"] == "inline"
        assert digests(on_nodes) == digests(serial) and len(digests(serial)) == 2
        # A node that loses its power is missed, and a supervised one that comes back is a member again.
        lab.command("kill", "c")
        assert not rows(lab.command)["c"]["ray"]
        lab.start("c")
    assert left_of(lab.name) == []


@pytest.mark.parametrize("program", ['sleep 0.5\nexec {} "$@"', "exit 3 # {}"], ids=["slow", "refused"])
def test_up_touches_no_link_of_this_machine(tmp_path, monkeypatch, program):
    """The bridge waits for its namespace: made too early it would be a link of this machine."""
    names = {path.name for path in Path("/sys/class/net").iterdir()}
    slow = tmp_path / "unshare"
    slow.write_text("#!/bin/sh\n" + program.format(shutil.which("unshare")) + "\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    command = make_command(f"w{os.getpid() % 10**6}")
    try:
        done = command("up", "a:1", check=False)
        assert {path.name for path in Path("/sys/class/net").iterdir()} == names
        is_slow = "sleep" in program
        assert done.returncode == (0 if is_slow else 2), done.stderr
        assert is_slow or "no network namespace can be made: `unshare --net` ended with 3" in done.stderr
    finally:
        command("down")
