import pytest
import torch

from benchmarks.engine import gpu
from benchmarks.engine.page_rounds import gpu as section


@pytest.mark.ci
def test_the_same_code_runs_on_any_device(scenario):
    figures = gpu.on_device(scenario, torch.device("cpu"), 1, 64)
    assert {"gpu_name", *figures} == set(gpu.KEYS) and all(value >= 0 for value in figures.values())
    by_way_of_single = figures["gpu_single_vs_eager"] * figures["gpu_stacked_vs_single"]
    assert 0.5 < by_way_of_single / figures["gpu_stacked_vs_eager"] < 2.0, "of each the first is so much faster"
    assert figures["gpu_table_1_h"] == pytest.approx(13_200 * 76_000 / figures["gpu_stacked_samples_per_s"] / 3600)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_every_figure_is_null_and_the_page_says_so(scenario):
    figures = gpu.measure(scenario, 1)
    assert figures == dict.fromkeys(gpu.KEYS)
    assert "There was no CUDA device" in section(figures)


def test_a_device_is_named():
    numbers = dict(zip(gpu.KEYS[1:], (5, 512, 5, 1e5, 9e3, 1.8e4, 1.5e5, 0.02, 2.0, 16.5, 8.25, 0.31), strict=True))
    text = section({"gpu_name": "X1", **numbers})
    assert text.startswith("## GPU\n\nX1: ") and "0.31 h" in text and "16.5 and 8.25 times" in text
    assert "There was no CUDA device" not in text
