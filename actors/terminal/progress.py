"""Progress of `run` and `grid` as the library shows it (``studies.progress``), or as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pydantic import JsonValue

from relief_ray.records.metrics import METRICS
from relief_ray.records.schema import RoundRecord
from relief_ray.studies.progress import End, Shown, headline_f1, one_at_a_time, side_by_side
from relief_ray.studies.spec import Cell


class JsonLines(Shown):
    """Base of those that print one JSON object per line on stdout; notes go to stderr."""

    def __init__(self) -> None:
        """Nothing is shown yet."""
        super().__init__(stderr=True)

    def write(self, facts: Mapping[str, object]) -> None:
        """Print one event."""
        print(json.dumps(facts), flush=True)


def run_display(as_json: bool, num_runs: int, num_rounds: int) -> Shown:
    """``num_rounds`` are still to do in all ``num_runs`` runs."""
    return JsonEvents() if as_json else one_at_a_time(num_runs, num_rounds)


def grid_display(as_json: bool) -> Shown:
    """For cells side by side."""
    return GridJson() if as_json else side_by_side()


class JsonEvents(JsonLines):
    """Events ``run``, ``round`` and ``end``."""

    def begin(self, cell: Cell, text: str, done: int | None) -> None:
        """Write ``{"event": "run"}``."""
        self.write(
            {
                "event": "run",
                "run": cell.title,
                "facts": text,
                "done": done,
                "rounds": cell.config.rounds,
            }
        )

    def round(self, cell: Cell, record: RoundRecord) -> None:
        """Write ``{"event": "round"}`` with cumulative totals."""
        clock = cell.config.costs.planning_time
        cost = record.costs[clock]
        self.write(
            {
                "event": "round",
                "run": cell.title,
                "round": record.round,
                "phase": record.phase,
                "loss": record.loss,
                **_json_scores(record),
                "clock": clock,
                "round_s": cost.round_s,
                "round_energy_j": cost.energy_j,
                **record.totals[clock].model_dump(),
                "speedup": record.speedup,
                "wall_s": record.wall_s,
                "clients": len(record.participants) - len(record.rejected),
                "participants": len(record.participants),
                "left_out": [
                    {"client": client, **left.model_dump(), "why": record.rejected[client]}
                    for client, left in sorted(record.left_out.items())
                ],
            }
        )

    def end(self, cell: Cell, end: End) -> None:
        """Write ``{"event": "end"}``."""
        shown = {"event": "end", "run": cell.title, "status": end.status, "why": end.why or None}
        self.write({**shown, **_json_scores(end.record)})


def _json_scores(record: RoundRecord | None) -> dict[str, JsonValue]:
    """F1s of a round; null where it was not evaluated."""
    metrics = record.metrics if record is not None else None
    return {name: getattr(metrics, name, None) for name, label in METRICS.items() if label}


class GridJson(JsonLines):
    """One JSON object per finished cell."""

    def end(self, cell: Cell, end: End) -> None:
        """Write ``{"event": "cell"}``."""
        facts = {"event": "cell", "cell": cell.title, "status": end.status, "wall_s": end.seconds}
        progress = {"done": end.view.num_done, "cells": end.view.num_cells, "left_s": end.view.left_s}
        self.write({**facts, "f1": headline_f1(end.record), "why": end.why or None, **progress})
