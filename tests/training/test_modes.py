"""BatchNorm and dropout in local training: against plain PyTorch, by bits, and where running statistics go."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from relief_ray.core.client import ClientProgram, task_loss
from relief_ray.core.messages import Assignment, ClientInfo, EvalTarget, Fleet, WeightedSum
from relief_ray.core.streams import Streams
from relief_ray.models.modes import of_statistics, without_statistics
from relief_ray.server.aggregation import one_bucket, uniform
from relief_ray.server.reduction import blocks
from relief_ray.support.errors import UserError
from relief_ray.training.config import TrainerConfig
from relief_ray.training.executor import SerialExecutor, Worker
from relief_ray.training.inputs import prepare
from relief_ray.training.job import Job, combine
from relief_ray.training.optimizer import UpdateRule
from tests.nets import Attentive, Normed, NormedFusion, NormedShared
from tests.training.scenario import LR, SHAPE, TYPE_B, Scenario, batches, distance, drawn_windows, windows

ALL = SHAPE.modalities
BUILD = {"normed": Normed().build, "shared": NormedShared().build, "attentive": Attentive().build}
nets = pytest.mark.parametrize("name", BUILD)


def scenario(name="normed", engine="reuse", **settings):
    return Scenario(engine, backbone=BUILD[name](SHAPE, seed=5), **settings)


def hand_loop(net, seed, epochs, num):
    """The loop that one would write in plain PyTorch: training mode, Adam, cross-entropy."""
    raw, labels = windows(num)
    optimizer = torch.optim.Adam(net.parameters(), lr=LR, foreach=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net.train()
        for index in batches(num, epochs):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net({m: x[index] for m, x in raw.items()}), labels[index]).backward()
            optimizer.step()
    return net.eval()


def test_training_is_the_plain_loop_to_the_bit():
    """A user's own module, its own forward pass, torch's dropout and BatchNorm: parameters and running statistics."""
    inside = scenario("shared", "naive")
    update = inside.train(epochs=2, present=ALL)
    torch.manual_seed(5)
    net = NormedFusion(SHAPE.channels, SHAPE.num_classes)
    before = {n: p.detach().clone() for n, p in net.named_parameters()}
    seed = Streams(seed=0).torch("dropout", 1, 2).initial_seed()
    hand_loop(net, seed, epochs=2, num=45)
    moved = {n: p.detach() - before[n] for n, p in net.named_parameters()}
    names = {"fusion.B": "fusion", "head.1": "head", "encoder.acc.1": "encoders.acc", "encoder.hr.1": "encoders.hr"}
    for group, place in names.items():
        tensors = inside.backbone.layout.unflatten(group, update.delta[group])
        for name, delta in tensors.items():
            assert torch.equal(delta, moved[f"{place}.{name.removeprefix('fusion.')}"]), (group, name)
    statistics = of_statistics(update.state)
    assert torch.equal(statistics["statistics:fusion.fusion.0.running_var"], net.fusion[0].running_var)
    assert torch.equal(statistics["statistics:encoder.gyro.2.1.running_mean"], net.encoders["gyro"][5].running_mean)


@pytest.mark.ci
@nets
@pytest.mark.parametrize("missing", ["zero_input", "zero_feature"])
@pytest.mark.parametrize("groups", ["everything", "head"])
def test_reuse_computes_what_naive_computes(name, missing, groups):
    """Also where only the head learns: what varies runs in every step, and what absent sensors feed does not."""
    chosen = None if groups == "everything" else ("head.1",)
    # Not Adam: a bias before BatchNorm has no gradient but rounding, which Adam divides by its own size.
    settings = {"missing": missing, "rule": UpdateRule(name="sgd"), "lr": 0.1}
    expected, update = (scenario(name, e, **settings).train(chosen, epochs=3) for e in ("naive", "reuse"))
    assert distance(update, expected) < 1e-4
    for key, value in of_statistics(expected.state).items():
        torch.testing.assert_close(update.state[key], value, rtol=1e-3, atol=1e-4)


@pytest.mark.ci
@nets
def test_bits_depend_on_seed_round_and_client_alone(name):
    inside = scenario(name)
    first = inside.train(epochs=2)
    outside = torch.get_rng_state()
    torch.rand(7)
    inside.train(epochs=1, round_=2)
    again = inside.train(epochs=2)
    assert all(torch.equal(again.delta[j], x) for j, x in first.delta.items())
    torch.set_rng_state(outside)
    inside.train(epochs=2)
    assert torch.equal(torch.get_rng_state(), outside), "the global generator is left alone"
    others = [inside.train(epochs=2, **change) for change in ({"round_": 2}, {"id_": 3}, {"seed": 1})]
    assert all(not torch.equal(o.delta["head.1"], first.delta["head.1"]) for o in others)


def test_dropout_differs_between_steps_and_rounds():
    """The same windows in one batch: without dropout two rounds differ by their order of windows alone."""
    inside = scenario("attentive", batch=45)
    first, second = (inside.train(round_=r) for r in (1, 2))
    assert distance(second, first) > 1e-2


def test_statistics_go_from_round_to_round_and_nowhere_else():
    inside = scenario()
    first = inside.train()
    kept = of_statistics(first.state)
    assert len(kept) == 18 and all(name.startswith("statistics:encoder.") for name in kept)
    assert set(first.delta) == set(inside.backbone.layout.ids) and not first.receipt.stats
    layer = "statistics:encoder.acc.1.1"
    assert int(kept[f"{layer}.num_batches_tracked"]) == 3 and bool(kept[f"{layer}.running_mean"].any())
    second = inside.train(round_=2, state=first.state)
    assert int(second.state[f"{layer}.num_batches_tracked"]) == 6
    fresh = inside.train(round_=2)
    assert int(fresh.state[f"{layer}.num_batches_tracked"]) == 3
    assert all(torch.equal(second.delta[j], x) for j, x in fresh.delta.items()), "batches have statistics of their own"


def test_an_absent_sensor_has_no_statistics():
    inside = scenario(missing="zero_feature")
    update = inside.train()
    untouched = scenario().backbone.statistics.state()
    for name, value in of_statistics(update.state).items():
        assert torch.equal(value, untouched[name]) == ("encoder.hr." in name), name
    assert all(not update.delta[j].any() for j in ("encoder.hr.1", "encoder.hr.2", "fusion.A.hr"))


def sees_state(context, update):
    assert not of_statistics(context.state)
    return replace(update, state={"mine": torch.ones(1)})


def test_a_method_neither_sees_nor_loses_them():
    inside = scenario()
    first = inside.train()
    second = inside.train(
        round_=2, state={**first.state, "old": torch.ones(2)}, program=ClientProgram(after=sees_state)
    )
    assert set(without_statistics(second.state)) == {"mine"} and len(of_statistics(second.state)) == 18


def test_a_single_window_is_normalised_by_the_running_statistics():
    """33 windows by 16 leave one; batch norm has no statistics of one value."""
    inside = scenario("shared")
    update = inside.train(epochs=2, inputs=inside.inputs(ALL, num=33), present=ALL)
    assert all(bool(x.isfinite().all()) for x in update.delta.values())
    assert int(update.state["statistics:fusion.fusion.0.num_batches_tracked"]) == 4


def whole(step):
    """A mean over windows that does not say so: it needs the whole batch, and two passes where that is split."""
    return task_loss(step)


@pytest.mark.ci
def test_the_second_pass_drops_what_the_first_one_dropped():
    """Otherwise the gradient would belong to other masks than the loss; masks of a part are drawn as in one pass."""
    objectives = (task_loss, whole)
    updates = [scenario("attentive", micro_batch=4).train(program=ClientProgram(objective=o)) for o in objectives]
    assert distance(updates[1], updates[0]) < 1e-4


def test_batches_in_parts_are_refused_with_batch_norm():
    with pytest.raises(UserError, match=r"batches of 16 windows go through in parts of 4.*remove training.micro_batch"):
        scenario(micro_batch=4).train()


# Workers -----------------------------------------------------------------------------------------------------------

OWNED = (ALL, TYPE_B, ("acc",), ALL)
SIZES = (20, 17, 9, 12)


@pytest.fixture
def job(tmp_path):
    some = drawn_windows(tmp_path, mean=2.0, std=3.0)
    clients = tuple(
        ClientInfo(id=n, name=str(n), device="A", modalities=m, num_windows=SIZES[n]) for n, m in enumerate(OWNED)
    )
    return Job(
        build=partial(BUILD["normed"], SHAPE, 5),
        layout=BUILD["normed"](SHAPE, 5).layout,
        trainer=TrainerConfig(lr=1e-2, batch_size=8, missing="zero_feature", engine="reuse"),
        fleet=Fleet(clients=clients, modalities=ALL),
        clients=tuple(some(n) for n in SIZES),
        parts={"test": some(31)},
        program=ClientProgram(),
        reduction=WeightedSum(weight=uniform, bucket=one_bucket),
        streams=Streams(seed=4),
        calibration=some(40),
    )


def models(job):
    return {"global": job.build().params()}


def tasks_of(job):
    everything = job.build().layout.select()
    task = Assignment(client=0, down=everything, train=everything, up=everything, epochs=2)
    return [replace(task, client=c.id) for c in job.fleet.clients]


@pytest.mark.parametrize("stack", [1, 4])
def test_workers_of_any_number_have_the_same_bits(job, stack):
    """A stack is declined: each client's dropout and statistics are its own."""
    expected = SerialExecutor(job).train(1, models(job), tasks_of(job), {})
    stacked = replace(job, trainer=replace(job.trainer, stack=stack))
    results = [
        result
        for part in blocks(tasks_of(job))
        for result in Worker(stacked).train_blocks(1, models(job), [part], {})
    ]  # fmt: skip
    trained = combine(results)
    for j, total in expected.reduced.sums["global"].items():
        assert torch.equal(trained.reduced.sums["global"][j].plain, total.plain), j
    assert trained.states.keys() == expected.states.keys() == {0, 1, 2, 3}
    for client, state in expected.states.items():
        assert all(torch.equal(trained.states[client][name], x) for name, x in state.items())


