"""The local trainer against loops written out by hand, and what DESIGN promises about it."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from relief_ray.core.client import ClientProgram, task_loss
from relief_ray.core.codec import encode
from relief_ray.core.groups import Part
from relief_ray.core.streams import Streams
from relief_ray.training.config import Schedule
from relief_ray.training.inputs import ClientInputs
from relief_ray.training.optimizer import UpdateRule
from tests.training.scenario import (
    ABSENT,
    ASSIGNMENTS,
    BATCH,
    LR,
    NUM_WINDOWS,
    SHAPE,
    TINY,
    TYPE_B,
    Scenario,
    build,
    distance,
    precision,
    windows,
)

ENGINES = ("naive", "reuse", "gemm", "fused")
MISSING = ("zero_input", "zero_feature")
everywhere = pytest.mark.parametrize("engine", ENGINES)
in_both_modes = pytest.mark.parametrize("missing", MISSING)
for_every_assignment = pytest.mark.parametrize("groups", ASSIGNMENTS.values(), ids=list(ASSIGNMENTS))


def batches(num, epochs, seed=0, round_=1, id_=2):
    order = Streams(seed=seed).torch("batches", round_, id_)
    return [index for _ in range(epochs) for index in torch.randperm(num, generator=order).split(BATCH)]


# The oracle ------------------------------------------------------------------------------------------------------


def plain_loop(forward, parameters, raw, labels, epochs):
    """The loop one would write by hand: torch's Adam, cross-entropy, zeros for the sensor that is not there."""
    optimizer = torch.optim.Adam(parameters, lr=LR, foreach=False)
    for index in batches(len(labels), epochs):
        optimizer.zero_grad()
        seen = {m: x[index] if m in TYPE_B else torch.zeros_like(x[index]) for m, x in raw.items()}
        nn.functional.cross_entropy(forward(seen), labels[index]).backward()
        optimizer.step()


@for_every_assignment
def test_naive_is_the_plain_loop_to_the_bit(groups):
    scenario, oracle = Scenario("naive"), build()
    update = scenario.train(groups, epochs=2)
    before = oracle.params()
    chosen = oracle.layout.ids if groups is None else groups
    for j, parameters in oracle.parameters.items():
        for p in parameters:
            p.requires_grad_(j in chosen)
    plain_loop(oracle.forward, [p for j in chosen for p in oracle.parameters[j]], *windows(), epochs=2)
    after = oracle.params()
    for j in chosen:
        assert torch.equal(update.delta[j], after[j] - before[j]), j


class Plain(nn.Module):
    """The same function out of one fusion layer and torch's own modules, with features switched off where asked."""

    def __init__(self, params, layout, missing):
        super().__init__()
        self.missing = missing
        self.encoders = nn.ModuleDict()
        for modality, channels in SHAPE.channels:
            first, second = nn.Conv1d(channels, TINY.conv1, 5, 2, 2), nn.Conv1d(TINY.conv1, TINY.conv2, 5, 2, 2)
            for layer, conv in ((1, first), (2, second)):
                tensors = layout.unflatten(f"encoder.{modality}.{layer}", params[f"encoder.{modality}.{layer}"])
                conv.load_state_dict(tensors)
            pool = nn.AdaptiveAvgPool1d(TINY.steps)
            self.encoders[modality] = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), pool, nn.Flatten())
        columns = layout.matrix("fusion_a", params)
        self.fusion = nn.Linear(columns.shape[1], columns.shape[0])
        self.fusion.load_state_dict({"weight": columns, "bias": params["fusion.B"]})
        self.head = nn.Linear(TINY.fusion, SHAPE.num_classes)
        self.head.load_state_dict(layout.unflatten("head.1", params["head.1"]))

    def forward(self, raw):
        features = {m: encoder(raw[m]) for m, encoder in self.encoders.items()}
        if self.missing == "zero_feature":
            features = {m: h if m in TYPE_B else torch.zeros_like(h) for m, h in features.items()}
        return self.head(torch.relu(self.fusion(torch.cat(list(features.values()), 1))))


