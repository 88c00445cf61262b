"""`doctor` and `device monitor` on boards that are file trees."""

import json
import socket
import sys

import pytest
from typer.testing import CliRunner

from actors.cli.main import app
from actors.commands.device import TorchFacts, doctor_lines, torch_here
from tests.devices.boards import BOARDS

ORIN = TorchFacts(version="2.8.0a0+nv25.06", build="CUDA 12.6", gpu="Orin", arch="sm_87", arch_list=("sm_80", "sm_87"))
CPU = TorchFacts(version="2.13.0+cpu", build="without CUDA")


@pytest.fixture
def board(tmp_path):
    return lambda name: tmp_path / name if (tmp_path / name).exists() else BOARDS[name](tmp_path / name)


@pytest.fixture
def any_samples(monkeypatch):
    """On a busy machine most samples come late: here two are enough."""
    monkeypatch.setattr("relief_ray.devices.meter.MAX_DROPPED", 1.0)


def checks(root, torch=ORIN, address=None):
    return {line.part: line for line in doctor_lines(root, torch, root / "runs", None, address, None)}


def run(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


STATUS = {
    # board, power rails, heat
    "agx_orin": ("ok", "ok", "ok"),
    "orin_nx": ("ok", "ok", "ok"),
    "jetpack_7": ("ok", "ok", "ok"),
    "jetpack_4": ("problem", "ok", "warning"),
    "negative": ("ok", "warning", "ok"),
    "slowed": ("ok", "ok", "warning"),
}
PARTS = ["memory", "data", "clock", "cache", "kernels", "runs", "locks", "MLflow", "head"]


@pytest.mark.parametrize("name", STATUS)
def test_each_board_gets_its_verdict_and_every_fault_its_fix(board, name):
    seen = checks(board(name))
    assert tuple(seen[part].status for part in ("board", "power rails", "heat")) == STATUS[name]
    assert list(seen) == ["board", "Python", "Ray", "torch", "power mode", "power rails", "heat", *PARTS]
    assert all(bool(check.fix) == (check.status != "ok") for check in seen.values())


def test_only_a_board_has_lines_of_power_and_heat(board):
    assert list(checks(board("none"))) == ["board", "Python", "Ray", "torch", *PARTS]


def test_a_jetson_whose_torch_sees_no_gpu_has_failed(board):
    failed = checks(board("orin_nx"), CPU)["torch"]
    assert failed.status == "problem" and "no GPU on a Jetson" in failed.seen and "bootstrap.sh edge" in failed.fix
    assert checks(board("none"), CPU)["torch"].status == "ok"
    assert checks(board("none"), TorchFacts(fault="cannot be imported (x)"))["torch"].status == "problem"


def test_kernels_for_another_architecture(board):
    other = TorchFacts(version="2", build="CUDA 13", gpu="Orin", arch="sm_87", arch_list=("sm_90",))
    assert checks(board("orin_nx"), other)["torch"].status == "warning"
    broken = TorchFacts(version="2", build="CUDA 13", gpu="Orin", arch="sm_87", fault="no kernel image")
    assert checks(board("orin_nx"), broken)["torch"].status == "problem"


def test_torch_is_really_run_here(board):
    here = torch_here()
    assert here.version and not here.fault
    assert "; a matrix product ran on the " in checks(board("none"), here)["torch"].seen


def test_a_head_that_does_not_answer_has_failed_with_the_command_that_starts_one(board):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        head = checks(board("none"), address=address)["head"]
    assert head.status == "problem" and "nothing answers" in head.seen and "cluster head" in head.fix


def test_without_a_name_no_cluster_is_looked_for_and_ray_address_is_one(board, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    line = checks(board("none"))["head"]
    assert line.seen == "n/a: neither --address nor RAY_ADDRESS names one" and line.status == "ok"
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    line = checks(board("none"))["head"]
    assert line.status == "problem" and line.seen.startswith("127.0.0.1:9: nothing answers")


def test_the_doctors_exit_code_and_json(board):
    assert run("doctor", "--sysfs", board("none")).exit_code == 0
    shown = run("doctor", "--sysfs", board("jetpack_4"), "--json")
    assert shown.exit_code == 2
    report = json.loads(shown.stdout)
    assert report["ready"] is False and report["checks"][0]["seen"].endswith("JetPack 4")
    wrong = run("doctor", "--sysfs", "/does/not/exist")
    assert wrong.exit_code == 2 and "no such folder" in wrong.output


def test_monitor_prints_every_rail_and_says_what_it_cannot_read(board, any_samples):
    shown = run("device", "monitor", "--sysfs", board("negative"), "--seconds", 0.2, "--idle", 0)
    assert shown.exit_code == 0
    lines = {line.split()[0]: line.split() for line in shown.stdout.splitlines() if line.strip()}
    assert lines["VDD_GPU_SOC"][1:4] == ["n/a", "n/a", "n/a"] and lines["VDD_CPU_CV"][1] == "6.00"
    assert "NOTE: no total: VDD_GPU_SOC: negative: -0.64 W" in shown.stdout and "above idle: n/a J" in shown.stdout
    without = run("device", "monitor", "--sysfs", board("none"), "--seconds", 0.1)
    assert "Power     n/a" in without.stdout and " 0.00" not in without.stdout


def test_monitor_measures_a_command_and_takes_over_its_exit_code(board, any_samples):
    command = [sys.executable, "-c", "import time; time.sleep(0.2); raise SystemExit(3)"]
    shown = run("device", "monitor", "--sysfs", board("orin_nx"), "--idle", 0.2, "--json", "--", *command)
    assert shown.exit_code == 3
    report = json.loads(shown.stdout)
    assert report["seconds"] > 0.2 and report["total"]["mean_w"] == pytest.approx(8.0)
    assert report["idle_w"] == pytest.approx(8.0) and abs(report["above_idle_j"]) < 1e-6
    assert report["total_rails"] == ["VDD_IN"] and report["jetpack"] == "6" and report["throttled"] is False
