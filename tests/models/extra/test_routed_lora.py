"""LoRA layers routed token by token: the formula by hand, the way through Backbone 2, sizes, costs, reuse."""

import pytest
import torch

from relief_ray.core.extra_modules import Experts
from relief_ray.models.costs import count_costs
from relief_ray.models.extra import RoutedLora, with_extra_modules
from tests import toy
from tests.models import tiny_moment as moment
from tests.models.extra.test_experts import inputs, read, stirred

pytestmark = pytest.mark.usefixtures("run_cache")
FUSION = ("fusion.A.acc", "fusion.A.gyro", "fusion.A.hr", "fusion.B")


def routed(most=3, backbone=None):
    backbone = backbone or moment.tiny()
    inside = tuple(g.id for g in backbone.layout if g.role == "encoder")
    spec = Experts(id="expert", of=FUSION, most=most, inside=inside)
    return with_extra_modules(backbone, [spec], 0), spec


def parameter(*values):
    return torch.nn.Parameter(torch.tensor(values))


def test_a_layer_of_two_experts_by_hand():
    """d_in = d_out = r = 1, s = 2: W0 = 1, B_1 A_1 = 3, B_2 A_2 = 10; two of three slots are taken per token.

    Slots (own, own, other) are x times (0, ln 2, ln 4). x = 1: (1, 2, 4) / 7, taken 4 and 2, so w = (1/3, 2/3):
    1 + 2 (3 / 3 + 20 / 3) = 49/3. x = -1: (4, 2, 1) / 7, taken 4 and 2, both own: -1 - 2 * 3 = -7.
    """
    base = torch.nn.Linear(1, 1, bias=False)
    base.weight.data.fill_(1.0)
    factors = [(parameter([1.0]), parameter([3.0])), (parameter([2.0]), parameter([5.0]))]
    rows = [parameter([0.0]), parameter([0.6931472], [1.3862944])]
    layer = RoutedLora(base, factors, rows, 2.0)
    values = layer(torch.tensor([[[1.0], [-1.0]]]))
    assert values.shape == (1, 2, 1), "tokens of one window differ"
    assert values.flatten().tolist() == pytest.approx([49 / 3, -7.0], rel=1e-5)
    alone = RoutedLora(base, factors[:1], rows[:1], 2.0)
    assert alone(torch.tensor([[2.0]])).item() == pytest.approx(14.0), "one expert is plain LoRA"


def test_groups_are_those_of_the_layers_behind_the_old_ones():
    plain, (backbone, spec) = moment.tiny(), routed()
    assert backbone.layout.ids[: len(plain.layout)] == plain.layout.ids
    assert all(torch.equal(theta, backbone.params()[j]) for j, theta in plain.params().items())
    assert torch.equal(plain.forward(inputs(plain)), backbone.forward(inputs(backbone)))
    added = set(backbone.layout.ids) - set(plain.layout.ids)
    assert added == {j for e in (1, 2, 3) for j in spec.routers(e)} | {j for e in (2, 3) for j in spec.groups(e)}
    group, copy = backbone.layout["encoder.hr.1"], backbone.layout["expert.2.encoder.hr.1"]
    assert copy.tensors == group.tensors and (copy.role, copy.member, copy.modality) == ("expert", 2, "hr")
    rows = [backbone.layout[spec.router(e, "encoder.hr.1")] for e in (1, 2, 3)]
    widths = [t.shape[1] for t in group.tensors if t.kind == "lora_a"]
    assert [[t.shape for t in r.tensors] for r in rows] == [[(n, d) for d in widths] for n in (1, 2, 2)]


@pytest.mark.ci
@pytest.mark.parametrize(("most", "share"), [(2, 0.197), (3, 0.329), (4, 0.461)])
def test_routers_of_small_take_the_share_of_its_adapters_that_their_shapes_say(most, share):
    """(2 M - 1) (3 * 512 + 1024) values beside 8 (2 * 896 + 2 * 1536) of a block's adapters."""
    block = 8 * (2 * (512 + 384) + 2 * (512 + 1024))
    assert share == pytest.approx((2 * most - 1) * 2560 / block, abs=1e-3)
    layout = routed(most, moment.MomentConfig().build(moment.SHAPE, 0))[0].layout
    assert layout["encoder.acc.3"].numel == block
    router = sum(g.numel for g in layout if g.role == "router" and g.id.endswith(".encoder.acc.3"))
    assert router / block == pytest.approx(share, abs=1e-3)


