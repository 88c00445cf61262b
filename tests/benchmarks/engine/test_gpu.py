import pytest
import torch

from benchmarks.engine import gpu
from benchmarks.engine.page_rounds import gpu as section


def test_the_same_code_runs_on_any_device(scene):
    found = gpu.on_device(scene, torch.device("cpu"), 1, 64)
    assert {"gpu_name", *found} == set(gpu.KEYS) and all(value >= 0 for value in found.values())
    assert found["gpu_table_1_h"] == pytest.approx(13_200 * 76_000 / found["gpu_eager_samples_per_s"] / 3600)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_every_figure_is_null_and_the_page_says_so(scene):
    found = gpu.measure(scene, 1)
    assert found == dict.fromkeys(gpu.KEYS)
    assert "There was no CUDA device" in section(found)


def test_a_device_is_named():
    text = section(
        {"gpu_name": "X1", "gpu_gemm_peak_gflops_per_s": 1e5, "gpu_eager_samples_per_s": 9e3, "gpu_table_1_h": 31.0}
    )
    assert text.startswith("## GPU\n\nX1: ") and "31 h" in text and "CUDA" not in text
