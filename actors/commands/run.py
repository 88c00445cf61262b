"""`relief-ray run` and `resume`: run after run, each in its own folder, resumable at any point.

Their options are declared in ``actors.cli.main``; an option that is short for a setting is turned into ``--set`` there.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from actors.commands.fetching import local_folder, refuse_behind
from actors.commands.results import show_results
from actors.commands.run_mode import cause, overruled_mode, placed
from actors.commands.run_plan import show_plan
from actors.commands.study import cannot_decide
from actors.grids.display import make_reporter as make_grid_reporter
from actors.grids.side_by_side import SideBySide, refuse_dashboard_elsewhere, remove_scratch, run_side_by_side
from actors.launch import RunCallbacks, RunMode, choose_mode, local_session, run_experiment
from actors.runtime.session import ray_session
from actors.terminal.console import make_reporter
from actors.terminal.exit_codes import CELLS_FAILED, DISK, Stopped, say
from actors.terminal.mlflow_export import PATIENCE_AFTER_STOP_S, PATIENCE_S, Exports
from actors.terminal.progress import CellEnd, Reporter
from actors.terminal.signals import StopSignals
from relief_ray.experiment.setup import Setup
from relief_ray.plugins.load import is_path
from relief_ray.records.cells import CellState
from relief_ray.records.checkpoint import generations
from relief_ray.records.left_out import Alerts
from relief_ray.records.run_folder import read_rounds
from relief_ray.records.schema import RoundRecord, RunRecord
from relief_ray.report.runs import split_name
from relief_ray.studies.loop import check_reusable, last_evaluated, open_cell, rounds_to_do, title_of
from relief_ray.studies.mirrored import MirrorState, mirrored
from relief_ray.studies.plan import Plan, load_spec, look_at, refuse_begun, refuse_stale
from relief_ray.studies.presets import PRESETS
from relief_ray.studies.spec import Cell, Setting, joined, read_settings
from relief_ray.support.errors import UserError, counted
from relief_ray.support.process import use_threads
from relief_ray.support.text import typed

if TYPE_CHECKING:
    from actors.runtime.warm_pool import WorkerCache


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOptions:
    """Options of `relief-ray run` and `resume` besides what is computed.

    Attributes:
        as_json: JSON lines instead of text.
        dry_run: only show the runs, their settings, time and disk.
        jobs: runs at a time.
        dashboard: open Ray's dashboard with a local cluster.
        rerun_stale: set stale runs aside and compute them again.
        other_code: go on with runs that another program began.
    """

    as_json: bool = False
    dry_run: bool = False
    jobs: int = 1
    dashboard: bool = False
    rerun_stale: bool = False
    other_code: bool = False


def run_command(
    target: str, settings: Sequence[str], axes: Sequence[Setting], out: Path | None, options: RunOptions
) -> None:
    """Run `relief-ray run`."""
    _refuse_grid(target)
    spec = load_spec(target)
    chosen = joined(axes, read_settings(placed(settings, options.jobs)))
    plan = Plan.of(spec, out or Path("runs") / spec.name, chosen)
    refuse_begun(plan)
    if (mode := overruled_mode(target, settings, options.jobs)) is not None:
        say(f"NOTE: {cause(settings)} takes an actor for each client: runtime.mode=actors instead of {mode}")
    if options.dashboard:
        _check_dashboard(plan, options.jobs)
    if options.dry_run:
        show_plan(plan, options.jobs, options.as_json)
        return
    if options.rerun_stale:
        plan = plan.without_stale()
    plan = plan.write()
    _refuse_stale(plan, "--out DIR")  # after the plan is written: `resume --other-code` completes all of it
    _run_plan(plan, options)


def _refuse_grid(target: str) -> None:
    """Check that a target is no grid's name: what a grid runs has its own settings.

    Raises:
        UserError: it is.
    """
    if target in PRESETS or Path(target).exists():
        return
    from tune_configs.registry import GRIDS

    if target in GRIDS:
        raise UserError(f"run {target}: is a grid, expected a preset or a file; type relief-ray grid {target}")


def resume_command(target: str, settings: Sequence[str], out: Path | None, options: RunOptions) -> None:
    """Run `relief-ray resume`."""
    folder, settings = local_folder(target, out, settings)
    settings = placed(settings, options.jobs)
    plan = Plan.read(folder, settings)
    if options.rerun_stale:
        plan = plan.without_stale()
    elif not options.other_code:
        _refuse_stale(plan)
    if options.jobs > 1 and plan.is_single:
        raise UserError(
            f"--jobs {options.jobs}: {folder} is a single run; expected the folder of several, or no --jobs"
        )
    if options.dashboard:
        _check_dashboard(plan, options.jobs)
    _run_plan(plan, options)


def _refuse_stale(plan: Plan, elsewhere: str = "") -> None:
    """Check that no run is of other code or weights; ``elsewhere``: the option that names another folder.

    Raises:
        UserError: some are.
    """
    refuse_stale(plan, "--rerun-stale", f"relief-ray resume {typed(plan.out)} --other-code", elsewhere)


def _check_dashboard(plan: Plan, jobs: int) -> None:
    """Check that there will be a local cluster whose dashboard can be opened.

    Raises:
        UserError: the runs use no Ray, or join a cluster.
    """
    cells = plan.look()
    refuse_dashboard_elsewhere(cells)
    if jobs == 1 and all(cell.cell.config.runtime.mode == "inline" for cell in cells):
        raise UserError(
            "--dashboard: these runs use no Ray (runtime.mode = 'inline'); add --jobs 2, or --set runtime.mode=packed"
        )


@dataclass(kw_only=True, slots=True)
class RunContext:
    """Everything that the runs of a plan share.

    Attributes:
        name: name of the plan.
        reporter: shows the progress.
        stop: signals that ask to stop.
        session: closes Ray's session and the workers at the end.
        exports: MLflow trackers.
        options: options of the command.
        worker_cache: worker processes that the next run takes over; None before the first on Ray.
        said: notes about data, each of which is shown once and not for every run.
    """

    name: str
    reporter: Reporter
    stop: StopSignals
    session: ExitStack
    exports: Exports
    options: RunOptions
    worker_cache: WorkerCache | None = None
    said: set[str] = field(default_factory=set)

    def unsaid(self, notes: Sequence[str]) -> list[str]:
        """The notes that no run of this command has shown yet."""
        new = [note for note in notes if note not in self.said]
        self.said.update(new)
        return new

    def open_ray(self, setup: Setup) -> None:
        """Open Ray's session with the first run that needs it; worker processes stay for the next run."""
        if self.worker_cache is None:
            opened = ray_session(replace(local_session(setup), dashboard=self.options.dashboard), self.stop.lost)
            if (url := self.session.enter_context(opened)) is not None:
                self.reporter.note(f"dashboard: {url}")
            from actors.runtime.warm_pool import WorkerCache

            self.worker_cache = WorkerCache(self.name)
            self.session.callback(self.worker_cache.close)


