"""Carries a plan out: run after run, each in its own folder, resumable at any point."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from actors.commands.folders import Cell, why_stale
from actors.commands.output import counted
from actors.commands.plan import Plan, make_plan, read_plan, set_stale_aside, write_plan
from actors.commands.results import show_results
from actors.launch import RunMode, Watch, choose_mode, local_session, run_experiment
from actors.runtime.session import ray_session
from actors.terminal.console import Reporter, make_reporter
from actors.terminal.exit_codes import INTERRUPTED, Stopped
from actors.terminal.mlflow_export import PATIENCE_AFTER_STOP_S, Exports
from actors.terminal.signals import StopSignals
from relief_ray.data import federate, num_clients, open_dataset
from relief_ray.errors import UserError
from relief_ray.experiment.lifecycle import create, reopen
from relief_ray.experiment.setup import Setup
from relief_ray.process import use_threads
from relief_ray.records.checkpoint import generations
from relief_ray.records.run_folder import RUN_FILE, read_rounds, read_run
from relief_ray.records.schema import RoundRecord, RunRecord
from relief_ray.report.runs import split_name

if TYPE_CHECKING:
    from actors.runtime.warm_pool import Crew


def run(
    target: str,
    settings: Sequence[str],
    strategies: str | None,
    out: Path | None,
    *,
    as_json: bool = False,
    rerun_stale: bool = False,
) -> None:
    """`relief-ray run`."""
    plan = make_plan(target, settings, strategies, out)
    if rerun_stale:
        plan = set_stale_aside(plan)
    write_plan(plan)
    carry_out(plan, as_json=as_json)


def resume(folder: Path, settings: Sequence[str], *, as_json: bool = False, other_code: bool = False) -> None:
    """`relief-ray resume`."""
    carry_out(read_plan(folder, settings), as_json=as_json, other_code=other_code)


@dataclass(kw_only=True, slots=True)
class Stage:
    """What the runs of a plan share: who hears of them, who may stop them, Ray, its hosts, and MLflow."""

    reporter: Reporter
    stop: StopSignals
    session: ExitStack
    exports: Exports
    other_code: bool
    crew: Crew | None = None

    def open_ray(self, setup: Setup) -> None:
        """The first run on Ray opens the session for all; hosts stay for the next run."""
        if self.crew is None:
            self.session.enter_context(ray_session(local_session(setup)))
            from actors.runtime.warm_pool import Crew

            self.crew = Crew()
            self.session.callback(self.crew.close)


def carry_out(plan: Plan, *, as_json: bool, other_code: bool = False) -> None:
    """Runs whatever of the plan is not finished, then shows the results of all of it.

    Raises:
        Stopped: a signal asked for it; the message says how to go on.
    """
    todo = [cell for cell in plan.cells if cell.state != "finished"]
    reporter = make_reporter(as_json, len(plan.cells), sum(rounds_to_do(cell) for cell in todo))
    reporter.note(headline(plan, len(todo)))
    exports = Exports(reporter.note)
    try:
        with closing(reporter), StopSignals() as stop, ExitStack() as session:
            stage = Stage(reporter=reporter, stop=stop, session=session, exports=exports, other_code=other_code)
            run_all(plan.cells, stage)
    except KeyboardInterrupt:
        raise Stopped(stop.code or INTERRUPTED, going_on(plan)) from None
    if stop.requested() and not all(is_finished(cell) for cell in todo):
        exports.close(PATIENCE_AFTER_STOP_S)
        raise Stopped(stop.code, going_on(plan))
    exports.close()
    show_results(plan, as_json)


def going_on(plan: Plan) -> str:
    """What a user reads who has stopped a run."""
    return f"stopped; everything up to the last finished round is kept\nresume with: relief-ray resume {plan.out}"


def is_finished(cell: Cell) -> bool:
    """Whether the cell's folder holds its finished run."""
    return (cell.folder / RUN_FILE).exists() and read_run(cell.folder).status == "finished"


def run_all(cells: Sequence[Cell], stage: Stage) -> None:
    """One run after the other, until a signal asks to stop."""
    for cell in cells:
        if not stage.stop.requested():
            run_cell(cell, stage)


