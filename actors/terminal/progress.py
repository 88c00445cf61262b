"""Progress of `run` and `grid` as the library shows it (``studies.progress``), or as JSON lines."""

from __future__ import annotations

from pydantic import JsonValue

from actors.terminal.exit_codes import Result
from relief_ray.records.metrics import METRICS
from relief_ray.records.schema import RoundRecord
from relief_ray.studies.progress import End, Shown, headline_f1, terminal_display
from relief_ray.studies.spec import Cell


def display(as_json: bool, num_runs: int = 0, num_rounds: int = 0, *, several: bool) -> Shown:
    """What a command prints of its runs: JSON with ``--json``, else what suits the terminal (``terminal_display``)."""
    if as_json:
        return (CellEvents if several else RunEvents)(stderr=True)
    return terminal_display(num_runs, num_rounds, several=several)


def _write(event: str, **facts: object) -> None:
    """Print one event as a JSON object on a line."""
    Result("", {"event": event, **facts}).show(as_json=True)


class CellEvents(Shown):
    """Prints an event on stdout when one of several runs, computed side by side, has ended; notes on stderr."""

    def end(self, cell: Cell, end: End) -> None:
        """Write ``{"event": "cell"}`` with how the study stands."""
        facts = {"cell": cell.title, "status": end.status, "wall_s": end.seconds, "f1": headline_f1(end.record)}
        view = {"done": end.view.num_done, "cells": end.view.num_cells, "left_s": end.view.left_s}
        _write("cell", **facts, why=end.why or None, **view)


class RunEvents(Shown):
    """Prints events of one run at a time on stdout: ``run``, ``round`` and ``end``; notes on stderr."""

    def begin(self, cell: Cell, text: str, done: int | None) -> None:
        """Write ``{"event": "run"}``."""
        _write("run", run=cell.title, facts=text, done=done, rounds=cell.config.rounds)

    def round(self, cell: Cell, record: RoundRecord) -> None:
        """Write ``{"event": "round"}`` with cumulative totals."""
        clock = cell.config.costs.planning_time
        cost = record.costs[clock]
        _write(
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
        """Write ``{"event": "end"}``."""
        _write("end", run=cell.title, status=end.status, why=end.why or None, **_json_scores(end.record))


def _json_scores(record: RoundRecord | None) -> dict[str, JsonValue]:
    """Scores of a round; null where it was not evaluated, and where the method has none."""
    metrics = record.metrics if record is not None else None
    return {name: getattr(metrics, name, None) for name in METRICS}
