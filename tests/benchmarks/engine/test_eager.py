import numpy as np
import torch

from benchmarks.engine.eager import EagerCnn, Sequential, load_client
from benchmarks.engine.product import deviation
from benchmarks.engine.scenario import setup, start_of
from relief_ray.experiment.experiment import run_round
from relief_ray.experiment.setup import context_of
from relief_ray.records.checkpoint import CheckpointStateStore
from relief_ray.training.executor import SerialExecutor


def test_the_plain_module_is_backbone_1(scenario):
    prepared = setup(scenario, engine="naive")
    backbone, model = prepared.job.build(), EagerCnn(scenario.task)
    model.load_flat(start_of(prepared))
    windows, _ = load_client(scenario.folder, 1)
    expected = backbone.forward(dict(zip(scenario.spec.names, windows, strict=True)))
    assert torch.allclose(model(*windows), expected, atol=1e-6)


def test_flat_is_the_inverse_of_load_flat(scenario):
    model = EagerCnn(scenario.task)
    flat = torch.arange(sum(p.numel() for p in model.parameters()), dtype=torch.float32)
    model.load_flat(flat)
    assert torch.equal(model.flat(), flat)


def test_one_round_equals_the_products(scenario):
    """The same windows in the same batches: otherwise the comparison would not be of equal work."""
    prepared = setup(scenario)
    state = prepared.strategy.init(prepared.layout, prepared.fleet, prepared.streams, prepared.start)
    result = run_round(
        prepared.strategy,
        state,
        context_of(prepared, 1),
        SerialExecutor(prepared.job),
        CheckpointStateStore({}),
        prepared.accountant,
    )
    oracle = Sequential(scenario.folder)
    oracle.step()
    after = prepared.layout.flatten(result.state.models["global"])
    assert deviation(after, oracle.flat, start_of(prepared)) < 1e-3
    assert not torch.equal(oracle.flat, start_of(prepared))


def test_clients_own_windows_are_what_the_product_loads(scenario):
    prepared = setup(scenario)
    windows, labels = load_client(scenario.folder, 2)
    loaded = prepared.job.clients[2].load()
    assert all(np.array_equal(x.numpy(), loaded[m]) for m, x in zip(scenario.spec.names, windows, strict=True))
    assert np.array_equal(labels.numpy(), prepared.job.clients[2].labels)
