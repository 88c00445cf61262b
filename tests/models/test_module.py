"""A plain nn.Module as a backbone: what is derived from it, and what is refused with place and fix."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from relief_ray.experiment.setup import prepare
from relief_ray.models.backbone import BackboneNetwork
from relief_ray.models.costs import count_costs
from relief_ray.models.module import from_module
from relief_ray.strategies import PRESETS
from relief_ray.support.errors import UserError
from tests.conformance.cases import config_of
from tests.nets import TCN, Attentive, Net, NormedFusion, Tcn
from tests.training.scenario import SHAPE


def net(kind=Net, seed=0):
    torch.manual_seed(seed)
    return kind(SHAPE.channels, SHAPE.num_classes)


def windows(num=5, seed=1):
    make = torch.Generator().manual_seed(seed)
    return {m: torch.randn(num, c, SHAPE.window, generator=make) for m, c in SHAPE.channels}


def test_groups_are_the_layers_and_the_fusion_s_columns():
    backbone = from_module(net(), SHAPE)
    encoders = [f"encoder.{m}.{i}" for m in ("acc", "gyro", "hr") for i in (1, 2)]
    assert backbone.layout.ids == ("fusion.A.acc", "fusion.A.gyro", "fusion.A.hr", "fusion.B", *encoders, "head.1")
    assert [g.role for g in backbone.layout][:5] == ["fusion_a"] * 3 + ["fusion_b", "encoder"]
    assert backbone.layout["encoder.gyro.2"].layer == 2 and backbone.layout["encoder.gyro.2"].modality == "gyro"
    assert [t.name for t in backbone.layout["encoder.acc.1"].tensors] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert backbone.layout.numel == sum(p.numel() for p in net().parameters()) and not backbone.warnings
    features = [s.id for s in backbone.specs if s.feature]
    assert features == ["encoder.acc.2", "encoder.gyro.2", "encoder.hr.2"]


@pytest.mark.parametrize("kind", [Net, NormedFusion])
def test_logits_are_the_module_s_own(kind):
    module = net(kind)
    backbone = from_module(module, SHAPE)
    torch.testing.assert_close(backbone.forward(windows()), module.eval()(windows()))


def test_a_column_block_is_the_sensor_s_columns_of_the_first_layer():
    module = net()
    backbone = from_module(module, SHAPE)
    blocks = [backbone.parameters[f"fusion.A.{m}"][0] for m in SHAPE.modalities]
    assert torch.equal(torch.cat(blocks, 1), module.fusion[0].weight)


def test_another_fusion_is_one_shared_group_and_says_so():
    backbone = Attentive().build(SHAPE, seed=3)
    assert [g.id for g in backbone.layout if g.modality is None] == ["fusion.B", "head.1", "head.2"]
    (said,) = backbone.warnings
    assert said.startswith("module: the fusion begins with Attention, not with a trained nn.Linear")


@pytest.mark.parametrize(
    ("method", "more", "is_told"),
    [
        ("relief", {}, True),
        ("v3", {}, True),
        ("relief", {"cover": True}, False),
        ("relief", {"slots_slowest": 1}, False),
        ("v1", {}, False),
        ("fedavg", {}, False),
    ],
)
@pytest.mark.parametrize("backbone", ["tests.nets:Tcn", "tests.nets:Attentive"])
def test_relief_says_where_it_would_train_nothing(run_cache, method, more, backbone, is_told):
    strategy = PRESETS[method].model_copy(update=more).model_dump(mode="json")
    warnings = prepare(config_of(method, backbone=backbone, strategy=strategy)).warnings
    assert any(line.startswith("nothing is trained after the bootstrap") for line in warnings) is is_told


def test_layers_that_differ_in_training_are_found_wherever_they_are():
    """Functional dropout, recurrent and attention dropout, batch norm; head and column blocks do not vary."""
    varying = {s.id for s in Attentive().build(SHAPE, seed=3).specs if s.varies}
    assert varying == {"encoder.acc.1", "encoder.gyro.1", "encoder.hr.1", "fusion"}
    backbone = from_module(net(), SHAPE)
    assert {s.id for s in backbone.specs if not s.varies} == {f"fusion.A.{m}" for m in SHAPE.modalities} | {"head.1"}
    assert len(backbone.statistics.layers) == 6
    quiet = net()
    quiet.eval()
    assert not any(s.varies for s in from_module(quiet, SHAPE).specs), "pretrained and in test mode: stays so"


def test_costs_are_counted_on_the_module():
    """Forward: convolutions 3 -> 4 channels (10 steps, kernel 5) and 4 -> 4 (8 steps, kernel 3), matrix products."""
    costs = count_costs(from_module(net(), SHAPE)).flops
    assert costs["encoder.acc.1"].forward_flops == 2 * 3 * 4 * 5 * 10
    assert costs["encoder.acc.2"].forward_flops == 2 * 4 * 4 * 3 * 8
    assert costs["fusion.A.acc"].forward_flops == 2 * 8 * 6 and costs["head.1"].forward_flops == 2 * 6 * 4
    assert costs["encoder.acc.2"].weight_grad_flops["encoder.acc.2"] == 2 * 4 * 4 * 3 * 8


def test_frozen_layers_are_stages_of_their_own():
    """What they compute is kept for a round; a part without any parameter has no group."""
    module = net()
    for encoder in module.encoders.values():
        encoder[:4].requires_grad_(False).eval()
    module.encoders["hr"] = nn.Sequential(nn.AdaptiveAvgPool1d(8), nn.Flatten())
    backbone = from_module(module, SHAPE)
    assert [s.id for s in backbone.specs][:3] == ["encoder.acc.0.frozen", "encoder.acc.1", "encoder.gyro.0.frozen"]
    assert not backbone.specs[0].groups and "encoder.hr.0.frozen" in [s.id for s in backbone.specs]
    torch.testing.assert_close(backbone.forward(windows()), module.eval()(windows()))


def test_one_activation_in_two_places_is_two_steps():
    module, relu = net(), nn.ReLU()
    module.head = nn.Sequential(nn.Linear(6, 5), relu, nn.Linear(5, 4), relu)
    assert from_module(module, SHAPE).layout.ids[-2:] == ("head.1", "head.2")


def test_a_module_without_encoders_is_body_and_head():
    """The head is the layer with weights that runs last, wherever the module has it; the body's output is kept."""
    module = TCN(6, 4, SHAPE.num_classes)
    given = windows()
    expected = module.eval()(torch.cat(list(given.values()), 1))
    backbone = from_module(module.train(), SHAPE)
    assert [(g.id, g.role, g.modality) for g in backbone.layout] == [("body", "encoder", None), ("head", "head", None)]
    assert [t.name for t in backbone.layout["body"].tensors] == ["module.net.0.weight", "module.net.0.bias"]
    assert [(s.id, s.inputs, s.varies) for s in backbone.specs] == [
        ("body", ("x.acc", "x.gyro", "x.hr"), True),
        ("head", ("body",), False),
    ]
    assert torch.equal(backbone.forward(given), expected) and not backbone.layout.mandatory(SHAPE.modalities)
    assert not backbone.warnings


