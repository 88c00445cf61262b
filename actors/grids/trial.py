"""One cell as a Ray Tune trial. Its process and its hosts stay for the next cell that asks for the same places."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ray import tune

from actors.grids.grid_folder import forget_error, keep_error, look
from actors.launch import Watch, run_experiment
from actors.runtime.prometheus import Gauges
from actors.runtime.warm_pool import Crew
from relief_ray.experiment.lifecycle import create, reopen
from relief_ray.records.run_folder import RUN_FILE
from relief_ray.records.schema import RoundRecord
from tune_configs.cells import GridCell

Outcome = Literal["finished", "interrupted", "failed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """What a trial needs of the grid: the cell, its folder (absolute), the grid's name and where a stop is asked for.

    ``environment``: the driver's variables that decide where data lie.
    """

    cell: GridCell
    folder: Path
    grid: str
    stop_file: Path
    environment: Mapping[str, str]


class CellTrial(tune.Trainable):
    """Carries out one cell per trial; Tune resets it for the next one instead of starting a process anew."""

    def setup(self, config: dict[str, str], orders: Mapping[str, Order] | None = None) -> None:
        """The process has just started."""
        self._orders = orders or {}
        self._crew = Crew()
        self._name = config["cell"]

    def __repr__(self) -> str:
        """What Ray's dashboard calls this process; it keeps the name of its first cell."""
        return f"trials from {self._name} on"

    def reset_config(self, new_config: dict[str, str]) -> bool:
        """Another cell, the same process, the same hosts."""
        self._name = new_config["cell"]
        return True

    def step(self) -> dict[str, object]:
        """The whole cell; what it found lies in its folder."""
        return {"done": True, "outcome": carry_out(self._orders[self._name], self._crew)}

    def cleanup(self) -> None:
        """Ends the hosts."""
        self._crew.close()


def carry_out(order: Order, crew: Crew) -> Outcome:
    """Runs a cell from wherever its folder is; an error is kept there and stops nobody else."""
    if order.stop_file.exists():
        return "interrupted"
    os.environ.update(order.environment)
    try:
        forget_error(order.folder)
        return _run(order, crew)
    except Exception as error:
        keep_error(order.folder, error)
        return "failed"


def _run(order: Order, crew: Crew) -> Outcome:
    config = order.cell.config
    entry = look(order.cell, order.folder)
    if entry.state == "done":
        return "finished"
    if (order.folder / RUN_FILE).exists():
        setup, folder = reopen(order.folder, runtime=config.runtime)
    else:
        setup, folder = create(config, order.folder, parent=order.grid)
    folder.close()
    gauges = Gauges(cell=order.folder.name, setup=setup)

    def on_round(record: RoundRecord) -> None:
        gauges.show(record)

    watch = Watch(on_round=on_round, should_stop=order.stop_file.exists, separate=False)
    run = run_experiment(setup, order.folder, watch, crew)
    return "finished" if run.status == "finished" else "interrupted"
