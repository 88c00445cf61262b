"""Test tensors trained alone, taps, personal state, and what a client learns about its own data."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from relief_ray.codec import encode
from relief_ray.federated import ClientProgram, task_loss
from relief_ray.groups import Part
from tests.training.scenario import (
    ASSIGNMENTS,
    BATCH,
    LR,
    NUM_WINDOWS,
    SHAPE,
    TINY,
    Scenario,
    batches,
    build,
    windows,
)

ENGINES = ("naive", "reuse", "gemm")
MISSING = ("zero_input", "zero_feature")
everywhere = pytest.mark.parametrize("engine", ENGINES)
in_both_modes = pytest.mark.parametrize("missing", MISSING)
for_every_assignment = pytest.mark.parametrize("groups", ASSIGNMENTS.values(), ids=list(ASSIGNMENTS))


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


@pytest.mark.parametrize("engine", ["naive", "reuse", "gemm"])
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
    largest = max(float(step.abs().max()) for step in seen[0].step.values())
    assert largest == pytest.approx(LR, rel=1e-2), "Adam's first step is lr wherever there is a gradient"


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
