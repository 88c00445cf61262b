"""Tests the progress shown during a run, from real records."""

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from actors.terminal.progress import display
from relief_ray.config.experiment import ExperimentConfig
from relief_ray.records.run_folder import read_rounds
from relief_ray.studies.progress import End, LineDisplay, View, round_line, seconds
from relief_ray.studies.spec import Cell

ROOT = Path(__file__).parents[3]
VIEW = View(num_cells=1, num_done=0, num_failed=0, elapsed_s=1.0, left_s=None, running=(), leaders=())
SMALL = [f"--set=backbone.{key}=2" for key in ("conv1", "conv2", "steps", "fusion")]


@pytest.mark.parametrize(("value", "shown"), [(0.0421, "  0.042 s"), (12.345, "  12.35 s"), (482.04, "  482.0 s")])
def test_seconds_keep_three_digits_and_one_width(value: float, shown: str) -> None:
    assert seconds(value) == shown


def test_lines_of_evaluated_and_other_rounds_align(runs: Path) -> None:
    lines = [round_line(record, 200, "split_naive") for record in read_rounds(runs / "relief-s0")]
    assert {line.index("sim ") for line in lines} == {lines[0].index("sim ")}
    assert all(line.startswith("  ") and len(line) <= 80 for line in lines)


def test_a_single_run_shows_its_rounds_and_of_many_one_is_shown_now_and_then(runs: Path, capsys, monkeypatch) -> None:
    records = read_rounds(runs / "relief-s0")

    def shown(num_runs: int, every_s: float) -> list[str]:
        monkeypatch.setattr("relief_ray.studies.progress._LINE_EVERY_S", every_s)
        lines = LineDisplay(num_runs)
        for number in range(num_runs):
            title = f"relief, seed {number}"
            cell = Cell(name="x", label="relief", config=ExperimentConfig(rounds=2), hash="", title=title)
            lines.begin(cell, "2 rounds", None)
            for record in records:
                lines.round(cell, record)
            lines.end(cell, End(status="done", record=records[-1], view=VIEW))
        return [re.split(r"  (?=loss|sim|F1)", line)[0].strip() for line in capsys.readouterr().out.splitlines()]

    heading = "[1/{}] relief, seed 0: 2 rounds"
    assert shown(1, 3600.0) == [heading.format(1), "1/2", "2/2"]
    several = [f"[{n}/2] relief, seed {n - 1}: done in 0.0 s" for n in (1, 2)]
    assert shown(2, 3600.0) == [heading.format(2), *several]
    many = [heading.format(50), "[50/50] relief, seed 49: done in 0.0 s"]
    assert shown(50, 3600.0) == many
    assert shown(50, 0.0)[1:4] == [f"[1/50] relief, seed 0: {what}" for what in ("1/2", "2/2", "done in 0.0 s")]


def test_no_color_asks_for_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("NO_COLOR", "1")
    assert isinstance(display(False, 1, 1, several=False), LineDisplay)


@pytest.mark.ci
def test_a_terminal_shows_a_bar_and_keeps_a_line_per_run(tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "actors.cli.main", "run", "quick", "--out", str(tmp_path), *SMALL]
    environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
    environment |= {"PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "80", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    shown = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    os.close(leader)
    assert process.wait(timeout=60) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    assert "[1/1] relief, seed 0 ━" in text and "2/2  F1" in text
    assert re.search(r"\[1/1\] relief, seed 0: done in \d+\.\d s  F1 +\d+\.\d %", text)
