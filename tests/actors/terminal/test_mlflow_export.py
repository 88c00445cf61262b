"""What the line of a study's own run in MLflow says: methods, seeds, runs done, times, best F1; how exports end."""

import shutil
from datetime import datetime
from pathlib import Path

import pytest

from actors.terminal.mlflow_export import Exports, summary_of
from relief_ray.experiment.experiment import open_cell
from relief_ray.records.run_folder import read_rounds, read_run
from relief_ray.records.schema import RunStatus
from relief_ray.records.tracking import NullTracker
from relief_ray.studies.progress import Facts
from tests.actors.grids.tiny_plans import tiny_plan
from tests.sealed import change_run


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
    assert scores[f"{best}-s0"] == max(scores.values()) == pytest.approx(summary.metrics["best_f1"])
    text = f"smoke: 4 of 4 begun runs done. Best mean F1: {100 * max(scores.values()):.1f} % ({best})."
    assert summary.metrics["cells_done"] == 4 and summary.note.startswith(text)


def test_a_run_that_is_not_done_counts_as_begun_alone(copied: Path) -> None:
    change_run(copied / "v3-s0", status="interrupted", finished=None)
    summary = summary_of(copied, "smoke")
    assert summary.metrics["cells_done"] == 3 and "3 of 4 begun runs done" in summary.note
    nothing = summary_of(copied / "relief-s0", "empty")
    assert (nothing.started, nothing.finished, nothing.metrics) == (None, None, {"cells_done": 0.0})


def test_the_end_of_a_run_whose_folder_was_moved_away_hides_no_error_of_the_run(tmp_path: Path) -> None:
    class Heard(NullTracker):
        closed, finished = 0, 0

        def close(self) -> None:
            self.closed += 1

        def finish(self, status: RunStatus) -> None:
            self.finished += 1

    heard, exports = Heard(), Exports(lambda text: None)
    exports._choose = lambda config: heard
    (state,) = tiny_plan(tmp_path / "grid", methods=("fedavg",)).look()
    open_cell(state.cell.config, state.folder)
    exports.begin(state.cell, Facts(folder=state.folder))
    state.folder.rename(tmp_path / "gone")
    exports.close()
    assert (heard.closed, heard.finished) == (1, 0)
