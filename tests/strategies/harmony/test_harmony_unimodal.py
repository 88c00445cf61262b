"""The unimodal stage: heads, losses, drift."""

from dataclasses import replace

import pytest
import torch

from relief_ray.core.client import ClientContext, LocalStep
from relief_ray.core.streams import Streams
from relief_ray.strategies.harmony import (
    DRIFT,
    head_of,
    reached,
    report_drift,
    sum_of_losses,
    train_unimodal,
    unimodal_heads,
)
from tests.toy import ACC, FOUR, FULL, build, context_of, fleet_of, task_of, update_of

LAYOUT = build(unimodal_heads, layers=2).layout
FLEET = fleet_of(FULL, ACC)
SMALL = build(unimodal_heads).layout
ENCODERS, FUSED = ("encoder.acc.1", "encoder.hr.1"), ("fusion.A.acc", "fusion.A.hr", "fusion.B", "head.1")


def test_heads_read_the_last_layer_of_their_encoder():
    heads = unimodal_heads(build(layers=2).layout, FOUR)
    assert [(c.id, c.after, c.role, c.modality) for c in heads] == [
        (head_of(m), (f"encoder.{m}.2",), "unimodal_head", m) for m in FULL
    ]


def test_a_client_trains_what_its_sensors_reach():
    task = train_unimodal(context_of(LAYOUT, FLEET), FLEET[1])
    assert set(task.train) == {"encoder.acc.1", "encoder.acc.2", "unimodal.acc"} and task.up == task.down == task.train
    assert task.taps == {"unimodal.acc"} and task.output == "unimodal.acc"
    assert set(reached(LAYOUT, FLEET[1], "fusion_a", "head")) == {"fusion.A.acc", "head.1"}


def test_losses_add_up_and_without_heads_it_is_the_usual_one():
    make = torch.Generator().manual_seed(0)
    one, two = torch.randn(2, 5, 3, generator=make)
    labels = torch.tensor([0, 1, 2, 0, 1])
    loss = torch.nn.functional.cross_entropy
    step = LocalStep(logits=one, labels=labels, taps={"b": two, "a": one}, params={}, start={}, args={})
    torch.testing.assert_close(sum_of_losses(step), loss(one, labels) + loss(two, labels))
    assert torch.equal(sum_of_losses(replace(step, taps={})), loss(one, labels))


@pytest.mark.parametrize("scale", [0.5, 1.0, 7.0])
def test_drift_by_hand_does_not_depend_on_scale(scale):
    start = build(unimodal_heads, b_zero=False).params()
    task = replace(task_of(SMALL, 0, FUSED, "fusion"), keep=SMALL.select(ENCODERS))
    turned = {j: scale * start[j].flip(0) for j in ENCODERS}
    update = update_of(task, {j: torch.zeros(SMALL[j].numel) for j in FUSED}, state=turned)
    drift = report_drift(context(start), update).receipt.stats[DRIFT]
    expected = [1 - float(start[j] @ start[j].flip(0) / start[j].square().sum()) for j in ENCODERS]
    assert drift.tolist() == pytest.approx(expected, rel=1e-5)
    nothing = {j: torch.zeros_like(x) if j == "encoder.hr.1" else x for j, x in start.items()}
    assert report_drift(context(nothing), update).receipt.stats[DRIFT][1] == 0.0


def context(start):
    return ClientContext(info=FLEET[0], round=1, layout=SMALL, start=start, state={}, streams=Streams(seed=0))


def test_a_client_that_keeps_no_encoder_reports_nothing():
    update = update_of(task_of(SMALL, 0, FUSED), {j: torch.zeros(SMALL[j].numel) for j in FUSED})
    assert report_drift(context(build(unimodal_heads).params()), update) is update
