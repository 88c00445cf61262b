"""Inventory of folders: one item per planned or existing run, with its state and the reason if it is not done."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import JsonValue

from relief_ray.citations import shown
from relief_ray.errors import UserError
from relief_ray.records.identity import config_hash
from relief_ray.records.redact import mask_text
from relief_ray.records.run_folder import RUN_FILE, read_rounds, read_run
from relief_ray.report.runs import Loaded, below, config_value
from relief_ray.strategies import PRESETS

PLANS = ("grid.json", "plan.json")
ERROR_FILE = "error.json"
State = Literal["done", "unfinished", "failed", "missing", "untested"]
STATES: Mapping[State, str] = {
    "done": "finished and evaluated on the test part",
    "unfinished": "begun, not all rounds are there",
    "failed": "ended with an error, or its files are damaged",
    "missing": "planned, never begun",
    "untested": "finished, but never evaluated on the test part",
}
# Of several folders of one cell, the first of these states counts.
_RANK: tuple[State, ...] = ("done", "untested", "unfinished", "failed", "missing")
# Keys of a configuration that do not define the experiment.
NOT_HASHED = frozenset({"name", "runtime", "tracking", "choice"})

Named = tuple[str, Mapping[str, JsonValue]]

_PRESETS: Mapping[str, Mapping[str, JsonValue]] = {shown(k): s.model_dump(mode="json") for k, s in PRESETS.items()}


def variant_names(methods: Sequence[Named]) -> list[str]:
    """A name for each (label, configuration): ``relief``, and ``relief (gamma=0.5)`` where 0.5 is not the preset's.

    The bare name belongs to the preset itself, so a name does not depend on which other cells are there. A user's own
    method has no preset: where its cells differ, each one names the fields. Fields that a search varies do not count.
    """
    sections = [(label, _section(config)) for label, config in methods]
    namesakes: dict[str, list[Mapping[str, JsonValue]]] = {}
    for label, strategy in sections:
        namesakes.setdefault(label, []).append(strategy)
    return [_variant_name(label, strategy, namesakes[label]) for label, strategy in sections]


def choice_kind(config: Mapping[str, JsonValue]) -> str:
    """``tuned`` where a search chose values, ``try`` for one of its tries, else empty."""
    choice = config.get("choice")
    return str(choice.get("kind") or "") if isinstance(choice, dict) else ""


def chosen_keys(config: Mapping[str, JsonValue]) -> tuple[str, ...]:
    """The dotted keys of the values that the search varies."""
    choice = config.get("choice")
    keys = choice.get("parameters") if isinstance(choice, dict) else None
    return tuple(str(k) for k in keys) if isinstance(keys, list | tuple) else ()


def searched_keys(configs: Iterable[Mapping[str, JsonValue]]) -> tuple[str, ...]:
    """Union of ``chosen_keys``: a search varies a key for some methods that others keep."""
    return tuple(dict.fromkeys(key for config in configs for key in chosen_keys(config)))


def _section(config: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    strategy, chosen = config.get("strategy"), chosen_keys(config)
    return {k: v for k, v in strategy.items() if f"strategy.{k}" not in chosen} if isinstance(strategy, dict) else {}


def _variant_name(label: str, mine: Mapping[str, JsonValue], namesakes: Sequence[Mapping[str, JsonValue]]) -> str:
    preset = _PRESETS.get(label)
    if preset is not None:
        # A field that the preset no longer has is of an older program, which tables mark as other code.
        keys = [k for k in mine if k != "name" and k in preset and mine[k] != preset[k]]
    else:
        keys = [k for k in mine if any(other.get(k) != mine[k] for other in namesakes)]
    own = ", ".join(f"{k}={mine[k]}" for k in sorted(keys))
    return f"{label} ({own})" if own else label


@dataclass(frozen=True, kw_only=True, slots=True)
class GridItem:
    """A planned or existing run.

    Attributes:
        name: its folder's path below the folder that was named, ``f0-relief``.
        label: name of its method.
        config: its configuration; empty where it cannot be read.
        state: one of ``STATES``.
        why: reason for a state other than done.
        loaded: its record and rounds, where they can be read.
        repeats: finished runs of the same cell elsewhere; they enter no mean.
    """

    name: str
    label: str
    config: Mapping[str, JsonValue]
    state: State
    why: str = ""
    loaded: Loaded | None = None
    repeats: tuple[Loaded, ...] = ()

    @property
    def title(self) -> str:
        """Method, fold and seed in words."""
        fold, seed = (config_value(self.config, path) or 0 for path in ("data.fold", "seed"))
        return f"{self.label}, fold {fold}, seed {seed}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Inventory:
    """All items in the order of their plans; ``titles``: of the plans."""

    items: tuple[GridItem, ...]
    titles: tuple[str, ...] = ()

    @property
    def done(self) -> tuple[Loaded, ...]:
        """Finished and tested runs, which tables use."""
        return tuple(s.loaded for s in self.items if s.state == "done" and s.loaded is not None)

    def count(self, state: State) -> int:
        """Number of items in that state."""
        return sum(s.state == state for s in self.items)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Plan:
    title: str
    rows: tuple[tuple[Path, str, Mapping[str, JsonValue]], ...]


def take_inventory(paths: Iterable[Path]) -> Inventory:
    """Inventory of everything below the paths: plans (``grid.json``, ``plan.json``) and run folders.

    A cell that is damaged, failed, unfinished or missing is kept with its state; nothing of it enters a mean. A cell
    that several folders plan or hold is one: it is done where any of them finished it.

    Raises:
        UserError: a path holds neither a plan nor a run.
    """
    items: dict[str, GridItem] = {}
    titles: list[str] = []
    for path in map(Path, paths):
        below_path, plan_titles = _folder(path)
        titles += plan_titles
        for key, item in below_path:
            items.setdefault(key, item)
    return Inventory(items=labelled(merged(items.values())), titles=tuple(dict.fromkeys(titles)))


def labelled(items: Sequence[GridItem]) -> tuple[GridItem, ...]:
    """The items with the name of their method's variant, planned and finished ones alike."""
    names = variant_names([(s.label, s.config) for s in items])
    return tuple(replace(s, label=name) for s, name in zip(items, names, strict=True))


