from contextlib import closing
from multiprocessing import Pipe

import pytest
import torch

from benchmarks.engine import torch_pool
from benchmarks.engine.eager import Sequential
from benchmarks.engine.torch_pool import TorchPool, split


@pytest.mark.slow
def test_two_processes_compute_what_one_does(scenario):
    oracle = Sequential(scenario.folder)
    with closing(TorchPool(scenario.folder)) as pool:
        for _ in range(2):
            oracle.step()
            pool.step()
        assert torch.allclose(pool.flat, oracle.flat, atol=1e-6)


def test_a_child_keeps_freed_memory_as_our_processes_do(scenario, monkeypatch):
    num_threads = []
    monkeypatch.setattr(torch_pool, "use_threads", num_threads.append)
    ours, theirs = Pipe()
    ours.send(None)
    nothing = torch.zeros(0)
    torch_pool.serve(torch_pool.Shared(folder=scenario.folder, clients=range(1), flat=nothing, total=nothing), theirs)
    assert num_threads == [1]


def test_every_client_is_given_out_once():
    dealt = split(101, 2)
    assert [n for part in dealt for n in part] == list(range(101))
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
