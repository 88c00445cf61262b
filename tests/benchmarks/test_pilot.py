"""The benchmark of Pilot's server step: both ways give the same, and every figure is there."""

import pytest

from benchmarks import pilot
from relief_ray.config.experiment import parse

SMALL = {
    "strategy": "pilot",
    "backbone": {"name": "cnn", "conv1": 2, "conv2": 2, "steps": 2, "fusion": 2},
    "data": {"name": "dsa_mini", "stride_s": 10.0},
    "runtime": {"mode": "inline"},
}


@pytest.mark.usefixtures("run_cache")
def test_both_ways_agree_and_every_figure_is_there():
    figures = pilot.measure(parse(SMALL), 2)
    assert figures["clients"] == 8 and figures["turns"] == 2 and figures["values"] > 0
    assert figures["distance_relative_difference"] < 1e-12 and figures["value_relative_difference"] < 1e-6
    assert all(figures[name] > 0 for name in ("before_s", "now_s", "ratio", "server_step_s"))
    assert all(figures[name] > 0 for name in ("before_processor_s", "now_processor_s", "processor_ratio"))


def test_the_command_asks_for_a_hundred_clients_by_default():
    assert pilot.config_of(100).data.num_clients == pilot.config_of(100).fleet.num_clients == 100
