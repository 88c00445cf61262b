"""A study as a program asks for it: preset, file, configuration or keywords, turned into a checked plan.

Methods, data sets and backbones may be Python objects: each gets the import path that records know it by, since a run's
configuration is text, so that it can be read, resumed and reproduced by another process; what a notebook's cell defines
gets a module of its source. An unknown keyword is answered with what to write, and messages speak of
keywords, not of the command line's options.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import index
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Final, Literal, SupportsIndex, cast, get_args

from pydantic import BaseModel

from relief_ray.config.experiment import ExperimentConfig, all_keys, settings_of
from relief_ray.config.keys import nearest_keys
from relief_ray.data.config import DataConfig
from relief_ray.data.loader import DatasetSpec, Loader
from relief_ray.models.backbone import BackboneConfig
from relief_ray.models.registry import backbone_name
from relief_ray.plugins.load import import_path, importable_name, is_own, is_stored, path_of
from relief_ray.plugins.parts import part_module
from relief_ray.records.run_folder import RUN_FILE
from relief_ray.strategies import PRESETS as METHODS
from relief_ray.strategies import REFERENCE
from relief_ray.strategies.common import StrategyConfig
from relief_ray.studies.plan import Plan, load_spec, spec_of, target_config
from relief_ray.studies.presets import PRESETS
from relief_ray.studies.spec import (
    MODE,
    Level,
    Spec,
    Values,
    each_cell,
    is_mode_chosen,
    joined,
    mode_asked,
    runtime_of,
    with_methods,
)
from relief_ray.support.errors import Setting, UserError, as_keyword, shown

StrategyLike = str | StrategyConfig | type[StrategyConfig] | Values
BackboneLike = str | BackboneConfig | type[BackboneConfig] | Values


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """A strategy of a study.

    Attributes:
        label: name of its preset, or its import path.
        fields: the fields of its configuration in which it differs from that preset or class.
    """

    label: str
    fields: Values

    @property
    def values(self) -> dict[str, object]:
        """Its section of a configuration."""
        return {"name": self.label, **self.fields}

    @property
    def level(self) -> Level:
        """The fields as a level, with a name for folders such as ``gamma0.5``; an unchanged preset has no name."""
        name = "-".join(re.sub(r"[^\w.+-]+", "_", f"{key}{value}") for key, value in self.fields.items())
        return Level(name=name, settings={f"strategy.{key}": value for key, value in self.fields.items()})


def method_of(given: StrategyLike) -> Method:
    """Return the method that a user named, or gave as a class, a configuration or a mapping with its ``name``.

    Raises:
        UserError: it is none of these, or a class that no import path leads to.
    """
    if isinstance(given, str):
        return Method(label=import_path(given), fields={})
    if isinstance(given, type) and issubclass(given, StrategyConfig):
        return Method(label=_class_path(given, "strategies"), fields={})
    if isinstance(given, StrategyConfig):
        return _configured(given)
    if isinstance(given, Mapping) and isinstance(given.get("name"), str):
        fields = {str(key): value for key, value in given.items() if key != "name"}
        return Method(label=import_path(str(given["name"])), fields=fields)
    raise UserError(
        f"strategies: found {_described(given)}; expected a method's name ('relief'), an import path "
        "('my_module:MyMethod'), a StrategyConfig (class or instance), or {'name': .., field: ..}"
    )


def _configured(given: StrategyConfig) -> Method:
    values = given.model_dump(mode="json")
    if is_own(type(given)):
        fields = given.model_dump(mode="json", exclude={"name"}, exclude_defaults=True)
        return Method(label=_class_path(type(given), "strategies"), fields=fields)
    label = ExperimentConfig(strategy=given).label()
    usual = METHODS[label].model_dump(mode="json")
    return Method(label=label, fields={key: value for key, value in values.items() if value != usual.get(key)})


def data_name(given: str | Loader | DatasetSpec) -> str:
    """Return the name or import path of a data set.

    Raises:
        UserError: a loader that no import path leads to, or something else.
    """
    if isinstance(given, str):
        return import_path(given)
    if isinstance(given, DatasetSpec):
        raise UserError(
            f"data: found the description of {given.title!r}; expected its Loader(spec=.., files=.., parse=..)"
        )
    if not isinstance(given, Loader):
        raise UserError(
            f"data: found {_described(given)}; expected the name of a data set ('dsa_mini'), an import path "
            "('my_data:GESTURES'), a Loader, arrays as rr.dataset(..), or a mapping of settings"
        )
    if is_stored(given.spec.name):
        return given.spec.name
    module = sys.modules.get(given.parse.__module__)
    name = next((key for key, value in vars(module).items() if value is given), None) if module else None
    if module is None or name is None:
        raise UserError(
            "data: found a Loader that no variable of a module holds; write GESTURES = Loader(..) at the top level of "
            f"the file that defines `parse` ({given.parse.__module__})"
        )
    return f"{_module_path(module, name, 'data')}:{name}"


def _backbone_value(given: BackboneLike) -> object:
    """Return a backbone's section of a configuration.

    Raises:
        UserError: it is no backbone, or a class that no import path leads to.
    """
    if isinstance(given, str):
        return import_path(given)
    if isinstance(given, type) and issubclass(given, BackboneConfig):
        return _class_path(given, "backbone")
    if isinstance(given, BackboneConfig):
        name = _class_path(type(given), "backbone") if is_own(type(given)) else backbone_name(given)
        return {**given.model_dump(mode="json"), "name": name}
    is_module = any(
        each.__module__.startswith("torch.nn") for each in (given if isinstance(given, type) else type(given)).__mro__
    )
    fix = "; return the module from a class of yours: class Mine(rr.PlainBackbone): def module(self, shape): return .."
    raise UserError(
        f"backbone: found {_described(given)}; expected a name ('cnn'), an import path ('my_module:MyBackbone') or a "
        f"BackboneConfig (class or instance){fix if is_module else ''}"
    )


def named_target(given: StrategyLike | BackboneLike | Loader) -> tuple[str, list[Setting]]:
    """Return the name or import path of a method, a backbone or a data set, and the settings of its own fields.

    Raises:
        UserError: it is none of these, or no import path leads to it.
    """
    if isinstance(given, str | Loader):
        return data_name(given), []
    if isinstance(given, BackboneConfig) or (isinstance(given, type) and issubclass(given, BackboneConfig)):
        value = _backbone_value(given)
        values = dict(value) if isinstance(value, Mapping) else {"name": value}
        return str(values.pop("name")), [*settings_of(values, "backbone.")]
    method = method_of(given)
    return method.label, [*settings_of(method.fields, "strategy.")]


def _refuse_import_of_script() -> None:
    """Check that this is not the second import of the script that runs, as which its own classes are read.

    Raises:
        UserError: it is; the call has to wait for the script itself.
    """
    path = importable_name("__main__")
    again = sys.modules.get(path) if path != "__main__" else None
    if getattr(getattr(again, "__spec__", None), "_initializing", False):
        raise UserError(
            f"{path}.py: is imported for the classes that it defines, and would start the study again; put the call "
            "of run() below `if __name__ == '__main__':`"
        )


def _metric_paths(given: object) -> list[str]:
    """Import paths of metrics, which are named or given as functions, one or several.

    Raises:
        UserError: one is neither, or a function that no import path leads to.
    """
    several = given if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    paths = []
    for one in several:
        if not isinstance(one, str | FunctionType):
            raise UserError(
                f"metrics: found {_described(one)}; expected a function of a confusion matrix (K, K), or its import "
                "path ('my_metrics:kappa')"
            )
        paths += one.split(",") if isinstance(one, str) else [_class_path(one, "metrics")]
    return paths


def _class_path(kind: type | FunctionType, key: str) -> str:
    """Import path of a class or a function, checked to lead to it.

    Raises:
        UserError: it is defined where no import finds it.
    """
    module = sys.modules.get(kind.__module__)
    if module is None or getattr(module, kind.__qualname__, None) is not kind:
        raise UserError(
            f"{key}: {_described(kind)} is not at the top level of its module ({kind.__module__}), so no import path "
            "leads to it; define it there"
        )
    return f"{_module_path(module, kind.__qualname__, key)}:{kind.__qualname__}" if is_own(kind) else path_of(kind)


def _module_path(module: ModuleType, name: str, key: str) -> str:
    """Name by which the module is imported again: of a script that runs and of a notebook, of what ``name`` needs.

    Raises:
        UserError: it has no file, and no cell of a notebook defines it.
    """
    if module.__name__ == "__main__" and (part := part_module(name, key)):
        return part
    path = importable_name(module.__name__)
    if path != "__main__":
        return path
    raise UserError(
        f"{key}: {name} is defined at a prompt, so its records could not be resumed or reproduced; put it into a file, "
        f"my_{key}.py, and import it: `from my_{key} import {name}`"
    )


def _described(value: object) -> str:
    if isinstance(value, type | FunctionType):
        return f"{'class' if isinstance(value, type) else 'function'} {value.__qualname__}"
    return f"{type(value).__name__} {value!r}"[:80]


Place = Literal["here", "ray"]
Target = str | Path | ExperimentConfig | Values | None
# Numbers may be numpy's, and several of them any iterable: a list, a range, an array.
Folds = SupportsIndex | Iterable[SupportsIndex] | None
Seeds = Iterable[SupportsIndex] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """Arguments of ``run``, which says what they are; ``target``: its experiment."""

    target: Target
    strategies: StrategyLike | Sequence[StrategyLike] | None = None
    seeds: Seeds = None
    folds: Folds = None
    rounds: int | None = None
    name: str | None = None
    claims: str | Path | None = None
    out: str | Path | None = None
    set: Values = field(default_factory=dict)
    quiet: bool = False
    other_code: bool = False
    rerun_stale: bool = False
    on: Place = "here"
    jobs: int = 1
    settings: Values = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the types of words that would fail deep inside.

        Raises:
            UserError: one has another type.
        """
        check_words({"name": self.name, "claims": self.claims, "out": self.out}, self.set)
        if self.on not in get_args(Place):
            raise UserError(f"on: found {shown(self.on)}, expected one of {', '.join(map(repr, get_args(Place)))}")
        jobs = _whole(self.jobs)
        if type(jobs) is not int or jobs < 1:
            raise UserError(f"jobs: found {shown(self.jobs)}, expected a number of runs at a time, e.g. jobs=2")

    @property
    def keywords(self) -> Collection[str]:
        """The words that messages use as keywords; all others, and keys of an object that was given, are in ``set``."""
        whole = {key for key, value in self.settings.items() if key in _OBJECTS and not isinstance(value, Mapping)}
        return ({*KEYWORDS} - {key.partition(".")[0] for key in self.set} | self.settings.keys()) - whole


