"""`relief-ray grid`: many cells through Ray Tune, resumable at any point.

Before it starts it says how long its cells take, from finished cells or timed rounds, and which fit into a budget.
"""

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
from actors.commands.study import cannot_decide, claims_facts, claims_text
from actors.grids.display import duration, make_reporter
from actors.grids.estimate import estimates, fitting, head_of, probe_missing
from actors.grids.freeze import freeze
from actors.runtime.session import SessionOptions, num_cores, ray_session
from actors.terminal.exit_codes import CELLS_FAILED, DISK, INTERRUPTED, Stopped, say
from actors.terminal.mlflow_export import PATIENCE_AFTER_STOP_S, PATIENCE_S, Exports
from actors.terminal.reporter import Reporter
from actors.terminal.signals import StopSignals
from relief_ray.data import open_dataset
from relief_ray.errors import UserError
from relief_ray.files import disk_errors
from relief_ray.records.lock import FileLock
from relief_ray.studies.plans import (
    CellFolder,
    Plan,
    await_quiet,
    read_grid,
    refuse_masked,
    refuse_other_than,
    set_stale_aside,
    write_grid,
)
from tune_configs.cells import cells_of, load_grid

# Ray, and the library in the first trial's process: measured 20 s from the command to a first cell's first round, on
# two cores that others used too.
START_S = 20.0

# How long a plan waits for timed rounds in all: the paper's MOMENT takes an hour for one on a CPU.
_PLAN_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class GridOptions:
    """Options of `relief-ray grid` besides the grid itself.

    Attributes:
        as_json: JSON lines instead of text.
        dry_run: only show cells, time and disk.
        budget_s: wall time to stay within, counted from ``began_s``; None: no limit.
        rerun_stale: set stale cells aside and compute them again.
        skip_failed: leave failed cells alone.
        skip_unknown: leave out methods that this version does not have.
        dashboard: start Ray's dashboard.
        claims: file with the claims that the cells are to judge, instead of the grid's own.
        began_s: monotonic clock at the start of the command.
    """

    as_json: bool = False
    dry_run: bool = False
    budget_s: float | None = None
    rerun_stale: bool = False
    skip_failed: bool = False
    skip_unknown: bool = False
    dashboard: bool = False
    claims: Path | None = None
    began_s: float = field(default_factory=time.monotonic)

    def left_s(self) -> float:
        """Seconds of the budget that are left; infinite without one."""
        return math.inf if self.budget_s is None else self.budget_s - (time.monotonic() - self.began_s)


def _show_plan(plan: Plan, as_json: bool) -> None:
    """Print the plan for `--dry-run`: a round of every workload is timed, ``_PLAN_S`` at most; nothing is written."""
    entries = plan.cell_folders()
    known = estimates(entries, probe_missing(entries, one_each=True, say=say, limit_s=_PLAN_S))
    places = num_places(entries)
    if as_json:
        tell({**plan_facts(plan, entries, known, places), "claims": claims_facts(plan)})
    else:
        print(plan_text(plan, entries, known, places) + claims_text(plan))


def within_budget(
    plan: Plan, entries: Sequence[CellFolder], todo: list[CellFolder], options: GridOptions
) -> list[CellFolder]:
    """The first cells that fit into what is left of the budget, after a round of every method has been timed.

    Where none fits, the first is begun: it goes on later. Says which.
    """
    if options.budget_s is None or not todo:
        return todo
    known = estimates(entries, probe_missing(todo, one_each=False, say=say, limit_s=max(1.0, options.left_s())))
    places = num_places(todo)
    left_s = options.left_s() - START_S
    chosen = fitting(todo, known, left_s * places)
    begun = [] if chosen else head_of(todo, known, left_s)
    facts = {
        "event": "budget", "budget_s": options.budget_s, "left_s": max(0.0, left_s), "start_s": START_S,
        "cells": [e.cell.name for e in chosen], "begun": begun[0].cell.name if begun else None, "to_do": len(todo),
    }  # fmt: skip
    if options.as_json:
        tell(plan_facts(plan, entries, known, places))
        tell(facts)
    else:
        print(plan_text(plan, entries, known, places))
        print(_sentence(options.budget_s, left_s, chosen, begun, len(todo)), flush=True)
    return chosen or begun


