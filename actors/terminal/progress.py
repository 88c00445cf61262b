"""Progress of `run` and `grid` on a terminal: bars and tables, plain lines, JSON lines; all are ``Callback``s."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Mapping

from pydantic import JsonValue
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.progress_bar import ProgressBar as Share
from rich.table import Table
from rich.text import Text

from relief_ray.records.facts import summary_line
from relief_ray.records.metrics import METRICS
from relief_ray.records.schema import RoundRecord
from relief_ray.studies.progress import Callback, End, View, headline_f1
from relief_ray.studies.spec import Cell
from relief_ray.support.text import WIDTH


def make_console(stderr: bool = False) -> Console:
    """A console without automatic highlighting; 100 columns wide where the output is no terminal."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, highlight=False, width=None if stream.isatty() else WIDTH)


def is_interactive() -> bool:
    """True for a terminal that may be drawn on: NO_COLOR and TERM=dumb ask for plain lines."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Shown(Callback):
    """Prints notes and alerts as plain lines and nothing else."""

    def note(self, text: str) -> None:
        """Print a message for the user."""
        print(text, flush=True)


class JsonLines(Shown):
    """Base of those that print one JSON object per line on stdout; notes go to stderr."""

    def note(self, text: str) -> None:
        """Print to stderr."""
        print(text, file=sys.stderr, flush=True)

    def write(self, facts: Mapping[str, object]) -> None:
        """Print one event."""
        print(json.dumps(facts), flush=True)


# Of more runs than these a line is printed so often: enough to see that they go on, and the end stays in sight.
_FEW, _LINE_EVERY_S = 12, 10.0
# Columns of the bar, and of the time left with the blanks between columns.
_BAR, _LEFT = 8, 15


def run_display(as_json: bool, num_runs: int, num_rounds: int) -> Shown:
    """Choose by where the output goes; ``num_rounds`` are still to do in all ``num_runs`` runs."""
    if as_json:
        return JsonEvents()
    return ProgressBar(num_runs, num_rounds) if is_interactive() else Lines(num_runs)


def round_line(record: RoundRecord, rounds: int, clock: str) -> str:
    """One round as text of at most 80 columns, aligned with the other rounds of its run.

    Where clients were left out it begins with how many were not, and is longer by that.
    """
    cost = record.costs[clock]
    parts = [f"{record.round:>{len(str(rounds))}}/{rounds}"]
    if record.rejected:
        parts.append(summary_line(record))
    if record.loss is not None:
        parts.append(f"loss {record.loss:6.4g}")
    parts.append(f"sim {seconds(cost.round_s)[2:]} {cost.energy_j:5.4g} J")
    parts.append(f"here {record.wall_s:4.1f} s")
    return "  ".join([*parts, *(" ".join(score.split()) for score in scores(record))])


def scores(record: RoundRecord | None) -> list[str]:
    """F1 and rare-modality F1 in percent, where the round was evaluated."""
    metrics = record.metrics if record is not None else None
    if metrics is None:
        return []
    values = [(metric.label, metric.score(metrics)) for metric in METRICS.values() if metric.label]
    return [f"{label} {100 * value:5.1f} %" for label, value in values if value is not None]


def seconds(value: float) -> str:
    """Seconds with three significant digits or better, aligned: ``0.042 s``, ``12.31 s``, ``482.0 s``."""
    digits = 3 if value < 10 else 2 if value < 100 else 1
    return f"{value:7.{digits}f} s"


class Lines(Shown):
    """Plain lines on stdout: of a single run one per round; of several one per run, of many one now and then."""

    def __init__(self, num_runs: int, every_s: float = _LINE_EVERY_S) -> None:
        """``num_runs``: total that runs are counted up to; ``every_s``: of many, a line after so many seconds."""
        self._num_runs, self._num_begun, self._every_s = num_runs, 0, every_s
        self._shown_s = time.monotonic()

    def begin(self, cell: Cell, text: str, done: int | None) -> None:
        """Print a headline: of the first run, and of one that goes on."""
        self._num_begun += 1
        going_on = f"; going on after round {done}" if done is not None else ""
        if self._num_begun == 1 or going_on:
            self._show(f"{self._heading(cell)}: {text}{going_on}")

    def round(self, cell: Cell, record: RoundRecord) -> None:
        """Print a line of a single run; of several where a client was left out, or none was printed for long."""
        line = round_line(record, cell.config.rounds, cell.config.costs.planning_time)
        if self._num_runs == 1:
            self._show(f"  {line}")
        elif record.rejected or self._is_due():
            self._show(f"  {cell.title}: {line}")

    def end(self, cell: Cell, end: End) -> None:
        """Print a line of one of several runs, now and then of many; of a reused one always."""
        self._num_begun += end.reused
        words = end.why if end.reused else f"{end.status} in {end.seconds:.1f} s"
        is_wanted = self._num_runs <= _FEW or self._num_begun == self._num_runs or end.status != "done"
        if end.reused or (self._num_runs > 1 and (is_wanted or self._is_due())):
            self._show("  ".join([f"{self._heading(cell)}: {words}", *scores(end.record)]))

    def _heading(self, cell: Cell) -> str:
        return f"[{self._num_begun}/{self._num_runs}] {cell.title}"

    def _is_due(self) -> bool:
        return time.monotonic() - self._shown_s >= self._every_s

    def _show(self, line: str) -> None:
        print(line, flush=True)
        self._shown_s = time.monotonic()


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
        cost, totals = record.costs[clock], record.totals[clock]
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
                "time_s": totals.time_s,
                "energy_j": totals.energy_j,
                "bytes_up": totals.bytes_up,
                "bytes_down": totals.bytes_down,
                "speedup": record.speedup,
                "wall_s": record.wall_s,
                "clients": len(record.participants) - len(record.rejected),
                "participants": len(record.participants),
                "left_out": [
                    {
                        "client": client,
                        "device": left.device,
                        "cause": left.cause,
                        "since": left.since,
                        "why": record.rejected[client],
                    }
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
    shown = [metric for metric in METRICS.values() if metric.label]
    return {metric.name: None if metrics is None else metric.score(metrics) for metric in shown}


class Remaining(ProgressColumn):
    """Time left for all runs, from the rounds of this very call."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        """``~2 min left``."""
        left_s = task.time_remaining
        if task.finished or left_s is None:
            return Text("")
        return Text(f"~{left_s:.0f} s left" if left_s < 120 else f"~{left_s / 60:.0f} min left", style="cyan")


class ProgressBar(Shown):
    """A bar for all runs together; every finished run leaves a line above it."""

    def __init__(self, num_runs: int, num_rounds: int) -> None:
        """Start drawing."""
        self._console = make_console()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=_BAR),
            TextColumn("{task.fields[state]}"),
            Remaining(),
        )
        self._bar = Progress(*columns, console=self._console, transient=True, speed_estimate_period=600.0)
        self._task = self._bar.add_task("starting", total=num_rounds or None, state="")
        self._num_runs, self._num_begun = num_runs, 0
        self._scores: list[str] = []
        self._room = self._console.width
        self._bar.start()

    def note(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(text, markup=False)

    def begin(self, cell: Cell, text: str, done: int | None) -> None:
        """Rename the bar."""
        self._num_begun, self._scores = self._num_begun + 1, []
        heading = f"[{self._num_begun}/{self._num_runs}] {cell.title}"
        self._room = self._console.width - len(heading) - _BAR - _LEFT
        self._bar.update(self._task, description=heading.replace("[", r"\["), state="")

    def round(self, cell: Cell, record: RoundRecord) -> None:
        """Move the bar; a round that went on without clients says how many it had."""
        self._scores = [" ".join(score.split()) for score in scores(record)] or self._scores
        clients = [summary_line(record)] if record.rejected else []
        simulated_s = record.totals[cell.config.costs.planning_time].time_s
        parts = [f"{record.round}/{cell.config.rounds}", *clients, *self._scores, f"sim {simulated_s:.1f} s"]
        # On a narrow terminal the last ones are left out: a bar of two lines cannot be redrawn.
        fitting = [i for i in range(1, len(parts) + 1) if len("  ".join(parts[:i])) <= self._room]
        self._bar.update(self._task, advance=1, state="  ".join(parts[: max(fitting, default=1)]))

    def end(self, cell: Cell, end: End) -> None:
        """Leave one line above the bar."""
        self._num_begun += end.reused
        words = end.why if end.reused else f"{end.status} in {end.seconds:.1f} s"
        line = "  ".join([f"[{self._num_begun}/{self._num_runs}] {cell.title}: {words}", *scores(end.record)])
        self._console.print(line, markup=False)

    def close(self) -> None:
        """Remove the bar."""
        self._bar.stop()


_MAX_LEADERS, _PULSE_S = 8, 60.0
# Letters of a cell's name that stay where a line is too long for the terminal: method, fold and seed at its end.
_LEAST_NAME = 24
# Letters that the other columns of the live tables take besides the heading of F1 and the method's name.
_BESIDE_RUNNING, _BESIDE_BEST = 20, 35


def grid_display(as_json: bool) -> Shown:
    """Choose by where the output goes."""
    if as_json:
        return GridJson()
    return GridTable() if is_interactive() else GridLines()


def duration(seconds: float) -> str:
    """``45 s``, ``12 min``, ``3.4 h``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _time_left(view: View) -> str:
    """``~12 min left``; empty while unknown or at the end."""
    return f"~{duration(view.left_s)} left" if view.left_s else ""


