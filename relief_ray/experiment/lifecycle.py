"""Creates and reopens runs; refuses to resume one whose data, device profile or program changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import get_args

from relief_ray.config.experiment import ExperimentConfig, parse
from relief_ray.config.runtime import RuntimeConfig
from relief_ray.core.stages import Engine
from relief_ray.data.source import DataMissing
from relief_ray.experiment.recording import calibration_of, run_record
from relief_ray.experiment.setup import Setup, prepare
from relief_ray.models.backbone import differing_facts
from relief_ray.records.identity import other_program
from relief_ray.records.run_folder import RUN_FILE, RunFolder, read_run
from relief_ray.records.schema import RunFacts, RunRecord
from relief_ray.support.errors import UserError, option
from relief_ray.support.process import choose_device
from relief_ray.support.text import resumed


def stored_engine(run: RunFacts) -> Engine:
    """Return the engine that a run was started with; a resume and a reproduction use it.

    Raises:
        UserError: this version has no such engine.
    """
    known: tuple[Engine, ...] = get_args(Engine)
    for engine in known:
        if engine == run.engine:
            return engine
    raise UserError(f"run {run.cell}: engine {run.engine!r} is unknown to this version; known: {', '.join(known)}")


def create(config: ExperimentConfig, path: Path, *, parent: str | None = None) -> tuple[Setup, RunFolder]:
    """Create a run in a new folder; ``parent`` names the grid that it is a cell of."""
    setup = prepare(config)
    return setup, RunFolder.create(path, run_record(setup, parent))


def reopen(path: Path, *, runtime: RuntimeConfig | None = None, other_code: bool = False) -> tuple[Setup, RunFolder]:
    """Reopen a run with the engine and the data that it was started with; it counts as resumed.

    ``runtime``: placement of its clients from now on; ``other_code``: whether another program may go on with it.

    Raises:
        UserError: data, device profile or program are not the same any more, or the configuration cannot be read by
            this version.
    """
    run = read_run(path)
    config = parse(run.config, str(path / RUN_FILE))
    if runtime is not None:
        config = config.model_copy(update={"runtime": runtime})
    why = other_program(run)
    if why is not None and not other_code:
        raise UserError(
            f"{path}: was begun by another program ({why}); a resume would mix both in one run; use the one that "
            f"began it, compute it again ({resumed(path, 'rerun_stale')}), or allow it with "
            f"{option('other_code', True)} (the record then says so)"
        )
    setup = as_begun(run, path, config)
    device = choose_device("cuda" if run.machine.device.startswith("cuda") else "cpu")
    setup = replace(setup, job=replace(setup.job, trainer=replace(setup.job.trainer, device=device)))
    folder = RunFolder.resume(path)
    mixed = [] if why is None else [f"resumed by another program: {why}"]
    # Where a driver was killed, the ledger may hold rounds that are dropped before the next driver says "running".
    status = "interrupted" if folder.run.status == "running" else folder.run.status
    folder.update(status=status, num_resumes=folder.run.num_resumes + 1, warnings=[*folder.run.warnings, *mixed])
    return setup, folder


def as_begun(run: RunRecord, path: Path, config: ExperimentConfig) -> Setup:
    """Prepare the run in ``path`` by its recorded ``config``, with its engine, on its data.

    Raises:
        UserError: data, frozen encoder or clocks are others today; of missing data the folder is named that had them.
    """
    with naming_data(run, path):
        setup = prepare(config, engine=stored_engine(run))
    _refuse_changes(setup, run, path)
    return setup


@contextmanager
def naming_data(run: RunRecord, path: Path) -> Iterator[None]:
    """Inside the block data that are missing are answered with the folder in which the run in ``path`` found them."""
    try:
        yield
    except DataMissing as error:
        had = f"; {path} was computed from {run.data_folder}" if run.data_folder else ""
        raise DataMissing(f"{error}{had}") from error


def _refuse_changes(setup: Setup, run: RunRecord, path: Path) -> None:
    """Compare data, frozen encoder and clocks of a run with those of today.

    Raises:
        UserError: one of them differs.
    """
    if setup.data.digest != run.data_digest:
        raise UserError(
            f"{path}: was computed on data {run.data_digest[:12]}, found {setup.data.digest[:12]}; "
            "resume where the same data are (RELIEF_DATA), or start a new run"
        )
    if differing_facts(run.backbone, setup.job.frozen):
        raise UserError(
            f"{path}: was computed on the frozen encoder {run.backbone}, found {dict(setup.job.frozen)}; "
            "give backbone.weights the same files, or start a new run"
        )
    if calibration_of(setup) != run.calibration:
        raise UserError(
            f"{path}: the clocks are not those it was begun with (another device profile in "
            f"{setup.config.costs.profile}, or other fitted values); resume with the old ones, or start a new run"
        )
