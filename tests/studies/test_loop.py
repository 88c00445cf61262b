"""Test what a study says while it is computed: warnings of rounds, also where all progress is left out."""

import re
import warnings

import pytest

import relief_ray as rr
from relief_ray.data.window_set import WindowSet
from relief_ray.studies import progress
from tests.refusals import SENDS_1E30
from tests.studies.conftest import SMALL


def warned(ask) -> list[warnings.WarningMessage]:
    """Warnings of rounds that a call gives."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ask()
    return [w for w in caught if ": round " in str(w.message)]


def test_cells_of_one_process_have_the_bits_of_each_alone(small_study, monkeypatch, tmp_path):
    """Though the second one takes over windows and statistics of the first; of the second seed it has others."""
    loaded, load = [], WindowSet.load
    monkeypatch.setattr(WindowSet, "load", lambda windows, *a: loaded.append(len(windows)) or load(windows, *a))

    def models_of(strategies):
        loaded.clear()
        words = {"strategies": strategies, "seeds": [1], "backbone": SMALL, "quiet": True}
        study = rr.run("quick", out=tmp_path / "-".join(strategies), **words)
        return {run.method: [record.model_sha256 for record in run.ledger] for run in study.runs}, sum(loaded)

    (first, windows), (second, again) = models_of(["fedavg"]), models_of(["relief"])
    both, together = models_of(["fedavg", "relief"])
    assert both == first | second and again == windows == together > 0
    assert both["relief"] == [record.model_sha256 for record in small_study.run("relief", seed=1).ledger]


@pytest.mark.ci
def test_a_quiet_study_warns_of_a_refused_client_and_once_more_after_a_resume(write, run_cache, tmp_path):
    words = {"strategies": f"{write(SENDS_1E30)}:Mine", "backbone": SMALL, "out": tmp_path / "study", "quiet": True}

    def study() -> None:
        rr.run("quick", seeds=[0], rounds=40, runtime={"quorum": 0.8}, **words)

    def stopped() -> None:
        with pytest.raises(KeyboardInterrupt):
            study()

    def stop(self, cell, record):
        tell(self, cell, record)
        if record.round == 3:
            raise KeyboardInterrupt

    tell = progress.Quiet.round
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress.Quiet, "round", stop)
        (first,) = warned(stopped)
    assert "seed 0: round 1: without client 2 (type A): its update was refused (" in str(first.message)
    assert "norm rule" in str(first.message) and first.filename == __file__, "at the line that asked for the study"
    (again,) = warned(study)
    # The cell's own process computes a few rounds more before it hears of the stop.
    said = r": round \d+: still without client 2 \(type A\), since round 1: its update was refused \("
    assert re.search(said, str(again.message))


def test_a_quiet_study_warns_of_groups_that_nobody_trains(run_cache, tmp_path):
    starved = {"name": "relief", "deadline_s": 1e-6}
    words = {"strategies": [starved], "seeds": [0], "backbone": SMALL, "out": tmp_path / "study", "quiet": True}
    (shown,) = warned(lambda: rr.run("quick", rounds=6, **words))
    (run,) = rr.load(tmp_path / "study").runs
    (warning,) = (line for record in run.ledger for line in record.warnings)
    assert "been trained by any client for 5 rounds" in warning and str(shown.message).endswith(f", seed 0: {warning}")