# Keywords that take an object, which has no room for a further key.
_OBJECTS: Final = frozenset({"data", "backbone", "strategy"})
# Those of ``run`` itself; all others are sections or keys of the configuration.
KEYWORDS: Final = tuple(each.name for each in fields(Request) if each.name not in ("target", "settings"))


# Keys of an experiment that stand beside the configuration's.
_FURTHER: Final = ("replicates",)
_SYNONYMS: Final[Mapping[str, str]] = {"folder": "out", "directory": "out", "path": "out", "output": "out"}
_JOBS: Final = frozenset({"num_jobs", "n_jobs", "workers", "num_workers", "processes"})
# How alike a keyword must be to be named before a key of the configuration, and at all.
_SURE, _ALIKE = 0.8, 0.6


def refuse_unknown_keywords(settings: Values) -> None:
    """Check the further keywords of a call: each is a section or a key of the configuration.

    Raises:
        UserError: one is neither; the message says what to write instead.
    """
    known = [*ExperimentConfig.model_fields, *_FURTHER]
    for name, value in settings.items():
        if name in known:
            _check_section(name, value)
        elif name in _JOBS:
            number = shown(value)
            raise UserError(
                f"{name}={number}: unknown keyword; expected jobs={number}, which computes so many runs at a time, or "
                f"on='ray', runtime={{'num_hosts': {number}}}, which trains the clients of a run in so many processes"
            )
        else:
            raise UserError(f"run({name}={shown(value)}): unknown keyword; {_instead(name, value, known)}")


