"""A metric is a function and an entry of the registry: with them it is in every record, copy, line and table."""

import json

import pytest

from relief_ray.experiment.experiment import Experiment
from relief_ray.experiment.lifecycle import create
from relief_ray.experiment.reproduce import judge
from relief_ray.records.committed import condense
from relief_ray.records.metrics import METRICS, Metric, accuracy, round_scalars
from relief_ray.records.schema import Metrics
from relief_ray.report.comparison import compare
from relief_ray.report.formats.text import as_csv
from relief_ray.report.frames import read_cells
from relief_ray.studies.progress import round_line
from relief_ray.training.executor import SerialExecutor
from tests.conformance.cases import config_of


def balanced_accuracy(confusion):
    """Mean recall over classes that occur."""
    rows = confusion.sum(1)
    return float((confusion.diagonal()[rows > 0] / rows[rows > 0]).mean())


NEW = Metric(name="balanced_accuracy", label="balanced", compute=balanced_accuracy)


@pytest.fixture(scope="module")
def folder(run_cache, tmp_path_factory):
    path = tmp_path_factory.mktemp("metric") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(METRICS, NEW.name, NEW)
        setup, opened = create(config_of("fedavg"), path)
        with opened:
            Experiment(setup=setup, folder=opened, executor=SerialExecutor(setup.job)).run()
            run, rounds = opened.run, opened.rounds()
    return path, run, rounds


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setitem(METRICS, NEW.name, NEW)


@pytest.mark.usefixtures("registered")
def test_a_registered_metric_is_everywhere(folder):
    path, run, rounds = folder
    last = json.loads((path / "rounds.jsonl").read_text().splitlines()[-1])
    score = last["metrics"]["scores"]["balanced_accuracy"]
    confusion = rounds[-1].metrics.confusion
    counts = [[sum(subject[i][j] for subject in confusion) for j in range(len(confusion[0]))] for i in range(8)]
    recalls = [row[i] / sum(row) for i, row in enumerate(counts) if sum(row)]
    assert score == pytest.approx(sum(recalls) / len(recalls)) and 0 < score < 1
    assert round_scalars(rounds[-1], run.planning_model)["balanced_accuracy"] == score
    assert f"balanced {100 * score:.1f} %" in round_line(rounds[-1], 3, run.planning_model)
    assert read_cells([path]).frame["balanced_accuracy_percent"].item() == pytest.approx(100 * score)
    head, *_ = as_csv(compare([path])).splitlines()
    assert "balanced_accuracy_percent" in head


def test_without_its_entry_the_same_records_are_read_as_with_a_metric_of_the_users_own(folder):
    path, run, rounds = folder
    score = rounds[-1].metrics.scores["balanced_accuracy"]
    assert round_scalars(rounds[-1], run.planning_model)["balanced_accuracy"] == score
    assert "balanced_accuracy_percent" in as_csv(compare([path])) and "balanced" not in round_line(
        rounds[-1], 3, run.planning_model
    )


def test_a_metric_that_a_committed_cell_does_not_have_is_no_difference(folder):
    _, run, rounds = folder
    new = condense(run, rounds)
    old = new.model_copy(update={"metrics": new.metrics.model_copy(update={"scores": {}})})
    assert judge(old, new).answer == judge(new, old).answer == "equal bits"
    other = new.model_copy(update={"metrics": new.metrics.model_copy(update={"scores": {"balanced_accuracy": 0.0}})})
    assert judge(other, new).differences == ("the last metrics differ",)


def test_every_entry_has_its_name_and_a_value():
    assert all(name == metric.name for name, metric in METRICS.items())
    assert {m.name for m in METRICS.values() if m.compute is None} <= Metrics.model_fields.keys()
    assert METRICS["accuracy"].compute is accuracy
