"""Progress of `run` and `grid` as the library shows it (``studies.progress``), or as JSON lines."""

from __future__ import annotations

import json

from pydantic import JsonValue

from relief_ray.records.metrics import METRICS
from relief_ray.records.schema import RoundRecord
from relief_ray.studies.progress import End, Shown, headline_f1, terminal_display
from relief_ray.studies.spec import Cell


def display(as_json: bool, num_runs: int = 0, num_rounds: int = 0, *, several: bool) -> Shown:
    """What a command prints of its runs: JSON with ``--json``, else what suits the terminal (``terminal_display``)."""
    return JsonEvents(several) if as_json else terminal_display(num_runs, num_rounds, several=several)


class JsonEvents(Shown):
    """Prints one JSON object per line on stdout, notes on stderr.

    Of one run at a time these are the events ``run``, ``round`` and ``end``; of runs side by side ``cell`` alone, when
    one has ended.
    """

    def __init__(self, several: bool) -> None:
        """``several``: runs are computed side by side."""
        super().__init__(stderr=True)
        self._several = several

    def write(self, event: str, **facts: object) -> None:
        """Print one event."""
        print(json.dumps({"event": event, **facts}), flush=True)

    def begin(self, cell: Cell, text: str, done: int | None) -> None:
        """Write ``{"event": "run"}``."""
        if self._several:
            return
        self.write("run", run=cell.title, facts=text, done=done, rounds=cell.config.rounds)

    def round(self, cell: Cell, record: RoundRecord) -> None:
        """Write ``{"event": "round"}`` with cumulative totals."""
        if self._several:
            return
        clock = cell.config.costs.planning_time
        cost = record.costs[clock]
        self.write(
            "round",
            run=cell.title,
            round=record.round,
            phase=record.phase,
            loss=record.loss,
            **_json_scores(record),
            clock=clock,
            round_s=cost.round_s,
            round_energy_j=cost.energy_j,
            **record.totals[clock].model_dump(),
            speedup=record.speedup,
            wall_s=record.wall_s,
            clients=len(record.participants) - len(record.rejected),
            participants=len(record.participants),
            left_out=[
                {"client": client, **left.model_dump(), "why": record.rejected[client]}
                for client, left in sorted(record.left_out.items())
            ],
        )

    def end(self, cell: Cell, end: End) -> None:
        """Write ``{"event": "end"}``, or ``{"event": "cell"}`` with how the study stands."""
        why = end.why or None
        if not self._several:
            self.write("end", run=cell.title, status=end.status, why=why, **_json_scores(end.record))
            return
        facts = {"cell": cell.title, "status": end.status, "wall_s": end.seconds, "f1": headline_f1(end.record)}
        view = {"done": end.view.num_done, "cells": end.view.num_cells, "left_s": end.view.left_s}
        self.write("cell", **facts, why=why, **view)


def _json_scores(record: RoundRecord | None) -> dict[str, JsonValue]:
    """Scores of a round; null where it was not evaluated, and where the method has none."""
    metrics = record.metrics if record is not None else None
    return {name: getattr(metrics, name, None) for name in METRICS}
