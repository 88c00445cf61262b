"""Several cells at a time: trials of Ray Tune on a local Ray or a cluster, followed by a reporter and by MLflow.

`relief-ray grid` runs its cells so, and `relief-ray run --jobs N`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from actors.runtime.session import SessionOptions, ray_session
from actors.terminal.mlflow_export import Exports
from actors.terminal.progress import Reporter
from actors.terminal.signals import StopSignals
from relief_ray.records.cells import CellState
from relief_ray.studies.plan import Plan
from relief_ray.studies.spec import Cell
from relief_ray.support.errors import UserError
from relief_ray.support.process import num_cores


def _never() -> bool:
    """Return False."""
    return False


@dataclass(frozen=True, kw_only=True, slots=True)
class SideBySide:
    """Cells to run several at a time, and listeners.

    Attributes:
        plan: the plan that the cells belong to; its folder holds the file that stops all trials.
        entries: all cells of the plan.
        todo: the cells that will run.
        reporter: shows the progress.
        stop: signals that ask to stop.
        exports: MLflow trackers.
        jobs: most cells at a time; None: as many as there are places.
        dashboard: open Ray's dashboard with a local cluster.
        is_grid: the runs name the plan as their parent.
        other_code: go on with runs that another program began.
        out_of_time: polled; True asks all trials to stop.
    """

    plan: Plan
    entries: Sequence[CellState[Cell]]
    todo: Sequence[CellState[Cell]]
    reporter: Reporter
    stop: StopSignals
    exports: Exports
    jobs: int | None = None
    dashboard: bool = False
    is_grid: bool = True
    other_code: bool = False
    out_of_time: Callable[[], bool] = _never


# Folder of Tune's own state, of no use once its driver has ended.
SCRATCH = ".tune"


def remove_scratch(out: Path) -> None:
    """Remove Tune's files from a folder of cells; a killed driver leaves them, though its trials may end all cells."""
    shutil.rmtree(out / SCRATCH, ignore_errors=True)


def run_side_by_side(work: SideBySide) -> bool:
    """Run the cells on a local Ray, or on the cluster that was named; return whether the disk is full.

    Raises:
        UserError: the cluster cannot be joined or is too small.
    """
    stop_file = work.plan.out / ".stop"
    stop_file.unlink(missing_ok=True)
    # Tune imports MLflow, which reads this once.
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    with ray_session(_session_options(work), work.stop.lost) as url:
        if url is not None:
            work.reporter.note(f"dashboard: {url}")
        from actors.grids.progress import GridProgress
        from actors.grids.scheduler import Listener, TrialPlan, fit

        def on_tick() -> None:
            if work.stop.requested() or progress.disk_full or work.out_of_time():
                stop_file.touch()

        progress = GridProgress(
            entries=work.entries, todo=work.todo, reporter=work.reporter, exports=work.exports, on_tick=on_tick
        )
        parent = work.plan.name if work.is_grid else None
        trials = TrialPlan(
            out=work.plan.out, parent=parent, jobs=work.jobs, other_code=work.other_code, stopping=work.plan.stopping,
            rivals=work.entries,
        )  # fmt: skip
        listener = Listener(begun=progress.begun, ended=progress.ended, tick=progress.tick, note=work.reporter.note)
        fit(work.todo, trials, listener)
    return progress.disk_full


def address_of(entries: Sequence[CellState[Cell]]) -> str | None:
    """Address of the cluster, from the configuration or ``RAY_ADDRESS`` (as in a Ray job); None: a local one."""
    chosen = entries[0].cell.config.runtime.address if entries else None
    return chosen or os.environ.get("RAY_ADDRESS")


def _session_options(work: SideBySide) -> SessionOptions:
    """Options of the cluster to join, or of a local one whose node has the resources of the largest fleet."""
    address = address_of(work.todo)
    resources: dict[str, float] = {}
    if address is None:
        for needed in {repr(e.cell.config.fleet) + repr(e.cell.config.data): e for e in work.todo}.values():
            for name, amount in _devices_of(needed).items():
                resources[name] = max(resources.get(name, 0.0), amount)
    return SessionOptions(
        address=address,
        # More jobs than cores are what the user asks for: they take turns.
        num_cpus=None if work.jobs is None else max(work.jobs, num_cores()),
        resources=resources,
        dashboard=work.dashboard,
    )


def _devices_of(entry: CellState[Cell]) -> dict[str, float]:
    """Ray resources of a cell's devices; empty where all clients live in the trial's process."""
    from actors.grids.places import fleet_of, is_chosen_here

    total: dict[str, float] = {}
    runtime = entry.cell.config.runtime
    if runtime.mode != "inline" and not is_chosen_here(runtime):
        fleet, types = fleet_of(entry.cell.config)
        for client in fleet.clients:
            for name, amount in types[client.device].ray_resources.items():
                total[name] = total.get(name, 0.0) + amount
    return total


def refuse_dashboard_elsewhere(entries: Sequence[CellState[Cell]]) -> None:
    """Check that `--dashboard` is asked of a cluster that is started here.

    Raises:
        UserError: a cluster is joined, which has one of its own.
    """
    if address := address_of(entries):
        raise UserError(
            f"--dashboard: opens with a local cluster, found the cluster {address}; open that one's, usually at port "
            "8265 of its head, and leave the option out"
        )