def test_alike_experts_mix_to_the_plain_logits():
    backbone, spec = routed()
    moved = stirred(backbone, scale=0.1)
    backbone.load({**moved, **{spec.copy(e, j): moved[j] for e in (2, 3) for j in spec.groups(1)}})
    for number in (2, 3):
        output = spec.output(number)
        logits = read(backbone, inputs(backbone), output)[output]
        torch.testing.assert_close(logits, backbone.forward(inputs(backbone)), rtol=1e-3, atol=1e-4)


def test_own_slots_alone_give_the_own_expert():
    backbone, spec = routed()
    theta = stirred(backbone, scale=0.1)
    output, x = spec.output(2), inputs(backbone)
    assert not torch.allclose(read(backbone, x, output)[output], backbone.forward(x), atol=1e-3)
    backbone.load({j: t * 0.0 if "router" in j else t for j, t in theta.items()})
    logits = read(backbone, x, output)[output]
    torch.testing.assert_close(logits, backbone.forward(x), rtol=1e-4, atol=1e-5)


def test_every_expert_and_every_router_of_the_number_has_a_gradient_and_no_other():
    backbone, spec = routed()
    stirred(backbone, scale=0.1)
    output = spec.output(2)
    read(backbone, inputs(backbone, 8), output)[output].square().sum().backward()
    reached = {j for j, ps in backbone.parameters.items() if any(p.grad is not None and p.grad.any() for p in ps)}
    expected = {*moment.tiny().layout.ids, *spec.groups(2), *spec.routers(1), *spec.routers(2)}
    assert reached == expected


@pytest.mark.parametrize("missing", ["zero_input", "zero_feature"])
def test_reuse_gives_the_naive_logits(missing):
    backbone, spec = routed()
    stirred(backbone, scale=0.1)
    x, output = inputs(backbone), spec.output(3)
    for trained in (["expert.router.1"], ["fusion.A.acc", "fusion.B", "head.1"], list(backbone.layout.ids)):
        naive, reuse = (
            read(backbone, x, output, ("acc",), trained, engine, missing)[output] for engine in (False, True)
        )
        torch.testing.assert_close(naive, reuse, rtol=1e-4, atol=1e-5)


def test_an_absent_sensor_of_a_masked_model_reaches_nothing():
    """zero_feature: what its encoder and its experts hold does not matter."""
    backbone, spec = routed(2)
    stirred(backbone, scale=0.1)
    x, output, logits = inputs(backbone), spec.output(2), []
    for _ in range(2):
        logits.append(read(backbone, x, output, ("acc", "gyro"), missing="zero_feature")[output].detach())
        theta = backbone.params()
        backbone.load({j: t + 1.0 if j.endswith("encoder.hr.1") else t for j, t in theta.items()})
    assert torch.equal(*logits)


@pytest.mark.ci
def test_a_further_expert_costs_its_own_products_and_its_routers():
    """Per token and layer 2 r (d_in + d_out) FLOPs of an expert and 2 (2 M - 1) d_in of a router."""
    backbone, spec = routed()
    costs, group = count_costs(backbone), backbone.layout["encoder.acc.1"]
    tokens = dict(moment.SHAPE.channels)["acc"] * moment.SHAPE.window // 8
    factors = 2 * group.numel * tokens
    router = 2 * sum(t.shape[1] for t in group.tensors if t.kind == "lora_a") * tokens
    plain = costs.flops["encoder.acc.1"].forward_flops
    for number in (2, 3):
        with_experts = costs.flops[f"encoder.acc.1@expert.{number}"].forward_flops
        assert with_experts - plain == (number - 1) * factors + (2 * number - 1) * router
    names = [s.id for s in costs.running([spec.output(2)])]
    assert "encoder.acc.1@expert.2" in names and not [n for n in names if "@expert.3" in n or n == "encoder.acc.1"]


def test_only_lora_layers_in_stages_of_their_own_can_be_routed():
    for backbone, group, text in (
        (toy.build(), "encoder.acc.1", "more than the factors of PEFT"),
        (moment.tiny(), "head.1", "more than the factors of PEFT"),
        (moment.tiny(), "nobody", "no stages of their own"),
    ):
        of = tuple(g.id for g in backbone.layout if g.role in ("fusion_a", "fusion_b"))
        with pytest.raises(ValueError, match=text):
            with_extra_modules(backbone, [Experts(id="x", of=of, most=2, inside=(group,))], 0)
