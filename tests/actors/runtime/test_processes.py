"""Which signals a cluster's processes hear, which are found, how they end, and what is said of frozen ones."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from actors.runtime import session as processes
from actors.runtime.session import HeadWatch

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def blocked(pid: int) -> set[int]:
    """Numbers of the signals that a process does not hear."""
    (line,) = (s for s in Path(f"/proc/{pid}/status").read_text().splitlines() if s.startswith("SigBlk"))
    return {n for n in range(1, 32) if int(line.split()[1], 16) >> (n - 1) & 1}


def test_children_of_the_block_hear_neither_sigterm_nor_sighup_and_no_others() -> None:
    """Started as Ray starts its own: with a function that runs in the child."""
    with processes.shielded():
        inside = subprocess.Popen(SLEEP, preexec_fn=lambda: None)
    outside = subprocess.Popen(SLEEP, preexec_fn=lambda: None)
    try:
        assert {signal.SIGTERM, signal.SIGHUP} <= blocked(inside.pid)
        assert not {signal.SIGTERM, signal.SIGHUP} & blocked(outside.pid)
        inside.terminate()
        outside.terminate()
        assert outside.wait(30) == -signal.SIGTERM and inside.poll() is None
    finally:
        for process in (inside, outside):
            process.kill()
            process.wait()


def test_a_clusters_processes_are_told_from_others_and_end_even_when_stopped(tmp_path: Path) -> None:
    parent = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
    ours = subprocess.Popen([sys.executable, "-c", parent + "print(1, flush=True)\ntime.sleep(60)", f"{tmp_path}/x"],
                            stdout=subprocess.PIPE)  # fmt: skip
    other = subprocess.Popen(SLEEP)
    try:
        assert ours.stdout is not None
        ours.stdout.readline()
        members = processes.family(tmp_path)
        assert ours.pid in {p.pid for p in members} and len(members) == 2 and other.pid not in {p.pid for p in members}
        ours.send_signal(signal.SIGSTOP)
        later = psutil.Process(other.pid)
        later._create_time, later._ident = 0.0, (other.pid, 0.0)  # it began at another time
        processes.end([*members, later])
        assert ours.wait(30) == -signal.SIGKILL
        assert other.poll() is None, "another process has that number by now"
        (child,) = (p.pid for p in members if p.pid != ours.pid)
        until_s = time.monotonic() + 30.0
        while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < until_s
            time.sleep(0.01)
    finally:
        for process in (ours, other):
            process.kill()
            process.wait()


def lost(watch: HeadWatch, why: list[str]) -> list[str]:
    until_s = time.monotonic() + 20.0
    while not why and time.monotonic() < until_s:
        time.sleep(0.01)
    watch.__exit__()
    return why


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.runtime.session._LOOK_S", 0.05)


def judging(watch: HeadWatch) -> HeadWatch:
    """The watch with its one thread that never asks Ray."""
    import threading

    threading.Thread(target=watch._judge, daemon=True).start()
    return watch


def test_a_raylet_that_is_stopped_for_long_enough_is_lost_and_a_running_one_is_not(fast: None) -> None:
    why: list[str] = []
    raylet = subprocess.Popen(SLEEP)
    try:
        watch = HeadWatch(on_lost=why.append, frozen_s=0.4, _raylet=psutil.Process(raylet.pid))
        watch.silent_s = -1e9
        judging(watch)
        time.sleep(0.6)
        assert not why
        os.kill(raylet.pid, signal.SIGSTOP)
        assert lost(watch, why) == ["Ray's process of this machine (raylet) has been frozen for 0.4 s"]
    finally:
        raylet.kill()
        raylet.wait()


def test_a_head_that_does_not_answer_and_a_node_that_is_gone_are_told_once(fast: None) -> None:
    why: list[str] = []
    assert lost(judging(HeadWatch(on_lost=why.append, frozen_s=0.2)), why) == [
        "Ray's head (GCS) has not answered for 0.2 s"
    ]
    gone: list[str] = []
    watch = HeadWatch(on_lost=gone.append, _is_dead=True)
    assert len(lost(judging(watch), gone)) == 1 and "raylet" in gone[0]


@pytest.mark.ray
def test_the_real_raylet_is_looked_after_and_answers(cluster: None) -> None:
    why: list[str] = []
    watch = HeadWatch(on_lost=why.append)
    watch.__enter__()
    until_s = time.monotonic() + 30.0
    while watch._raylet is None and time.monotonic() < until_s:
        time.sleep(0.05)
    watch.__exit__()
    assert watch._raylet is not None and watch._raylet.ppid() == os.getpid() and not why
    assert {signal.SIGTERM, signal.SIGHUP} <= blocked(watch._raylet.pid), "a group's signal does not end it first"
