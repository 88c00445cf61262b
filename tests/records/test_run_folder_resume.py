from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from relief_ray.records import checkpoint
from relief_ray.records.run_folder import RunFolder, read_rounds, read_run, restore
from relief_ray.support.errors import UserError


def test_rounds_after_the_checkpoint_are_dropped_and_said(finished, scenario, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    (newest, *_) = checkpoint.generations(path)
    (newest / "state.safetensors").write_bytes(b"torn")
    with (path / "rounds.jsonl").open("ab") as ledger:
        ledger.write(b"{")
    with RunFolder.resume(path) as folder:
        restored = restore(folder, scenario.BINDING)
    assert restored.checkpoint.round == 3 and [r.round for r in restored.rounds] == [1, 2, 3]
    assert [p.name for p in checkpoint.generations(path)] == ["round-000003"]
    torn, skipped, again = restored.repairs
    assert "line 5 was torn" in torn and "round-000004" in skipped and again.startswith("1 rounds after the checkpoint")


def test_without_a_checkpoint_the_run_starts_again(finished, scenario, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    shutil.rmtree(path / "checkpoints")
    with RunFolder.resume(path) as folder:
        restored = restore(folder, scenario.BINDING)
    assert (restored.checkpoint, restored.rounds) == (None, ()) and "4 rounds" in restored.repairs[0]
    scenario.drive(path)
    assert scenario.outcome(path) == scenario.outcome(finished)


def test_an_intact_run_needs_no_repair(finished, scenario, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    with RunFolder.resume(path) as folder:
        restored = restore(folder, scenario.BINDING)
    assert restored.repairs == () and restored.checkpoint.round == 4 and len(restored.rounds) == 4


@pytest.mark.parametrize("fails", ["error.json", "sync"])
def test_a_resume_that_fails_as_it_opens_the_ledger_leaves_nothing_open(fails, finished, tmp_path, monkeypatch):
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    if fails == "sync":
        monkeypatch.setattr("relief_ray.support.files.preflight", lambda *_: None)
        monkeypatch.setattr("relief_ray.support.files.sync", lambda folder: os.listdir(folder / "rounds.jsonl"))
    else:
        (path / "error.json").mkdir()
    with pytest.raises(UserError, match=r"error\.json: cannot remove: |rounds\.jsonl: cannot open: "):
        RunFolder.resume(path)
    assert str(path / "rounds.jsonl") not in map(os.path.realpath, Path("/proc/self/fd").iterdir())


def test_a_moved_folder_is_read_and_resumed(finished, scenario, tmp_path):
    path, elsewhere = tmp_path / "run", tmp_path / "other" / "place"
    shutil.copytree(finished, path)
    (newest, *_) = checkpoint.generations(path)
    shutil.rmtree(newest)
    elsewhere.parent.mkdir()
    path.rename(elsewhere)
    assert [r.round for r in read_rounds(elsewhere)] == [1, 2, 3, 4]
    scenario.drive(elsewhere)
    assert scenario.outcome(elsewhere) == scenario.outcome(finished)


def test_a_folder_moved_under_its_driver_is_noticed(finished, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    with RunFolder.resume(path) as folder:
        path.rename(tmp_path / "elsewhere")
        with pytest.raises(UserError, match=r"rounds\.jsonl: removed or replaced while this run was writing"):
            folder.append(read_rounds(tmp_path / "elsewhere")[-1])
        with pytest.raises(UserError, match=r"rounds\.jsonl: removed or replaced while this run was writing"):
            folder.update(status="failed")
        path.mkdir()
        shutil.copy(tmp_path / "elsewhere" / "rounds.jsonl", path)
        with pytest.raises(UserError, match="removed or replaced"):
            folder.update(status="failed")
    assert [entry.name for entry in path.iterdir()] == ["rounds.jsonl"], "another folder at its place is left alone"
    assert folder.run == read_run(tmp_path / "elsewhere") and len(read_rounds(tmp_path / "elsewhere")) == 4
