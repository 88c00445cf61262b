"""Part 8: a GPU, where there is one: its matrix products, and Backbone 1 trained there by bare eager PyTorch.

All other parts train on the CPU; these figures say what `training.device=cuda` has to be compared with.
"""

from __future__ import annotations

from statistics import median

import torch

from benchmarks.engine.eager import EagerCnn, train_client
from benchmarks.engine.local import make_client
from benchmarks.engine.machine import Figures
from benchmarks.engine.pairs import timed
from benchmarks.engine.scene import Scene, write

MATRIX = 8192
# Table I: methods, data sets, seeds, rounds; clients, windows of a client and epochs of a round.
ROUNDS, SAMPLES = 11 * 2 * 3 * 200, 8 * 1900 * 5
KEYS = ("gpu_name", "gpu_gemm_peak_gflops_per_s", "gpu_eager_samples_per_s", "gpu_eager_spread", "gpu_table_1_h")


def measure(scene: Scene, num_turns: int) -> Figures:
    """All figures, or null for each where torch sees no CUDA device."""
    if not torch.cuda.is_available():
        return dict.fromkeys(KEYS)
    found = on_device(scene, torch.device("cuda"), num_turns, MATRIX)
    return {"gpu_name": torch.cuda.get_device_name(), **found}


def on_device(scene: Scene, device: torch.device, num_turns: int, matrix: int) -> Figures:
    """One client after the other, its windows resident on the device; Table I's hours by that rate alone."""
    client = make_client(write(scene, peers=False), scene.spec.names)
    model = EagerCnn(client.task).to(device)
    windows = [client.windows[m].to(device) for m, _ in client.task.channels]
    labels, start = client.labels.to(device), client.start.to(device)

    def run() -> None:
        model.load_flat(start)
        train_client(model, client.task, 1, 0, windows, labels)
        _wait(device)

    run()
    seconds = timed(run)(max(2, num_turns))
    rate = scene.num_windows * scene.epochs / median(seconds)
    return {
        "gpu_gemm_peak_gflops_per_s": _peak(device, matrix) / 1e9,
        "gpu_eager_samples_per_s": rate,
        "gpu_eager_spread": (max(seconds) - min(seconds)) / 2 / median(seconds),
        "gpu_table_1_h": ROUNDS * SAMPLES / rate / 3600,
    }


def _peak(device: torch.device, size: int) -> float:
    a, b = (torch.randn(size, size, device=device) for _ in range(2))

    def multiply() -> None:
        torch.mm(a, b)
        _wait(device)

    multiply()
    return 2.0 * size**3 / min(timed(multiply)(5))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
