"""From a configuration to a run that is ready to start, and every way in which it cannot be."""

import json
from dataclasses import replace

import pytest
import torch

from relief_ray.config.experiment import parse
from relief_ray.core.codec import encoded_nbytes
from relief_ray.experiment.setup import choose_engine, context_of, deadline_s, input_shape, prepare, subject_names
from relief_ray.studies.what_if import price_fleet
from relief_ray.support.errors import UserError
from tests.conformance.cases import BASE, FAST_LINK, config_of

pytestmark = pytest.mark.usefixtures("run_cache")


def prepared(**changes):
    return prepare(parse({**BASE, **changes}))


@pytest.fixture(scope="module")
def relief(run_cache):
    return prepare(config_of("relief"))


def test_everything_speaks_of_the_same_clients(relief):
    assert len(relief.fleet) == len(relief.data.clients) == len(relief.job.clients) == 8
    assert [c.num_windows for c in relief.fleet.clients] == [len(w) for w in relief.data.clients]
    assert [c.device for c in relief.fleet.clients] == list("AAABBBCC")
    assert relief.fleet.rare() == relief.rare == ("mag",)
    assert relief.job.fleet is relief.fleet is relief.planner.fleet


def test_the_backbone_fits_the_data(relief):
    shape = input_shape(relief.data.spec)
    assert shape.modalities == relief.fleet.modalities == ("acc", "gyro", "mag")
    assert shape.num_classes == len(relief.data.spec.classes)
    backbone = relief.job.build()
    assert backbone.layout.ids == relief.layout.ids
    assert all(torch.equal(theta, relief.start[j]) for j, theta in backbone.params().items())


def test_the_seed_decides_the_initial_model_and_the_strategy_does_not(relief):
    same, other = prepared(strategy="fedavg"), prepared(strategy="relief", seed=1)
    assert all(torch.equal(theta, same.start[j]) for j, theta in relief.start.items())
    assert not any(torch.equal(theta, other.start[j]) for j, theta in relief.start.items())


def test_the_length_of_windows_reaches_backbone_costs_and_data(relief):
    """Half the samples: half the FLOPs of a convolution; what follows the pooling costs what it did."""
    short = prepare(config_of("relief", data={**BASE["data"], "window_s": 2.56}))
    assert (input_shape(relief.data.spec).window, input_shape(short.data.spec).window) == (128, 64)
    assert short.job.clients[0].take([0]).load()["acc"].shape == (1, 3, 64)
    usual, half = (s.planner.counter.costs.flops for s in (relief, short))
    assert half["encoder.acc.1"].forward_flops == usual["encoder.acc.1"].forward_flops / 2
    assert half["head"] == usual["head"]
    hardware = price_fleet(short.config, [c.num_windows for c in short.fleet.clients], short.engine)
    assert hardware.planner.counter.costs.flops == half, "what-if and `fleet show` price the same model"
    assert short.data.digest != relief.data.digest and short.config.identity() != relief.config.identity()


@pytest.mark.parametrize(
    ("chosen", "engine"),
    [
        ({"engine": "auto"}, "fused"),
        ({"engine": "naive"}, "naive"),
        ({"engine": "reuse"}, "reuse"),
        ({"engine": "gemm"}, "gemm"),
        ({"engine": "auto", "stack": 2}, "gemm"),
        ({"engine": "auto", "device": "cuda"}, "gemm"),
        ({"engine": "auto", "autocast": "bf16"}, "gemm"),
    ],
)
def test_the_engine_is_a_static_rule(chosen, engine):
    assert choose_engine(parse({"training": chosen})) == engine


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"stack": 2}, "expected training.autocast=none and training.stack=1"),
        ({"autocast": "bf16"}, "expected training.autocast=none and training.stack=1"),
        ({"device": "cuda"}, "expected training.device=cpu, found cuda"),
    ],
)
def test_kernels_for_one_client_on_a_cpu_are_refused_elsewhere(other, why):
    with pytest.raises(UserError, match=rf"training.engine = 'fused': .*{why}.*; take 'auto'"):
        choose_engine(parse({"training": {"engine": "fused", **other}}))


def test_gemm_is_refused_where_there_is_none():
    values = {"backbone": {"name": "moment_lora", "size": "tiny"}, "training": {"engine": "gemm"}}
    with pytest.raises(UserError, match=r"training.engine = 'gemm': backbone moment_lora has no stages for it"):
        prepared(**values)
    assert choose_engine(parse({"backbone": values["backbone"]})) == "reuse"


def test_a_given_engine_wins_over_the_rule():
    setup = prepare(config_of("relief"), engine="naive")
    assert setup.engine == setup.job.trainer.engine == "naive"
    values = torch.randn(2, 3, 16)
    assert setup.job.build().prepare("acc", values) is values, "naive reads windows as they are"


def test_a_round_uses_the_clients_it_is_given(relief):
    some = relief.fleet.clients[2:4]
    assert context_of(relief, 3).participants == relief.fleet.clients
    assert context_of(relief, 3, some).participants == some and context_of(relief, 3, ()).participants == ()


def test_the_deadline_is_reliefs_alone():
    assert deadline_s(prepared(strategy="fedavg")) is None
    assert deadline_s(prepared(strategy="v1")) is None, "V1 trains everything it can reach"
    assert deadline_s(prepared(strategy={"name": "relief", "deadline_s": 7.5})) == 7.5


def test_the_deadline_as_a_share_of_fedavgs_slowest_client(relief):
    slowest = relief.reference[relief.config.costs.planning_time].round_s
    assert deadline_s(relief) == pytest.approx(0.3 * slowest)


