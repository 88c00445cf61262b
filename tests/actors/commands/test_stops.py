"""Commands that are signalled, or whose Ray freezes, in every state: when and how they end, and what they say."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from relief_ray.records.run_folder import read_rounds, read_run
from tests.actors.conftest import ROOT, SMALL, Invoke, Start, hear_signals
from tests.actors.grids.tiny_plans import tiny_plan, tiny_search
from tests.actors.runtime.test_launch import alive, descendants, wait_until_gone

pytestmark = [pytest.mark.ray, pytest.mark.slow]
ON_RAY = ["--set=runtime.mode=packed", "--set=runtime.num_hosts=1"]
# Ten seconds are promised; the machine of the tests may be busy.
LIMIT_S = 13.0


class Output:
    """Lines of both streams of a process, read as they come."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.lines: list[str] = []
        self._threads = [threading.Thread(target=self._read, args=(s,)) for s in (process.stdout, process.stderr)]
        for thread in self._threads:
            thread.start()

    def _read(self, stream) -> None:
        self.lines.extend(stream)

    def wait_for(self, words: str, seconds: float = 120.0) -> None:
        until_s = time.monotonic() + seconds
        while not any(words in line for line in list(self.lines)):
            assert time.monotonic() < until_s, self.lines
            time.sleep(0.02)

    def whole(self) -> str:
        for thread in self._threads:
            thread.join(30.0)
        return " ".join("".join(self.lines).split())


def a_run(folder: Path, *more: str) -> list[str]:
    return ["run", "quick", "--out", str(folder / "x"), *SMALL, "--set=rounds=100000", *more]


def a_grid(folder: Path) -> list[str]:
    tiny_plan(folder / "x", methods=("fedavg",), rounds=100_000).write()
    return ["grid", "resume", str(folder / "x")]


