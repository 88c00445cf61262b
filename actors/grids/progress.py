"""Progress of a grid: cells done, cells running, time left, the best method of each setting so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from actors.runtime.errors import count_kills, describe_death
from actors.terminal.mlflow_export import Exports
from actors.terminal.progress import CellEnd, GridView, Leader, Reporter, RunningCell, headline_f1
from relief_ray.records.facts import Alerts
from relief_ray.records.ledger import End, LineFormat, scan
from relief_ray.records.run_folder import ROUNDS_FILE, RUN_FILE, read_rounds, read_run
from relief_ray.records.schema import RoundRecord
from relief_ray.records.tracking import Tracker
from relief_ray.studies.plans import CellFolder, has_bootstrap, keep_error, look_at
from relief_ray.support.errors import UserError

_REFRESH_S = 0.5
_FEWER = "run fewer cells at a time (--jobs N)"


def last_round(folder: Path) -> RoundRecord | None:
    """The last round of a finished cell, which always is evaluated; None without one."""
    rounds = read_rounds(folder)
    return rounds[-1] if rounds else None


def f1_heading(entries: Sequence[CellFolder]) -> str:
    """Heading of F1 in tables of these cells, which says so where it is of validation windows."""
    parts = {part for entry in entries for part in entry.cell.config.evaluation.parts}
    return "validation F1 %" if parts == {"validation"} else "F1 %"


def _title_of(entry: CellFolder) -> str:
    """The cell's name without the digits of its hash, which a run's name does not have."""
    head, _, last = entry.cell.name.rpartition("-")
    return head if head and entry.cell.hash.startswith(last) else entry.cell.name


@dataclass(kw_only=True)
class Running:
    """A cell that is being computed; its ledger has been read up to ``end``."""

    entry: CellFolder
    since_s: float
    tracker: Tracker | None = None
    lines: LineFormat | None = None
    end: End | None = None
    num_rounds: int = 0
    f1: float | None = None
    alerts: Alerts = field(default_factory=Alerts)


@dataclass(kw_only=True)
class GridProgress:
    """Follows trials and the ledgers of their cells, for the reporter and MLflow.

    Attributes:
        entries: all cells of the grid.
        todo: the cells that will run.
        reporter: shows the progress.
        exports: MLflow trackers.
        on_tick: called many times a second.
        since_s: monotonic clock at the start.
        first_s: monotonic clock when the first trial began; None before.
        refreshed_s: monotonic clock of the last refresh.
        running: cells that are being computed, by name.
        statuses: last known status by cell.
        scores: F1 by cell that is done, a share.
        num_new_rounds: rounds committed since the start.
        disk_full: whether a cell failed because nothing can be written any more.
        kills_before: processes that the kernel had ended for lack of memory before the start; None: not counted.
        said: notes about data that were shown.
    """

    entries: Sequence[CellFolder]
    todo: Sequence[CellFolder]
    reporter: Reporter
    exports: Exports
    on_tick: Callable[[], None]
    since_s: float = field(default_factory=time.monotonic)
    first_s: float | None = None
    refreshed_s: float = 0.0
    running: dict[str, Running] = field(default_factory=dict)
    statuses: dict[str, str] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)
    num_new_rounds: int = 0
    disk_full: bool = False
    kills_before: int | None = field(default_factory=count_kills)
    said: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Read the scores of cells that are done already."""
        self.by_name: Mapping[str, CellFolder] = {e.cell.name: e for e in self.entries}
        self.left = {e.cell.name: e.num_planned - e.num_rounds for e in self.todo}
        for entry in self.entries:
            self.statuses[entry.cell.name] = entry.status
            self._read_score(entry)

    def begun(self, name: str) -> None:
        """Note that a trial has started."""
        self.first_s = self.first_s or time.monotonic()
        if name not in self.running:
            entry = self.by_name[name]
            self.running[name] = Running(entry=entry, since_s=time.monotonic())
            self.reporter.begin(_title_of(entry), "", None, entry.cell.config.rounds)

    def ended(self, name: str, trouble: str) -> None:
        """Note that a trial has ended; ``trouble`` where its process died."""
        running = self.running.pop(name, None)
        entry = look_at(self.by_name[name].cell, self.by_name[name].folder)
        if trouble and entry.state.is_open:
            why = describe_death(entry.folder, trouble, self.kills_before, died="died twice", fewer=_FEWER)
            keep_error(entry.folder, why)
            entry = look_at(entry.cell, entry.folder)
        if running is not None:
            self._follow(running)
            if running.tracker is not None:
                self.exports.end(running.tracker, entry.folder)
        self.statuses[name] = entry.status
        self.left.pop(name, None)
        self.disk_full = self.disk_full or is_disk_full(entry)
        self.reporter.end(
            CellEnd(
                title=_title_of(entry),
                status=entry.status,
                seconds=time.monotonic() - running.since_s if running else 0.0,
                record=self._read_score(entry),
                why=entry.why,
                view=self.view(),
            )
        )

    def tick(self) -> None:
        """Read new rounds and refresh the display twice a second; called many times a second."""
        self.on_tick()
        now_s = time.monotonic()
        if now_s - self.refreshed_s >= _REFRESH_S:
            self.refreshed_s = now_s
            for running in self.running.values():
                self._follow(running)
            self.reporter.refresh(self.view())

    def _read_score(self, entry: CellFolder) -> RoundRecord | None:
        """The last round of a cell that is done; its F1 is kept."""
        record = last_round(entry.folder) if entry.status == "done" else None
        f1 = headline_f1(record)
        if f1 is not None:
            self.scores[entry.cell.name] = f1
        return record

    def _follow(self, running: Running) -> None:
        """Read the new lines of a cell's ledger."""
        entry = running.entry
        if running.tracker is None and (entry.folder / RUN_FILE).exists():
            self._warn_of_data(entry)
            running.tracker = self.exports.begin(entry.cell.config.tracking, entry.folder)
        try:
            if not (entry.folder / RUN_FILE).exists():
                return
            running.lines = running.lines or LineFormat.of(read_run(entry.folder))
            lines = scan(entry.folder / ROUNDS_FILE, running.lines, running.end)
            new = tuple(lines.rounds)
        except UserError:
            # Damaged: the cell itself will say so, and the others go on.
            running.lines = running.end = None
            return
        running.end = lines.end
        for record in new:
            if running.tracker is not None:
                running.tracker.round(record)
            clock = entry.cell.config.costs.planning_time
            self.reporter.committed(_title_of(entry), record, clock, running.alerts.of(record))
            running.num_rounds = max(running.num_rounds, record.round + has_bootstrap(entry.cell))
            f1 = headline_f1(record)
            running.f1 = running.f1 if f1 is None else f1
        self._count(running)

    def _warn_of_data(self, entry: CellFolder) -> None:
        """Show what is odd about a cell's data, each oddity once and not for every cell."""
        for note in read_run(entry.folder).data_notes:
            if note not in self.said:
                self.said.add(note)
                self.reporter.note(f"WARNING: {note}")

    def _count(self, running: Running) -> None:
        left = max(0, running.entry.num_planned - running.num_rounds)
        left_before = self.left.get(running.entry.cell.name, left)
        self.num_new_rounds += max(0, left_before - left)
        if running.entry.cell.name in self.left:
            self.left[running.entry.cell.name] = min(left_before, left)

    def view(self) -> GridView:
        """The grid as it stands now."""
        now_s = time.monotonic()
        worked_s = now_s - self.first_s if self.first_s is not None else 0.0
        rate = self.num_new_rounds / worked_s if worked_s else 0.0
        statuses = list(self.statuses.values())
        return GridView(
            f1_heading=f1_heading(self.entries),
            num_cells=len(statuses),
            num_done=statuses.count("done"),
            num_failed=statuses.count("failed"),
            num_stopped=statuses.count("stopped"),
            elapsed_s=now_s - self.since_s,
            left_s=sum(self.left.values()) / rate if rate else None,
            running=tuple(
                RunningCell(title=_title_of(r.entry), num_rounds=r.num_rounds, num_planned=r.entry.num_planned, f1=r.f1)
                for r in self.running.values()
            ),
            leaders=leaders(self.entries, self.scores),
        )


def is_disk_full(entry: CellFolder) -> bool:
    """True where a cell failed because nothing can be written any more."""
    return entry.status == "failed" and any(w in entry.why for w in ("No space left", "MiB free, expected at least"))


def leaders(entries: Iterable[CellFolder], scores: Mapping[str, float]) -> tuple[Leader, ...]:
    """The best method of each setting by mean score over its finished folds and seeds."""
    by_setting: dict[str, dict[str, list[float]]] = {}
    for entry in entries:
        if entry.cell.name in scores:
            by_setting.setdefault(entry.cell.setting, {}).setdefault(entry.cell.method, []).append(
                scores[entry.cell.name]
            )
    rows = []
    for setting, methods in by_setting.items():
        label = max(methods, key=lambda m: sum(methods[m]) / len(methods[m]))
        values = methods[label]
        rows.append(
            Leader(setting=setting, label=label, f1=sum(values) / len(values), num=len(values), of=len(methods))
        )
    return tuple(rows)
