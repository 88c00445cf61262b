"""Gauges of a run on Ray's Prometheus endpoint: a handful of figures per run, never per client."""

from __future__ import annotations

from ray.util.metrics import Gauge

from relief_ray.experiment.setup import Setup
from relief_ray.records.schema import RoundRecord

_TAGS = ("cell", "strategy", "dataset", "seed")
FIGURES = {
    "round": "Rounds committed.",
    "f1": "Macro-F1 of the last evaluation (of own models where there is no other), 0 to 1.",
    "simulated_seconds": "Simulated seconds so far, by the clock that plans.",
    "wall_seconds": "Wall seconds of the rounds that this process ran.",
    "energy_joules": "Simulated joules so far, by the clock that plans.",
    "bytes_up": "Bytes that clients sent so far.",
    "bytes_down": "Bytes that clients were sent so far.",
    "stragglers": "Clients of the round whose own work lasts longer than twice the median.",
    "host_peak_mib": "Most resident memory that a host's process has held, MiB; from `run` alone.",
}
_STRAGGLER_FACTOR = 2.0


def num_stragglers(record: RoundRecord, clock: str) -> int:
    """Clients whose round, waiting aside, lasts longer than twice the median of the round's clients."""
    stages = [c.times for c in record.costs[clock].clients if c.client in record.participants]
    busy_s = sorted(t.forward_s + t.backward_s + t.optimizer_s + t.up_s + t.down_s for t in stages)
    if not busy_s:
        return 0
    middle = len(busy_s) // 2
    median_s = busy_s[middle] if len(busy_s) % 2 else (busy_s[middle - 1] + busy_s[middle]) / 2
    return sum(s > _STRAGGLER_FACTOR * median_s for s in busy_s)


def figures(record: RoundRecord, clock: str) -> dict[str, float]:
    """A round's figures by name; F1 only where the round was evaluated."""
    totals, metrics = record.totals[clock], record.metrics or record.validation
    values = {
        "round": float(record.round),
        "simulated_seconds": totals.time_s,
        "energy_joules": totals.energy_j,
        "bytes_up": float(totals.bytes_up),
        "bytes_down": float(totals.bytes_down),
        "stragglers": float(num_stragglers(record, clock)),
    }
    f1 = None if metrics is None else metrics.headline
    return values if f1 is None else {**values, "f1": f1}


class Gauges:
    """The gauges of one run, named ``ray_relief_*``."""

    def __init__(self, *, cell: str, setup: Setup) -> None:
        """Register the gauges with this process' node."""
        config = setup.config
        tags = {"cell": cell, "strategy": config.label(), "dataset": config.data.name, "seed": str(config.seed)}
        self._clock, self._wall_s = config.costs.planning_time, 0.0
        self._gauges = {name: Gauge(f"relief_{name}", text, _TAGS) for name, text in FIGURES.items()}
        for gauge in self._gauges.values():
            gauge.set_default_tags(tags)

    def show(self, record: RoundRecord, host_peak_mib: float | None = None) -> None:
        """Set the gauges to a committed round."""
        self._wall_s += record.wall_s
        process_values = {
            "wall_seconds": self._wall_s,
            **({} if host_peak_mib is None else {"host_peak_mib": host_peak_mib}),
        }
        for name, value in {**figures(record, self._clock), **process_values}.items():
            self._gauges[name].set(value)