def _check_section(name: str, value: object) -> None:
    """Check that an object is of the section that it is given for.

    Raises:
        UserError: it is another section.
    """
    kind = type(ExperimentConfig.model_fields[name].default) if name in ExperimentConfig.model_fields else object
    if isinstance(value, BaseModel) and name not in ("strategy", "backbone") and not isinstance(value, kind):
        raise UserError(
            f"{name}: found a {type(value).__name__}, expected a {kind.__name__}, or a mapping of the keys to change: "
            f"{name}={{'..': ..}}"
        )


def _instead(name: str, value: object, known: Collection[str]) -> str:
    """Suggest a replacement for an unknown keyword."""
    if name.partition(".")[0] in known:
        return f"write set={{{name!r}: {shown(value)}}}"
    names = [*KEYWORDS, *known]
    sure = [_SYNONYMS[name]] if name in _SYNONYMS else difflib.get_close_matches(name, names, 1, _SURE)
    keys = [] if sure else [key for key in nearest_keys(name, all_keys()) if key not in known]
    alike = sure or ([] if keys else difflib.get_close_matches(name, names, 1, _ALIKE))
    if alike:
        return f"did you mean {alike[0]}={shown(value)}?"
    if keys:
        return f"write {' or '.join(as_keyword(key, value) for key in keys)}"
    return f"expected one of {', '.join(KEYWORDS)}, or a section of the configuration: {', '.join(known)}"


