"""Part 6: stage times predicted by the time models ``split`` and ``measured``, against measured ones.

The very receipts of the measured rounds are billed by the accountant that bills every record. ``split``: the counted
FLOPs of each phase over the device's one speed, which every turn fits to its own round of everything. ``measured``: a
device profile, stage by stage, made as ``relief-ray device profile`` makes it, in between, from other and shorter
rounds on seeded noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from benchmarks.engine.local import Local, make_backbone, make_client
from benchmarks.engine.machine import Figures
from benchmarks.engine.scenario import OURS, Scenario, setup, write
from relief_ray.core.messages import ClientInfo, Fleet, Receipt, StageTimes
from relief_ray.core.stages import Engine
from relief_ray.devices.accounting import CostAccountant
from relief_ray.devices.fleet import DeviceType
from relief_ray.devices.time import MeasuredClock, Profile, SplitClock, Throughput
from relief_ray.experiment.setup import Setup
from relief_ray.profiling.profile import (
    EVERYTHING,
    LEAST,
    LEAST_LONG,
    TimedRound,
    device_row,
    fitting,
    open_bench,
    scenarios,
)

PRESENT = ("acc", "gyro")
ENGINES: tuple[Engine, ...] = ("naive", OURS)
CLOCKS = ("split", "measured")
PHASES = ("forward_s", "backward_s", "optimizer_s", "compute_s")
WHOLE = "everything"
_BLOCKS = ("fusion.A.acc", "fusion.A.gyro")
_ENCODERS = ("encoder.acc.1", "encoder.acc.2", "encoder.gyro.1", "encoder.gyro.2")
ASSIGNMENTS: Mapping[str, tuple[str, ...] | None] = {
    WHOLE: None,
    "own_sensors": (*_BLOCKS, *_ENCODERS, "fusion.B", "head.1"),
    "blocks": _BLOCKS,
    "blocks_bias_head": (*_BLOCKS, "fusion.B", "head.1"),
    "blocks_upper_layer": (*_BLOCKS, "encoder.acc.2"),
    "head": ("head.1",),
    "absent_encoder": ("fusion.A.hr", "encoder.hr.1", "head.1"),
}
DEVICE = "here"
Seen = Mapping[str, Sequence[Receipt]]


def measure(scenario: Scenario, num_turns: int, profile_turns: int) -> Figures:
    """A type-B client's local rounds, measured and predicted, for both engines."""
    write(scenario, peers=False)
    figures: Figures = {
        "predict_turns": num_turns,
        "predict_windows": scenario.num_windows,
        "predict_epochs": scenario.epochs,
    }
    for engine in ENGINES:
        prepared = setup(scenario, engine=engine)
        local = Local(make_client(scenario, PRESENT), make_backbone(scenario, engine), engine)
        profiler = Profiler(prepared, scenario.task.batch_size)
        seen = _observe(local, profiler, num_turns, profile_turns)
        figures |= compare(f"predict_{engine}", seen, bills(prepared, scenario.num_windows, seen, profiler.row()))
    return figures


class Profiler:
    """This machine's paces, as ``relief_ray.profiling.profile`` finds them, for a hand-made setup."""

    def __init__(self, prepared: Setup, batch_size: int) -> None:
        self._bench = open_bench(prepared)
        rows, epochs = fitting(self._bench, batch_size)
        self._scenes = scenarios(prepared.layout, prepared.fleet.modalities, rows, epochs)
        self._seen: dict[str, list[TimedRound]] = {scenario.name: [] for scenario in self._scenes}

    def turn(self, is_counted: bool = True) -> None:
        """Every short round once."""
        for scenario in self._scenes:
            turn = self._bench.train(scenario)
            if is_counted:
                self._seen[scenario.name].append(turn)

    def row(self) -> Throughput:
        """The profile's row."""
        seen = self._seen
        every = [turn for turns in seen.values() for turn in turns]
        return device_row(self._bench, seen[EVERYTHING], [*seen[LEAST], *seen[LEAST_LONG]], every)


def _observe(local: Local, profiler: Profiler, num_turns: int, profile_turns: int) -> Seen:
    """Assignments and the profile's rounds take turns; the first turn is not counted."""
    seen: dict[str, list[Receipt]] = {name: [] for name in ASSIGNMENTS}
    for turn in range(num_turns + 1):
        if turn <= profile_turns:
            profiler.turn(is_counted=turn > 0)
        for name, groups in ASSIGNMENTS.items():
            receipt = local.train(groups).receipt
            if turn:
                seen[name].append(receipt)
    return seen


@dataclass(frozen=True, kw_only=True, slots=True)
class Bill:
    """Seconds of one assignment by two time models; ``split`` on a device of 10^12 FLOP/s."""

    split: StageTimes
    measured: StageTimes


def bills(prepared: Setup, num_windows: int, seen: Seen, row: Throughput) -> dict[str, Bill]:
    """Every assignment's receipt, billed as a record bills it, each clock with the engine that ran."""
    info = ClientInfo(id=0, name="client", device=DEVICE, modalities=PRESENT, num_windows=num_windows)
    fleet = Fleet(clients=(info,), modalities=prepared.fleet.modalities)
    profile = Profile(origin="this machine", backbone="cnn", engine=prepared.engine, devices={DEVICE: row})
    accountant = CostAccountant(
        counter=prepared.accountant.counter,
        types={DEVICE: DeviceType(name=DEVICE, tops=1.0, active_power_w=1.0)},
        clocks={
            "split": SplitClock(),
            "measured": MeasuredClock(profile=profile),
        },
    )
    bills_by_name = {}
    for name, receipts in seen.items():
        costs = accountant.cost([receipts[0]], fleet)
        split, measured = (costs[clock].clients[0].times for clock in CLOCKS)
        bills_by_name[name] = Bill(split=split, measured=measured)
    return bills_by_name


def compare(prefix: str, seen: Seen, billed: Mapping[str, Bill]) -> Figures:
    """Measured medians; predictions; and predicted over measured, the median of the turns' ratios."""
    times = {name: [r.work.measured for r in receipts] for name, receipts in seen.items()}
    # Seconds on this machine for one on the nominal device, turn by turn.
    scales = [t.compute_s / billed[WHOLE].split.compute_s for t in times[WHOLE]]
    figures: Figures = {}
    for name, real in times.items():
        key, bill = f"{prefix}_{name}", billed[name]
        figures |= {f"{key}_{phase}": median(getattr(t, phase) for t in real) for phase in PHASES}
        figures[f"{key}_spread"] = spread([t.compute_s for t in real])
        figures |= {f"{key}_{phase}_spread": spread([getattr(t, phase) for t in real]) for phase in PHASES[:-1]}
        for phase in PHASES:
            figures[f"{key}_split_{phase}"] = median(scales) * getattr(bill.split, phase)
            figures[f"{key}_measured_{phase}"] = getattr(bill.measured, phase)
        pairs = list(zip(scales, real, strict=True))
        figures[f"{key}_split_ratio"] = median(s * bill.split.compute_s / t.compute_s for s, t in pairs)
        figures[f"{key}_measured_ratio"] = median(bill.measured.compute_s / t.compute_s for t in real)
    return figures


def spread(values: Sequence[float]) -> float:
    """The range between the quartiles over the median; 0 for a single value, or where nothing took time."""
    if len(values) < 2:
        return 0.0
    low, _, high = quantiles(values, n=4, method="inclusive")
    middle = median(values)
    return (high - low) / middle if middle else 0.0
