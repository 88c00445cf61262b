"""A data set out of arrays and a plain module on Ray: the bits of the loop in one process, whatever is killed."""

import os
import signal

import numpy as np
import pytest

import relief_ray as rr
from actors.runtime.single_run import Hooks, run_experiment
from relief_ray.config.experiment import parse
from relief_ray.experiment.lifecycle import create
from tests.actors.runtime.test_launch import AtFirstRound, results


def new_run(folder, name, mode):
    values = {
        "rounds": 60,
        "strategy": "fedavg",
        "data": {"name": name, "stride_s": 0.4},
        "training": {"epochs": 1},
        "backbone": "tests.nets:Tcn",
        "runtime": {"mode": mode, **({} if mode == "inline" else {"num_hosts": 1, "data": "ship"})},
    }
    setup, opened = create(parse(values), folder)
    opened.close()
    return setup


@pytest.mark.ci
@pytest.mark.ray
def test_a_packed_run_that_is_killed_goes_on_with_the_bits_of_an_inline_one(joined, tmp_path):
    labels = np.tile(np.repeat([1, 2, 3], 80), 4)
    signals = np.random.default_rng(0).normal(size=(len(labels), 3)) + labels[:, None]
    person = np.repeat([1, 2, 3, 4], 240)
    sensors = {"acc": slice(0, 2), "gyro": [2]}
    name = rr.dataset("ray", signals, labels, subject=person, rate_hz=10, sensors=sensors, window_s=0.8).spec.name
    here, there = tmp_path / "here", tmp_path / "there"
    assert run_experiment(new_run(here, name, "inline"), here).status == "done"
    kill = AtFirstRound(there, signal.SIGKILL)
    assert run_experiment(new_run(there, name, "packed"), there, Hooks(should_stop=kill)).status == "done"
    assert kill.pid not in (None, os.getpid()) and results(there) == results(here)
