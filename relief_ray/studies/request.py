"""A study as a program asks for it: preset, file, configuration or keywords, turned into a checked plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import index
from pathlib import Path
from typing import SupportsIndex, cast

from relief_ray.config.experiment import ExperimentConfig, override
from relief_ray.data.loader import DatasetSpec, Loader
from relief_ray.records.run_folder import RUN_FILE
from relief_ray.strategies import REFERENCE
from relief_ray.studies.axes import Axes, with_axes
from relief_ray.studies.cells import Cell, lone_seed
from relief_ray.studies.keywords import Place, check_words, refuse_unknown_keywords
from relief_ray.studies.objects import (
    BackboneLike,
    Method,
    StrategyLike,
    backbone_value,
    data_name,
    method_of,
    refuse_import_of_script,
    refuse_unnamed,
    settings_of,
)
from relief_ray.studies.plan import cells_of, check_folder, load_preset, preset_of, refuse_others, target_config
from relief_ray.studies.plans import Plan
from relief_ray.studies.presets import PRESETS, Preset
from relief_ray.support.errors import UserError, shown

Target = str | Path | ExperimentConfig | Mapping[str, object] | None
# Numbers may be numpy's, and several of them any iterable: a list, a range, an array.
Folds = SupportsIndex | Iterable[SupportsIndex] | None
Seeds = Iterable[SupportsIndex] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """Arguments of ``run``.

    Attributes:
        target: name of a preset, a file, a configuration (object or mapping), or None: the defaults.
        strategies: methods, in place of the target's; a text may name several, ``fedavg,relief``.
        seeds: seeds, in place of the target's seeds or replicates.
        folds: folds of the held-out subjects, in place of the target's; a number: that one.
        rounds: rounds of every run.
        name: name of the study; None: the target's.
        claims: file with the claims that the runs are to judge; None: the target's.
        set: values by dotted key.
        settings: sections of the configuration by name.
    """

    target: Target
    strategies: StrategyLike | Sequence[StrategyLike] | None = None
    seeds: Seeds = None
    folds: Folds = None
    rounds: int | None = None
    name: str | None = None
    claims: str | Path | None = None
    set: Mapping[str, object] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)


def plan_of(request: Request, out: Path, place: Place) -> Plan:
    """Check every configuration and every folder of a study before its first run starts.

    Args:
        request: what was asked for.
        out: the study's folder; it may hold the same study, begun.
        place: ``here`` for a loop in this process, ``ray`` for Ray workers.

    Raises:
        UserError: something of it is wrong, or ``out`` holds another study.
    """
    refuse_import_of_script()
    check_words({"name": request.name, "claims": request.claims}, request.set)
    refuse_unknown_keywords(request.settings, place)
    chosen = _base(request.target)
    axes = Axes(
        strategies=None,
        seeds=_numbers("seeds", request.seeds),
        folds=_numbers("folds", request.folds),
        rounds=None if request.rounds is None else _whole_number("rounds", request.rounds),
    )
    chosen, settings = with_axes(chosen, axes, [*_sections(request.settings), *settings_of(request.set)])
    chosen = replace(chosen, name=request.name or chosen.name, claims=str(request.claims or chosen.claims))
    methods = _methods(request, chosen, settings)
    cells = _cells(chosen, methods, [*_usual(chosen, settings, place), *settings])
    source = Path(chosen.claims) if chosen.claims else None
    plan = Plan(name=chosen.name, out=out, cells=cells, claims_file=source)
    for cell in plan.cell_folders():
        check_folder(cell)
    return plan


def config_of(target: Target, set: Mapping[str, object], settings: Mapping[str, object]) -> ExperimentConfig:
    """Return the configuration of the first run that ``run`` would make, or of the run in a folder, so changed.

    Raises:
        UserError: there is none, or something of it is wrong.
    """
    changes = [*_sections(settings), *settings_of(set)]
    if isinstance(target, str | Path) and Path(target).is_dir() and str(target) not in PRESETS:
        if not (Path(target) / RUN_FILE).exists():
            raise UserError(f"{target}: no {RUN_FILE} there; expected a run's folder, e.g. study.run('relief').folder")
        return target_config(str(target), changes)
    return next(cells_of(_base(target), changes)).config


def _base(target: Target) -> Preset:
    """The target as a preset."""
    if target is None:
        return Preset(name="study", title="", strategies=(REFERENCE,), values={})
    if isinstance(target, ExperimentConfig):
        refuse_unnamed(target)
        values = target.model_dump(mode="json", exclude={"choice", "replicate"})
        return preset_of({key: value for key, value in values.items() if (key, value) != ("name", "run")}, "study")
    if isinstance(target, Mapping):
        return preset_of(dict(target), "study")
    return load_preset(str(target))


def _numbers(key: str, given: object) -> tuple[int, ...] | None:
    """Numbers of seeds or folds; 3 is fold 3.

    Raises:
        UserError: no numbers from 0 on, or a single seed, which could be a number of seeds.
    """
    if given is None:
        return None
    alone = _whole(given)
    if key == "seeds" and alone is not None and alone >= 0:
        raise lone_seed(f"seeds={given}", alone, "seeds=range({number})", "seeds=[{number}]")
    several = list(given) if isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping) else []
    found = [_whole(each) for each in several] if alone is None or key == "seeds" else [alone]
    numbers = [number for number in found if number is not None and number >= 0]
    if not numbers or len(numbers) < len(found):
        many = "" if key == "seeds" else "a fold or "
        raise UserError(f"{key}: found {shown(given)}, expected {many}a list of numbers from 0 on, e.g. {key}=[0, 1]")
    return tuple(dict.fromkeys(numbers))


def _whole(given: object) -> int | None:
    """The whole number that a value is, numpy's too; None: it is none, or true or false."""
    if isinstance(given, bool) or not isinstance(given, SupportsIndex):
        return None
    try:
        return index(given)
    except TypeError:  # an array, or true or false of numpy
        return None


