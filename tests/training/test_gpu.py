"""On a machine with a CUDA device (``pytest -m gpu``): what it computes is what the CPU computes, nearly."""

import pytest
import torch
from safetensors.torch import load_file

from relief_ray.config.experiment import parse
from relief_ray.conformance.runner import outcome
from relief_ray.experiment.experiment import run_cell as drive
from relief_ray.records import checkpoint
from relief_ray.records.run_folder import read_rounds, read_run
from tests.conformance.cases import BASE, MOMENT, strategy_values

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("run_cache"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
# Adam divides gradients by their size: where those are rounding, single values differ, the model as a whole does not.
LOSS, MODEL = 2e-3, 2e-2
CASES = {
    "cnn, gemm": {"strategy": strategy_values("relief")},
    "cnn, naive": {"strategy": "fedavg", "training": {"epochs": 1, "lr": 0.01, "engine": "naive"}},
    "cnn, stacked": {"strategy": strategy_values("relief"), "training": {"epochs": 3, "lr": 0.01, "stack": 8}},
    "cnn, stacked, two phases": {
        "strategy": strategy_values("pilot"),
        "training": {"epochs": 3, "lr": 0.01, "stack": 8},
    },
    "cnn, stacked, SGD, clipped": {
        "strategy": strategy_values("relief"),
        "training": {
            **{"epochs": 3, "lr": 0.05, "stack": 8, "optimizer": "sgd", "momentum": 0.9, "weight_decay": 1e-3},
            **{"clip_norm": 1.0, "schedule": "cosine"},
        },
    },
    "cnn, a probe": {"strategy": "fedel"},
    "moment": {**MOMENT, "strategy": strategy_values("relief")},
    "moment, connector": {**MOMENT, "strategy": strategy_values("pilot")},
}


def run(case, path, **training):
    values = {**BASE, **CASES[case]}
    values["training"] = {**values["training"], **training}
    assert drive(parse(values, case), path).status == "done"
    return path


def model_of(path):
    tensors = load_file(checkpoint.generations(path)[0] / checkpoint.STATE_FILE)
    return torch.cat([value.flatten().double() for name, value in sorted(tensors.items()) if "global" in name])


def losses(path):
    return [client.loss for record in read_rounds(path) for client in record.clients]


@pytest.mark.parametrize("case", CASES)
def test_a_run_agrees_with_the_cpu_s(case, tmp_path):
    cpu, gpu = run(case, tmp_path / "cpu"), run(case, tmp_path / "gpu", device="cuda")
    assert read_run(cpu).machine.device == "cpu"
    assert read_run(gpu).machine.device == f"cuda: {torch.cuda.get_device_name()}"
    assert losses(gpu) == pytest.approx(losses(cpu), rel=LOSS)
    there, here = model_of(gpu), model_of(cpu)
    assert there.device.type == "cpu" and float((there - here).norm() / here.norm()) < MODEL


@pytest.mark.parametrize("case", ["cnn, gemm", "moment"])
def test_the_same_device_gives_the_same_bits(case, tmp_path):
    first, second = (run(case, tmp_path / name, device="auto") for name in ("first", "second"))
    assert outcome(first) == outcome(second)


@pytest.mark.parametrize("case", ["cnn, gemm", "moment"])
def test_bfloat16_and_micro_batches_learn_what_float32_learns(case, tmp_path):
    exact = run(case, tmp_path / "exact", device="cuda")
    cast = run(case, tmp_path / "cast", device="cuda", autocast="bf16", micro_batch=2)
    assert losses(cast) == pytest.approx(losses(exact), rel=0.05)
