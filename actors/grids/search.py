"""Searches: the space that tries span, Optuna as their sampler, which weak ones stop early, and what is frozen.

Optuna is asked for tries in small batches and told their validation F1. Suggestions depend on the seed and on the
scores of earlier batches alone, not on the order in which cells end. Asked again with the same scores it suggests the
same tries: a search that was stopped goes on from its folders. Early stopping is Ray Tune's ASHA
(``actors.grids.scheduler``), which decides on what the cells' folders hold; its rules are here. The choice of a search
is the best try of every method by validation F1, frozen in a file that other grids read.
"""

from __future__ import annotations

import importlib.util
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, TypeVar, cast

from relief_ray.config.experiment import Choice, ExperimentConfig, assign, read_settings
from relief_ray.records.cells import EarlyStopping, SuggestedSearch
from relief_ray.records.identity import addresses_in, why_closed, why_foreign
from relief_ray.records.run_folder import RUN_FILE, RunFolder, read_rounds
from relief_ray.records.schema import config_value
from relief_ray.studies.plan import Plan, State, row_of
from relief_ray.studies.spec import Cell, Level, Spec, Values, as_typed, choose, dataset_levels
from relief_ray.support.errors import Setting, UserError, listed, several, value_text
from relief_ray.support.files import page, write_atomic
from relief_ray.support.text import install, typed
from tune_configs.registry import cells_of, load_grid
from tune_configs.search import Frozen, Place, Tuned, place_of

if TYPE_CHECKING:
    import optuna

T = TypeVar("T")
_RANDOM_FIRST = 5
# How often it is asked for a try before one that it suggests again is taken for all there is.
_MOST_ASKS = 20


# From this ratio of the largest to the smallest value on, a number is searched by its logarithm.
_LOG_FROM = 4.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Dimension:
    """One direction of the space: a number between two bounds, or one of several choices.

    Attributes:
        name: its part in a cell's name.
        key: dotted key of the number; empty for choices.
        low: smallest value.
        high: largest value.
        choices: settings to choose among; empty for a number.
        values: Optuna's distribution of the number, or of the place among the choices.
    """

    name: str
    key: str = ""
    low: float = 0.0
    high: float = 0.0
    choices: tuple[Values, ...] = ()
    values: optuna.distributions.BaseDistribution


def space_of(levels: Sequence[Level]) -> tuple[Dimension, ...]:
    """The space between the fixed tries of a method.

    Keys that vary independently of each other are a direction each: a number between the smallest and largest value
    tried, or one of the values where one is no number. Keys that vary together are one choice.
    """
    keys = list(dict.fromkeys(key for level in levels for key in level.settings))
    values = {key: _distinct([level.settings.get(key) for level in levels]) for key in keys}
    apart = len(levels) == prod(len(v) for v in values.values())
    units = [(key,) for key in keys] if apart else [(keys[0],), tuple(keys[1:])]
    return tuple(_dimension(unit, values, levels) for unit in units if unit)


def _distinct(values: Sequence[T]) -> list[T]:
    return [value for i, value in enumerate(values) if value not in values[:i]]


