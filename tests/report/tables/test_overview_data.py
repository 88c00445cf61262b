"""Windows and clients behind a setting's F1, from run records and from committed cells."""

import pytest

from relief_ray.records.committed import condense, write_committed
from relief_ray.records.facts import data_facts
from relief_ray.report.comparison import by_setting
from relief_ray.report.runs import take_inventory
from relief_ray.report.tables.overview import data_tables

SENSORS = (["acc", "gyro", "mag"], ["acc", "gyro"], ["acc"])


def recorded(loaded, first, **coverage):
    """The run with windows of its fold: three clients, of subjects ``first`` and the next two."""
    clients = [
        {"client": n, "subject": first + n, "train": [10 * (first + n), 5], "validation": [1, 1]} for n in range(3)
    ]
    more = {"classes": ["a", "b"], "clients": clients, "train": [60, 15], "validation": [3, 3], "test": [1000, 234]}
    fleet = [{"id": n, "device": "ABC"[n], "modalities": SENSORS[n], "name": "", "num_windows": 9} for n in range(3)]
    changed = {"coverage": more | {"window_s": 2.56} | coverage, "config_hash": loaded.where}
    changed["fleet"] = {"modalities": SENSORS[0], "clients": fleet}
    return loaded.run.model_copy(update=changed)


@pytest.fixture
def runs(make, put_on):
    """Two folds of FedAvg, and one of pooled data."""
    folds = [put_on(make("fedavg", fold=f), by_paper=False, where=f"f{f}") for f in (0, 1)]
    pooled = put_on(make("central"), by_paper=False, where="central")
    return [(recorded(r, 3 - 2 * i), r.rounds) for i, r in enumerate(folds)] + [(recorded(pooled, 3), pooled.rounds)]


def shown(path):
    (experiment,) = by_setting(take_inventory([path]))
    tables = data_tables(experiment, "e1")
    return [t.caption for t in tables], [[r.name, *(c.text for c in r.cells)] for t in tables for r in t.rows]


@pytest.fixture
def committed(runs, tmp_path):
    cells = [(run.config_hash, condense(run, rounds)) for run, rounds in runs]
    return write_committed(tmp_path / "cells.json", "t", cells).parent


ROWS = [
    ["0", "1, 2", "1,234", "75", "6", "3"],
    ["1", "1, 2", "1,234", "75", "6", "3"],
    ["0", "3 / 1", "A", "acc + gyro + mag", "15 to 35"],
    ["1", "4 / 2", "B", "acc + gyro", "25 to 45"],
    ["2", "5 / 3", "C", "acc", "35 to 55"],
]


def test_a_row_per_fold_and_a_row_per_client_as_recorded(runs, put, tmp_path, make):
    for number, (run, _) in enumerate(runs):
        where = make("fedavg", fold=number)
        put(type(where)(where="", run=run, rounds=runs[number][1]), tmp_path / "runs" / str(number))
    captions, rows = shown(tmp_path / "runs")
    assert "windows of 2.56 s, one every 5 s; 2 classes. F1 is taken over the test windows." in captions[0]
    assert captions[1].endswith("; a / stands between values of folds or rotations that differ.")
    assert rows == ROWS


def test_committed_cells_keep_the_same_facts(committed):
    captions, rows = shown(committed)
    assert "windows of 2.56 s" in captions[0] and rows == ROWS


def test_pooled_data_alone_have_windows_and_no_clients_and_committed_nothing(runs, put, tmp_path, make):
    (run, rounds), kind = runs[2], type(make("central"))
    put(kind(where="", run=run, rounds=rounds), tmp_path / "run")
    assert shown(tmp_path / "run")[1] == [["0", "1, 2", "1,234", "75", "6"]], "no column of clients"
    small = write_committed(tmp_path / "small" / "cells.json", "t", [("a", condense(run, rounds))]).parent
    assert shown(small) == ([], [])


def test_the_facts_are_those_of_the_coverage_report(runs):
    run, _ = runs[0]
    facts = data_facts(run)
    assert (facts.window_s, facts.num_classes, facts.test, facts.clients[0].windows) == (2.56, 2, 1234, 35)


def test_people_who_lack_a_sensor_are_named_also_where_cells_were_committed(runs, tmp_path):
    lacking = {"2": ["mag"], "9": ["gyro", "mag"]}
    named = [(run.model_copy(update={"coverage": {**run.coverage, "lacking": lacking}}), r) for run, r in runs]
    cells = [(run.config_hash, condense(run, rounds)) for run, rounds in named]
    captions, rows = shown(write_committed(tmp_path / "cells.json", "t", cells).parent)
    assert captions[1].endswith("that differ. Subject 2 lacks mag. Subject 9 lacks gyro and mag.") and rows == ROWS
    plain = condense(*runs[0]).data.model_dump(exclude_defaults=True)
    assert "lacking" not in plain, "cells of data of whom nobody lacks any are written as before"


def test_overlap_is_in_the_caption(make, put_on, inventory_of):
    (experiment,) = by_setting(inventory_of([put_on(make("fedavg"), data={"stride_s": 1.0})]))
    assert data_tables(experiment, "e1")[0].caption.endswith("Neighbouring windows share 80% of their samples.")
