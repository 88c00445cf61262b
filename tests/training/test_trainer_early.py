"""Large gradients are used inside the backward pass: when, and that no bit depends on it."""

from dataclasses import replace
from time import sleep

import pytest
import torch

from relief_ray.core.client import ClientProgram, task_loss
from relief_ray.core.groups import Part
from relief_ray.training import optimizer, trainer
from relief_ray.training.optimizer import LocalOptimizer, UpdateRule
from tests.training.scenario import ASSIGNMENTS, BATCH, Scenario


@pytest.fixture
def steps(monkeypatch):
    """How many tensors each of Adam's steps moved; every tensor counts as large."""
    counts, usual = [], LocalOptimizer.step

    def step(self, parameters, lr):
        moved = [p for p in parameters if p.grad is not None]
        counts.append(len(moved))
        usual(self, parameters, lr)

    monkeypatch.setattr(LocalOptimizer, "step", step)
    monkeypatch.setattr(trainer, "LARGE", 1)
    return counts


def other(step):
    return task_loss(step)


@pytest.mark.parametrize("groups", ASSIGNMENTS.values(), ids=ASSIGNMENTS)
@pytest.mark.parametrize("missing", ["zero_input", "zero_feature"])
def test_the_bits_are_those_of_steps_after_the_backward_pass(groups, missing, steps):
    at_once = Scenario("gemm", missing).train(groups, epochs=2)
    assert set(steps) <= {0, 1}, "each tensor has a step of its own"
    steps.clear()
    afterwards = Scenario("gemm", missing).train(groups, epochs=2, program=ClientProgram(objective=other))
    assert at_once.receipt.work.loss == afterwards.receipt.work.loss
    assert all(torch.equal(delta, afterwards.delta[j]) for j, delta in at_once.delta.items())


def test_rates_are_the_groups_own(steps):
    changes = {"lr_scale": {"head.1": 0.5, "fusion.B": 2.0}}
    first, second = (
        Scenario("gemm").train(changes=changes, program=program)
        for program in (ClientProgram(), ClientProgram(objective=other))
    )
    assert all(torch.equal(delta, second.delta[j]) for j, delta in first.delta.items())


@pytest.mark.parametrize(
    ("engine", "changes", "micro_batch"),
    [("reuse", {}, None), ("gemm", {"train": {"head.1": Part(rows=0.5)}}, None), ("gemm", {}, 5)],
    ids=["other engine", "parts of tensors", "batches in parts"],
)
def test_elsewhere_all_tensors_share_a_step(engine, changes, micro_batch, steps):
    scenario = Scenario(engine)
    scenario.trainer.config = replace(scenario.trainer.config, micro_batch=micro_batch)
    scenario.train(changes=changes)
    num_tensors = 2 if "train" in changes else sum(map(len, scenario.backbone.parameters.values()))
    assert set(steps) == {num_tensors}


@pytest.mark.parametrize(
    "settings",
    [{"clip_norm": 0.1}, {"rule": UpdateRule(name="sgd", weight_decay=0.1)}],
    ids=["clipped", "decaying"],
)
def test_clipping_and_decay_wait_for_all_gradients(settings, steps):
    scenario = Scenario("gemm", **settings)
    scenario.train()
    assert set(steps) == {sum(map(len, scenario.backbone.parameters.values()))}


@pytest.mark.parametrize("rule", [UpdateRule(name="sgd", momentum=0.9), UpdateRule(name="adamw")], ids=str)
def test_other_optimizers_step_inside_the_backward_pass_with_the_same_bits(rule, steps):
    first, second = (
        Scenario("gemm", rule=rule).train(epochs=2, program=program)
        for program in (ClientProgram(), ClientProgram(objective=other))
    )
    assert 1 in steps
    assert all(torch.equal(delta, second.delta[j]) and delta.any() for j, delta in first.delta.items())


def test_hooks_end_with_the_round(steps):
    scenario = Scenario("gemm")
    scenario.train()
    steps.clear()
    scenario.train(program=ClientProgram(objective=other))
    assert max(steps) > 1


def test_seconds_of_the_steps_are_the_optimizers(monkeypatch, steps):
    """Three steps of each tensor, slowed down by 2 ms."""
    usual = LocalOptimizer.step

    def slow(self, parameters, lr):
        if any(p.grad is not None for p in parameters):
            sleep(0.002)
        usual(self, parameters, lr)

    monkeypatch.setattr(LocalOptimizer, "step", slow)
    scenario = Scenario("gemm")
    num_tensors = sum(map(len, scenario.backbone.parameters.values()))
    slept_s = 0.002 * 3 * num_tensors
    times = scenario.train().receipt.work.measured
    assert times.optimizer_s >= slept_s > 0.1 and 0 < times.backward_s < slept_s


@pytest.fixture
def passed(monkeypatch):
    """Whether each tensor's moments passed; pieces of 64 values, every tensor of as many has a step of its own."""
    results, usual = [], LocalOptimizer._single_step
    monkeypatch.setattr(LocalOptimizer, "_single_step", lambda *given: results.append(usual(*given)) or results[-1])
    monkeypatch.setattr(optimizer, "LARGE", 64)
    monkeypatch.setattr(trainer, "LARGE", 64)
    return results


@pytest.mark.parametrize("program", [ClientProgram(), ClientProgram(objective=other)], ids=["at once", "afterwards"])
@pytest.mark.parametrize(("num", "epochs"), [(BATCH, 1), (BATCH - 3, 1), (BATCH + 1, 1), (BATCH, 2)])
def test_moments_of_an_only_step_pass_and_no_bit_depends_on_it(program, num, epochs, passed, monkeypatch):
    """One batch, one epoch; the client after it has several steps."""
    taken, take, reset = [], trainer._step_in_backward, LocalOptimizer.reset
    monkeypatch.setattr(trainer, "_step_in_backward", lambda *given: taken.append(given) or take(*given))

    def rounds():
        scenario = Scenario("gemm")
        first = scenario.train(epochs=epochs, program=program, inputs=scenario.inputs(num=num))
        had = any(passed)
        return first, scenario.train(epochs=2, program=program), had

    one, after, had = rounds()
    assert had == (num <= BATCH and epochs == 1) and bool(taken) == (program.objective is task_loss)
    monkeypatch.setattr(LocalOptimizer, "reset", lambda self, parameters, once: reset(self, parameters))
    for update, expected in zip((one, after), rounds()[:2], strict=True):
        assert all(torch.equal(delta, expected.delta[j]) for j, delta in update.delta.items())


def test_a_probe_takes_no_step_of_the_optimizer(steps):
    """Its step is the plain gradient's; Adam's moments begin with the round."""
    before = []

    def refine(context, assignment):
        context.probe(assignment)
        before.extend(steps)
        return assignment

    Scenario("gemm").train(epochs=3, program=ClientProgram(refine=refine))
    assert not before and steps