def check_words(words: Values, settings: object) -> None:
    """Check the types of a call's words, and of ``set``, which would fail deep inside or be read as something else.

    Raises:
        UserError: one has another type, or ``set`` holds a keyword.
    """
    if not isinstance(settings, Mapping):
        raise UserError(f"set: found {settings!r}, expected a mapping by dotted key, e.g. set={{'training.lr': 0.01}}")
    for name, value in words.items():
        kinds = str if name == "name" else (str, Path)
        if value is not None and not isinstance(value, kinds):
            what = "a text" if name == "name" else "a path"
            raise UserError(f"{name}: found {shown(value)}, expected {what}, e.g. {name}='runs/first'")
    for key in settings:
        if key in KEYWORDS and key not in ExperimentConfig.model_fields:
            value = shown(settings[key])
            raise UserError(f"set={{{key!r}: {value}}}: no key of the configuration; write {key}={value} beside set")


def plan_of(request: Request, out: Path) -> Plan:
    """Check every configuration and every folder of a study before its first run starts.

    Args:
        request: what was asked for.
        out: the study's folder; it may hold the same study, begun.

    Raises:
        UserError: something of it is wrong, or ``out`` holds another study.
    """
    _refuse_import_of_script()
    refuse_unknown_keywords(request.settings)
    spec = _base(request.target)
    spec = replace(spec, name=request.name or spec.name, claims=request.claims or spec.claims)
    given = [*_sections(request.settings), *settings_of(request.set)]
    chosen = joined(tuple(_chosen(request)), given)
    spec = _with_methods(spec, request.strategies, given)
    return Plan.of(spec, out, (*_usual(spec, given, request), *chosen))


def config_of(target: Target, set: Values, settings: Values) -> ExperimentConfig:
    """Return the configuration of the first run that ``run`` would make, or of the run in a folder, so changed.

    Raises:
        UserError: there is none, or something of it is wrong.
    """
    changes = [*_sections(settings), *settings_of(set)]
    if isinstance(target, str | Path) and Path(target).is_dir() and str(target) not in PRESETS:
        if not (Path(target) / RUN_FILE).exists():
            raise UserError(f"{target}: no {RUN_FILE} there; expected a run's folder, e.g. study.run('relief').folder")
        return target_config(str(target), changes)
    return next(each_cell(_base(target), changes)).config


