"""The connector on three backbones: zero at first, both ways by hand, and the plain logits as they were."""

import pytest
import torch

from relief_ray.core.extra_modules import Connector
from relief_ray.models.costs import count_costs
from relief_ray.models.extra import with_extra_modules
from tests.models.extra.test_experts import BACKBONES, inputs, read, stirred

SPEC = Connector(id="connector", num_tasks=3, bottleneck=5)


@pytest.fixture(params=BACKBONES)
def name(request):
    return request.param


def features(backbone, values):
    return [values[s.spec.id] for s in backbone.stages if s.spec.feature]


def adapter(backbone, theta, group, h):
    down, down_bias, up, up_bias = (backbone.layout.unflatten(group, theta[group])[k] for k in
                                    ("down.weight", "down.bias", "up.weight", "up.bias"))  # fmt: skip
    return torch.nn.functional.gelu(h @ down.T + down_bias) @ up.T + up_bias


def behind(name, theta, z, sizes):
    """The plain backbone's logits where its features are the columns of ``z``."""
    plain = BACKBONES[name]()
    plain.load({j: theta[j] for j in plain.layout.ids})
    x = inputs(plain)
    values = {f"x.{m}": v for m, v in x.items()}
    parts = iter(torch.split(z, sizes, 1))
    for stage in plain.stages:
        out = stage.module(*(values[i] for i in stage.spec.inputs))
        values[stage.spec.id] = next(parts) if stage.spec.feature else out
    return values[plain.output]


def test_the_backbones_own_logits_values_and_order_stay(name):
    plain, more = BACKBONES[name](), with_extra_modules(BACKBONES[name](), [SPEC], 0)
    assert more.layout.ids[: len(plain.layout)] == plain.layout.ids
    assert all(torch.equal(theta, more.params()[j]) for j, theta in plain.params().items())
    assert torch.equal(plain.forward(inputs(plain)), more.forward(inputs(more)))
    added = [g.id.removeprefix("connector.") for g in list(more.layout)[len(plain.layout) :]]
    assert added == ["task.1", "task.2", "task.3", "cross.2", "cross.3", "own", "router"]
    assert [s.id for s in count_costs(more).running()] == [s.spec.id for s in plain.stages]


def test_untrained_it_changes_nothing(name):
    backbone = with_extra_modules(BACKBONES[name](), [SPEC], 0)
    for path in ("first", "mixed"):
        logits = read(backbone, inputs(backbone), SPEC.output(path))[SPEC.output(path)]
        torch.testing.assert_close(logits, backbone.forward(inputs(backbone)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("own_in_mix", [True, False])
def test_both_ways_by_hand(name, own_in_mix):
    spec = Connector(id="connector", num_tasks=3, bottleneck=5, own_in_mix=own_in_mix)
    backbone = with_extra_modules(BACKBONES[name](), [spec], 0)
    theta = stirred(backbone)
    x = inputs(backbone)
    names = [s.spec.id for s in backbone.stages if s.spec.feature]
    values = read(backbone, x, spec.output("mixed"), taps=[spec.output("first"), *names])
    parts = features(backbone, values)
    h, sizes = torch.cat(parts, 1), [p.shape[1] for p in parts]
    task = [adapter(backbone, theta, spec.task(i), h) for i in (1, 2, 3)]
    cross = [adapter(backbone, theta, spec.cross(i), h) for i in (2, 3)]
    own = adapter(backbone, theta, spec.own, h)
    first = behind(name, theta, h + task[0] + own, sizes)
    torch.testing.assert_close(values[spec.output("first")], first, rtol=1e-4, atol=1e-4)
    gate = backbone.layout.unflatten(spec.router, theta[spec.router])["weight"]
    p = torch.softmax(h @ gate.T, 1)
    mix = p[:, :1] * task[0] + p[:, 1:2] * (task[1] + cross[0]) + p[:, 2:] * (task[2] + cross[1])
    mixed = behind(name, theta, h + mix + (own if own_in_mix else 0.0), sizes)
    torch.testing.assert_close(values[spec.output("mixed")], mixed, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(first, mixed)


def test_one_task_has_one_adapter_with_weight_one(name):
    spec = Connector(id="connector", num_tasks=1, bottleneck=5)
    backbone = with_extra_modules(BACKBONES[name](), [spec], 0)
    stirred(backbone)
    assert spec.cross(2) not in backbone.layout
    values = read(backbone, inputs(backbone), spec.output("mixed"), taps=[spec.output("first")])
    assert torch.equal(values["connector.mix"], values["connector.task.1"]), "P is 1"
    torch.testing.assert_close(values[spec.output("mixed")], values[spec.output("first")])


@pytest.mark.parametrize("missing", ["zero_input", "zero_feature"])
def test_reuse_gives_the_naive_logits(name, missing):
    backbone = with_extra_modules(BACKBONES[name](), [SPEC], 0)
    stirred(backbone)
    x = inputs(backbone)
    for path in ("first", "mixed"):
        output = SPEC.output(path)
        for trained in ([SPEC.task(1)], ["fusion.A.acc", "fusion.B"], list(backbone.layout.ids)):
            naive, reuse = (
                read(backbone, x, output, ("acc",), trained, engine, missing)[output] for engine in (False, True)
            )
            torch.testing.assert_close(naive, reuse, rtol=1e-4, atol=1e-4)


def test_each_way_is_charged_for_itself(name):
    backbone = with_extra_modules(BACKBONES[name](), [SPEC], 0)
    costs = count_costs(backbone)
    first, mixed = ({s.id for s in costs.running([SPEC.output(path)])} for path in ("first", "mixed"))
    connectors = {"connector.own", "connector.task.1"}
    assert {s for s in first if s.startswith("connector.") and "@" not in s} == connectors
    assert {s for s in mixed if s.startswith("connector.") and "@" not in s} == {
        *connectors, "connector.mix", "connector.router",
        *(f"connector.{kind}.{i}" for kind in ("task", "cross") for i in (2, 3)),
    }  # fmt: skip
    plain = count_costs(BACKBONES[name]())
    running = costs.running([SPEC.output("first")])
    assert costs.group_flops("fusion.B", running) == plain.group_flops("fusion.B")


def test_a_feature_that_is_no_vector():
    backbone = BACKBONES["cnn"]()
    backbone.stages[0].module.append(torch.nn.Identity())
    from dataclasses import replace

    wrong = [replace(s, spec=replace(s.spec, feature=s.spec.id == "encoder.acc.1")) for s in backbone.stages]
    backbone.stages = tuple(wrong)
    with pytest.raises(ValueError, match=r"stage 'encoder.acc.1' gives .* not \(B, D\): a stage marked `feature`"):
        with_extra_modules(backbone, [SPEC], 0)
