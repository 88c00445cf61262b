"""`relief-ray grid`: many cells through Ray Tune, resumable at any point."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from actors.commands.output import plan_facts, plan_text, print_end, print_status, tell
from actors.commands.plan import refuse_masked, refuse_other_than
from actors.grids.display import Screen, duration, make_screen
from actors.grids.estimate import estimates, fitting, head_of, probe_missing
from actors.grids.freeze import freeze
from actors.grids.grid_folder import Book, Entry, await_quiet, read_book, set_stale_aside, write_book
from actors.runtime.session import SessionOptions, num_cores, ray_session
from actors.terminal.exit_codes import CELLS_FAILED, DISK, INTERRUPTED, Stopped, say
from actors.terminal.mlflow_export import PATIENCE_AFTER_STOP_S, PATIENCE_S, Exports
from actors.terminal.signals import StopSignals
from relief_ray.data import open_dataset
from relief_ray.errors import UserError
from relief_ray.files import disk_errors
from relief_ray.records.lock import FileLock
from tune_configs.cells import cells_of, load_grid

# What a grid is going to do: how long its cells take, and which of them fit into a budget.


# Ray, and the library in the first trial's process: measured 20 s from the command to a first cell's first round, on
# two cores that others used too.
START_S = 20.0

# How long a plan waits for timed rounds in all: the paper's MOMENT takes an hour for one on a CPU.
PLAN_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What the user wants besides the grid itself; ``budget_s`` of wall time from ``began_s`` (monotonic) on."""

    as_json: bool = False
    dry_run: bool = False
    budget_s: float | None = None
    rerun_stale: bool = False
    skip_failed: bool = False
    skip_unknown: bool = False
    dashboard: bool = False
    began_s: float = field(default_factory=time.monotonic)

    def left_s(self) -> float:
        """Seconds of the budget that are left; infinite without one."""
        return math.inf if self.budget_s is None else self.budget_s - (time.monotonic() - self.began_s)


def show_plan(book: Book, as_json: bool) -> None:
    """`--dry-run`: one round of every workload is timed, in ``PLAN_S`` at most; nothing is written."""
    entries = book.entries()
    known = estimates(entries, probe_missing(entries, one_each=True, say=say, limit_s=PLAN_S))
    places = num_places(entries)
    tell(plan_facts(book, entries, known, places)) if as_json else print(plan_text(book, entries, known, places))


def within_budget(book: Book, entries: Sequence[Entry], todo: list[Entry], asked: Asked) -> list[Entry]:
    """The first cells that fit into what is left of the budget, after a round of every method has been timed.

    Where none fits, the first is begun: it goes on later. Says which.
    """
    if asked.budget_s is None or not todo:
        return todo
    known = estimates(entries, probe_missing(todo, one_each=False, say=say, limit_s=max(1.0, asked.left_s())))
    places = num_places(todo)
    left_s = asked.left_s() - START_S
    chosen = fitting(todo, known, left_s * places)
    begun = [] if chosen else head_of(todo, known, left_s)
    facts = {
        "event": "budget", "budget_s": asked.budget_s, "left_s": max(0.0, left_s), "start_s": START_S,
        "cells": [e.cell.name for e in chosen], "begun": begun[0].cell.name if begun else None, "to_do": len(todo),
    }  # fmt: skip
    if asked.as_json:
        tell(plan_facts(book, entries, known, places))
        tell(facts)
    else:
        print(plan_text(book, entries, known, places))
        print(_sentence(asked.budget_s, left_s, chosen, begun, len(todo)), flush=True)
    return chosen or begun


def _sentence(budget_s: float, left_s: float, chosen: Sequence[Entry], begun: Sequence[Entry], num_todo: int) -> str:
    what = (
        f", up to {chosen[-1].cell.name}"
        if chosen
        else f"; {begun[0].cell.name} is begun, a resume goes on with it"
        if begun
        else "; give it more, or fewer rounds (--set rounds=..)"
    )
    rest = f"{duration(max(0.0, left_s))} of it left after Ray's start"
    return f"budget {duration(budget_s)}, {rest}: {len(chosen)} of {num_todo} cells to do fit{what}"