def _base(target: Target) -> Spec:
    """The target as a study."""
    if target is None:
        return Spec(kind="run", name="study", title="", methods=(REFERENCE,), seeds=(0,))
    if isinstance(target, ExperimentConfig):
        for key, kind in (("strategy", type(target.strategy)), ("backbone", type(target.backbone))):
            if is_own(kind):  # found again by its import path
                _class_path(kind, key)
        values = target.model_dump(mode="json", exclude={"choice", "replicate"})
        return spec_of({key: value for key, value in values.items() if (key, value) != ("name", "run")}, "study")
    return spec_of(target, "study") if isinstance(target, Mapping) else load_spec(str(target))


def _chosen(request: Request) -> Iterator[Setting]:
    """What keywords choose, numpy's numbers as Python's.

    Raises:
        UserError: the rounds are no whole number.
    """
    for key, given in (("seeds", request.seeds), ("folds", request.folds)):
        value = _whole(given)
        if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping):
            value = list(map(_whole, value))
        if value is not None:
            yield Setting(key, value)
    if request.rounds is not None:
        rounds = Setting("rounds", _whole(request.rounds))
        if type(rounds.value) is not int:
            raise UserError(f"{rounds}: expected a whole number, e.g. rounds=6")
        yield rounds


def _whole(given: object) -> object:
    """Convert a numpy integer to a Python int; return anything else, also booleans, unchanged."""
    if isinstance(given, bool) or not isinstance(given, SupportsIndex):
        return given
    try:
        return index(given)
    except TypeError:  # an array, or true or false of numpy
        return given


def _sections(settings: Values) -> Iterator[Setting]:
    """Sections given as keywords, as settings; a data set or backbone may be named, or be the object itself."""
    for key, value in settings.items():
        section = value
        if key == "data" and isinstance(value, Mapping):
            if isinstance(value.get("name"), Loader):
                section = {**value, "name": data_name(value["name"])}
        elif key == "data" and not isinstance(value, DataConfig):
            section = {"name": data_name(cast("str | Loader | DatasetSpec", value))}
        elif key == "metrics":
            section = _metric_paths(value)
        elif key == "strategy" and not isinstance(value, str | Mapping):
            section = method_of(cast(StrategyLike, value)).values
        elif key == "backbone" and not isinstance(value, Mapping):
            section = _backbone_value(cast(BackboneLike, value))
        yield from settings_of({key: section})


def _with_methods(spec: Spec, given: StrategyLike | Sequence[StrategyLike] | None, settings: Sequence[Setting]) -> Spec:
    """The study with the methods that were asked for, variants of one as levels of its own.

    Raises:
        UserError: an empty list, one that is no method, or methods that a setting chooses too.
    """
    if given is None:
        return spec
    if isinstance(given, str):
        given = [name.strip() for name in given.split(",") if name.strip()]
    methods = [method_of(one) for one in (given if isinstance(given, Sequence) else [given])]
    if not methods:
        raise UserError("strategies: found no method, expected e.g. strategies=['fedavg', 'relief']")
    if any(setting.path in ("strategy", "strategy.name") for setting in settings):
        raise UserError("strategies and set['strategy']: choose the same; leave one of them out")
    own: dict[str, dict[str, Level]] = {}
    for method in methods:
        own.setdefault(method.label, {})[method.level.name] = method.level
    return replace(with_methods(spec, tuple(own)), own={label: tuple(levels.values()) for label, levels in own.items()})


def _usual(spec: Spec, settings: Sequence[Setting], request: Request) -> Iterator[Setting]:
    """Settings that a program's study has unless it says otherwise: where it runs, and no copy in MLflow.

    Raises:
        UserError: a loop in this process was asked to use Ray.
    """
    mode = mode_asked(spec.settings, settings, request.jobs, alone="packed")
    if request.on == "here" and request.jobs == 1:
        own = runtime_of(spec.settings, settings).get("mode")
        if is_mode_chosen(settings) and own != "inline":
            raise UserError(
                f"runtime.mode = {own!r}: run computes in this process, expected on='ray' with it, or no such setting"
            )
        mode = "inline"
    if mode is not None:
        yield Setting(MODE, mode)
    if not any(setting.path.partition(".")[0] == "tracking" for setting in settings):
        yield Setting("tracking.enabled", False)
