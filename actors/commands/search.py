"""`relief-ray grid search_lr --search optuna`: tries that a sampler suggests in batches, on validation data alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from actors.grids.early_stopping import rungs, scores_at, sentence
from actors.grids.freeze import score
from actors.grids.search import Sampler, SearchPlace, require_optuna, search_places
from relief_ray.records.cells import CellState, EarlyStopping, SuggestedSearch
from relief_ray.studies.plan import Plan
from relief_ray.studies.spec import Cell, Setting, Spec, choose, read_settings
from relief_ray.support.errors import UserError
from tune_configs.registry import cells_of, load_grid, with_choices

# Tries of every place between two looks at the scores: more of them fill more cores, fewer learn more of each.
_BATCH = 3


@dataclass(kw_only=True, slots=True)
class SuggestedTries:
    """A search in progress: its samplers and the cells of all tries so far.

    Attributes:
        plan: the plan without cells.
        search: what a resume needs.
        settings: the user's settings that choose no levels.
        samplers: one for each place.
    """

    plan: Plan
    search: SuggestedSearch
    settings: Sequence[Setting]
    samplers: tuple[Sampler, ...]

    @property
    def num_tries(self) -> int:
        """Tries of each place so far."""
        return max(len(sampler.tries) for sampler in self.samplers)

    @property
    def is_complete(self) -> bool:
        """True where every place has all of its tries."""
        return all(len(sampler.tries) >= self.search.tries for sampler in self.samplers)

    def ask(self) -> Plan:
        """Let every sampler suggest its next tries; return the plan with all cells so far."""
        for sampler in self.samplers:
            sampler.ask(min(_BATCH, self.search.tries - len(sampler.tries)))
        cells = {cell.name: cell for sampler in self.samplers for cell in self._cells_of(sampler)}
        return replace(self.plan, cells=tuple(cells.values()), search=self.search)

    def tell(self, plan: Plan) -> bool:
        """Tell the samplers the scores; False where cells are not done yet: a resume goes on there.

        Raises:
            UserError: a cell opened the test part, or was not evaluated on validation data.
        """
        entries = {entry.cell.name: entry for entry in plan.look()}
        for sampler in self.samplers:
            cells = [entries[cell.name] for cell in self._cells_of(sampler)]
            if any(entry.is_open for entry in cells):
                return False
            sampler.tell(_scores(sampler, cells), _pruned(sampler, cells, self.plan.stopping))
        return True

    def listed(self) -> tuple[Cell, ...]:
        """The cells of the tries that the grid itself lists, which the suggested ones lie between."""
        grid = load_grid(self.search.target)
        return cells_of(grid, self.search.settings)

    def with_stopping(self, stopping: EarlyStopping) -> SuggestedTries:
        """The same, with weak tries stopped early."""
        return replace(self, plan=stopped_early(self.plan, stopping, self.listed()))

    def _cells_of(self, sampler: Sampler) -> tuple[Cell, ...]:
        return with_choices(sampler.place.with_tries(sampler.tries), self.settings)


def stopped_early(plan: Plan, stopping: EarlyStopping, cells: Sequence[Cell] = ()) -> Plan:
    """The plan with its weak tries stopped early, which its title says; ``cells``: where the plan has none yet."""
    title = f"{plan.title}; {sentence(stopping, cells or plan.cells)}"
    return replace(plan, title=title, stopping=stopping)


def _try_of(sampler: Sampler, entry: CellState[Cell]) -> str:
    """Name of the try that a cell belongs to."""
    return next(t.name for t in sampler.tries if f"{entry.cell.setting}-".endswith(f"-{t.name}-"))


def _pruned(
    sampler: Sampler, cells: Sequence[CellState[Cell]], stopping: EarlyStopping | None
) -> dict[str, dict[int, float]]:
    """Validation F1 after the rounds at which a try was judged, of those that were stopped early."""
    if stopping is None:
        return {}
    stopped = [entry for entry in cells if entry.status == "stopped"]
    return {_try_of(sampler, e): scores_at(e.folder, rungs(stopping, e.cell.config)) for e in stopped}


def _scores(sampler: Sampler, cells: Sequence[CellState[Cell]]) -> dict[str, float]:
    """Mean validation F1 of each try over its seeds; none of a try with a failed or stopped cell."""
    by_try: dict[str, list[float]] = {}
    for entry in cells:
        by_try.setdefault(_try_of(sampler, entry), []).append(score(entry) if entry.status == "done" else math.nan)
    means = {name: sum(values) / len(values) for name, values in by_try.items()}
    return {name: mean for name, mean in means.items() if not math.isnan(mean)}


def suggested_tries(target: str, settings: Sequence[str], out: Path, tries: int | None, seed: int) -> SuggestedTries:
    """The search of a grid whose tries Optuna suggests; by default as many as the grid lists for each method.

    Raises:
        UserError: Optuna is missing, the grid is no search, or its cells would be wrong.
    """
    require_optuna()
    grid, rest = choose(load_grid(target), read_settings(settings))
    places = tuple(search_places(grid))
    if not places:
        raise UserError(f"grid {grid.name}: no place is left to search; expected at least one level of every axis")
    search = SuggestedSearch(
        sampler="optuna", tries=tries or max(map(len, grid.own.values())), seed=seed,
        target=str(Path(target).absolute()) if target.endswith(".py") else target, settings=tuple(settings),
        bounds=_bounds(places),
    )  # fmt: skip
    plan = Plan(kind="grid", out=out, name=grid.name, title=_title(grid, search), cells=())
    samplers = tuple(Sampler(place=place, seed=seed) for place in places)
    return SuggestedTries(plan=plan, search=search, settings=rest, samplers=samplers)


def again(plan: Plan, settings: Sequence[str]) -> SuggestedTries:
    """The search of a plan, asked again from its beginning: the same scores give the same tries."""
    assert plan.search is not None
    known = plan.search
    search = suggested_tries(known.target, [*known.settings, *settings], plan.out, known.tries, known.seed)
    return search if plan.stopping is None else search.with_stopping(plan.stopping)


def _title(grid: Spec, search: SuggestedSearch) -> str:
    return f"{search.tries} tries of every method, suggested by Optuna (seed {search.seed}), validation data only"


def _bounds(places: Sequence[SearchPlace]) -> dict[str, dict[str, tuple[float, float]]]:
    return {place.method: {d.key: (d.low, d.high) for d in place.space if d.key and d.high > d.low} for place in places}
