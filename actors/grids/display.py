"""What a grid says while it runs: one table on a terminal, a line per cell otherwise, JSON lines for scripts."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from typing import Protocol

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from actors.terminal.console import is_interactive, make_console

MAX_LEADERS, PULSE_S = 8, 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningCell:
    """A cell under way; ``f1`` of its last evaluation."""

    title: str
    num_rounds: int
    num_planned: int
    f1: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Leader:
    """The best method of a setting: its mean over ``num`` cells, among ``of`` methods that have finished cells."""

    setting: str
    label: str
    f1: float
    num: int
    of: int


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """A grid at an instant; ``left_s`` is unknown until a round has been timed."""

    num_cells: int
    num_done: int
    num_failed: int
    elapsed_s: float
    left_s: float | None
    running: tuple[RunningCell, ...]
    leaders: tuple[Leader, ...]


class Screen(Protocol):
    """Shows a grid's progress."""

    def note(self, text: str) -> None:
        """Something the user should know."""
        ...

    def ended(self, title: str, state: str, seconds: float, f1: float | None, why: str, view: View) -> None:
        """A cell's trial has ended."""
        ...

    def refresh(self, view: View) -> None:
        """Time has passed."""
        ...

    def close(self) -> None:
        """Gives the terminal back."""
        ...


def make_screen(as_json: bool) -> Screen:
    """The one that fits where the output goes."""
    if as_json:
        return JsonScreen()
    return TableScreen() if is_interactive() else LineScreen()


def duration(seconds: float) -> str:
    """``45 s``, ``12 min``, ``3.4 h``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def left(view: View) -> str:
    """``~12 min left``; empty while unknown or at the end."""
    return f"~{duration(view.left_s)} left" if view.left_s else ""


def percent(f1: float | None) -> str:
    """``F1 71.3 %``; empty where there is none."""
    return "" if f1 is None else f"F1 {100 * f1:.1f} %"


def ended_line(title: str, state: str, seconds: float, f1: float | None, why: str, view: View) -> str:
    """One finished cell in a line."""
    number = f"[{view.num_done + view.num_failed}/{view.num_cells}]"
    word = {"done": "done", "failed": "FAILED", "missing": "stopped"}.get(state, state)
    reason = why.splitlines()[0] if why else ""
    parts = [f"{number} {title}: {word} in {seconds:.1f} s", percent(f1), reason, left(view)]
    return "  ".join(p for p in parts if p)


class LineScreen:
    """Plain lines on stdout; a sign of life once a minute."""

    def __init__(self) -> None:
        """Nothing has been said."""
        self._said_s = time.monotonic()

    def note(self, text: str) -> None:
        """A line."""
        self._said_s = time.monotonic()
        print(text, flush=True)

    def ended(self, title: str, state: str, seconds: float, f1: float | None, why: str, view: View) -> None:
        """A line."""
        self.note(ended_line(title, state, seconds, f1, why, view))

    def refresh(self, view: View) -> None:
        """A line where nothing was said for a minute."""
        if time.monotonic() - self._said_s > PULSE_S:
            cells = ", ".join(f"{c.title} round {c.num_rounds}/{c.num_planned}" for c in view.running)
            self.note("  ".join(p for p in (f"  ... {cells}", left(view)) if p))

    def close(self) -> None:
        """Nothing to give back."""


class JsonScreen:
    """One JSON object per finished cell on stdout; notes go to stderr."""

    def note(self, text: str) -> None:
        """To stderr."""
        print(text, file=sys.stderr, flush=True)

    def ended(self, title: str, state: str, seconds: float, f1: float | None, why: str, view: View) -> None:
        """``{"event": "cell"}``."""
        facts = {"event": "cell", "cell": title, "state": state, "wall_s": seconds, "f1": f1, "why": why or None}
        print(json.dumps({**facts, "done": view.num_done, "cells": view.num_cells, "left_s": view.left_s}), flush=True)

    def refresh(self, view: View) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing to give back."""


class TableScreen:
    """One table that is redrawn; failures stay above it."""

    def __init__(self) -> None:
        """Starts drawing."""
        self._live = Live(console=make_console(), transient=True, refresh_per_second=4)
        self._live.start()

    def note(self, text: str) -> None:
        """A line above the table."""
        self._live.console.print(text, markup=False)

    def ended(self, title: str, state: str, seconds: float, f1: float | None, why: str, view: View) -> None:
        """Only what went wrong stays."""
        if state == "failed":
            self.note(ended_line(title, state, seconds, f1, why, view))
        self.refresh(view)

    def refresh(self, view: View) -> None:
        """Draws anew."""
        self._live.update(picture(view))

    def close(self) -> None:
        """Removes the table."""
        self._live.stop()


def picture(view: View) -> RenderableType:
    """Cells done, time left, what runs, which method leads."""
    head = Table.grid(padding=(0, 2))
    failed = f", {view.num_failed} failed" if view.num_failed else ""
    head.add_row(
        Text(f"{view.num_done}/{view.num_cells} cells{failed}", style="bold"),
        ProgressBar(total=view.num_cells, completed=view.num_done + view.num_failed, width=20),
        Text(duration(view.elapsed_s)),
        Text(left(view), style="cyan"),
    )
    table = Table(box=None, padding=(0, 2), show_header=True, header_style="dim")
    for name in ("running", "round", "F1 %"):
        table.add_column(name, justify="left" if name == "running" else "right")
    for cell in view.running:
        shown = "" if cell.f1 is None else f"{100 * cell.f1:.1f}"
        table.add_row(cell.title, f"{cell.num_rounds}/{cell.num_planned}", shown)
    best = Table(box=None, padding=(0, 2), show_header=True, header_style="dim")
    for name in ("best so far", "method", "F1 %", "cells", "of methods"):
        best.add_column(name, justify="left" if name in ("best so far", "method") else "right")
    for leader in view.leaders[-MAX_LEADERS:]:
        best.add_row(leader.setting, leader.label, f"{100 * leader.f1:.1f}", str(leader.num), str(leader.of))
    return Group(head, table, best) if view.leaders else Group(head, table)
