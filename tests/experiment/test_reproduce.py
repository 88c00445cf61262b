"""A committed cell computed again: the same bits here, and an honest answer where something differs."""

import pytest

from relief_ray.experiment.experiment import Experiment
from relief_ray.experiment.lifecycle import create
from relief_ray.experiment.reproduce import judge, reproduce
from relief_ray.records.committed import condense
from relief_ray.support.errors import UserError
from relief_ray.training.executor import SerialExecutor
from tests.conformance.cases import config_of

pytestmark = pytest.mark.usefixtures("run_cache")


@pytest.fixture(scope="module")
def cell(run_cache, tmp_path_factory):
    setup, opened = create(config_of("relief"), tmp_path_factory.mktemp("reproduce") / "run")
    with opened:
        Experiment(setup=setup, folder=opened, executor=SerialExecutor(setup.job)).run()
        return condense(opened.run, opened.rounds())


def changed(cell, **last):
    row = cell.rounds[-1].model_copy(update=last)
    return cell.model_copy(update={"rounds": (*cell.rounds[:-1], row), "model_sha256": "0" * 64})


def test_the_same_program_gives_equal_bits(cell, tmp_path):
    seen = []
    result = reproduce(cell, tmp_path / "again", on_round=lambda r: seen.append(r.round))
    assert (result.answer, result.differences) == ("equal bits", ())
    assert result.program is result.processor is None
    assert seen == [r.round for r in cell.rounds]
    assert (tmp_path / "again" / "run.json").exists()


def test_other_bits_with_the_same_scores_are_within_tolerance(cell):
    result = judge(cell, changed(cell, f1=cell.rounds[-1].f1 + 0.009))
    assert result.answer == "within tolerance" and result.f1_gap == pytest.approx(0.009)
    assert result.differences[0].startswith("last model ")
    assert any("f1" in d and f"round {cell.rounds[-1].round}" in d for d in result.differences)


@pytest.mark.parametrize("last", [{"f1": 0.0}, {"bytes_up": 1}, {"time_s": 1e9}, {"energy_j": 1e9}, {"f1": None}])
def test_other_scores_bytes_or_costs_are_different(cell, last):
    better = cell.model_copy(update={"rounds": (*cell.rounds[:-1], cell.rounds[-1].model_copy(update={"f1": 0.5}))})
    assert judge(better, changed(better, **last)).answer == "different"


def test_a_missing_round_is_different(cell):
    shorter = cell.model_copy(update={"rounds": cell.rounds[:-1]})
    assert judge(cell, shorter).answer == "different"


def test_another_program_is_named(cell):
    assert "sources" in judge(cell.model_copy(update={"source_digest": "0" * 64}), cell).program


def test_another_processor_is_named(cell):
    machine = cell.machine.model_copy(update={"cpu": "Z80"})
    result = judge(cell.model_copy(update={"machine": machine}), cell)
    assert result.processor == f"Z80 there, {cell.machine.cpu} here" and result.program is None


@pytest.mark.parametrize("tolerance", [-0.01, float("nan"), float("inf")])
def test_a_tolerance_that_is_none_is_refused_before_anything_runs(cell, tmp_path, tolerance):
    with pytest.raises(UserError, match=r"--tolerance .*: expected points of F1, 0 or more"):
        reproduce(cell, tmp_path / "x", tolerance)
    assert not (tmp_path / "x").exists()


def test_an_engine_that_is_unknown_here_is_refused(cell, tmp_path):
    with pytest.raises(UserError, match="engine 'warp' is unknown to this version; known: "):
        reproduce(cell.model_copy(update={"engine": "warp"}), tmp_path / "x")


def test_other_data_are_refused(cell, tmp_path):
    with pytest.raises(UserError, match="was computed on data 000000000000, found"):
        reproduce(cell.model_copy(update={"data_digest": "0" * 64}), tmp_path / "x")
