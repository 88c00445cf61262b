"""Progress of a study: the ``Callback`` interface, and its forms in Python: a bar, a notebook, lines.

Everything comes from the ledgers on the disk (``studies.loop``), whoever writes them.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from importlib import import_module

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from relief_ray.plugins.blame import PROJECT
from relief_ray.records.schema import RoundRecord, Status
from relief_ray.studies.spec import Cell
from relief_ray.support.errors import counted


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


class Lines(Callback):
    """For logs and pipes: a line per run and note, on standard error."""

    def end(self, cell: Cell, end: End) -> None:
        """Print the run's line."""
        self.note(_line(cell, end) + (f" ({end.seconds:.1f} s)" if end.seconds else ""))

    def note(self, text: str) -> None:
        """Print the note."""
        print(text, file=sys.stderr, flush=True)


def _line(cell: Cell, end: End) -> str:
    f1 = headline_f1(end.record)
    score = "" if f1 is None else f", F1 {100 * f1:.1f} %"
    return f"{cell.title}: {end.why if end.reused else end.status + score}"


def headline_f1(record: RoundRecord | None) -> float | None:
    """F1 that a table would print, of the test part or else of the validation part; None without an evaluation."""
    metrics = None if record is None else record.metrics or record.validation
    return None if metrics is None else metrics.headline


class Bar(Lines):
    """For terminals: a bar over all rounds of all runs, and the lines of ``Lines`` above it."""

    def __init__(self, num_rounds: int) -> None:
        """Show an empty bar."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._shown = Progress(*columns, console=Console(stderr=True, highlight=False), transient=True)
        self._task: TaskID = self._shown.add_task("", total=num_rounds)
        self._shown.start()

    def begin(self, cell: Cell, text: str, done: int | None) -> None:
        """Name the run beside the bar."""
        self._shown.update(self._task, description=cell.title)

    def round(self, cell: Cell, record: RoundRecord) -> None:
        """Move the bar on by a round."""
        self._shown.advance(self._task)

    def refresh(self, view: View) -> None:
        """Name the runs of this moment beside the bar."""
        self._shown.update(self._task, description=_names_of(view))

    def note(self, text: str) -> None:
        """Print the note above the bar."""
        self._shown.console.print(text, markup=False)

    def close(self) -> None:
        """Remove the bar."""
        self._shown.stop()


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


def display(num_rounds: int, *, quiet: bool) -> Callback:
    """Return the display that fits where this process runs; ``num_rounds``: missing rounds of all runs."""
    if quiet:
        return Quiet()
    if _in_notebook():
        return NotebookDisplay(num_rounds)
    return Bar(num_rounds) if sys.stderr.isatty() else Lines()


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"
