"""Probes see every stage of a round and change nothing about it."""

import pytest
import torch

from relief_ray.core.client import ClientProgram
from relief_ray.profiling.profile import FORWARD, Probes
from tests.training.scenario import ASSIGNMENTS, NUM_WINDOWS, Scenario

STEPS = 3  # 45 windows in batches of 16


def probed(engine="reuse"):
    scenario = Scenario(engine)
    probes = Probes(scenario.backbone)
    return scenario, probes, ClientProgram(objective=probes.objective)


@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_a_probed_round_gives_the_same_bits(name):
    scenario, _, program = probed()
    update, expected = scenario.train(ASSIGNMENTS[name], program=program), Scenario("reuse").train(ASSIGNMENTS[name])
    assert all(torch.equal(update.delta[j], d) for j, d in expected.delta.items())


def test_every_stage_runs_forward_and_backward_once_a_step_where_everything_is_trained():
    scenario, probes, program = probed()
    measured = scenario.train(program=program).receipt.work.measured
    spans = probes.take()
    for stage in scenario.backbone.specs:
        own = [s for s in spans if s.stage == stage.id]
        absent = stage.modality == "hr"
        backward = "weights" if stage.inputs[0].startswith("x.") else "both"
        assert [s.phase for s in own if s.phase in FORWARD] == ["live"] * STEPS
        assert [s.phase for s in own if s.phase not in FORWARD] == [backward] * STEPS
        assert sum(s.rows for s in own if s.phase == "live") == (STEPS if absent else NUM_WINDOWS)
    assert all(s.seconds >= 0 for s in spans)
    assert sum(s.seconds for s in spans if s.phase in FORWARD) <= measured.forward_s
    assert sum(s.seconds for s in spans if s.phase not in FORWARD) <= measured.backward_s


def test_modes_tell_whose_gradients_are_computed():
    scenario, probes, program = probed()
    scenario.train(("encoder.acc.1",), program=program)
    modes = {s.stage: s.phase for s in probes.take() if s.phase not in FORWARD}
    assert modes == {
        "encoder.acc.1": "weights",
        **dict.fromkeys(("encoder.acc.2", "fusion.A.acc", "fusion", "head"), "input"),
    }


def test_what_is_frozen_runs_once_and_spans_are_taken_once():
    scenario, probes, program = probed()
    scenario.train(("head.1",), program=program, epochs=2)
    spans = probes.take()
    assert {(s.stage, s.phase) for s in spans if s.stage.startswith("encoder.acc")} == {
        ("encoder.acc.1", "frozen"), ("encoder.acc.2", "frozen"),
    }  # fmt: skip
    assert [s.rows for s in spans if s.stage == "encoder.acc.1"] == [NUM_WINDOWS]
    assert sum(s.stage == "head" and s.phase == "weights" for s in spans) == 2 * STEPS
    assert probes.take() == []