@everywhere
@in_both_modes
def test_every_engine_equals_an_independent_module_in_float64(engine, missing):
    scenario = Scenario(engine, missing, torch.float64)
    update = scenario.train(epochs=3)
    layout = scenario.backbone.layout
    raw, labels = windows()
    with precision(torch.float64):
        oracle = Plain(scenario.start, layout, missing)
        before = {name: p.detach().clone() for name, p in oracle.named_parameters()}
        plain_loop(oracle, list(oracle.parameters()), {m: x.double() for m, x in raw.items()}, labels, epochs=3)
    moved = {name: p.detach() - before[name] for name, p in oracle.named_parameters()}
    assert torch.allclose(layout.matrix("fusion_a", update.delta), moved["fusion.weight"], rtol=0, atol=1e-9)
    assert torch.allclose(update.delta["fusion.B"], moved["fusion.bias"], rtol=0, atol=1e-9)
    gyro = torch.cat([moved["encoders.gyro.2.weight"].flatten(), moved["encoders.gyro.2.bias"]])
    assert torch.allclose(update.delta["encoder.gyro.2"], gyro, rtol=0, atol=1e-9)
    absent = torch.cat([moved["encoders.hr.0.weight"].flatten(), moved["encoders.hr.0.bias"]])
    assert torch.allclose(update.delta["encoder.hr.1"], absent, rtol=0, atol=1e-9)


# Engines ---------------------------------------------------------------------------------------------------------


@for_every_assignment
@in_both_modes
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 1e-5)])
def test_reuse_changes_nothing(groups, missing, dtype, tolerance):
    """In float64 to rounding: what is reused is exact. In float32 an update may part further (4.5e-5 has been seen on
    long windows), as far as the plain loop itself parts from its float64 self: a ReLU on its kink falls on the other
    side, or Adam divides a gradient that is all rounding by its own size. On these data neither happens.
    """
    naive, reuse = (Scenario(engine, missing, dtype).train(groups, epochs=5) for engine in ("naive", "reuse"))
    if all(not d.any() for d in naive.delta.values()):
        assert all(not d.any() for d in reuse.delta.values())
    else:
        assert distance(reuse, naive) <= tolerance


@for_every_assignment
@in_both_modes
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 2e-3)])
def test_matrix_products_change_nothing_after_an_epoch(groups, missing, dtype, tolerance):
    naive, gemm = (Scenario(engine, missing, dtype).train(groups) for engine in ("naive", "gemm"))
    assert distance(gemm, naive) <= tolerance


@pytest.mark.slow
def test_engines_differ_in_float32_by_no_more_than_float32_from_float64():
    """Five epochs with many seeds: reuse is never much further from the truth than the plain loop."""
    for seed in range(20):
        raw, labels = windows(97, seed)

        def updates(dtype, raw=raw, labels=labels):
            results = []
            for engine in ("naive", "reuse"):
                scenario = Scenario(engine, "zero_input", dtype)
                inputs = {m: scenario.backbone.prepare(m, raw[m].to(dtype)) for m in TYPE_B}
                results.append(scenario.train(epochs=5, inputs=ClientInputs(inputs=inputs, labels=labels)))
            return results

        (naive, reuse), (truth, exact) = updates(torch.float32), updates(torch.float64)
        assert distance(exact, truth) <= 1e-11
        assert distance(reuse, truth) <= 10.0 * distance(naive, truth) + 1e-5


@everywhere
@in_both_modes
@for_every_assignment
def test_frozen_groups_keep_their_bits(engine, missing, groups):
    scenario = Scenario(engine, missing)
    scenario.train(groups, epochs=2)
    chosen = scenario.backbone.layout.ids if groups is None else groups
    for j, theta in scenario.backbone.params().items():
        if j not in chosen:
            assert torch.equal(theta, scenario.start[j]), j


@everywhere
def test_zero_feature_leaves_absent_groups_exactly_where_they_were(engine):
    delta = Scenario(engine, "zero_feature").train(epochs=3).delta
    assert all(torch.count_nonzero(delta[j]) == 0 for j in ABSENT)
    assert all(torch.count_nonzero(d) > 0 for j, d in delta.items() if j not in ABSENT)


