"""Progress of `relief-ray grid`: a table on a terminal, a line per cell otherwise, JSON lines for scripts."""

from __future__ import annotations

import shutil
import time

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from actors.terminal.progress import (
    CellEnd,
    GridView,
    JsonReporter,
    Reporter,
    headline_f1,
    is_interactive,
    make_console,
)

_MAX_LEADERS, _PULSE_S = 8, 60.0
# Letters of a cell's name that stay where a line is too long for the terminal: method, fold and seed at its end.
_LEAST_NAME = 24
# Letters that the other columns of the live tables take besides the heading of F1 and the method's name.
_BESIDE_RUNNING, _BESIDE_BEST = 20, 35


def make_reporter(as_json: bool) -> Reporter:
    """Choose by where the output goes."""
    if as_json:
        return GridJson()
    return GridTable() if is_interactive() else GridLines()


def duration(seconds: float) -> str:
    """``45 s``, ``12 min``, ``3.4 h``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _time_left(view: GridView) -> str:
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


def end_line(end: CellEnd) -> str:
    """One ended cell in a line; where a terminal is narrower, the middle of its name is left out."""
    assert end.view is not None
    reason = end.why.splitlines()[0] if end.why else ""
    status = {"failed": "FAILED", "stopped": reason or "stopped"}.get(end.status, end.status)
    facts = (_percent(headline_f1(end.record)), reason if status != reason else "", _time_left(end.view))
    tail = "  ".join(p for p in (f": {status} in {end.seconds:.1f} s", *facts) if p)
    return shortened(f"[{end.view.num_ended}/{end.view.num_cells}] ", end.title, tail)


class GridLines(Reporter):
    """Plain lines on stdout; a sign of life once a minute."""

    def __init__(self) -> None:
        """Start the clock of the last line."""
        self._printed_s = time.monotonic()

    def note(self, text: str) -> None:
        """Print a line."""
        self._printed_s = time.monotonic()
        print(text, flush=True)

    def end(self, end: CellEnd) -> None:
        """Print a line."""
        self.note(end_line(end))

    def refresh(self, view: GridView) -> None:
        """Print a line where none was printed for a minute."""
        if time.monotonic() - self._printed_s > _PULSE_S:
            for i, cell in enumerate(view.running):
                left = f"  {_time_left(view)}" if i == 0 and view.left_s else ""
                self.note(shortened("  ... ", cell.title, f" round {cell.num_rounds}/{cell.num_planned}{left}"))


class GridJson(JsonReporter):
    """One JSON object per finished cell."""

    def end(self, end: CellEnd) -> None:
        """Write ``{"event": "cell"}``."""
        assert end.view is not None
        facts = {"event": "cell", "cell": end.title, "status": end.status, "wall_s": end.seconds}
        progress = {"done": end.view.num_done, "cells": end.view.num_cells, "left_s": end.view.left_s}
        self.write({**facts, "f1": headline_f1(end.record), "why": end.why or None, **progress})


class GridTable(Reporter):
    """One table that is redrawn; failures stay above it."""

    def __init__(self) -> None:
        """Start drawing."""
        self._live = Live(console=make_console(), transient=True, refresh_per_second=4)
        self._live.start()

    def note(self, text: str) -> None:
        """Print a line above the table."""
        self._live.console.print(text, markup=False)

    def end(self, end: CellEnd) -> None:
        """Print a line for a failed cell and redraw."""
        assert end.view is not None
        if end.status == "failed":
            self.note(end_line(end))
        self.refresh(end.view)

    def refresh(self, view: GridView) -> None:
        """Redraw the table."""
        self._live.update(picture(view))

    def close(self) -> None:
        """Remove the table."""
        self._live.stop()


def picture(view: GridView) -> RenderableType:
    """Draw cells done, time left, the running cells and the best method of each setting."""
    head = Table.grid(padding=(0, 2))
    stopped = f", {view.num_stopped} stopped" if view.num_stopped else ""
    failed = f"{stopped}, {view.num_failed} failed" if view.num_failed else stopped
    head.add_row(
        Text(f"{view.num_done}/{view.num_cells} cells{failed}", style="bold"),
        ProgressBar(total=view.num_cells, completed=view.num_ended, width=16),
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
