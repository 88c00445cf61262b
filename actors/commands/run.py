"""`relief-ray run` and `resume`: run after run, each in its own folder, resumable at any point.

Their options are declared in ``actors.cli``; an option that is short for a setting is turned into ``--set`` there.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from actors.commands.results import show_results
from actors.commands.study import cannot_decide
from actors.launch import RunCallbacks, RunMode, choose_mode, local_session, run_experiment
from actors.runtime.session import ray_session
from actors.terminal.console import make_reporter
from actors.terminal.exit_codes import INTERRUPTED, Stopped
from actors.terminal.mlflow_export import PATIENCE_AFTER_STOP_S, Exports
from actors.terminal.reporter import CellEnd, Reporter
from actors.terminal.signals import StopSignals
from relief_ray.errors import counted
from relief_ray.experiment.setup import Setup
from relief_ray.process import use_threads
from relief_ray.records.checkpoint import generations
from relief_ray.records.run_folder import read_rounds
from relief_ray.records.schema import RoundRecord, RunRecord
from relief_ray.report.runs import split_name
from relief_ray.studies.planning import make_plan, read_plan, write_plan
from relief_ray.studies.plans import CellFolder, Plan, look_at, set_stale_aside
from relief_ray.studies.running import check_reusable, last_evaluated, open_cell, rounds_to_do, title_of

if TYPE_CHECKING:
    from actors.runtime.warm_pool import WorkerCache


def run_command(
    target: str,
    settings: Sequence[str],
    strategies: str | None,
    out: Path | None,
    *,
    as_json: bool = False,
    rerun_stale: bool = False,
) -> None:
    """Run `relief-ray run`."""
    plan = make_plan(target, settings, strategies, out)
    if rerun_stale:
        set_stale_aside((cell for cell in plan.cell_folders() if cell.is_finished), plan.out)
    write_plan(plan)
    _run_plan(plan, as_json=as_json)


def resume_command(folder: Path, settings: Sequence[str], *, as_json: bool = False, other_code: bool = False) -> None:
    """Run `relief-ray resume`."""
    _run_plan(read_plan(folder, settings), as_json=as_json, other_code=other_code)


@dataclass(kw_only=True, slots=True)
class RunContext:
    """Shared by the runs of a plan: reporter, stop signals, Ray's session and worker processes, MLflow exports."""

    reporter: Reporter
    stop: StopSignals
    session: ExitStack
    exports: Exports
    other_code: bool
    worker_cache: WorkerCache | None = None

    def open_ray(self, setup: Setup) -> None:
        """Open Ray's session with the first run that needs it; worker processes stay for the next run."""
        if self.worker_cache is None:
            self.session.enter_context(ray_session(local_session(setup)))
            from actors.runtime.warm_pool import WorkerCache

            self.worker_cache = WorkerCache()
            self.session.callback(self.worker_cache.close)


def _run_plan(plan: Plan, *, as_json: bool, other_code: bool = False) -> None:
    """Run whatever of the plan is not finished, then show the results of all of it.

    Raises:
        Stopped: a signal asked for it; the message says how to go on.
    """
    cells = plan.cell_folders()
    todo = [cell for cell in cells if not cell.is_finished]
    reporter = make_reporter(as_json, len(cells), sum(rounds_to_do(cell) for cell in todo))
    reporter.note(headline(plan, len(todo)))
    for sentence in cannot_decide(plan) if todo else ():
        reporter.note(f"NOTE: {sentence}")
    exports = Exports(reporter.note)
    try:
        with closing(reporter), StopSignals() as stop, ExitStack() as session:
            context = RunContext(reporter=reporter, stop=stop, session=session, exports=exports, other_code=other_code)
            _run_all(cells, context)
    except KeyboardInterrupt:
        raise Stopped(stop.code or INTERRUPTED, _how_to_resume(plan)) from None
    if stop.requested() and not all(look_at(cell.cell, cell.folder).is_finished for cell in todo):
        exports.close(PATIENCE_AFTER_STOP_S)
        raise Stopped(stop.code, _how_to_resume(plan))
    exports.close()
    show_results(plan, as_json)


def _how_to_resume(plan: Plan) -> str:
    """Message for a user who has stopped a run."""
    return f"stopped; everything up to the last finished round is kept\nresume with: relief-ray resume {plan.out}"


def _run_all(cells: Sequence[CellFolder], context: RunContext) -> None:
    """Run one cell after the other, until a signal asks to stop."""
    for cell in cells:
        if not context.stop.requested():
            _run_cell(cell, context)


def headline(plan: Plan, num_todo: int) -> str:
    """Line that announces the runs."""
    number = len(plan.cells)
    done = "" if num_todo == number else f", {number - num_todo} finished already"
    data = plan.cells[0].config.data
    return f"{plan.name}: {counted(number, 'run')}{done}; {data.name}, {split_name(data.split)}; records in {plan.out}"


def _run_cell(cell: CellFolder, context: RunContext) -> None:
    """Run one cell from wherever its folder is."""
    reporter, config, title = context.reporter, cell.cell.config, title_of(cell.cell)
    if cell.is_finished:
        record = last_evaluated(read_rounds(cell.folder))
        reporter.end(CellEnd(title=title, status=cell.status, record=record, why=check_reusable(cell), reused=True))
        return
    began_s = time.monotonic()
    use_threads(config.runtime.num_threads)
    setup = open_cell(cell, context.other_code)
    mode = choose_mode(config.runtime, len(setup.fleet), config.training.stack)
    reporter.begin(title, facts(setup, mode), saved_round(cell.folder), config.rounds)
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


def follow(cell: CellFolder, setup: Setup, context: RunContext) -> RunRecord:
    """Run the missing rounds and pass each to the reporter and to MLflow."""
    config, title = cell.cell.config, title_of(cell.cell)
    tracker = context.exports.begin(config.tracking, cell.folder)

    def on_round(record: RoundRecord) -> None:
        context.reporter.committed(title, record, config.costs.planning_time)
        tracker.round(record)

    def on_note(text: str) -> None:
        context.reporter.note(f"{cell.folder}: {text}")

    try:
        callbacks = RunCallbacks(on_round=on_round, on_note=on_note, should_stop=context.stop.requested)
        return run_experiment(setup, cell.folder, callbacks, context.worker_cache)
    finally:
        context.exports.end(tracker, cell.folder)


def facts(setup: Setup, mode: RunMode) -> str:
    """A run's rounds, clients, mode and data in a line."""
    number, rounds = len(setup.fleet), setup.config.rounds
    windows = sum(client.num_windows for client in setup.fleet.clients)
    where = {"inline": "in this process", "packed": "on Ray, packed", "actors": "on Ray, an actor each"}[mode]
    return f"{counted(rounds, 'round')}, {counted(number, 'client')} {where}, {windows} windows ({setup.data.origin})"
