"""A profile of this machine predicts the seconds of a real local round: other data, sizes and groups than it timed."""

import os
from statistics import median

import pytest

from relief_ray.config.experiment import parse
from relief_ray.core.messages import Assignment
from relief_ray.devices.time import MeasuredClock
from relief_ray.experiment.setup import prepare
from relief_ray.profiling.profile import Profiler
from relief_ray.training.executor import SerialExecutor

VALUES = {"data": {"name": "dsa_mini", "stride_s": 5.0}}  # the usual Backbone 1
LIMIT, TURNS = 0.15, 5


def tasks_of(setup):
    """FedAvg's task of a client with all sensors, and one that trains its fusion block and head alone."""
    layout, client = setup.layout, setup.fleet.clients[0]
    everything = layout.select(layout.accessible(client.modalities))
    few = layout.select([j for j in everything if j.startswith(("fusion", "head"))])
    return [
        Assignment(client=client.id, down=layout.select(), train=chosen, up=chosen, epochs=epochs)
        for chosen, epochs in ((everything, 2), (few, 3))
    ]


def ratios(setup, profiler):
    """Predicted over measured seconds by task; profile and rounds alternate, so that load hits both."""
    executor, tasks = SerialExecutor(setup.job), tasks_of(setup)
    measured = {i: [] for i in range(len(tasks))}
    models = {"global": setup.start}
    for turn in range(TURNS + 1):
        profiler.turn()
        for i, task in enumerate(tasks):
            (receipt,) = executor.train(1, models, [task], {}).reduced.receipts
            if turn:  # the first one fills caches
                measured[i].append(receipt.work.measured.compute_s)
    clock = MeasuredClock(profile=profiler.profile(("A",)))
    loads = [setup.planner.load(task.client, task) for task in tasks]
    return [clock.times(setup.types["A"], load).compute_s / median(measured[i]) for i, load in enumerate(loads)]


@pytest.mark.slow
def test_a_profile_predicts_a_local_round_within_15_percent(run_cache):
    if (load := os.getloadavg()[0]) > (os.cpu_count() or 1):
        pytest.skip(f"a load of {load:.0f}: other processes take this one's time, nothing can be timed")
    config = parse({**VALUES, "runtime": {"mode": "inline"}})
    setup = prepare(config)
    found = ratios(setup, Profiler(config))
    print("predicted / measured:", [f"{ratio:.3f}" for ratio in found])
    assert all(abs(ratio - 1.0) <= LIMIT for ratio in found), found
