"""A study as data, and the cells (runs) that it spans.

A ``Spec`` holds methods, data sets, folds, draws and further axes; presets (``studies.presets``), configuration files,
the paper's grids and searches (``tune_configs``) are specs. ``choose`` takes every way of choosing their levels, and
``cells`` makes checked configurations of them, in an order in which any interruption leaves a paired comparison.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product, starmap
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, cast, get_args

from pydantic import ValidationError

from relief_ray.config.experiment import Choice, ExperimentConfig, assign, parse, preset, settings_of
from relief_ray.data.config import DataConfig, SplitName
from relief_ray.data.loader import Loader
from relief_ray.models.backbone import BackboneConfig
from relief_ray.plugins.load import import_path, is_path, load_kind, what_to_type
from relief_ray.records.cells import KindName
from relief_ray.records.identity import config_hash
from relief_ray.strategies import PRESETS, method_name
from relief_ray.strategies.common import StrategyConfig
from relief_ray.support.errors import (
    Setting,
    UserError,
    clipped,
    counted,
    for_method,
    keywords,
    listed,
    nearest,
    option,
    shown,
    value_text,
)

Values = Mapping[str, object]
_NONE: Values = MappingProxyType({})


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """A value of an axis.

    Attributes:
        name: its part of folder names; it may be empty.
        settings: the configuration keys (dotted) that it sets, and their values.
        datasets: where it exists; empty: everywhere.
        folds: of a data set, folds of a held-out split; empty where the split has none.
    """

    name: str
    settings: Values = field(default_factory=dict)
    datasets: tuple[str, ...] = ()
    folds: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """Alternatives that are crossed with all others."""

    name: str
    levels: tuple[Level, ...]


def backbones(*levels: Level) -> Axis:
    """The axis of models: ``CNN``, ``LORA``, or ``own_backbone``'s."""
    return Axis(name="backbones", levels=levels)


def _dsa(split: str) -> Values:
    return {"data.name": "dsa", "data.split": split, "data.stride_s": 5.0, "training.epochs": 2}


# Of cells that take a second each.
BRIEF: Values = MappingProxyType({"data.stride_s": 5.0, "training.epochs": 1})
# Of cells that take a quarter of a minute each on the data of eight subjects.
SHORT: Values = MappingProxyType({"rounds": 15, "evaluation.every": 5, "record.checkpoint_every": 5})
# SGD with momentum. Without clipping most runs at rates of 0.03 and above end in updates that are not finite.
SGD: Values = MappingProxyType({"training.optimizer": "sgd", "training.momentum": 0.9, "training.clip_norm": 1.0})
SGD_RATES = (0.003, 0.01, 0.03, 0.1, 0.3)
# Section VI-A: R = 200; evaluated every fifth round, as the tables need.
PAPER: Values = MappingProxyType({"rounds": 200, "evaluation.every": 5, "record.checkpoint_every": 5})
_MINI: Values = {"data.name": "dsa_mini", **BRIEF}

# Paper: Section VI-A (windows every second, E = 5). A small machine's: longer strides, fewer local epochs.
DATASETS: Mapping[str, Level] = MappingProxyType(
    {
        d.name: d
        for d in (
            Level(name="pamap2", settings={"data.name": "pamap2"}),
            Level(name="mhealth", settings={"data.name": "mhealth"}),
            Level(name="dsa", settings=_dsa("held_out_subject"), folds=(0, 1, 2, 3)),
            Level(name="dsa_within", settings=_dsa("within_subject")),
            Level(name="dsa_mini", settings=_MINI),
            Level(name="dsa_mini_held_out", settings={**_MINI, "data.split": "held_out_subject"}, folds=(0, 1, 2, 3)),
        )
    }
)


def own_dataset(path: str, *, name: str = "", split: SplitName = "within_subject", settings: Values = _NONE) -> Level:
    """A level for a data set of a user's own, by its import path; all folds of a held-out split.

    ``name``: in folder names and tables; empty: the attribute's, ``sleep`` of ``my_data:SLEEP``.

    Raises:
        UserError: there is no such data set.
    """
    path = import_path(path)
    level = Level(name=name or _short_name(path), settings={"data.name": path, "data.split": split, **settings})
    return replace(level, folds=_folds_of(level, _NONE))


def _folds_of(level: Level, settings: Values) -> tuple[int, ...]:
    """All folds of a held-out split of the level's data, with these ``settings`` of a study."""
    data = assign(assign({}, settings_of(level.settings)), settings_of(settings)).get("data")
    try:
        config = DataConfig.model_validate(data or {})
    except ValidationError:  # told where the study's runs are checked
        return level.folds
    return tuple(range(config.num_folds)) if config.has_folds else ()