def _whole_number(key: str, given: object) -> int:
    """The whole number.

    Raises:
        UserError: it is none.
    """
    number = _whole(given)
    if number is None:
        raise UserError(f"{key}: found {shown(given)}, expected a whole number, e.g. {key}=6")
    return number


def _sections(settings: Mapping[str, object]) -> Iterator[str]:
    """Sections given as keywords, as settings; a data set or backbone may be named, or be the object itself."""
    for key, value in settings.items():
        if key == "data" and isinstance(value, str | Loader | DatasetSpec):
            yield f"data.name={data_name(value)}"
        elif key == "data" and isinstance(value, Mapping) and isinstance(value.get("name"), Loader):
            yield from settings_of({key: {**value, "name": data_name(value["name"])}})
        elif key == "strategy" and not isinstance(value, str | Mapping):
            yield from settings_of({key: method_of(cast(StrategyLike, value)).values})
        elif key == "backbone" and not isinstance(value, Mapping):
            yield from settings_of({key: backbone_value(cast(BackboneLike, value))})
        else:
            yield from settings_of({key: value})


def _methods(request: Request, chosen: Preset, settings: Sequence[str]) -> list[Method | None]:
    """The methods that were asked for; [None]: those of the preset.

    Raises:
        UserError: an empty list, one that is no method, or two with one name.
    """
    given = request.strategies
    if given is None:
        return [None]
    if isinstance(given, str):
        given = [name.strip() for name in given.split(",") if name.strip()]
    is_several = isinstance(given, Sequence) and not isinstance(given, str)
    methods = [method_of(cast(StrategyLike, one)) for one in (cast(Sequence[object], given) if is_several else [given])]
    if not methods:
        raise UserError("strategies: found no method, expected e.g. strategies=['fedavg', 'relief']")
    if any(setting.partition("=")[0] in ("strategy", "strategy.name") for setting in settings):
        raise UserError("strategies and set['strategy']: choose the same; leave one of them out")
    return list({method.label + method.suffix: method for method in methods}.values())


def _cells(chosen: Preset, methods: Sequence[Method | None], settings: Sequence[str]) -> tuple[Cell, ...]:
    """Cells in the order of computation: all methods of one seed and fold before the next."""
    by_method, labels = [], [method.label for method in methods if method is not None]
    for label in labels:
        refuse_others(settings, label, labels)
    for method in methods:
        if method is None:
            by_method.append(list(cells_of(chosen, settings)))
            continue
        values = {**chosen.values, "strategy": method.values}
        one = replace(chosen, strategies=(method.label,), values=values)
        by_method.append([_renamed(cell, method) for cell in cells_of(one, settings)])
    return tuple(cell for block in zip(*by_method, strict=True) for cell in block)


def _renamed(cell: Cell, method: Method) -> Cell:
    """The cell in a folder that names the fields in which its method differs from the preset."""
    if not method.suffix:
        return cell
    head = cell.label.replace(":", ".")
    config = cell.config.model_copy(update={"name": f"{cell.config.name}{method.suffix}"})
    return replace(cell, name=f"{head}{method.suffix}{cell.name.removeprefix(head)}", config=config)


def _usual(chosen: Preset, settings: Sequence[str], place: Place) -> Iterator[str]:
    """Settings that a program's study has unless it says otherwise: where it runs, and no copy in MLflow.

    Raises:
        UserError: a loop in this process was asked to use Ray.
    """
    runtime = override(chosen.values, settings).get("runtime")
    mode = runtime.get("mode") if isinstance(runtime, Mapping) else None
    is_chosen = any(setting.startswith(("runtime.mode=", "runtime={")) for setting in settings)
    if place == "here":
        if is_chosen and mode != "inline":
            raise UserError(
                f"runtime.mode = {mode!r}: relief_ray.run computes in this process, expected no such setting; "
                "actors.run takes the same words and runs on Ray"
            )
        yield "runtime.mode=inline"
    elif mode in (None, "inline") and not is_chosen:
        yield "runtime.mode=packed"
    if not any(setting.startswith(("tracking.", "tracking={")) for setting in settings):
        yield "tracking.enabled=false"