@everywhere
def test_zero_input_trains_absent_groups_on_a_constant(engine):
    """Eq. (2)'s reading: the encoder still emits a constant, so its blocks learn a bias (Lemma 1's noise)."""
    scenario = Scenario(engine, "zero_input")
    delta = scenario.train().delta
    assert all(torch.count_nonzero(delta[j]) > 0 for j in ABSENT)
    kernels = scenario.backbone.layout.unflatten("encoder.hr.1", delta["encoder.hr.1"])
    assert torch.count_nonzero(kernels["weight"]) == 0 and torch.count_nonzero(kernels["bias"]) > 0


# Batches and rounds ----------------------------------------------------------------------------------------------


def watching(seen):
    """A program whose objective notes the labels of each batch."""

    def objective(step):
        seen.append(step.labels.clone())
        return task_loss(step)

    return ClientProgram(objective=objective)


def order_of(scenario, groups=None, **where):
    seen = []
    scenario.train(groups, epochs=2, program=watching(seen), **where)
    return torch.cat(seen)


def test_order_depends_on_seed_round_and_client_only():
    expected = order_of(Scenario())
    assert torch.equal(expected, order_of(Scenario("gemm", "zero_feature"), ("head.1",)))
    assert torch.equal(expected, windows()[1][torch.cat(batches(NUM_WINDOWS, 2))])
    for other in ({"seed": 1}, {"round_": 2}, {"id_": 3}):
        assert not torch.equal(expected, order_of(Scenario(), **other)), other


@everywhere
def test_last_short_batch_is_kept(engine):
    seen = []
    update = Scenario(engine).train(epochs=2, program=watching(seen))
    assert [len(labels) for labels in seen] == [16, 16, 13] * 2
    assert update.receipt.work.num_steps == 6 and update.receipt.work.num_windows == NUM_WINDOWS


def test_loss_is_the_mean_over_windows_of_the_last_epoch():
    """With a step too small to matter every batch is scored by the initial model, the short one by its size."""
    scenario = Scenario(lr=1e-12)
    raw, labels = windows()
    seen = {m: x if m in TYPE_B else torch.zeros_like(x) for m, x in raw.items()}
    expected = nn.functional.cross_entropy(build().forward(seen), labels).detach()
    assert scenario.train(epochs=2).receipt.work.loss == pytest.approx(float(expected), rel=1e-5)


@everywhere
def test_every_round_starts_with_fresh_moments(engine):
    used, fresh = Scenario(engine), Scenario(engine)
    used.train(epochs=2)
    used.train(("head.1", "fusion.B"), round_=9, id_=1)
    again, first = used.train(round_=3), fresh.train(round_=3)
    assert all(torch.equal(again.delta[j], d) for j, d in first.delta.items())


@everywhere
def test_one_window_and_one_class_train(engine):
    scenario = Scenario(engine)
    whole = scenario.inputs()
    single = ClientInputs(inputs={m: x[:1] for m, x in whole.inputs.items()}, labels=whole.labels[:1])
    update = scenario.train(inputs=single)
    assert update.receipt.work.num_steps == 1
    same = scenario.train(inputs=ClientInputs(inputs=whole.inputs, labels=torch.zeros_like(whole.labels)))
    for delta in (update.delta, same.delta):
        assert all(bool(torch.isfinite(d).all()) for d in delta.values())
        assert torch.count_nonzero(delta["head.1"])


@everywhere
def test_nothing_to_train_costs_nothing_and_changes_nothing(engine):
    scenario = Scenario(engine)
    update = scenario.train((), epochs=1)
    assert update.delta == {} and update.receipt.bytes_up == 0 and update.receipt.bytes_down > 0
    assert update.receipt.work.loss > 0.0
    assert all(torch.equal(theta, scenario.start[j]) for j, theta in scenario.backbone.params().items())


# Parts, taps, personal state -------------------------------------------------------------------------------------


