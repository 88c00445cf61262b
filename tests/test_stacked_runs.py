"""Whole runs whose clients take their steps together come to what they come to one after the other."""

import pytest
import torch
from safetensors.torch import load_file

from relief_ray.config.experiment import parse
from relief_ray.experiment.experiment import run_cell as drive
from relief_ray.records import checkpoint
from relief_ray.records.run_folder import read_rounds
from relief_ray.strategies import PRESETS
from relief_ray.training.stacked_step import CudaGraphStep
from tests.conformance.cases import BASE, MOMENT, strategy_values
from tests.training.test_stacked import Refusing

pytestmark = pytest.mark.usefixtures("run_cache")
# Other clients' probes, parts of tensors, personal models, mixtures: what a stack has to leave to each of them.
FAST = ("relief", "fedprox", "fedel", "helora", "harmony", "fedlease", "pilot")
# Adam divides gradients by their size: where those are rounding, single values differ, the model as a whole does not.
LOSS, MODEL = 1e-3, 1e-2
# A server that distils makes much of rounding: at ``stack=1`` the engines gemm and reuse part by 1.2e-3 and 5e-2.
DISTILLED = (5e-3, 0.3)


def run(values, path, stack, **training):
    values = {**BASE, **values}
    values["training"] = {**values["training"], **training, "stack": stack}
    assert drive(parse(values, "stacked"), path).status == "done"
    return path


def model_of(path):
    tensors = load_file(checkpoint.generations(path)[0] / checkpoint.STATE_FILE)
    return torch.cat([value.flatten().double() for name, value in sorted(tensors.items()) if "global" in name])


def receipts(path):
    return [client for record in read_rounds(path) for client in record.clients]


@pytest.fixture(autouse=True)
def recordable(monkeypatch):
    """Every step is taken as a GPU would record it: nothing in it may wait for a value."""

    def call(self, step):
        with Refusing():
            step()

    monkeypatch.setattr(CudaGraphStep, "__call__", call)


def agree(values, tmp_path, **training):
    alone, together = (run(values, tmp_path / str(stack), stack, **training) for stack in (1, 8))
    one, other = receipts(alone), receipts(together)
    assert [(c.client, c.bytes_up, c.trained) for c in one] == [(c.client, c.bytes_up, c.trained) for c in other]
    assert [c.loss for c in other[:8]] == pytest.approx([c.loss for c in one[:8]], rel=1e-4), "the first round"
    loss, model = DISTILLED if "darkdistill" in str(values["strategy"]) else (LOSS, MODEL)
    assert [c.loss for c in other] == pytest.approx([c.loss for c in one], rel=loss)
    assert float((model_of(together) - model_of(alone)).norm() / model_of(alone).norm()) < model
    return alone, together


@pytest.mark.ci
@pytest.mark.parametrize("preset", FAST)
def test_a_run_comes_to_the_same(preset, tmp_path):
    agree({"strategy": strategy_values(preset)}, tmp_path)


@pytest.mark.ci
@pytest.mark.parametrize(
    "training",
    [
        {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "clip_norm": 0.5, "schedule": "cosine"},
        {"optimizer": "adamw", "weight_decay": 0.1, "missing": "zero_feature", "clip_norm": 0.5},
    ],
    ids=["SGD", "AdamW"],
)
def test_other_optimizers_come_to_the_same(training, tmp_path):
    agree({"strategy": strategy_values("relief"), "server": {"optimizer": "fedavgm"}}, tmp_path, **training)


@pytest.mark.slow
@pytest.mark.parametrize("preset", [name for name in PRESETS if name not in FAST])
def test_every_preset_comes_to_the_same(preset, tmp_path):
    agree({"strategy": strategy_values(preset)}, tmp_path)


@pytest.mark.ci
@pytest.mark.parametrize("missing", ["zero_input", "zero_feature"])
def test_on_backbone_2(missing, tmp_path):
    agree({**MOMENT, "strategy": strategy_values("relief")}, tmp_path, missing=missing)
