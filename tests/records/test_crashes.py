"""Tests 3, 28 and 30 of the fault list: a run killed, or out of disk, at every single change of the file system."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from relief_ray.records import checkpoint
from relief_ray.records.run_folder import read_rounds, read_run
from relief_ray.support.errors import UserError


def assert_previous_or_new(scenario, path: Path, saved: int) -> None:
    loaded = checkpoint.load(path, scenario.BINDING)
    assert (0 if loaded is None else loaded.round) in (saved, saved + 1)
    assert not (path / "run.json").exists() or read_run(path).cell == scenario.make_run().cell
    if (path / "run.json").exists():
        assert [r.round for r in read_rounds(path)] == list(range(1, len(read_rounds(path)) + 1))


def parts_in(path: Path) -> list[Path]:
    """Return what a killed writer left of ``run.json`` or the ledger."""
    return list(path.glob(".r*.part"))


@pytest.mark.ci
def test_a_run_killed_at_any_change_ends_with_the_same_bits(scenario, rows, finished, tmp_path):
    killed = rows(tmp_path)
    assert len(killed) >= 60
    assert {row["event"] for row in killed} >= {"write", "fsync", "replace", "mkdir", "unlink", "rmdir"}
    assert {row["signal"] for row in killed} == {9}
    golden = scenario.outcome(finished)
    assert any(parts_in(Path(row["path"])) for row in killed), "some were killed in the middle of run.json"
    for row in killed:
        path = Path(row["path"])
        assert_previous_or_new(scenario, path, row["saved"])
        scenario.drive(path)
        assert scenario.outcome(path) == golden and not parts_in(path), row
        assert read_run(path).status == "done"


@pytest.mark.ci
def test_a_resume_killed_at_any_change_ends_with_the_same_bits(scenario, rows, finished, tmp_path):
    """It has everything to mend: a torn line, rounds without checkpoint, a damaged generation."""
    template = tmp_path / "template"
    scenario.drive(template, rounds=3)
    with (template / "rounds.jsonl").open("ab") as ledger:
        ledger.write(b'{"round": 4, "ph')
    (newest, *_) = checkpoint.generations(template)
    os.truncate(newest / "state.safetensors", 10)
    (tmp_path / "sweep").mkdir()
    killed = rows(tmp_path / "sweep", template)
    assert len(killed) >= 40
    assert {row["signal"] for row in killed} == {9}
    for row in killed:
        path = Path(row["path"])
        assert checkpoint.load(path, scenario.BINDING).round >= 2
        scenario.drive(path)
        assert scenario.outcome(path) == scenario.outcome(finished), row


@pytest.mark.ci
def test_a_disk_that_fills_up_at_any_change_stops_cleanly_and_resumes(scenario, finished, tmp_path):
    stopped = 0
    changes = scenario.points(tmp_path / "counted")
    for at in range(1, len(changes) + 1):
        path = tmp_path / f"{at:03d}"
        with scenario.intercepted(scenario.disk_full(at)):
            message = scenario.refusal(lambda path=path: scenario.drive(path))
        stopped += "No space left on device" in message and "free some space" in message
        assert message == "not refused" or "No space left" in message
        assert_previous_or_new(scenario, path, changes[at - 1][1])
        scenario.drive(path)
        assert scenario.outcome(path) == scenario.outcome(finished)
    # Only what no write comes after (the last clean-up) may go unnoticed.
    assert stopped >= len(changes) - 3


@pytest.mark.ci
def test_a_real_size_limit_stops_cleanly(scenario, program, finished, tmp_path):
    """The operating system itself refuses the bytes past a limit in the middle of a ledger line."""
    size = (finished / "rounds.jsonl").stat().st_size
    message = program("limited", tmp_path / "run", size - 100).stdout
    assert "File too large" in message and "append round 4" in message
    assert [r.round for r in read_rounds(tmp_path / "run")] == [1, 2, 3]
    scenario.drive(tmp_path / "run")
    assert scenario.outcome(tmp_path / "run") == scenario.outcome(finished)


def test_every_rename_is_between_two_fsyncs(scenario, tmp_path):
    """Contents reach the disk before their name does, and the name before the run goes on; SIGKILL cannot show that."""
    names = [name for name, _ in scenario.points(tmp_path / "run")]
    kept = [n for n in names if n in ("write", "fsync", "replace")]
    for at, name in enumerate(kept):
        if name == "replace":
            assert kept[at - 1] == "fsync" and kept[at + 1] == "fsync", kept[at - 3 : at + 3]
        if name == "write":
            assert kept[at + 1] == "fsync"


def test_without_any_whole_generation_the_error_is_clear(scenario, finished, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    for generation in checkpoint.generations(path):
        (generation / "manifest.json").unlink()
    with pytest.raises(
        UserError, match=r"no usable checkpoint .*round-000004.*round-000003.*expected a whole one.*restore"
    ):
        scenario.drive(path)