def test_the_least_deadline_within_time_is_the_slowest_mandatory_set():
    setup = prepared(strategy={"name": "relief", "fill": "time"})
    context, times = context_of(setup, 1), []
    for client in context.participants:
        chosen = setup.layout.select(setup.layout.mandatory(client.modalities))
        (task,) = prepared_task(setup, client, chosen)
        times.append(setup.planner.times(client.id, task).busy_s)
    assert deadline_s(setup) == pytest.approx(max(times), rel=1e-12)


def prepared_task(setup, client, chosen):
    """The client's own assignment with another choice of groups."""
    tasks = setup.strategy.allocate(setup_state(setup), context_of(setup, 1, (client,)))
    return [replace(task, train=chosen, up=chosen) for task in tasks]


def setup_state(setup):
    return setup.strategy.init(setup.layout, setup.fleet, setup.streams, setup.start)


def test_pooled_data_are_one_client_with_all_sensors():
    setup, whole = prepared(strategy="central"), prepared(strategy="fedavg")
    assert len(setup.fleet) == len(setup.job.clients) == 1 and setup.fleet is setup.job.fleet is setup.planner.fleet
    assert setup.fleet[0].num_windows == sum(c.num_windows for c in whole.fleet.clients) == len(setup.job.clients[0])
    assert setup.fleet[0].modalities == whole.fleet.modalities and setup.rare == whole.rare


def test_every_standard_clock_has_its_fedavg_reference(relief):
    assert set(relief.reference) == set(relief.accountant.clocks) == {"flop_proportional", "split_naive", "split_reuse"}
    assert all(cost.round_s > 0.0 and cost.energy_j > 0.0 for cost in relief.reference.values())
    assert relief.planner.engine == "naive" and relief.accountant.counter.layout.ids == relief.layout.ids


def test_the_planner_prices_bytes_as_the_codec_counts_them(relief):
    everything = relief.layout.select()
    assert relief.accountant.counter.nbytes(everything) == encoded_nbytes(relief.layout, everything)


def test_the_clients_optimizer_is_charged_by_its_flops_in_fedavgs_round_too(relief):
    """SGD with momentum: 4 FLOPs per value and step, Adam: 12."""
    chosen = {"training": {"epochs": 1, "lr": 0.01, "optimizer": "sgd", "momentum": 0.9}}
    other, trained = prepared(strategy="relief", **chosen), relief.layout.select(["head.1", "fusion.B"])
    (task,) = prepared_task(relief, relief.fleet[0], trained)
    adam, sgd = (setup.planner.load(0, task) for setup in (relief, other))
    assert sgd.optimizer_flops == adam.optimizer_flops / 3 > 0
    assert (sgd.forward_flops, sgd.backward_flops) == (adam.forward_flops, adam.backward_flops)
    assert other.reference["split_naive"].round_s < relief.reference["split_naive"].round_s


def test_the_measured_clock_needs_a_profile():
    with pytest.raises(
        UserError, match=r"costs.planning_time = 'measured' needs a device profile; set costs.profile=FILE"
    ):
        prepared(costs={"planning_time": "measured"})


def test_a_given_utilisation_scales_computing_and_nothing_else():
    times = []
    for utilisation in (0.02, 0.01):
        setup = prepared(costs={"utilisation": utilisation})
        (task,) = prepared_task(setup, setup.fleet[7], setup.layout.select())
        times.append(setup.planner.times(7, task))
    fast, slow = times
    assert slow.compute_s == pytest.approx(2 * fast.compute_s) and slow.link_s == fast.link_s > 0.0


def test_parts_that_are_not_evaluated_are_not_sent():
    assert set(prepared().job.parts) == {"test"}
    both = prepared(evaluation={"parts": ["validation", "test"]})
    assert set(both.job.parts) == {"test", "validation"}


def test_tuning_cannot_open_the_test_part():
    config = parse({**BASE, "evaluation": {"parts": ["validation"]}})
    assert set(prepare(config, purpose="tune").job.parts) == {"validation"}
    with pytest.raises(UserError, match="the test part is closed"):
        prepare(parse(BASE), purpose="tune")


def test_subjects_are_named_as_the_dataset_names_them(relief):
    names = subject_names(relief, relief.data.test)
    assert names == [str(s) for s in relief.data.spec.subjects] and len(names) == 8


# Bad input -------------------------------------------------------------------------------------------------------

REFUSED = [
    ({"fleet": {"types": {"A": {"count": 0}}}}, r"no client owns modality 'mag' \(clients by sensor type: "),
    ({"fleet": {"types": {"C": {"sensors": []}}}}, "fleet.types.C.sensors is empty: a client needs at least one of"),
    ({"fleet": {"types": {"B": {"sensors": ["acc", "ecg"]}}}}, r"fleet.types.B.sensors names \['ecg'\], but"),
    ({"fleet": {"num_clients": 5}}, "fleet.num_clients = 5, but the data are cut for 8 clients"),
    ({"data": {"name": "dsa_mini", "stride_s": 60.0, "num_clients": 200}}, "no training window"),
    ({"costs": {"profile": "nowhere.json"}}, "nowhere.json"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=[json.dumps(c) for c, _ in REFUSED])
def test_what_cannot_be_run_is_refused_before_it_starts(changes, message):
    with pytest.raises(UserError, match=message):
        prepared(**changes)


def test_full_only_without_a_full_client_is_refused_when_it_allocates():
    types = {"A": {"sensors": ["acc", "gyro"], **FAST_LINK}, "B": {"sensors": ["gyro", "mag"]}}
    setup = prepared(strategy="full_only", fleet={"types": types})
    with pytest.raises(UserError, match="strategy full_only: no client of this fleet owns all modalities"):
        setup.strategy.allocate(setup_state(setup), context_of(setup, 1))
