"""What ``transfer`` changes of a run, and what it must not."""

import pytest
import torch

from relief_ray.config.experiment import parse
from relief_ray.core.codec import Broadcast
from relief_ray.core.federated import RoundVoid
from relief_ray.experiment.evaluation import evaluation_inputs
from relief_ray.experiment.lifecycle import reopen
from relief_ray.experiment.recording import binding_of
from relief_ray.experiment.setup import prepare
from relief_ray.records.checkpoint import generations, load, round_of
from relief_ray.records.run_folder import read_rounds, read_run
from relief_ray.strategies.relief.strategy import target_s
from relief_ray.support.errors import UserError
from tests.conformance.cases import BASE, MOMENT, config_of, drive

REACHABLE = {"download": "reachable"}
FLOPS = {"planning_time": "flop_proportional"}


def rounds_of(folder, **sections):
    drive(parse({**BASE, **sections}), folder)
    return list(read_rounds(folder))


@pytest.mark.parametrize("engine", ["reuse", "gemm", "auto"])
@pytest.mark.parametrize("missing", ["zero_input", "zero_feature"])
def test_a_client_that_receives_what_it_reaches_trains_as_if_it_had_the_whole_model(tmp_path, engine, missing):
    training = {"epochs": 1, "lr": 0.01, "engine": engine, "missing": missing}
    runs = [
        rounds_of(tmp_path / name, strategy="v1", training=training, transfer=transfer)
        for name, transfer in (("whole", {}), ("reachable", REACHABLE))
    ]
    whole, reachable = runs
    assert [r.model_sha256 for r in whole] == [r.model_sha256 for r in reachable]
    assert_less_comes_down(whole, reachable)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("backbone", [pytest.param("tests.nets:Attentive", marks=pytest.mark.ci), "tests.nets:Tcn"])
def test_so_it_does_on_a_users_module(tmp_path, optimizer, backbone):
    training = {"epochs": 1, "lr": 0.01, "optimizer": optimizer}
    runs = [
        rounds_of(tmp_path / name, strategy="v1", training=training, transfer=transfer, backbone=backbone)
        for name, transfer in (("whole", {}), ("reachable", REACHABLE))
    ]
    assert [r.model_sha256 for r in runs[0]] == [r.model_sha256 for r in runs[1]]


@pytest.mark.moment
@pytest.mark.usefixtures("run_cache")
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_so_it_does_on_backbone_2(tmp_path, optimizer):
    sections = MOMENT | {"training": {"epochs": 1, "lr": 0.01, "batch_size": 3, "optimizer": optimizer}}
    whole, reachable = (
        rounds_of(tmp_path / name, strategy="v1", **sections, transfer=transfer)
        for name, transfer in (("whole", {}), ("reachable", REACHABLE))
    )
    assert [r.model_sha256 for r in whole] == [r.model_sha256 for r in reachable]
    assert_less_comes_down(whole, reachable)


def assert_less_comes_down(whole, reachable):
    """Clients with every sensor receive the same, others less; what goes up is the same."""
    for one, other in zip(whole[-1].clients, reachable[-1].clients, strict=True):
        assert one.bytes_up == other.bytes_up and one.bytes_down >= other.bytes_down
    assert sum(c.bytes_down for c in reachable[-1].clients) < 0.95 * sum(c.bytes_down for c in whole[-1].clients)


def test_harmony_receives_what_it_reaches_already(tmp_path):
    runs = [rounds_of(tmp_path / n, strategy="harmony", transfer=t) for n, t in (("a", {}), ("b", REACHABLE))]
    assert [(r.model_sha256, r.clients[-1].bytes_down) for r in runs[0]] == [
        (r.model_sha256, r.clients[-1].bytes_down) for r in runs[1]
    ]


@pytest.mark.parametrize("stack", [1, 2])
def test_what_is_priced_is_what_is_charged(tmp_path, stack):
    transfer = {"up": "int8", "down": "float16", **REACHABLE}
    sections = {"strategy": "v1", "transfer": transfer, "training": {**BASE["training"], "stack": stack}}
    setup = prepare(parse({**BASE, **sections}))
    first = rounds_of(tmp_path, **sections)[0]
    context = setup.context()
    for task, client in zip(setup.strategy.allocate(None, context), first.clients, strict=True):
        assert context.planner.nbytes(task.client, task) == (client.bytes_down, client.bytes_up)


def test_a_whole_model_costs_the_same_whatever_clients_receive():
    """FedAvg's round by every clock, and T*, whose ``T_o`` is the link's time of the whole model."""
    whole, reachable = (
        prepare(parse({**BASE, "strategy": "relief", "costs": FLOPS, "transfer": transfer}))
        for transfer in ({}, REACHABLE)
    )
    assert whole.fedavg_reference() == reachable.fedavg_reference()
    assert target_s(whole.config.strategy, whole.context()) == target_s(reachable.config.strategy, reachable.context())


def test_what_the_tables_charge_is_the_same_whatever_clients_receive(tmp_path):
    runs = [
        rounds_of(tmp_path / name, strategy="harmony", costs={"accounting": "table"}, transfer=transfer)
        for name, transfer in (("whole", {}), ("reachable", REACHABLE))
    ]
    assert [r.costs for r in runs[0]] == [r.costs for r in runs[1]]


def test_models_are_tested_as_clients_receive_them_and_kept_as_they_are(run_with_formats):
    setup, state = run_with_formats
    theta = state.models["global"]
    tested = evaluation_inputs(setup, state, {}).models["global"]
    expected = Broadcast(layout=setup.layout, form="bfloat16")({"global": theta})["global"]
    assert all(torch.equal(tested[j], expected[j]) for j in theta)
    assert any(not torch.equal(tested[j], theta[j]) for j in theta), "the server's own model is not rounded"


@pytest.fixture
def run_with_formats(tmp_path):
    drive(config_of("v1, int8 up, bfloat16 down, reachable"), tmp_path)
    setup, folder = reopen(tmp_path)
    folder.close()
    point = load(tmp_path, binding_of(setup, read_run(tmp_path)), max(map(round_of, generations(tmp_path))))
    return setup, point.state


@pytest.mark.parametrize("preset", ["fedavg", "fedprox", "fedel", "local", "fedlease"])
def test_a_method_that_trains_everything_refuses_to_receive_less(preset):
    with pytest.raises(UserError, match=f"transfer.download = 'reachable' with strategy {preset}: .* expected 'whole'"):
        parse({**BASE, "strategy": preset, "transfer": REACHABLE})


def test_statistics_of_absent_networks_cannot_be_replaced_by_a_row():
    config = parse({**BASE, "strategy": "relief", "backbone": "tests.nets:Normed", "transfer": REACHABLE})
    with pytest.raises(UserError, match=r"transfer\.download = 'reachable' with training\.missing = 'zero_input'"):
        prepare(config)


def test_an_update_beyond_its_format_is_refused_with_client_group_and_value(tmp_path):
    huge = {"optimizer": "sgd", "lr": 3e6, "epochs": 1}
    with pytest.raises(RoundVoid, match=r"group '[\w.]+': -?[\d.e+]+ is beyond float16, whose largest value is 65504"):
        drive(parse({**BASE, "training": huge, "transfer": {"up": "float16"}}), tmp_path)
