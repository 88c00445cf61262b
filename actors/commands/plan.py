"""From a preset or a file to the runs it means: their configurations, their folders, and what is already done."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import JsonValue

from relief_ray.config import ExperimentConfig, nearest, override, parse, preset, read_values
from relief_ray.errors import UserError
from relief_ray.records.atomic import disk_errors, replace_file
from relief_ray.records.exporting import flat_params
from relief_ray.records.identity import config_hash
from relief_ray.records.ledger import LOCK_FILE
from relief_ray.records.lock import FileLock
from relief_ray.records.reading import RUN_FILE, read_run
from tune_configs.presets import PRESETS, Preset

PLAN_FILE = "plan.json"
SUFFIXES = (".yaml", ".yml", ".json")
State = Literal["new", "unfinished", "finished"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One run: ``label`` is what its strategy was called, ``state`` what its folder held when the plan was made."""

    label: str
    folder: Path
    config: ExperimentConfig
    state: State = "new"

    def title(self) -> str:
        """``relief, fold 0, seed 0``."""
        data = self.config.data
        fold = [f"fold {data.fold}"] if data.split == "held_out_subject" else []
        return ", ".join([self.label, *fold, f"seed {self.config.seed}"])


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
    held_out = split_of(override(chosen.values, settings)) == "held_out_subject"
    folds: Sequence[int | None] = chosen.folds if held_out and "data.fold" not in fixed else ()
    seeds: Sequence[int | None] = chosen.seeds if "seed" not in fixed and "seed" not in chosen.values else ()
    for seed in seeds or (None,):
        for fold in folds or (None,):
            for label in dict.fromkeys(chosen.strategies):
                yield cell_of(chosen, settings, out, label, fold, seed)


def split_of(values: Mapping[str, object]) -> object:
    """The split that unchecked values ask for."""
    data = values.get("data")
    return data.get("split") if isinstance(data, dict) else None


def cell_of(chosen: Preset, settings: Sequence[str], out: Path, label: str, fold: int | None, seed: int | None) -> Cell:
    """One configuration: preset, then axes, then the user's settings."""
    check_strategy(label)
    axes = ([] if fold is None else [f"data.fold={fold}"]) + ([] if seed is None else [f"seed={seed}"])
    values = {"name": f"{chosen.name}-{label}", "strategy": {"name": label}, **chosen.values}
    config = parse(override(values, [*axes, *settings]), f"{chosen.name} ({label})")
    parts = [label, *([f"f{config.data.fold}"] if config.data.split == "held_out_subject" else []), f"s{config.seed}"]
    return Cell(label=label, folder=out / "-".join(parts), config=config)


def check_strategy(name: str) -> None:
    """Turns an unknown strategy into an error for users."""
    try:
        preset(name)
    except ValueError as error:
        raise UserError(str(error)) from error


def look(cell: Cell) -> Cell:
    """The cell with its folder's state; what is there must be the same run.

    Raises:
        UserError: the folder holds another run, an unfinished one, or is in use.
    """
    state = state_of(cell)
    if state == "unfinished":
        raise UserError(
            f"{cell.folder}: this run was begun and is not finished; go on with: relief-ray resume {cell.folder}"
        )
    return Cell(label=cell.label, folder=cell.folder, config=cell.config, state=state)


def state_of(cell: Cell) -> State:
    """What the folder holds of this very run.

    Raises:
        UserError: it holds another run, or another driver is at work there.
    """
    if not (cell.folder / RUN_FILE).exists():
        return "new"
    run = read_run(cell.folder)
    if run.config_hash != config_hash(cell.config.hashed()):
        raise UserError(
            f"{cell.folder}: holds another run ({difference(run.config, cell.config)}); choose a folder with --out DIR"
        )
    if run.status == "finished":
        return "finished"
    with FileLock(cell.folder / LOCK_FILE, "the run folder"):
        return "unfinished"


def difference(found: Mapping[str, JsonValue], config: ExperimentConfig) -> str:
    """The first keys in which a recorded configuration differs: ``rounds is 8 there, asked: 2``."""
    there, here = flat_params(found), flat_params(config.model_dump(mode="json"))
    keys = [
        k for k in here | there if here.get(k) != there.get(k) and not k.startswith(("name", "runtime.", "tracking."))
    ]
    lines = [f"{k} is {there.get(k, 'unset')} there, asked: {here.get(k, 'unset')}" for k in keys]
    return "; ".join(lines[:3]) + (f"; and {len(lines) - 3} more" if len(lines) > 3 else "")


def write_plan(plan: Plan) -> None:
    """Leaves ``plan.json`` in the output folder, so that `relief-ray resume` can complete all of it.

    Raises:
        UserError: the folder cannot be written.
    """
    with disk_errors(plan.out, "write the plan"):
        plan.out.mkdir(parents=True, exist_ok=True)
    cells = [
        {"label": c.label, "folder": c.folder.name, "config": c.config.model_dump(mode="json")} for c in plan.cells
    ]
    replace_file(plan.out / PLAN_FILE, (json.dumps({"name": plan.name, "cells": cells}, indent=1) + "\n").encode())


def read_plan(folder: Path) -> Plan:
    """What is still to do of a plan, or of a single run's folder.

    Raises:
        UserError: neither a plan nor a run is there, or it cannot be read.
    """
    path = folder / PLAN_FILE
    if not path.exists():
        run = read_run(folder)
        cell = Cell(label=run.strategy, folder=folder, config=parse(run.config, str(folder / RUN_FILE)))
        return Plan(name=run.name, out=folder, cells=(with_state(cell),))
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        rows = [(str(row["label"]), str(row["folder"]), dict(row["config"])) for row in found["cells"]]
        name = str(found["name"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: damaged ({error!r}), expected what `relief-ray run` wrote; resume its runs one by one"
        ) from error
    cells = (Cell(label=label, folder=folder / sub, config=parse(values, str(path))) for label, sub, values in rows)
    return Plan(name=name, out=folder, cells=tuple(with_state(cell) for cell in cells))


def with_state(cell: Cell) -> Cell:
    """The cell with its folder's state, whatever that is."""
    return Cell(label=cell.label, folder=cell.folder, config=cell.config, state=state_of(cell))


def find_runs(folders: Sequence[Path]) -> list[Path]:
    """Run folders among and directly below ``folders``, in the order named.

    Raises:
        UserError: a folder holds none.
    """
    found: list[Path] = []
    for folder in folders:
        inside = [folder] if (folder / RUN_FILE).exists() else sorted(p.parent for p in folder.glob(f"*/{RUN_FILE}"))
        if not inside:
            raise UserError(
                f"{folder}: no {RUN_FILE} there or one folder below; name a folder that `relief-ray run` made"
            )
        found += inside
    return list(dict.fromkeys(found))