def a_resume(folder: Path) -> list[str]:
    """Of a run that was stopped after a few rounds."""
    ledger = folder / "x" / "relief-s0" / "rounds.jsonl"
    first = subprocess.Popen(
        [sys.executable, "-m", "actors.cli.main", *a_run(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=hear_signals,
    )
    until_s = time.monotonic() + 120.0
    while not ledger.exists() or ledger.read_bytes().count(b"\n") < 3:
        assert first.poll() is None and time.monotonic() < until_s
        time.sleep(0.05)
    first.send_signal(signal.SIGINT)
    assert first.wait(60) == 130
    return ["resume", str(folder / "x"), *ON_RAY]


def a_search(folder: Path) -> list[str]:
    tiny_search(folder / "x", rounds=100_000).write()
    return ["grid", "resume", str(folder / "x")]


# What runs, the words after which it is in that state, and seconds after them.
STATES: dict[str, tuple[Callable[[Path], list[str]], str, float]] = {
    "before Ray starts": (lambda folder: a_run(folder, *ON_RAY), "quick: 1 run", 0.0),
    "while Ray starts": (lambda folder: a_run(folder, *ON_RAY), "on Ray, packed", 1.5),
    "rounds on Ray": (lambda folder: a_run(folder, *ON_RAY), "2/100000", 0.0),
    "rounds and checkpoints in this process": (a_run, "2/100000", 0.0),
    "a long round in this process": (
        lambda folder: a_run(folder, "--set=training.epochs=100000"), "8 clients in this process", 2.0,
    ),
    "a run that is resumed": (a_resume, "/100000", 1.0),
    "a grid that starts": (a_grid, "one node: a process for each cell", 1.0),
    "a grid": (a_grid, "one node: a process for each cell", 20.0),
    "a search": (a_search, "one node: a process for each cell", 20.0),
}  # fmt: skip
SIGNALS = [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)]
CASES = [pytest.param(state, *pair, id=f"{state}-{pair[0].name}") for state in STATES for pair in SIGNALS]


@pytest.mark.parametrize(("state", "number", "code"), CASES)
def test_a_signal_to_the_whole_group_ends_every_state_in_time(start: Start, tmp_path: Path, state, number, code):
    make, words, later_s = STATES[state]
    process = start(*make(tmp_path), preexec=os.setsid)
    output = Output(process)
    output.wait_for(words)
    time.sleep(later_s)
    members, began_s = descendants(process.pid), time.monotonic()
    os.kill(process.pid, number)  # as `timeout` does: its child, then the group
    os.killpg(process.pid, number)
    process.wait(60)
    seconds, said = time.monotonic() - began_s, output.whole()
    assert process.returncode == code, said
    assert seconds < LIMIT_S and "Traceback" not in said and "internal error" not in said, (seconds, said)
    assert "resume " + str(tmp_path / "x") in said
    assert not wait_until_gone(members), alive(members)


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_signal_while_the_last_export_goes_on_names_the_line_that_completes_it(start: Start, tmp_path, number, code):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = f"http://127.0.0.1:{silent.getsockname()[1]}"
        words = ["run", "quick", "--out", tmp_path / "x", *SMALL, "--set=rounds=2"]
        words += ["--set=tracking.enabled=true", f"--set=tracking.uri={store}"]
        process = start(*words, preexec=os.setsid)
        output = Output(process)
        wait_until(lambda: is_done_in(tmp_path / "x" / "relief-s0"))
        time.sleep(1.0)
        began_s = time.monotonic()
        os.killpg(process.pid, number)
        process.wait(60)
        seconds, said = time.monotonic() - began_s, output.whole()
    assert process.returncode == code and seconds < LIMIT_S, (seconds, said)
    assert f"relief-ray sync {tmp_path / 'x'}" in said and "resume with" not in said and "Traceback" not in said


def wait_until(is_true: Callable[[], bool], seconds: float = 120.0) -> None:
    until_s = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < until_s
        time.sleep(0.05)


def is_done_in(folder: Path) -> bool:
    return (folder / "run.json").exists() and read_run(folder).status == "done"


def test_a_report_that_is_stopped_says_so_in_a_line(start: Start, tmp_path: Path):
    process = start("report", "results/smoke", "--out", tmp_path / "page", preexec=os.setsid)
    time.sleep(2.5)
    began_s = time.monotonic()
    os.killpg(process.pid, signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert time.monotonic() - began_s < LIMIT_S
    assert process.returncode == 143 and errors.splitlines()[-1:] == ["stopped; the same command does it again"]


def test_ctrl_c_while_the_ray_of_the_drivers_machine_is_frozen_ends_the_command_in_time(start: Start, tmp_path: Path):
    """Rounds are in this process, whose main thread Ray's own calls hold then."""
    process = start(*a_run(tmp_path, *ON_RAY))
    output = Output(process)
    output.wait_for("2/100000")
    members = descendants(process.pid)
    (raylet,) = (p for p in members if Path(f"/proc/{p}/comm").read_text().strip() == "raylet")
    os.kill(raylet, signal.SIGSTOP)
    time.sleep(3.0)
    began_s = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.wait(60)
    assert time.monotonic() - began_s < LIMIT_S and process.returncode == 130
    assert f"relief-ray resume {tmp_path / 'x'}" in output.whole() and not wait_until_gone(members)


@pytest.mark.parametrize(("name", "why"), [("raylet", "has been frozen for 30 s"), ("gcs_server", "has not answered")])
def test_a_frozen_ray_of_the_drivers_machine_ends_the_command_and_a_resume_has_the_same_bits(
    start: Start, invoke: Invoke, tmp_path: Path, name, why
):
    process = start(*a_run(tmp_path, *ON_RAY, "--set=record.checkpoint_every=5"))
    output = Output(process)
    output.wait_for("9/100000")
    (frozen,) = (p for p in descendants(process.pid) if Path(f"/proc/{p}/comm").read_text().strip() == name)
    members = descendants(process.pid)
    os.kill(frozen, signal.SIGSTOP)
    began_s = time.monotonic()
    process.wait(120)
    said = output.whole()
    assert process.returncode == 9 and why in said and f"relief-ray resume {tmp_path / 'x'}" in said
    assert time.monotonic() - began_s < 30.0 + LIMIT_S and "Traceback" not in said
    assert not wait_until_gone(members), alive(members)
    stopped = len(read_rounds(tmp_path / "x" / "relief-s0"))
    resumed = start("resume", tmp_path / "x", "--set=runtime.mode=inline")
    more = Output(resumed)
    more.wait_for(f"{stopped + 5}/100000")
    resumed.send_signal(signal.SIGINT)
    resumed.wait(60)
    more.whole()
    rounds = read_rounds(tmp_path / "x" / "relief-s0")
    assert read_run(tmp_path / "x" / "relief-s0").num_resumes == 1 and len(rounds) >= stopped
    words = ["run", "quick", "--out", tmp_path / "whole", *SMALL, f"--set=rounds={rounds[-1].round}"]
    assert invoke(*words).exit_code == 0
    whole = read_rounds(tmp_path / "whole" / "relief-s0")
    assert [r.model_sha256 for r in rounds] == [r.model_sha256 for r in whole]