def _percent(f1: float | None) -> str:
    """``F1 71.3 %``; empty where there is none."""
    return "" if f1 is None else f"F1 {100 * f1:.1f} %"


def shortened(head: str, name: str, tail: str) -> str:
    """``head``, ``name`` and ``tail`` in a line; the middle of the name gives way where a terminal is narrower.

    Without a terminal, e.g. in a file, nothing is left out.
    """
    return f"{head}{_fitted(name, len(head) + len(tail))}{tail}"


def _fitted(name: str, others: int) -> str:
    """The name where ``others`` letters of the same line leave room for it, else without its middle."""
    width = shutil.get_terminal_size((0, 0)).columns
    room = max(_LEAST_NAME, width - others)
    return f"{name[: (room - 1) // 2]}…{name[len(name) - room // 2 :]}" if width and len(name) > room else name


def end_line(cell: Cell, end: End) -> str:
    """One ended cell in a line; where a terminal is narrower, the middle of its name is left out."""
    reason = end.why.splitlines()[0] if end.why else ""
    status = {"failed": "FAILED", "stopped": reason or "stopped"}.get(end.status, end.status)
    facts = (_percent(headline_f1(end.record)), reason if status != reason else "", _time_left(end.view))
    tail = "  ".join(p for p in (f": {status} in {end.seconds:.1f} s", *facts) if p)
    return shortened(f"[{end.view.num_ended}/{end.view.num_cells}] ", cell.title, tail)


