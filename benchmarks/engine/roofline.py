"""Part 4: training speed against the machine's limits, on one thread."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.engine.eager import FUSION
from benchmarks.engine.local import Local, eager_round, make_backbone, make_client
from benchmarks.engine.machine import Figures
from benchmarks.engine.pairs import take_turns, timed
from benchmarks.engine.scenario import OURS, Scenario, write
from relief_ray.devices.workload import Workload, footprint, num_steps
from relief_ray.models.costs import count_costs
from relief_ray.training.optimizer import LocalOptimizer

MATRIX, BATCH = 1024, 32
MIB = 2**20
LARGE_MIB = 256
# Times that fusion's matrix crosses the memory bus in a step: forward and input gradient read it, the weight gradient
# is written; Adam reads weight, gradient and two moments and writes weight and both moments.
READS_FORWARD, READS_BACKWARD, WRITES_BACKWARD, ADAM_PASSES = 1, 1, 1, 7


def peak_flops_per_s(repeats: int) -> float:
    """The best float32 rate of a large square matrix product."""
    a, b = torch.randn(MATRIX, MATRIX), torch.randn(MATRIX, MATRIX)
    out = torch.empty(MATRIX, MATRIX)
    return 2.0 * MATRIX**3 / min(timed(lambda: torch.mm(a, b, out=out))(repeats))


def bytes_per_s(mib: int, repeats: int) -> float:
    """Bytes read and written by a copy between two buffers of half that size each."""
    source = torch.ones(mib * MIB // 8)
    target = torch.empty_like(source)
    target.copy_(source)
    return mib * MIB / median(timed(lambda: target.copy_(source))(repeats))


def near_bytes_per_s(mib: int, repeats: int) -> float:
    """The most bytes read and written of so many MiB: by a copy, or by an update in place, as Adam's are.

    What is written first has to be fetched into the cache; a copy does that for its target, an update has it there.
    """
    values = torch.ones(mib * MIB // 4)
    values.mul_(1.0)
    return max(bytes_per_s(mib, repeats), 2 * mib * MIB / median(timed(lambda: values.mul_(1.0))(repeats)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits of the machine: FLOP/s, and bytes/s from memory and for a working set of the fusion layer's size."""

    flops_per_s: float
    memory_bytes_per_s: float
    near_bytes_per_s: float


