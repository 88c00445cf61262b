"""The grid's own ledger: which cells there are, and what each folder says has become of it.

``grid.json`` lists the cells; whether one is done, failed, missing or stale is read from its folder every time.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import JsonValue

from relief_ray.config import ExperimentConfig, override, parse
from relief_ray.errors import UserError
from relief_ray.experiment.recording import now
from relief_ray.files import disk_errors, replace_file, unused
from relief_ray.models.backbone import frozen_mismatch
from relief_ray.records.identity import config_hash, other_program
from relief_ray.records.lock import FileLock
from relief_ray.records.redact import mask_text, redact
from relief_ray.records.run_folder import LOCK_FILE, ROUNDS_FILE, RUN_FILE, is_done, read_run, scan
from relief_ray.records.schema import RunRecord
from tune_configs.cells import GridCell

GRID_FILE, ERROR_FILE, STALE = "grid.json", "error.json", "stale"
# How long a driver that was killed may take to be gone with all its processes.
GONE_S = 60.0
State = Literal["done", "failed", "missing", "stale"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A cell with its state; ``num_rounds`` lines are in its ledger, ``why`` explains a failure or staleness."""

    cell: GridCell
    folder: Path
    state: State
    num_rounds: int = 0
    why: str = ""

    @property
    def num_planned(self) -> int:
        """Rounds of the whole cell, the bootstrap included."""
        return self.cell.config.rounds + self.has_bootstrap

    @property
    def has_bootstrap(self) -> bool:
        """Whether round 0 is one of its rounds."""
        return self.cell.config.strategy.build().bootstrap


@dataclass(frozen=True, kw_only=True, slots=True)
class Book:
    """A grid on disk: its name, its title and its cells in the order of computation."""

    out: Path
    name: str
    title: str
    cells: tuple[GridCell, ...]

    def entries(self) -> tuple[Entry, ...]:
        """Every cell with the state of its folder, as it is now."""
        return tuple(look(cell, self.out / cell.name) for cell in self.cells)


def look(cell: GridCell, folder: Path) -> Entry:
    """What has become of a cell, from its folder alone."""
    entry = Entry(cell=cell, folder=folder, state="missing")
    error = read_error(folder)
    if (folder / RUN_FILE).exists():
        try:
            run = read_run(folder)
        except UserError as damaged:
            return replace(entry, state="failed", why=str(damaged))
        # Another program may hash the same cell differently, and write other lines: this comes first.
        if other := other_program(run):
            return replace(entry, state="stale", why=other, num_rounds=count_lines(folder))
        if run.config_hash != cell.hash:
            return replace(entry, state="failed", why=f"{folder}: holds another run; set it aside")
        if other := frozen_mismatch(run.backbone, cell.config.backbone.frozen_here()):
            return replace(entry, state="stale", why=other, num_rounds=count_lines(folder))
        entry = with_ledger(entry, run)
    return entry if error is None or entry.state != "missing" else replace(entry, state="failed", why=error)


def with_ledger(entry: Entry, run: RunRecord) -> Entry:
    """The entry with the number of its rounds: done, failed where some are damaged or lost, else as it was."""
    path = entry.folder / ROUNDS_FILE
    try:
        facts = path.stat() if path.exists() else None
        rounds = () if facts is None else rounds_in(path, facts.st_mtime_ns, facts.st_size)
    except (OSError, UserError) as damaged:
        return replace(entry, state="failed", why=str(damaged))
    entry = replace(entry, num_rounds=len(rounds))
    if run.status != "finished":
        return entry
    if is_done(run, rounds, entry.has_bootstrap):
        return replace(entry, state="done")
    last = f"round {rounds[-1]}" if rounds else "no round"
    why = (
        f"{path}: ends with {last} ({entry.num_rounds} of {entry.num_planned} rounds), expected round "
        f"{entry.cell.config.rounds} of a finished run; restore the file, or remove the folder and resume"
    )
    return replace(entry, state="failed", why=why)


@lru_cache(maxsize=4096)
def rounds_in(path: Path, changed_ns: int, num_bytes: int) -> tuple[int, ...]:
    """The rounds in a ledger; read once as long as its time and size stay.

    Raises:
        UserError: a line before the last is damaged.
    """
    return tuple(record.round for record in scan(path).rounds)


def count_lines(folder: Path) -> int:
    """Whole lines of another program's ledger, unread."""
    path = folder / ROUNDS_FILE
    return path.read_bytes().count(b"\n") if path.exists() else 0