def num_places(entries: Sequence[Entry]) -> int:
    """Cores that trials will share: of the cluster that is joined, else of this process.

    Raises:
        UserError: the cluster cannot be joined.
    """
    address = address_of(entries)
    if address is None:
        return num_cores()
    with ray_session(SessionOptions(address=address)):
        import ray

        return max(1, int(ray.cluster_resources().get("CPU", 1.0)))


def address_of(entries: Sequence[Entry]) -> str | None:
    """The cluster of the configuration or of ``RAY_ADDRESS`` (as in a Ray job); None: one of our own."""
    chosen = entries[0].cell.config.runtime.address if entries else None
    return chosen or os.environ.get("RAY_ADDRESS")


GRID_LOCK = "grid.lock"

TUNED_FILE = Path("results/tuned.json")

# Where Ray unpacks the working folder of a job.
JOB_FOLDERS = "working_dir_files"


def go(target: str, folder: Path | None, settings: Sequence[str], out: Path | None, asked: Asked) -> None:
    """`relief-ray grid`.

    Raises:
        UserError: a folder where none belongs, or none where one does.
    """
    if target not in ("resume", "status", "freeze"):
        if folder is not None:
            raise UserError(f"grid {target} {folder}: expected one name; name the folder with --out {folder}")
        start(target, settings, out, asked)
    elif folder is None or (out is not None and target != "freeze"):
        raise UserError(f"grid {target}: expected a folder, e.g. relief-ray grid {target} runs/grid-smoke")
    elif target == "resume":
        resume(folder, settings, asked)
    elif target == "freeze":
        freeze_choices(folder, out or TUNED_FILE, asked.as_json)
    else:
        status(folder, asked.as_json)


def start(target: str, settings: Sequence[str], out: Path | None, asked: Asked) -> None:
    """`relief-ray grid MODULE`."""
    grid = load_grid(target)
    cells = cells_of(grid, settings, skip_unknown=asked.skip_unknown)
    if not cells:
        raise UserError(f"grid {grid.name}: no cell is left; expected at least one level of every axis")
    place = (out or Path("runs") / f"grid-{grid.name}").absolute()
    book = Book(out=place, name=grid.name, title=grid.title, cells=cells)
    carry_out(book, asked)


def resume(folder: Path, settings: Sequence[str], asked: Asked) -> None:
    """`relief-ray grid resume DIR`."""
    refuse_other_than(("runtime.", "tracking."), settings)
    book = read_book(folder.absolute(), settings)
    for cell in book.cells:
        refuse_masked(cell.config, folder)
    carry_out(book, asked)


def status(folder: Path, as_json: bool) -> None:
    """`relief-ray grid status DIR`."""
    book = read_book(folder.absolute())
    print_status(book, book.entries(), as_json)


def freeze_choices(folder: Path, file: Path, as_json: bool) -> None:
    """`relief-ray grid freeze DIR`; as JSON what was written, and a line about every method."""
    lines = freeze(read_book(folder.absolute()), file)
    if as_json:
        tell({"written": str(file), "methods": lines, **json.loads(file.read_text())})
    else:
        print(*lines, f"written {file}", sep="\n")


def carry_out(book: Book, asked: Asked) -> None:
    """Runs what is not done yet, then says where the grid stands.

    Raises:
        Stopped: a signal, the budget or a full disk ended it, or cells failed; the message says how to go on.
    """
    if asked.dry_run:
        show_plan(book, asked.as_json)
        return
    with disk_errors(book.out, "write the grid"):
        book.out.mkdir(parents=True, exist_ok=True)
    wanted = {cell.name for cell in book.cells}
    with FileLock(book.out / GRID_LOCK, "the grid"):
        book = write_book(book)
        entries = book.entries()
        await_quiet(e for e in entries if e.state != "done")
        if asked.rerun_stale:
            set_stale_aside(entries, book.out)
        entries = book.entries()
        todo = [e for e in to_do(entries, asked.skip_failed) if e.cell.name in wanted]
        for data in {e.cell.config.data.name: e.cell.config.data for e in todo}.values():
            open_dataset(data)
        todo = within_budget(book, entries, todo, asked)
        if todo:
            run_cells(book, entries, todo, asked)
        print_end(book, book.entries(), asked.as_json)
    failed = [e for e in book.entries() if e.state == "failed" and e.cell.name in wanted]
    if failed:
        raise Stopped(CELLS_FAILED, f"{len(failed)} cells failed; the others are not touched by that\n{going_on(book)}")


