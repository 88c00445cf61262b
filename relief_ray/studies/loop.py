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
from relief_ray.records.facts import Alerts
from relief_ray.records.run_folder import read_rounds
from relief_ray.records.schema import RoundRecord, RunRecord
from relief_ray.records.sync.sender import Senders
from relief_ray.report.inventory import variant_names
from relief_ray.strategies import facts_of, method_name
from relief_ray.studies.cells import Cell
from relief_ray.studies.copies import copied
from relief_ray.studies.plans import STALE_FOLDER, CellFolder, Plan
from relief_ray.studies.progress import Watcher, watcher
from relief_ray.support.errors import UserError, counted
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
    cells = plan.cell_folders()
    total = sum(map(rounds_to_do, cells))
    with closing(watcher(total, quiet=quiet)) as progress, copied(plan, progress.note) as senders:
        said: set[str] = set()
        for cell, title in zip(cells, _titles_of(plan.cells), strict=True):
            _run_cell(cell, title, compute, progress, senders, other_code, said)
    for name in senders.behind:
        _LOG.warning("%s: behind; everything is in %s, and the next call sends it", name, plan.out)


def _run_cell(
    cell: CellFolder,
    title: str,
    compute: Compute,
    progress: Watcher,
    senders: Senders,
    other_code: bool,
    said: set[str],
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
    senders.wake(cell.folder)

    def on_round(record: RoundRecord) -> None:
        progress.committed(record)
        senders.wake(cell.folder)
        for alert in alerts.of(record):
            progress.warn(f"{title}: {alert}")

    try:
        run = compute(setup, cell.folder, on_round, lambda text: progress.note(f"{title}: {text}"))
    finally:
        senders.end(cell.folder)
    record = last_evaluated(read_rounds(cell.folder))
    progress.end(f"{title}: {_score(run, record)}", time.monotonic() - began_s)


def _score(run: RunRecord, record: RoundRecord | None) -> str:
    f1 = None if record is None or record.metrics is None else record.metrics.headline
    return run.status if f1 is None else f"{run.status}, F1 {100 * f1:.1f} %"


def rounds_to_do(cell: CellFolder) -> int:
    """Number of rounds that are missing, the bootstrap included."""
    # Not read from the ledger here: where its last line is damaged, a resume cuts it off and goes on.
    return max(0, cell.num_planned - cell.num_rounds)


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


def open_cell(cell: CellFolder, other_code: bool) -> Setup:
    """Create or reopen the run; `runtime` may have changed since it was started, what it computes has not.

    What was mended in its folder is a warning of the setup: the driver that opens the folder next finds it whole.
    """
    config = cell.cell.config
    if cell.state.run is not None:
        setup, folder = reopen(cell.folder, runtime=config.runtime, other_code=other_code)
    else:
        setup, folder = create(config, cell.folder)
    folder.close()
    return replace(setup, warnings=(*setup.warnings, *(f"repaired: {line}" for line in folder.mended)))


def last_evaluated(rounds: Sequence[RoundRecord]) -> RoundRecord | None:
    """The last round with test metrics."""
    return next((record for record in reversed(rounds) if record.metrics is not None), None)


def refuse_stale(plan: Plan, again: str, as_it_is: str, elsewhere: str = "") -> None:
    """Check that no run of the plan was computed or begun by other code or on other frozen weights.

    ``again``, ``as_it_is``, ``elsewhere``: what the caller's user types to compute it again, to take it as it is, and
    to name another folder, where that is possible.

    Raises:
        UserError: some were; the first is named, with what changed and the ways on.
    """
    stale = [cell for cell in plan.cell_folders() if cell.status == "stale"]
    if stale:
        first, more = stale[0], len(stale) - 1
        also = f" (and {counted(more, 'run')} more)" if more else ""
        raise UserError(
            f"{first.folder}{also}: holds a run of other code or weights: {first.why}; expected those of today "
            f"(`here`). Compute it again with {again} (the old run is kept in a folder `{STALE_FOLDER}`), "
            f"{f'choose another folder ({elsewhere}), ' if elsewhere else ''}or take it as it is with {as_it_is}"
        )


def check_reusable(cell: CellFolder) -> str:
    """Check that a finished run was computed on today's data; return the line that says it is reused.

    Raises:
        UserError: the data are others.
    """
    assert cell.state.run is not None
    config, recorded = cell.cell.config.data, cell.state.run.data_digest
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
