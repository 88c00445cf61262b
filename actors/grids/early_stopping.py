"""Early stopping of a search's weak tries: which rounds they are judged after, and how a stopped one is recorded.

The decisions are Ray Tune's ASHA (``actors.grids.asha``); what it decides on is read from the cells' folders.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from relief_ray.config.experiment import ExperimentConfig
from relief_ray.records.cells import EarlyStopping
from relief_ray.records.run_folder import RUN_FILE, RunFolder, read_rounds
from relief_ray.studies.spec import Cell
from relief_ray.support.errors import UserError, several
from tune_configs.search import Place, place_of

_REDUCTION_FACTOR = 3


def rungs(stopping: EarlyStopping, config: ExperimentConfig) -> tuple[int, ...]:
    """The rounds after which a try may be stopped, ascending.

    Rung k stands at ``grace_rounds * reduction_factor ** k`` rounds. A try is judged after the first tested round from
    there on; the last round is none, since nothing is left to stop.
    """
    judged, milestone = [], stopping.grace_rounds
    while (tested := _tested_from(milestone, config.evaluation.every)) < config.rounds:
        judged.append(tested)
        milestone *= stopping.reduction_factor
    return tuple(judged)


def _tested_from(round_: int, every: int) -> int:
    """The first round from this one on that is tested because of ``evaluation.every``."""
    return -(-round_ // every) * every


def asha(cells: Sequence[Cell], grace_rounds: int | None, reduction_factor: int | None) -> EarlyStopping:
    """The rule for these tries, checked; by default the first rung stands at a ninth of the rounds, or later.

    ``grace_rounds`` of None: the first tested round from ``rounds / reduction_factor ** 2`` on that no method's warm-up
    exceeds.

    Raises:
        UserError: the cells are no tries of a search, or nothing could be stopped.
    """
    factor = reduction_factor or _REDUCTION_FACTOR
    configs = [cell.config for cell in cells]
    _refuse_unfit(configs)
    if grace_rounds is None:
        wanted = [max(-(-c.rounds // factor**2), _needed(cell)) for cell, c in zip(cells, configs, strict=True)]
        grace_rounds = max(_tested_from(r, c.evaluation.every) for r, c in zip(wanted, configs, strict=True))
    stopping = EarlyStopping(scheduler="asha", grace_rounds=grace_rounds, reduction_factor=factor)
    for cell in cells:
        _refuse_idle(stopping, cell)
    return stopping


def _needed(cell: Cell) -> int:
    """Rounds before which the method's last phase has not begun; 1 where it has a single one."""
    return cell.config.strategy.rounds_needed(cell.config.participation) or 1


def _refuse_unfit(configs: Iterable[ExperimentConfig]) -> None:
    """Check that the cells are tries of one seed, judged on validation data.

    Raises:
        UserError: they are not.
    """
    seeds = set()
    for config in configs:
        seeds.add(config.seed)
        if config.choice is None or config.choice.kind != "try":
            raise UserError(
                f"--scheduler asha: {config.name} is no try of a search, and only tries may be stopped early; expected "
                "a search such as search_lr, or no --scheduler"
            )
        if config.evaluation.parts != ("validation",):
            raise UserError(
                f"--scheduler asha: evaluation.parts = {list(config.evaluation.parts)}; tries are judged by validation "
                "F1 alone; expected --set evaluation.parts=[validation]"
            )
    if len(seeds) > 1:
        raise UserError(
            f"--scheduler asha: the search has {len(seeds)} seeds ({', '.join(map(str, sorted(seeds)))}), and a try "
            "that is stopped with one of them has no mean over all; expected one: --set 'seeds=[1000]'"
        )


def _refuse_idle(stopping: EarlyStopping, cell: Cell) -> None:
    """Check that a try can be stopped before its last round, and not before its method's last phase.

    Raises:
        UserError: the numbers leave no such round.
    """
    rounds, every, grace = cell.config.rounds, cell.config.evaluation.every, stopping.grace_rounds
    if every > grace:
        raise UserError(
            f"--scheduler asha: evaluation.every = {every} tests more seldom than the first rung at round {grace}; "
            f"expected at most {grace}: --set evaluation.every={grace}, or --grace-rounds {every}"
        )
    if not rungs(stopping, cell.config):
        raise UserError(
            f"--scheduler asha: rounds = {rounds} with evaluation.every = {every} leaves no tested round between the "
            f"first rung ({grace}) and the last round, so nothing could be stopped; expected fewer --grace-rounds, "
            "more --set rounds=.., or no --scheduler"
        )
    if grace < (needed := _needed(cell)):
        raise UserError(
            f"--scheduler asha: --grace-rounds {grace} ends before the last phase of {cell.label} ({cell.setting}), "
            f"and its tries would be judged without it; expected --grace-rounds {needed} or more"
        )


def sentence(stopping: EarlyStopping, cells: Iterable[Cell]) -> str:
    """``ASHA judges tries after rounds 25 and 75 of 200 (reduction factor 3, evaluation.every = 5)``."""
    configs = [cell.config for cell in cells]
    judged = several("round", (r for config in configs for r in rungs(stopping, config)))
    rounds = " or ".join(str(number) for number in sorted({config.rounds for config in configs}))
    every = " or ".join(str(number) for number in sorted({config.evaluation.every for config in configs}))
    factor = stopping.reduction_factor
    return f"ASHA judges tries after {judged} of {rounds} (reduction factor {factor}, evaluation.every = {every})"


def rivals(cell: Cell) -> Place:
    """The place that a try competes in: the method on its dataset, fold and backbone, as `grid freeze` chooses."""
    return place_of(cell.setting.partition("-")[0], cell.label, cell.config)


def scores_at(folder: Path, judged: Sequence[int]) -> dict[int, float]:
    """Validation F1 after those of the ``judged`` rounds that the ledger has; of personal models where there are."""
    if not (folder / RUN_FILE).exists():
        return {}
    metrics = {record.round: record.validation for record in read_rounds(folder).where(lambda n: n in judged)}
    return {r: m.headline for r, m in metrics.items() if m is not None and m.headline is not None}


def mark_stopped(folder: Path, round_: int) -> None:
    """Record in ``run.json`` that the run was stopped after this round, which no resume takes back."""
    with RunFolder.resume(folder) as run:
        run.update(status="stopped", note=f"stopped early by ASHA at round {round_}")
