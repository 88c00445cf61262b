"""Fits paces to timed rounds: one line through the medians of every stage, least squares for the optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from relief_ray.core.messages import StageTimes
from relief_ray.devices.throughput import Overheads, Pace, StagePaces, Stagewise
from relief_ray.devices.workload import ADAM_FLOPS_PER_VALUE, BackwardMode, Workload
from relief_ray.profiling.probe import FORWARD, Phase, Span

_MODES: tuple[BackwardMode, ...] = ("weights", "input", "both")

# Least share of a stage's time that counts as per window: one as slow for a window as for many has a finite speed.
LEAST_SHARE = 1e-3

_NO_BYTES: Mapping[str, int] = MappingProxyType({})

_Key = tuple[str, Phase]


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedRound:
    """A short round of a scenario, trained twice: without probes for its total time, with them for its stages.

    Attributes:
        load: the cost model's workload of the round.
        num_tensors: trained tensors.
        wall_s: seconds without probes.
        times: seconds by phase without probes.
        spans: seconds of each call of a stage, with probes.
    """

    load: Workload
    num_tensors: int
    wall_s: float
    times: StageTimes
    spans: tuple[Span, ...]

    def left_s(self, forward: bool) -> float:
        """Forward or backward seconds that are not part of any stage's spans."""
        total = self.times.forward_s if forward else self.times.backward_s
        return total - sum(s.seconds for s in self.spans if (s.phase in FORWARD) == forward)


def stagewise(
    rounds: Sequence[TimedRound],
    least: Sequence[TimedRound],
    tensors: Mapping[str, int],
    chunk: int,
    micro_batch: int | None = None,
    step_bytes: Mapping[str, int] = _NO_BYTES,
) -> Stagewise:
    """Stage paces from all ``rounds``, overheads between the stages from the ``least`` ones.

    The ``least`` rounds train almost nothing and differ in their number of steps, which separates the overhead of a
    step from that of a round. ``tensors``: number of tensors of each stage's groups; ``chunk``: windows of a pass
    without gradient; ``micro_batch``: of one with gradient, where the configuration sets it; ``step_bytes``: bytes that
    each stage keeps of a window for its backward pass.
    """
    points, flops = _points(rounds), _flops(rounds)
    constant_s, tensor_s, value_s = fit_optimizer(rounds)
    optimizer_flops = {run.stage: run.optimizer_flops for r in rounds for run in r.load.runs if run.optimizer_flops}
    stages = {}
    for stage in dict.fromkeys(stage for stage, _ in points):
        paces = {p: pace(points[key], flops[key]) for p in ("live", "frozen", *_MODES) if (key := (stage, p)) in points}
        stages[stage] = StagePaces(
            live=paces.get("live"),
            frozen=paces.get("frozen"),
            backward={mode: paces[mode] for mode in _MODES if mode in paces},
            optimizer=_optimizer_pace(tensors.get(stage, 0), tensor_s, value_s) if optimizer_flops.get(stage) else None,
            step_bytes=step_bytes.get(stage, 0),
        )
    forward_step_s, forward_round_s = line(least, [r.left_s(True) for r in least])
    backward_step_s, backward_round_s = line(least, [r.left_s(False) for r in least])
    outside_step_s, outside_round_s = line(least, [r.wall_s - r.times.compute_s for r in least])
    overheads = Overheads(
        forward_step_s=forward_step_s + outside_step_s,
        backward_step_s=backward_step_s,
        optimizer_step_s=constant_s,
        round_s=forward_round_s + backward_round_s + outside_round_s,
    )
    return Stagewise(overheads=overheads, chunk=chunk, micro_batch=micro_batch, stages=stages)


def line(rounds: Sequence[TimedRound], seconds: Sequence[float]) -> tuple[float, float]:
    """Seconds per step and per round: the line through the medians at the fewest and the most steps."""
    points: dict[int, list[float]] = {}
    for timed, value in zip(rounds, seconds, strict=True):
        points.setdefault(timed.load.num_steps, []).append(value)
    least, most = min(points), max(points)
    # Probed spans may sum to more than the round without probes took: then no overhead is left.
    low_s, high_s = max(0.0, median(points[least])), max(0.0, median(points[most]))
    step_s = high_s / most if least == most else min(max(0.0, (high_s - low_s) / (most - least)), high_s / most)
    return step_s, max(0.0, high_s - most * step_s)


def pace(points: Mapping[int, Sequence[float]], flops: float) -> Pace:
    """Fit ``call_s + rows * flops / flops_per_s`` through the medians at the fewest and the most rows.

    The line always meets the median at the most rows, where most of the work is. ``points``: seconds by rows;
    ``flops``: FLOPs of a row.
    """
    least, most = min(points), max(points)
    low_s, high_s = median(points[least]), median(points[most])
    window_s = high_s / most if least == most else (high_s - low_s) / (most - least)
    window_s = min(max(window_s, LEAST_SHARE * high_s / most), high_s / most)
    return Pace(call_s=max(0.0, high_s - most * window_s), flops_per_s=flops / max(window_s, 1e-12))


def fit_optimizer(rounds: Sequence[TimedRound]) -> tuple[float, float, float]:
    """Seconds of an optimizer step: constant, per tensor and per value; non-negative least squares."""
    steps = [
        (1.0, float(r.num_tensors), r.load.optimizer_flops / r.load.num_steps / ADAM_FLOPS_PER_VALUE) for r in rounds
    ]
    seconds = np.array([r.times.optimizer_s / r.load.num_steps for r in rounds])
    # Relative errors: a step over a head should fit as well as one over everything.
    scaled = np.array(steps) / seconds[:, None]
    constant_s, tensor_s, value_s = _positive_fit(scaled, np.ones(len(rounds)))
    return float(constant_s), float(tensor_s), float(value_s)


def _positive_fit(rows: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least squares without negative coefficients: the column of the most negative one is removed, repeatedly."""
    coefficients, kept = np.zeros(rows.shape[1]), list(range(rows.shape[1]))
    while kept:
        solved = np.linalg.lstsq(rows[:, kept], wanted, rcond=None)[0]
        if solved.min() >= 0:
            coefficients[kept] = solved
            break
        kept.pop(int(solved.argmin()))
    return coefficients


def _optimizer_pace(num_tensors: int, tensor_s: float, value_s: float) -> Pace:
    return Pace(call_s=num_tensors * tensor_s, flops_per_s=ADAM_FLOPS_PER_VALUE / max(value_s, 1e-15))


def _points(rounds: Iterable[TimedRound]) -> dict[_Key, dict[int, list[float]]]:
    points: dict[_Key, dict[int, list[float]]] = {}
    for span in (s for r in rounds for s in r.spans):
        points.setdefault((span.stage, span.phase), {}).setdefault(span.rows, []).append(span.seconds)
    return points


def _flops(rounds: Iterable[TimedRound]) -> dict[_Key, float]:
    """FLOPs of a window by stage and phase; a forward pass has the same number with and without gradient."""
    flops: dict[_Key, float] = {}
    for run in (run for r in rounds for run in r.load.runs):
        flops[run.stage, "live"] = flops[run.stage, "frozen"] = run.forward_flops
        if run.mode is not None:
            flops[run.stage, run.mode] = run.backward_flops
    return flops
