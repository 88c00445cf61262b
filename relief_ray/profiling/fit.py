"""From timed rounds to paces: one line through the medians of every stage, a small fit for the optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from relief_ray.devices.paces import Overheads, Pace, StagePaces, Stagewise
from relief_ray.devices.workload import ADAM_FLOPS_PER_VALUE, BackwardMode, Workload
from relief_ray.groups import GroupId, GroupLayout
from relief_ray.messages import StageTimes
from relief_ray.profiling.probe import FORWARD, Phase, Span

# The short rounds that a device profile is made of: every stage with and without each gradient, large and small.


EPOCHS, SMALLEST_BATCH = 4, 4

EVERYTHING, LEAST, LEAST_LONG = "everything", "last group", "last group, more epochs"


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """One short round: the groups trained, the client's sensors, windows in a batch, epochs."""

    name: str
    groups: tuple[GroupId, ...]
    present: tuple[str, ...]
    rows: int
    epochs: int = 1


def scenes(layout: GroupLayout, modalities: tuple[str, ...], rows: int, epochs: int) -> list[Scene]:
    """Everything and the last group alone; then the parts, by rich and by poor clients, on large and small batches."""
    small, first = min(SMALLEST_BATCH, rows), modalities[:1]
    sizes = [(modalities, rows), *([(modalities, small)] if small < rows else []), (first, rows)]
    whole = Scene(name=EVERYTHING, groups=layout.ids, present=modalities, rows=rows, epochs=epochs)
    last = replace(whole, groups=layout.ids[-1:])
    return [whole, replace(last, name=LEAST, epochs=1), replace(last, name=LEAST_LONG, epochs=EPOCHS)] + [
        replace(
            whole, name=f"{name}, {len(present)} sensors, {size} windows", groups=groups, present=present, rows=size
        )
        for present, size in sizes
        for name, groups in parts(layout).items()
        if (groups, present, size) != (whole.groups, modalities, rows)
    ]