def _run_plan(plan: Plan, options: RunOptions) -> None:
    """Run whatever of the plan is not finished, then show the results of all of it.

    Raises:
        Stopped: a signal asked for it, or runs of several failed; the message says how to go on.
    """
    cells = plan.look()
    todo = [cell for cell in cells if not cell.is_finished]
    if options.jobs > 1 and len(todo) > 1:
        reporter = make_grid_reporter(options.as_json)
    else:
        reporter = make_reporter(options.as_json, len(cells), sum(rounds_to_do(cell) for cell in todo))
    exports, disk_full = Exports(reporter.note), False
    with (
        closing(reporter),
        StopSignals(_how_to_resume(plan)) as stop,
    ):
        reporter.note(headline(plan, len(todo)))
        for sentence in cannot_decide(plan) if todo else ():
            reporter.note(f"NOTE: {sentence}")
        remove_scratch(plan.out)
        with ExitStack() as session, mirrored(plan, reporter.note, stop.requested) as mirror:
            if options.jobs > 1 and len(todo) > 1:
                disk_full = _run_several(plan, cells, todo, options, reporter, stop, exports)
            else:
                context = RunContext(
                    name=plan.name, reporter=reporter, stop=stop, session=session, exports=exports, options=options
                )
                _run_all(cells, context)
        is_whole = all(look_at(cell.cell, cell.folder).is_finished for cell in todo)
        if is_whole:
            stop.advise(f"stopped; all runs are finished\nthe rest of their export: relief-ray sync {typed(plan.out)}")
        exports.close(PATIENCE_AFTER_STOP_S if stop.requested() else PATIENCE_S)
    if disk_full:
        raise Stopped(DISK, f"the disk is full; everything before is intact\n{_how_to_resume(plan)}")
    if stop.requested() and not is_whole:
        raise Stopped(stop.code, _how_to_resume(plan))
    _conclude(plan, mirror, options.as_json)


def _conclude(plan: Plan, mirror: MirrorState, as_json: bool) -> None:
    """Show the results of all runs.

    Raises:
        Stopped: runs failed, or the copy lacks something.
    """
    _refuse_failed(plan)
    show_results(plan, as_json)
    refuse_behind(mirror, f"relief-ray resume {typed(plan.out)}")


