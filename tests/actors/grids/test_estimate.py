"""How long and how much: from finished cells, from a timed round, and what fits a budget."""

import gc
import sys
import time
from dataclasses import replace

import pytest

from actors.commands.options import Options
from actors.commands.plan_text import Forecast
from actors.grids.estimate import (
    Estimate,
    estimates,
    finished_rates,
    fitting,
    head_of,
    probe,
    probe_missing,
    shortened,
    workload,
)
from actors.terminal.signals import TimeIsUp, time_limit
from relief_ray.records.run_folder import read_rounds
from relief_ray.studies.plan import Plan
from relief_ray.support.errors import UserError
from tests.actors.grids.tiny_plans import tiny_grid, tiny_plan
from tests.actors.trials import run_alone
from tests.plans import cells_of


def test_a_timed_round_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    rate = probe(tiny_plan(tmp_path, methods=("fedavg",)).cells[0].config)
    assert rate.round_s > 0 and rate.start_s > 0 and rate.origin == "one timed round"
    assert rate.round_bytes > 1000 and rate.fixed_bytes > 1000
    assert not list(tmp_path.glob("relief-probe-*"))


def test_finished_cells_tell_about_those_to_come(tmp_path):
    plan = tiny_plan(tmp_path, seeds=(0, 1)).write()
    first, *rest = plan.look()
    run_alone(first)
    entries = plan.look()
    mean_s = sum(r.wall_s for r in read_rounds(first.folder)) / 3
    ((key, rate),) = finished_rates(entries).items()
    assert key == (workload(first.cell.config), "fedavg") and rate.round_s == pytest.approx(mean_s)
    said = []
    assert probe_missing(entries, one_each=True, say=said.append) == {} and not said
    known = estimates(entries, {})
    assert set(known) == {e.cell.name for e in rest}
    relief0, fedavg1, _ = (known[e.cell.name] for e in rest)
    assert fedavg1.seconds == pytest.approx(3 * mean_s) and fedavg1.origin == "1 finished cell"
    assert relief0.seconds == pytest.approx(3 * mean_s) and relief0.origin == "as fedavg: 1 finished cell"
    probed = probe_missing(entries, one_each=False, say=said.append)
    assert list(probed) == [(key[0], "relief")] and said == ["timing a round of relief on dsa_mini (1 of 1)"]
    assert estimates(entries, probed)[rest[0].cell.name].origin == "one timed round"


def test_a_plan_repeats_what_the_timed_run_said_of_its_setting_alone(tmp_path):
    """One epoch of RELIEF+ on tiny data is one step; a cell of another setting may be warned of something else."""
    plan = tiny_plan(tmp_path, methods=("relief_plus",))
    entries = plan.look()
    probed = probe_missing(entries, one_each=False, say=[].append)
    (rate,) = probed.values()
    assert any("one epoch is" in text for text in rate.warnings)
    known = estimates(entries, probed)
    text = Forecast.of(plan, entries, known, None).text()
    assert f"WARNING: {entries[0].cell.setting} relief_plus: one epoch is" in " ".join(text.split())
    elsewhere = {key: replace(rate, setting="elsewhere") for key, rate in probed.items()}
    assert "one epoch is" not in Forecast.of(plan, entries, estimates(entries, elsewhere), None).text()


def test_missing_data_are_said_not_raised(tmp_path, monkeypatch):
    monkeypatch.setenv("RELIEF_DATA", str(tmp_path))
    monkeypatch.setenv("RELIEF_CACHE", str(tmp_path))
    grid = replace(tiny_grid(methods=("fedavg",)), datasets=("pamap2",))
    entries = Plan(kind="grid", out=tmp_path, name="tiny", title="", cells=cells_of(grid)).look()
    (estimate,) = estimates(entries, probe_missing(entries, one_each=True, say=lambda text: None)).values()
    assert estimate.seconds is None and estimate.origin == "unknown: dataset 'pamap2' not found"