def _sentence(
    budget_s: float, left_s: float, chosen: Sequence[CellFolder], begun: Sequence[CellFolder], num_todo: int
) -> str:
    what = (
        f", up to {chosen[-1].cell.name}"
        if chosen
        else f"; {begun[0].cell.name} is begun, a resume goes on with it"
        if begun
        else "; give it more, or fewer rounds (--set rounds=..)"
    )
    rest = f"{duration(max(0.0, left_s))} of it left after Ray's start"
    return f"budget {duration(budget_s)}, {rest}: {len(chosen)} of {num_todo} cells to do fit{what}"


def num_places(entries: Sequence[CellFolder]) -> int:
    """Number of cores that trials will share: of the cluster that is joined, else of this process.

    Raises:
        UserError: the cluster cannot be joined.
    """
    address = _address_of(entries)
    if address is None:
        return num_cores()
    with ray_session(SessionOptions(address=address)):
        import ray

        return max(1, int(ray.cluster_resources().get("CPU", 1.0)))


def _address_of(entries: Sequence[CellFolder]) -> str | None:
    """Address of the cluster, from the configuration or ``RAY_ADDRESS`` (as in a Ray job); None: a local one."""
    chosen = entries[0].cell.config.runtime.address if entries else None
    return chosen or os.environ.get("RAY_ADDRESS")


_GRID_LOCK = "grid.lock"

_TUNED_FILE = Path("results/tuned.json")

# Where Ray unpacks the working folder of a job.
_JOB_FOLDERS = "working_dir_files"


def grid_command(
    target: str, folder: Path | None, settings: Sequence[str], out: Path | None, options: GridOptions
) -> None:
    """Run `relief-ray grid`.

    Raises:
        UserError: a folder where none belongs, or none where one does.
    """
    if target not in ("resume", "status", "freeze"):
        if folder is not None:
            raise UserError(f"grid {target} {folder}: expected one name; name the folder with --out {folder}")
        _start(target, settings, out, options)
    elif folder is None or (out is not None and target != "freeze"):
        raise UserError(f"grid {target}: expected a folder, e.g. relief-ray grid {target} runs/grid-smoke")
    elif target == "resume":
        _resume(folder, settings, options)
    elif target == "freeze":
        freeze_choices(folder, out or _TUNED_FILE, options.as_json)
    else:
        _status(folder, options.as_json)


def _start(target: str, settings: Sequence[str], out: Path | None, options: GridOptions) -> None:
    """Run `relief-ray grid MODULE`."""
    grid = load_grid(target)
    cells = cells_of(grid, settings, skip_unknown=options.skip_unknown)
    if not cells:
        raise UserError(f"grid {grid.name}: no cell is left; expected at least one level of every axis")
    place = (out or Path("runs") / f"grid-{grid.name}").absolute()
    source = options.claims or (Path(grid.claims) if grid.claims else None)
    _run_grid(Plan(out=place, name=grid.name, title=grid.title, cells=cells, claims_file=source), options)


def _resume(folder: Path, settings: Sequence[str], options: GridOptions) -> None:
    """Run `relief-ray grid resume DIR`."""
    refuse_other_than(("runtime.", "tracking."), settings)
    plan = read_grid(folder.absolute(), settings)
    for cell in plan.cells:
        refuse_masked(cell.config, folder)
    _run_grid(plan, options)


def _status(folder: Path, as_json: bool) -> None:
    """Run `relief-ray grid status DIR`."""
    plan = read_grid(folder.absolute())
    print_status(plan, plan.cell_folders(), as_json)


def freeze_choices(folder: Path, file: Path, as_json: bool) -> None:
    """Run `relief-ray grid freeze DIR`; as JSON: what was written, and a line about every method."""
    lines = freeze(read_grid(folder.absolute()), file)
    if as_json:
        tell({"written": str(file), "methods": lines, **json.loads(file.read_text())})
    else:
        print(*lines, f"written {file}", sep="\n")


def _run_grid(plan: Plan, options: GridOptions) -> None:
    """Run what is not done yet, then say where the grid stands.

    Raises:
        Stopped: a signal, the budget or a full disk ended it, or cells failed; the message says how to go on.
    """
    if options.dry_run:
        _show_plan(plan, options.as_json)
        return
    with disk_errors(plan.out, "write the grid"):
        plan.out.mkdir(parents=True, exist_ok=True)
    wanted = {cell.name for cell in plan.cells}
    with FileLock(plan.out / _GRID_LOCK, "the grid"):
        plan = write_grid(plan)
        entries = plan.cell_folders()
        await_quiet(e for e in entries if e.status != "done")
        if options.rerun_stale:
            set_stale_aside(entries, plan.out)
        entries = plan.cell_folders()
        todo = [e for e in to_do(entries, options.skip_failed) if e.cell.name in wanted]
        for data in {e.cell.config.data.name: e.cell.config.data for e in todo}.values():
            open_dataset(data)
        todo = within_budget(plan, entries, todo, options)
        if todo:
            _run_cells(plan, entries, todo, options)
        print_end(plan, plan.cell_folders(), options.as_json)
    failed = [e for e in plan.cell_folders() if e.status == "failed" and e.cell.name in wanted]
    if failed:
        raise Stopped(
            CELLS_FAILED, f"{len(failed)} cells failed; the others are not touched by that\n{_how_to_resume(plan)}"
        )


