"""Progress of `relief-ray run`: a bar on a terminal, a line per round otherwise, JSON lines for scripts."""

from __future__ import annotations

import time

from pydantic import JsonValue
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from actors.terminal.progress import CellEnd, JsonReporter, Reporter, is_interactive, make_console
from relief_ray.records.facts import summary_line
from relief_ray.records.metrics import METRICS
from relief_ray.records.schema import RoundRecord

# Of several runs a line is printed so often: enough to see that they go on, and the end stays in sight.
_LINE_EVERY_S = 10.0
# Columns of the bar, and of the time left with the blanks between columns.
_BAR, _LEFT = 8, 15


def make_reporter(as_json: bool, num_runs: int, num_rounds: int) -> Reporter:
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


class Lines(Reporter):
    """Plain lines on stdout: one per round of a single run; of several, one now and then and the last of each."""

    def __init__(self, num_runs: int, every_s: float = _LINE_EVERY_S) -> None:
        """``num_runs``: total that runs are counted up to; ``every_s``: of several, a line after so many seconds."""
        self._num_runs, self._num_begun, self._rounds = num_runs, 0, 0
        self._every_s = every_s if num_runs > 1 else 0.0
        self._shown_s, self._held_back = time.monotonic(), ""

    def begin(self, title: str, facts: str, done: int | None, rounds: int) -> None:
        """Print a headline."""
        self._num_begun, self._rounds = self._num_begun + 1, rounds
        going_on = f"; going on after round {done}" if done is not None else ""
        print(f"[{self._num_begun}/{self._num_runs}] {title}: {facts}{going_on}", flush=True)
        self._shown_s, self._held_back = time.monotonic(), ""

    def round(self, title: str, record: RoundRecord, clock: str) -> None:
        """Print an indented line, or hold it back: a round that went on without a client is always shown."""
        line = "  " + round_line(record, self._rounds, clock)
        if record.rejected or time.monotonic() - self._shown_s >= self._every_s:
            self._show(line)
        else:
            self._held_back = line

    def _show(self, line: str) -> None:
        print(line, flush=True)
        self._shown_s, self._held_back = time.monotonic(), ""

    def end(self, end: CellEnd) -> None:
        """Print the last round where it was held back; of a reused run a line of its own."""
        if self._held_back:
            self._show(self._held_back)
        if end.reused:
            self._num_begun += 1
            line = "  ".join([f"{end.title}: {end.why}", *scores(end.record)])
            print(f"[{self._num_begun}/{self._num_runs}] {line}", flush=True)


class JsonEvents(JsonReporter):
    """Events ``run``, ``round`` and ``end``."""

    def begin(self, title: str, facts: str, done: int | None, rounds: int) -> None:
        """Write ``{"event": "run"}``."""
        self.write({"event": "run", "run": title, "facts": facts, "done": done, "rounds": rounds})

    def round(self, title: str, record: RoundRecord, clock: str) -> None:
        """Write ``{"event": "round"}`` with cumulative totals."""
        cost, totals = record.costs[clock], record.totals[clock]
        self.write(
            {
                "event": "round",
                "run": title,
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

    def end(self, end: CellEnd) -> None:
        """Write ``{"event": "end"}``."""
        facts = {"event": "end", "run": end.title, "status": end.status, "why": end.why or None}
        self.write({**facts, **_json_scores(end.record)})


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


class ProgressBar(Reporter):
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
        self._num_runs, self._num_begun, self._rounds = num_runs, 0, 0
        self._scores: list[str] = []
        self._room = self._console.width
        self._bar.start()

    def note(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(text, markup=False)

    def begin(self, title: str, facts: str, done: int | None, rounds: int) -> None:
        """Rename the bar."""
        self._num_begun, self._rounds, self._scores = self._num_begun + 1, rounds, []
        heading = f"[{self._num_begun}/{self._num_runs}] {title}"
        self._room = self._console.width - len(heading) - _BAR - _LEFT
        self._bar.update(self._task, description=heading.replace("[", r"\["), state="")

    def round(self, title: str, record: RoundRecord, clock: str) -> None:
        """Move the bar; a round that went on without clients says how many it had."""
        self._scores = [" ".join(score.split()) for score in scores(record)] or self._scores
        clients = [summary_line(record)] if record.rejected else []
        parts = [f"{record.round}/{self._rounds}", *clients, *self._scores, f"sim {record.totals[clock].time_s:.1f} s"]
        # On a narrow terminal the last ones are left out: a bar of two lines cannot be redrawn.
        fitting = [i for i in range(1, len(parts) + 1) if len("  ".join(parts[:i])) <= self._room]
        self._bar.update(self._task, advance=1, state="  ".join(parts[: max(fitting, default=1)]))

    def end(self, end: CellEnd) -> None:
        """Leave one line above the bar."""
        self._num_begun += end.reused
        words = end.why if end.reused else f"{end.status} in {end.seconds:.1f} s"
        line = "  ".join([f"[{self._num_begun}/{self._num_runs}] {end.title}: {words}", *scores(end.record)])
        self._console.print(line, markup=False)

    def close(self) -> None:
        """Remove the bar."""
        self._bar.stop()
