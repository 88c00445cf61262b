"""A user's settings that choose levels of a grid's axes: ``replicates=2``, ``'methods=[fedavg, my_method:Mine]'``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import cast, get_args

from relief_ray.config.experiment import ExperimentConfig, override
from relief_ray.data.config import SplitName
from relief_ray.data.loader import Loader
from relief_ray.models.backbone import BackboneConfig
from relief_ray.plugins.load import import_path, is_path, what_to_type
from relief_ray.strategies import PRESETS
from relief_ray.strategies.common import StrategyConfig
from relief_ray.studies.cells import numbers
from relief_ray.studies.spec import CNN, DATASETS, LORA, Axis, Dataset, Grid, own_backbone, own_dataset
from relief_ray.support.errors import UserError, nearest

# Axes whose levels may be a user's own, by import path.
_WITH_PATHS = ("methods", "datasets", "backbones")
_SPLITS = get_args(SplitName)


def scale(grid: Grid, settings: Iterable[str]) -> tuple[Grid, list[str]]:
    """The grid with the chosen levels of its axes, and the settings that name no axis."""
    rest = []
    for setting in settings:
        (key, value), *_ = override({}, [setting]).items()
        scaled = choose(grid, key, value)
        if scaled is None:
            _refuse_like_axis(grid, key)
            rest.append(setting)
        else:
            grid = scaled
    return grid, rest


def _refuse_like_axis(grid: Grid, key: str) -> None:
    """Check that a key is not an axis misspelt: a setting of the same likeness would be suggested instead.

    Raises:
        UserError: it is like an axis, and no key of a configuration.
    """
    axes = ("replicates", "seeds", "folds", "datasets", "methods", *(axis.name for axis in grid.axes))
    near = "" if "." in key or key in ExperimentConfig.model_fields else nearest(key, axes)
    if near:
        raise UserError(f"grid {grid.name}: --set {key}=..: unknown{near}; its axes are {', '.join(axes)}")


def choose(grid: Grid, key: str, value: object) -> Grid | None:
    """The grid with these levels of one axis; None where ``key`` is no axis.

    Raises:
        UserError: a level that the axis does not have.
    """
    if key == "replicates":
        return replace(grid, replicates=numbers(key, value), seeds=())
    if key == "seeds":
        return replace(grid, seeds=numbers(key, value))
    if key == "folds":
        return replace(grid, folds=numbers(key, value))
    if key == "methods":
        return _with_methods(grid, tuple(map(import_path, chosen(key, value, PRESETS, grid.methods))))
    if key == "datasets":
        return replace(grid, datasets=_chosen_datasets(grid, value))
    axes = {axis.name: axis for axis in grid.axes}
    if key == "backbones":
        axes[key] = _chosen_backbones(axes.get(key, Axis(name=key, levels=(CNN, LORA))), value)
        return replace(grid, axes=tuple(axes.values()))
    if key not in axes:
        return None
    wanted = chosen(key, value, [level.name for level in axes[key].levels])
    axes[key] = Axis(name=key, levels=tuple(level for level in axes[key].levels if level.name in wanted))
    return replace(grid, axes=tuple(axes.values()))


def _chosen_datasets(grid: Grid, value: object) -> tuple[str | Dataset, ...]:
    """Built-in data sets, the grid's own levels, and users' own by import path.

    Raises:
        UserError: none of these.
    """
    levels = {level.name: level for level in grid.datasets if isinstance(level, Dataset)}
    names = chosen("datasets", value, [*DATASETS, *levels])
    return tuple(levels.get(name, name) for name in map(import_path, names))


def _chosen_backbones(axis: Axis, value: object) -> Axis:
    """The axis with these of its levels, and with users' own backbones by import path.

    Raises:
        UserError: none of these.
    """
    levels = {level.name: level for level in axis.levels}
    names = chosen(axis.name, value, levels)
    return Axis(name=axis.name, levels=tuple(levels.get(name) or own_backbone(name) for name in names))


def split_own(grid: Grid, settings: Sequence[str]) -> tuple[Grid, list[str]]:
    """The grid with the split that a setting chooses where all data sets are given by import path, and the others."""
    paths = [name for name in grid.datasets if isinstance(name, str) and is_path(name)]
    rest, split = [], None
    for setting in settings:
        key, _, value = setting.partition("=")
        if key == "data.split" and value in _SPLITS and len(paths) == len(grid.datasets):
            split = cast(SplitName, value)
        else:
            rest.append(setting)
    return (grid if split is None else replace(grid, datasets=tuple(own_dataset(p, split=split) for p in paths))), rest


def _with_methods(grid: Grid, methods: tuple[str, ...]) -> Grid:
    """The grid with these methods; a search makes the tries of those that it does not name itself."""
    further = [m for m in methods if m not in grid.own]
    own = {} if grid.tries is None else {m: grid.tries(m) for m in further}
    return replace(grid, methods=methods, own={**grid.own, **own})


def chosen(key: str, value: object, known: Iterable[str], also: Sequence[str] = ()) -> tuple[str, ...]:
    """Chosen names of an axis' levels, given as one or as a list.

    Raises:
        UserError: an unknown one; the nearest is given.
    """
    names = [str(n) for n in value] if isinstance(value, list) else [n.strip() for n in str(value).split(",")]
    everything = list(dict.fromkeys([*known, *also]))
    for name in names:
        if name not in everything and not (key in _WITH_PATHS and is_path(name)):
            if hint := what_to_type(name, StrategyConfig, Loader, BackboneConfig):
                raise UserError(f"--set {key}={name}: unknown: {hint}")
            raise UserError(
                f"--set {key}={name}: unknown{nearest(name, everything)}; expected some of {', '.join(everything)}"
            )
    return tuple(dict.fromkeys(names))
