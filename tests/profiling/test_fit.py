"""From seconds back to the paces that made them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relief_ray.core.messages import StageTimes
from relief_ray.devices.workload import ADAM_FLOPS_PER_VALUE, Workload
from relief_ray.profiling.profile import LEAST_SHARE, TimedRound, fit_optimizer, line, pace

SECONDS = st.floats(1e-6, 1.0)


def turn(*, steps=2, tensors=1, values=100.0, forward_s=1.0, optimizer_s=1.0, wall_s=3.0):
    load = Workload(
        forward_flops=1.0, backward_flops=1.0, optimizer_flops=ADAM_FLOPS_PER_VALUE * values * steps, group_flops=1.0,
        bytes_up=0, bytes_down=0, num_steps=steps,
    )  # fmt: skip
    times = StageTimes(forward_s=forward_s, backward_s=1.0, optimizer_s=optimizer_s)
    return TimedRound(load=load, num_tensors=tensors, wall_s=wall_s, times=times, spans=())


@given(call_s=SECONDS, window_s=SECONDS, flops=st.floats(1.0, 1e9))
def test_two_batch_sizes_tell_a_call_from_a_window(call_s, window_s, flops):
    fitted = pace({rows: [call_s + rows * window_s] * 3 for rows in (4, 16, 32)}, flops)
    assert fitted.seconds(1, 32 * flops) == pytest.approx(call_s + 32 * window_s)
    if window_s > 2 * LEAST_SHARE * (call_s + 32 * window_s) / 32:
        assert fitted.call_s == pytest.approx(call_s, rel=1e-3, abs=1e-6 * window_s)
        assert flops / fitted.flops_per_s == pytest.approx(window_s, rel=1e-6)


@given(low_s=SECONDS, high_s=SECONDS)
def test_the_line_always_meets_the_largest_batch(low_s, high_s):
    assert pace({4: [low_s], 32: [high_s]}, 10.0).seconds(1, 320.0) == pytest.approx(high_s)


def test_one_batch_size_says_nothing_about_calls():
    assert pace({8: [4.0, 2.0, 3.0]}, 6.0).model_dump() == {"call_s": 0.0, "flops_per_s": 16.0}


def test_the_optimizers_seconds_are_separated():
    sizes = [(1, 10.0), (1, 1e4), (8, 10.0), (8, 1e5)]
    turns = [turn(tensors=t, values=v, optimizer_s=2 * (1e-5 + 2e-6 * t + 1e-9 * v)) for t, v in sizes]
    assert fit_optimizer(turns) == pytest.approx((1e-5, 2e-6, 1e-9))


def test_no_part_of_the_optimizer_runs_backwards():
    turns = [turn(tensors=t, optimizer_s=1e-3 / t) for t in (1, 2, 4)]
    assert min(fit_optimizer(turns)) >= 0.0


def test_seconds_per_step_and_per_round_are_separated():
    assert line({2: [1.0, 1.0], 8: [2.5]}) == pytest.approx((0.25, 0.5))
    assert line({2: [-1.0, -1.0], 8: [-2.0]}) == (0.0, 0.0)
