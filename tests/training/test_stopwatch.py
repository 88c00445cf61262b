"""Seconds by phase: a monotonic clock on the CPU, marks in the stream of a GPU."""

import pytest
import torch

from relief_ray.support.process import seconds_between
from relief_ray.training.local_step import Stopwatch


class Event:
    """CUDA's event on a stream that is moved by hand: recording waits for nothing, reading waits for the work."""

    now_ms, waited = 0.0, 0

    def __init__(self, enable_timing=False):
        assert enable_timing
        self.at_ms = None

    def record(self):
        self.at_ms = Event.now_ms

    def synchronize(self):
        Event.waited += 1

    def elapsed_time(self, other):
        return other.at_ms - self.at_ms


def test_phases_on_a_gpu_are_read_only_at_the_end(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    clock = Stopwatch(on_gpu=True)
    for _ in range(2):
        began = clock.read()
        Event.now_ms += 20.0
        forwarded = clock.add("forward", began)
        Event.now_ms += 30.0
        clock.add("backward", forwarded)
    assert Event.waited == 0 and clock.forward_s == 0.0
    times = clock.stage_times()
    assert (times.forward_s, times.backward_s, times.optimizer_s) == pytest.approx((0.04, 0.06, 0.0))
    assert Event.waited > 0 and clock.stage_times() == times, "counted once"


def test_phases_on_the_cpu_add_up(monkeypatch):
    now = iter([1.0, 3.0, 3.5])
    monkeypatch.setattr("relief_ray.support.process.perf_counter", lambda: next(now))
    clock = Stopwatch()
    clock.add("optimizer", clock.add("forward", clock.read()))
    assert (clock.forward_s, clock.optimizer_s) == (2.0, 0.5)


@pytest.mark.gpu
def test_marks_of_a_real_gpu_tell_the_time_of_its_work():
    from time import perf_counter

    x = torch.randn(2048, 2048, device="cuda")
    (x @ x).sum().item()
    clock, wall = Stopwatch(on_gpu=True), perf_counter()
    began = clock.read()
    for _ in range(20):
        x = x @ x / 2048
    ended = clock.add("forward", began)
    seconds = clock.stage_times().forward_s
    wall = perf_counter() - wall
    assert 0 < seconds <= wall * 1.05 and seconds == pytest.approx(seconds_between(began, ended))
    assert seconds_between(ended, began) < 0
