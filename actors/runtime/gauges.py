"""Gauges on the Prometheus endpoint of Ray's nodes: a handful per run, board and grid, never per client."""

from __future__ import annotations

from statistics import median
from typing import Final

from ray.util.metrics import Gauge

from relief_ray.experiment.setup import Setup
from relief_ray.records.schema import RoundRecord
from relief_ray.studies.progress import View, headline_f1

# Labels of gauges, and by their names, without `ray_relief_`, what they show.
_RUN: Final = ("cell", "strategy", "dataset", "seed")
_BOARD: Final = (*_RUN, "host")
_GRID: Final = ("grid", "state")
GAUGES: Final[dict[tuple[str, ...], dict[str, str]]] = {
    _RUN: {
        "round": "Rounds committed.",
        "f1": "Macro-F1 of the last evaluation (of own models where there is no other), 0 to 1.",
        "simulated_seconds": "Simulated seconds so far, by the clock that plans.",
        "wall_seconds": "Wall seconds of the rounds that this process ran.",
        "energy_joules": "Simulated joules so far, by the clock that plans.",
        "bytes_up": "Bytes that clients sent so far.",
        "bytes_down": "Bytes that clients were sent so far.",
        "stragglers": "Clients of the round whose own work lasts longer than twice the median.",
        "host_peak_mib": "Most resident memory that a host's process has held, MiB; from `run` alone.",
    },
    _BOARD: {
        "board_watts": "Mean power of a board while it was computing in the last round, W; of physical runs.",
        "board_celsius": "Temperature of a board's hottest zone after that, degrees Celsius.",
        "board_throttled": "1 where the board slowed itself down meanwhile, else 0.",
    },
    _GRID: {"cells": "Cells of a grid by state: done, failed, stopped, running, waiting."},
}
_STRAGGLER_FACTOR = 2.0


def num_stragglers(record: RoundRecord, clock: str) -> int:
    """Clients whose round, waiting aside, lasts longer than twice the median of the round's clients."""
    busy_s = [c.times.busy_s for c in record.costs[clock].clients if c.client in record.participants]
    median_s = median(busy_s) if busy_s else 0.0
    return sum(s > _STRAGGLER_FACTOR * median_s for s in busy_s)


def figures(record: RoundRecord, clock: str) -> dict[str, float]:
    """A round's figures by name; F1 only where the round was evaluated."""
    totals = record.totals[clock]
    values: dict[str, float] = {
        "round": record.round,
        "simulated_seconds": totals.time_s,
        "energy_joules": totals.energy_j,
        "bytes_up": totals.bytes_up,
        "bytes_down": totals.bytes_down,
        "stragglers": num_stragglers(record, clock),
    }
    if (f1 := headline_f1(record)) is not None:
        values["f1"] = f1
    return values


def boards(record: RoundRecord) -> dict[str, dict[str, float]]:
    """Figures of each board of a physical round by its host's name; of several clients on it the highest.

    What a board does not tell has no figure.
    """
    by_host: dict[str, dict[str, float]] = {}
    for client in record.physical.values():
        told = {"board_celsius": client.temperature_c, "board_throttled": client.throttled}
        if client.energy_j is not None and client.call_s:
            told["board_watts"] = client.energy_j / client.call_s
        shown = by_host.setdefault(client.host, {})
        shown.update({k: max(float(v), shown.get(k, float(v))) for k, v in told.items() if v is not None})
    return by_host


def cells_by_state(view: View) -> dict[str, int]:
    """Number of a grid's cells in each state; every cell is in one."""
    states = {
        "done": view.num_done,
        "failed": view.num_failed,
        "stopped": view.num_stopped,
        "running": len(view.running),
    }
    return states | {"waiting": view.num_cells - sum(states.values())}


def gauges(labels: tuple[str, ...], given: dict[str, str]) -> dict[str, Gauge]:
    """The gauges with these labels, by name, at this process' node; ``given``: values of labels from now on."""
    made = {name: Gauge(f"relief_{name}", text, labels) for name, text in GAUGES[labels].items()}
    for gauge in made.values():
        gauge.set_default_tags(given)
    return made


class Gauges:
    """The gauges of one run, and of the boards that it measures."""

    def __init__(self, *, cell: str, setup: Setup) -> None:
        """Register the gauges with this process' node."""
        config = setup.config
        tags = {"cell": cell, "strategy": config.label(), "dataset": config.data.name, "seed": str(config.seed)}
        self._clock, self._wall_s = config.costs.planning_time, 0.0
        # Ray forgets a gauge that is not set again, and not every round is evaluated.
        self._shown: dict[str, float] = {}
        self._gauges = gauges(_RUN, tags) | gauges(_BOARD, tags)

    def show(self, record: RoundRecord, host_peak_mib: float | None = None) -> None:
        """Set the gauges to a committed round."""
        self._wall_s += record.wall_s
        self._shown |= figures(record, self._clock) | {"wall_seconds": self._wall_s}
        if host_peak_mib is not None:
            self._shown["host_peak_mib"] = host_peak_mib
        for name, value in self._shown.items():
            self._gauges[name].set(value)
        for host, told in boards(record).items():
            for name, value in told.items():
                self._gauges[name].set(value, {"host": host})


class GridGauge:
    """The cells of a grid by state, from the process that started it."""

    def __init__(self, grid: str) -> None:
        """Register the gauge with this process' node."""
        (self._cells,) = gauges(_GRID, {"grid": grid}).values()

    def show(self, view: View) -> None:
        """Set it to how the grid stands."""
        for state, number in cells_by_state(view).items():
            self._cells.set(number, {"state": state})
