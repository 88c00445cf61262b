"""Backbone 1 at its real size on the shapes of two data sets: what the fast engine's order of sums amounts to."""

import pytest
import torch

from relief_ray.config.experiment import TrainingConfig
from relief_ray.data.registry import get_spec
from relief_ray.models.backbone import InputShape
from relief_ray.models.cnn import CnnConfig
from relief_ray.training.inputs import ClientInputs
from tests.training.scenario import Scenario, distance

NUM_WINDOWS, TRAINING = 256, TrainingConfig()


def trained(engine, dtype, spec, present, groups, *, num=NUM_WINDOWS, epochs=1, missing="zero_input"):
    """The update of some epochs on noise around a prototype per class."""
    make = torch.Generator().manual_seed(0)
    labels = torch.randint(0, len(spec.classes), (num,), generator=make)
    raw = {}
    for m, c in spec.modalities:
        prototypes = torch.randn(len(spec.classes), c, spec.window, generator=make)
        raw[m] = (prototypes[labels] + torch.randn(num, c, spec.window, generator=make)).to(dtype)
    shape = InputShape(channels=spec.modalities, window=spec.window, num_classes=len(spec.classes))
    backbone = CnnConfig().build(shape, 0, engine=engine)
    for stage in backbone.stages:
        stage.module.to(dtype)
    scenario = Scenario(engine, missing, dtype, lr=TRAINING.lr, backbone=backbone, batch=TRAINING.batch_size)
    inputs = ClientInputs(inputs={m: backbone.prepare(m, raw[m]) for m in present}, labels=labels)
    return scenario.train(groups, epochs, inputs=inputs, present=present)


@pytest.mark.ci
@pytest.mark.parametrize("dataset", ["pamap2", pytest.param("dsa", marks=pytest.mark.slow)])
@pytest.mark.parametrize("present", [1, 2, None], ids=["type C", "type B", "type A"])
@pytest.mark.parametrize("groups", ["everything", "own"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 2e-3)])
@pytest.mark.parametrize("engine", ["gemm", "fused"])
def test_a_fast_engine_changes_nothing_after_an_epoch(dataset, present, groups, dtype, tolerance, engine):
    spec = get_spec(dataset)
    owned = spec.names[:present]
    chosen = None if groups == "everything" else (*(f"fusion.A.{m}" for m in owned), "fusion.B", "head.1")
    naive, fast = (trained(e, dtype, spec, owned, chosen) for e in ("naive", engine))
    assert naive.receipt.work.num_steps == 8 and 0.0 < distance(fast, naive) <= tolerance


@pytest.mark.ci
@pytest.mark.parametrize("dataset", ["pamap2", pytest.param("dsa", marks=pytest.mark.slow)])
@pytest.mark.parametrize("present", [1, 2, None], ids=["type C", "type B", "type A"])
@pytest.mark.parametrize("groups", ["everything", "own"])
@pytest.mark.parametrize("missing", ["zero_input", "zero_feature"])
def test_reuse_changes_nothing_in_five_epochs(dataset, present, groups, missing):
    spec = get_spec(dataset)
    owned = spec.names[:present]
    chosen = None if groups == "everything" else (*(f"fusion.A.{m}" for m in owned), "fusion.B", "head.1")
    options = {"num": 64, "epochs": 5, "missing": missing}
    naive, reuse = (trained(engine, torch.float32, spec, owned, chosen, **options) for engine in ("naive", "reuse"))
    assert naive.receipt.work.num_steps == 10 and distance(reuse, naive) <= 1e-5
