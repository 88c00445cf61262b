"""What a run says while it works: a progress bar on a terminal, a line per round otherwise, JSON lines for scripts."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Protocol

from pydantic import JsonValue
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from actors.terminal.exit_codes import WIDTH
from relief_ray.records.metrics import METRICS
from relief_ray.records.schema import RoundRecord


def make_console(stderr: bool = False) -> Console:
    """A console without automatic highlighting; 100 columns wide where nobody can see how wide it is."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, highlight=False, width=None if stream.isatty() else WIDTH)


def is_interactive() -> bool:
    """A terminal that may be drawn on: NO_COLOR and TERM=dumb ask for plain lines."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Reporter(Protocol):
    """Hears what happens to the runs of a plan."""

    def note(self, text: str) -> None:
        """Something the user should know."""
        ...

    def begin(self, title: str, facts: str, done: int | None, rounds: int) -> None:
        """A run starts, or goes on after round ``done`` of ``rounds``."""
        ...

    def round(self, record: RoundRecord, clock: str) -> None:
        """A round is committed; ``clock`` names the time model whose seconds and joules are shown."""
        ...

    def end(self, title: str, status: str, record: RoundRecord | None) -> None:
        """A run ended this way, or was found ``reused``; ``record`` is its last evaluated round."""
        ...

    def close(self) -> None:
        """Gives the terminal back."""
        ...


def make_reporter(as_json: bool, num_runs: int, num_rounds: int) -> Reporter:
    """The one that fits where the output goes; ``num_rounds`` are still to do in all ``num_runs`` runs."""
    if as_json:
        return JsonReporter()
    return BarReporter(num_runs, num_rounds) if is_interactive() else LineReporter(num_runs)


def round_line(record: RoundRecord, rounds: int, clock: str) -> str:
    """One round in at most 100 columns."""
    cost = record.costs[clock]
    parts = [f"round {record.round:>{len(str(rounds))}}/{rounds}"]
    if record.loss is not None:
        parts.append(f"loss {record.loss:6.4g}")
    parts.append(f"simulated {seconds(cost.round_s)} {cost.energy_j:7.1f} J")
    parts.append(f"here {record.wall_s:5.1f} s")
    return "  ".join([*parts, *scores(record)])


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


class LineReporter:
    """Plain lines on stdout."""

    def __init__(self, num_runs: int) -> None:
        """Counts runs up to ``num_runs``."""
        self._num_runs, self._begun, self._rounds = num_runs, 0, 0

    def note(self, text: str) -> None:
        """A line."""
        print(text, flush=True)

    def begin(self, title: str, facts: str, done: int | None, rounds: int) -> None:
        """A headline."""
        self._begun, self._rounds = self._begun + 1, rounds
        going_on = f"; going on after round {done}" if done is not None else ""
        print(f"[{self._begun}/{self._num_runs}] {title}: {facts}{going_on}", flush=True)

    def round(self, record: RoundRecord, clock: str) -> None:
        """An indented line."""
        print("  " + round_line(record, self._rounds, clock), flush=True)

    def end(self, title: str, status: str, record: RoundRecord | None) -> None:
        """Only what the round lines have not said."""
        if status.startswith("reused"):
            self._begun += 1
            print(f"[{self._begun}/{self._num_runs}] {'  '.join([f'{title}: {status}', *scores(record)])}", flush=True)

    def close(self) -> None:
        """Nothing to give back."""


class JsonReporter:
    """One JSON object per line on stdout; notes go to stderr."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._title = ""

    def note(self, text: str) -> None:
        """To stderr."""
        print(text, file=sys.stderr, flush=True)

    def begin(self, title: str, facts: str, done: int | None, rounds: int) -> None:
        """``{"event": "run"}``."""
        self._title = title
        self._write({"event": "run", "run": title, "facts": facts, "done": done, "rounds": rounds})

    def round(self, record: RoundRecord, clock: str) -> None:
        """``{"event": "round"}`` with cumulative totals."""
        cost, totals = record.costs[clock], record.totals[clock]
        self._write(
            {
                "event": "round",
                "run": self._title,
                "round": record.round,
                "phase": record.phase,
                "loss": record.loss,
                **json_scores(record),
                "clock": clock,
                "round_s": cost.round_s,
                "round_energy_j": cost.energy_j,
                "time_s": totals.time_s,
                "energy_j": totals.energy_j,
                "bytes_up": totals.bytes_up,
                "bytes_down": totals.bytes_down,
                "speedup": record.speedup,
                "wall_s": record.wall_s,
            }
        )

    def end(self, title: str, status: str, record: RoundRecord | None) -> None:
        """``{"event": "end"}``."""
        self._write({"event": "end", "run": title, "status": status, **json_scores(record)})

    def close(self) -> None:
        """Nothing to give back."""

    def _write(self, values: Mapping[str, JsonValue]) -> None:
        print(json.dumps(values), flush=True)


def json_scores(record: RoundRecord | None) -> dict[str, JsonValue]:
    """The F1s of a round; null where it was not evaluated."""
    metrics = record.metrics if record is not None else None
    shown = [metric for metric in METRICS.values() if metric.label]
    return {metric.name: None if metrics is None else metric.score(metrics) for metric in shown}


class Remaining(ProgressColumn):
    """Time left for all runs, from the rounds of this very call."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        """``~2 min left``."""
        left = task.time_remaining
        if task.finished or left is None:
            return Text("")
        return Text(f"~{left:.0f} s left" if left < 120 else f"~{left / 60:.0f} min left", style="cyan")


class BarReporter:
    """A bar for all runs together; every finished run leaves a line above it."""

    def __init__(self, num_runs: int, num_rounds: int) -> None:
        """Starts drawing."""
        self._console = make_console()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=12),
            TextColumn("{task.fields[state]}"),
            Remaining(),
        )
        self._bar = Progress(*columns, console=self._console, transient=True, speed_estimate_period=600.0)
        self._task = self._bar.add_task("starting", total=num_rounds or None, state="")
        self._num_runs, self._begun, self._rounds, self._scores = num_runs, 0, 0, ""
        self._began = time.monotonic()
        self._bar.start()

    def note(self, text: str) -> None:
        """A line above the bar."""
        self._console.print(text, markup=False)

    def begin(self, title: str, facts: str, done: int | None, rounds: int) -> None:
        """Renames the bar."""
        self._begun, self._rounds, self._scores, self._began = self._begun + 1, rounds, "", time.monotonic()
        self._bar.update(
            self._task, description=f"[{self._begun}/{self._num_runs}] {title}".replace("[", r"\["), state=""
        )

    def round(self, record: RoundRecord, clock: str) -> None:
        """Moves the bar."""
        self._scores = "  ".join(" ".join(score.split()) for score in scores(record)) or self._scores
        simulated = f"sim. {record.totals[clock].time_s:.1f} s"
        parts = [f"round {record.round}/{self._rounds}", self._scores, simulated]
        self._bar.update(self._task, advance=1, state="  ".join(p for p in parts if p))

    def end(self, title: str, status: str, record: RoundRecord | None) -> None:
        """One line stays."""
        here = "" if status.startswith("reused") else f" in {time.monotonic() - self._began:.1f} s"
        self._begun += 1 if status.startswith("reused") else 0
        line = "  ".join([f"[{self._begun}/{self._num_runs}] {title}: {status}{here}", *scores(record)])
        self._console.print(line, markup=False)

    def close(self) -> None:
        """Removes the bar."""
        self._bar.stop()
