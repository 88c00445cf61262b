"""Backbones that would silently be trained wrongly are refused when built, with stage and parameter."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from relief_ray.core.stages import StageSpec
from relief_ray.models.backbone import Backbone, GroupParameters, InputShape, Stage
from relief_ray.models.costs import count_costs
from relief_ray.models.modes import TrainingMode
from relief_ray.support.errors import UserError

SHAPE = InputShape(channels=(("acc", 2),), window=4, num_classes=3)


def build(*layers, groups=None, owns=("head",), pool=None):
    """One stage of ``layers`` behind a linear layer; group ``head`` has all parameters that need a gradient."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(8, 3), *layers)
    tensors = tuple((n, p, "weight") for n, p in module.named_parameters() if p.requires_grad)
    head = GroupParameters(id="head", role="head", modality=None, layer=1, tensors=tensors)
    spec = StageSpec(id="last", inputs=("x.acc",), groups=frozenset(owns))
    stage = Stage(spec=spec, module=module, pool=pool)
    return Backbone(SHAPE, [stage], groups(head) if groups else [head])


def frozen(layer):
    return layer.requires_grad_(False)


def test_what_fits_is_built():
    assert count_costs(build(nn.LayerNorm(3), frozen(nn.Linear(3, 3)))).num_values == {"head": 33}


def test_a_stage_that_forgets_its_group():
    said = r"stage 'last' computes with parameter '1.weight' of group 'head', but owns \[\]; add 'head'"
    with pytest.raises(UserError, match=said):
        build(owns=())


def test_a_group_that_no_stage_owns():
    extra = GroupParameters(
        id="lost", role="head", modality=None, layer=2, tensors=(("w", nn.Parameter(torch.ones(2)), "weight"),)
    )
    with pytest.raises(UserError, match="no stage owns group 'lost', which would never be trained"):
        build(groups=lambda head: [head, extra])
    with pytest.raises(
        UserError, match=r"parameters \['w'\] of group 'lost' are in no module of its stages \['last'\]"
    ):
        build(groups=lambda head: [head, extra], owns=("head", "lost"))


def test_a_parameter_of_no_dimension():
    scaled = nn.Linear(3, 3)
    scaled.scale = nn.Parameter(torch.tensor(1.0))
    with pytest.raises(UserError, match=r"parameter '2.scale' of group 'head' has no dimension.*the shape \(1,\)"):
        build(scaled)


def test_a_parameter_in_no_group():
    with pytest.raises(
        UserError, match=r"stage 'last' computes with parameter '1.bias', which is in no group.*freeze it"
    ):
        build(groups=lambda head: [replace(head, tensors=head.tensors[:1])])


def test_a_parameter_in_two_groups():
    with pytest.raises(UserError, match=r"'1.weight' of group 'again' is declared in 'head' already"):
        build(groups=lambda head: [head, replace(head, id="again")], owns=("head", "again"))


def test_a_pool_that_learns():
    with pytest.raises(UserError, match="the pool of stage 'last' has the trainable parameter 'weight'"):
        build(pool=nn.Linear(3, 3))
    assert build(pool=frozen(nn.Linear(3, 3))).stages[0].pool is not None


SWITCHED = [
    nn.Dropout(0.5),
    nn.Sequential(nn.ReLU(), nn.AlphaDropout(0.1)),
    nn.BatchNorm1d(3),
    nn.Sequential(nn.Unflatten(1, (1, 3)), nn.InstanceNorm1d(1, track_running_stats=True), nn.Flatten()),
    nn.RReLU(),
]


@pytest.mark.parametrize("layer", SWITCHED, ids=lambda layer: type(layer).__name__)
def test_layers_of_training_are_in_test_mode_but_for_its_steps(layer):
    """Drawn values and statistics of batches: the stage varies in training, and is a function everywhere else."""
    backbone = build(layer)
    (stage,) = backbone.stages
    assert stage.spec.varies and len(stage.switched) == 1 and not stage.switched[0].training
    count_costs(backbone)
    again = Backbone(SHAPE, backbone.stages, backbone.declared)
    assert again.stages == backbone.stages, "found once, kept by backbones that are made of this one"
    x = torch.randn(6, 2, 4, generator=torch.Generator().manual_seed(0))
    mode = TrainingMode(backbone.stages, 1, torch.device("cpu"))
    quiet = backbone.forward({"acc": x})
    with mode.step(6):
        assert not torch.equal(backbone.forward({"acc": x}), quiet)
    if not backbone.statistics:
        assert torch.equal(backbone.forward({"acc": x}), quiet)