class GridLines(Shown):
    """Plain lines on stdout; a sign of life once a minute."""

    def __init__(self) -> None:
        """Start the clock of the last line."""
        self._printed_s = time.monotonic()

    def note(self, text: str) -> None:
        """Print a line."""
        self._printed_s = time.monotonic()
        print(text, flush=True)

    def end(self, cell: Cell, end: End) -> None:
        """Print a line."""
        self.note(end_line(cell, end))

    def refresh(self, view: View) -> None:
        """Print a line where none was printed for a minute."""
        if time.monotonic() - self._printed_s > _PULSE_S:
            for i, cell in enumerate(view.running):
                left = f"  {_time_left(view)}" if i == 0 and view.left_s else ""
                self.note(shortened("  ... ", cell.title, f" round {cell.num_rounds}/{cell.num_planned}{left}"))


class GridJson(JsonLines):
    """One JSON object per finished cell."""

    def end(self, cell: Cell, end: End) -> None:
        """Write ``{"event": "cell"}``."""
        facts = {"event": "cell", "cell": cell.title, "status": end.status, "wall_s": end.seconds}
        progress = {"done": end.view.num_done, "cells": end.view.num_cells, "left_s": end.view.left_s}
        self.write({**facts, "f1": headline_f1(end.record), "why": end.why or None, **progress})


class GridTable(Shown):
    """One table that is redrawn; failures stay above it."""

    def __init__(self) -> None:
        """Start drawing."""
        self._live = Live(console=make_console(), transient=True, refresh_per_second=4)
        self._live.start()

    def note(self, text: str) -> None:
        """Print a line above the table."""
        self._live.console.print(text, markup=False)

    def end(self, cell: Cell, end: End) -> None:
        """Print a line for a failed cell and redraw."""
        if end.status == "failed":
            self.note(end_line(cell, end))
        self.refresh(end.view)

    def refresh(self, view: View) -> None:
        """Redraw the table."""
        self._live.update(picture(view))

    def close(self) -> None:
        """Remove the table."""
        self._live.stop()


def picture(view: View) -> RenderableType:
    """Draw cells done, time left, the running cells and the best method of each setting."""
    head = Table.grid(padding=(0, 2))
    stopped = f", {view.num_stopped} stopped" if view.num_stopped else ""
    failed = f"{stopped}, {view.num_failed} failed" if view.num_failed else stopped
    head.add_row(
        Text(f"{view.num_done}/{view.num_cells} cells{failed}", style="bold"),
        Share(total=view.num_cells, completed=view.num_ended, width=16),
        Text(duration(view.elapsed_s)),
        Text(_time_left(view), style="cyan"),
    )
    table = Table(box=None, padding=(0, 2), show_header=True, header_style="dim")
    for name in ("running", "round", view.f1_heading):
        table.add_column(name, justify="left" if name == "running" else "right")
    for cell in view.running:
        shown = "" if cell.f1 is None else f"{100 * cell.f1:.1f}"
        table.add_row(
            _fitted(cell.title, _BESIDE_RUNNING + len(view.f1_heading)),
            f"{cell.num_rounds}/{cell.num_planned}",
            shown,
        )
    best = Table(box=None, padding=(0, 2), show_header=True, header_style="dim")
    for name in ("best so far", "method", view.f1_heading, "cells", "of methods"):
        best.add_column(name, justify="left" if name in ("best so far", "method") else "right")
    longest = max((len(leader.label) for leader in view.leaders), default=0)
    for leader in view.leaders[-_MAX_LEADERS:]:
        setting = _fitted(leader.setting, _BESIDE_BEST + longest + len(view.f1_heading))
        best.add_row(setting, leader.label, f"{100 * leader.f1:.1f}", str(leader.num), str(leader.of))
    return Group(head, table, best) if view.leaders else Group(head, table)
