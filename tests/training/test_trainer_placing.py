"""The GPU path without a GPU (``fake_gpu_program``), and what is moved."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils import backend_registration

from relief_ray.models.backbone import move_frozen
from tests.training.scenario import SHAPE, TINY

ROUNDS = ("cnn, gemm", "cnn, reuse", "moment, reuse", "cnn, stacked", "moment, stacked")
NAMES = (*ROUNDS, "a probe", "a forgotten move")


def cnn(engine):
    return TINY.build(SHAPE, 0, engine=engine)


@pytest.fixture(scope="module")
def devices(run_cache):
    """By check: why it failed, empty where it did not."""
    if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("this torch cannot pretend to have a GPU")
    command = [sys.executable, "-m", "tests.training.fake_gpu_program"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return {answer["check"]: answer["why"] for answer in answers}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_everything_of_a_round_is_on_one_device_and_what_leaves_is_on_the_cpu(name, devices):
    assert devices[name] == ""


def test_nothing_moves_where_the_cpu_computes():
    backbone = cnn("gemm")
    before = [id(t) for s in backbone.stages for t in s.module.parameters()]
    move_frozen(backbone, torch.device("cpu"))
    assert before == [id(t) for s in backbone.stages for t in s.module.parameters()]


def test_what_is_frozen_is_copied_once_and_stays_where_it_was():
    """On the meta device, which every torch has."""
    backbone, shared = cnn("reuse"), torch.zeros(3)
    for stage in backbone.stages[:2]:
        stage.module.register_buffer("mask", shared)
    move_frozen(backbone, torch.device("meta"))
    masks = [stage.module.get_buffer("mask") for stage in backbone.stages[:2]]
    assert masks[0] is masks[1] and masks[0].device.type == "meta" and shared.device.type == "cpu"
    assert {p.device.type for ps in backbone.parameters.values() for p in ps} == {"cpu"}, "these follow the trainer"