@pytest.mark.parametrize("layer", [nn.LSTM(3, 3, num_layers=2, dropout=0.2), nn.MultiheadAttention(3, 1, dropout=0.2)])
def test_dropout_within_other_layers_is_found(layer):
    assert [type(x) for x in build(layer).stages[0].switched] == [type(layer)]


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(3, track_running_stats=False)])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_without_statistics_is_refused(layer, training):
    with pytest.raises(UserError, match=r"layer '2': BatchNorm1d has no running statistics.*track_running_stats on"):
        build(layer.train(training))


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.BatchNorm1d(3), nn.RReLU()])
def test_a_pool_is_a_function(layer):
    with pytest.raises(UserError, match="is no function of its inputs in training; leave it out of a pool"):
        build(pool=frozen(layer))


@pytest.mark.parametrize(
    "layer", [nn.Dropout(0.0), nn.Dropout(0.5).eval(), nn.BatchNorm1d(3).eval(), nn.LayerNorm(3), nn.GroupNorm(1, 3)]
)
def test_layers_that_are_a_function(layer):
    backbone = build(layer)
    count_costs(backbone)
    assert not backbone.stages[0].spec.varies and not backbone.statistics
    x = torch.randn(6, 2, 4, generator=torch.Generator().manual_seed(0))
    whole = backbone.forward({"acc": x})
    assert torch.equal(backbone.forward({"acc": x}), whole)
    assert torch.allclose(backbone.forward({"acc": x[:2]}), whole[:2], atol=1e-6)


class Noise(nn.Module):
    """Dropout by hand: no layer of torch's own."""

    def forward(self, x):
        return nn.functional.dropout(x, 0.5, training=True)


class Mean(nn.Module):
    """Keeps a running mean of its own."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x):
        self.mean += 0.1 * x.detach().mean(0)
        return x - self.mean


class Function(nn.Module):
    """A layer of a user's own."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


MIXED = r"mixes the windows of a batch.*GroupNorm, LayerNorm"


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (Noise(), "draws random numbers"),
        (Mean(), r"changes its buffers \['2.mean'\]"),
        (Function(lambda x: x - x.mean(0)), MIXED),
        (Function(lambda x: torch.softmax(x, 0)), MIXED),
        (
            Function(lambda x: nn.functional.batch_norm(x, None, None, training=True)),
            r"cannot do with one window \(Expected more than 1 value",
        ),
        (Function(lambda x: x.sum(0, keepdim=True)), MIXED),
    ],
    ids=["noise", "mean", "centre", "softmax", "batch norm", "one row"],
)
def test_what_only_a_forward_pass_shows_is_refused_when_costs_are_counted(layer, said):
    backbone = build(layer)
    with pytest.raises(UserError, match=f"stage 'last' {said}"):
        count_costs(backbone)


def test_a_stage_that_writes_to_its_input():
    backbone = build()
    backbone.stages[0].module.insert(0, Function(lambda x: x.div_(9.81)))
    with pytest.raises(UserError, match=r"stage 'last' writes to its inputs \['x.acc'\].*return a new tensor"):
        count_costs(backbone)


def test_a_pool_that_mixes_windows():
    with pytest.raises(UserError, match="stage 'last', its pool, mixes the windows"):
        count_costs(build(pool=Function(lambda x: x - x.mean(0))))


def test_windows_that_are_mixed_when_they_are_prepared():
    built = build()
    backbone = Backbone(SHAPE, built.stages, built.declared, prepare=lambda m, x: x - x.mean(0))
    with pytest.raises(UserError, match="preparing modality 'acc' mixes the windows"):
        count_costs(backbone)


@pytest.mark.parametrize(
    "layer", [nn.GroupNorm(1, 3), nn.Softmax(1), Function(lambda x: x / x.norm(dim=1, keepdim=True))]
)
def test_statistics_of_one_window_are_fine(layer):
    assert count_costs(build(layer)).num_values["head"] >= 27