def _dimension(unit: tuple[str, ...], values: Mapping[str, list[object]], levels: Sequence[Level]) -> Dimension:
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

    name, tried = unit[0].rpartition(".")[2], values[unit[0]]
    numbers = [v for v in tried if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(unit) == 1 and len(numbers) == len(tried):
        low, high = min(numbers), max(numbers)
        log = low > 0 and high / low >= _LOG_FROM
        drawn: BaseDistribution = FloatDistribution(low, high, log=log)
        if all(isinstance(v, int) for v in numbers):
            drawn = IntDistribution(int(low), int(high), log=log)
        return Dimension(name=name, key=unit[0], low=low, high=high, values=drawn)
    tries = [{key: level.settings[key] for key in unit if key in level.settings} for level in levels]
    choices = tuple(_distinct(tries))
    return Dimension(name=name, choices=choices, values=CategoricalDistribution(range(len(choices))))


@dataclass(kw_only=True, slots=True)
class Sampler:
    """Optuna's tree-structured Parzen estimator (Bergstra et al., NeurIPS 2011) at one place.

    A place is one method on one dataset, fold and combination of axes, and is searched for itself.

    Attributes:
        name: the place in words, also a part of the sampler's seed: each place has a stream of its own.
        seed: of the search.
        method: name or import path.
        grid: the grid with this place alone, without tries.
        space: what is searched.
        tries: tries that were suggested, in order.
    """

    name: str
    seed: int
    method: str
    grid: Spec
    space: tuple[Dimension, ...]
    tries: list[Level] = field(default_factory=list)
    _study: optuna.Study = field(init=False)
    _trials: dict[str, list[optuna.Trial]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Open a study in memory."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        seed = zlib.crc32(f"{self.seed} {self.name}".encode())
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=_RANDOM_FIRST)
        self._study = optuna.create_study(direction="maximize", sampler=sampler)

    def ask(self, number: int) -> None:
        """Suggest so many more tries."""
        wanted, space = len(self.tries) + number, {d.name: d.values for d in self.space}
        for _ in range(_MOST_ASKS * number):
            if len(self.tries) == wanted:
                return
            trial = self._study.ask(space)
            settings: dict[str, object] = {}
            parts = []
            for dimension in self.space:
                name, chosen = _suggested(trial.params[dimension.name], dimension)
                settings |= chosen
                parts.append(name)
            level = Level(name="-".join(parts), settings=settings)
            self._trials.setdefault(level.name, []).append(trial)
            if level.name not in {known.name for known in self.tries}:
                self.tries.append(level)

    def tell(self, scores: Mapping[str, float], pruned: Mapping[str, Mapping[int, float]]) -> None:
        """Give Optuna the scores of open tries, by name; a try without one counts as failed.

        ``pruned``: of tries that were stopped early, their scores by round; Optuna ranks them by the last.
        """
        from optuna.trial import TrialState

        for name, trials in self._trials.items():
            for trial in trials:
                for round_, f1 in pruned.get(name, {}).items():
                    trial.report(f1, round_)
                unscored = TrialState.PRUNED if name in pruned else TrialState.FAIL
                self._study.tell(trial, scores.get(name), None if name in scores else unscored)
        self._trials = {}

    def cells(self, tries: Sequence[Level], settings: Sequence[Setting]) -> tuple[Cell, ...]:
        """The place's cells with these tries."""
        return cells_of(replace(self.grid, own={self.method: tuple(tries)}), settings)


def samplers_of(grid: Spec, seed: int) -> Iterator[Sampler]:
    """A sampler for each place of a search.

    Raises:
        UserError: the grid is none, or a method has no tries.
    """
    if not grid.is_search:
        raise UserError(f"grid {grid.name}: is no search; expected one whose methods have tries, such as search_lr")
    for level in dataset_levels(grid).values():
        folds: list[int | None] = [f for f in level.folds if grid.folds is None or f in grid.folds]
        for fold, chosen in product(folds or [None], product(*(axis.levels for axis in grid.axes))):
            axes = tuple(replace(axis, levels=(one,)) for axis, one in zip(grid.axes, chosen, strict=True))
            alone = replace(grid, datasets=(level,), axes=axes, own={}, folds=None if fold is None else (fold,))
            for method in grid.methods:
                if not grid.own.get(method):
                    raise UserError(
                        f"grid {grid.name}: {method} has no tries; expected some, or leave it out of methods"
                    )
                parts = [method, level.name, *([] if fold is None else [f"fold {fold}"]), *(c.name for c in chosen)]
                yield Sampler(
                    name=", ".join(parts),
                    seed=seed,
                    method=method,
                    grid=replace(alone, methods=(method,)),
                    space=space_of(grid.own[method]),
                )


def _suggested(value: float, dimension: Dimension) -> tuple[str, Values]:
    """Name and settings of a suggestion; numbers have four digits, so that the name has them all."""
    if dimension.choices:
        chosen = dimension.choices[int(value)]
        single = next(iter(chosen.values())) if len(chosen) == 1 else None
        return f"{dimension.name}{single if isinstance(single, int | float) else value}", chosen
    text = str(value)
    if isinstance(value, float):
        value = float(f"{value:.4g}")
        text = f"{value:g}"
    return dimension.name + text, {dimension.key: value}


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
    _refuse_unfit(cell.config for cell in cells)
    if grace_rounds is None:
        grace_rounds = max(
            _tested_from(max(-(-cell.config.rounds // factor**2), _needed(cell)), cell.config.evaluation.every)
            for cell in cells
        )
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


def _asha_text(stopping: EarlyStopping, cells: Iterable[Cell]) -> str:
    """``ASHA judges tries after rounds 25 and 75 of 200 (reduction factor 3, evaluation.every = 5)``."""
    configs = [cell.config for cell in cells]
    judged = several("round", (r for config in configs for r in rungs(stopping, config)))
    rounds = " or ".join(map(str, sorted({config.rounds for config in configs})))
    every = " or ".join(map(str, sorted({config.evaluation.every for config in configs})))
    factor = stopping.reduction_factor
    return f"ASHA judges tries after {judged} of {rounds} (reduction factor {factor}, evaluation.every = {every})"


def rivals(cell: Cell) -> Place:
    """The place that a try competes in: the method on its dataset, fold and backbone, as `grid freeze` chooses."""
    choice = cell.config.choice
    assert choice is not None, "only tries compete"
    return place_of(choice.place, cell.label, cell.config)


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


_SCORE = "last validation F1, mean over seeds, each fold for itself"
# The dotted keys that a try sets, each with its value as JSON.
Try = tuple[tuple[str, str], ...]
_EDGE = 0.05


@dataclass(kw_only=True, slots=True)
class Search:
    """One method's tries at one place, in the order in which the grid lists them, with the scores that there are.

    Tries may set different keys: one of SGD sets a momentum, one of Adam does not. A try that was stopped early has no
    score and cannot win. ``bounds``: of numbers that a sampler suggests.
    """

    tries: dict[Try, list[float]] = field(default_factory=dict)
    num_open: int = 0
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def freeze(plan: Plan, path: Path) -> list[str]:
    """Write the choices of methods whose tries have all ended; return a line per dataset, fold, backbone and method.

    Raises:
        UserError: no search, no method's search is complete, or the file cannot be written.
    """
    choices, lines = [], []
    for place, search in _collect(plan).items():
        if search.num_open:
            lines.append(f"{place}: left out, {search.num_open} of its cells are not done")
            continue
        if not any(search.tries.values()):
            lines.append(f"{place}: left out, every try was stopped early")
            continue
        choices.append(best_try(place, search))
        lines.append(f"{place}: {_frozen_text(choices[-1])}")
    if not lines:
        raise UserError(f"{plan.out}: {plan.name} is no search; expected cells of one, e.g. relief-ray grid search_lr")
    if not choices:
        raise UserError(
            f"{plan.out}: no method has all of its tries done; expected some; run: relief-ray grid resume "
            f"{typed(plan.out)}"
        )
    tuned = Tuned(grid=plan.name, score=_SCORE, choices=tuple(choices))
    write_atomic(path, page(json.dumps(tuned.model_dump(mode="json"), indent=1)))
    return [*lines, *_programs(plan)]


def _programs(plan: Plan) -> list[str]:
    """A line where several programs have computed the tries, which may then differ by more than their settings."""
    runs = (state.run for state in plan.look())
    programs = sorted({run.source_digest[:12] for run in runs if run is not None})
    if len(programs) < 2:
        return []
    again = f"relief-ray grid resume {typed(plan.out)} --rerun-stale"
    return [
        f"tries were computed by {len(programs)} programs ({listed(programs)}); to compute older ones again: {again}"
    ]


def _collect(plan: Plan) -> dict[Place, Search]:
    """Validation F1 of every finished try, and how many are not finished, by place.

    Folds are never averaged: the validation windows of one fold come from subjects that another fold tests on.
    """
    searches: dict[Place, Search] = {}
    for state in plan.look():
        config = state.config
        if config.choice is None or config.choice.kind != "try":
            continue
        search = searches.setdefault(rivals(state.cell), Search())
        values = config.model_dump(mode="json")
        attempt = tuple((key, json.dumps(config_value(values, key))) for key in config.choice.parameters)
        scores = search.tries.setdefault(attempt, [])
        if state.status in ("done", "stale"):  # whole, whichever program computed it
            scores.append(score(state))
        elif state.status != "stopped":  # that one has lost
            search.num_open += 1
    if plan.search is not None:
        for (*_, method), search in searches.items():
            search.bounds = plan.search.bounds.get(method, {})
            search.num_open += max(0, plan.search.tries - len(search.tries))
    return searches


def score(state: State) -> float:
    """The last validation F1; of clients' personal models where they have such.

    Raises:
        UserError: the cell was never evaluated on the validation part, or it opened the test part.
    """
    rounds = read_rounds(state.folder)
    last = rounds[-1].validation
    if last is None or any(r.metrics is not None for r in rounds):
        raise UserError(
            f"{state.folder}: a search reads the validation part alone; run it with --set evaluation.parts=[validation]"
        )
    return cast(float, last.headline)


def best_try(place: Place, search: Search) -> Frozen:
    """The best try, the first one if several are equal, and its values at the edge of the tried range."""
    means = {attempt: fmean(scores) for attempt, scores in search.tries.items() if scores}
    best = max(means, key=lambda attempt: means[attempt])
    chosen = dict(best)
    return Frozen(
        **place._asdict(),
        settings={key: json.loads(value) for key, value in chosen.items()},
        num_cells=sum(len(scores) for scores in search.tries.values()),
        choice=Choice(
            kind="tuned",
            parameters=tuple(chosen),
            at_edge=_edges(chosen, search),
            num_tries=len(search.tries),
            f1_validation=means[best],
        ),
    )


def _edges(chosen: Mapping[str, str], search: Search) -> tuple[str, ...]:
    """Keys whose chosen value is the first or last one tried, among tries with the same names (optimizer, say)."""
    names = {key for key, value in chosen.items() if isinstance(json.loads(value), str)}
    beside = [t for t in map(dict, search.tries) if all(t.get(key) == chosen[key] for key in names)]
    listed = {key: list(dict.fromkeys(t[key] for t in beside if key in t)) for key in chosen.keys() - names}
    return tuple(k for k in chosen if k in listed and _is_at_edge(chosen[k], listed[k], search.bounds.get(k)))


def _is_at_edge(value: str, listed: Sequence[str], bounds: tuple[float, float] | None) -> bool:
    """Whether a value is the first or last tried; of a suggested number, within a twentieth of its range of a bound."""
    if bounds is None:
        return len(listed) > 1 and value in (listed[0], listed[-1])
    low, high = bounds
    scale = math.log if low > 0 and high / low >= _LOG_FROM else float
    share = (scale(float(value)) - scale(low)) / (scale(high) - scale(low))
    return not _EDGE < share < 1 - _EDGE


def _frozen_text(frozen: Frozen) -> str:
    """A frozen choice as a line of text."""
    choice = frozen.choice
    shown = ", ".join(f"{name}={value_text(value)}" for name, value in frozen.settings.items())
    edge = f"; optimum at the edge of {', '.join(choice.at_edge)}" if choice.at_edge else ""
    return f"{shown} (validation F1 {100 * (choice.f1_validation or 0.0):.1f} %, {choice.num_tries} tries){edge}"


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
        cells = {cell.name: cell for each in self.samplers for cell in each.cells(each.tries, self.settings)}
        return replace(self.plan, cells=tuple(cells.values()), search=self.search)

    def tell(self, plan: Plan) -> bool:
        """Tell the samplers the scores; False where cells are not done yet: a resume goes on there.

        Raises:
            UserError: a cell opened the test part, or was not evaluated on validation data.
        """
        all_states, stopping = {state.name: state for state in plan.look()}, self.plan.stopping
        for sampler in self.samplers:
            scores: dict[str, float] = {}
            pruned: dict[str, dict[int, float]] = {}
            for level in sampler.tries:
                states = [all_states[cell.name] for cell in sampler.cells([level], self.settings)]
                if any(state.is_open for state in states):
                    return False
                if (f1 := _mean_score(states)) is not None:
                    scores[level.name] = f1
                for state in states:
                    if stopping is not None and state.status == "stopped":
                        pruned[level.name] = scores_at(state.folder, rungs(stopping, state.config))
            sampler.tell(scores, pruned)
        return True

    def listed(self) -> tuple[Cell, ...]:
        """The cells of the tries that the grid itself lists, which the suggested ones lie between."""
        grid = load_grid(self.search.target)
        return cells_of(grid, read_settings(self.search.settings))

    def with_stopping(self, stopping: EarlyStopping) -> SuggestedTries:
        """The same, with weak tries stopped early."""
        return replace(self, plan=stopped_early(self.plan, stopping, self.listed()))


def stopped_early(plan: Plan, stopping: EarlyStopping, cells: Sequence[Cell] = ()) -> Plan:
    """The plan with its weak tries stopped early, which its title says; ``cells``: where the plan has none yet."""
    title = f"{plan.title}; {_asha_text(stopping, cells or plan.cells)}"
    return replace(plan, title=title, stopping=stopping)


def _mean_score(states: Sequence[State]) -> float | None:
    """Mean validation F1 of a try over its seeds; None where one of its cells failed or was stopped."""
    return None if any(state.status != "done" for state in states) else sum(map(score, states)) / len(states)


def suggested_tries(
    target: str, settings: Sequence[Setting], out: Path, tries: int | None, seed: int
) -> SuggestedTries:
    """The search of a grid whose tries Optuna suggests; by default as many as the grid lists for each method.

    Raises:
        UserError: Optuna is missing, the grid is no search, or its cells would be wrong.
    """
    if importlib.util.find_spec("optuna") is None:
        raise UserError(f"--search optuna: Optuna is not installed; {install('search')}")
    grid, rest = choose(load_grid(target), settings)
    samplers = tuple(samplers_of(grid, seed))
    if not samplers:
        raise UserError(f"grid {grid.name}: no place is left to search; expected at least one level of every axis")
    search = SuggestedSearch(
        sampler="optuna",
        tries=tries or max(map(len, grid.own.values())),
        seed=seed,
        target=str(Path(target).absolute()) if target.endswith(".py") else target,
        settings=tuple(as_typed(settings)),
        bounds={s.method: {d.key: (d.low, d.high) for d in s.space if d.high > d.low} for s in samplers},
    )
    title = f"{search.tries} tries of every method, suggested by Optuna (seed {seed}), validation data only"
    plan = Plan(kind="grid", out=out, name=grid.name, title=title, cells=())
    return SuggestedTries(plan=plan, search=search, settings=rest, samplers=samplers)


def again(plan: Plan, settings: Sequence[Setting]) -> SuggestedTries:
    """The search of a plan, asked again from its beginning: the same scores give the same tries."""
    assert plan.search is not None
    known = plan.search
    if files := known.sources:
        why = why_closed(known.model_dump(mode="json"), None, here=files)
        if why:
            raise UserError(f"{plan.out}: its plan names the grid {known.target}: {why}")
    chosen = [*read_settings(known.settings), *settings]
    # Of its cells and of what is typed now (``Plan.refuse_foreign``).
    taken = set(addresses_in(assign({}, settings)).items())
    taken.update(address for cell in plan.cells for address in addresses_in(row_of(cell).config).items())
    for key, address in addresses_in(assign({}, chosen)).items() - taken:
        raise UserError(f"{plan.out}: {why_foreign(key, address)}: take it with {Setting(key, address)}")
    search = suggested_tries(known.target, chosen, plan.out, known.tries, known.seed)
    return search if plan.stopping is None else search.with_stopping(plan.stopping)
