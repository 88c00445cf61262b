"""Progress of a study: the ``Callback`` interface, and its forms: a bar and a table, lines, a notebook.

Everything comes from the ledgers on the disk (``studies.loop``), whoever writes them.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
import warnings
from dataclasses import dataclass
from importlib import import_module

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.progress_bar import ProgressBar as Share
from rich.table import Table
from rich.text import Text

from relief_ray.plugins.blame import PROJECT
from relief_ray.records.facts import summary_line
from relief_ray.records.metrics import METRICS
from relief_ray.records.schema import RoundRecord, Status
from relief_ray.studies.spec import Cell
from relief_ray.support.errors import counted, visible
from relief_ray.support.text import WIDTH


@dataclass(frozen=True, kw_only=True, slots=True)
class Running:
    """A cell that is being computed; ``f1`` of its last evaluation."""

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
    """A study at an instant.

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
    running: tuple[Running, ...]
    leaders: tuple[Leader, ...]
    num_stopped: int = 0
    f1_heading: str = "F1 %"

    @property
    def num_ended(self) -> int:
        """Cells that nothing more is computed of in this command."""
        return self.num_done + self.num_stopped + self.num_failed


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """End of a cell's computation.

    Attributes:
        status: what its folder holds now.
        seconds: wall time of this computation.
        record: its last evaluated round; None where it has none, or is not done.
        why: reason of a failure; of a reused run, what to say instead of its status.
        reused: the run was finished before this command.
        view: the whole study after this cell.
    """

    status: Status
    view: View
    seconds: float = 0.0
    record: RoundRecord | None = None
    why: str = ""
    reused: bool = False


# Characters of a notebook's bar.
_BAR = 20


class Callback:
    """Listener to the computation of a study, in the process that asked for it; this one tells nothing."""

    def begin(self, cell: Cell, text: str, done: int | None) -> None:
        """Hear that a cell begins, or goes on after the round ``done``.

        ``text``: its rounds, clients and data in a line; empty where another process opens it.
        """

    def round(self, cell: Cell, record: RoundRecord) -> None:
        """Hear of a round whose line is in the ledger."""

    def end(self, cell: Cell, end: End) -> None:
        """Hear how a cell ended, or that it was finished before."""

    def note(self, text: str) -> None:
        """Tell the user something."""

    def warn(self, text: str, head: str = "") -> None:
        """Show the user an important message, even with ``quiet``; ``head`` names the run."""
        self.note(f"{head}WARNING: {text}")

    def refresh(self, view: View) -> None:
        """Hear how the study stands, twice a second where cells are computed elsewhere."""

    def close(self) -> None:
        """End: nothing more will come."""


class Quiet(Callback):
    """Says nothing but warnings, as Python's own (``warnings.warn``)."""

    def warn(self, text: str, head: str = "") -> None:
        """Raise a Python warning at the line outside of this project that asked for the study."""
        warnings.warn(f"{head}{text}", stacklevel=_levels_to_caller())


