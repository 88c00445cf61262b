"""The common type of all grids: axes that span cells, in an order in which any interruption leaves a paired comparison.

A grid is data; ``tune_configs.registry`` turns it into configurations. Methods and their kinds are the registry's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from types import MappingProxyType

from relief_ray.data import get_spec
from relief_ray.data.config import SplitName
from relief_ray.plugins.load import import_path, is_path
from relief_ray.strategies import presets_of
from relief_ray.studies.cells import Draw, draw_of
from relief_ray.support.errors import UserError

Settings = Mapping[str, object]

# Ablations of the paper and of ours, and the bounds of every table.
VARIANTS = presets_of("ablation")
OUR_VARIANTS = presets_of("ablation of ours")
BOUNDS = presets_of("bound")


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """A value of an axis: its name in folder names, and the configuration keys (dotted) that it sets.

    ``datasets``: where it exists (empty: everywhere).
    """

    name: str
    settings: Settings = field(default_factory=dict)
    datasets: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """Alternatives that are crossed with all others."""

    name: str
    levels: tuple[Level, ...]


_NONE: Settings = MappingProxyType({})


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """A level of the dataset axis.

    Attributes:
        name: the level's name.
        settings: keys and values for its cells.
        folds: folds of a held-out split; empty where the split has none.
    """

    name: str
    settings: Settings
    folds: tuple[int, ...] = ()


def _dsa(split: str) -> Settings:
    return {"data.name": "dsa", "data.split": split, "data.stride_s": 5.0, "training.epochs": 2}


# Of cells that take a second each.
BRIEF: Settings = MappingProxyType({"data.stride_s": 5.0, "training.epochs": 1})
# Of cells that take a quarter of a minute each on the data of eight subjects.
SHORT: Settings = MappingProxyType({"rounds": 15, "evaluation.every": 5, "record.checkpoint_every": 5})
# SGD with momentum. Without clipping most runs at rates of 0.03 and above end in updates that are not finite.
SGD: Settings = MappingProxyType({"training.optimizer": "sgd", "training.momentum": 0.9, "training.clip_norm": 1.0})
SGD_RATES = (0.003, 0.01, 0.03, 0.1, 0.3)
_MINI: Settings = {"data.name": "dsa_mini", **BRIEF}

# Paper: Section VI-A (windows every second, E = 5). A small machine's: longer strides, fewer local epochs.
DATASETS: Mapping[str, Dataset] = MappingProxyType(
    {
        d.name: d
        for d in (
            Dataset(name="pamap2", settings={"data.name": "pamap2"}),
            Dataset(name="mhealth", settings={"data.name": "mhealth"}),
            Dataset(name="dsa", settings=_dsa("held_out_subject"), folds=(0, 1, 2, 3)),
            Dataset(name="dsa_within", settings=_dsa("within_subject")),
            Dataset(name="dsa_mini", settings=_MINI),
            Dataset(name="dsa_mini_held_out", settings={**_MINI, "data.split": "held_out_subject"}, folds=(0, 1, 2, 3)),
        )
    }
)


def own_dataset(
    path: str, *, name: str = "", split: SplitName = "within_subject", settings: Settings = _NONE
) -> Dataset:
    """A level for a data set of a user's own, by its import path; all folds of a held-out split.

    ``name``: in folder names and tables; empty: the attribute's, ``sleep`` of ``my_data:SLEEP``.

    Raises:
        UserError: there is no such data set.
    """
    path = import_path(path)
    num_folds = max(1, len(get_spec(path).subjects) // 2)
    return Dataset(
        name=name or _short_name(path),
        settings={"data.name": path, "data.split": split, **settings},
        folds=tuple(range(num_folds)) if split == "held_out_subject" else (),
    )


def own_backbone(path: str, *, name: str = "") -> Level:
    """A level for a backbone of a user's own, by its import path; ``name`` as in ``own_dataset``."""
    path = import_path(path)
    return Level(name=name or _short_name(path), settings={"backbone": path})


def _short_name(path: str) -> str:
    """Return the attribute of an import path in small letters: ``sleep`` of ``my_data:SLEEP``."""
    return path.rpartition(":")[2].lower()


