from dataclasses import replace

import pytest
import torch

from relief_ray.core.extra_modules import Classifier
from relief_ray.core.messages import Assignment
from relief_ray.devices.accounting import Counter
from relief_ray.devices.workload import ADAM_FLOPS_PER_VALUE
from relief_ray.models.costs import count_costs
from relief_ray.models.extra import with_extra_modules
from relief_ray.training.forward_plan import compute_sources, plan_forward, run_stages
from tests.training.scenario import SHAPE, TINY

EARLY = Classifier(id="exit.1", after=tuple(f"encoder.{m}.1" for m in SHAPE.modalities), layer=1)
ACC = Classifier(id="unimodal.acc", after=("encoder.acc.2",), role="unimodal_head", modality="acc")


def windows(number=3):
    make = torch.Generator().manual_seed(3)
    return {m: torch.randn(number, c, SHAPE.window, generator=make) for m, c in SHAPE.channels}


def read(backbone, output, raw, missing="zero_input"):
    """Returns the values at ``output`` in a naive step of a client with all modalities."""
    plan = plan_forward(backbone, raw, ("head.1",), missing, False, output=output)
    inputs = {m: backbone.prepare(m, x) for m, x in raw.items()}
    values = compute_sources(backbone, plan, inputs, len(raw["acc"]))
    return run_stages(plan.every_step, dict(values), plan, len(raw["acc"]))[output]


@pytest.mark.parametrize("fast", [False, True])
def test_the_backbone_keeps_its_values_order_and_logits(fast):
    plain = TINY.build(SHAPE, 0, "gemm" if fast else "naive")
    more = with_extra_modules(TINY.build(SHAPE, 0, "gemm" if fast else "naive"), [EARLY, ACC], 0)
    assert more.layout.ids == (*plain.layout.ids, "exit.1", "unimodal.acc")
    assert all(torch.equal(x, more.params()[j]) for j, x in plain.params().items())
    raw = {m: plain.prepare(m, x) for m, x in windows().items()}
    assert torch.equal(plain.forward(raw), more.forward(raw))
    assert more.layout["unimodal.acc"].modality == "acc" and more.layout["exit.1"].role == "exit"


@pytest.mark.parametrize("fast", [False, True])
def test_an_exit_reads_the_pooled_layer_of_every_modality(fast):
    backbone = with_extra_modules(TINY.build(SHAPE, 0, "gemm" if fast else "naive"), [EARLY], 0)
    plain, raw = TINY.build(SHAPE, 0), windows()
    first = [s.module(raw[s.spec.modality]) for s in plain.stages if s.spec.id.endswith(".1") and s.spec.modality]
    pooled = [torch.nn.functional.adaptive_avg_pool1d(x, TINY.steps).flatten(1) for x in first]
    weight, bias = backbone.layout.unflatten("exit.1", backbone.params()["exit.1"]).values()
    expected = torch.cat(pooled, 1) @ weight.T + bias
    torch.testing.assert_close(read(backbone, "exit.1", raw), expected)


def test_both_engines_start_from_the_same_exit():
    states = [
        with_extra_modules(TINY.build(SHAPE, 0, "gemm" if fast else "naive"), [EARLY], 7).params()["exit.1"]
        for fast in (False, True)
    ]
    other = with_extra_modules(TINY.build(SHAPE, 0), [EARLY], 8).params()["exit.1"]
    assert torch.equal(*states) and not torch.equal(states[0], other)
    assert not torch.equal(other[:9], with_extra_modules(TINY.build(SHAPE, 0), [ACC], 8).params()["unimodal.acc"][:9])


def test_what_is_behind_an_exit_is_not_charged():
    backbone = with_extra_modules(TINY.build(SHAPE, 0), [EARLY], 0)
    costs = count_costs(backbone)
    counter = Counter(costs, backbone.layout, "zero_input")
    first = [f"encoder.{m}.1" for m in SHAPE.modalities]
    groups = backbone.layout.select([*first, "exit.1", "head.1"])
    task = Assignment(client=0, down={}, train=groups, up={}, epochs=1, output="exit.1")
    spent = counter.footprint(SHAPE.modalities, task, "naive")
    ran = [*first, "exit.1", *(f"exit.1<{s}" for s in first)]
    assert spent.forward == {"always": sum(costs.flops[s].forward_flops for s in ran)}
    reached = sum(backbone.layout[j].numel for j in (*first, "exit.1"))
    assert spent.optimizer_flops == ADAM_FLOPS_PER_VALUE * reached, "the head is out of reach"
    assert spent.group == sum(costs.group_flops(j) for j in (*first, "exit.1"))
    whole = counter.footprint(SHAPE.modalities, replace(task, output=None), "naive")
    assert whole.forward == {"always": sum(f.forward_flops for s, f in costs.flops.items() if "exit" not in s)}, (
        "the cache tells outputs apart; without exit its stages do not run"
    )
    both = counter.footprint(SHAPE.modalities, replace(task, output=None, taps=frozenset(["exit.1"])), "naive")
    assert both.forward["always"] == pytest.approx(sum(f.forward_flops for f in costs.flops.values()))


def test_an_absent_modalitys_pooled_features_are_zero_under_zero_feature():
    backbone, raw = with_extra_modules(TINY.build(SHAPE, 0), [EARLY], 0), windows()
    values = {}
    for engine_reuses in (False, True):
        plan = plan_forward(backbone, ("acc",), ("exit.1",), "zero_feature", engine_reuses, output="exit.1")
        sources = compute_sources(backbone, plan, {"acc": raw["acc"]}, 3)
        values[engine_reuses] = run_stages(plan.every_step, dict(sources), plan, 3)["exit.1"]
    weight, bias = backbone.layout.unflatten("exit.1", backbone.params()["exit.1"]).values()
    stage = next(s for s in backbone.stages if s.spec.id == "encoder.acc.1")
    pooled = torch.nn.functional.adaptive_avg_pool1d(stage.module(raw["acc"]), TINY.steps).flatten(1)
    expected = pooled @ weight[:, : pooled.shape[1]].T + bias
    for features in values.values():
        torch.testing.assert_close(features, expected)


def test_a_group_that_nobody_owns():
    with pytest.raises(ValueError, match=r"'x' reads group 'encoder.gps.1', which no stage owns; there are \["):
        with_extra_modules(TINY.build(SHAPE, 0), [Classifier(id="x", after=("encoder.gps.1",))], 0)


def test_a_stage_that_cannot_be_pooled():
    backbone = TINY.build(SHAPE, 0)
    backbone.stages = tuple(replace(s, pool=None) for s in backbone.stages)
    with pytest.raises(ValueError, match=r"stage 'encoder.acc.1' gives \(1, .*declare the stage's `pool`"):
        with_extra_modules(backbone, [Classifier(id="x", after=("encoder.acc.1",))], 0)
