"""Computation of a study: run after run in this process, each in its own folder, resumable at any point."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from relief_ray.data import federate, num_clients, open_dataset
from relief_ray.data.partition import available
from relief_ray.experiment.experiment import OnRound, run_inline
from relief_ray.experiment.lifecycle import create, reopen
from relief_ray.experiment.setup import Setup
from relief_ray.records.cells import CellState
from relief_ray.records.left_out import Alerts
from relief_ray.records.run_folder import read_rounds
from relief_ray.records.schema import RoundRecord, RunRecord
from relief_ray.records.tracking import sync
from relief_ray.report.inventory import variant_names
from relief_ray.strategies import facts_of, method_name
from relief_ray.studies.mirrored import mirrored
from relief_ray.studies.plan import Plan
from relief_ray.studies.progress import Watcher, watcher
from relief_ray.studies.spec import Cell
from relief_ray.support.errors import UserError
from relief_ray.support.process import threads

_LOG = logging.getLogger(__name__)

# Computes the missing rounds of a run in a folder.
Compute = Callable[[Setup, Path, OnRound, Callable[[str], None]], RunRecord]


def here(setup: Setup, path: Path, on_round: OnRound, on_note: Callable[[str], None]) -> RunRecord:
    """Compute the missing rounds of a run in this process."""
    with threads(setup.job.num_threads):
        return run_inline(setup, path, on_round=on_round, on_note=on_note)


def run_plan(plan: Plan, compute: Compute, *, quiet: bool, other_code: bool = False) -> None:
    """Compute whatever of the plan is not finished.

    Raises:
        UserError: data, program or settings of a begun run are others than today's.
        KeyboardInterrupt: after the last finished round was kept; the same call goes on from there.
    """
    cells = plan.look()
    total = sum(map(rounds_to_do, cells))
    with closing(watcher(total, quiet=quiet)) as progress, mirrored(plan, progress.note) as mirror:
        said: set[str] = set()
        for cell, title in zip(cells, _titles_of(plan.cells), strict=True):
            _run_cell(cell, title, compute, progress, other_code, said)
    if mirror.is_behind:
        _LOG.warning("the mirror %s is behind; everything is in %s, and the next call sends it", mirror.uri, plan.out)


def _run_cell(
    cell: CellState[Cell], title: str, compute: Compute, progress: Watcher, other_code: bool, said: set[str]
) -> None:
    """Compute what a run lacks; ``said``: warnings about data, each of which is shown once for the whole study."""
    if cell.is_finished:
        progress.end(f"{title}: {check_reusable(cell)}")
        return
    began_s = time.monotonic()
    progress.begin(title, rounds_to_do(cell))
    setup = open_cell(cell, other_code)
    for warning in setup.data_notes:
        if warning not in said:
            said.add(warning)
            progress.warn(warning)
    for warning in setup.warnings:
        progress.note(f"{title}: NOTE: {warning}")
    alerts = Alerts()

    def on_round(record: RoundRecord) -> None:
        progress.committed(record)
        for alert in alerts.of(record):
            progress.warn(f"{title}: {alert}")

    run = compute(setup, cell.folder, on_round, lambda text: progress.note(f"{title}: {text}"))
    record = last_evaluated(read_rounds(cell.folder))
    progress.end(f"{title}: {_score(run, record)}", time.monotonic() - began_s)
    if cell.cell.config.tracking.enabled:
        _copy_to_mlflow(cell, title, progress)


def _copy_to_mlflow(cell: CellState[Cell], title: str, progress: Watcher) -> None:
    """Copy a run's records to its MLflow store; a store that cannot be reached costs no result."""
    try:
        sync(cell.folder)
    except UserError as error:
        progress.note(f"{title}: NOTE: {error}")


def _score(run: RunRecord, record: RoundRecord | None) -> str:
    f1 = None if record is None or record.metrics is None else record.metrics.headline
    return run.status if f1 is None else f"{run.status}, F1 {100 * f1:.1f} %"


def rounds_to_do(cell: CellState[Cell]) -> int:
    """Number of rounds that are missing, the bootstrap included."""
    # Not read from the ledger here: where its last line is damaged, a resume cuts it off and goes on.
    return max(0, cell.cell.num_planned - cell.num_rounds)


def _titles_of(cells: Sequence[Cell]) -> list[str]:
    """A title for each cell: ``relief, fold 0, seed 0``, ``relief (gamma=0.5), fold 0, replicate 2``."""
    methods = [(method_name(c.config.strategy, c.label), c.config.model_dump(mode="json")) for c in cells]
    facts = [facts_of(c.config.strategy, c.label) for c in cells]
    return [title_of(cell, name) for cell, name in zip(cells, variant_names(methods, facts), strict=True)]


def title_of(cell: Cell, name: str = "") -> str:
    """``relief, fold 0, seed 0``, or ``relief, fold 0, replicate 2``; ``name``: that of the method's variant."""
    data = cell.config.data
    fold = [f"fold {data.fold}"] if data.split == "held_out_subject" else []
    number = cell.config.replicate
    draw = f"seed {cell.config.seed}" if number is None else f"replicate {number}"
    return ", ".join([name or method_name(cell.config.strategy, cell.label), *fold, draw])


def open_cell(cell: CellState[Cell], other_code: bool) -> Setup:
    """Create or reopen the run; `runtime` may have changed since it was started, what it computes has not.

    What was mended in its folder is a warning of the setup: the driver that opens the folder next finds it whole.
    """
    config = cell.cell.config
    if cell.run is not None:
        setup, folder = reopen(cell.folder, runtime=config.runtime, other_code=other_code)
    else:
        setup, folder = create(config, cell.folder)
    folder.close()
    return replace(setup, warnings=(*setup.warnings, *(f"repaired: {line}" for line in folder.mended)))


def last_evaluated(rounds: Sequence[RoundRecord]) -> RoundRecord | None:
    """The last round with test metrics."""
    return next((record for record in reversed(rounds) if record.metrics is not None), None)


def check_reusable(cell: CellState[Cell]) -> str:
    """Check that a finished run was computed on today's data; return the line that says it is reused.

    Raises:
        UserError: the data are others.
    """
    assert cell.run is not None
    config, recorded = cell.cell.config.data, cell.run.data_digest
    dataset = open_dataset(config)
    number = num_clients(dataset, config)
    digest = federate(dataset, config, available(config, number)).digest
    if digest != recorded:
        raise UserError(
            f"{cell.folder}: was computed on data {recorded[:12]}, found {digest[:12]}; "
            "choose another folder (--out DIR), or point RELIEF_DATA to the data it was computed on"
        )
    stale = f"; stale: {cell.why}" if cell.status == "stale" else ""
    return f"reused, finished already{stale}"
