"""Where a grid stands: which cells are done, which run, how long the rest will take, which method leads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from actors.grids.display import Leader, RunningCell, Screen, View
from actors.grids.grid_folder import Entry, keep_error, look
from actors.terminal.mlflow_export import Exports
from relief_ray.errors import UserError
from relief_ray.records.run_folder import ROUNDS_FILE, RUN_FILE, scan
from relief_ray.records.schema import RoundRecord
from relief_ray.records.tracking import Tracker

REFRESH_S = 0.5


def f1_of(record: RoundRecord) -> float | None:
    """The score that a table would print: of the model, or of clients' own models where they have such."""
    metrics = record.metrics or record.validation
    return None if metrics is None else metrics.headline


def last_f1(folder: Path) -> float | None:
    """The last evaluated round's score of a finished cell; its last round always is evaluated."""
    path = folder / ROUNDS_FILE
    # A line that is being written does not count; a cell that is done has been read through, so this is a round.
    whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
    return f1_of(RoundRecord.model_validate_json(whole.rpartition(b"\n")[2])) if whole else None


def title_of(entry: Entry) -> str:
    """A cell without the digits of its hash."""
    return entry.cell.name.rpartition("-")[0]


@dataclass(kw_only=True)
class Running:
    """A cell under way; ``num_bytes`` of its ledger are known."""

    entry: Entry
    since_s: float
    tracker: Tracker | None = None
    num_bytes: int = 0
    num_rounds: int = 0
    f1: float | None = None


@dataclass(kw_only=True)
class Board:
    """Hears of trials, looks into folders, tells the screen and MLflow; ``todo`` are the entries that will run."""

    entries: Sequence[Entry]
    todo: Sequence[Entry]
    screen: Screen
    exports: Exports
    on_tick: Callable[[], None]
    since_s: float = field(default_factory=time.monotonic)
    first_s: float | None = None
    refreshed_s: float = 0.0
    running: dict[str, Running] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)
    num_new_rounds: int = 0
    disk_full: bool = False

    def __post_init__(self) -> None:
        """Scores of cells that are done already."""
        self.by_name: Mapping[str, Entry] = {e.cell.name: e for e in self.entries}
        self.left = {e.cell.name: e.num_planned - e.num_rounds for e in self.todo}
        for entry in self.entries:
            self.states[entry.cell.name] = entry.state
            if entry.state == "done":
                self._score(entry)

    def begun(self, name: str) -> None:
        """A trial has started."""
        self.first_s = self.first_s or time.monotonic()
        if name not in self.running:
            entry = self.by_name[name]
            self.running[name] = Running(entry=entry, since_s=time.monotonic())

    def ended(self, name: str, trouble: str) -> None:
        """A trial has ended; ``trouble`` where its process died."""
        found = self.running.pop(name, None)
        entry = look(self.by_name[name].cell, self.by_name[name].folder)
        if trouble and entry.state == "missing":
            keep_error(entry.folder, f"its process died: {trouble.strip().splitlines()[-1]}")
            entry = look(entry.cell, entry.folder)
        if found is not None:
            self._follow(found)
            if found.tracker is not None:
                self.exports.end(found.tracker, entry.folder)
        self.states[name] = entry.state
        self.left.pop(name, None)
        self.disk_full = self.disk_full or is_disk_full(entry)
        self._score(entry)
        seconds = time.monotonic() - found.since_s if found else 0.0
        self.screen.ended(title_of(entry), entry.state, seconds, self.scores.get(name), entry.why, self.view())

    def tick(self) -> None:
        """Called many times a second."""
        self.on_tick()
        now_s = time.monotonic()
        if now_s - self.refreshed_s >= REFRESH_S:
            self.refreshed_s = now_s
            for found in self.running.values():
                self._follow(found)
            self.screen.refresh(self.view())

    def _score(self, entry: Entry) -> None:
        f1 = last_f1(entry.folder) if entry.state == "done" else None
        if f1 is not None:
            self.scores[entry.cell.name] = f1

    def _follow(self, found: Running) -> None:
        """Reads the new lines of a cell's ledger."""
        entry = found.entry
        if found.tracker is None and (entry.folder / RUN_FILE).exists():
            found.tracker = self.exports.begin(entry.cell.config.tracking, entry.folder)
        try:
            lines = scan(entry.folder / ROUNDS_FILE, found.num_bytes)
        except UserError:
            # A resumed cell dropped the rounds after its checkpoint, and wrote others: from the start, next time.
            found.num_bytes = 0
            return
        found.num_bytes = lines.num_bytes
        for record in lines.rounds:
            if found.tracker is not None:
                found.tracker.round(record)
            found.num_rounds = max(found.num_rounds, record.round + entry.cell.config.strategy.build().bootstrap)
            f1 = f1_of(record)
            found.f1 = found.f1 if f1 is None else f1
        self._count(found)

    def _count(self, found: Running) -> None:
        left = max(0, found.entry.num_planned - found.num_rounds)
        known = self.left.get(found.entry.cell.name, left)
        self.num_new_rounds += max(0, known - left)
        if found.entry.cell.name in self.left:
            self.left[found.entry.cell.name] = min(known, left)

    def view(self) -> View:
        """What the screen shows now."""
        now_s = time.monotonic()
        worked_s = now_s - self.first_s if self.first_s is not None else 0.0
        rate = self.num_new_rounds / worked_s if worked_s else 0.0
        states = list(self.states.values())
        return View(
            num_cells=len(states),
            num_done=states.count("done"),
            num_failed=states.count("failed"),
            elapsed_s=now_s - self.since_s,
            left_s=sum(self.left.values()) / rate if rate else None,
            running=tuple(
                RunningCell(title=title_of(r.entry), num_rounds=r.num_rounds, num_planned=r.entry.num_planned, f1=r.f1)
                for r in self.running.values()
            ),
            leaders=leaders(self.entries, self.scores),
        )


def is_disk_full(entry: Entry) -> bool:
    """Whether a cell failed because nothing can be written any more."""
    return entry.state == "failed" and any(w in entry.why for w in ("No space left", "MiB free, expected at least"))


def leaders(entries: Iterable[Entry], scores: Mapping[str, float]) -> tuple[Leader, ...]:
    """The best method of each setting by mean score over its finished folds and seeds."""
    found: dict[str, dict[str, list[float]]] = {}
    for entry in entries:
        if entry.cell.name in scores:
            found.setdefault(entry.cell.setting, {}).setdefault(entry.cell.label, []).append(scores[entry.cell.name])
    rows = []
    for setting, methods in found.items():
        label = max(methods, key=lambda m: sum(methods[m]) / len(methods[m]))
        values = methods[label]
        rows.append(
            Leader(setting=setting, label=label, f1=sum(values) / len(values), num=len(values), of=len(methods))
        )
    return tuple(rows)
