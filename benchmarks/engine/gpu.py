"""Part 8: a GPU, where there is one: its matrix products, and rounds of a fleet trained there with Backbone 1.

All other parts train on the CPU. Compared are bare eager PyTorch, one client after the other, our engine the same way,
and our engine with the whole fleet in one stack (``training.stack``), through the executor that runs without Ray. The
fleet is mixed, every client trains everything. TF32 is off for all; only ours keeps to deterministic kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from benchmarks.engine.eager import EagerCnn, train_client
from benchmarks.engine.local import make_client
from benchmarks.engine.machine import Figures
from benchmarks.engine.pairs import take_turns, timed
from benchmarks.engine.scenario import Scenario, setup, write
from relief_ray.experiment.setup import context_of
from relief_ray.training.executor import SerialExecutor

MATRIX = 8192
FLEET = 8
# Table I: methods, data sets, seeds, rounds; clients, nominal windows of a client and epochs of a round.
ROUNDS, SAMPLES = 11 * 2 * 3 * 200, FLEET * 1900 * 5
KEYS = (
    "gpu_name",
    "gpu_turns",
    "gpu_windows",
    "gpu_epochs",
    "gpu_gemm_peak_gflops_per_s",
    "gpu_eager_samples_per_s",
    "gpu_single_samples_per_s",
    "gpu_stacked_samples_per_s",
    "gpu_stacked_spread",
    "gpu_single_vs_eager",
    "gpu_stacked_vs_eager",
    "gpu_stacked_vs_single",
    "gpu_table_1_h",
)


def measure(scenario: Scenario, num_turns: int) -> Figures:
    """All figures, or null for each where torch sees no CUDA device."""
    if not torch.cuda.is_available():
        return dict.fromkeys(KEYS)
    figures = on_device(scenario, torch.device("cuda"), num_turns, MATRIX)
    return {"gpu_name": torch.cuda.get_device_name(), **figures}


def on_device(scenario: Scenario, device: torch.device, num_turns: int, matrix: int) -> Figures:
    """Figures of all harnesses, measured in turns; Table I's hours assume the stack's rate for all, no evaluation."""
    scenario = write(replace(scenario, num_clients=FLEET, mixed=True), peers=False)
    samples = scenario.num_clients * scenario.num_windows * scenario.epochs
    rounds = {
        "eager": eager_round(scenario, device),
        "single": our_round(scenario, device, 1),
        "stacked": our_round(scenario, device, FLEET),
    }
    for run in rounds.values():
        run()
    times = take_turns({name: timed(_waited(run, device)) for name, run in rounds.items()}, max(2, num_turns), 1)
    rates = {f"gpu_{name}_samples_per_s": samples / times.median_s(name) for name in rounds}
    return {
        "gpu_turns": max(2, num_turns),
        "gpu_windows": scenario.num_windows,
        "gpu_epochs": scenario.epochs,
        "gpu_gemm_peak_gflops_per_s": _peak(device, matrix) / 1e9,
        **rates,
        "gpu_stacked_spread": times.spread("stacked"),
        "gpu_single_vs_eager": times.ratio("eager", "single"),
        "gpu_stacked_vs_eager": times.ratio("eager", "stacked"),
        "gpu_stacked_vs_single": times.ratio("single", "stacked"),
        "gpu_table_1_h": ROUNDS * SAMPLES / rates["gpu_stacked_samples_per_s"] / 3600,
    }


def eager_round(scenario: Scenario, device: torch.device) -> Callable[[], object]:
    """Train one client as many times as the fleet has clients; its windows are on the device."""
    client = make_client(scenario, scenario.spec.names)
    model = EagerCnn(client.task).to(device)
    windows = [client.windows[m].to(device) for m, _ in client.task.channels]
    labels, start = client.labels.to(device), client.start.to(device)

    def run() -> None:
        was_strict = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(False)
        for number in range(scenario.num_clients):
            model.load_flat(start)
            train_client(model, client.task, 1, number, windows, labels)
        torch.use_deterministic_algorithms(was_strict, warn_only=True)

    return run


def our_round(scenario: Scenario, device: torch.device, stack: int) -> Callable[[], object]:
    """A round as the product runs it without Ray: models out, trained, updates checked and summed on the CPU."""
    prepared = setup(scenario, engine="gemm")
    trainer = replace(prepared.job.trainer, device="cuda" if device.type == "cuda" else "cpu", stack=stack)
    executor = SerialExecutor(replace(prepared.job, trainer=trainer))
    state = prepared.strategy.init(prepared.layout, prepared.fleet, prepared.streams, prepared.start)
    tasks = prepared.strategy.allocate(state, context_of(prepared, 1))
    return lambda: executor.train(1, state.models, tasks, {})


def _waited(run: Callable[[], object], device: torch.device) -> Callable[[], object]:
    def waited() -> None:
        run()
        _wait(device)

    return waited


def _peak(device: torch.device, size: int) -> float:
    a, b = (torch.randn(size, size, device=device) for _ in range(2))
    multiply = _waited(lambda: torch.mm(a, b), device)
    multiply()
    return 2.0 * size**3 / min(timed(multiply)(5))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
