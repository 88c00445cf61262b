"""What the line of a study's own run in MLflow says: methods, seeds, runs done, times, best F1."""

import shutil
from datetime import datetime
from pathlib import Path

import pytest

from actors.terminal.mlflow_export import summary_of
from relief_ray.records.run_folder import read_rounds, read_run
from tests.sealed import change_rounds, change_run


@pytest.fixture
def copied(runs: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(runs, tmp_path / "smoke"))


def moment(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def test_a_study_is_summed_up_from_its_folder(copied: Path) -> None:
    summary = summary_of(copied, "smoke")
    folders = sorted(path.parent for path in copied.glob("*/run.json"))
    records = [read_run(folder) for folder in folders]
    assert summary.tags["relief.methods"] == "fedavg, relief, v1, v3" and summary.tags["relief.seeds"] == "0"
    assert moment(summary.started) == min(moment(r.created) for r in records)
    assert moment(summary.finished) == max(moment(r.finished) for r in records)
    best = summary.tags["relief.best_method"]
    scores = {f.name: read_rounds(f)[-1].metrics.headline for f in folders}
    f1 = float(summary.tags["relief.best_f1"])
    assert scores[f"{best}-s0"] == max(scores.values()) == pytest.approx(f1, abs=1e-4)
    text = f"smoke: 4 of 4 begun runs done. Best mean F1: {100 * max(scores.values()):.1f} % ({best})."
    assert summary.tags["relief.cells_done"] == "4" and summary.note.startswith(text)


def test_variants_of_one_method_have_means_of_their_own(copied: Path) -> None:
    variant = Path(shutil.copytree(copied / "relief-s0", copied / "relief-other-s0"))
    config = read_run(variant).config
    change_run(variant, config={**config, "strategy": {**config["strategy"], "gamma": 0.5}})
    change_rounds(variant, metrics={"f1": 0.99, "f1_fleet": None})
    tags = summary_of(copied, "smoke").tags
    assert (tags["relief.best_method"], tags["relief.best_f1"]) == ("relief (gamma=0.5)", "0.9900")


def test_a_run_that_is_not_done_counts_as_begun_alone(copied: Path) -> None:
    change_run(copied / "v3-s0", status="interrupted", finished=None)
    summary = summary_of(copied, "smoke")
    assert summary.tags["relief.cells_done"] == "3" and "3 of 4 begun runs done" in summary.note
    nothing = summary_of(copied / "relief-s0", "empty")
    assert (nothing.started, nothing.finished, nothing.tags["relief.cells_done"]) == (None, None, "0")
    assert "relief.best_f1" not in nothing.tags