def test_no_client_is_touched_by_another_s_statistics(job):
    kept = SerialExecutor(job).train(1, models(job), tasks_of(job), {}).states
    odd = {**kept, 0: {name: value + 7 for name, value in kept[0].items()}}
    plain, other = (SerialExecutor(job).train(2, models(job), tasks_of(job), s) for s in (kept, odd))
    for client in (1, 2, 3):
        assert all(torch.equal(other.states[client][n], x) for n, x in plain.states[client].items())
    for j, total in plain.reduced.sums["global"].items():
        assert torch.equal(other.reduced.sums["global"][j].plain, total.plain), j


def test_the_global_model_takes_the_calibration_windows_statistics(job):
    """By hand: mean and unbiased variance of the first convolution's outputs over these windows; no client's count."""
    kept = SerialExecutor(job).train(1, models(job), tasks_of(job), {}).states
    worker, theta = Worker(job), models(job)
    targets = (EvalTarget(label="global"), EvalTarget(label="client.0", client=0, modalities=ALL))
    worker.evaluate(theta, targets[:1], kept, "test")
    backbone, statistics = worker.backbone, worker.backbone.statistics.state()
    raw = prepare(job.calibration, ALL, backbone).inputs
    outputs = backbone.stages[0].module[0](raw["acc"][:])
    torch.testing.assert_close(statistics["statistics:encoder.acc.1.1.running_mean"], outputs.mean((0, 2)))
    torch.testing.assert_close(statistics["statistics:encoder.acc.1.1.running_var"], outputs.var((0, 2)))
    worker.evaluate(theta, targets, kept, "test")
    mine = worker.backbone.statistics.state()
    assert all(torch.equal(value, kept[0][name]) for name, value in mine.items()), "a client's model has its own"


def test_shares_of_an_evaluation_add_up(job):
    kept = dict(SerialExecutor(job).train(1, models(job), tasks_of(job), {}).states)
    kept[3] = {name: value - 3 if name.endswith("mean") else value for name, value in kept[3].items()}
    targets = [EvalTarget(label="global"), *(EvalTarget(label=f"c{c}", client=c, modalities=ALL) for c in (0, 3))]
    whole = Worker(job).evaluate(models(job), targets, kept, "test")
    parts = [Worker(job).evaluate(models(job), targets[::-1], kept, "test", (i, 3)) for i in range(3)]
    assert all(torch.equal(sum(p[label] for p in parts), counts) for label, counts in whole.items())
    assert not torch.equal(whole["c0"], whole["c3"]), "equal parameters, each with statistics of its own"