def make_console(stderr: bool = False) -> Console:
    """A console without automatic highlighting; 100 columns wide where the output is no terminal."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, highlight=False, width=None if stream.isatty() else WIDTH)


def is_interactive(stderr: bool = False) -> bool:
    """True for a terminal that may be drawn on: NO_COLOR and TERM=dumb ask for plain lines."""
    stream = sys.stderr if stderr else sys.stdout
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Shown(Callback):
    """Prints notes and alerts as plain lines; a bar or table that it draws stays below them."""

    def __init__(self, *, stderr: bool = False, drawn: Live | Progress | None = None) -> None:
        """Start drawing ``drawn``; ``stderr``: print there, not on standard output."""
        self._stderr, self._drawn, self._printed_s = stderr, drawn, time.monotonic()
        if drawn is not None:
            drawn.start()

    def note(self, text: str) -> None:
        """Print a message for the user."""
        self._printed_s = time.monotonic()
        if self._drawn is not None:
            self._drawn.console.print(visible(text), markup=False)
        else:
            print(visible(text), file=sys.stderr if self._stderr else sys.stdout, flush=True)

    def close(self) -> None:
        """Remove what is drawn."""
        if self._drawn is not None:
            self._drawn.stop()


# Of more runs than these a line is printed so often: enough to see that they go on, and the end stays in sight.
_FEW, _LINE_EVERY_S = 12, 10.0
# Columns of the bar, and of the time left with the blanks between columns.
_WIDTH_OF_BAR, _LEFT = 8, 15


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
    return "  ".join([*parts, *scores(record)])


def scores(record: RoundRecord | None, width: int = 1) -> list[str]:
    """F1, and F1 through clients' own sensors, in percent, where the round was evaluated; ``width`` of the numbers."""
    if record is None or (metrics := record.metrics) is None:
        return []
    values = [(label, getattr(metrics, name)) for name, label in METRICS.items() if label]
    return [f"{label} {100 * value:{width}.1f} %" for label, value in values if value is not None]


def seconds(value: float) -> str:
    """Seconds with three significant digits or better, aligned: ``0.042 s``, ``12.31 s``, ``482.0 s``."""
    digits = 3 if value < 10 else 2 if value < 100 else 1
    return f"{value:7.{digits}f} s"


def _ended(end: End) -> str:
    """How a run ended, with its scores."""
    return "  ".join([end.why if end.reused else f"{end.status} in {end.seconds:.1f} s", *scores(end.record, 5)])


class LineDisplay(Shown):
    """Plain lines: of a single run one per round; of several one per run, of many one now and then."""

    def __init__(self, num_runs: int, *, stderr: bool = False, drawn: Progress | None = None) -> None:
        """``num_runs``: total that runs are counted up to."""
        super().__init__(stderr=stderr, drawn=drawn)
        self._num_runs, self._num_begun = num_runs, 0

    def begin(self, cell: Cell, text: str, done: int | None) -> None:
        """Print a headline: of the first run, and of one that goes on."""
        self._num_begun += 1
        going_on = f"; going on after round {done}" if done is not None else ""
        if self._num_begun == 1 or going_on:
            self.note(f"{self._heading(cell)}: {text}{going_on}")

    def round(self, cell: Cell, record: RoundRecord) -> None:
        """Print a line of a single run; of several where a client was left out, or none was printed for long."""
        line = round_line(record, cell.config.rounds, cell.config.costs.planning_time)
        if self._num_runs == 1:
            self.note(f"  {line}")
        elif record.rejected or self._is_due():
            self.note(f"{self._heading(cell)}: {line.strip()}")

    def end(self, cell: Cell, end: End) -> None:
        """Print a line of one of several runs, now and then of many; of a reused one always."""
        self._num_begun += end.reused
        is_wanted = self._num_runs <= _FEW or self._num_begun == self._num_runs or end.status != "done"
        if end.reused or (self._num_runs > 1 and (is_wanted or self._is_due())):
            self.note(f"{self._heading(cell)}: {_ended(end)}")

    def _heading(self, cell: Cell) -> str:
        return f"[{self._num_begun}/{self._num_runs}] {cell.title}"

    def _is_due(self) -> bool:
        return time.monotonic() - self._printed_s >= _LINE_EVERY_S


