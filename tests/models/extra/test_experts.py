"""Experts on three backbones: copies, router, mixture, and that nothing of the backbone changes."""

import pytest
import torch

from relief_ray.core.extra_modules import Experts
from relief_ray.models.costs import count_costs
from relief_ray.models.extra import Router, with_extra_modules
from relief_ray.training.forward_plan import compute_sources, plan_forward, run_stages
from tests import toy
from tests.models import tiny_moment as moment
from tests.training import scenario

FUSION = {"cnn": ("fusion.A.acc", "fusion.A.gyro", "fusion.A.hr", "fusion.B")}
FUSION["gemm"] = FUSION["moment"] = FUSION["cnn"]
FUSION["toy"] = ("fusion.A.acc", "fusion.A.hr", "fusion.B")
BACKBONES = {
    "cnn": lambda: scenario.build(),
    "gemm": lambda: scenario.build("gemm"),
    "toy": lambda: toy.build(b_zero=False),
    "moment": lambda: moment.tiny(),
}


def experts(name, most=3, head=False):
    return Experts(id="expert", of=(*FUSION[name], *(("head.1",) if head else ())), most=most)


def inputs(backbone, number=4, seed=3):
    make = torch.Generator().manual_seed(seed)
    shape = backbone.shape
    raw = {m: torch.randn(number, c, shape.window, generator=make) for m, c in shape.channels}
    return {m: backbone.prepare(m, x) for m, x in raw.items()}


def read(backbone, x, output, present=None, trained=None, reuse=False, missing="zero_input", taps=()):
    """``output`` and ``taps`` as a training step sees them."""
    present = backbone.shape.modalities if present is None else present
    number = len(next(iter(x.values())))
    plan = plan_forward(backbone, present, trained or backbone.layout.ids, missing, reuse, taps, output)
    shown = {m: v for m, v in x.items() if m in present}
    if not reuse:
        zeros = {m: v if m in present else backbone.prepare(m, torch.zeros(number, c, backbone.shape.window))
                 for (m, c), v in zip(backbone.shape.channels, x.values(), strict=True)}  # fmt: skip
        shown = zeros
    values = run_stages(plan.every_step, dict(compute_sources(backbone, plan, shown, number)), plan, number)
    return values


def stirred(backbone, seed=7, scale=0.3):
    make = torch.Generator().manual_seed(seed)
    moved = {j: theta + scale * torch.randn(theta.shape, generator=make) for j, theta in backbone.params().items()}
    backbone.load(moved)
    return moved


@pytest.fixture(params=BACKBONES)
def name(request):
    return request.param


def test_the_backbones_own_logits_values_and_order_stay(name):
    plain, more = BACKBONES[name](), with_extra_modules(BACKBONES[name](), [experts(name)], 0)
    assert more.layout.ids[: len(plain.layout)] == plain.layout.ids
    assert all(torch.equal(theta, more.params()[j]) for j, theta in plain.params().items())
    assert torch.equal(plain.forward(inputs(plain)), more.forward(inputs(more)))
    assert [g.role for g in list(more.layout)[len(plain.layout) :]] == ["expert"] * 2 * len(FUSION[name]) + [
        "router"
    ] * 3
    assert {g.member for g in more.layout if g.role == "expert"} == {2, 3}


def test_alike_experts_mix_to_the_plain_logits(name):
    """Weights sum to one: whatever the router says, M copies of one expert are that expert."""
    backbone = with_extra_modules(BACKBONES[name](), [experts(name)], 0)
    for number in (2, 3):
        output = experts(name).output(number)
        logits = read(backbone, inputs(backbone), output)[output]
        torch.testing.assert_close(logits, backbone.forward(inputs(backbone)), rtol=1e-4, atol=1e-5)


def test_own_slots_alone_give_the_own_expert(name):
    """All M best slots are the own expert's: the others, though different, do not count at all."""
    backbone, spec = with_extra_modules(BACKBONES[name](), [experts(name)], 0), experts(name)
    theta = stirred(backbone)
    for e, group in ((1, "expert.router.1"), (2, "expert.router.2"), (3, "expert.router.3")):
        rows = backbone.layout.unflatten(group, theta[group])["weight"]
        rows.zero_()
        if e > 1:
            rows[1] = 0.0
    backbone.load(theta)
    values = read(backbone, inputs(backbone), spec.output(2), taps=[spec.weights(2)])
    assert torch.equal(values[spec.weights(2)], torch.tensor([[1.0, 0.0]]).expand(4, 2)), "equal slots: own ones first"
    assert torch.equal(values[spec.output(2)], backbone.forward(inputs(backbone)))


