"""The figures that a monitor sees are those of the records."""

import json
import re
from pathlib import Path

import pytest

from actors.runtime.gauges import GAUGES, boards, cells_by_state, figures, num_stragglers
from relief_ray.config.experiment import parse
from relief_ray.experiment.experiment import Experiment
from relief_ray.experiment.lifecycle import create
from relief_ray.records.run_folder import read_rounds
from relief_ray.records.schema import PhysicalRecord, RoundRecord
from relief_ray.studies.loop import Loop
from relief_ray.studies.plan import keep_error
from relief_ray.studies.progress import Callback, Running, View
from relief_ray.training.executor import SerialExecutor
from tests.actors.grids.tiny_plans import tiny_plan

ROOT = Path(__file__).parents[3]
NAMES = {name for gauges in GAUGES.values() for name in gauges}

CONFIG = {
    "strategy": "fedavg",
    "rounds": 2,
    "data": {"name": "dsa_mini", "max_windows_per_client": 6},
    "training": {"epochs": 1},
    "backbone": {"conv1": 2, "conv2": 2, "steps": 4, "fusion": 8},
    "evaluation": {"every": 2},
    "costs": {"utilisation": 1e-7},
}


def test_figures_of_a_round(tmp_path):
    setup, folder = create(parse(CONFIG), tmp_path / "run")
    with folder:
        Experiment(setup=setup, folder=folder, executor=SerialExecutor(setup.job)).run()
    first, last = read_rounds(tmp_path / "run")
    of_runs = GAUGES["cell", "strategy", "dataset", "seed"]
    assert set(figures(last, "split_naive")) | {"wall_seconds", "host_peak_mib"} == set(of_runs)
    assert "f1" not in figures(first, "split_naive")
    gauges, totals = figures(last, "split_naive"), last.totals["split_naive"]
    assert (gauges["round"], gauges["f1"], gauges["energy_joules"]) == (2, last.metrics.f1, totals.energy_j)
    assert (gauges["bytes_up"], gauges["simulated_seconds"]) == (totals.bytes_up, totals.time_s)
    cost = last.costs["split_naive"]
    busy_s = sorted(cost.round_s - c.wait_s for c in cost.clients)
    median_s = (busy_s[3] + busy_s[4]) / 2
    assert num_stragglers(last, "split_naive") == sum(s > 2 * median_s for s in busy_s)
    # Compute dominates: the two Type-C clients take four times as long as the median, a Type-B one.
    assert gauges["stragglers"] == 2


def on_board(host, **told):
    return PhysicalRecord(host=host, device="cpu", **told)


@pytest.mark.parametrize(
    ("clients", "expected"),
    [
        ([], {}),
        ([on_board("pc")], {"pc": {}}),
        (
            [on_board("orin", call_s=4.0, energy_j=50.0, temperature_c=61.5, throttled=False)],
            {"orin": {"board_watts": 12.5, "board_celsius": 61.5, "board_throttled": 0.0}},
        ),
        # Two clients on one board, of which one was measured without energy; and another board.
        (
            [
                on_board("orin", call_s=2.0, energy_j=30.0, temperature_c=60.0, throttled=True),
                on_board("nano", call_s=2.0, energy_j=8.0),
                on_board("orin", call_s=2.0, temperature_c=64.0, throttled=False),
            ],
            {
                "orin": {"board_watts": 15.0, "board_celsius": 64.0, "board_throttled": 1.0},
                "nano": {"board_watts": 4.0},
            },
        ),
        ([on_board("orin", call_s=0.0, energy_j=1.0, temperature_c=-5.0)], {"orin": {"board_celsius": -5.0}}),
    ],
)
def test_figures_of_boards(clients, expected):
    assert boards(RoundRecord.model_construct(physical=dict(enumerate(clients)))) == expected


@pytest.mark.parametrize(
    ("done", "failed", "stopped", "running", "waiting"), [(0, 0, 0, 0, 12), (3, 1, 2, 4, 2), (12, 0, 0, 0, 0)]
)
def test_every_cell_of_a_grid_is_in_one_state(done, failed, stopped, running, waiting):
    cells = tuple(Running(title=str(i), num_rounds=0, num_planned=1, f1=None) for i in range(running))
    numbers = {"num_cells": 12, "num_done": done, "num_failed": failed, "num_stopped": stopped}
    view = View(**numbers, elapsed_s=0.0, left_s=None, running=cells, leaders=())
    states = {"done": done, "failed": failed, "stopped": stopped, "running": running, "waiting": waiting}
    assert cells_by_state(view) == states and sum(states.values()) == 12


def test_a_failed_cell_that_is_tried_again_counts_as_running(tmp_path):
    plan = tiny_plan(tmp_path / "grid").write()
    for state in plan.look():
        keep_error(state.folder, ValueError("no luck"))
    loop = Loop(plan, Callback(), plan.look())
    assert (loop.view().num_failed, len(loop.view().running)) == (2, 0)
    loop.begin(plan.cells[0].name)
    assert (loop.view().num_failed, len(loop.view().running)) == (1, 1)


def test_the_dashboard_shows_every_gauge_and_no_other():
    text = (ROOT / "cluster/monitoring/dashboard.json").read_text()
    assert json.loads(text)["panels"]
    assert set(re.findall(r"ray_relief_(\w+?)(?=[{,)])", text)) == NAMES


def test_the_page_has_every_gauge_and_its_labels():
    page = (ROOT / "docs/grids.md").read_text()
    rows = page.partition("| gauge |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`ray_relief_(\w+)`", rows)) == NAMES
    assert all(f"`{label}`" in page for labels in GAUGES for label in labels)