def keep_error(folder: Path, error: BaseException | str) -> None:
    """Writes why a cell failed, for the user and for the ledger."""
    shown = error if isinstance(error, str) else str(error) or type(error).__name__
    kind = "" if isinstance(error, str | UserError) else f"{type(error).__name__}: "
    trace = "" if isinstance(error, str) else "".join(traceback.format_exception(error))
    found = {"error": mask_text(kind + shown), "at": now(), "traceback": mask_text(trace)}
    with disk_errors(folder, "keep the error"):
        folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / ERROR_FILE, (json.dumps(found, indent=1) + "\n").encode())


def read_error(folder: Path) -> str | None:
    """Why a cell failed; None where it did not."""
    path = folder / ERROR_FILE
    if not path.exists():
        return None
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["error"])
    except (OSError, ValueError, KeyError, TypeError):
        return "failed; its error.json is damaged"


def forget_error(folder: Path) -> None:
    """A new try begins."""
    (folder / ERROR_FILE).unlink(missing_ok=True)


def write_book(book: Book) -> Book:
    """Adds the cells to those that ``grid.json`` lists already, and gives all of them; the folder exists.

    Raises:
        UserError: the folder cannot be written, or holds another grid.
    """
    if (book.out / GRID_FILE).exists():
        known = read_book(book.out)
        if known.name != book.name:
            raise UserError(f"{book.out}: holds the grid {known.name}, asked: {book.name}; choose a folder with --out")
        book = replace(book, cells=merged(known.cells, book.cells))
    rows: list[JsonValue] = [row(cell) for cell in book.cells]
    facts = {"name": book.name, "title": book.title, "cells": rows}
    replace_file(book.out / GRID_FILE, (json.dumps(facts, indent=1) + "\n").encode())
    return book


def merged(known: Sequence[GridCell], fresh: Sequence[GridCell]) -> tuple[GridCell, ...]:
    """Both, seed-major where cells were added: seed, fold, setting (of tries: dataset), then as listed."""
    cells = {cell.name: cell for cell in known} | {cell.name: cell for cell in fresh}
    if len(cells) == len(known):
        return tuple(cells.values())
    settings = list(dict.fromkeys(_block(cell) for cell in cells.values()))
    ranks = {setting: rank for rank, setting in enumerate(settings)}
    return tuple(sorted(cells.values(), key=lambda c: (c.config.seed, c.config.data.fold, ranks[_block(c)])))


def _block(cell: GridCell) -> str:
    is_try = cell.config.choice is not None and cell.config.choice.kind == "try"
    return cell.setting.partition("-")[0] if is_try else cell.setting


def row(cell: GridCell) -> dict[str, JsonValue]:
    """A cell as ``grid.json`` holds it."""
    config = redact(cell.config.model_dump(mode="json"))
    return {"folder": cell.name, "label": cell.label, "setting": cell.setting, "hash": cell.hash, "config": config}


def read_book(out: Path, settings: Sequence[str] = ()) -> Book:
    """The grid in a folder; ``settings`` may change how its cells are carried out.

    Raises:
        UserError: there is none, or it is damaged.
    """
    path = out / GRID_FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        rows = [(r["folder"], r["label"], r["setting"], dict(r["config"])) for r in found["cells"]]
        name, title = str(found["name"]), str(found["title"])
    except FileNotFoundError:
        raise UserError(f"{out}: no {GRID_FILE}; expected a folder that `relief-ray grid` made") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: damaged ({error!r}); run `relief-ray grid` with the same arguments again") from error
    cells = [_cell(str(a), str(b), str(c), parse(override(d, settings), str(path))) for a, b, c, d in rows]
    return Book(out=out, name=name, title=title, cells=tuple(cells))


def _cell(name: str, label: str, setting: str, config: ExperimentConfig) -> GridCell:
    return GridCell(name=name, label=label, setting=setting, config=config, hash=config_hash(config.hashed()))


def set_stale_aside(entries: Iterable[Entry], out: Path) -> None:
    """Moves cells of another program or on other weights to ``stale/``, so that they are computed again."""
    for entry in entries:
        if entry.state == "stale":
            digest = read_run(entry.folder).source_digest[:8]
            target = unused(out / STALE / f"{entry.folder.name}-{digest}")
            with disk_errors(target, "set the stale cell aside"):
                target.parent.mkdir(exist_ok=True)
                entry.folder.rename(target)


def await_quiet(entries: Iterable[Entry], wait_s: float = GONE_S) -> None:
    """Waits until no process of an earlier driver writes to a cell any more.

    Raises:
        UserError: somebody still does.
    """
    for entry in entries:
        if (entry.folder / LOCK_FILE).exists():
            FileLock(entry.folder / LOCK_FILE, "the cell", wait_s=wait_s).release()
