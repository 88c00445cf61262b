from dataclasses import replace

import pytest

from benchmarks.engine.local import Local, make_backbone, make_client
from benchmarks.engine.predict import ASSIGNMENTS, PRESENT, WHOLE, bills, compare, spread
from benchmarks.engine.scenario import setup
from relief_ray.core.messages import StageTimes
from relief_ray.devices.fleet import TERA
from relief_ray.devices.time import Throughput
from relief_ray.devices.workload import footprint, num_steps, shares

ROW = Throughput(forward_flops_per_s=1e9, backward_flops_per_s=2e9, optimizer_flops_per_s=5e8)


@pytest.fixture(scope="module", params=["naive", "gemm"])
def billed(scenario, request):
    prepared = setup(scenario, engine=request.param)
    local = Local(make_client(scenario, PRESENT), make_backbone(scenario, request.param), request.param)
    seen = {name: [local.train(groups).receipt] for name, groups in ASSIGNMENTS.items()}
    return scenario, prepared, seen, bills(prepared, scenario.num_windows, seen, ROW)


def test_bills_are_the_counted_flops_of_each_phase(billed):
    """Recounted by hand with the engine that ran, through the same sensors and missing mode."""
    scenario, prepared, _, bills = billed
    for name, groups in ASSIGNMENTS.items():
        load = footprint(
            prepared.accountant.counter.costs,
            PRESENT,
            shares(prepared.layout, prepared.layout.select(groups)),
            "naive" if prepared.engine == "naive" else "reuse",
            prepared.config.training.missing,
        ).workload(
            num_windows=scenario.num_windows,
            epochs=scenario.epochs,
            num_steps=num_steps(scenario.num_windows, scenario.epochs, scenario.task.batch_size),
        )
        split, measured = bills[name].split, bills[name].measured
        assert split.forward_s == pytest.approx(load.forward_flops / TERA)
        assert split.backward_s == pytest.approx(load.backward_flops / TERA)
        assert split.optimizer_s == pytest.approx(load.optimizer_flops / TERA)
        assert (measured.forward_s, measured.backward_s) == pytest.approx(
            (load.forward_flops / 1e9, load.backward_flops / 2e9)
        )


def test_less_to_train_is_predicted_faster(billed):
    seconds = {name: bill.split.compute_s for name, bill in billed[3].items()}
    assert seconds["head"] < seconds["blocks"] < seconds["blocks_upper_layer"] < seconds[WHOLE]


def test_ratios_are_medians_of_the_turns(billed):
    """The machine is ten times slower in the second turn and the first row is what split was fitted to."""
    bills = billed[3]
    seen = {name: [timed(receipts[0], factor) for factor in (1, 10, 2)] for name, receipts in billed[2].items()}
    figures = compare("p", seen, bills)
    assert figures[f"p_{WHOLE}_split_ratio"] == pytest.approx(1.0)
    head = figures["p_head_split_ratio"]
    assert head == pytest.approx(bills["head"].split.compute_s / bills[WHOLE].split.compute_s)
    assert figures["p_head_compute_s"] == pytest.approx(2.0 * 3.5)
    assert figures["p_head_measured_ratio"] == pytest.approx(bills["head"].measured.compute_s / 7.0)


def timed(receipt, factor):
    """The same work, measured as 3.5 seconds times ``factor``."""
    seen = StageTimes(forward_s=1.0 * factor, backward_s=2.0 * factor, optimizer_s=0.5 * factor)
    return replace(receipt, work=replace(receipt.work, measured=seen))


def test_spread():
    assert spread([3.0]) == 0.0
    assert spread([1.0, 2.0, 3.0]) == pytest.approx(0.5)
