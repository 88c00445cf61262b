"""Backbone 1 at its real size on the shapes of two data sets: what the fast engine's order of sums amounts to."""

import pytest
import torch

from relief_ray.config import TrainingConfig
from relief_ray.data.spec import get_spec
from relief_ray.models.backbone import InputShape
from relief_ray.models.cnn import CnnConfig
from relief_ray.training.trainer import ClientInputs
from tests.training.scene import Scene, distance

NUM_WINDOWS, TRAINING = 256, TrainingConfig()


def trained(engine, dtype, spec, present, groups):
    """The update of an epoch on noise around a prototype per class."""
    make = torch.Generator().manual_seed(0)
    labels = torch.randint(0, len(spec.classes), (NUM_WINDOWS,), generator=make)
    raw = {}
    for m, c in spec.modalities:
        prototypes = torch.randn(len(spec.classes), c, spec.window, generator=make)
        raw[m] = (prototypes[labels] + torch.randn(NUM_WINDOWS, c, spec.window, generator=make)).to(dtype)
    shape = InputShape(channels=spec.modalities, window=spec.window, num_classes=len(spec.classes))
    backbone = CnnConfig().build(shape, 0, fast=engine == "gemm")
    for stage in backbone.stages:
        stage.module.to(dtype)
    scene = Scene(engine, dtype=dtype, lr=TRAINING.lr, backbone=backbone, batch=TRAINING.batch_size)
    inputs = ClientInputs(inputs={m: backbone.prepare(m, raw[m]) for m in present}, labels=labels)
    return scene.train(groups, inputs=inputs, present=present)


@pytest.mark.parametrize("dataset", ["pamap2", "dsa"])
@pytest.mark.parametrize("present", [1, 2, None], ids=["type C", "type B", "type A"])
@pytest.mark.parametrize("groups", ["everything", "own"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 2e-3)])
def test_matrix_products_change_nothing_after_an_epoch(dataset, present, groups, dtype, tolerance):
    spec = get_spec(dataset)
    owned = spec.names[:present]
    chosen = None if groups == "everything" else (*(f"fusion.A.{m}" for m in owned), "fusion.B", "head.1")
    naive, gemm = (trained(engine, dtype, spec, owned, chosen) for engine in ("naive", "gemm"))
    assert naive.receipt.work.num_steps == 8 and 0.0 < distance(gemm, naive) <= tolerance
