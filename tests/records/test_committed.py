"""The small committed form: everything a rerun is checked against, in a few kilobytes, one line per cell."""

import json

import pytest

from relief_ray.data.registry import get_spec
from relief_ray.experiment.experiment import Experiment
from relief_ray.experiment.lifecycle import create
from relief_ray.records.committed import condense, pick, read_committed, write_committed
from relief_ray.support.errors import UserError
from relief_ray.training.executor import SerialExecutor
from tests.conformance.cases import config_of
from tests.sealed import page, put_page

pytestmark = pytest.mark.usefixtures("run_cache")


@pytest.fixture(scope="module")
def folder(run_cache, tmp_path_factory):
    path = tmp_path_factory.mktemp("committed") / "run"
    setup, opened = create(config_of("relief"), path)
    with opened:
        Experiment(setup=setup, folder=opened, executor=SerialExecutor(setup.job)).run()
        return opened.run, opened.rounds()


@pytest.fixture
def written(folder, tmp_path):
    cell = condense(*folder)
    assert cell.data_title == folder[0].data_title == get_spec("dsa_mini").title
    return write_committed(tmp_path / "g" / "cells.json", "t", [("relief-s0", cell), ("relief-s1", cell)])


def test_what_is_written_is_read_back_equal(folder, written):
    committed = read_committed(written.parent)
    assert committed.title == "t" and list(committed.cells) == ["relief-s0", "relief-s1"]
    assert committed.cells["relief-s0"] == condense(*folder)


def test_a_row_is_cumulative_and_the_model_is_the_last(folder):
    run, rounds = folder
    cell = condense(run, rounds)
    assert [r.round for r in cell.rounds] == [r.round for r in rounds]
    assert cell.rounds[-1].time_s == rounds[-1].totals[run.planning_model].time_s
    assert cell.rounds[-1].f1 == rounds[-1].metrics.f1
    assert cell.model_sha256 == rounds[-1].model_sha256
    assert cell.metrics.confusion == () and cell.metrics.f1_by_subject == rounds[-1].metrics.f1_by_subject


def test_a_cell_is_one_line_of_a_few_kilobytes(written):
    lines = written.read_text().splitlines()
    assert len(lines) == 6 and all(len(line) < 6000 for line in lines)
    assert json.loads(written.read_text())["schema_version"] == 4


def test_a_cell_is_picked_by_name_or_beginning(written):
    assert pick(f"{written}#relief-s1")[0] == "relief-s1"
    assert pick(f"{written.parent}#relief-s0")[0] == "relief-s0"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("{}#relief-s", "2 cells fit"),
        ("{}#releif-s0", "no cell 'releif-s0'.*relief-s0"),
        ("{}", "no cell ''"),
        ("{}x#a", "not there"),
    ],
)
def test_other_targets_are_refused_with_what_there_is(written, target, message):
    with pytest.raises(UserError, match=message):
        pick(target.format(written))


def test_a_row_of_more_values_than_a_round_has_is_refused(tmp_path, written):
    content = page(written)
    row = next(iter(content["cells"].values()))["rounds"][0]
    row += [{}] * (7 - len(row)) + [99]
    put_page(tmp_path / "cells.json", content)
    with pytest.raises(UserError, match=r"values in a row, expected at most 7"):
        read_committed(tmp_path)


def test_a_damaged_file_is_named(tmp_path):
    content = {"schema_version": 4, "title": "t", "cells": {"a": {"rounds": [[1]]}}}
    put_page(tmp_path / "cells.json", content)
    with pytest.raises(UserError, match=r"cells\.json: damaged"):
        read_committed(tmp_path)
    (tmp_path / "cells.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"cells\.json: damaged \(it does not end with its sha256\)"):
        read_committed(tmp_path)
