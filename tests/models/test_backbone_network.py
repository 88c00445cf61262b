"""The server's own backbone against the plain forward pass and the trainer's idea of an absent modality."""

import pytest
import torch

from relief_ray.core.extra_modules import Classifier
from relief_ray.models.backbone import BackboneNetwork
from relief_ray.models.extra import with_extra_modules
from tests.training.scenario import SHAPE, TINY

EARLY = Classifier(id="exit.1", after=tuple(f"encoder.{m}.1" for m in SHAPE.modalities), layer=1)


def network(missing="zero_input"):
    return BackboneNetwork(with_extra_modules(TINY.build(SHAPE, 0), [EARLY], 0), missing)


def windows(modalities=SHAPE.modalities, num=5):
    make = torch.Generator().manual_seed(1)
    raw = {m: torch.randn(num, c, SHAPE.window, generator=make) for m, c in SHAPE.channels}
    return {m: raw[m] for m in modalities}


def test_the_head_reads_what_the_forward_pass_gives():
    net = network()
    read = net.read(windows(), [None, "exit.1"])
    plain = TINY.build(SHAPE, 0)
    torch.testing.assert_close(read[None].logits, plain.forward(windows()))
    weight, bias = plain.layout.unflatten("head.1", plain.params()["head.1"]).values()
    torch.testing.assert_close(read[None].features @ weight.T + bias, read[None].logits)
    assert read["exit.1"].features.shape == (5, 3 * TINY.conv1 * TINY.steps)
    assert (net.window, net.num_classes) == (SHAPE.window, SHAPE.num_classes)
    assert net.channels == dict(SHAPE.channels)


@pytest.mark.parametrize("missing", ["zero_input", "zero_feature"])
def test_an_absent_modality_is_what_the_run_says(missing):
    logits = network(missing).read(windows(("acc",)), [None])[None].logits
    plain, raw = TINY.build(SHAPE, 0), windows()
    zero = {m: raw[m] if m == "acc" else torch.zeros_like(raw[m]) for m in raw}
    if missing == "zero_input":
        torch.testing.assert_close(logits, plain.forward(zero))
    else:
        for stage in plain.stages:
            if stage.spec.feature and stage.spec.modality != "acc":
                stage.module.register_forward_hook(lambda _, inputs, output: output * 0.0)
        torch.testing.assert_close(logits, plain.forward(zero))


def test_windows_and_parameters_get_gradients_and_load_changes_what_is_read():
    net = network()
    raw = {m: x.requires_grad_() for m, x in windows().items()}
    read = net.read(raw, ["exit.1"])["exit.1"].logits
    exit_weight, deep = net.parameters["exit.1"][0], net.parameters["encoder.acc.2"][0]
    gradients = torch.autograd.grad(read.sum(), [*raw.values(), exit_weight, deep], allow_unused=True)
    assert all(g is not None and bool(g.any()) for g in gradients[:-1]) and gradients[-1] is None, "layer 2 is behind"
    other = with_extra_modules(TINY.build(SHAPE, 9), [EARLY], 9).params()
    net.load(other)
    assert not torch.allclose(net.read(windows(), ["exit.1"])["exit.1"].logits, read)
