"""Stage by stage: seconds that can be added up by hand, and what happens where a stage was never timed."""

from dataclasses import replace

import pytest
from pydantic import ValidationError

from relief_ray.devices.throughput import Overheads, Pace, StagePaces, Stagewise
from relief_ray.devices.time import Throughput
from relief_ray.devices.workload import ADAM_FLOPS_PER_VALUE, footprint, num_steps

OVERHEADS = Overheads(forward_step_s=0.1, backward_step_s=0.2, optimizer_step_s=0.3, round_s=1.0)


def paces(scale):
    return StagePaces(
        live=Pace(call_s=1.0 * scale, flops_per_s=10.0),
        frozen=Pace(call_s=2.0 * scale, flops_per_s=20.0),
        backward={"weights": Pace(call_s=3.0 * scale, flops_per_s=40.0), "both": Pace(flops_per_s=5.0)},
        optimizer=Pace(call_s=0.5, flops_per_s=ADAM_FLOPS_PER_VALUE),
    )


TIMED = Stagewise(overheads=OVERHEADS, chunk=4, stages={"enc": paces(1), "head": paces(2)})


def load(costs, trained, engine="reuse", n=10, epochs=2, batch=4):
    return footprint(costs, ("acc",), dict.fromkeys(trained, 1.0), engine, "zero_input").workload(
        num_windows=n, epochs=epochs, num_steps=num_steps(n, epochs, batch)
    )


def test_everything_by_hand(toy):
    forward_s, backward_s, optimizer_s = TIMED.seconds(load(toy.chain(), ["enc", "head"]))
    # 6 steps over 20 windows; enc 100 FLOPs forward, 80 of weights; head 10 forward, 8 + 9 of weights and input.
    assert forward_s == pytest.approx(1.0 + 6 * 0.1 + (6 * 1 + 20 * 100 / 10) + (6 * 2 + 20 * 10 / 10))
    assert backward_s == pytest.approx(6 * 0.2 + (6 * 3 + 20 * 80 / 40) + 20 * 17 / 5)
    assert optimizer_s == pytest.approx(6 * 0.3 + (6 * 0.5 + 6 * 4) + (6 * 0.5 + 6 * 2))


def test_extra_flops_run_at_the_rows_optimizer_speed(toy):
    row = Throughput(forward_flops_per_s=1.0, backward_flops_per_s=1.0, optimizer_flops_per_s=50.0, stagewise=TIMED)
    spent = load(toy.chain(), ["enc", "head"])
    forward_s, backward_s, optimizer_s = TIMED.seconds(spent)
    assert row.compute_s(replace(spent, extra_flops=100.0)) == pytest.approx((forward_s, backward_s, optimizer_s + 2.0))


def test_a_frozen_stage_runs_once_a_round_in_chunks(toy):
    forward_s, backward_s, _ = TIMED.seconds(load(toy.chain(), ["head"]))
    assert forward_s == pytest.approx(1.0 + 6 * 0.1 + (3 * 2 + 10 * 100 / 20) + (6 * 2 + 20 * 10 / 10))
    assert backward_s == pytest.approx(6 * 0.2 + (6 * 6 + 20 * 8 / 40))


def test_a_frozen_stage_of_the_naive_engine_runs_in_every_step(toy):
    forward_s, _, _ = TIMED.seconds(load(toy.chain(), ["head"], engine="naive"))
    assert forward_s == pytest.approx(1.0 + 6 * 0.1 + (6 * 2 + 20 * 100 / 20) + (6 * 2 + 20 * 10 / 10))


def test_micro_batches_cost_calls(toy):
    whole, parts = TIMED.model_copy(update={"micro_batch": 4}), TIMED.model_copy(update={"micro_batch": 3})
    spent = load(toy.chain(), ["enc", "head"], n=8)
    assert whole.seconds(spent) == TIMED.seconds(spent)
    # 4 steps of 4 windows, each 3 and 1: one call more per stage, forward (1 + 2 s) and backward (3 s).
    more = [b - a for a, b in zip(TIMED.seconds(spent), parts.seconds(spent), strict=True)]
    assert more == pytest.approx([4 * (1 + 2), 4 * 3, 0.0])


def test_where_nothing_is_trained_nothing_flows_back(toy):
    _, backward_s, optimizer_s = TIMED.seconds(load(toy.chain(), []))
    assert backward_s == 0.0 and optimizer_s == pytest.approx(6 * 0.3)


def test_a_mode_that_was_not_seen_takes_the_pace_of_one_that_was():
    only = StagePaces(frozen=Pace(flops_per_s=7.0), backward={"both": Pace(flops_per_s=3.0)})
    assert only.backward_of("weights") == only.backward_of("input") == Pace(flops_per_s=3.0)


def test_a_stage_that_was_never_timed_leaves_it_to_the_phases(toy):
    row = Throughput(
        forward_flops_per_s=1e2, backward_flops_per_s=2e2, optimizer_flops_per_s=5e2,
        stagewise=Stagewise(overheads=OVERHEADS, chunk=4, stages={"enc": paces(1)}),
    )  # fmt: skip
    full = load(toy.chain(), ["enc", "head"])
    assert row.stagewise is not None and row.stagewise.seconds(full) is None
    assert row.compute_s(full)[:2] == (full.forward_flops / 1e2, full.backward_flops / 2e2)
    known = row.model_copy(update={"stagewise": TIMED})
    assert known.compute_s(full) == TIMED.seconds(full)


@pytest.mark.parametrize(
    "values", [{"flops_per_s": 0.0}, {"flops_per_s": 1.0, "call_s": -1.0}, {"flops_per_s": "fast"}]
)
def test_impossible_paces_are_refused(values):
    with pytest.raises(ValidationError):
        Pace(**values)
