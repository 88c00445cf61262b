import pytest
import torch
from torch import nn

from relief_ray.core.stages import StageSpec
from relief_ray.models.backbone import Backbone, GroupParameters, InputShape, Stage, seeded

SHAPE = InputShape(channels=(("acc", 2),), window=4, num_classes=3)


def linear_backbone(inputs=("x.acc",), owns="head.1"):
    """One linear layer on the flattened window."""
    head = nn.Linear(8, 3)
    flat = nn.Sequential(nn.Flatten(), head)
    tensors = (("weight", head.weight, "weight"), ("bias", head.bias, "bias"))
    group = GroupParameters(id="head.1", role="head", modality=None, layer=1, tensors=tensors)
    stage = Stage(spec=StageSpec(id="head", inputs=inputs, groups=frozenset([owns])), module=flat)
    return Backbone(SHAPE, [stage], [group])


def test_shape_names_its_modalities():
    assert SHAPE.modalities == ("acc",)


def test_params_are_copies_and_load_restores_them():
    backbone = linear_backbone()
    before = backbone.params()
    assert before["head.1"].shape == (27,)
    before["head.1"].zero_()
    assert backbone.params()["head.1"].abs().sum() > 0
    backbone.load(before)
    assert torch.equal(backbone.params()["head.1"], torch.zeros(27))


def test_load_puts_each_value_where_the_layout_says():
    backbone = linear_backbone()
    theta = torch.arange(27.0)
    backbone.load({"head.1": theta})
    tensors = backbone.layout.unflatten("head.1", theta)
    weight, bias = backbone.parameters["head.1"]
    assert torch.equal(weight, tensors["weight"]) and torch.equal(bias, tensors["bias"])
    windows = torch.randn(5, 2, 4, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(
        backbone.forward({"acc": windows}), windows.flatten(1) @ tensors["weight"].T + tensors["bias"]
    )


def test_unknown_input_is_refused():
    with pytest.raises(ValueError, match=r"stage 'head' reads \['x.gyro'\]; earlier stages and inputs are \['x.acc'\]"):
        linear_backbone(inputs=("x.gyro",))


def test_unknown_group_is_refused():
    with pytest.raises(ValueError, match=r"stage 'head' owns unknown groups \['tail'\]"):
        linear_backbone(owns="tail")


def test_seeded_build_repeats_and_leaves_the_global_generator_alone():
    before = torch.random.get_rng_state()
    first, second, other = (seeded(lambda: nn.Linear(3, 3), seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first.weight, second.weight) and not torch.equal(first.weight, other.weight)
