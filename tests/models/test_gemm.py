"""The matrix-product encoders compute what ``nn.Conv1d`` computes: value, gradient, any length, any pooling."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call

from relief_ray.models.backbone import InputShape
from relief_ray.models.cnn import CnnConfig, columns, fused_conv1, fused_conv2, unfold
from relief_ray.models.stage import Computed

# (window, channels, pooled steps): even, odd, not divisible by the steps, shorter than the steps, one sample.
SHAPES = [(128, 9, 32), (256, 3, 32), (20, 2, 5), (21, 2, 5), (33, 1, 4), (37, 3, 8), (10, 1, 8), (1, 2, 1)]


def both(window, channels, steps, dtype):
    """Logits and gradients of the reference and of the fast backbone on the same windows."""
    shape = InputShape(channels=(("acc", channels), ("hr", 1)), window=window, num_classes=3)
    config = CnnConfig(conv1=4, conv2=6, steps=steps, fusion=5)
    generator = torch.Generator().manual_seed(window)
    raw = {m: torch.randn(9, c, window, generator=generator, dtype=dtype) for m, c in shape.channels}
    pairs = []
    for fast in (False, True):
        backbone = config.build(shape, seed=1, engine="gemm" if fast else "naive")
        for stage in backbone.stages:
            stage.module.to(dtype)
        logits = backbone.forward({m: backbone.prepare(m, x) for m, x in raw.items()})
        torch.autograd.backward(torch.logsumexp(logits, 1).sum())
        gradient = {j: torch.cat([p.grad.reshape(-1) for p in ps]) for j, ps in backbone.parameters.items()}
        pairs.append((logits.detach(), gradient))
    return pairs


@pytest.mark.parametrize(("window", "channels", "steps"), SHAPES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 2e-5)])
def test_equals_the_convolutions(window, channels, steps, dtype, tolerance):
    (expected, wanted), (logits, gradient) = both(window, channels, steps, dtype)
    assert torch.allclose(logits, expected, rtol=tolerance, atol=tolerance)
    for j, grad in gradient.items():
        assert float((grad - wanted[j]).norm()) <= tolerance * max(1.0, float(wanted[j].norm())), j


@settings(max_examples=30, deadline=None)
@given(window=st.integers(1, 40), channels=st.integers(1, 4))
def test_columns_times_weight_is_the_convolution(window, channels):
    generator = torch.Generator().manual_seed(window)
    x = torch.randn(3, channels, window, generator=generator, dtype=torch.float64)
    weight = torch.randn(2, channels, 5, generator=generator, dtype=torch.float64)
    expected = nn.functional.conv1d(x, weight, stride=2, padding=2).transpose(1, 2)
    matrix = columns("acc", x)
    assert matrix.is_contiguous() and matrix.shape == (3, (window + 1) // 2, channels * 5)
    assert torch.allclose(matrix @ weight.flatten(1).T, expected, rtol=0, atol=1e-12)


@settings(max_examples=20, deadline=None)
@given(time=st.integers(1, 14), channels=st.integers(1, 3))
def test_unfold_and_its_backward_pass(time, channels):
    x = torch.randn(2, time, channels, generator=torch.Generator().manual_seed(time), dtype=torch.float64)
    by_channel = columns("acc", x.transpose(1, 2)).unflatten(2, (channels, 5)).transpose(2, 3).flatten(2)
    conv = nn.Conv1d(channels, 2, 5)
    assert torch.equal(unfold(x, conv), by_channel)
    assert torch.autograd.gradcheck(lambda given: unfold(given, conv), (x.requires_grad_(),))


@pytest.mark.parametrize(("time", "steps"), [(12, 6), (6, 6), (18, 6), (7, 3)])
@pytest.mark.parametrize("trained", ["12", "1", "2"])
def test_written_out_passes_are_torch_s_own(time, steps, trained):
    """``functional_call`` hands parameters in, so that torch's operations take over: pooled by 2, 1, 3, unevenly."""
    make = torch.Generator().manual_seed(time)
    first, second = nn.Conv1d(3, 4, 5, 2, 2).double(), nn.Conv1d(4, 5, 5, 2, 2).double()
    whole = nn.Sequential(Computed(fused_conv1, first), Computed(partial(fused_conv2, steps), second))
    for layer, conv in (("1", first), ("2", second)):
        conv.requires_grad_(layer in trained)
    x = columns("acc", torch.randn(8, 3, 4 * time, generator=make, dtype=torch.float64))
    handed = {name: p.detach().clone().requires_grad_(p.requires_grad) for name, p in whole.named_parameters()}
    written, plain = whole(x), functional_call(whole, handed, (x,))
    assert torch.equal(written, plain)
    upper = torch.randn(written.shape, generator=make, dtype=torch.float64)
    torch.autograd.backward([written, plain], [upper, upper])
    for name, p in whole.named_parameters():
        assert (p.grad is None) == (handed[name].grad is None) == (not p.requires_grad)
        assert p.grad is None or torch.allclose(p.grad, handed[name].grad, rtol=0, atol=1e-12), name


@pytest.mark.parametrize("steps", [4, 3])
def test_no_windows_give_no_features(steps):
    """Pooled by 2, and by other numbers."""
    encoder = nn.Sequential(
        Computed(fused_conv1, nn.Conv1d(3, 4, 5, 2, 2)), Computed(partial(fused_conv2, steps), nn.Conv1d(4, 5, 5, 2, 2))
    )
    features = encoder(columns("acc", torch.zeros(0, 3, 32)))
    assert features.shape == (0, 5 * steps)
    features.sum().backward()
    assert all(not p.grad.any() for p in encoder.parameters())
