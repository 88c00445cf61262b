"""The figures that a monitor sees are those of the records."""

import json
import re
from pathlib import Path

from actors.runtime.coordinator import FIGURES, figures, num_stragglers
from relief_ray.config.experiment import parse
from relief_ray.experiment.experiment import Experiment
from relief_ray.experiment.lifecycle import create
from relief_ray.records.run_folder import read_rounds
from relief_ray.training.executor import SerialExecutor

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
    assert set(figures(last, "split_naive")) | {"wall_seconds", "host_peak_mib"} == set(FIGURES)
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


def test_the_dashboard_shows_every_gauge_and_no_other():
    text = (Path(__file__).parents[3] / "cluster/grafana-dashboard.json").read_text()
    assert json.loads(text)["panels"]
    assert set(re.findall(r"ray_relief_(\w+?)(?=[{,])", text)) == set(FIGURES)