@pytest.mark.parametrize(
    "setting",
    [
        "data.num_clients=20",
        "datasets=dsa_within",
        "data.stride_s=2.5",
        "data.max_windows_per_client=7",
        "training.batch_size=64",
        "training.epochs=2",
        "evaluation.every=2",
        "backbone.fusion=16",
    ],
)
def test_another_workload_is_timed_for_itself(setting):
    (cell,), (other,) = (cells_of(tiny_grid(methods=("fedavg",)), chosen) for chosen in ([], [setting]))
    assert workload(cell.config) != workload(other.config)


def test_what_costs_the_same_is_timed_once():
    same = ["seeds=[5]", "training.lr=0.1", "rounds=7", "fleet.gap=10", "folds=3"]
    held_out = replace(tiny_grid(methods=("fedavg",)), datasets=("dsa_mini_held_out",))
    (cell,), (other,) = (cells_of(held_out, chosen) for chosen in (["folds=0"], same))
    assert cell.hash != other.hash and workload(cell.config) == workload(other.config)


def test_the_first_method_does_not_pay_for_the_process(tmp_path, monkeypatch):
    timed = []
    monkeypatch.setattr("actors.grids.estimate.probe", lambda config: timed.append(config) or probe(config))
    timings = probe_missing(tiny_plan(tmp_path).look(), one_each=False, say=lambda text: None)
    cells = [c.config for c in tiny_plan(tmp_path).cells]
    assert timed == [shortened(cells[0]), *cells] and len(timings) == 2
    assert shortened(cells[0]).data.max_windows_per_client == 6


def test_a_round_that_takes_too_long_is_given_up_and_stays_unknown(tmp_path):
    entries = tiny_plan(tmp_path).look()
    probed = probe_missing(entries, one_each=True, say=lambda text: None, limit_s=0.01)
    assert {e.origin.removeprefix("as fedavg: ") for e in estimates(entries, probed).values()} == {
        "unknown: not timed within 0.01 s"
    }
    assert all(e.seconds is None for e in estimates(entries, probed).values())
    time.sleep(0.05)  # the alarm is off: nothing comes after the block


def test_an_alarm_that_a_callback_swallowed_comes_again_and_cleaning_up_is_left_alone(monkeypatch):
    """What is raised in a callback of the garbage collector is printed and lost."""
    # The next alarm may come while it is printed, which takes long where pytest does it.
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)
    swallowed, cleaned = [], []

    def callback(phase, info):
        if not swallowed:
            swallowed.append(phase)
            time.sleep(0.05)

    gc.callbacks.append(callback)
    try:
        with pytest.raises(TimeIsUp), time_limit(0.02):
            try:
                gc.collect()
                time.sleep(5.0)
            finally:
                time.sleep(0.2)
                cleaned.append(True)
    finally:
        gc.callbacks.remove(callback)
    assert swallowed and cleaned


def test_the_first_cell_is_begun_where_a_round_of_it_fits(tmp_path):
    entries = list(tiny_plan(tmp_path).look())
    known = {e.cell.name: Estimate(seconds=50.0, num_bytes=0, origin="", first_s=4.0) for e in entries}
    assert head_of(entries, known, 4.5) == entries[:1] and head_of(entries, known, 3.5) == []
    unknown = {e.cell.name: Estimate(seconds=None, num_bytes=None, origin="") for e in entries}
    assert head_of(entries, unknown, 99.0) == []


def test_a_budget_takes_the_first_cells_that_fit(tmp_path):
    entries = list(tiny_plan(tmp_path, seeds=(0, 1)).look())
    known = {
        e.cell.name: Estimate(seconds=s, num_bytes=0, origin="")
        for e, s in zip(entries, (5.0, 4.0, 2.0, None), strict=True)
    }
    assert fitting(entries, known, 4.9) == []
    assert fitting(entries, known, 9.0) == entries[:2]
    assert fitting(entries, known, 99.0) == entries[:3]


@pytest.mark.parametrize(("text", "seconds"), [("8h", 28800), ("90m", 5400), ("1.5s", 1.5)])
def test_budgets(text, seconds):
    assert Options(budget=text).budget_s == seconds


@pytest.mark.parametrize("text", ["8", "h", "", "-1h", "0s", "8 days", "nanh", "infh", "1_0h", "٣h", "1" * 400 + "h"])
def test_other_budgets_are_refused(text):
    with pytest.raises(UserError, match="expected a positive time such as 8h"):
        Options(budget=text)