def merged(items: Iterable[GridItem]) -> tuple[GridItem, ...]:
    """One item per configuration (and per origin of data and engine, where several finished), in order."""
    groups: dict[str, list[GridItem]] = {}
    for item in items:
        decisive = {k: v for k, v in item.config.items() if k not in NOT_HASHED}
        key = choice_kind(item.config) + config_hash(decisive) if item.config else item.name
        groups.setdefault(key, []).append(item)
    return tuple(item for group in groups.values() for item in _one(group))


def _one(same: Sequence[GridItem]) -> Iterable[GridItem]:
    best = min(same, key=lambda s: _RANK.index(s.state))
    places: dict[tuple[str, str], list[Loaded]] = {}
    for loaded in (s.loaded for s in same if s.state == "done" and s.loaded is not None):
        places.setdefault((loaded.run.data_origin, loaded.run.engine), []).append(loaded)
    if not places:
        yield best
    for first, *others in places.values():
        item = next(s for s in same if s.loaded is first)
        yield replace(item, repeats=tuple(others))


def _folder(path: Path) -> tuple[list[tuple[str, GridItem]], list[str]]:
    plans = [read_plan_file(p) for name in PLANS for p in below(path, name)]
    planned = {str(folder.resolve()): (folder, label, config) for p in plans for folder, label, config in p.rows}
    items = [(key, look(_name(row[0], path), *row)) for key, row in planned.items()]
    others = [p.parent for p in below(path, RUN_FILE) if str(p.parent.resolve()) not in planned]
    items += [(str(folder.resolve()), look(_name(folder, path), folder, folder.name, {})) for folder in others]
    if not plans and not items:
        raise UserError(
            f"{path}: found no {RUN_FILE} and no {' or '.join(PLANS)} in or below it; name folders that "
            "`relief-ray run` or `relief-ray grid` made"
        )
    return items, [p.title for p in plans if p.title]


def _name(folder: Path, top: Path) -> str:
    """``f0/relief`` becomes ``f0-relief``."""
    return "-".join(folder.relative_to(top).parts) or folder.resolve().name


def read_plan_file(path: Path) -> _Plan:
    """The cells that a grid or a run meant to compute.

    Raises:
        UserError: the file is damaged.
    """
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
        rows = [(path.parent / r["folder"], shown(str(r["label"])), dict(r["config"])) for r in plan["cells"]]
        return _Plan(title=str(plan.get("title") or plan["name"]), rows=tuple(rows))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path}: damaged ({error!r}), expected a plan; start the same command again, or move the file away"
        ) from error


def look(name: str, folder: Path, label: str, config: Mapping[str, JsonValue]) -> GridItem:
    """Item for a cell's folder, with its state."""
    error = read_error(folder)
    if not (folder / RUN_FILE).exists():
        state: State = "missing" if error is None else "failed"
        return GridItem(name=name, label=label, config=config, state=state, why=error or "")
    try:
        loaded = Loaded(where=str(folder.resolve()), run=read_run(folder), rounds=read_rounds(folder))
    except UserError as damaged:
        return GridItem(name=name, label=label, config=config, state="failed", why=str(damaged))
    return _item(loaded, name, error)


def read_error(folder: Path) -> str | None:
    """Reason of a cell's failure in one line, as the grid kept it; None where it did not fail."""
    path = folder / ERROR_FILE
    if not path.exists():
        return None
    try:
        return mask_text(str(json.loads(path.read_text(encoding="utf-8"))["error"])).split("\n")[0]
    except (OSError, ValueError, KeyError, TypeError):
        return f"failed; its {ERROR_FILE} is damaged"


def _item(loaded: Loaded, name: str, error: str | None) -> GridItem:
    state, why = _state(loaded, error)
    return GridItem(name=name, label=loaded.label, config=loaded.run.config, state=state, why=why, loaded=loaded)


def _state(loaded: Loaded, error: str | None) -> tuple[State, str]:
    run, last = loaded.run, loaded.rounds[-1].round if loaded.rounds else 0
    if loaded.complete:
        tested = any(r.metrics is not None for r in loaded.trained)
        return ("done", "") if tested else ("untested", "evaluation.parts lacks `test`")
    reached = f"{last} of {loaded.planned} rounds"
    if error is not None or run.status == "failed":
        return "failed", f"{error or run.note or 'the run failed'} ({reached})"
    return "unfinished", f"{reached}, {run.status}"
