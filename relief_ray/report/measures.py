"""The figures of a run as a flat mapping whose names carry the units: what JSON and CSV hold and tables average."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from relief_ray.report.load import Loaded
from relief_ray.report.summary import MIB, TTA_SHARE, TTA_TARGET, ClockSummary, Reached, RunSummary, time_to

Values = Mapping[str, float]


def measures(runs: Sequence[Loaded], summaries: Sequence[RunSummary], clock: str) -> list[Values]:
    """Each run's figures; those that need FedAvg take the run of the same replicate (fold, rotation, seed)."""
    fedavg = {s.replicate: s for s in summaries if s.label == "fedavg"}
    return [
        values_of(loaded, summary, clock, fedavg.get(summary.replicate))
        for loaded, summary in zip(runs, summaries, strict=True)
    ]


def values_of(loaded: Loaded, summary: RunSummary, clock: str, fedavg: RunSummary | None) -> Values:
    """One run's figures; what is not defined for it is absent."""
    targets = {"tta85": TTA_TARGET}
    if fedavg is not None and fedavg.shown is not None:
        targets["tta95"] = TTA_SHARE * fedavg.shown
    found: dict[str, float | None] = {**_scores(summary), **_costs(summary.clocks[clock]), **_work(summary, fedavg)}
    for name, target in targets.items():
        found |= _reached(name, time_to(loaded, clock, target))
    return {name: value for name, value in found.items() if value is not None}


def _scores(summary: RunSummary) -> dict[str, float | None]:
    last = summary.last
    shares = {
        "f1_percent": summary.shown,
        "f1_best_percent": summary.best,
        "f1_last10_percent": summary.last10,
        "f1_canonical_percent": last.f1,
        "f1_fleet_percent": last.f1_fleet,
        "f1_rare_percent": last.f1_rare,
        "accuracy_percent": last.accuracy,
        **{f"f1_{m}_percent": v for m, v in last.f1_by_modality.items()},
    }
    return {name: _percent(value) for name, value in shares.items()}


def _costs(clock: ClockSummary) -> dict[str, float | None]:
    return {
        "round_s": clock.round_s,
        "speedup": clock.speedup,
        "speedup_total": clock.speedup_total,
        "total_s": clock.total_s,
        "energy_j": clock.energy_j,
        "energy_total_j": clock.total_j,
        "energy_saved_percent": _percent(clock.energy_saved),
    }


def _work(summary: RunSummary, fedavg: RunSummary | None) -> dict[str, float | None]:
    slots = summary.slots
    return {
        "up_mib": _mib(summary.up_bytes),
        "up_max_mib": _mib(summary.up_max_bytes),
        "up_fleet_mib": _mib(summary.fleet_up_bytes),
        "down_mib": _mib(summary.down_bytes),
        "up_saved_percent": _percent(_saved(summary, fedavg)),
        "trained_percent": _percent(summary.trained_fraction),
        "wall_s": summary.wall_s,
        "free_slots": None if slots is None else slots.free / slots.client_rounds,
        "chosen_slots": None if slots is None else slots.chosen / slots.client_rounds,
    }


def _saved(summary: RunSummary, fedavg: RunSummary | None) -> float | None:
    if fedavg is None or not fedavg.up_bytes or summary.up_bytes is None:
        return None
    return 1 - summary.up_bytes / fedavg.up_bytes


def _reached(name: str, found: Reached | None) -> dict[str, float | None]:
    if found is None:
        return {}
    return {f"{name}_rounds": found.rounds, f"{name}_s": found.time_s, f"{name}_j": found.energy_j}


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _mib(num_bytes: float | None) -> float | None:
    return None if num_bytes is None else num_bytes / MIB
