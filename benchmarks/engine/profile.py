"""Shares of a local round's wall time by activity, to explain a missed target.

Phases are measured in plain rounds; the stages' part of the forward pass comes from rounds whose stages are timed in
place, the kernels' from rounds that time every call. Testing is not part of a round here: it stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.engine.local import Local, make_backbone, make_client
from benchmarks.engine.machine import Figures
from benchmarks.engine.pairs import timed
from benchmarks.engine.scenario import OURS, Scenario, setup, start_of, write
from relief_ray.core.client import ClientProgram
from relief_ray.core.messages import EvalTarget
from relief_ray.kernels import library
from relief_ray.profiling.profile import FORWARD, Probes
from relief_ray.training.executor import Worker

SHARED = ("fusion.A.acc", "fusion.B", "head.1")
ACC = ("acc",)
REPEATS = 3
Groups = tuple[str, ...] | None


def measure(scenario: Scenario) -> Figures:
    """A full client, and a type-C client that trains everything and what it is given, all by our engine."""
    write(scenario, peers=False)
    rounds: Mapping[str, tuple[tuple[str, ...], Groups]] = {
        "full": (scenario.spec.names, None),
        "type_c_full": (ACC, None),
        "type_c_reuse": (ACC, SHARED),
    }
    figures: Figures = {"profile_windows": scenario.num_windows, "profile_epochs": scenario.epochs}
    for name, (present, groups) in rounds.items():
        figures |= {f"profile_{name}_{k}": v for k, v in _round(scenario, present, groups, name).items()}
    test_s = _test_s(scenario)
    figures["profile_full_test_s"] = test_s
    figures["profile_full_test_vs_round"] = test_s / float(figures["profile_full_s"] or 1.0)
    return figures


def _round(scenario: Scenario, present: tuple[str, ...], groups: Groups, name: str) -> Figures:
    client = make_client(scenario, present)
    local = Local(client, make_backbone(scenario, OURS), OURS)
    wall_s, forward_s, backward_s, optimizer_s = _phases(local, groups)
    encoders, fusion = _stages(Local(client, make_backbone(scenario, OURS), OURS), groups)
    parts_s = {
        "encoder_forward": encoders * forward_s,
        "fusion_forward": fusion * forward_s,
        "backward": backward_s,
        "optimizer": optimizer_s,
    }
    work = local.train(groups).receipt.work
    print(f"{name}:\n{_operations(partial(local.train, groups))}", flush=True)
    return {
        "s": wall_s,
        "step_ms": 1e3 * wall_s / work.num_steps,
        **{f"{k}_share": v / wall_s for k, v in parts_s.items()},
        "overhead_share": 1.0 - sum(parts_s.values()) / wall_s,
        "kernel_share": _kernels_s(partial(local.train, groups)) / wall_s,
    }


def _phases(local: Local, groups: Groups) -> tuple[float, float, float, float]:
    """Mean seconds of a plain round: wall, forward, backward, optimizer."""
    timed(partial(local.train, groups))(2)
    total = [0.0] * 4
    for _ in range(REPEATS):
        began = perf_counter()
        seen = local.train(groups).receipt.work.measured
        round_s = (perf_counter() - began, seen.forward_s, seen.backward_s, seen.optimizer_s)
        total = [a + b for a, b in zip(total, round_s, strict=True)]
    wall_s, forward_s, backward_s, optimizer_s = (t / REPEATS for t in total)
    return wall_s, forward_s, backward_s, optimizer_s


def _stages(local: Local, groups: Groups) -> tuple[float, float]:
    """Shares of the forward phase: encoders, and what follows them; the rest are batches, losses and Python."""
    probes = Probes(local.backbone)
    program = ClientProgram(objective=probes.objective)
    local.train(groups, program)
    probes.take()
    phase_s = sum(local.train(groups, program).receipt.work.measured.forward_s for _ in range(REPEATS))
    layout = local.backbone.layout
    encoders = {s.id for s in local.backbone.specs if any(layout[j].role == "encoder" for j in s.groups)}
    spans = [s for s in probes.take() if s.phase in FORWARD]
    encoder_s = sum(s.seconds for s in spans if s.stage in encoders)
    return encoder_s / phase_s, (sum(s.seconds for s in spans) - encoder_s) / phase_s


def _operations(action: Callable[[], object]) -> str:
    """Time by torch operation, the most expensive first."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        action()
    averages: Any = seen.key_averages()
    table: str = averages.table(sort_by="self_cpu_time_total", row_limit=14, max_name_column_width=40)
    return table


def _kernels_s(action: Callable[[], object]) -> float:
    """Seconds inside the C library, of the fastest of some rounds."""
    plain, spent = library._function, 0.0

    def timed_function(*which: Any) -> Callable[..., float]:
        function = plain(*which)

        def run(*words: int) -> float:
            nonlocal spent
            began = perf_counter()
            try:
                return function(*words)
            finally:
                spent += perf_counter() - began

        return run

    seen = []
    with patch.object(library, "_function", timed_function):
        for _ in range(REPEATS):
            spent = 0.0
            action()
            seen.append(spent)
    return min(seen)


def _test_s(scenario: Scenario) -> float:
    """Seconds to test the global model on as many windows, through all sensors and through each alone."""
    prepared = setup(scenario)
    worker, models = Worker(prepared.job), {"global": prepared.layout.views(start_of(prepared))}
    test = partial(worker.evaluate, models, [EvalTarget(label="global")], {}, "test")
    test()
    return min(timed(test)(REPEATS))
