"""Ray Tune's ASHA for a search: one scheduler for each method, dataset, fold and backbone, fed from cells' folders.

ASHA (asynchronous successive halving, Li et al., MLSys 2020) stops a try at a rung where its score is below the best
``1 / reduction_factor`` of those that came there before it. A search compares the tries of one place only: otherwise
weak methods would be stopped, not weak values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler

from actors.grids.early_stopping import mark_stopped, rivals, rungs, scores_at
from actors.grids.trial import F1, ROUND
from relief_ray.records.cells import CellState, EarlyStopping
from relief_ray.studies.spec import Cell
from tune_configs.search import Place

if TYPE_CHECKING:
    from ray.tune.experiment import Trial


@dataclass(frozen=True, kw_only=True, slots=True)
class _EarlierTrial:
    """A cell that ended in an earlier session, as ASHA knows trials."""

    trial_id: str


class SearchScheduler(FIFOScheduler):
    """Starts trials in order and lets the ASHA of each place decide which go on.

    Tune keeps no state of it: the rungs are filled from the ledgers of all cells, those of earlier sessions and of
    other batches included.
    """

    def __init__(self, entries: Sequence[CellState[Cell]], stopping: EarlyStopping) -> None:
        """Feed the scores of cells that have ended; ``entries``: all cells of the search."""
        super().__init__()
        self._stopping = stopping
        self._entries = {entry.cell.name: entry for entry in entries}
        # Untyped, since earlier cells are no trials of Tune: ASHA reads nothing but their id.
        self._by_place: dict[Place, Any] = {}
        for entry in entries:
            if entry.status in ("done", "stopped"):
                self._add(entry, _EarlierTrial(trial_id=entry.cell.name))

    def _add(self, entry: CellState[Cell], trial: Trial | _EarlierTrial) -> None:
        """Make a trial known to its place, with the scores that its ledger has; what was decided then stands."""
        config = entry.cell.config
        known: Any = self._by_place.get(rivals(entry.cell))
        if known is None:
            known = self._by_place[rivals(entry.cell)] = ASHAScheduler(
                time_attr=ROUND, metric=F1, mode="max", max_t=config.rounds,
                grace_period=self._stopping.grace_rounds, reduction_factor=self._stopping.reduction_factor,
            )  # fmt: skip
        known.on_trial_add(None, trial)
        for round_, f1 in scores_at(entry.folder, rungs(self._stopping, config)).items():
            known.on_trial_result(None, trial, {ROUND: round_, F1: f1})

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Take a new trial in."""
        self._add(self._entries[trial.config["cell"]], trial)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Ask the place's ASHA; a trial that it stops is marked in its folder, which no process holds between parts."""
        entry = self._entries[trial.config["cell"]]
        decision = str(self._by_place[rivals(entry.cell)].on_trial_result(tune_controller, trial, result))
        if decision == TrialScheduler.STOP:
            mark_stopped(entry.folder, int(result[ROUND]))
        return decision
