import torch

from benchmarks.engine.arithmetic import Arithmetic


def test_nothing_trained_is_no_difference():
    least = Arithmetic(torch.arange(5.0), 3)
    assert least.share() == 0.0 and not least._total.any()


def test_every_client_is_loaded_measured_and_added(monkeypatch):
    """A difference of 2 in each of five values, three times."""
    least = Arithmetic(torch.arange(5.0), 3)
    usual = torch.Tensor.copy_

    def trained(into, values):
        return usual(into, values + 2.0 if values is least._start else values)

    monkeypatch.setattr(torch.Tensor, "copy_", trained)
    assert least.share() == 3 * 5 * 4.0 and least._total.tolist() == [6.0] * 5
