"""Inventory of folders: one item per planned or existing run, with its status and the reason if it is not done."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import JsonValue

from relief_ray.plugins.load import is_path
from relief_ray.records import cells
from relief_ray.records.cells import PLAN_FILE, STATUS_TEXT, PlannedCell, read_plan_file
from relief_ray.records.committed import read_committed
from relief_ray.records.identity import NOT_DECIDING, config_hash
from relief_ray.records.run_folder import RUN_FILE, read_rounds, read_run
from relief_ray.records.schema import MethodFacts, Status
from relief_ray.report.runs import (
    Loaded,
    Parsed,
    below,
    check_folder,
    config_value,
    flat,
    has_folds,
    is_committed,
    read_small,
)
from relief_ray.strategies import PRESETS, method_name
from relief_ray.support.errors import UserError

# A report reads runs of any program, so no cell is stale here.
STATUSES: tuple[Status, ...] = tuple(status for status in STATUS_TEXT if status != "stale")

# Which of several accounts of one cell counts.
_RANK: tuple[Status, ...] = ("done", "untested", "running", "stopped", "interrupted", "failed", "planned")

Named = tuple[str, Mapping[str, JsonValue]]

_PRESETS: Mapping[str, Mapping[str, JsonValue]] = {
    method_name(s, k): s.model_dump(mode="json") for k, s in PRESETS.items()
}


def variant_names(methods: Sequence[Named], facts: Sequence[MethodFacts | None] = ()) -> list[str]:
    """A name for each (label, configuration): ``relief``, and ``relief (gamma=0.5)`` where 0.5 is not the preset's.

    The bare name belongs to the preset itself, so a name does not depend on which other cells are there. A user's own
    method has no preset: where its cells differ, each one names the fields, but for those that have the default of
    its class by the method's ``facts``. Fields that a search varies do not count.
    """
    sections = [(label, _section(config)) for label, config in methods]
    namesakes: dict[str, list[Mapping[str, JsonValue]]] = {}
    for label, strategy in sections:
        namesakes.setdefault(label, []).append(strategy)
    varied = [one.varied if one is not None else None for one in facts] or [None] * len(sections)
    names = [
        _variant_name(label, strategy, namesakes[label], keys)
        for (label, strategy), keys in zip(sections, varied, strict=True)
    ]
    # A class whose defaults have changed since has two kinds of cells without varied fields: these differ by all.
    behind = {name: strategy for name, (_, strategy) in zip(names, sections, strict=True)}
    mixed = {name for name, (_, strategy) in zip(names, sections, strict=True) if behind[name] != strategy}
    return [
        _variant_name(label, strategy, namesakes[label], None) if name in mixed else name
        for name, (label, strategy) in zip(names, sections, strict=True)
    ]


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


def _variant_name(
    label: str,
    mine: Mapping[str, JsonValue],
    namesakes: Sequence[Mapping[str, JsonValue]],
    varied: Sequence[str] | None,
) -> str:
    preset = _PRESETS.get(label)
    if preset is not None:
        # Only a user's method may bear a preset's name without being that preset: then its import path is shown.
        keys = [k for k in mine if mine[k] != preset.get(k) and (k != "name" or is_path(mine[k]))]
    else:
        keys = [k for k in mine if any(other.get(k) != mine[k] for other in namesakes)]
        keys = [k for k in keys if varied is None or k in varied or k == "name"]
    own = ", ".join(f"{k}={mine[k]}" for k in sorted(keys))
    return f"{label} ({own})" if own else label


@dataclass(frozen=True, kw_only=True, slots=True)
class GridItem:
    """A planned or existing run.

    Attributes:
        name: its folder's path below the folder that was named, ``f0-relief``.
        label: name of its method, or of the method's variant.
        method: facts of its method; None where neither plan nor record can be read.
        config: its configuration; empty where it cannot be read.
        status: one of ``STATUSES``; ``done`` runs have figures for the tables.
        why: reason for a status other than done.
        loaded: its record and rounds, where they can be read.
        repeats: finished runs of the same cell elsewhere; they enter no mean.
        hash: that of its configuration's identity, as its run or else its plan keeps it; empty where neither does.
    """

    name: str
    label: str
    config: Mapping[str, JsonValue]
    status: Status
    why: str = ""
    loaded: Loaded | None = None
    repeats: tuple[Loaded, ...] = ()
    hash: str = ""
    method: MethodFacts | None = None

    @property
    def title(self) -> str:
        """Method, fold (where the split has folds) and seed in words."""
        fold, seed = (config_value(self.config, path) or 0 for path in ("data.fold", "seed"))
        return f"{self.label}, fold {fold}, seed {seed}" if has_folds(self.config) else f"{self.label}, seed {seed}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Inventory:
    """All items in the order of their plans; ``titles``: of the plans; ``parsed``: how configurations are compared."""

    items: tuple[GridItem, ...]
    titles: tuple[str, ...] = ()
    parsed: Parsed = dict

    @property
    def done(self) -> tuple[Loaded, ...]:
        """Finished and tested runs, which tables use."""
        return tuple(s.loaded for s in self.items if s.status == "done" and s.loaded is not None)

    def count(self, status: Status) -> int:
        """Number of items of that status."""
        return sum(s.status == status for s in self.items)


def take_inventory(paths: Iterable[Path], parsed: Parsed = dict, *, keep: bool = True) -> Inventory:
    """Inventory of everything below the paths: plans (``plan.json``) and run folders.

    A cell that is damaged, failed, interrupted or only planned is kept with its status; nothing of it enters a mean. A
    cell that several folders plan or hold is one: it is done where any of them finished it.

    ``parsed``: how a configuration is read before it is compared. ``keep``: hold all rounds in memory; else they are
    read from the folder each time they are used.

    Raises:
        UserError: a path holds neither a plan nor a run.
    """
    items: dict[str, GridItem] = {}
    titles: list[str] = []
    for path in map(Path, paths):
        below_path, plan_titles = _folder(path, keep)
        titles += plan_titles
        names = {item.name for item in items.values()}
        for key, item in below_path:
            items.setdefault(key, replace(item, name=_distinct(item.name, path, names)))
    return Inventory(items=labelled(merged(items.values())), titles=tuple(dict.fromkeys(titles)), parsed=parsed)


def _distinct(name: str, path: Path, names: Collection[str]) -> str:
    """The name, or that of its folder before it where an earlier folder has a run of this name."""
    choices = (name, f"{path.resolve().name}-{name}", f"{path}-{name}")
    return next((choice for choice in choices if choice not in names), choices[-1])


def labelled(items: Sequence[GridItem]) -> tuple[GridItem, ...]:
    """The items with the name of their method's variant, planned and finished ones alike."""
    names = variant_names([(s.label, s.config) for s in items], [s.method for s in items])
    return tuple(replace(s, label=name) for s, name in zip(items, names, strict=True))


