import pytest
import torch

from benchmarks.engine.product import deviation


def test_deviation_is_relative_to_the_update():
    start, expected = torch.tensor([10.0, 10.0]), torch.tensor([10.0, 12.0])
    assert deviation(torch.tensor([10.0, 12.2]), expected, start) == pytest.approx(0.1, abs=1e-6)
    assert deviation(expected, expected, start) == 0.0