def measure(scenario: Scenario, num_turns: int) -> Figures:
    """Peak, bandwidth, the share of the peak that full training reaches, and fusion's roofline."""
    write(scenario, peers=False)
    figures, fractions, eager_fractions, peaks = _training(scenario, num_turns)
    fusion = Fusion(len(scenario.spec.modalities))
    limits = Limits(
        flops_per_s=median(peaks),
        memory_bytes_per_s=bytes_per_s(LARGE_MIB, 5),
        near_bytes_per_s=near_bytes_per_s(max(1, ADAM_PASSES * fusion.nbytes // MIB), 20),
    )
    return (
        figures
        | {
            "gemm_peak_gflops_per_s": limits.flops_per_s / 1e9,
            "gemm_peak_fraction": median(fractions),
            "gemm_peak_fraction_eager": median(eager_fractions),
            "memory_gb_per_s": limits.memory_bytes_per_s / 1e9,
            "near_memory_gb_per_s": limits.near_bytes_per_s / 1e9,
        }
        | fusion.figures(limits, 10 * num_turns)
        | _one_block(limits, 10 * num_turns)
    )


def _one_block(limits: Limits, repeats: int) -> Figures:
    """The part of the fusion layer that a type-C client trains: one block, on features that are not trained."""
    block = Fusion(1, to_features=False)
    near = near_bytes_per_s(max(1, ADAM_PASSES * block.nbytes // MIB), 20)
    figures = block.figures(replace(limits, near_bytes_per_s=near), repeats)
    return {"type_c_ms": figures["fusion_ms"], "type_c_bound_ms": figures["fusion_bound_ms"]}


def full_load(scenario: Scenario) -> Workload:
    """The FLOPs of a client that owns and trains everything."""
    backbone = make_backbone(scenario, "naive")
    return footprint(
        count_costs(backbone), scenario.spec.names, dict.fromkeys(backbone.layout.ids, 1.0), "reuse", "zero_input"
    ).workload(
        num_windows=scenario.num_windows,
        epochs=scenario.epochs,
        num_steps=num_steps(scenario.num_windows, scenario.epochs, scenario.task.batch_size),
    )


def _training(scenario: Scenario, num_turns: int) -> tuple[Figures, list[float], list[float], list[float]]:
    """Training and the peak take turns, since the machine's speed drifts."""
    client, load = make_client(scenario, scenario.spec.names), full_load(scenario)
    fast, eager = Local(client, make_backbone(scenario, OURS), OURS), eager_round(client)
    flops = load.forward_flops + load.backward_flops
    peaks: list[float] = []

    def peak(num_rounds: int) -> list[float]:
        peaks.append(peak_flops_per_s(10))
        return [1.0 / peaks[-1]] * num_rounds

    fast.train(None)
    eager()
    harnesses = {"own": timed(lambda: fast.train(None)), "eager": timed(eager), "peak": peak}
    times = take_turns(harnesses, num_turns, 1)
    own, theirs, best = (times.turns[name] for name in ("own", "eager", "peak"))
    figures: Figures = {
        "training_gflops_per_s": flops / times.median_s("own") / 1e9,
        "training_mflop_per_window": flops / (scenario.num_windows * scenario.epochs) / 1e6,
        "training_samples_per_s": scenario.num_windows * scenario.epochs / times.median_s("own"),
    }
    fractions = [flops / s * p for s, p in zip(own, best, strict=True)]
    return figures, fractions, [flops / s * p for s, p in zip(theirs, best, strict=True)], peaks


class Fusion:
    """The fusion layer alone: its column blocks on random features, by the engine's operations.

    Phase by phase: in training each block takes its step as soon as its gradient is there, while it is in the cache.
    """

    def __init__(self, num_modalities: int, width: int = 1024, to_features: bool = True) -> None:
        self.features = [torch.randn(BATCH, width, requires_grad=to_features) for _ in range(num_modalities)]
        self._gradients = 2 if to_features else 1
        self.blocks = [nn.Parameter(torch.randn(FUSION, width) * 0.01) for _ in range(num_modalities)]
        self.nbytes = sum(4 * b.numel() for b in self.blocks)
        self.flops = 2.0 * BATCH * sum(b.numel() for b in self.blocks)
        self._adam = LocalOptimizer(self.blocks, "torch_fused")
        self._adam.reset(self.blocks)

    def forward(self) -> Tensor:
        """The sum over blocks."""
        total = functional.linear(self.features[0], self.blocks[0])
        for h, block in zip(self.features[1:], self.blocks[1:], strict=True):
            total = total + functional.linear(h, block)
        return total

    def step(self) -> tuple[float, float, float]:
        """Seconds of forward, backward and Adam."""
        gradient = torch.ones(BATCH, FUSION)
        began = perf_counter()
        total = self.forward()
        forwarded = perf_counter()
        torch.autograd.backward(total, gradient)
        differentiated = perf_counter()
        self._adam.step(self.blocks, 1e-3)
        ended = perf_counter()
        for h in self.features:
            h.grad = None
        return forwarded - began, differentiated - forwarded, ended - differentiated

    def figures(self, limits: Limits, repeats: int) -> Figures:
        """Measured milliseconds against the roofline: what the slower of arithmetic and traffic allows."""
        steps = [self.step() for _ in range(repeats + 3)][3:]
        measured = [median(part) for part in zip(*steps, strict=True)]
        passes = (READS_FORWARD, READS_BACKWARD * (self._gradients - 1) + WRITES_BACKWARD, ADAM_PASSES)
        flops = (self.flops, self._gradients * self.flops, 0.0)
        names = ("forward", "backward", "adam")
        figures: Figures = {"fusion_mbytes": self.nbytes / 1e6}
        least = 0.0
        for name, seconds, times, work in zip(names, measured, passes, flops, strict=True):
            traffic_s = times * self.nbytes / limits.near_bytes_per_s
            bound_s = max(work / limits.flops_per_s, traffic_s)
            least += bound_s
            figures[f"fusion_{name}_ms"] = 1e3 * seconds
            figures[f"fusion_{name}_bound_ms"] = 1e3 * bound_s
            figures[f"fusion_{name}_limit"] = "memory" if traffic_s >= work / limits.flops_per_s else "arithmetic"
        total = sum(measured)
        return figures | {
            "fusion_ms": 1e3 * total,
            "fusion_bound_ms": 1e3 * least,
            "fusion_roofline_fraction": least / total,
            "fusion_flops_per_byte": sum(flops) / (sum(passes) * self.nbytes),
        }