def test_a_kind_of_tensor_alone_can_be_trained_and_sent():
    scenario = Scenario()
    bias = {"head.1": Part(kinds=frozenset({"bias"}))}
    update = scenario.train(changes={"train": bias, "up": bias})
    assert update.delta["head.1"].shape == (SHAPE.num_classes,) and update.delta["head.1"].all()
    weight = scenario.backbone.layout.unflatten("head.1", scenario.backbone.params()["head.1"])["weight"]
    assert torch.equal(weight, scenario.backbone.layout.unflatten("head.1", scenario.start["head.1"])["weight"])


def test_bytes_are_the_length_of_the_encoded_payload():
    scenario = Scenario()
    up = {"head.1": Part(kinds=frozenset({"bias"})), "fusion.B": Part()}
    update = scenario.train(changes={"train": up, "up": up})
    assert update.receipt.bytes_up == len(encode(scenario.backbone.layout, up, update.delta))
    everything = scenario.backbone.layout.select()
    assert update.receipt.bytes_down == len(encode(scenario.backbone.layout, everything, scenario.start))


@everywhere
def test_taps_show_stages_live_frozen_and_absent(engine):
    scenario, seen = Scenario(engine), []

    def objective(step):
        seen.append({name: tap.detach().clone() for name, tap in step.taps.items()})
        return task_loss(step)

    names = frozenset({"encoder.acc.2", "encoder.hr.2", "fusion"})
    program = ClientProgram(objective=objective)
    scenario.train(("fusion.A.acc",), program=program, changes={"taps": names})
    raw, _ = windows()
    index = batches(NUM_WINDOWS, 1)[0]
    oracle = {s.spec.id: s.module for s in build().stages}
    h_acc = oracle["encoder.acc.2"](oracle["encoder.acc.1"](raw["acc"][index]))
    h_hr = oracle["encoder.hr.2"](oracle["encoder.hr.1"](torch.zeros(1, 1, SHAPE.window)))
    assert seen[0].keys() == names
    assert torch.allclose(seen[0]["encoder.acc.2"], h_acc, atol=1e-6)
    assert seen[0]["encoder.hr.2"].shape == seen[0]["encoder.acc.2"].shape, "a row per window, absent or not"
    assert torch.allclose(seen[0]["encoder.hr.2"], h_hr.expand(BATCH, -1), atol=1e-6)
    assert seen[0]["fusion"].shape == (BATCH, TINY.fusion)


def test_objective_sees_trained_vectors_and_where_they_started():
    scenario, seen = Scenario(), []

    def objective(step):
        drift = {j: float((theta - step.start[j]).detach().norm()) for j, theta in step.params.items()}
        seen.append((drift, step.params["head.1"].requires_grad, len(step.params), dict(step.args)))
        with pytest.raises(KeyError):
            step.params["fusion.B"]
        return task_loss(step)

    chosen = ("fusion.A.acc", "head.1")
    scenario.train(chosen, epochs=2, program=ClientProgram(objective=objective), changes={"args": {"mu": 0.5}})
    first, last = seen[0], seen[-1]
    assert tuple(first[0]) == chosen and first[1:] == (True, 2, {"mu": 0.5})
    assert set(first[0].values()) == {0.0} and min(last[0].values()) > 0.0


def test_a_pull_towards_the_start_shortens_the_update():
    def tether(step):
        return task_loss(step) + sum(50.0 * (theta - step.start[j]).square().sum() for j, theta in step.params.items())

    free, tied = (Scenario().train(("head.1",), 5, program=p) for p in (None, ClientProgram(objective=tether)))
    assert tied.delta["head.1"].norm() < 0.5 * free.delta["head.1"].norm()