class Remaining(ProgressColumn):
    """Time left for all runs, from the rounds of this very call."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        """``~2 min left``."""
        left_s = task.time_remaining
        if task.finished or left_s is None:
            return Text("")
        return Text(f"~{left_s:.0f} s left" if left_s < 120 else f"~{left_s / 60:.0f} min left", style="cyan")


class Bar(LineDisplay):
    """A bar for all runs together; every finished run leaves a line above it."""

    def __init__(self, num_runs: int, num_rounds: int, *, stderr: bool = False) -> None:
        """Start drawing."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=_WIDTH_OF_BAR),
            TextColumn("{task.fields[state]}"),
            Remaining(),
        )
        self._bar = Progress(*columns, console=make_console(stderr), transient=True, speed_estimate_period=600.0)
        self._task = self._bar.add_task("starting", total=num_rounds or None, state="")
        self._scores: list[str] = []
        self._room = self._bar.console.width
        super().__init__(num_runs, stderr=stderr, drawn=self._bar)

    def begin(self, cell: Cell, text: str, done: int | None) -> None:
        """Rename the bar."""
        self._num_begun, self._scores = self._num_begun + 1, []
        heading = self._heading(cell)
        self._room = self._bar.console.width - len(heading) - _WIDTH_OF_BAR - _LEFT
        self._bar.update(self._task, description=heading.replace("[", r"\["), state="")

    def round(self, cell: Cell, record: RoundRecord) -> None:
        """Move the bar; a round that went on without clients says how many it had."""
        self._scores = scores(record) or self._scores
        clients = [summary_line(record)] if record.rejected else []
        simulated_s = record.totals[cell.config.costs.planning_time].time_s
        parts = [f"{record.round}/{cell.config.rounds}", *clients, *self._scores, f"sim {simulated_s:.1f} s"]
        # On a narrow terminal the last ones are left out: a bar of two lines cannot be redrawn.
        fitting = [i for i in range(1, len(parts) + 1) if len("  ".join(parts[:i])) <= self._room]
        self._bar.update(self._task, advance=1, state="  ".join(parts[: max(fitting, default=1)]))

    def end(self, cell: Cell, end: End) -> None:
        """Leave one line above the bar."""
        self._num_begun += end.reused
        self.note(f"{self._heading(cell)}: {_ended(end)}")


_MAX_LEADERS, _PULSE_S = 8, 60.0
# Letters of a cell's name that stay where a line is too long for the terminal: method, fold and seed at its end.
_LEAST_NAME = 24
# Letters that the other columns of the live tables take besides the heading of F1 and the method's name.
_BESIDE_RUNNING, _BESIDE_BEST = 20, 35


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


class LinesOfSeveral(Shown):
    """Plain lines for several runs at a time: one when a run ends, and one a minute in between."""

    def end(self, cell: Cell, end: End) -> None:
        """Print a line."""
        self.note(end_line(cell, end))

    def refresh(self, view: View) -> None:
        """Print a line where none was printed for a minute."""
        if time.monotonic() - self._printed_s > _PULSE_S:
            for i, cell in enumerate(view.running):
                left = f"  {_time_left(view)}" if i == 0 and view.left_s else ""
                self.note(shortened("  ... ", cell.title, f" round {cell.num_rounds}/{cell.num_planned}{left}"))


class TableOfSeveral(Shown):
    """A table for several runs at a time, redrawn as they go on; lines on failures stay above it."""

    def __init__(self, *, stderr: bool = False) -> None:
        """Start drawing."""
        self._live = Live(console=make_console(stderr), transient=True, refresh_per_second=4)
        super().__init__(stderr=stderr, drawn=self._live)

    def end(self, cell: Cell, end: End) -> None:
        """Print a line for a failed cell and redraw."""
        if end.status == "failed":
            self.note(end_line(cell, end))
        self.refresh(end.view)

    def refresh(self, view: View) -> None:
        """Redraw the table."""
        self._live.update(picture(view))


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
    table = _columns("running", "round", view.f1_heading, left=1)
    for cell in view.running:
        title = _fitted(cell.title, _BESIDE_RUNNING + len(view.f1_heading))
        shown = "" if cell.f1 is None else f"{100 * cell.f1:.1f}"
        table.add_row(title, f"{cell.num_rounds}/{cell.num_planned}", shown)
    best = _columns("best so far", "method", view.f1_heading, "cells", "of methods", left=2)
    longest = max((len(leader.label) for leader in view.leaders), default=0)
    for leader in view.leaders[-_MAX_LEADERS:]:
        setting = _fitted(leader.setting, _BESIDE_BEST + longest + len(view.f1_heading))
        best.add_row(setting, leader.label, f"{100 * leader.f1:.1f}", str(leader.num), str(leader.of))
    return Group(head, table, best) if view.leaders else Group(head, table)