def rounds_to_do(cell: Cell) -> int:
    """Rounds that are missing, the bootstrap included."""
    done = len(read_rounds(cell.folder)) if cell.state == "unfinished" else 0
    return cell.config.rounds + cell.config.strategy.build().bootstrap - done


def headline(plan: Plan, num_todo: int) -> str:
    """What is about to happen."""
    number = len(plan.cells)
    done = "" if num_todo == number else f", {number - num_todo} finished already"
    data = plan.cells[0].config.data
    return f"{plan.name}: {counted(number, 'run')}{done}; {data.name}, {split_name(data.split)}; records in {plan.out}"


def run_cell(cell: Cell, stage: Stage) -> None:
    """One run, from wherever its folder is."""
    reporter = stage.reporter
    if cell.state == "finished":
        reporter.end(cell.title(), check_reusable(cell), last_evaluated(read_rounds(cell.folder)))
        return
    use_threads(cell.config.runtime.num_threads)
    setup = open_cell(cell, stage.other_code)
    mode = choose_mode(cell.config.runtime, len(setup.fleet), cell.config.training.stack)
    reporter.begin(cell.title(), facts(setup, mode), saved_round(cell.folder), cell.config.rounds)
    for warning in setup.warnings:
        reporter.note(f"{cell.title()}: NOTE: {warning}")
    if mode != "inline":
        stage.open_ray(setup)
    ended = follow(cell, setup, stage)
    reporter.end(cell.title(), ended.status, last_evaluated(read_rounds(cell.folder)))


def saved_round(folder: Path) -> int | None:
    """The round after which a run goes on: that of its newest checkpoint."""
    saved = generations(folder)
    return int(saved[0].name.removeprefix("round-")) if saved else None


def open_cell(cell: Cell, other_code: bool) -> Setup:
    """The run, ready to go on; where it is carried out may have changed since it was started, what it computes not."""
    if cell.state == "unfinished":
        setup, folder = reopen(cell.folder, runtime=cell.config.runtime, other_code=other_code)
    else:
        setup, folder = create(cell.config, cell.folder)
    folder.close()
    return setup


def follow(cell: Cell, setup: Setup, stage: Stage) -> RunRecord:
    """Runs the missing rounds; console and MLflow hear of each."""
    clock = cell.config.costs.planning_time
    tracker = stage.exports.begin(cell.config.tracking, cell.folder)

    def on_round(record: RoundRecord) -> None:
        stage.reporter.round(record, clock)
        tracker.round(record)

    def on_note(text: str) -> None:
        stage.reporter.note(f"{cell.folder}: {text}")

    try:
        watch = Watch(on_round=on_round, on_note=on_note, should_stop=stage.stop.requested)
        return run_experiment(setup, cell.folder, watch, stage.crew)
    finally:
        stage.exports.end(tracker, cell.folder)


def facts(setup: Setup, mode: RunMode) -> str:
    """A run in a line."""
    number, rounds = len(setup.fleet), setup.config.rounds
    windows = sum(client.num_windows for client in setup.fleet.clients)
    where = {"inline": "in this process", "packed": "on Ray, packed", "actors": "on Ray, an actor each"}[mode]
    return f"{counted(rounds, 'round')}, {counted(number, 'client')} {where}, {windows} windows ({setup.data.origin})"


def last_evaluated(rounds: Sequence[RoundRecord]) -> RoundRecord | None:
    """The last round with test metrics."""
    return next((record for record in reversed(rounds) if record.metrics is not None), None)


def check_reusable(cell: Cell) -> str:
    """A finished run stands for itself if its data are still the same.

    Raises:
        UserError: they are not.
    """
    config, run_ = cell.config.data, read_run(cell.folder)
    dataset = open_dataset(config)
    number = num_clients(dataset, config)
    digest = federate(dataset, config, [dataset.spec.names] * number).digest
    if digest != run_.data_digest:
        raise UserError(
            f"{cell.folder}: was computed on data {run_.data_digest[:12]}, found {digest[:12]}; "
            "choose another folder (--out DIR), or point RELIEF_DATA to the data it was computed on"
        )
    stale = why_stale(run_, cell.config)
    return f"reused, finished already{f'; stale: {stale}; --rerun-stale computes it again' if stale else ''}"
