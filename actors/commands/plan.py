"""From a preset or a file to the runs it means: their configurations, their folders, and what is already done."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import JsonValue

from actors.commands.folders import Cell, state_of, why_stale, with_state
from relief_ray.config import ExperimentConfig, override, parse, preset, read_values
from relief_ray.errors import UserError, nearest
from relief_ray.experiment.lifecycle import stored_engine
from relief_ray.experiment.setup import Setup, prepare
from relief_ray.files import disk_errors, replace_file, unused
from relief_ray.plugins import is_path
from relief_ray.records.lock import FileLock
from relief_ray.records.redact import MASK, redact
from relief_ray.records.run_folder import LOCK_FILE, RUN_FILE, read_rounds, read_run
from tune_configs.presets import PRESETS, Preset

PLAN_FILE = "plan.json"

SUFFIXES = (".yaml", ".yml", ".json")


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """All runs of one command, in order, below ``out``."""

    name: str
    out: Path
    cells: tuple[Cell, ...]


def load_preset(target: str) -> Preset:
    """A preset by name, or a configuration file as a preset of one run.

    Raises:
        UserError: neither; the nearest preset is named.
    """
    if target in PRESETS:
        return PRESETS[target]()
    path = Path(target)
    if path.suffix in SUFFIXES or path.is_file():
        return from_file(path)
    raise UserError(
        f"preset {target!r}: unknown{nearest(target, PRESETS)}; expected {', '.join(PRESETS)}, or a file (FILE.yaml)"
    )


def from_file(path: Path) -> Preset:
    """A configuration file: its own strategy, seed and fold."""
    values = read_values(path)
    strategy = values.pop("strategy", "fedavg")
    name = strategy.get("name") if isinstance(strategy, dict) else strategy
    if isinstance(strategy, dict):
        values["strategy"] = strategy
    return Preset(name=str(values.get("name", path.stem)), title=str(path), strategies=(str(name),), values=values)


def make_plan(target: str, settings: Sequence[str], strategies: str | None, out: Path | None) -> Plan:
    """Checks every configuration and every folder before the first run starts.

    Raises:
        UserError: any of them is wrong.
    """
    chosen = load_preset(target)
    if strategies is not None:
        chosen = replace_strategies(chosen, strategies)
    place = out or Path("runs") / chosen.name
    cells = tuple(look(cell) for cell in cells_of(chosen, settings, place))
    return Plan(name=chosen.name, out=place, cells=cells)


def replace_strategies(chosen: Preset, names: str) -> Preset:
    """The preset with the strategies of ``a,b``.

    Raises:
        UserError: an unknown strategy; the nearest is named.
    """
    listed = tuple(name.strip() for name in names.split(",") if name.strip())
    if not listed:
        raise UserError("--strategies: found no name, expected e.g. --strategies fedavg,relief")
    values = {key: value for key, value in chosen.values.items() if key != "strategy"}
    return Preset(
        name=chosen.name, title=chosen.title, strategies=listed, values=values, folds=chosen.folds, seeds=chosen.seeds
    )


def cells_of(chosen: Preset, settings: Sequence[str], out: Path) -> Iterator[Cell]:
    """One run per seed, fold and strategy; an axis that ``settings`` fix, or that the split lacks, has no effect."""
    fixed = {setting.partition("=")[0] for setting in settings}
    asked = override(chosen.values, settings)
    folds: Sequence[int | None] = chosen.folds if split_of(asked) == "held_out_subject" else ()
    seeds: Sequence[int | None] = chosen.seeds if "seed" not in chosen.values else ()
    labels = chosen.strategies if not {"strategy", "strategy.name"} & fixed else (strategy_of(asked),)
    for seed in (None,) if "seed" in fixed else seeds or (None,):
        for fold in (None,) if "data.fold" in fixed else folds or (None,):
            for label in dict.fromkeys(labels):
                yield cell_of(chosen, settings, out, label, fold, seed)


def strategy_of(values: Mapping[str, object]) -> str:
    """The strategy's name in unchecked values."""
    strategy = values.get("strategy")
    return str(strategy.get("name") if isinstance(strategy, dict) else strategy)


def split_of(values: Mapping[str, object]) -> object:
    """The split that unchecked values ask for."""
    data = values.get("data")
    return data.get("split") if isinstance(data, dict) else None


def cell_of(chosen: Preset, settings: Sequence[str], out: Path, label: str, fold: int | None, seed: int | None) -> Cell:
    """One configuration: preset, then axes, then the user's settings."""
    check_strategy(label)
    axes = ([] if fold is None else [f"data.fold={fold}"]) + ([] if seed is None else [f"seed={seed}"])
    values = {"strategy": {"name": label}, **chosen.values}
    config = parse(override(values, [*axes, *settings]), f"{chosen.name} ({label})")
    held_out = [f"f{config.data.fold}"] if config.data.split == "held_out_subject" else []
    parts = [label.replace(":", "."), *held_out, f"s{config.seed}"]
    title = "-".join([chosen.name, label, *parts[1:]])
    named = config if "name" in config.model_fields_set else config.model_copy(update={"name": title})
    return Cell(label=label, folder=out / "-".join(parts), config=named)


def check_strategy(name: str) -> None:
    """Turns an unknown strategy into an error for users."""
    try:
        if not is_path(name):
            preset(name)
    except ValueError as error:
        raise UserError(str(error)) from error