def test_its_first_values_are_the_seed_s():
    first, same, other = (Tcn().build(SHAPE, seed).params() for seed in (1, 1, 2))
    assert all(torch.equal(first[j], same[j]) for j in first) and not torch.equal(first["head"], other["head"])


class BySensor(nn.Module):
    """Goes on after its head: the mean over time of logits."""

    def __init__(self):
        super().__init__()
        self.gru, self.classes = nn.GRU(6, 5, batch_first=True), nn.Linear(5, 4)

    def forward(self, windows):
        return self.classes(self.gru(torch.cat([*windows.values()], 1).transpose(1, 2))[0]).mean(1)


def test_a_module_that_goes_on_after_its_head_is_one_stage_of_both_groups():
    module, given = BySensor(), windows()
    backbone = from_module(module, SHAPE, by_sensor=True)
    assert backbone.layout.ids == ("body", "head") and [s.id for s in backbone.specs] == ["model"]
    assert backbone.layout["head"].numel == 5 * 4 + 4
    assert torch.equal(backbone.forward(given), module(given))


PLAIN_REFUSED = {
    "other channels": (lambda: TCN(5, 4, 4), r"TCN.forward on windows \(B, 6, T\), .*: acc 3, gyro 2, hr 1"),
    "a dict": (BySensor, "BySensor.forward on windows .*, as by_sensor is False, fails"),
    "other classes": (lambda: TCN(6, 4, 9), r"TCN.forward gives \(B, 9\), expected \(B, 4\), one logit a class"),
    "no weights": (lambda: nn.Sequential(nn.Flatten()), "Sequential runs no layer with weights"),
    "two outputs": (
        lambda: type("Two", (TCN,), {"forward": lambda self, x: (TCN.forward(self, x), 0)})(6, 4, 4),
        r"model gives a tuple for two windows, expected a tensor",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLAIN_REFUSED)
def test_what_is_refused_of_a_module_without_encoders(name):
    make, said = PLAIN_REFUSED[name]
    with pytest.raises(UserError, match=said):
        from_module(make(), SHAPE)


def without_head(module):
    del module.head


def add_scale(module):
    module.scale = nn.Parameter(torch.ones(1))


def tie(module):
    module.encoders["gyro"][4] = module.encoders["acc"][4]


class Activated(Net):
    def forward(self, windows):
        return super().forward({m: torch.relu(x) for m, x in windows.items()})


class Positional(Net):
    def forward(self, acc, gyro, hr):
        return super().forward({"acc": acc, "gyro": gyro, "hr": hr})


class Counting(nn.Module):
    """Counts in training only."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        if self.training:
            self.seen += len(x)
        return x


REFUSED = {
    "no head": (without_head, "Net has no part head, only encoders, fusion; name its parts by the class variables"),
    "a sensor without encoder": (
        lambda n: n.encoders.pop("hr"), r"encoders are of \['acc', 'gyro'\], expected one for each sensor",
    ),
    "a parameter outside": (add_scale, r"parameters \['scale'\] are in none of them: move them into a part"),
    "shared weights": (tie, r"of group 'encoder.gyro.2' is declared in 'encoder.acc.2' already.*sent apart"),
    "a feature map": (
        lambda n: n.encoders["acc"].pop(-1), r"encoder of 'acc' gives \(B, 4, 2\), expected one vector a window",
    ),
    "an encoder for three channels": (
        lambda n: n.encoders["hr"].__setitem__(0, nn.Conv1d(3, 4, 3)),
        r"encoder.hr.1 fails on an input of the shape \(B, 1, 24\).*these channels: acc 3, gyro 2, hr 1",
    ),
    "a fusion too wide": (
        lambda n: n.fusion.__setitem__(0, nn.Linear(9, 6)), r"takes 9 features, the encoders give 8 \+ 8 \+ 8 = 24",
    ),
    "too many classes": (lambda n: setattr(n, "head", nn.Linear(6, 9)), r"head gives \(B, 9\), expected \(B, 4\)"),
    "another forward": (lambda n: setattr(n, "__class__", Activated), "forward gives other logits than head"),
    "a forward of three": (lambda n: setattr(n, "__class__", Positional), "fails on a dict of windows"),
    "a count": (
        lambda n: setattr(n, "head", nn.Sequential(n.head, Counting())),
        r"head.1 changes its buffers \['1.seen'\] in training",
    ),
    "statistics that are not kept": (
        lambda n: n.fusion.append(nn.BatchNorm1d(6, track_running_stats=False)), "has no running statistics",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    edit, said = REFUSED[name]
    module = net()
    edit(module)
    with pytest.raises(UserError, match=said):
        from_module(module, SHAPE)


def test_the_server_has_no_statistics():
    with pytest.raises(UserError, match="no running statistics for 6 BatchNorm layers: they stay on the clients"):
        BackboneNetwork(from_module(net(), SHAPE), "zero_input")
    BackboneNetwork(Attentive().build(replace(SHAPE, num_classes=2), 0), "zero_input")
