"""`relief-ray grid`: many cells through Ray Tune, resumable at any point.

Before it starts it says how long its cells take, from finished cells or timed rounds, and which fit into a budget.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from actors.commands.fetching import local_folder, refuse_behind
from actors.commands.next_steps import next_steps
from actors.commands.plan_text import plan_facts, plan_text, print_end, print_status, stale_advice, tell
from actors.commands.search import SuggestedTries, again, stopped_early, suggested_tries
from actors.commands.study import cannot_decide, claims_facts, claims_text
from actors.grids.display import duration, make_reporter
from actors.grids.early_stopping import asha
from actors.grids.estimate import START_S, estimates, fitting, head_of, probe_missing
from actors.grids.freeze import freeze
from actors.grids.side_by_side import (
    SideBySide,
    address_of,
    refuse_dashboard_elsewhere,
    remove_scratch,
    run_side_by_side,
)
from actors.runtime.session import SessionOptions, ray_session
from actors.terminal.exit_codes import CELLS_FAILED, DISK, Stopped, say
from actors.terminal.mlflow_export import PATIENCE_AFTER_STOP_S, PATIENCE_S, Exports
from actors.terminal.signals import StopSignals
from relief_ray.data import open_dataset
from relief_ray.records.cells import CellState
from relief_ray.studies.mirrored import MirrorState, mirrored
from relief_ray.studies.plan import Plan, await_quiet
from relief_ray.studies.spec import Cell, Spec
from relief_ray.support.errors import UserError
from relief_ray.support.process import num_cores
from relief_ray.support.text import typed
from tune_configs.registry import cells_of, load_grid

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
        jobs: most cells at a time; None: as many as there are places.
        claims: file with the claims that the cells are to judge, instead of the grid's own.
        search: sampler that suggests a search's tries; None: those that the grid lists.
        tries: tries of every method and place that a sampler suggests; None: as many as the grid lists.
        seed: of the sampler.
        scheduler: stops weak tries of a search early; None: every try is trained to its end.
        grace_rounds: rounds that the scheduler gives every try; None: a ninth of them, or more (``asha``).
        reduction_factor: of so many tries the scheduler lets about one go on; None: three.
        began_s: monotonic clock at the start of the command.
    """

    as_json: bool = False
    dry_run: bool = False
    budget_s: float | None = None
    rerun_stale: bool = False
    skip_failed: bool = False
    skip_unknown: bool = False
    dashboard: bool = False
    jobs: int | None = None
    claims: Path | None = None
    search: Literal["optuna"] | None = None
    tries: int | None = None
    seed: int = 0
    scheduler: Literal["asha"] | None = None
    grace_rounds: int | None = None
    reduction_factor: int | None = None
    began_s: float = field(default_factory=time.monotonic)

    def left_s(self) -> float:
        """Seconds of the budget that are left; infinite without one."""
        return math.inf if self.budget_s is None else self.budget_s - (time.monotonic() - self.began_s)


def _show_plan(plan: Plan, options: GridOptions, share: float = 1.0) -> None:
    """Print the plan for `--dry-run`: a round of every workload is timed, ``_PLAN_S`` at most; nothing is written.

    ``share``: that of all cells which the plan already has; a search suggests the others later.
    """
    entries = plan.look()
    known = estimates(entries, probe_missing(entries, one_each=True, say=say, limit_s=_PLAN_S))
    places = num_places(entries, options.jobs)
    if options.as_json:
        tell({**plan_facts(plan, entries, known, places, _ray_start_s(entries), share), "claims": claims_facts(plan)})
    else:
        print(plan_text(plan, entries, known, places, _ray_start_s(entries), share) + claims_text(plan))


def within_budget(
    plan: Plan, entries: Sequence[CellState[Cell]], todo: list[CellState[Cell]], options: GridOptions
) -> list[CellState[Cell]]:
    """The first cells that fit into what is left of the budget, after a round of every method has been timed.

    Where none fits, the first is begun: it goes on later. Says which.
    """
    if options.budget_s is None or not todo:
        return todo
    known = estimates(entries, probe_missing(todo, one_each=False, say=say, limit_s=max(1.0, options.left_s())))
    places = num_places(todo, options.jobs)
    left_s = options.left_s() - START_S
    chosen = fitting(todo, known, left_s * places)
    begun = [] if chosen else head_of(todo, known, left_s)
    facts = {
        "event": "budget", "budget_s": options.budget_s, "left_s": max(0.0, left_s), "start_s": START_S,
        "cells": [e.cell.name for e in chosen], "begun": begun[0].cell.name if begun else None, "to_do": len(todo),
    }  # fmt: skip
    if options.as_json:
        tell(plan_facts(plan, entries, known, places, _ray_start_s(entries)))
        tell(facts)
    else:
        print(plan_text(plan, entries, known, places, _ray_start_s(entries)))
        print(_sentence(options.budget_s, left_s, chosen, begun, len(todo)), flush=True)
    return chosen or begun


