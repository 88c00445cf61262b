"""Optuna as the sampler of a search: it is asked for tries in small batches and told their validation F1.

Suggestions depend on the seed and on the scores of earlier batches alone, not on the order in which cells end. Asked
again with the same scores it suggests the same tries: a search that was stopped goes on from its folders.
"""

from __future__ import annotations

import importlib.util
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING

from relief_ray.studies.spec import Level, Spec, dataset_levels
from relief_ray.support.errors import UserError
from relief_ray.support.text import install

if TYPE_CHECKING:
    import optuna

_NOTHING: Mapping[str, Mapping[int, float]] = MappingProxyType({})
_RANDOM_FIRST = 5
# How often it is asked for a try before one that it suggests again is taken for all there is.
_MOST_ASKS = 20


# From this ratio of the largest to the smallest value on, a number is searched by its logarithm.
LOG_FROM = 4.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Dimension:
    """One direction of the space: a number between two bounds, or one of several choices.

    Attributes:
        name: its part in a cell's name.
        key: dotted key of the number; empty for choices.
        low: smallest value.
        high: largest value.
        log: whether it is searched by its logarithm.
        is_int: whether it is a whole number.
        choices: settings to choose among; empty for a number.
    """

    name: str
    key: str = ""
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    is_int: bool = False
    choices: tuple[Mapping[str, object], ...] = ()


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


def _distinct(values: Sequence[object]) -> list[object]:
    return [value for i, value in enumerate(values) if value not in values[:i]]


def _dimension(unit: tuple[str, ...], values: Mapping[str, list[object]], levels: Sequence[Level]) -> Dimension:
    name = unit[0].rpartition(".")[2]
    numbers = [v for v in values[unit[0]] if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(unit) == 1 and len(numbers) == len(values[unit[0]]):
        low, high = min(numbers), max(numbers)
        return Dimension(
            name=name, key=unit[0], low=low, high=high, log=low > 0 and high / low >= LOG_FROM,
            is_int=all(isinstance(v, int) for v in numbers),
        )  # fmt: skip
    choices = _distinct([{key: level.settings[key] for key in unit if key in level.settings} for level in levels])
    return Dimension(name=name, choices=tuple(dict(c) for c in choices if isinstance(c, dict)))


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchPlace:
    """A part of a search that is searched for itself: one method on one dataset, fold and combination of axes.

    Attributes:
        name: the place in words, also the seed of its sampler.
        method: name or import path.
        grid: the grid with this place alone, without tries.
        space: what is searched.
    """

    name: str
    method: str
    grid: Spec
    space: tuple[Dimension, ...]

    def with_tries(self, tries: Sequence[Level]) -> Spec:
        """The place's grid with these tries."""
        return replace(self.grid, own={self.method: tuple(tries)})


def search_places(grid: Spec) -> Iterator[SearchPlace]:
    """The places of a search.

    Raises:
        UserError: the grid is none, or a method has no tries.
    """
    if not grid.is_search:
        raise UserError(f"grid {grid.name}: is no search; expected one whose methods have tries, such as search_lr")
    for level in dataset_levels(grid).values():
        folds: list[int | None] = [f for f in level.folds if grid.folds is None or f in grid.folds]
        for fold, chosen in product(folds or [None], product(*(axis.levels for axis in grid.axes))):
            axes = tuple(replace(axis, levels=(one,)) for axis, one in zip(grid.axes, chosen, strict=True))
            for method in grid.methods:
                if not grid.own.get(method):
                    raise UserError(
                        f"grid {grid.name}: {method} has no tries; expected some, or leave it out of methods"
                    )
                parts = [method, level.name, *([] if fold is None else [f"fold {fold}"]), *(c.name for c in chosen)]
                alone = replace(
                    grid, methods=(method,), datasets=(level,), axes=axes, own={},
                    folds=None if fold is None else (fold,),
                )  # fmt: skip
                yield SearchPlace(name=", ".join(parts), method=method, grid=alone, space=space_of(grid.own[method]))


def require_optuna() -> None:
    """Check that Optuna is installed.

    Raises:
        UserError: it is not.
    """
    if importlib.util.find_spec("optuna") is None:
        raise UserError(f"--search optuna: Optuna is not installed; {install('search')}")


@dataclass(kw_only=True, slots=True)
class Sampler:
    """Optuna's tree-structured Parzen estimator (Bergstra et al., NeurIPS 2011) at one place.

    Attributes:
        place: method, dataset, fold and axes.
        seed: of the search; each place has a stream of its own.
        tries: tries that were suggested, in order.
    """

    place: SearchPlace
    seed: int
    tries: list[Level] = field(default_factory=list)
    _study: optuna.Study = field(init=False)
    _trials: dict[str, list[optuna.Trial]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Open a study in memory."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        seed = zlib.crc32(f"{self.seed} {self.place.name}".encode())
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=_RANDOM_FIRST)
        self._study = optuna.create_study(direction="maximize", sampler=sampler)

    def ask(self, number: int) -> None:
        """Suggest so many more tries."""
        wanted = len(self.tries) + number
        for _ in range(_MOST_ASKS * number):
            if len(self.tries) == wanted:
                return
            trial = self._study.ask()
            settings: dict[str, object] = {}
            parts = []
            for dimension in self.place.space:
                name, chosen = _suggested(trial, dimension)
                settings |= chosen
                parts.append(name)
            level = Level(name="-".join(parts), settings=settings)
            self._trials.setdefault(level.name, []).append(trial)
            if level.name not in {known.name for known in self.tries}:
                self.tries.append(level)

    def tell(self, scores: Mapping[str, float], pruned: Mapping[str, Mapping[int, float]] = _NOTHING) -> None:
        """Give Optuna the scores of open tries, by name; a try without one counts as failed.

        ``pruned``: of tries that were stopped early, their scores by round; Optuna ranks them by the last.
        """
        from optuna.trial import TrialState

        for name, trials in self._trials.items():
            for trial in trials:
                for round_, f1 in pruned.get(name, {}).items():
                    trial.report(f1, round_)
                if name in scores:
                    self._study.tell(trial, scores[name])
                elif name in pruned:
                    self._study.tell(trial, state=TrialState.PRUNED)
                else:
                    self._study.tell(trial, state=TrialState.FAIL)
        self._trials = {}


def _suggested(trial: optuna.Trial, dimension: Dimension) -> tuple[str, Mapping[str, object]]:
    """Name and settings of a suggestion; numbers have four digits, so that a name says all of them."""
    if dimension.choices:
        number = trial.suggest_categorical(dimension.name, list(range(len(dimension.choices))))
        chosen = dimension.choices[number]
        single = next(iter(chosen.values())) if len(chosen) == 1 else None
        return f"{dimension.name}{single if isinstance(single, int | float) else number}", chosen
    if dimension.is_int:
        whole = trial.suggest_int(dimension.name, int(dimension.low), int(dimension.high), log=dimension.log)
        return f"{dimension.name}{whole}", {dimension.key: whole}
    value = trial.suggest_float(dimension.name, dimension.low, dimension.high, log=dimension.log)
    rounded = float(f"{value:.4g}")
    return f"{dimension.name}{rounded:g}", {dimension.key: rounded}
