"""Backbone 1 against Section VI-A, Table I, and one plain linear fusion layer."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import nn

from relief_ray.core.codec import encoded_nbytes
from relief_ray.models.backbone import InputShape
from relief_ray.models.cnn import CnnConfig

PAMAP2 = InputShape(channels=(("acc", 9), ("gyro", 9), ("mag", 9), ("hr", 1)), window=256, num_classes=12)
SMALL = InputShape(channels=(("acc", 3), ("gyro", 2), ("hr", 1)), window=20, num_classes=4)
TINY = CnnConfig(conv1=3, conv2=4, steps=5, fusion=6)


def windows_of(shape, num=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {m: torch.randn(num, c, shape.window, generator=generator) for m, c in shape.channels}


def reference(config, shape, seed):
    """The same model out of torch's own modules, one fusion layer on concatenated features."""

    def default(build, offset):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed + offset)
            return build()

    def encoder(channels):
        first = nn.Conv1d(channels, config.conv1, 5, stride=2, padding=2)
        second = nn.Conv1d(config.conv1, config.conv2, 5, stride=2, padding=2)
        return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.AdaptiveAvgPool1d(config.steps), nn.Flatten())

    width = config.conv2 * config.steps * len(shape.channels)
    fusion = default(lambda: nn.Linear(width, config.fusion), 0)
    head = default(lambda: nn.Linear(config.fusion, shape.num_classes), 1)
    encoders = [default(lambda c=c: encoder(c), 2 + i) for i, (_, c) in enumerate(shape.channels)]
    return encoders, fusion, head


def reference_forward(model, windows):
    encoders, fusion, head = model
    features = [encoder(x) for encoder, x in zip(encoders, windows.values(), strict=True)]
    return head(torch.relu(fusion(torch.cat(features, 1))))


@pytest.fixture(scope="module")
def pamap2():
    return CnnConfig().build(PAMAP2, seed=0)


def test_pamap2_has_the_papers_size(pamap2):
    assert pamap2.layout.numel == 1_261_820
    assert sum(p.numel() for ps in pamap2.parameters.values() for p in ps) == 1_261_820
    sizes = {g.id: g.numel for g in pamap2.layout}
    assert sizes["fusion.A.hr"] == 304 * 1024 and sizes["fusion.B"] == 304 and sizes["head.1"] == 304 * 12 + 12
    assert sizes["encoder.acc.1"] == 16 * 9 * 5 + 16 and sizes["encoder.acc.2"] == 32 * 16 * 5 + 32


def test_fedavg_uploads_table_ones_figure(pamap2):
    assert 4 * pamap2.layout.numel / 2**20 == pytest.approx(4.81, abs=0.005)
    assert encoded_nbytes(pamap2.layout, pamap2.layout.select()) / 2**20 == pytest.approx(4.81, abs=0.005)


def test_number_of_groups_is_the_papers_formula(pamap2):
    num_modalities, layers, head_layers = 4, 2, 1
    assert len(pamap2.layout) == num_modalities + 1 + num_modalities * layers + head_layers
    roles = [g.role for g in pamap2.layout]
    assert [roles.count(r) for r in ("fusion_a", "fusion_b", "encoder", "head")] == [4, 1, 8, 1]
    assert pamap2.layout.modalities == PAMAP2.modalities


@pytest.mark.parametrize("fast", [False, True])
def test_initial_values_are_slices_of_default_initialised_layers(fast):
    encoders, fusion, head = reference(TINY, SMALL, seed=11)
    backbone = TINY.build(SMALL, seed=11, engine="gemm" if fast else "naive")
    params = backbone.params()
    assert torch.equal(backbone.layout.matrix("fusion_a", params), fusion.weight)
    assert torch.equal(params["fusion.B"], fusion.bias)
    assert torch.equal(params["head.1"], torch.cat([head.weight.flatten(), head.bias]))
    for encoder, (modality, _) in zip(encoders, SMALL.channels, strict=True):
        for layer, conv in ((1, encoder[0]), (2, encoder[2])):
            expected = torch.cat([conv.weight.flatten(), conv.bias])
            assert torch.equal(params[f"encoder.{modality}.{layer}"], expected)


def test_column_blocks_equal_one_linear_layer_in_value_and_gradient():
    encoders, fusion, head = model = [
        m.double() if isinstance(m, nn.Module) else [e.double() for e in m] for m in reference(TINY, SMALL, 3)
    ]
    backbone = TINY.build(SMALL, seed=3)
    for stage in backbone.stages:
        stage.module.double()
    windows = {m: x.double() for m, x in windows_of(SMALL).items()}
    ours, theirs = backbone.forward(windows), reference_forward(model, windows)
    assert torch.allclose(ours, theirs, rtol=0, atol=1e-12)
    torch.autograd.backward(ours.square().sum())
    torch.autograd.backward(theirs.square().sum())
    gradients = {j: torch.cat([p.grad.reshape(-1) for p in ps]) for j, ps in backbone.parameters.items()}
    assert torch.allclose(backbone.layout.matrix("fusion_a", gradients), fusion.weight.grad, rtol=0, atol=1e-12)
    assert torch.allclose(gradients["fusion.B"], fusion.bias.grad, rtol=0, atol=1e-12)
    assert torch.allclose(
        gradients["encoder.gyro.2"][: 4 * 3 * 5], encoders[1][2].weight.grad.flatten(), rtol=0, atol=1e-12
    )
    assert torch.allclose(gradients["head.1"][-4:], head.bias.grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize("fast", [False, True])
def test_seed_decides_the_model_and_nothing_else(fast):
    first, again, other = (TINY.build(SMALL, seed, fast).params() for seed in (5, 5, 6))
    assert all(torch.equal(first[j], again[j]) for j in first)
    assert not any(torch.equal(first[j], other[j]) for j in first)


@settings(max_examples=20, deadline=None)
@given(
    num=st.integers(1, 4),
    conv1=st.integers(1, 4),
    conv2=st.integers(1, 4),
    steps=st.integers(1, 6),
    fusion=st.integers(1, 5),
)
def test_size_and_groups_for_any_widths(num, conv1, conv2, steps, fusion):
    channels = tuple((f"m{i}", i + 1) for i in range(num))
    shape = InputShape(channels=channels, window=12, num_classes=3)
    backbone = CnnConfig(conv1=conv1, conv2=conv2, steps=steps, fusion=fusion).build(shape, 0)
    encoders = sum(conv1 * c * 5 + conv1 + conv2 * conv1 * 5 + conv2 for _, c in channels)
    assert backbone.layout.numel == encoders + fusion * conv2 * steps * num + fusion + 3 * fusion + 3
    assert len(backbone.layout) == num + 1 + 2 * num + 1
    assert backbone.forward(windows_of(shape, 2)).shape == (2, 3)


@pytest.mark.parametrize("bad", [{"fusion": 0}, {"steps": -1}, {"depth": 3}, {"name": "rnn"}])
def test_impossible_widths_are_refused(bad):
    with pytest.raises(ValidationError):
        CnnConfig(**bad)