CNN = Level(name="cnn", settings={"backbone": "cnn"})
LORA = Level(name="lora", settings={"backbone": "moment_lora"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """``methods`` x ``datasets`` x folds x ``axes`` x ``replicates`` on top of ``settings``.

    Attributes:
        name: name of the grid.
        title: what it is, in a line.
        methods: presets of strategies, or import paths of users' own: `lab.methods:Mine`, `lab/methods.py:Mine`.
        datasets: names of ``DATASETS``, import paths of users' own (``lab.data:SLEEP``, split within subjects), or
            levels as ``own_dataset`` makes them.
        axes: further axes.
        own: further levels of single methods, by method; in a search (``is_search``) its tries, of which the best can
            be frozen for each method.
        tries: makes these levels for a method that a user adds to a search; None: such a method has none.
        replicates: numbers of the replicates; every fold of each has a seed and a rotation of its own.
        seeds: where given, these seeds instead, each for all folds and without a rotation: for searches and tries.
        folds: those of the datasets' folds that are used; None: all.
        settings: the paper's values unless a grid says otherwise.
        is_search: whether ``own`` holds the tries of a search.
        claims: file with the claims that the grid is to judge, at most six; empty: none.
    """

    name: str
    title: str
    methods: tuple[str, ...]
    datasets: tuple[str | Dataset, ...] = ("pamap2", "mhealth")
    axes: tuple[Axis, ...] = ()
    own: Mapping[str, tuple[Level, ...]] = field(default_factory=dict)
    tries: Callable[[str], tuple[Level, ...]] | None = None
    replicates: tuple[int, ...] = (0, 1, 2)
    seeds: tuple[int, ...] = ()
    folds: tuple[int, ...] | None = None
    settings: Settings = field(default_factory=dict)
    is_search: bool = False
    claims: str = ""


def dataset_levels(grid: Grid) -> dict[str, Dataset]:
    """The levels of the dataset axis by name.

    Raises:
        UserError: an import path leads nowhere, or two levels have one name.
    """
    levels: dict[str, Dataset] = {}
    for chosen in grid.datasets:
        level = chosen if isinstance(chosen, Dataset) else _level_of(chosen)
        if levels.setdefault(level.name, level) != level:
            raise UserError(
                f"grid {grid.name}: two data sets are called {level.name!r} in folders and tables; name one of them: "
                f"own_dataset({level.settings.get('data.name')!r}, name=..) in a grid FILE.py"
            )
    return levels


def _level_of(name: str) -> Dataset:
    return own_dataset(name) if is_path(name) else DATASETS[name]


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One combination; ``setting`` is the part of its name without method, fold and seed.

    ``tried``: the keys that a search varies here; empty elsewhere.
    """

    method: str
    setting: str
    fold: int | None
    seed: int
    settings: Settings
    tried: tuple[str, ...] = ()


def points(grid: Grid) -> Iterator[Point]:
    """All combinations, replicate by replicate: all methods of one replicate, fold and setting before the next."""
    levels = dataset_levels(grid)
    folds = {name: level.folds for name, level in levels.items()}
    if grid.folds is not None:
        folds = {name: tuple(f for f in numbers if f in grid.folds) for name, numbers in folds.items()}
    for number in grid.seeds or grid.replicates:
        for i in range(max(1, *(len(f) for f in folds.values()))):
            for name, level in levels.items():
                if i < max(1, len(folds[name])):
                    fold = folds[name][i] if folds[name] else None
                    draw = Draw(seed=number) if grid.seeds else draw_of(number, fold)
                    yield from _block(grid, level, fold, draw)


def _block(grid: Grid, dataset: Dataset, fold: int | None, draw: Draw) -> Iterator[Point]:
    """All settings with all their methods, for one dataset, fold and draw."""
    base = {**grid.settings, **dataset.settings, **draw.settings}
    if fold is not None:
        base["data.fold"] = fold
    for levels in product(*(axis.levels for axis in grid.axes)):
        if all(not level.datasets or dataset.name in level.datasets for level in levels):
            for method in grid.methods:
                for method_level in grid.own.get(method, (Level(name=""),)):
                    chosen = [level for level in (*levels, method_level) if level.name]
                    values = {**base, **{k: v for level in chosen for k, v in level.settings.items()}}
                    setting = "-".join([dataset.name, *(level.name for level in chosen)])
                    tried = tuple(method_level.settings) if grid.is_search else ()
                    yield Point(method=method, setting=setting, fold=fold, seed=draw.seed, settings=values, tried=tried)


# Section VI-A: R = 200; evaluated every fifth round, as the tables need.
PAPER: Settings = MappingProxyType({"rounds": 200, "evaluation.every": 5, "record.checkpoint_every": 5})
