import torch

from benchmarks.engine import plain_ray
from benchmarks.engine.plain_ray import Arithmetic


def test_nothing_trained_is_no_difference():
    least = Arithmetic(5)
    assert least.share(torch.arange(5.0), 3) == 0.0 and not least.total.any()


def test_every_client_is_loaded_measured_and_added(monkeypatch):
    """A difference of 2 in each of five values, three times; in pieces of two values."""
    monkeypatch.setattr(plain_ray, "CHUNK", 2)
    usual = Arithmetic.load
    monkeypatch.setattr(Arithmetic, "load", lambda self, start: usual(self, start + 2.0))
    least = Arithmetic(5)
    for _ in range(2):
        assert least.share(torch.arange(5.0), 3) == 3 * 5 * 4.0 and least.total.tolist() == [6.0] * 5
