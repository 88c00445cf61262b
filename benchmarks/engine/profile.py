"""Where a local round's time goes, for a target that is missed: ``--parts profile``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter

import torch

from benchmarks.engine.local import Local, make_backbone, make_client
from benchmarks.engine.machine import Figures
from benchmarks.engine.pairs import timed
from benchmarks.engine.scene import Scene, write

SHARED = ("fusion.A.acc", "fusion.B", "head.1")


def measure(scene: Scene) -> Figures:
    """Prints torch's operations of a type-C client's rounds; gives each round's seconds by phase."""
    write(scene, peers=False)
    local = Local(make_client(scene, ("acc",)), make_backbone(scene, "gemm"), "gemm")
    found: Figures = {"profile_windows": scene.num_windows}
    for name, groups in (("everything", None), ("reuse", SHARED)):
        timed(partial(local.train, groups))(2)
        began = perf_counter()
        work = local.train(groups).receipt.work
        found[f"profile_{name}_s"] = perf_counter() - began
        found[f"profile_{name}_steps"] = work.num_steps
        for phase in ("forward_s", "backward_s", "optimizer_s"):
            found[f"profile_{name}_{phase}"] = getattr(work.measured, phase)
        print(f"type C, {name}:\n{operations(partial(local.train, groups))}", flush=True)
    return found


def operations(action: Callable[[], object], rows: int = 14) -> str:
    """Time by torch operation, the most expensive first."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        action()
    table: str = seen.key_averages().table(sort_by="self_cpu_time_total", row_limit=rows, max_name_column_width=40)
    return table
