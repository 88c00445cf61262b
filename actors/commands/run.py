"""Carries a plan out: run after run, each in its own folder, resumable at any point."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import torch

from actors.commands.plan import Cell, Plan, make_plan, read_plan, write_plan
from actors.commands.results import show_results
from actors.console import Reporter, make_reporter
from actors.exits import INTERRUPTED, Stopped
from actors.signals import StopSignals
from relief_ray.config import ExperimentConfig
from relief_ray.data import federate, num_clients, open_dataset
from relief_ray.errors import UserError
from relief_ray.records.ledger import RunFolder
from relief_ray.records.reading import read_rounds, read_run
from relief_ray.records.schema import RoundRecord
from relief_ray.records.tracking import MlflowTracker, NullTracker, Tracker
from relief_ray.setup import Setup
from relief_ray.simulation import Experiment, create, reopen
from relief_ray.training.serial import SerialExecutor

SPLITS = {"held_out_subject": "held-out subjects", "within_subject": "within subjects", "random_leaky": "random_leaky"}


def run(target: str, settings: Sequence[str], strategies: str | None, out: Path | None, as_json: bool) -> None:
    """`relief-ray run`."""
    plan = make_plan(target, settings, strategies, out)
    write_plan(plan)
    carry_out(plan, as_json)


def resume(folder: Path, as_json: bool) -> None:
    """`relief-ray resume`."""
    carry_out(read_plan(folder), as_json)


def carry_out(plan: Plan, as_json: bool) -> None:
    """Runs whatever of the plan is not finished, then shows the results of all of it.

    Raises:
        Stopped: a signal asked for it; the message says how to go on.
    """
    todo = [cell for cell in plan.cells if cell.state != "finished"]
    going_on = f"stopped; everything up to the last finished round is kept. Resume with: relief-ray resume {plan.out}"
    reporter = make_reporter(as_json, len(plan.cells), sum(cell.config.rounds for cell in todo))
    reporter.note(headline(plan, len(todo)))
    try:
        with StopSignals() as stop, closing(reporter):
            for cell in plan.cells:
                if not stop.requested():
                    run_cell(cell, reporter, stop.requested)
            if stop.requested() and any(read_run(cell.folder).status != "finished" for cell in todo if cell.folder.exists()):
                raise Stopped(stop.code, going_on)
    except KeyboardInterrupt:
        raise Stopped(stop.code or INTERRUPTED, going_on) from None
    show_results(plan, as_json)


def headline(plan: Plan, num_todo: int) -> str:
    """What is about to happen."""
    number = len(plan.cells)
    done = "" if num_todo == number else f", {number - num_todo} finished already"
    data = plan.cells[0].config.data
    return f"{plan.name}: {number} run{'s' * (number > 1)}{done}; {data.name}, {SPLITS[data.split]}; records in {plan.out}"


def run_cell(cell: Cell, reporter: Reporter, should_stop: Callable[[], bool]) -> None:
    """One run, from wherever its folder is."""
    if cell.state == "finished":
        reporter.end(cell.title(), check_reusable(cell), last_evaluated(read_rounds(cell.folder)))
        return
    torch.set_num_threads(cell.config.runtime.num_threads)
    setup, folder = reopen(cell.folder) if cell.state == "unfinished" else create(cell.config, cell.folder)
    tracker = make_tracker(cell.config, reporter)
    with folder, closing(tracker), closing(SerialExecutor(setup.job)) as executor:
        experiment = Experiment(setup=setup, folder=folder, executor=executor, tracker=tracker)
        for repair in experiment.repairs:
            reporter.note(f"repaired {cell.folder}: {repair}")
        run_experiment(cell, setup, folder, experiment, reporter, should_stop)


def run_experiment(
    cell: Cell, setup: Setup, folder: RunFolder, experiment: Experiment, reporter: Reporter, should_stop: Callable[[], bool]
) -> None:
    """The rounds that are missing."""
    clock = cell.config.costs.planning_time
    done = folder.rounds()
    reporter.begin(cell.title(), facts(setup), done[-1].round if done else 0, cell.config.rounds)
    ended = experiment.run(lambda record: reporter.round(record, clock), should_stop)
    reporter.end(cell.title(), ended.status, last_evaluated(folder.rounds()))


def facts(setup: Setup) -> str:
    """A run in a line."""
    number, rounds = len(setup.fleet), setup.config.rounds
    windows = sum(client.num_windows for client in setup.fleet.clients)
    return f"{rounds} rounds, {number} clients, {windows} windows ({setup.data.origin}), {setup.engine} engine, inline"


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
    return "reused, finished already"


def make_tracker(config: ExperimentConfig, reporter: Reporter) -> Tracker:
    """MLflow where it is wanted and installed."""
    if not config.tracking.enabled:
        return NullTracker()
    if importlib.util.find_spec("mlflow") is None:
        reporter.note("MLflow is not installed, nothing is exported (pip install 'relief-ray[server]', then relief-ray sync)")
        return NullTracker()
    return MlflowTracker(config.tracking.uri, config.tracking.experiment)