def _columns(*names: str, left: int) -> Table:
    """An empty table; all columns but the first ``left`` are numbers."""
    table = Table(box=None, padding=(0, 2), show_header=True, header_style="dim")
    for i, name in enumerate(names):
        table.add_column(name, justify="left" if i < left else "right")
    return table


def terminal_display(num_runs: int, num_rounds: int, *, several: bool, stderr: bool = False) -> Shown:
    """Choose by where the output goes; ``num_rounds`` are still to do in all ``num_runs`` runs.

    ``several``: runs are computed side by side.
    """
    if several:
        return (TableOfSeveral if is_interactive(stderr) else LinesOfSeveral)(stderr=stderr)
    return Bar(num_runs, num_rounds, stderr=stderr) if is_interactive(stderr) else LineDisplay(num_runs, stderr=stderr)


def _line(cell: Cell, end: End) -> str:
    facts = [end.why] if end.reused else [end.status, _percent(headline_f1(end.record))]
    return f"{cell.title}: {', '.join(filter(None, facts))}"


def headline_f1(record: RoundRecord | None) -> float | None:
    """F1 that a table would print, of the test part or else of the validation part; None without an evaluation."""
    metrics = None if record is None else record.metrics or record.validation
    return None if metrics is None else metrics.headline


def _names_of(view: View) -> str:
    """The run that is being computed, or how many are."""
    titles = [running.title for running in view.running]
    return titles[0] if len(titles) == 1 else f"{counted(len(titles), 'run')} at a time" if titles else ""


class NotebookDisplay(Callback):
    """For notebooks: one output that is rewritten after every round, in the end a line per run."""

    def __init__(self, num_rounds: int) -> None:
        """Show an empty output."""
        self._num_rounds, self._done, self._running = num_rounds, 0, ""
        self._lines: list[str] = []
        # Only there where notebooks are, and without types.
        display = import_module("IPython.display").display
        self._output = display({"text/plain": ""}, raw=True, display_id=True)

    def begin(self, cell: Cell, text: str, done: int | None) -> None:
        """Name the run in the last line."""
        self._running = cell.title
        self._show()

    def round(self, cell: Cell, record: RoundRecord) -> None:
        """Count the round."""
        self._done += 1
        self._show()

    def end(self, cell: Cell, end: End) -> None:
        """Keep the run's line, without seconds: a notebook's stored output would change with every execution."""
        self._running = ""
        self.note(_line(cell, end))

    def refresh(self, view: View) -> None:
        """Name the runs of this moment in the last line."""
        self._running = _names_of(view)
        self._show()

    def note(self, text: str) -> None:
        """Keep the note."""
        self._lines.append(text)
        self._show()

    def close(self) -> None:
        """Leave the lines alone."""
        self._running = ""
        self._show()

    def _show(self) -> None:
        full = _BAR * self._done // max(1, self._num_rounds)
        bar = f"{'█' * full}{'░' * (_BAR - full)} {self._done} of {counted(self._num_rounds, 'round')}"
        last = [f"{bar}, {self._running}"] if self._running else []
        self._output.update({"text/plain": "\n".join([*self._lines, *last])}, raw=True)


def _levels_to_caller() -> int:
    """Number of frames from ``warn`` up to the first that is not of this project's packages."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] in PROJECT:
        level, frame = level + 1, frame.f_back
    return level


def display(num_runs: int, num_rounds: int, jobs: int, *, quiet: bool) -> Callback:
    """Return the display of a program's study that fits where this process runs; ``num_rounds`` of all are missing."""
    if quiet:
        return Quiet()
    if _in_notebook():
        return NotebookDisplay(num_rounds)
    return terminal_display(num_runs, num_rounds, several=min(jobs, num_runs) > 1, stderr=True)


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"
