"""Part 6: stage times that the ``split`` and ``measured`` models predict, against measured ones, on this machine.

Both models learn from one assignment (everything) and are asked about six: ``split`` has one speed for the device,
``measured`` one per phase.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median, quantiles

from benchmarks.engine.local import Local, make_backbone, make_client
from benchmarks.engine.machine import Figures
from benchmarks.engine.scene import Scene, write
from relief_ray.devices.time import Measured, Profile, Split, throughput
from relief_ray.devices.types import TERA, DeviceType
from relief_ray.devices.workload import Workload, num_steps, workload
from relief_ray.messages import StageTimes
from relief_ray.models.costs import count_costs
from relief_ray.stages import CostTable, Engine

PRESENT = ("acc", "gyro")
ENGINES: tuple[Engine, ...] = ("naive", "gemm")
PHASES = ("forward_s", "backward_s", "optimizer_s", "compute_s")
_BLOCKS = ("fusion.A.acc", "fusion.A.gyro")
_ENCODERS = ("encoder.acc.1", "encoder.acc.2", "encoder.gyro.1", "encoder.gyro.2")
ASSIGNMENTS: Mapping[str, tuple[str, ...] | None] = {
    "everything": None,
    "own_sensors": (*_BLOCKS, *_ENCODERS, "fusion.B", "head.1"),
    "blocks": _BLOCKS,
    "blocks_bias_head": (*_BLOCKS, "fusion.B", "head.1"),
    "blocks_upper_layer": (*_BLOCKS, "encoder.acc.2"),
    "head": ("head.1",),
}
DEVICE = "here"


def measure(scene: Scene, repeats: int) -> Figures:
    """A type-B client's local rounds, measured and predicted, for both engines."""
    write(scene, peers=False)
    found: Figures = {}
    for engine in ENGINES:
        local = Local(make_client(scene, PRESENT), make_backbone(scene, engine), engine)
        seen = _observe(local, repeats)
        costs = count_costs(make_backbone(scene, "naive"))
        loads = {name: load_of(scene, costs, groups, engine) for name, groups in ASSIGNMENTS.items()}
        found |= _compare(f"predict_{engine}", seen, loads)
    return found


def _observe(local: Local, repeats: int) -> dict[str, list[StageTimes]]:
    """Assignments take turns; the first turn is not counted."""
    seen: dict[str, list[StageTimes]] = {name: [] for name in ASSIGNMENTS}
    for turn in range(repeats + 1):
        for name, groups in ASSIGNMENTS.items():
            times = local.train(groups).receipt.work.measured
            if turn:
                seen[name].append(times)
    return seen


def load_of(scene: Scene, costs: CostTable, groups: tuple[str, ...] | None, engine: Engine) -> Workload:
    """The FLOPs that the cost model charges for the assignment."""
    return workload(
        costs,
        present=PRESENT,
        trained=dict.fromkeys(costs.num_values if groups is None else groups, 1.0),
        num_windows=scene.num_windows,
        epochs=scene.epochs,
        num_steps=num_steps(scene.num_windows, scene.epochs, scene.task.batch_size),
        engine="naive" if engine == "naive" else "reuse",
    )


def typical(times: Sequence[StageTimes]) -> StageTimes:
    """The median of every phase."""
    forward, backward, optimizer = (median(getattr(t, phase) for t in times) for phase in PHASES[:3])
    return StageTimes(forward_s=forward, backward_s=backward, optimizer_s=optimizer)


def models(load: Workload, times: StageTimes) -> Mapping[str, tuple[Split | Measured, DeviceType]]:
    """Both models, fitted to one observation."""
    flops = load.forward_flops + load.backward_flops + load.optimizer_flops
    device = DeviceType(name=DEVICE, peak_tops=flops / times.compute_s / TERA, active_power_w=1.0)
    profile = Profile(origin="this machine", backbone="cnn", devices={DEVICE: throughput(load, times)})
    return {"split": (Split(), device), "measured": (Measured(profile=profile), device)}


def _compare(prefix: str, seen: Mapping[str, list[StageTimes]], loads: Mapping[str, Workload]) -> Figures:
    found: Figures = {}
    fitted = models(loads["everything"], typical(seen["everything"]))
    for name, times in seen.items():
        key, real = f"{prefix}_{name}", typical(times)
        found |= {f"{key}_{phase}": getattr(real, phase) for phase in PHASES}
        found[f"{key}_spread"] = spread([t.compute_s for t in times])
        for kind, (model, device) in fitted.items():
            predicted = model.times(device, loads[name])
            found |= {f"{key}_{kind}_{phase}": getattr(predicted, phase) for phase in PHASES}
            found[f"{key}_{kind}_ratio"] = predicted.compute_s / real.compute_s
    return found


def spread(values: Sequence[float]) -> float:
    """The range between the quartiles over the median; 0 for a single value."""
    if len(values) < 2:
        return 0.0
    low, _, high = quantiles(values, n=4, method="inclusive")
    return (high - low) / median(values)