def parts(layout: GroupLayout) -> dict[str, tuple[GroupId, ...]]:
    """Assignments that show each stage with and without its own gradient, and with and without its input's."""
    layers = sorted({g.layer or 0 for g in layout if g.role == "encoder"})
    found = {"everything": layout.ids}
    for layer in sorted({layers[0], layers[len(layers) // 2], layers[-1]}):
        found[f"layer {layer}"] = tuple(g.id for g in layout if g.role == "encoder" and g.layer == layer)
    found["fusion blocks"] = tuple(g.id for g in layout if g.role == "fusion_a")
    found["shared"] = tuple(g.id for g in layout if g.role in ("fusion_b", "head"))
    found["last"] = layout.ids[-1:]
    return found


MODES: tuple[BackwardMode, ...] = ("weights", "input", "both")

# A stage that takes as long for one window as for many still gets a finite speed.
LEAST_SHARE = 1e-3

NO_BYTES: Mapping[str, int] = MappingProxyType({})

_Key = tuple[str, Phase]


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """A round, trained twice: seconds by wall and phase without probes, the spans of its stages with them."""

    load: Workload
    num_tensors: int
    wall_s: float
    times: StageTimes
    spans: tuple[Span, ...]

    def left_s(self, forward: bool) -> float:
        """Forward or backward seconds that no stage accounts for."""
        total = self.times.forward_s if forward else self.times.backward_s
        return total - sum(s.seconds for s in self.spans if (s.phase in FORWARD) == forward)


def stagewise(
    turns: Sequence[Turn],
    least: Sequence[Turn],
    tensors: Mapping[str, int],
    chunk: int,
    micro_batch: int | None = None,
    step_bytes: Mapping[str, int] = NO_BYTES,
) -> Stagewise:
    """Paces from all ``turns``; what lies between the stages from the ``least`` ones, which train almost nothing.

    The least ones differ in their number of steps: that tells what a step costs from what a round does.
    ``tensors``: how many each stage's groups have; ``chunk``: windows of a pass without gradient; ``micro_batch``: of
    one with, where the configuration says it; ``step_bytes``: what each stage keeps of a window for its backward pass.
    """
    points, flops = _points(turns), _flops(turns)
    constant_s, tensor_s, value_s = fit_optimizer(turns)
    values = {r.stage: r.optimizer_flops for t in turns for r in t.load.runs if r.optimizer_flops}
    stages = {}
    for stage in dict.fromkeys(stage for stage, _ in points):
        paces = {p: pace(points[key], flops[key]) for p in ("live", "frozen", *MODES) if (key := (stage, p)) in points}
        stages[stage] = StagePaces(
            live=paces.get("live"),
            frozen=paces.get("frozen"),
            backward={mode: paces[mode] for mode in MODES if mode in paces},
            optimizer=_optimizer_pace(tensors.get(stage, 0), tensor_s, value_s) if values.get(stage) else None,
            step_bytes=step_bytes.get(stage, 0),
        )
    forward_step_s, forward_round_s = line(least, [t.left_s(True) for t in least])
    backward_step_s, backward_round_s = line(least, [t.left_s(False) for t in least])
    outside_step_s, outside_round_s = line(least, [t.wall_s - t.times.compute_s for t in least])
    overheads = Overheads(
        forward_step_s=forward_step_s + outside_step_s,
        backward_step_s=backward_step_s,
        optimizer_step_s=constant_s,
        round_s=forward_round_s + backward_round_s + outside_round_s,
    )
    return Stagewise(overheads=overheads, chunk=chunk, micro_batch=micro_batch, stages=stages)


def line(turns: Sequence[Turn], seconds: Sequence[float]) -> tuple[float, float]:
    """Seconds per step and per round: through the medians at the least and the most steps."""
    points: dict[int, list[float]] = {}
    for turn, value in zip(turns, seconds, strict=True):
        points.setdefault(turn.load.num_steps, []).append(value)
    least, most = min(points), max(points)
    # Probed spans may add up to more than the plain round took: then nothing is left.
    low_s, high_s = max(0.0, median(points[least])), max(0.0, median(points[most]))
    step_s = high_s / most if least == most else min(max(0.0, (high_s - low_s) / (most - least)), high_s / most)
    return step_s, max(0.0, high_s - most * step_s)


def pace(points: Mapping[int, Sequence[float]], flops: float) -> Pace:
    """The line ``call_s + rows * flops / flops_per_s`` through the medians at the least and the most rows.

    It always meets the median at the most rows, where most of the work is.
    """
    least, most = min(points), max(points)
    low_s, high_s = median(points[least]), median(points[most])
    window_s = high_s / most if least == most else (high_s - low_s) / (most - least)
    window_s = min(max(window_s, LEAST_SHARE * high_s / most), high_s / most)
    return Pace(call_s=max(0.0, high_s - most * window_s), flops_per_s=flops / max(window_s, 1e-12))


def fit_optimizer(turns: Sequence[Turn]) -> tuple[float, float, float]:
    """Seconds of a step: constant, per tensor and per value, none negative (least squares)."""
    steps = [
        (1.0, float(t.num_tensors), t.load.optimizer_flops / t.load.num_steps / ADAM_FLOPS_PER_VALUE) for t in turns
    ]
    seconds = np.array([t.times.optimizer_s / t.load.num_steps for t in turns])
    # Relative errors count: a step over a head should fit as well as one over everything.
    rows = np.array(steps) / seconds[:, None]
    found = _positive_fit(rows, np.ones(len(turns)))
    return float(found[0]), float(found[1]), float(found[2])


def _positive_fit(rows: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least squares without negative coefficients, for a few columns: the most negative one is left out in turn."""
    found, kept = np.zeros(rows.shape[1]), list(range(rows.shape[1]))
    while kept:
        solved = np.linalg.lstsq(rows[:, kept], wanted, rcond=None)[0]
        if solved.min() >= 0:
            found[kept] = solved
            break
        kept.pop(int(solved.argmin()))
    return found


def _optimizer_pace(num_tensors: int, tensor_s: float, value_s: float) -> Pace:
    return Pace(call_s=num_tensors * tensor_s, flops_per_s=ADAM_FLOPS_PER_VALUE / max(value_s, 1e-15))


def _points(turns: Iterable[Turn]) -> dict[_Key, dict[int, list[float]]]:
    points: dict[_Key, dict[int, list[float]]] = {}
    for span in (s for t in turns for s in t.spans):
        points.setdefault((span.stage, span.phase), {}).setdefault(span.rows, []).append(span.seconds)
    return points


def _flops(turns: Iterable[Turn]) -> dict[_Key, float]:
    """FLOPs of a window in every phase; a stage runs forward at the same number, live or frozen."""
    flops: dict[_Key, float] = {}
    for run in (r for t in turns for r in t.load.runs):
        flops[run.stage, "live"] = flops[run.stage, "frozen"] = run.forward_flops
        if run.mode is not None:
            flops[run.stage, run.mode] = run.backward_flops
    return flops