def to_do(entries: Iterable[CellFolder], skip_failed: bool) -> list[CellFolder]:
    """Cells that are not finished, and failed ones once more; stale ones stay as they are."""
    return [e for e in entries if e.state.is_open or (e.status == "failed" and not skip_failed)]


def _run_cells(plan: Plan, entries: Sequence[CellFolder], todo: Sequence[CellFolder], options: GridOptions) -> None:
    """Run cells through Ray Tune and show their progress.

    Raises:
        Stopped: a signal or a full disk ended it early.
    """
    reporter = make_reporter(options.as_json)
    with closing(reporter), StopSignals() as stop:
        reporter.note(f"{plan.name}: {len(plan.cells)} cells, {len(todo)} to do; records in {plan.out}")
        for sentence in cannot_decide(plan):
            reporter.note(f"NOTE: {sentence}")
        if _JOB_FOLDERS in plan.out.parts:
            reporter.note(
                "NOTE: that folder is the job's copy of the code, which Ray removes; name another with --out DIR"
            )
        exports = Exports(reporter.note)
        try:
            disk_full = _with_ray(plan, entries, todo, options, reporter, stop, exports)
        except KeyboardInterrupt:
            raise Stopped(stop.code or INTERRUPTED, _how_to_resume(plan)) from None
        finally:
            exports.close(PATIENCE_AFTER_STOP_S if stop.requested() else PATIENCE_S)
    if disk_full:
        raise Stopped(DISK, f"the disk is full; everything before is intact\n{_how_to_resume(plan)}")
    if stop.requested():
        raise Stopped(stop.code, _how_to_resume(plan))


def _with_ray(
    plan: Plan,
    entries: Sequence[CellFolder],
    todo: Sequence[CellFolder],
    options: GridOptions,
    reporter: Reporter,
    stop: StopSignals,
    exports: Exports,
) -> bool:
    """Run the cells on a local Ray, or on the cluster that was named; return whether the disk is full."""
    stop_file = plan.out / ".stop"
    stop_file.unlink(missing_ok=True)
    # Tune imports MLflow, which reads this once.
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    with ray_session(_session_options(todo, options.dashboard)) as url:
        if url is not None:
            reporter.note(f"dashboard: {url}")
        from actors.grids.progress import GridProgress
        from actors.grids.scheduler import Listener, fit

        def on_tick() -> None:
            if stop.requested() or progress.disk_full or options.left_s() <= 0:
                stop_file.touch()

        progress = GridProgress(entries=entries, todo=todo, reporter=reporter, exports=exports, on_tick=on_tick)
        fit(todo, plan.name, plan.out, Listener(begun=progress.begun, ended=progress.ended, tick=progress.tick))
    return progress.disk_full


def _session_options(todo: Sequence[CellFolder], dashboard: bool = False) -> SessionOptions:
    """Options of the cluster to join, or of a local one whose node has the resources of the largest fleet."""
    address = _address_of(todo)
    resources: dict[str, float] = {"server": 1.0}
    if address is None:
        for needed in {repr(e.cell.config.fleet) + repr(e.cell.config.data): e for e in todo}.values():
            for name, amount in _devices_of(needed).items():
                resources[name] = max(resources.get(name, 0.0), amount)
    return SessionOptions(address=address, resources=resources, dashboard=dashboard)


def _devices_of(entry: CellFolder) -> dict[str, float]:
    """Ray resources of a cell's devices; empty where all clients live in the trial's process."""
    from actors.grids.scheduler import fleet_of

    total: dict[str, float] = {}
    if entry.cell.config.runtime.mode != "inline":
        fleet, types = fleet_of(entry.cell.config)
        for client in fleet.clients:
            for name, amount in types[client.device].ray_resources.items():
                total[name] = total.get(name, 0.0) + amount
    return total


def _how_to_resume(plan: Plan) -> str:
    """Message for a user whose grid ended early."""
    return f"everything up to the last finished round is kept\ngo on with: relief-ray grid resume {plan.out}"
