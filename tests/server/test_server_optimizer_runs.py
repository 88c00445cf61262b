"""The server's step in whole runs: what equals plain averaging, what nobody trained, copies of cluster models."""

from dataclasses import replace

import pytest
import torch

from relief_ray.core.messages import GroupSum, Reduced, ServerState
from relief_ray.experiment.lifecycle import reopen
from relief_ray.experiment.recording import binding_of
from relief_ray.experiment.setup import prepare
from relief_ray.records import checkpoint
from relief_ray.records.run_folder import read_rounds
from relief_ray.strategies.fedlease import averaged, clusters_of, exchange, experts_for
from relief_ray.strategies.harmony import members_of_clusters
from relief_ray.training.executor import SerialExecutor
from tests.conformance.cases import config_of, drive

pytestmark = pytest.mark.usefixtures("run_cache")


def finished(case, path, make=SerialExecutor, **changes):
    """The last state of a run, and its setup."""
    drive(config_of(case, **changes), path, make)
    setup, folder = reopen(path)
    point = checkpoint.load(path, binding_of(setup, folder.run))
    folder.close()
    return point.state, setup


@pytest.mark.ci
@pytest.mark.parametrize("case", ["fedavg", "relief", "fedsa_lora", "fedel", "helora", "fedlease"])
def test_fedavgm_without_momentum_is_plain_averaging_to_the_bit(case, tmp_path):
    neutral = {"optimizer": "fedavgm", "momentum": 0.0}
    (plain, _), (stepped, _) = (
        finished(case, tmp_path / name, server=server) for name, server in (("none", {}), ("fedavgm", neutral))
    )
    assert plain.models.keys() == stepped.models.keys()
    for name, theta in plain.models.items():
        assert all(torch.equal(value, stepped.models[name][j]) for j, value in theta.items()), name
    assert stepped.tensors.keys() > plain.tensors.keys()


class Watched(SerialExecutor):
    """Keeps the models that each round began with."""

    began = None

    def train(self, round_, models, tasks, states):
        type(self).began[round_] = models["global"]
        return super().train(round_, models, tasks, states)


def test_groups_that_nobody_trained_in_a_round_stay_where_they_were(tmp_path):
    """One participant a round: most groups rest in most rounds, whatever momentum they had."""
    Watched.began = {}
    last, _ = finished(
        "relief", tmp_path / "run", Watched, participation=0.1, rounds=5, server={"optimizer": "fedavgm"}
    )
    began, rested = {**Watched.began, 6: last.models["global"]}, 0
    for record in read_rounds(tmp_path / "run"):
        sent = {token.split("[")[0] for client in record.clients for token in client.uploaded}
        for j, value in began[record.round].items():
            is_same = torch.equal(value, began[record.round + 1][j])
            assert is_same == (j not in sent), (record.round, j)
            rested += is_same
    assert rested > 10


@pytest.mark.ci
@pytest.mark.parametrize("name", ["fedavgm", "fedyogi"])
def test_copies_of_experts_and_shared_encoders_move_as_their_originals(name, tmp_path):
    """Half of the clients a round, so that some clusters rest."""
    settings = {"rounds": 6, "participation": 0.5, "server": {"optimizer": name}}
    state, setup = finished("fedlease", tmp_path / "run", **settings)
    number = max(clusters_of(state)) + 1
    assert number > 1
    models = [state.models[f"cluster.{c}"] for c in range(number)]
    plain = setup.layout.select(g for g in setup.layout if g.role == "encoder")
    for j in plain:
        assert all(torch.equal(theta[j], models[0][j]) for theta in models), j
    again = exchange(experts_for(setup.config.strategy, setup.layout, setup.fleet), models)
    for c, theta in enumerate(models):
        assert all(torch.equal(value, theta[j]) for j, value in again[f"cluster.{c}"].items())


def test_what_one_cluster_sends_moves_its_copies_and_the_shared_encoders_everywhere():
    setup = prepare(config_of("fedlease"))
    layout, fleet, config = setup.layout, setup.fleet, setup.config.strategy
    experts = experts_for(config, layout, fleet)
    own, encoder = experts.groups(1)[0], next(g.id for g in layout if g.role == "encoder")
    clusters = torch.tensor([0] * 4 + [1] * (len(fleet) - 4))
    state = ServerState(models={"global": setup.start}, tensors={"cluster": clusters})
    part = GroupSum(weight=1.0, weighted=torch.zeros(1), plain=torch.zeros(1), sq_norm=0.0, members=(0,))
    reduced = Reduced(sums={"cluster.0": dict.fromkeys([own, encoder], part)}, receipts=())
    assert averaged(config, state, reduced, layout, fleet) == {
        "cluster.0": {own, encoder},
        "cluster.1": {experts.copy(2, own), encoder},
    }
    no_clusters = replace(state, tensors={"cluster": torch.full((len(fleet),), -1)})
    assert averaged(config, no_clusters, reduced, layout, fleet) == {}


def test_a_cluster_of_harmony_stands_for_its_clients():
    clusters = {"0": "cluster.0", "10": "cluster.1", "2": "cluster.1"}
    state = ServerState(
        models={name: {} for name in ("global", "cluster.0", "cluster.1")}, facts={"home": {}, "clusters": clusters}
    )
    assert members_of_clusters(state) == {"global": "global", "cluster.0": "clients 0", "cluster.1": "clients 2 10"}