def own_backbone(path: str, *, name: str = "") -> Level:
    """A level for a backbone of a user's own, by its import path; ``name`` as in ``own_dataset``."""
    path = import_path(path)
    return Level(name=name or _short_name(path), settings={"backbone": path})


def _short_name(path: str) -> str:
    """Return the attribute of an import path in small letters: ``sleep`` of ``my_data:SLEEP``, without a digest."""
    return path.rpartition(":")[2].partition("@")[0].lower()


CNN = Level(name="cnn", settings={"backbone": "cnn"})
LORA = Level(name="lora", settings={"backbone": "moment_lora"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Spec:
    """``methods`` x ``datasets`` x folds x ``axes`` x draws on top of ``settings``.

    Attributes:
        kind: what computes it: ``run`` for presets and files, whose data are among the settings, else ``grid``.
        name: name of the study.
        title: what it is, in a line.
        methods: presets of strategies, or import paths of users' own: `lab.methods:Mine`, `lab/methods.py:Mine`.
        datasets: names of ``DATASETS``, import paths of users' own (``lab.data:SLEEP``, split within subjects), or
            levels as ``own_dataset`` makes them; of a grid alone.
        axes: further axes.
        own: further levels of single methods, by method; in a search (``is_search``) its tries, of which the best can
            be frozen for each method. Where they set other keys than the method's own, a report still compares all
            methods with each other, and names each by its level.
        tries: makes these levels for a method that a user adds to a search; None: such a method has none.
        replicates: numbers of the replicates; every fold of each has a seed and a rotation of its own.
        seeds: where given, these seeds instead, each for all folds and without a rotation: for searches and tries.
        folds: those of the datasets' folds that are used; None: all of a grid's, none of a preset's.
        settings: keys (dotted or whole sections) and values; the paper's unless a grid says otherwise.
        is_search: whether ``own`` holds the tries of a search.
        claims: file with the claims that the study is to judge, at most six; empty: none.
    """

    kind: KindName = "grid"
    name: str
    title: str
    methods: tuple[str, ...]
    datasets: tuple[str | Level, ...] = ("pamap2", "mhealth")
    axes: tuple[Axis, ...] = ()
    own: Mapping[str, tuple[Level, ...]] = field(default_factory=dict)
    tries: Callable[[str], tuple[Level, ...]] | None = None
    replicates: tuple[int, ...] = (0, 1, 2)
    seeds: tuple[int, ...] = ()
    folds: tuple[int, ...] | None = None
    settings: Values = field(default_factory=dict)
    is_search: bool = False
    claims: str | Path = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """A run to be computed.

    Attributes:
        name: that of its folder; a grid's cells end in the first digits of ``hash``.
        label: name of its strategy.
        setting: part of the name without method, fold and seed; empty outside of grids.
        config: its checked configuration.
        hash: that of the configuration.
        title: what people read while it is computed (``studies.loop``).
    """

    name: str
    label: str
    setting: str = ""
    config: ExperimentConfig
    hash: str
    title: str = ""

    @property
    def method(self) -> str:
        """Name of the method in tables; for a user's method, the name in its file."""
        return method_name(self.config.strategy, self.label) if is_path(self.label) else self.label


# Of replicates, seeds or folds in one study; each is a run, whose settings are all checked before the first begins.
_MOST = 1000
_MANY_DIGITS = 19


def parse_numbers(option: str, text: str) -> tuple[int, ...]:
    """Return the numbers in ``0,1,2``, ``0-4`` or ``0-2,7``, each once and in this order.

    Raises:
        UserError: something else, or a range that runs backwards.
    """
    numbers: list[int] = []
    for part in text.strip("[] ").split(","):
        match = re.fullmatch(r"\s*([0-9]{1,18})\s*(?:-\s*([0-9]{1,18})\s*)?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            raise UserError(
                f"{option} {clipped(text)}: found {shown(part.strip())}, expected numbers from 0 on: a list "
                f"({option} 0,1,2) or a range ({option} 0-4)"
            )
        _refuse_many(f"{option} {clipped(text)}", len(numbers) + last + 1 - first)
        numbers += range(first, last + 1)
    return tuple(dict.fromkeys(numbers))


def _refuse_many(where: str, number: int) -> None:
    """Check that a study has a number of runs that can be planned.

    Raises:
        UserError: it has more.
    """
    if number > _MOST:
        raise UserError(f"{where}: {number} of them, expected at most {_MOST}; make several studies of them")


def _lone_seed(found: Setting, number: int) -> UserError:
    """The error for a single number where seeds are expected: it could be a seed or a number of seeds; 0 is a seed."""
    several, single = (
        f"{option('seeds')} {value_text(seeds)}" if _is_option(found) else Setting("seeds", seeds)
        for seeds in (range(number), [number])
    )
    if not number:
        return UserError(f"{found}: found one number; expected a list: {single} for seed 0")
    return UserError(
        f"{found}: could be {counted(number, 'seed')} or seed {number}; expected a list: {several} for "
        f"{counted(number, 'seed')} from 0 on, {single} for seed {number}"
    )


def _is_option(setting: Setting) -> bool:
    """Whether an option of the command line was typed, `--seeds 0-2`."""
    return setting.typed.startswith(option(setting.path))


def _numbers(setting: Setting) -> tuple[int, ...]:
    """Numbers of replicates, seeds or folds in a setting: ``[0, 5]`` or ``0-2,5``; ``replicates=3`` are 0, 1 and 2.

    Raises:
        UserError: neither, or a single seed, which could be a number of seeds.
    """
    key, value, _ = setting
    if key == "seeds" and str(value).strip().isdecimal() and len(str(value)) < _MANY_DIGITS:
        raise _lone_seed(setting, int(str(value)))
    is_text = keywords() is None or re.fullmatch(r"[\d,\s-]+", str(value))
    if is_text and isinstance(value, str) and (_is_option(setting) or value[:1].isdecimal()):
        return parse_numbers(option(key) if _is_option(setting) else f"--set {key}", value)
    listed = [value] if type(value) is int else value
    if key == "replicates" and type(value) is int:
        _refuse_many(str(setting), value)
        listed = range(value)
    if not isinstance(listed, list | range | tuple) or not listed or any(type(n) is not int or n < 0 for n in listed):
        more = {"replicates": "a number of replicates or ", "folds": "a fold or "}.get(key, "")
        ways = f"{Setting(key, [0, 1])} or {Setting(key, range(3))}"
        raise UserError(f"{setting}: expected {more}a list of numbers from 0 on, e.g. {ways}")
    _refuse_many(str(setting), len(listed))
    return tuple(dict.fromkeys(listed))


def options(
    strategies: str | None = None, seeds: str | None = None, folds: str | None = None, rounds: int | None = None
) -> tuple[Setting, ...]:
    """Options of the command line that choose levels, as settings: `--strategies a,b --seeds 0,1,2 --rounds 5`.

    Raises:
        UserError: a list of methods that names none.
    """
    names = None
    if strategies is not None:
        names = tuple(dict.fromkeys(import_path(name.strip()) for name in strategies.split(",") if name.strip()))
        if not names:
            raise UserError("--strategies: found no name, expected e.g. --strategies fedavg,relief")
    given = {"methods": names, "seeds": seeds, "folds": folds, "rounds": rounds}
    typed = {"methods": f"--strategies {strategies}"}
    return tuple(Setting(k, v, typed.get(k, f"--{k} {v}")) for k, v in given.items() if v is not None)


def as_typed(chosen: Iterable[Setting]) -> list[str]:
    """Settings as texts that may be typed in their place: ``seeds=[0, 1]``."""
    return [f"{path}={value_text(value)}" for path, value, _ in chosen]


# What an option chooses, and the settings that would choose the same.
_SAME: Mapping[str, tuple[str, ...]] = {
    "methods": ("methods", "strategy", "strategy.name"),
    "seeds": ("seeds", "seed", "replicates"),
    "folds": ("folds", "data.fold"),
    "rounds": ("rounds",),
}


def joined(chosen: Sequence[Setting], settings: Sequence[Setting]) -> tuple[Setting, ...]:
    """Options, or keywords of a call, before the settings beside them.

    Raises:
        UserError: two of them choose the same.
    """
    for one in chosen:
        for setting in settings:
            if setting.path in _SAME.get(one.path, ()):
                raise UserError(
                    f"{re.split('[ =]', str(one))[0]} and {setting}: choose the same; leave one of them out"
                )
    return (*chosen, *settings)


MODE = "runtime.mode"


def runtime_of(study: Values, settings: Iterable[Setting] = ()) -> Values:
    """The section ``runtime`` of a study's settings with these changes, as far as it is one."""
    chosen = {setting.path: setting.value for setting in settings}
    whole = chosen.get("runtime", study.get("runtime"))
    keys = {path.removeprefix("runtime."): value for path, value in chosen.items() if path.startswith("runtime.")}
    return {**whole, **keys} if isinstance(whole, Mapping) else keys


def is_mode_chosen(settings: Iterable[Setting]) -> bool:
    """Whether settings name the mode, alone or with its whole section."""
    return any(setting.path == MODE or (setting.path == "runtime" and setting.value) for setting in settings)


def mode_asked(study: Values, settings: Sequence[Setting], jobs: int | None, alone: str | None = None) -> str | None:
    """The ``runtime.mode`` that follows from other settings where none is chosen; None: the study's own stays.

    Clients that are placed by device type are an actor each; several runs at a time are a process each, and on a
    cluster that is joined ``auto`` gives each of them a worker on any node, where there are several.

    Args:
        study: settings of the preset or file.
        settings: what is chosen beside them.
        jobs: runs at a time.
        alone: mode of runs one after another whose study has ``inline`` or none.
    """
    own, runtime = runtime_of(study), runtime_of(study, settings)
    if is_mode_chosen(settings) or ("mode" in own and _is_typed(own)):
        return None
    if _is_typed(runtime):
        return "actors"
    if jobs != 1:
        return "inline" if runtime.get("address") is None and "RAY_ADDRESS" not in os.environ else "auto"
    return alone if runtime.get("mode") in (None, "inline") else None


def _is_typed(runtime: Values) -> bool:
    """True where clients are placed by device type: by name, or as devices of a physical run."""
    return runtime.get("placement") == "typed" or runtime.get("physical") is True


# Axes whose levels may be a user's own, by import path.
_WITH_PATHS = ("methods", "datasets", "backbones")
_SPLITS = get_args(SplitName)
_HELD_OUT = ("data.leave_out", "data.test_subjects", "data.subjects")


def choose(spec: Spec, settings: Iterable[Setting]) -> tuple[Spec, tuple[Setting, ...]]:
    """The spec with the levels that settings choose, and the settings that change every cell's configuration.

    ``replicates``, ``seeds``, ``folds`` and ``methods`` choose levels of any study, ``datasets``, ``backbones`` and the
    names of further axes those of a grid. A single run's own keys (``seed``, ``data.fold``, ``strategy``) fix an axis
    of a preset; a grid refuses them, since the names of its cells would say something else.

    Raises:
        UserError: a level that there is not, or a key that an axis chooses.
    """
    settings, rest = tuple(settings), []
    for setting in settings:
        chosen = _with_levels(spec, setting)
        if chosen is None:
            rest.append(setting)
        spec = chosen or spec
    if spec.kind == "run":
        return _fixed(spec, settings, rest), tuple(rest)
    spec, rest = _with_split(spec, rest)
    held_out = {setting.path: setting.value for setting in rest if setting.path in _HELD_OUT}
    spec = replace(spec, settings={**spec.settings, **held_out})  # the folds follow them
    _refuse_owned(spec, rest)
    _refuse_unknown_folds(spec, are_chosen=any(setting.path == "folds" for setting in settings))
    return spec, tuple(rest)


def _with_levels(spec: Spec, setting: Setting) -> Spec | None:
    """The spec with these levels of one axis; None where the setting's key is no axis.

    Raises:
        UserError: a level that the axis does not have, or a key that is like an axis and no key of a configuration.
    """
    key, value, _ = setting
    if key == "replicates":
        return replace(spec, replicates=_numbers(setting), seeds=())
    if key in ("seeds", "folds"):
        return replace(spec, **{key: _numbers(setting)})  # type: ignore[arg-type]
    if key == "methods":
        names = value if isinstance(value, tuple) else _chosen(key, value, PRESETS, spec.methods)
        return with_methods(spec, tuple(map(import_path, names)))
    if spec.kind == "run":
        return None
    if key == "datasets":
        own = {level.name: level for level in spec.datasets if isinstance(level, Level)}
        names = _chosen(key, value, [*DATASETS, *own])
        return replace(spec, datasets=tuple(own.get(name, name) for name in map(import_path, names)))
    axes = {axis.name: axis for axis in spec.axes}
    if key == "backbones":
        levels = {level.name: level for level in axes.get(key, backbones(CNN, LORA)).levels}
        axes[key] = backbones(*(levels.get(name) or own_backbone(name) for name in _chosen(key, value, levels)))
    elif key in axes:
        wanted = _chosen(key, value, [level.name for level in axes[key].levels])
        axes[key] = Axis(name=key, levels=tuple(level for level in axes[key].levels if level.name in wanted))
    else:
        names = ("replicates", "seeds", "folds", "datasets", "methods", *axes)
        if "." not in key and key not in ExperimentConfig.model_fields and (near := nearest(key, names)):
            raise UserError(f"grid {spec.name}: {Setting(key, ...)}: unknown{near}; its axes are {', '.join(names)}")
        return None
    return replace(spec, axes=tuple(axes.values()))


def with_methods(spec: Spec, methods: tuple[str, ...]) -> Spec:
    """The spec with these methods; a search adds tries for methods that it does not name."""
    own = {} if spec.tries is None else {m: spec.tries(m) for m in methods if m not in spec.own}
    settings = {key: value for key, value in spec.settings.items() if key != "strategy"}
    return replace(spec, methods=methods, own={**spec.own, **own}, settings=settings)


def _chosen(key: str, value: object, known: Iterable[str], also: Sequence[str] = ()) -> tuple[str, ...]:
    """Chosen names of an axis' levels, given as one or as a list.

    Raises:
        UserError: an unknown one; the nearest is given.
    """
    names = [str(n) for n in value] if isinstance(value, list) else [n.strip() for n in str(value).split(",")]
    everything = list(dict.fromkeys([*known, *also]))
    for name in names:
        if name not in everything and not (key in _WITH_PATHS and is_path(name)):
            if hint := what_to_type(name, StrategyConfig, Loader, BackboneConfig):
                raise UserError(f"{Setting(key, name)}: unknown: {hint}")
            raise UserError(
                f"{Setting(key, name)}: unknown{nearest(name, everything)}; expected some of {', '.join(everything)}"
            )
    return tuple(dict.fromkeys(names))


def _fixed(spec: Spec, settings: Sequence[Setting], rest: Sequence[Setting]) -> Spec:
    """A preset without the axes that its settings fix, or that the split lacks.

    Raises:
        UserError: chosen folds of a split that has none, or ``replicate``, which is derived.
    """
    fixed, values = {setting.path: setting for setting in rest}, assign(spec.settings, rest)
    if "replicate" in fixed:
        found = fixed["replicate"]
        raise UserError(f"{found}: names a run's replicate; expected {Setting('replicates', [found.value])}")
    if {"strategy", "strategy.name"} & fixed.keys():
        spec = replace(spec, methods=(strategy_of(values),))
    if "seed" in fixed:
        spec = replace(spec, seeds=(), replicates=())
    elif "fleet.rotation" in fixed and not spec.seeds and spec.replicates:
        spec = replace(spec, seeds=(0,))
    if "data.fold" in fixed:  # the seed of a replicate is one of its fold
        fold = fixed["data.fold"].value
        return replace(spec, folds=(fold,) if isinstance(fold, int) else ())
    data = values.get("data")
    split = data.get("split") if isinstance(data, dict) else None
    if split != "held_out_subject":
        if folds := next((setting for setting in settings if setting.path == "folds"), None):
            raise UserError(
                f"{folds}: the split {split or 'within_subject'} has no folds; expected "
                f"{Setting('data.split', 'held_out_subject')} with it, or no {option('folds')}"
            )
        return replace(spec, folds=())
    return spec


def strategy_of(values: Mapping[str, object]) -> str:
    """The strategy's name in unchecked values.

    Raises:
        UserError: there is none.
    """
    strategy = values.get("strategy")
    name = strategy.get("name") if isinstance(strategy, dict) else strategy
    if not isinstance(name, str):
        raise UserError(
            f"strategy = {shown(strategy)}: expected the name of a method, or a section with one; write strategy=relief"
            " or strategy.name=relief"
        )
    return name


def _with_split(spec: Spec, settings: Sequence[Setting]) -> tuple[Spec, list[Setting]]:
    """The spec with the split that a setting chooses where all data sets are given by import path, and the others."""
    paths = [name for name in spec.datasets if isinstance(name, str) and is_path(name)]
    rest, split = [], None
    for setting in settings:
        if setting.path == "data.split" and setting.value in _SPLITS and len(paths) == len(spec.datasets):
            split = cast(SplitName, setting.value)
        else:
            rest.append(setting)
    return (spec if split is None else replace(spec, datasets=tuple(own_dataset(p, split=split) for p in paths))), rest


# Keys that name a grid's cell, and the axis that sets each.
_OWNED = {
    "data.name": "datasets",
    "data.split": "datasets",
    "data.fold": "folds",
    "seed": "seeds",
    "replicate": "replicates",
    "strategy.name": "methods",
    "name": "",
}
# Set by levels too, but any grid may be scaled by the one and given other sizes by the other.
_SCALED = frozenset({"rounds", "backbone"})


def _refuse_owned(spec: Spec, settings: Iterable[Setting]) -> None:
    """Check that settings leave alone what the cells' names say, i.e. keys that axes set.

    Raises:
        UserError: a setting would give a cell other values than its name says.
    """
    axes = {key: axis.name for axis in spec.axes for level in axis.levels for key in level.settings}
    tried = {key: "" for levels in spec.own.values() for level in levels for key in level.settings}
    owned = {key: name for key, name in {**tried, **axes}.items() if key not in _SCALED} | _OWNED
    owned |= {} if spec.seeds else {"fleet.rotation": "replicates"}
    for setting in settings:
        path = setting.path
        for key, axis in owned.items():
            if f"{key}.".startswith(f"{path}.") or path.startswith(f"{key}."):
                wanted = Setting(axis, ...) if axis else "what the grid says, or a grid FILE.py of your own"
                raise UserError(f"grid {spec.name}: {setting}: {key} is in the cells' names; expected {wanted}")


def _refuse_unknown_folds(spec: Spec, *, are_chosen: bool) -> None:
    """Check that chosen folds exist; they would be left out silently otherwise.

    Raises:
        UserError: a fold does not exist; ``are_chosen`` by the user: or no dataset has any.
    """
    levels = dataset_levels(spec)
    known = {name: level.folds for name, level in levels.items() if level.folds}
    chosen = Setting("folds", list(spec.folds or ()))
    if are_chosen and not known:
        held_out = Setting("datasets", [name for name, d in DATASETS.items() if d.folds])
        raise UserError(
            f"{chosen}: {', '.join(levels)} {'has' if len(levels) == 1 else 'have'} no folds; expected one of "
            f"{held_out}, data of your own with {Setting('data.split', 'held_out_subject')}, or no folds"
        )
    for name, folds in known.items():
        if spec.folds is not None and not set(spec.folds) <= set(folds):
            raise UserError(f"{chosen}: {name} has folds {list(folds)}; expected some of those")


def dataset_levels(spec: Spec) -> dict[str, Level]:
    """The levels of the dataset axis by name; of a preset one without a name.

    Raises:
        UserError: an import path leads nowhere, or two levels have one name.
    """
    if spec.kind == "run":
        return {"": Level(name="", folds=spec.folds or ())}
    levels: dict[str, Level] = {}
    for chosen in spec.datasets:
        level = chosen if isinstance(chosen, Level) else own_dataset(chosen) if is_path(chosen) else DATASETS[chosen]
        level = replace(level, folds=_folds_of(level, spec.settings)) if level.folds else level
        if levels.setdefault(level.name, level) != level:
            raise UserError(
                f"grid {spec.name}: two data sets are called {level.name!r} in folders and tables; name one of them: "
                f"own_dataset({level.settings.get('data.name')!r}, name=..) in a grid FILE.py"
            )
    return levels


# Above every seed that is chosen by hand; one hundred folds fit between two replicates.
FIRST_SEED, FOLDS = 10_000, 100
# Held-out DSA has six clients: after six rotations every subject has carried every type.
_ROTATIONS = 6


def drawn(replicate: int, fold: int | None) -> dict[str, object]:
    """Keys that a fold of a replicate sets: its seed, and the rotation of the devices; ``fold`` None: there is none.

    A replicate is an independent repetition of a whole study, each fold of it with a seed of its own. It also decides
    which subject carries which device type, so that no conclusion rests on one assignment of sensors to people. All
    methods of one fold and replicate share both: they form a pair.
    """
    seed = FIRST_SEED + FOLDS * replicate + (fold or 0)
    return {"seed": seed, "replicate": replicate, "fleet.rotation": replicate % _ROTATIONS}


class Point(NamedTuple):
    """One combination of levels, unchecked; ``setting`` is the part of its name without method, fold and seed.

    ``own``: the method's own level, of a search its try; ``dataset``: name of the level of the data set.
    """

    method: str
    setting: str
    own: Level
    settings: Values
    dataset: str


def points(spec: Spec) -> Iterator[Point]:
    """All combinations, replicate by replicate: all methods of one replicate, fold and setting before the next."""
    levels = dataset_levels(spec)
    folds = {
        name: tuple(f for f in level.folds if spec.folds is None or f in spec.folds) or (None,)
        for name, level in levels.items()
    }
    for number in spec.seeds or spec.replicates or (None,):
        for i in range(max(map(len, folds.values()), default=0)):
            for name, level in levels.items():
                if i < len(folds[name]):
                    fold = folds[name][i]
                    draw = {} if number is None else {"seed": number} if spec.seeds else drawn(number, fold)
                    yield from _block(spec, level, draw if fold is None else {**draw, "data.fold": fold})


def _block(spec: Spec, dataset: Level, draw: Values) -> Iterator[Point]:
    """All settings with all their methods, for one dataset, fold and draw."""
    base = {**spec.settings, **dataset.settings, **draw}
    for levels in product(*(axis.levels for axis in spec.axes)):
        if all(not level.datasets or dataset.name in level.datasets for level in levels):
            for method in spec.methods:
                for own in spec.own.get(method, (Level(name=""),)):
                    values = {**base, **{k: v for level in (*levels, own) for k, v in level.settings.items()}}
                    setting = "-".join(filter(None, [dataset.name, *(level.name for level in (*levels, own))]))
                    yield Point(method, setting, own, values, dataset.name)


# Settings and provenance of a search's frozen choice for a cell (``tune_configs.search.Tuned.tune``).
Tune = Callable[[Point, ExperimentConfig, Sequence[Setting]], tuple[Values, Choice]]


def cells(
    spec: Spec, settings: Iterable[Setting] = (), *, tuned: Tune | None = None, skip_unknown: bool = False
) -> tuple[Cell, ...]:
    """All cells in the order of computation; two points of a grid with the same configuration are one cell.

    ``tuned`` gives every method its frozen choice of a search; ``skip_unknown`` leaves out methods that this version
    does not have.

    Raises:
        UserError: an unknown level or key, a value out of range, a key that an axis chooses, or an unknown method.
    """
    made = [*each_cell(spec, settings, tuned=tuned, skip_unknown=skip_unknown)]
    known = {cell.hash if spec.kind == "grid" else cell.name: cell for cell in reversed(made)}
    return tuple(known.values())[::-1]


def each_cell(
    spec: Spec, settings: Iterable[Setting] = (), *, tuned: Tune | None = None, skip_unknown: bool = False
) -> Iterator[Cell]:
    """``cells`` one after the other, each checked when it is asked for."""
    spec, rest = choose(spec, settings)
    if spec.kind == "grid":
        spec = _known_methods(spec, skip_unknown)
    for point in points(spec):
        _refuse_other_methods_fields(rest, point.method, spec)
        yield _cell_of(spec, point, rest, tuned)


def _known_methods(spec: Spec, skip_unknown: bool) -> Spec:
    """A grid with the methods that this version has.

    Raises:
        UserError: it lacks some, unless they are skipped.
    """
    known = tuple(m for m in spec.methods if m in PRESETS or is_path(m))
    missing = [m for m in spec.methods if m not in known]
    if missing and not skip_unknown:
        if hints := [hint for name in missing if (hint := what_to_type(name, StrategyConfig))]:
            raise UserError(f"grid {spec.name}: unknown method: {'; '.join(hints)}")
        raise UserError(
            f"grid {spec.name}: this version has no method {', '.join(missing)}; known are {', '.join(PRESETS)}; "
            f"leave them out with --skip-unknown, or choose with {Setting('methods', known)}"
        )
    return replace(spec, methods=known)


def check_strategy(name: str) -> None:
    """Check that a method's name, which is no import path, is one.

    Raises:
        UserError: it is not.
    """
    try:
        if not is_path(name):
            preset(name)
    except ValueError as error:
        raise UserError(f"strategy: {error}") from error


def _refuse_other_methods_fields(settings: Sequence[Setting], label: str, spec: Spec) -> None:
    """Check that a setting of the strategy that some method of the study has is one of this method's too.

    Raises:
        UserError: it is not; the methods that have it are named, and how to set it for them alone.
    """
    check_strategy(label)
    for setting in settings:
        section, _, rest = setting.path.partition(".")
        key = rest.partition(".")[0]
        if section != "strategy" or key in ("", "name"):
            continue
        havers = [name for name in dict.fromkeys(spec.methods) if key in _kind_of(name).model_fields]
        if havers and label not in havers:
            kind, others = _kind_of(havers[0]), ",".join(n for n in dict.fromkeys(spec.methods) if n != havers[0])
            varied = f"{kind.__name__}({rest}={setting.value})"
            way = f"write CHANGED = {varied} in a file of yours, and name it: --strategies {others},my_file:CHANGED"
            if keywords() is not None:
                way = f"strategies=[.., {for_method(havers[0], {rest: setting.value})}]"
            raise UserError(
                f"{setting}: {label} has no {key!r}, only {listed(havers)}; a setting of the strategy goes to every "
                f"method of the run. Give the one method alone another value: {way}"
            )


def _kind_of(label: str) -> type[StrategyConfig]:
    """Class of a preset, or of the object at a user's import path."""
    config = load_kind(label, "strategies", StrategyConfig) if is_path(label) else preset(label)
    return config if isinstance(config, type) else type(config)


HASH_DIGITS = 8


def make_cell(name: str, label: str, config: ExperimentConfig, setting: str = "", stored_hash: str = "") -> Cell:
    """A cell in the folder ``name``; ``stored_hash``: the one that it was begun under, else this program's."""
    decisive = stored_hash or config_hash(config.identity())
    return Cell(name=name, label=label, setting=setting, config=config, hash=decisive)


def _cell_of(spec: Spec, point: Point, settings: Sequence[Setting], tuned: Tune | None) -> Cell:
    """The cell of a point: the spec's values, the point's, a search's frozen choice, then the user's settings.

    Raises:
        UserError: the search has no choice for this cell, the user's settings overrule it, or a search's run is too
            short for the method's last phase.
    """
    setting, choice = point.setting, _choice_of(spec, point)
    config = _config_of(spec, point, settings)
    if choice is not None and choice.kind == "try":
        _refuse_too_short(spec.name, point, config)
    if tuned is not None:
        chosen, choice = tuned(point, config, settings)
        config = _config_of(spec, point._replace(settings={**point.settings, **chosen}), settings)
        setting = f"{point.setting}-tuned"
    fold = [f"f{config.data.fold}"] if config.data.has_folds else []
    label, draw = point.method.replace(":", "."), [*fold, config.draw_name]
    if spec.kind == "grid":
        digest = config_hash(config.identity())
        name = "-".join([setting, label, *draw, digest[:HASH_DIGITS]])
        named = config.model_copy(update={"name": f"{spec.name}-{name}", "choice": choice})
        return make_cell(name, point.method, named, setting, digest)
    own = [point.own.name] if point.own.name else []
    title = "-".join([spec.name, point.method, *draw])
    named = config.model_copy(
        update={"name": "-".join([config.name if "name" in config.model_fields_set else title, *own])}
    )
    return make_cell("-".join([label, *own, *draw]), point.method, named)


def _choice_of(spec: Spec, point: Point) -> Choice | None:
    """The try of a search, or the level where methods differ in other keys than their own."""
    parameters = tuple(point.own.settings)
    if spec.is_search:
        return Choice(kind="try", parameters=parameters, place=point.dataset) if parameters else None
    if all(key.startswith("strategy.") for levels in spec.own.values() for level in levels for key in level.settings):
        return None
    return Choice(kind="level", parameters=parameters, level=point.own.name)


def _config_of(spec: Spec, point: Point, settings: Sequence[Setting]) -> ExperimentConfig:
    """The checked configuration of a point with the user's settings on top.

    A partition that is drawn is drawn anew for each replicate, or seed, the same for all methods of it.
    """
    # ``runtime.mode=auto`` of a grid: a process per cell on one node, and a host per cell where there are several.
    values = assign({"strategy": {"name": point.method}}, starmap(Setting, point.settings.items()))
    source = spec.title if Path(spec.title).suffix in (".yaml", ".yml", ".json") else spec.name
    where = f"{clipped(source)} ({clipped(point.method)})"
    if point.own.settings and keywords() is not None:
        where = (
            f"strategies={for_method(point.method, {k.partition('.')[2]: v for k, v in point.own.settings.items()})}"
        )
    config = parse(assign(values, settings), f"grid {where}" if spec.kind == "grid" else where)
    if config.data.partition == "subject" or "seed" in config.data.model_fields_set:
        return config
    # With one partition for all, an interval over replicates would be one over seeds of training alone.
    number = config.seed if config.replicate is None else config.replicate
    return config.model_copy(update={"data": config.data.model_copy(update={"seed": number})})


def _refuse_too_short(grid: str, point: Point, config: ExperimentConfig) -> None:
    """Refuse a try that ends before the method's last phase: its score would say nothing of the values it tries.

    Raises:
        UserError: method, try and the rounds that are enough are named.
    """
    needed = config.strategy.rounds_needed(config.participation)
    if needed is None or config.rounds < needed:
        fix = "another value of it" if needed is None else f"{Setting('rounds', needed)} or more"
        raise UserError(
            f"grid {grid}, {point.method}, {point.setting}: rounds = {config.rounds} ends before the method's last "
            f"phase, and this try would be judged without it; expected {fix}, or leave {point.method} out of methods"
        )
