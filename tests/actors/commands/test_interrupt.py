"""Signals, a second driver and a full disk, each with real processes."""

import json
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from relief_ray.records.run_folder import read_rounds, read_run
from tests.own import METHOD

SMALL = [f"--set=backbone.{key}=2" for key in ("conv1", "conv2", "steps", "fusion")]


def wait_for_rounds(process: "subprocess.Popen[str]", number: int) -> None:
    assert process.stdout is not None
    seen = 0
    until = time.monotonic() + 60
    while seen < number:
        assert time.monotonic() < until
        line = process.stdout.readline()
        assert line, process.communicate()
        seen += json.loads(line)["event"] == "round"


@pytest.mark.ci
def test_ctrl_c_stops_after_the_round_and_resume_gives_the_same_bits(start, invoke, tmp_path: Path) -> None:
    args = [*SMALL, "--set=rounds=12", "--strategies=relief,fedavg"]
    process = start("run", "quick", "--out", tmp_path / "cut", "--json", *args)
    wait_for_rounds(process, 3)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert f"relief-ray resume {tmp_path / 'cut'}" in errors and "Traceback" not in errors
    assert read_run(tmp_path / "cut" / "relief-s0").status == "interrupted"
    assert len(read_rounds(tmp_path / "cut" / "relief-s0")) < 13

    assert invoke("resume", tmp_path / "cut").exit_code == 0
    assert invoke("run", "quick", "--out", tmp_path / "whole", *args).exit_code == 0
    for cell in ("relief-s0", "fedavg-s0"):
        cut, whole = (read_rounds(tmp_path / place / cell) for place in ("cut", "whole"))
        assert [r.model_sha256 for r in cut] == [r.model_sha256 for r in whole]
        assert [r.metrics for r in cut] == [r.metrics for r in whole]


@pytest.mark.ci
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_in_a_process_of_its_own_ends_with_its_command_and_resumes_to_equal_bits(
    start, invoke, write, tmp_path: Path, number: signal.Signals
) -> None:
    name = write(METHOD)
    args = [*SMALL, "--set=rounds=12", f"--strategies={name}:Mine", "--set=runtime.verify_own=false"]
    process = start("run", "quick", "--out", tmp_path / "cut", "--json", *args)
    wait_for_rounds(process, 3)
    (child,) = psutil.Process(process.pid).children()
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    code = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -signal.SIGKILL}[number]
    assert process.returncode == code and "Traceback" not in errors, errors
    assert invoke("resume", tmp_path / "cut").exit_code == 0 and not child.is_running()
    assert invoke("run", "quick", "--out", tmp_path / "whole", *args).exit_code == 0
    cut, whole = (read_rounds(tmp_path / place / f"{name}.Mine-s0") for place in ("cut", "whole"))
    assert [r.model_sha256 for r in cut] == [r.model_sha256 for r in whole] and len(cut) == 12


@pytest.mark.ci
def test_a_second_driver_is_refused_and_sigterm_has_its_own_code(start, invoke, tmp_path: Path) -> None:
    args = ["run", "quick", "--out", tmp_path, *SMALL, "--set=rounds=2000"]
    process = start(*args, "--json")
    wait_for_rounds(process, 1)
    second = invoke(*args)
    assert second.exit_code == 2
    assert f"in use by process {process.pid}" in " ".join(second.stderr.split())
    third = invoke("resume", tmp_path)
    assert third.exit_code == 2 and f"in use by process {process.pid}" in " ".join(third.stderr.split())
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors
    refused = invoke(*args)
    assert refused.exit_code == 2 and f"relief-ray resume {tmp_path}" in " ".join(refused.stderr.split())


@pytest.mark.ci
def test_a_full_disk_has_its_own_code_and_loses_nothing(start, invoke, tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))

    args = ["quick", "--out", tmp_path, *SMALL, "--set=rounds=12"]
    process = start("run", *args, preexec=limit)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 4, errors
    assert "File too large" in errors and "free some space" in " ".join(errors.split())
    kept = read_rounds(tmp_path / "relief-s0")
    assert 0 < len(kept) < 12
    assert invoke("resume", tmp_path).exit_code == 0
    assert len(read_rounds(tmp_path / "relief-s0")) == 12


def test_the_command_line_is_imported_without_anything_heavy() -> None:
    code = "import sys, actors.cli.main\nprint(sorted({'torch', 'ray', 'mlflow'} & set(sys.modules)))"
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("command", [["--help"], ["run", "--help"], ["data", "--help"]])
def test_help_loads_nothing_heavy(command: list[str]) -> None:
    code = (
        "import sys, runpy\n"
        f"sys.argv = ['relief-ray', *{command!r}]\n"
        "try: runpy.run_module('actors.cli.main', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'ray', 'mlflow', 'numpy'} & set(sys.modules)), file=sys.stderr)"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=60)
    assert done.stderr.strip() == "[]", done.stderr
