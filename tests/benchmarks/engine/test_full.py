"""Whether two harnesses did the same work is told after one round, before rounding is amplified."""

from dataclasses import replace

import pytest

from benchmarks.engine.eager import Sequential
from benchmarks.engine.full import other_work
from benchmarks.engine.page import full
from benchmarks.engine.product import deviation
from benchmarks.engine.scenario import Scenario, setup, start_of, write


@pytest.fixture
def whole(tmp_path):
    return write(Scenario(dataset="dsa", num_clients=8, num_windows=64, folder=tmp_path))


def first_round(scenario, nudged=False, **changes):
    """How far a reference with another task is from the reference after one round."""
    other, expected = Sequential(scenario.folder, nudged=nudged), Sequential(scenario.folder)
    other.task = replace(other.task, **changes)
    other.step()
    expected.step()
    return deviation(other.flat, expected.flat, start_of(setup(scenario)))


def test_rounding_is_the_same_work(whole):
    assert other_work(first_round(whole, nudged=True)) == ""


@pytest.mark.ci
@pytest.mark.parametrize("changes", [{"num_clients": 7}, {"lr": 1.2e-3}, {"seed": 1}, {"batch_size": 16}], ids=str)
def test_other_work_is_reported(whole, changes):
    assert other_work(first_round(whole, **changes)).startswith("not the same work: its first round deviates by ")


def test_a_case_that_is_not_compared_says_why_on_the_page():
    text = full({"full_n8_note": other_work(0.3), "full_n8_vs_torch2": None})
    assert text.endswith("\n\nfull_n8_note: not the same work: its first round deviates by 0.3 from the reference's")


def test_what_is_not_finite_is_other_work():
    assert "deviates by nan" in other_work(float("nan"))
