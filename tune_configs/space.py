"""The space that a search's tries span, and its places: a method on one dataset, fold and combination of axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from relief_ray.studies.spec import Grid, Level, dataset_levels
from relief_ray.support.errors import UserError

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
    grid: Grid
    space: tuple[Dimension, ...]

    def with_tries(self, tries: Sequence[Level]) -> Grid:
        """The place's grid with these tries."""
        return replace(self.grid, own={self.method: tuple(tries)})


def search_places(grid: Grid) -> Iterator[SearchPlace]:
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
