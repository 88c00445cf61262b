"""What is odd about a dataset is said by `describe`, on the screen of a run, in its record and in Python."""

import warnings
from functools import partial

import pytest

import relief_ray as rr
from relief_ray.data import DataConfig, Dataset, open_dataset
from relief_ray.data.describe import describe, null_rows
from relief_ray.records.run_folder import read_run
from relief_ray.report.runs import load_runs
from tests.loaders import ODD, ODDITIES, write_lab

SETTINGS = {"data.stride_s": 5.0, "fleet.owned": {t: ["wrist", "hip", "ankle"] for t in "ABC"}, "training.epochs": 1}
SMALL = {"conv1": 2, "conv2": 2, "steps": 2, "fusion": 2}


@pytest.fixture
def lab(write, tmp_path, monkeypatch):
    return partial(write_lab, write, tmp_path, monkeypatch)


def described(name: str, **values: object) -> list[str]:
    config = DataConfig.model_validate({"name": name, "stride_s": 5.0, **values})
    return describe(open_dataset(config), config)["warnings"]


def test_the_shipped_data_have_nothing_odd(mini: Dataset) -> None:
    assert described("dsa_mini") == []


def test_each_oddity_is_a_sentence(lab) -> None:
    path = lab(ODD)
    assert described(path) == list(ODDITIES)


def test_declared_null_rows_are_a_fact_and_no_warning(lab, mini: Dataset) -> None:
    """Rows of ``null_labels`` inside or outside of bouts; rows with a class that lie in no bout are still odd."""
    for body in ("MINE = GOOD", ODD):
        dataset = open_dataset(DataConfig(name=lab(body)))
        assert null_rows(dataset).startswith("400 of 5,200 rows have code 0, no activity (null_labels)")
        assert "list it in labels and take it out of null_labels" in null_rows(dataset)
        assert not [text for text in described(dataset.spec.name) if "null_labels" in text or "no bout" in text]
    cut = lab(
        "def mine(*given):\n"
        "    made = parse(*given)\n"
        "    return replace(made, bouts=made.bouts - [0, 10])\n"
        "MINE = replace(GOOD, parse=mine)"
    )
    assert "120 of 5200 rows have a class but lie in no bout" in described(cut)
    assert null_rows(mini) == ""


def test_classes_without_windows_and_clients_with_one_class(lab) -> None:
    """Four people in 24 pieces: most hold a single activity."""
    said = described(lab(), stride_s=1.0, num_clients=24, max_windows_per_client=1)
    assert "24 of 24 clients have training windows of one class only" in said
    drawn = described(lab(), partition="dirichlet", dirichlet_alpha=0.01, min_partition_size=1, num_clients=3)
    assert not any("one class only" in text for text in drawn)
    held_out = described(lab(ODD), split="held_out_subject", fold=1)
    assert "no training window of rest" in held_out


def study(path: str, **more: object) -> rr.Study:
    return rr.run(data=path, strategies=["fedavg", "central"], rounds=1, backbone=SMALL, set=SETTINGS, **more)


def test_python_says_it_once_and_the_records_keep_it(lab, run_cache, tmp_path, capfd) -> None:
    path = lab(ODD)
    done = study(path, out=tmp_path / "runs")
    notes = tuple(f"data {path}: {text}" for text in ODDITIES)
    assert done.data_warnings == notes
    shown = [line for line in capfd.readouterr().err.splitlines() if line.startswith("WARNING: data ")]
    assert shown == [f"WARNING: {note}" for note in notes]
    assert {read_run(run.folder).data_warnings for run in done.runs} == {ODDITIES}
    (loaded, _) = load_runs([tmp_path / "runs"])
    assert loaded.warnings[: len(notes)] == notes


def test_a_quiet_study_warns_at_the_users_line(lab, run_cache) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        done = study(lab(ODD), quiet=True)
    mine = [w for w in caught if str(w.message).startswith("data own_")]
    assert tuple(str(w.message) for w in mine) == done.data_warnings
    assert {w.filename for w in mine} == {__file__}