def merged(items: Iterable[GridItem]) -> tuple[GridItem, ...]:
    """One item per configuration (and per origin of data and engine, where several finished), in order.

    A cell is its stored hash, to which a key added later makes no difference. As a hash leaves out defaults, which a
    user's own class may change, two of one hash must also agree on every key that both hold. A planned row without a
    hash joins those of the very same configuration.
    """
    listed = [(item, _decisive(item.config)) for item in items]
    dumps = [config_hash(decisive) if item.config else item.name for item, decisive in listed]
    hashes = {dump: item.hash for (item, _), dump in zip(listed, dumps, strict=True) if item.hash}
    alike: dict[str, list[tuple[Mapping[str, JsonValue], list[GridItem]]]] = {}
    groups: list[list[GridItem]] = []
    for (item, decisive), dump in zip(listed, dumps, strict=True):
        cells_of_hash = alike.setdefault(choice_kind(item.config) + (item.hash or hashes.get(dump, dump)), [])
        values = flat(decisive)
        group = next((same for theirs, same in cells_of_hash if _agree(theirs, values)), None)
        if group is None:
            group = []
            cells_of_hash.append((values, group))
            groups.append(group)
        group.append(item)
    return tuple(item for group in groups for item in _one(group))


def _decisive(config: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    return {k: v for k, v in config.items() if k not in NOT_DECIDING}


def _agree(first: Mapping[str, JsonValue], second: Mapping[str, JsonValue]) -> bool:
    return all(first[key] == second[key] for key in first.keys() & second.keys())


def _one(same: Sequence[GridItem]) -> Iterable[GridItem]:
    best = min(same, key=lambda s: _RANK.index(s.status))
    places: dict[tuple[str, str], list[Loaded]] = {}
    for loaded in (s.loaded for s in same if s.status == "done" and s.loaded is not None):
        places.setdefault((loaded.run.data_origin, loaded.run.engine), []).append(loaded)
    if not places:
        yield best
    for first, *others in places.values():
        item = next(s for s in same if s.loaded is first)
        yield replace(item, repeats=tuple(others))


def _folder(path: Path, keep: bool) -> tuple[list[tuple[str, GridItem]], list[str]]:
    if is_committed(path):
        runs = read_small(path)
        return [(f"{path}#{name}", _small(name, loaded)) for name, loaded in runs.items()], [read_committed(path).title]
    plans = [(file.parent, read_plan_file(file)) for file in below(path, PLAN_FILE)]
    planned = {
        str((parent / row.folder).resolve()): (parent / row.folder, row) for parent, plan in plans for row in plan.cells
    }
    items = [(key, look(_name(folder, path), folder, row, keep)) for key, (folder, row) in planned.items()]
    others = [p.parent for p in below(path, RUN_FILE) if str(p.parent.resolve()) not in planned]
    items += [(str(folder.resolve()), look(_name(folder, path), folder, keep=keep)) for folder in others]
    check_folder(path)
    if not plans and not items:
        raise UserError(
            f"{path}: found no {RUN_FILE} and no {PLAN_FILE} in or below it; name folders that "
            "`relief-ray run` or `relief-ray grid` made, or results that `relief-ray report --commit` wrote"
        )
    return items, [plan.title or plan.name for _, plan in plans]


def _small(name: str, loaded: Loaded) -> GridItem:
    """A committed cell; a search's try, whose validation scores are in its run folder alone, counts as untested."""
    run, is_tested = loaded.run, any(r.metrics is not None for r in loaded.trained)
    return GridItem(
        name=name,
        label=loaded.label,
        config=run.config,
        status="done" if is_tested else "untested",
        why="" if is_tested else "validation scores are in the run folder alone",
        loaded=loaded,
        method=run.method,
        hash=run.config_hash,
    )


def _name(folder: Path, top: Path) -> str:
    """``f0/relief`` becomes ``f0-relief``."""
    return "-".join(folder.relative_to(top).parts) or folder.resolve().name


def look(name: str, folder: Path, row: PlannedCell | None = None, keep: bool = True) -> GridItem:
    """Read a cell's folder: its status, and its run where there is one; ``row``: its row in a plan.

    ``keep``: as in ``take_inventory``.
    """
    planned = GridItem(name=name, label=folder.name, config={}, status="planned")
    if row is not None:
        planned = replace(planned, label=row.method.name, method=row.method, config=row.config, hash=row.hash)
    if not (folder / RUN_FILE).exists():
        cell = cells.look(folder)
        return replace(planned, status=cell.status, why=cell.why.split("\n")[0])
    try:
        run = read_run(folder)
        rounds = read_rounds(folder, run)
        kept = tuple(rounds) if keep else rounds
        loaded = Loaded(where=str(folder.resolve()), run=run, rounds=kept)
    except UserError as damaged:
        return replace(planned, status="failed", why=str(damaged))
    cell = cells.status_of(folder, run)
    status, why = cell.status, cell.why.split("\n")[0]
    if status == "done" and all(r.metrics is None for r in reversed(kept) if r.round >= 1):
        status, why = "untested", "evaluation.parts lacks `test`"
    elif status != "done" and loaded.run.status != "done":
        reached = f"{loaded.rounds[-1].round if loaded.rounds else 0} of {loaded.planned} rounds"
        why = f"{why} ({reached})" if why else reached
    item = replace(planned, label=loaded.label, method=run.method, config=run.config, hash=run.config_hash)
    return replace(item, status=status, why=why, loaded=loaded)