def test_mixture_by_hand(name):
    """The layer's end is ``sum_e w_e y_e``, with each expert's weights loaded into the plain backbone in turn."""
    spec = experts(name)
    backbone = with_extra_modules(BACKBONES[name](), [spec], 0)
    theta = stirred(backbone, scale=0.5)
    x, last = (
        inputs(backbone, 48),
        backbone.stages[[s.spec.groups >= {"fusion.B"} for s in backbone.stages].index(True)],
    )
    end = last.spec.id
    ends = []
    for e in (1, 2, 3):
        plain = BACKBONES[name]()
        plain.load({j: theta[spec.copy(e, j)] if j in spec.of else theta[j] for j in plain.layout.ids})
        ends.append(read(plain, x, end)[end])
    values = read(backbone, x, spec.output(3), taps=["expert.mix@3", spec.weights(3)])
    weights = values[spec.weights(3)]
    assert bool((weights.detach() > 0).any(0).all()), "every expert counts somewhere"
    expected = sum(weights[:, e : e + 1] * ends[e] for e in range(3))
    torch.testing.assert_close(values["expert.mix@3"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("most", [2, 3, 4])
def test_at_least_one_own_slot_and_weights_that_sum_to_one(most):
    make = torch.Generator().manual_seed(most)
    rows = [torch.nn.Parameter(5.0 * torch.randn(1 if e == 0 else 2, 6, generator=make)) for e in range(most)]
    h = torch.randn(500, 6, generator=make)
    weights = Router(rows)(h[:, :2], h[:, 2:]).detach()
    torch.testing.assert_close(weights.sum(1), torch.ones(500))
    assert bool((weights[:, 0] > 0).all()) and weights.shape == (500, most)
    slots = torch.softmax(h @ torch.cat([r.detach() for r in rows]).T, 1)
    is_own = torch.tensor([s == 0 or s % 2 == 1 for s in range(2 * most - 1)])
    for i in range(500):
        best = torch.topk(slots[i], most).indices
        own = slots[i][best][is_own[best]].sum() / slots[i][best].sum()
        torch.testing.assert_close(weights[i, 0], own)


def test_the_routers_weights_have_a_gradient():
    rows = [torch.nn.Parameter(torch.randn(1 if e == 0 else 2, 4)) for e in range(2)]
    (Router(rows)(torch.randn(8, 4))[:, 0].sum()).backward()
    assert all(r.grad is not None for r in rows) and any(bool(r.grad.any()) for r in rows)


def test_a_head_may_belong_to_the_expert():
    spec = experts("cnn", head=True)
    backbone = with_extra_modules(BACKBONES["cnn"](), [spec], 0)
    theta = stirred(backbone)
    values = read(backbone, inputs(backbone), spec.output(2), taps=[spec.weights(2)])
    logits = []
    for e in (1, 2):
        plain = BACKBONES["cnn"]()
        plain.load({j: theta[spec.copy(e, j)] if j in spec.of else theta[j] for j in plain.layout.ids})
        logits.append(plain.forward(inputs(plain)))
    weights = values[spec.weights(2)]
    torch.testing.assert_close(values[spec.output(2)], weights[:, :1] * logits[0] + weights[:, 1:] * logits[1])


@pytest.mark.parametrize("missing", ["zero_input", "zero_feature"])
def test_reuse_gives_the_naive_logits(name, missing):
    backbone, spec = with_extra_modules(BACKBONES[name](), [experts(name)], 0), experts(name)
    stirred(backbone)
    x, output = inputs(backbone), spec.output(3)
    for trained in (["expert.router.1"], ["fusion.A.acc", "fusion.B", "head.1"], list(backbone.layout.ids)):
        naive, reuse = (
            read(backbone, x, output, ("acc",), trained, engine, missing)[output] for engine in (False, True)
        )
        torch.testing.assert_close(naive, reuse, rtol=1e-4, atol=1e-5)


def test_a_twin_is_charged_once_and_only_where_it_runs(name):
    spec = experts(name)
    backbone, plain = with_extra_modules(BACKBONES[name](), [spec], 0), count_costs(BACKBONES[name]())
    costs = count_costs(backbone)
    assert [s.id for s in costs.running()] == [s.id for s in plain.stages], "without experts nothing of them runs"
    ran = {n: costs.running([spec.output(n)]) for n in (2, 3)}
    assert all(costs.group_flops("head.1", ran[n]) == plain.group_flops("head.1") for n in (2, 3))
    assert [s.id for s in ran[2] if s.id.startswith("expert.3")] == []
    forward = {n: sum(costs.flops[s.id].forward_flops for s in ran[n]) for n in ran}
    one_more = sum(costs.flops[s.id].forward_flops for s in costs.stages if s.id.startswith("expert.3."))
    router = [costs.flops[spec.weights(n)].forward_flops for n in (2, 3)]
    mixing = [costs.flops["expert.mix@2"].forward_flops, costs.flops["expert.mix@3"].forward_flops]
    assert forward[3] - forward[2] == pytest.approx(one_more + router[1] - router[0] + mixing[1] - mixing[0])


def test_groups_that_are_no_layer():
    with pytest.raises(ValueError, match=r"'x': stages of groups \['nobody'\] own \[\]; they must agree"):
        with_extra_modules(BACKBONES["cnn"](), [Experts(id="x", of=("nobody",), most=2)], 0)
    with pytest.raises(
        ValueError, match=r"'x': \['fusion.A.acc'\] do not lead to 'fusion.A.gyro'; a layer has one end"
    ):
        with_extra_modules(BACKBONES["cnn"](), [Experts(id="x", of=("fusion.A.acc", "fusion.A.gyro"), most=2)], 0)