def _sentence(
    budget_s: float, left_s: float, chosen: Sequence[CellState[Cell]], begun: Sequence[CellState[Cell]], num_todo: int
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


def _ray_start_s(entries: Sequence[CellState[Cell]]) -> float:
    """Seconds until a cell can begin: Ray's, unless it is up already in a cluster that is joined."""
    return START_S if address_of(entries) is None else 0.0


def num_places(entries: Sequence[CellState[Cell]], jobs: int | None = None) -> int:
    """Number of cores that trials will share: of the cluster that is joined, else of this process; ``jobs`` at most.

    Raises:
        UserError: the cluster cannot be joined.
    """
    address = address_of(entries)
    if address is None:
        return min(num_cores(), jobs or num_cores())
    with ray_session(SessionOptions(address=address)):
        import ray

        cores = max(1, int(ray.cluster_resources().get("CPU", 1.0)))
        return min(cores, jobs or cores)


_TUNED_FILE = Path("results/tuned.json")

# Where Ray unpacks the working folder of a job.
_JOB_FOLDERS = "working_dir_files"


def start_grid(target: str, settings: Sequence[str], out: Path | None, options: GridOptions) -> None:
    """Run `relief-ray grid MODULE`."""
    grid = load_grid(target)
    place = out or Path("runs") / "-".join(filter(None, ("grid", grid.name, options.search, options.scheduler)))
    place = place.absolute()
    if options.search is not None:
        search = suggested_tries(target, settings, place, options.tries, options.seed)
        if options.scheduler is not None:
            search = search.with_stopping(asha(search.listed(), options.grace_rounds, options.reduction_factor))
        _run_search(search, options)
        return
    cells = cells_of(grid, settings, skip_unknown=options.skip_unknown)
    if not cells:
        raise UserError(f"grid {grid.name}: no cell is left; expected at least one level of every axis")
    source = options.claims or (Path(grid.claims) if grid.claims else None)
    plan = Plan(kind="grid", out=place, name=grid.name, title=_title(grid, settings), cells=cells, claims_file=source)
    if options.scheduler is not None:
        plan = stopped_early(plan, asha(cells, options.grace_rounds, options.reduction_factor))
    _run_grid(plan, options)


def _title(grid: Spec, settings: Sequence[str]) -> str:
    """The grid's own title; where its axes were chosen anew it would say something else than what is run."""
    changed = [setting for setting in settings if "." not in setting.partition("=")[0]]
    return f"{grid.name} with {', '.join(changed)}" if changed else grid.title


def resume_grid(target: str, settings: Sequence[str], out: Path | None, options: GridOptions) -> None:
    """Run `relief-ray grid resume DIR|URI`."""
    folder, settings = local_folder(target, out, settings)
    plan = Plan.read(folder.absolute(), settings, "grid")
    if plan.search is not None:
        _run_search(again(plan, settings), options)
    else:
        _run_grid(plan, options)


def show_status(folder: Path, as_json: bool) -> None:
    """Run `relief-ray grid status DIR`."""
    plan = Plan.read(folder.absolute(), kind="grid")
    print_status(plan, plan.look(), as_json)


def freeze_choices(folder: Path, out: Path | None, as_json: bool) -> None:
    """Run `relief-ray grid freeze DIR`; as JSON: what was written, and a line about every method."""
    file = out or _TUNED_FILE
    lines = freeze(Plan.read(folder.absolute(), kind="grid"), file)
    if as_json:
        tell({"written": str(file), "methods": lines, **json.loads(file.read_text())})
    else:
        print(*lines, f"written {file}", sep="\n")


def _run_grid(plan: Plan, options: GridOptions) -> None:
    """Run what is not done yet, then say where the grid stands.

    Raises:
        Stopped: a signal, the budget or a full disk ended it, or cells failed; the message says how to go on.
    """
    if options.dashboard:
        refuse_dashboard_elsewhere(plan.look())
    if options.dry_run:
        _show_plan(plan, options)
        return
    wanted = {cell.name for cell in plan.cells}
    with StopSignals(_how_to_resume(plan)) as stop:
        after = _carry_out(plan, options, stop)
    _finish(*after, wanted, options)


def _run_search(search: SuggestedTries, options: GridOptions) -> None:
    """Run a search batch by batch; the first batch alone is shown before it.

    Raises:
        Stopped: as for a grid.
    """
    plan = search.ask()
    if options.dry_run:
        _show_plan(plan, options, search.num_tries / search.search.tries)
        return
    # Ray stays up between batches.
    with StopSignals(_how_to_resume(plan)) as stop, ray_session(_session_options(plan, options), stop.lost):
        plan, mirror = _carry_out(plan, options, stop)
        while search.tell(plan) and not search.is_complete and options.left_s() > 0:
            plan, mirror = _carry_out(search.ask(), options, stop)
    _finish(plan, mirror, {cell.name for cell in plan.cells}, options)


def _session_options(plan: Plan, options: GridOptions) -> SessionOptions:
    address = address_of(plan.look())
    cores = None if options.jobs is None else max(options.jobs, num_cores())
    return SessionOptions(address=address, num_cpus=cores, dashboard=options.dashboard)


def _carry_out(plan: Plan, options: GridOptions, stop: StopSignals) -> tuple[Plan, MirrorState]:
    """Run the plan's cells that are not done yet; return the plan with all cells of its folder, and its copy's state.

    Raises:
        Stopped: a signal or a full disk ended it.
    """
    wanted = {cell.name for cell in plan.cells}
    with plan.lock():
        plan = plan.write()
        entries = plan.look()
        await_quiet(e for e in entries if e.status != "done")
        if options.rerun_stale:
            plan = plan.without_stale()
        entries = plan.look()
        todo = [e for e in to_do(entries, options.skip_failed) if e.cell.name in wanted]
        for data in {e.cell.config.data.name: e.cell.config.data for e in todo}.values():
            open_dataset(data)
        todo = within_budget(plan, entries, todo, options)
        if todo:
            return plan, _run_cells(plan, entries, todo, options, stop)
        remove_scratch(plan.out)
        with mirrored(plan, say) as mirror:
            return plan, mirror


def _finish(plan: Plan, mirror: MirrorState, wanted: Collection[str], options: GridOptions) -> None:
    """Say where the grid stands.

    Raises:
        Stopped: cells of this command failed or are stale, or the copy lacks something.
    """
    entries = plan.look()
    print_end(plan, entries, options.as_json)
    if not options.as_json:
        print("", *next_steps(plan), sep="\n")
    failed = [e for e in entries if e.status == "failed" and e.cell.name in wanted]
    stale = [e for e in entries if e.status == "stale" and e.cell.name in wanted]
    advice = stale_advice(stale, f"relief-ray grid resume {typed(plan.out)} --rerun-stale") if stale else ""
    if failed:
        raise Stopped(
            CELLS_FAILED,
            f"{len(failed)} cells failed; the others are not touched by that\n{_how_to_resume(plan)}"
            + (f"\n{advice}" if advice else ""),
        )
    refuse_behind(mirror, f"relief-ray grid resume {typed(plan.out)}")
    if stale:
        raise Stopped(CELLS_FAILED, advice)


def to_do(entries: Iterable[CellState[Cell]], skip_failed: bool) -> list[CellState[Cell]]:
    """Cells that are not finished, and failed ones once more; stale ones stay as they are."""
    return [e for e in entries if e.is_open or (e.status == "failed" and not skip_failed)]


def _run_cells(
    plan: Plan,
    entries: Sequence[CellState[Cell]],
    todo: Sequence[CellState[Cell]],
    options: GridOptions,
    stop: StopSignals,
) -> MirrorState:
    """Run cells through Ray Tune, show their progress and copy their records; return the state of the copy.

    Raises:
        Stopped: a signal or a full disk ended it early.
    """
    reporter = make_reporter(options.as_json)
    with closing(reporter), mirrored(plan, reporter.note, stop.requested) as mirror:
        reporter.note(f"{plan.name}: {len(plan.cells)} cells, {len(todo)} to do; records in {plan.out}")
        for sentence in cannot_decide(plan):
            reporter.note(f"NOTE: {sentence}")
        if _JOB_FOLDERS in plan.out.parts:
            reporter.note(
                "NOTE: that folder is the job's copy of the code, which Ray removes; name another with --out DIR"
            )
        exports = Exports(reporter.note)
        try:
            work = SideBySide(
                plan=plan, entries=entries, todo=todo, reporter=reporter, stop=stop, exports=exports, jobs=options.jobs,
                dashboard=options.dashboard, out_of_time=lambda: options.left_s() <= 0,
            )  # fmt: skip
            disk_full = run_side_by_side(work)
        finally:
            exports.close(PATIENCE_AFTER_STOP_S if stop.requested() else PATIENCE_S)
    if disk_full:
        raise Stopped(DISK, f"the disk is full; everything before is intact\n{_how_to_resume(plan)}")
    if stop.requested():
        raise Stopped(stop.code, _how_to_resume(plan))
    return mirror


def _how_to_resume(plan: Plan) -> str:
    """Message for a user whose grid ended early."""
    return f"everything up to the last finished round is kept\ngo on with: relief-ray grid resume {typed(plan.out)}"