def _run_several(
    plan: Plan,
    cells: Sequence[CellState[Cell]],
    todo: Sequence[CellState[Cell]],
    options: RunOptions,
    reporter: Reporter,
    stop: StopSignals,
    exports: Exports,
) -> bool:
    """Run several cells at a time; return whether the disk is full.

    Raises:
        UserError: a finished run is of other data.
    """
    for cell in cells:
        if cell.is_finished:
            reporter.note(f"{title_of(cell.cell)}: {check_reusable(cell)}")
    work = SideBySide(
        plan=replace(plan, out=plan.out.absolute()), entries=cells, todo=todo, reporter=reporter, stop=stop,
        exports=exports, jobs=options.jobs, dashboard=options.dashboard, is_grid=False, other_code=options.other_code,
    )  # fmt: skip
    return run_side_by_side(work)


def _refuse_failed(plan: Plan) -> None:
    """Check that every run came to its end: of several at a time one that fails stops no other.

    Raises:
        Stopped: with the reasons.
    """
    failed = [cell for cell in plan.look() if not cell.is_finished]
    if failed:
        why = "\n".join(f"{cell.cell.name}: {cell.why.splitlines()[0] if cell.why else cell.status}" for cell in failed)
        raise Stopped(
            CELLS_FAILED,
            f"{why}\n{len(failed)} of {len(plan.cells)} runs failed; the others are not touched by that\n"
            f"go on with: relief-ray resume {typed(plan.out)}",
        )


def _how_to_resume(plan: Plan) -> str:
    """Message for a user who has stopped a run."""
    return (
        f"stopped; everything up to the last finished round is kept\nresume with: relief-ray resume {typed(plan.out)}"
    )


def _run_all(cells: Sequence[CellState[Cell]], context: RunContext) -> None:
    """Run one cell after the other, until a signal asks to stop."""
    for cell in cells:
        if not context.stop.requested():
            _run_cell(cell, context)


def headline(plan: Plan, num_todo: int) -> str:
    """Line that announces the runs."""
    number = len(plan.cells)
    done = "" if num_todo == number else f", {number - num_todo} finished already"
    data = plan.cells[0].config.data
    name = data.spec().title if is_path(data.name) else data.name
    return f"{plan.name}: {counted(number, 'run')}{done}; {name}, {split_name(data.split)}; records in {plan.out}"


def _run_cell(cell: CellState[Cell], context: RunContext) -> None:
    """Run one cell from wherever its folder is."""
    reporter, config, title = context.reporter, cell.cell.config, title_of(cell.cell)
    if cell.is_finished:
        record = last_evaluated(read_rounds(cell.folder))
        reporter.end(CellEnd(title=title, status=cell.status, record=record, why=check_reusable(cell), reused=True))
        return
    began_s = time.monotonic()
    use_threads(config.runtime.num_threads)
    setup = open_cell(cell, context.options.other_code)
    mode = choose_mode(config.runtime, len(setup.fleet), config.training.stack)
    reporter.begin(title, facts(setup, mode), saved_round(cell.folder), config.rounds)
    for warning in context.unsaid(setup.data_notes):
        reporter.note(f"WARNING: {warning}")
    for warning in setup.warnings:
        reporter.note(f"{title}: NOTE: {warning}")
    if mode != "inline":
        context.open_ray(setup)
    run = follow(cell, setup, context)
    reporter.end(
        CellEnd(
            title=title,
            status=run.status,
            seconds=time.monotonic() - began_s,
            record=last_evaluated(read_rounds(cell.folder)),
        )
    )


def saved_round(folder: Path) -> int | None:
    """Round of the newest checkpoint, after which a run goes on."""
    saved = generations(folder)
    return int(saved[0].name.removeprefix("round-")) if saved else None


def follow(cell: CellState[Cell], setup: Setup, context: RunContext) -> RunRecord:
    """Run the missing rounds and pass each to the reporter and to MLflow."""
    config, title = cell.cell.config, title_of(cell.cell)
    tracker, alerts = context.exports.begin(config.tracking, cell.folder), Alerts()

    def on_round(record: RoundRecord) -> None:
        context.reporter.committed(title, record, config.costs.planning_time, alerts.of(record))
        tracker.round(record)

    def on_note(text: str) -> None:
        context.reporter.note(f"{cell.folder}: {text}")

    try:
        callbacks = RunCallbacks(on_round=on_round, on_note=on_note, should_stop=context.stop.requested)
        return run_experiment(setup, cell.folder, callbacks, context.worker_cache)
    finally:
        context.exports.end(tracker, cell.folder)


def facts(setup: Setup, mode: RunMode) -> str:
    """A run's rounds, clients, mode and data in a line; a user's method by its import path too."""
    number, rounds = len(setup.fleet), setup.config.rounds
    windows = sum(client.num_windows for client in setup.fleet.clients)
    where = {"inline": "in this process", "packed": "on Ray, packed", "actors": "on Ray, an actor each"}[mode]
    path = f"{setup.config.label()}, " if is_path(setup.config.label()) else ""
    length = f"{path}{counted(rounds, 'round')}"
    return f"{length}, {counted(number, 'client')} {where}, {windows} windows ({setup.data.origin})"