@pytest.mark.parametrize("callers", [True, False])
@pytest.mark.parametrize("engine", ENGINES)
def test_numbers_below_the_smallest_normal_one_are_zero_while_a_client_trains(engine, callers):
    """Late in training they would slow it down tenfold; the caller's mode comes back, also after an error."""
    seen = []

    def is_flushed():
        return not bool(torch.tensor(1e-38) * 0.1)

    def objective(step):
        seen.append(is_flushed())
        if len(seen) == 4:
            raise RuntimeError("the fourth")
        return task_loss(step)

    assert torch.set_flush_denormal(callers)
    try:
        with pytest.raises(RuntimeError, match="the fourth"):
            Scenario(engine).train(epochs=2, program=ClientProgram(objective=objective))
        assert seen == [True] * 4 and is_flushed() == callers
    finally:
        torch.set_flush_denormal(False)


def test_personal_parts_stay_come_back_and_are_not_sent():
    scenario = Scenario()
    mine = {"head.1": Part(kinds=frozenset({"bias"}))}
    changes = {"keep": mine, "up": scenario.backbone.layout.select(("fusion.B",))}
    first = scenario.train(("fusion.B", "head.1"), changes=changes)
    assert first.delta.keys() == {"fusion.B"} and first.state.keys() == {"head.1"}
    bias = first.state["head.1"].clone()
    assert bias.shape == (SHAPE.num_classes,) and not torch.equal(bias, scenario.start["head.1"][-SHAPE.num_classes :])
    frozen = scenario.train(("fusion.B",), round_=2, state=first.state, changes=changes)
    assert torch.equal(frozen.state["head.1"], bias)
    assert torch.equal(scenario.backbone.params()["head.1"][-SHAPE.num_classes :], bias)
    assert torch.equal(
        scenario.backbone.params()["head.1"][: -SHAPE.num_classes], scenario.start["head.1"][: -SHAPE.num_classes]
    )
    scenario.train(("head.1",), round_=3)
    assert torch.equal(first.state["head.1"], bias), "kept values must not be views of the worker's model"


def test_other_facts_in_a_clients_state_survive():
    update = Scenario().train(("head.1",), state={"importance": torch.ones(3)})
    assert torch.equal(update.state["importance"], torch.ones(3))


def test_refine_and_after_decide_what_a_client_reports():
    scenario = Scenario()

    def refine(context, assignment):
        only = context.layout.select(("head.1",))
        return type(assignment)(client=2, down=assignment.down, train=only, up=only, epochs=3)

    def after(context, update):
        return type(update)(
            receipt=update.receipt, delta={j: d * 2 for j, d in update.delta.items()}, state=update.state
        )

    refined = scenario.train(program=ClientProgram(refine=refine))
    assert refined.delta.keys() == {"head.1"} and refined.receipt.work.epochs == 3
    doubled = scenario.train(program=ClientProgram(refine=refine, after=after))
    assert torch.equal(doubled.delta["head.1"], 2 * refined.delta["head.1"])


@everywhere
def test_stage_times_are_measured(engine):
    work = Scenario(engine).train(epochs=2).receipt.work
    assert work.engine == engine and work.epochs == 2
    assert min(work.measured.forward_s, work.measured.backward_s, work.measured.optimizer_s) > 0.0
    assert work.measured.link_s == 0.0


@pytest.mark.parametrize("engine", ["naive", "reuse", "gemm", "fused"])
def test_a_group_may_learn_slower_than_the_others(engine):
    """Adam's first step is the learning rate's size whatever the gradient: a tenth of it is a tenth of the way."""
    scenario = Scenario(engine)
    slow = {"lr_scale": {"encoder.acc.1": 0.1}}
    usual, scaled = (scenario.train(inputs=scenario.inputs(num=BATCH), changes=c) for c in ({}, slow))
    for j, delta in usual.delta.items():
        if j in slow["lr_scale"]:
            torch.testing.assert_close(scaled.delta[j], 0.1 * delta, rtol=1e-3, atol=1e-6)
        else:
            assert torch.equal(scaled.delta[j], delta)


# What a client learns about its own data ------------------------------------------------------------------------


def seen_rows(step):
    return {"label": step.labels, "loss": nn.functional.cross_entropy(step.logits, step.labels, reduction="none")}


