"""Progress of cells as `run` and `grid` show it: one interface for bars and tables, plain lines and JSON lines."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console

from relief_ray.records.schema import RoundRecord, Status
from relief_ray.support.text import WIDTH


def make_console(stderr: bool = False) -> Console:
    """A console without automatic highlighting; 100 columns wide where the output is no terminal."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, highlight=False, width=None if stream.isatty() else WIDTH)


def is_interactive() -> bool:
    """True for a terminal that may be drawn on: NO_COLOR and TERM=dumb ask for plain lines."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningCell:
    """A grid's cell that is being computed; ``f1`` of its last evaluation."""

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
class GridView:
    """A grid at an instant.

    Attributes:
        num_cells: its cells.
        num_done: those that are done.
        num_failed: those that failed.
        elapsed_s: wall time since the command began.
        left_s: wall time that is left; None until a round has been timed.
        running: cells that are being computed.
        leaders: the best method of each setting.
        num_stopped: tries that a search stopped early.
        f1_heading: heading of the F1 of running cells and leaders.
    """

    num_cells: int
    num_done: int
    num_failed: int
    elapsed_s: float
    left_s: float | None
    running: tuple[RunningCell, ...]
    leaders: tuple[Leader, ...]
    num_stopped: int = 0
    f1_heading: str = "F1 %"

    @property
    def num_ended(self) -> int:
        """Cells that nothing more is computed of in this command."""
        return self.num_done + self.num_stopped + self.num_failed


@dataclass(frozen=True, kw_only=True, slots=True)
class CellEnd:
    """End of a cell's computation.

    Attributes:
        title: the cell in words.
        status: what its folder holds now.
        seconds: wall time of this computation.
        record: its last evaluated round; None where it has none, or (in a grid) is not done.
        why: reason of a failure; of a reused run, what to say instead of its status.
        reused: the run was finished before this command.
        view: the whole grid after this cell; None for `run`.
    """

    title: str
    status: Status
    seconds: float = 0.0
    record: RoundRecord | None = None
    why: str = ""
    reused: bool = False
    view: GridView | None = None


class Reporter:
    """Shows the progress of one command's cells; this base prints notes as plain lines and nothing else."""

    def note(self, text: str) -> None:
        """Print a message for the user."""
        print(text, flush=True)

    def begin(self, title: str, facts: str, done: int | None, rounds: int) -> None:
        """Announce a cell that starts, or goes on after round ``done`` of ``rounds``."""

    def round(self, title: str, record: RoundRecord, clock: str) -> None:
        """Show a committed round; ``clock`` names the time model whose seconds and joules are shown."""

    def committed(self, title: str, record: RoundRecord, clock: str, alerts: Sequence[str]) -> None:
        """Show a committed round, and what is to be said of it (``relief_ray.records.facts.Alerts``)."""
        self.round(title, record, clock)
        for alert in alerts:
            self.note(f"{title}: WARNING: {alert}")

    def end(self, end: CellEnd) -> None:
        """Show how a cell ended."""

    def refresh(self, view: GridView) -> None:
        """Redraw a grid's progress; called twice a second."""

    def close(self) -> None:
        """Give the terminal back."""


class JsonReporter(Reporter):
    """Base of reporters that print one JSON object per line on stdout; notes go to stderr."""

    def note(self, text: str) -> None:
        """Print to stderr."""
        print(text, file=sys.stderr, flush=True)

    def write(self, facts: Mapping[str, object]) -> None:
        """Print one event."""
        print(json.dumps(facts), flush=True)


def headline_f1(record: RoundRecord | None) -> float | None:
    """F1 that a table would print, of the test part or else of the validation part; None without an evaluation."""
    metrics = None if record is None else record.metrics or record.validation
    return None if metrics is None else metrics.headline