def to_do(entries: Iterable[Entry], skip_failed: bool) -> list[Entry]:
    """Missing cells, and failed ones once more; stale ones stay as they are."""
    states = ("missing",) if skip_failed else ("missing", "failed")
    return [e for e in entries if e.state in states]


def run_cells(book: Book, entries: Sequence[Entry], todo: Sequence[Entry], asked: Asked) -> None:
    """Ray, Tune, progress; ends early where somebody asked.

    Raises:
        Stopped: ended early.
    """
    screen = make_screen(asked.as_json)
    with closing(screen), StopSignals() as stop:
        screen.note(f"{book.name}: {len(book.cells)} cells, {len(todo)} to do; records in {book.out}")
        if JOB_FOLDERS in book.out.parts:
            screen.note(
                "NOTE: that folder is the job's copy of the code, which Ray removes; name another with --out DIR"
            )
        exports = Exports(screen.note)
        try:
            disk_full = with_ray(book, entries, todo, asked, screen, stop, exports)
        except KeyboardInterrupt:
            raise Stopped(stop.code or INTERRUPTED, going_on(book)) from None
        finally:
            exports.close(PATIENCE_AFTER_STOP_S if stop.requested() else PATIENCE_S)
    if disk_full:
        raise Stopped(DISK, f"the disk is full; everything before is intact\n{going_on(book)}")
    if stop.requested():
        raise Stopped(stop.code, going_on(book))


def with_ray(
    book: Book,
    entries: Sequence[Entry],
    todo: Sequence[Entry],
    asked: Asked,
    screen: Screen,
    stop: StopSignals,
    exports: Exports,
) -> bool:
    """Runs the cells on a local Ray, or on the cluster that was named; gives whether the disk is full."""
    stop_file = book.out / ".stop"
    stop_file.unlink(missing_ok=True)
    # Tune imports MLflow, which reads this once.
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    with ray_session(session_options(todo, asked.dashboard)) as url:
        if url is not None:
            screen.note(f"dashboard: {url}")
        from actors.grids.progress import Board
        from actors.grids.scheduler import Listener, fit

        def on_tick() -> None:
            if stop.requested() or board.disk_full or asked.left_s() <= 0:
                stop_file.touch()

        board = Board(entries=entries, todo=todo, screen=screen, exports=exports, on_tick=on_tick)
        fit(todo, book.name, book.out, Listener(begun=board.begun, ended=board.ended, tick=board.tick))
    return board.disk_full


def session_options(todo: Sequence[Entry], dashboard: bool = False) -> SessionOptions:
    """The cluster of the configuration or of ``RAY_ADDRESS`` (as in a Ray job), else a local one.

    Its node plays all devices of the largest fleet.
    """
    address = address_of(todo)
    resources: dict[str, float] = {"server": 1.0}
    if address is None:
        for needed in {repr(e.cell.config.fleet) + repr(e.cell.config.data): e for e in todo}.values():
            for name, amount in devices_of(needed).items():
                resources[name] = max(resources.get(name, 0.0), amount)
    return SessionOptions(address=address, resources=resources, dashboard=dashboard)


def devices_of(entry: Entry) -> dict[str, float]:
    """Ray resources of a cell's devices; none where all clients live in the trial's own process."""
    from actors.grids.scheduler import fleet_of

    total: dict[str, float] = {}
    if entry.cell.config.runtime.mode != "inline":
        fleet, types = fleet_of(entry.cell.config)
        for client in fleet.clients:
            for name, amount in types[client.device].ray_resources.items():
                total[name] = total.get(name, 0.0) + amount
    return total


def going_on(book: Book) -> str:
    """How to go on."""
    return f"everything up to the last finished round is kept\ngo on with: relief-ray grid resume {book.out}"