@everywhere
def test_observations_are_the_rows_of_the_last_epoch(engine):
    """In the order of its batches, before their steps; their mean is the epoch's loss."""
    update = Scenario(engine).train(None, epochs=3, program=ClientProgram(observe=seen_rows))
    _, labels = windows()
    last = torch.cat(batches(NUM_WINDOWS, 3)[-3:])
    assert torch.equal(update.receipt.stats["label"], labels[last])
    losses = update.receipt.stats["loss"]
    assert float(losses.mean()) == pytest.approx(update.receipt.work.loss, rel=1e-5) and not losses.requires_grad
    assert Scenario(engine).train(None).receipt.stats == {}


@everywhere
def test_what_is_observed_of_a_frozen_stage_is_each_batchs_own(engine):
    """Frozen stages' rows are gathered into one buffer for every batch: what was seen must not change with it."""
    program = ClientProgram(observe=lambda step: {"feature": step.taps["encoder.acc.2"].flatten(1)})
    scenario = Scenario(engine)
    seen = scenario.train(("head.1",), epochs=2, program=program, changes={"taps": frozenset(["encoder.acc.2"])})
    rows = seen.receipt.stats["feature"]
    assert len(rows) == NUM_WINDOWS == len(rows.unique(dim=0))


@everywhere
def test_a_probe_leaves_no_trace(engine):
    """Not in the update, its steps or its moments; it is noted with what it ran on."""
    seen = []

    def probing(context, task):
        seen.append(context.probe(task))
        return task

    scenario = Scenario(engine)
    plain, probed = (
        scenario.train(None, epochs=2),
        scenario.train(None, epochs=2, program=ClientProgram(refine=probing)),
    )
    again = scenario.train(None, epochs=2)
    for update in (probed, again):
        assert all(torch.equal(plain.delta[j], update.delta[j]) for j in plain.delta)
        assert update.receipt.work.num_steps == plain.receipt.work.num_steps
    (trial, num_windows), *more = probed.receipt.probes
    assert trial.train == probed.receipt.assignment.train and (num_windows, more) == (BATCH, [])
    assert all(bool(g.any()) and g.shape == seen[0].step[j].shape for j, g in seen[0].gradient.items())
    for j, step in seen[0].step.items():
        assert len(step.abs().unique()) > 1, f"{j}: a sign's step is lr everywhere, a gradient's is not"
        torch.testing.assert_close(step / -LR, seen[0].gradient[j], rtol=0.5, atol=0.05)


@everywhere
@pytest.mark.parametrize("micro_batch", [None, 5])
def test_a_round_that_was_broken_off_leaves_nothing_to_the_next(engine, micro_batch):
    """Broken off in its second step, when some gradients are there: the same client again is a fresh trainer's."""

    def scenario_of():
        scenario = Scenario(engine)
        scenario.trainer.config = replace(scenario.trainer.config, micro_batch=micro_batch)
        return scenario

    calls = []

    def breaks(step):
        calls.append(step)
        if len(calls) == (2 if micro_batch is None else 7):
            step.logits.register_hook(broken)
        return task_loss(step)

    def broken(gradient):
        raise KeyboardInterrupt

    used = scenario_of()
    with pytest.raises(KeyboardInterrupt):
        used.train(program=ClientProgram(objective=breaks, is_mean=True))
    again, fresh = used.train(), scenario_of().train()
    assert all(torch.equal(delta, fresh.delta[j]) for j, delta in again.delta.items())


@pytest.mark.parametrize("engine", ["naive", "reuse", "gemm", "fused"])
def test_the_learning_rate_follows_the_schedule(engine):
    """One step of SGD on one batch, a factor of 1/4 every two rounds: round 3 moves a quarter as far as round 1."""
    schedule = Schedule(name="step", num_rounds=4, every=2, factor=0.25)
    scenario = Scenario(engine, dtype=torch.float64, rule=UpdateRule(name="sgd"), schedule=schedule)
    updates = [scenario.train(inputs=scenario.inputs(num=BATCH), round_=round_) for round_ in (1, 2, 3)]
    first, second, third = (update.delta for update in updates)
    for j, moved in first.items():
        torch.testing.assert_close(second[j], moved)
        torch.testing.assert_close(third[j], moved / 4)
