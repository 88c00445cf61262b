"""Progress of a study: a bar in a terminal, one line in a notebook, a line per finished run elsewhere."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from relief_ray.plugins.blame import PROJECT
from relief_ray.records.schema import RoundRecord
from relief_ray.support.errors import counted


class Watcher(Protocol):
    """Listener to a study's computation; every method is called in this process."""

    def begin(self, title: str, num_rounds: int) -> None:
        """Begin a run of which ``num_rounds`` rounds are missing."""

    def committed(self, record: RoundRecord) -> None:
        """Take note of a finished round of the run that was begun last."""

    def end(self, line: str, wall_s: float = 0.0) -> None:
        """End the run that was begun last, or one that was finished before; ``line`` says how it went."""

    def note(self, text: str) -> None:
        """Tell the user something."""

    def warn(self, text: str) -> None:
        """Tell the user something that matters, also where everything else is left out."""

    def close(self) -> None:
        """End: nothing more will come."""


class Quiet:
    """Listener that says nothing but warnings, as Python's own (``warnings.warn``)."""

    def begin(self, title: str, num_rounds: int) -> None:
        """Say nothing."""

    def committed(self, record: RoundRecord) -> None:
        """Say nothing."""

    def end(self, line: str, wall_s: float = 0.0) -> None:
        """Say nothing."""

    def note(self, text: str) -> None:
        """Say nothing."""

    def warn(self, text: str) -> None:
        """Raise a Python warning at the line outside of this project that asked for the study."""
        warnings.warn(text, stacklevel=_levels_to_caller())

    def close(self) -> None:
        """Say nothing."""


class Lines(Quiet):
    """Listener for logs and pipes: a line per run and note, on standard error."""

    def end(self, line: str, wall_s: float = 0.0) -> None:
        """Print the run's line."""
        self.note(line + _timed(wall_s))

    def note(self, text: str) -> None:
        """Print the note."""
        print(text, file=sys.stderr, flush=True)

    def warn(self, text: str) -> None:
        """Print the warning."""
        self.note(f"WARNING: {text}")


class Bar(Lines):
    """Listener for terminals: a bar over all rounds of all runs, and the lines of ``Lines`` above it."""

    def __init__(self, num_rounds: int) -> None:
        """Show an empty bar."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._shown = Progress(*columns, console=Console(stderr=True, highlight=False), transient=True)
        self._task: TaskID = self._shown.add_task("", total=num_rounds)
        self._shown.start()

    def begin(self, title: str, num_rounds: int) -> None:
        """Name the run beside the bar."""
        self._shown.update(self._task, description=title)

    def committed(self, record: RoundRecord) -> None:
        """Move the bar on by a round."""
        self._shown.advance(self._task)

    def note(self, text: str) -> None:
        """Print the note above the bar."""
        self._shown.console.print(text, markup=False)

    def close(self) -> None:
        """Remove the bar."""
        self._shown.stop()


class Cell(Quiet):
    """Listener for notebooks: one output that is rewritten after every round, in the end a line per run."""

    def __init__(self, num_rounds: int) -> None:
        """Show an empty output."""
        self._num_rounds, self._done, self._title = num_rounds, 0, ""
        self._lines: list[str] = []
        # Only there where notebooks are, and without types.
        display = import_module("IPython.display").display
        self._output = display({"text/plain": ""}, raw=True, display_id=True)

    def begin(self, title: str, num_rounds: int) -> None:
        """Name the run in the last line."""
        self._title = title
        self._show(f"{title}, {self._done} of {counted(self._num_rounds, 'round')}")

    def committed(self, record: RoundRecord) -> None:
        """Count the round."""
        self._done += 1
        self.begin(self._title, 0)

    def end(self, line: str, wall_s: float = 0.0) -> None:
        """Keep the run's line, without seconds: a notebook's stored output would change with every execution."""
        self._lines.append(line)
        self._show()

    def note(self, text: str) -> None:
        """Keep the note."""
        self.end(text)

    def warn(self, text: str) -> None:
        """Keep the warning."""
        self.note(f"WARNING: {text}")

    def close(self) -> None:
        """Leave the lines alone."""
        self._show()

    def _show(self, *last: str) -> None:
        self._output.update({"text/plain": "\n".join([*self._lines, *last])}, raw=True)


def _levels_to_caller() -> int:
    """Number of frames from ``warn`` up to the first that is not of this project's packages."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] in PROJECT:
        level, frame = level + 1, frame.f_back
    return level


def _timed(wall_s: float) -> str:
    return f" ({wall_s:.1f} s)" if wall_s else ""


def watcher(num_rounds: int, *, quiet: bool) -> Watcher:
    """Return the listener that fits where this process runs; ``num_rounds``: missing rounds of all runs."""
    if quiet:
        return Quiet()
    if _in_notebook():
        return Cell(num_rounds)
    return Bar(num_rounds) if sys.stderr.isatty() else Lines()


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"
