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
from relief_ray.data import federate, num_clients, open_dataset
from relief_ray.errors import UserError
from relief_ray.experiment.lifecycle import create, reopen
from relief_ray.experiment.setup import Setup
from relief_ray.process import use_threads
from relief_ray.records.checkpoint import generations
from relief_ray.records.run_folder import read_rounds
from relief_ray.records.schema import RoundRecord, RunRecord
from relief_ray.report.runs import split_name
from relief_ray.strategies import method_name
from relief_ray.studies.cells import Cell
from relief_ray.studies.planning import make_plan, read_plan, write_plan
from relief_ray.studies.plans import CellFolder, Plan, look_at, set_stale_aside
from relief_ray.text import counted

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
    reporter = make_reporter(as_json, len(cells), sum(_rounds_to_do(cell) for cell in todo))
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


def _rounds_to_do(cell: CellFolder) -> int:
    """Number of rounds that are missing, the bootstrap included."""
    done = len(read_rounds(cell.folder)) if cell.state.run is not None else 0
    return cell.num_planned - done


def headline(plan: Plan, num_todo: int) -> str:
    """Line that announces the runs."""
    number = len(plan.cells)
    done = "" if num_todo == number else f", {number - num_todo} finished already"
    data = plan.cells[0].config.data
    return f"{plan.name}: {counted(number, 'run')}{done}; {data.name}, {split_name(data.split)}; records in {plan.out}"


def _title_of(cell: Cell) -> str:
    """``relief, fold 0, seed 0``, or ``relief, fold 0, replicate 2``."""
    data = cell.config.data
    fold = [f"fold {data.fold}"] if data.split == "held_out_subject" else []
    number = cell.config.replicate
    draw = f"seed {cell.config.seed}" if number is None else f"replicate {number}"
    return ", ".join([method_name(cell.config.strategy, cell.label), *fold, draw])


def _run_cell(cell: CellFolder, context: RunContext) -> None:
    """Run one cell from wherever its folder is."""
    reporter, config, title = context.reporter, cell.cell.config, _title_of(cell.cell)
    if cell.is_finished:
        record = _last_evaluated(read_rounds(cell.folder))
        reporter.end(CellEnd(title=title, status=cell.status, record=record, why=_check_reusable(cell), reused=True))
        return
    began_s = time.monotonic()
    use_threads(config.runtime.num_threads)
    setup = _open_cell(cell, context.other_code)
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
            record=_last_evaluated(read_rounds(cell.folder)),
        )
    )


def saved_round(folder: Path) -> int | None:
    """Round of the newest checkpoint, after which a run goes on."""
    saved = generations(folder)
    return int(saved[0].name.removeprefix("round-")) if saved else None


def _open_cell(cell: CellFolder, other_code: bool) -> Setup:
    """Create or reopen the run; `runtime` may have changed since it was started, what it computes has not."""
    config = cell.cell.config
    if cell.state.run is not None:
        setup, folder = reopen(cell.folder, runtime=config.runtime, other_code=other_code)
    else:
        setup, folder = create(config, cell.folder)
    folder.close()
    return setup


def follow(cell: CellFolder, setup: Setup, context: RunContext) -> RunRecord:
    """Run the missing rounds and pass each to the reporter and to MLflow."""
    config, title = cell.cell.config, _title_of(cell.cell)
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


def _last_evaluated(rounds: Sequence[RoundRecord]) -> RoundRecord | None:
    """The last round with test metrics."""
    return next((record for record in reversed(rounds) if record.metrics is not None), None)


def _check_reusable(cell: CellFolder) -> str:
    """Check that a finished run was computed on today's data; return the line that says it is reused.

    Raises:
        UserError: the data are others.
    """
    assert cell.state.run is not None
    config, recorded = cell.cell.config.data, cell.state.run.data_digest
    dataset = open_dataset(config)
    number = num_clients(dataset, config)
    digest = federate(dataset, config, [dataset.spec.names] * number).digest
    if digest != recorded:
        raise UserError(
            f"{cell.folder}: was computed on data {recorded[:12]}, found {digest[:12]}; "
            "choose another folder (--out DIR), or point RELIEF_DATA to the data it was computed on"
        )
    stale = f"; stale: {cell.why}; --rerun-stale computes it again" if cell.status == "stale" else ""
    return f"reused, finished already{stale}"
