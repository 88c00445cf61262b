"""A scenario of a few small clients, written once."""

import pytest
import torch

from benchmarks.engine.scenario import Scenario, write


@pytest.fixture(scope="session")
def scenario(tmp_path_factory):
    """Three clients with one and a half batches each, in PAMAP2's shapes."""
    folder = tmp_path_factory.mktemp("scenario")
    return write(Scenario(dataset="pamap2", num_clients=3, num_windows=48, folder=folder))


@pytest.fixture(autouse=True)
def one_thread():
    """As in every harness."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
