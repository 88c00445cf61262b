import torch

from benchmarks.engine.scenario import Scenario, setup, start_of, without_training, write
from relief_ray.core.federated import run_round
from relief_ray.experiment.setup import context_of
from relief_ray.records.checkpoint import CheckpointStateStore
from relief_ray.training.executor import SerialExecutor


def run_once(prepared):
    state = prepared.strategy.init(prepared.layout, prepared.fleet, prepared.streams, prepared.start)
    store = CheckpointStateStore({})
    return run_round(
        prepared.strategy, state, context_of(prepared, 1), SerialExecutor(prepared.job), store, prepared.accountant
    )


def test_without_training_every_weight_travels_and_none_changes(scenario):
    prepared = without_training(setup(scenario))
    result = run_once(prepared)
    assert torch.equal(prepared.layout.flatten(result.state.models["global"]), start_of(prepared))
    receipts = result.trained.reduced.receipts
    assert len(receipts) == scenario.num_clients
    assert all(r.work.num_steps == 0 and r.bytes_up > 4 * prepared.layout.numel for r in receipts)


def test_all_clients_have_equal_work(scenario):
    prepared = setup(scenario)
    assert {c.modalities for c in prepared.fleet.clients} == {scenario.spec.names}
    assert {len(w) for w in prepared.job.clients} == {scenario.num_windows}


def test_a_mixed_fleet_is_the_papers(tmp_path):
    mixed = write(Scenario(dataset="pamap2", num_clients=8, num_windows=2, folder=tmp_path, mixed=True), peers=False)
    assert "".join(c.device for c in setup(mixed).fleet.clients) == "AAABBBCC"


def test_dsa_has_its_own_shapes(tmp_path):
    scenario = write(Scenario(dataset="dsa", num_clients=2, num_windows=2, folder=tmp_path), peers=False)
    loaded = setup(scenario).job.clients[0].load()
    assert {m: x.shape for m, x in loaded.items()} == dict.fromkeys(("acc", "gyro", "mag"), (2, 15, 128))
