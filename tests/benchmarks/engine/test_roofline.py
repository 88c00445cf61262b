import pytest

from benchmarks.engine.roofline import Fusion, Limits, full_load


def test_a_machine_without_limits_has_no_roof():
    """With infinite bandwidth the bound is arithmetic, with infinite arithmetic it is memory; both from counts."""
    fusion = Fusion(2, width=64)
    slow = fusion.figures(Limits(flops_per_s=1e6, memory_bytes_per_s=1e15, near_bytes_per_s=1e15), 3)
    assert slow["fusion_backward_limit"] == "arithmetic"
    assert slow["fusion_backward_bound_ms"] == pytest.approx(1e3 * 2 * 2 * 32 * 304 * 128 / 1e6)
    thin = fusion.figures(Limits(flops_per_s=1e15, memory_bytes_per_s=1e6, near_bytes_per_s=1e6), 3)
    assert thin["fusion_forward_limit"] == "memory"
    assert thin["fusion_adam_bound_ms"] == pytest.approx(1e3 * 7 * 4 * 304 * 128 / 1e6)


def test_full_training_is_counted_per_window_and_epoch(scenario):
    load = full_load(scenario)
    per_window = (load.forward_flops + load.backward_flops) / scenario.num_windows
    fusion = 3 * 2 * 304 * 4096
    assert fusion < per_window < 10 * fusion