def look(cell: Cell) -> Cell:
    """The cell with its folder's state; what is there must be the same run.

    Raises:
        UserError: the folder holds another run, an unfinished one, or is in use.
    """
    state = state_of(cell)
    if state == "unfinished" and read_rounds(cell.folder):
        raise UserError(
            f"{cell.folder}: this run was begun and is not finished; go on with: relief-ray resume {cell.folder}"
        )
    return Cell(label=cell.label, folder=cell.folder, config=cell.config, state=state)


def set_stale_aside(plan: Plan) -> Plan:
    """Moves stale finished runs to ``stale/``, so that they are computed again."""
    return replace(plan, cells=tuple(_fresh(cell, plan.out / "stale") for cell in plan.cells))


def _fresh(cell: Cell, aside: Path) -> Cell:
    if cell.state != "finished" or why_stale(run := read_run(cell.folder), cell.config) is None:
        return cell
    target = unused(aside / f"{cell.folder.name}-{run.source_digest[:8]}")
    with disk_errors(target, "set the stale run aside"), FileLock(cell.folder / LOCK_FILE, "the run folder"):
        aside.mkdir(exist_ok=True)
        cell.folder.rename(target)
    return replace(cell, state="new")


def write_plan(plan: Plan) -> None:
    """Adds the runs to ``plan.json`` in the output folder, so that `relief-ray resume` can complete all of it.

    Raises:
        UserError: the folder cannot be written.
    """
    path = plan.out / PLAN_FILE
    with disk_errors(plan.out, "write the plan"):
        plan.out.mkdir(parents=True, exist_ok=True)
    with FileLock(plan.out / "plan.lock", "the plan"):
        planned = {cell.folder.name for cell in plan.cells}
        _, earlier = _rows(path) if path.exists() else ("", [])
        cells = [{"label": a, "folder": b, "config": c} for a, b, c in earlier if b not in planned]
        cells += [
            {"label": c.label, "folder": c.folder.name, "config": redact(c.config.model_dump(mode="json"))}
            for c in plan.cells
        ]
        replace_file(path, (json.dumps({"name": plan.name, "cells": cells}, indent=1) + "\n").encode())


def _rows(path: Path) -> tuple[str, list[tuple[str, str, dict[str, JsonValue]]]]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        rows = [(str(row["label"]), str(row["folder"]), dict(row["config"])) for row in found["cells"]]
        return str(found["name"]), rows
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: damaged ({error!r}), expected what `relief-ray run` wrote; resume its runs one by one"
        ) from error


def read_plan(folder: Path, settings: Sequence[str] = ()) -> Plan:
    """What is still to do of a plan, or of a single run's folder; ``settings`` may change how, not what is computed.

    Raises:
        UserError: neither a plan nor a run is there, or it cannot be read.
    """
    refuse_other_than(("runtime.", "tracking."), settings)
    path = folder / PLAN_FILE
    if not path.exists():
        run = read_run(folder)
        config = parse(override(run.config, settings), str(folder / RUN_FILE))
        refuse_masked(config, folder)
        cell = Cell(label=run.strategy, folder=folder, config=config)
        return Plan(name=run.name, out=folder, cells=(with_state(cell),))
    name, rows = _rows(path)
    cells = [
        Cell(label=label, folder=folder / sub, config=parse(override(values, settings), str(path)))
        for label, sub, values in rows
    ]
    for cell in cells:
        refuse_masked(cell.config, folder)
    return Plan(name=name, out=folder, cells=tuple(with_state(cell) for cell in cells))


def refuse_masked(config: ExperimentConfig, folder: Path) -> None:
    """Credentials are not kept, so a resume has to name a store that needs them again.

    Raises:
        UserError: it did not.
    """
    uri = config.tracking.uri
    if config.tracking.enabled and uri is not None and MASK in uri:
        raise UserError(
            f"{folder}: credentials of tracking.uri = {uri} are not kept; give them again with --set tracking.uri=..., "
            "or go on with --set tracking.enabled=false"
        )


def refuse_other_than(sections: tuple[str, ...], settings: Sequence[str]) -> None:
    """A resume continues the same computation.

    Raises:
        UserError: a setting that would change it.
    """
    for setting in settings:
        if not setting.startswith(sections) or setting.startswith("runtime.num_threads"):
            raise UserError(
                f"--set {setting}: a resume may only change tracking.* and runtime.* (but num_threads, which decides "
                "bits); start a new run instead"
            )


# Opens what a command that trains nothing looks at: a preset, a file, or a run folder.


def open_target(target: str, settings: Sequence[str], strategy: str | None = None) -> Setup:
    """The first run that `relief-ray run TARGET` would make, or the run in a folder, with ``settings`` applied.

    Raises:
        UserError: the target is neither, or its data are not there.
    """
    return prepare(target_config(target, [*settings, *([f"strategy={strategy}"] if strategy else [])]))


def target_config(target: str, settings: Sequence[str]) -> ExperimentConfig:
    """Its configuration."""
    folder = Path(target)
    if (folder / RUN_FILE).exists():
        return parse(override(read_run(folder).config, settings), str(folder / RUN_FILE))
    return next(cells_of(load_preset(target), settings, folder)).config


def open_run(folder: Path) -> Setup:
    """A run as it was started, to be looked at while it may be running.

    Raises:
        UserError: no run is there, or its data are gone.
    """
    run = read_run(folder)
    return prepare(parse(run.config, str(folder / RUN_FILE)), engine=stored_engine(run))
