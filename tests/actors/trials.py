"""A cell's trial in this process, without Tune around it."""

from actors.grids.trial import Trial
from actors.runtime.warm_pool import WorkerCache
from relief_ray.records.cells import CellState
from relief_ray.studies.spec import Cell


def trial_of(state: CellState[Cell], *pauses: int) -> Trial:
    """The trial of a cell of a grid called ``tiny``, with pauses after these rounds."""
    stop_file = state.folder.parent / ".stop"
    return Trial(
        cell=state.cell, folder=state.folder, parent="tiny", stop_file=stop_file, environment={}, pauses=pauses
    )  # fmt: skip


def run_alone(state: CellState[Cell], *pauses: int) -> str:
    """Run the cell to its next pause or its end; return the run's status."""
    return str(trial_of(state, *pauses).step(WorkerCache())["status"])
