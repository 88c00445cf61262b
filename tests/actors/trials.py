"""A cell's trial in this process, without Tune around it."""

from actors.grids.trial import Trial, Trials
from actors.runtime.warm_pool import WorkerCache
from relief_ray.records.cells import CellState
from relief_ray.studies.spec import Cell


def trials_of(*states: CellState[Cell], pauses: tuple[int, ...] = ()) -> Trials:
    """Trials of cells of a grid called ``tiny``, with pauses after these rounds."""
    out, cells = states[0].folder.parent, {state.cell.name: state.cell for state in states}
    return Trials(
        cells=cells, out=out, parent="tiny", stop_file=out / ".stop", environment={},
        pauses=dict.fromkeys(cells, pauses),
    )  # fmt: skip


def trial_of(state: CellState[Cell], *pauses: int) -> Trial:
    """The trial of one cell."""
    return Trial(trials_of(state, pauses=pauses), state.cell.name, WorkerCache())


def run_alone(state: CellState[Cell], *pauses: int) -> str:
    """Run the cell to its next pause or its end; return the run's status."""
    return trial_of(state, *pauses).run()[0]
