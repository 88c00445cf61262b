"""Runs as pages see them: a run with its rounds, and an inventory of all that folders plan or hold.

A run is read from its folder or from a committed cell; an item of an inventory is a planned or existing run, with its
status and the reason if it is not done.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import nan
from pathlib import Path

from pydantic import JsonValue, TypeAdapter, ValidationError

from relief_ray.core.messages import ClientCost, Fleet, RoundCost, StageTimes
from relief_ray.data.config import DataConfig
from relief_ray.data.partition import people_of, training_positions
from relief_ray.devices.fleet import FleetConfig, build_fleet
from relief_ray.plugins.load import ONLY_A_RECORD, closed, is_path
from relief_ray.records.cells import PLAN_FILE, STATUS_TEXT, CellState, PlannedCell, look, read_plan_file, status_of
from relief_ray.records.committed import FILE as COMMITTED_FILE
from relief_ray.records.committed import SHARED, CommittedCell, Means, RoundRow, condense, means_of, read_committed
from relief_ray.records.facts import warnings_of
from relief_ray.records.identity import NOT_DECIDING, flat
from relief_ray.records.ledger import Rounds
from relief_ray.records.run_folder import RUN_FILE, is_done, read_rounds
from relief_ray.records.schema import (
    MethodFacts,
    Metrics,
    RoundRecord,
    RunRecord,
    Status,
    Totals,
    config_value,
    has_folds,
    section,
)
from relief_ray.strategies import PRESETS, method_name
from relief_ray.support.errors import Setting, UserError, counted, nearest
from relief_ray.support.table import grouped

# A configuration as its record holds it.
Config = Mapping[str, JsonValue]
Replicate = tuple[int, int, int]
# The number of a replicate and -1; where the configuration has none, seed and rotation.
Repetition = tuple[int, int]

_PRETTY = {"pamap2": "PAMAP2", "mhealth": "MHEALTH", "dsa": "DSA", "dsa_mini": "DSA excerpt"}
_SPLIT_NAMES = {
    "held_out_subject": "held-out subjects",
    "within_subject": "within subjects",
    "random_leaky": "random windows (LEAKY)",
}
_FLEET = TypeAdapter(Fleet)
# A report reads runs of any program, so no cell is stale here.
STATUSES = tuple(status for status in STATUS_TEXT if status != "stale")

# Which of several accounts of one cell counts.
_RANK: tuple[Status, ...] = ("done", "untested", "running", "stopped", "interrupted", "failed", "planned")

Named = tuple[str, Config]

_PRESETS: Mapping[str, Config] = {method_name(s, k): s.model_dump(mode="json") for k, s in PRESETS.items()}
UNTESTED = Metrics(f1=None)
_NOT_RUNS = frozenset({"stale", "mlartifacts", "mlruns"})


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A run with its rounds.

    Attributes:
        where: its folder, for messages.
        run: its record.
        rounds: its rounds.
        committed: the small form that it was made of, without clients and devices; None for a run folder.
    """

    where: str
    run: RunRecord
    rounds: Sequence[RoundRecord]
    committed: CommittedCell | None = None

    @property
    def label(self) -> str:
        """The method's name in tables."""
        return self.run.method.name

    @property
    def replicate(self) -> Replicate:
        """(fold, rotation of device types over subjects, seed): means are taken over these."""
        return replicate_of(self.run.config)

    @property
    def repetition(self) -> Repetition:
        """Key that the runs of one replicate share in all folds."""
        return repetition_of(self.run.config)

    @property
    def title(self) -> str:
        """The method, its fold (where the split has folds) and its seed or replicate, in words."""
        return f"{self.label}, {self.draw}"

    @property
    def data_title(self) -> str:
        """The data set as a title names it: a user's own, whose name is an import path, by its own title."""
        name = self.text("data.name")
        return (is_path(name) and self.run.data_title) or short_name(name)

    def value(self, path: str) -> JsonValue:
        """A value of its configuration by its dotted path; None where there is none."""
        return config_value(self.run.config, path)

    def covered(self, key: str) -> int:
        """How many ``clients`` or ``classes`` its coverage report lists; 0 where it lists none."""
        rows = self.run.coverage.get(key)
        return len(rows) if isinstance(rows, list) else 0

    def text(self, path: str, default: str = "-") -> str:
        """A value of its configuration as text."""
        return config_text(self.run.config, path, default)

    @property
    def draw(self) -> str:
        """The fold (where the split has folds) and the seed or replicate, in words."""
        return draw_of(self.run.config)

    @property
    def is_fitted(self) -> bool:
        """True where the fleet's utilisation was fitted to the paper's joules; committed cells tell by settings."""
        if self.committed is None:
            return self.run.calibration.get("origin") == "FITTED"
        return self.value("costs.utilisation") is None

    @property
    def planned(self) -> int:
        """The number of rounds that the configuration asks for."""
        return int(self.text("rounds", str(len(self.rounds))))

    @property
    def complete(self) -> bool:
        """True where the run finished and all planned rounds are there."""
        return is_done(self.run, [r.round for r in self.rounds])

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about its data, of its start and of its rounds, and whom its rounds went on without."""
        return warnings_of(self.run, self.rounds, self.title)

    @property
    def last_metrics(self) -> Metrics | None:
        """Test metrics of the last evaluated round."""
        return next((r.metrics for r in reversed(self.rounds) if r.metrics is not None), None)

    @property
    def tested(self) -> Metrics:
        """``last_metrics``, all empty where it was never tested."""
        return self.last_metrics or UNTESTED

    @property
    def subjects(self) -> list[str]:
        """The test subjects of the last evaluation, by number."""
        tested = self.tested
        names = tested.f1_by_subject or tested.f1_fleet_by_subject
        return sorted(names, key=lambda name: (len(name), name))

    @property
    def machine(self) -> str:
        """The machine that began it, its cores and threads, in words."""
        machine = self.run.machine
        return f"{machine.cpu}, {counted(machine.num_cores, 'core')}, {counted(machine.num_threads, 'thread')}"

    @property
    def place(self) -> dict[str, JsonValue]:
        """What it ran on."""
        return {"data origin": self.run.data_origin, "engine": self.run.engine}

    @property
    def pooled(self) -> bool:
        """True where all data lay on one device: then a fleet's speedup and bytes have no meaning."""
        return self.run.method.pooled

    @property
    def known_fleet(self) -> Fleet:
        """Fleet of the run as recorded: of pooled data one client with all sensors."""
        return _FLEET.validate_python(self.run.fleet)

    @cached_property
    def fleet(self) -> Fleet | None:
        """Fleet of the run, as recorded or built again; None for pooled data and where it is not known."""
        if self.pooled:
            return None
        if self.run.fleet:
            return self.known_fleet
        number = self.small.means.num_clients
        try:
            with closed(ONLY_A_RECORD):
                data = DataConfig.model_validate(self.run.config.get("data"))
            config, spec = FleetConfig.model_validate(self.run.config.get("fleet")), data.spec()
            is_whole = number >= len(training_positions(data))
            persons = people_of(data, number) if is_whole else (None,) * number
            return build_fleet(config, spec.names, persons, spec.name, spec.lacks)[0]
        except (UserError, ValidationError):
            return None

    @property
    def types(self) -> dict[int, str]:
        """Device type by client; empty where the fleet is unknown."""
        return {} if self.fleet is None else {c.id: c.device for c in self.fleet.clients}

    @cached_property
    def small(self) -> CommittedCell:
        """The run in its small form, as it is committed."""
        return self.committed or condense(self.run, self.rounds)

    def cost(self, record: RoundRecord, clock: str) -> RoundCost:
        """Cost of a round by a clock; of a committed cell its last round alone has clients, without their joules."""
        cost, cell = record.costs[clock], self.committed
        if cell is None or record is not self.rounds[-1]:
            return cost
        clients = []
        for client, seconds in cell.stages.items():
            times = StageTimes(**dict(zip(StageTimes.__slots__, seconds, strict=True)))
            wait_s = max(0.0, cost.round_s - times.busy_s)
            clients.append(ClientCost(client=client, times=times, wait_s=wait_s, energy_j=nan))
        return replace(cost, clients=tuple(clients))

    def means(self, clock: str) -> Means:
        """Means over all rounds by a clock, a committed cell's by its own."""
        return means_of(self.run, self.rounds, clock) if self.committed is None else self.committed.means


def replicate_of(config: Config) -> Replicate:
    """(fold, rotation of device types over subjects, seed) of a configuration."""
    paths = ("data.fold", "fleet.rotation", "seed")
    fold, rotation, seed = (v if isinstance(v := config_value(config, path), int) else 0 for path in paths)
    return fold, rotation, seed


def repetition_of(config: Config) -> Repetition:
    """The replicate that a run belongs to: equal in all folds; without a number its seed and rotation stand for it."""
    number, (_, rotation, seed) = config_value(config, "replicate"), replicate_of(config)
    return (number, -1) if isinstance(number, int) else (seed, rotation)


def draw_of(config: Config) -> str:
    """Fold (where the split has folds) and seed or replicate in words: ``fold 0, replicate 2``, ``seed 1``."""
    fold, rotation, seed = replicate_of(config)
    place = f"fold {fold}, " if has_folds(config) else ""
    number = config_value(config, "replicate")
    if isinstance(number, int):
        return f"{place}replicate {number}"
    return f"{place}{f'rotation {rotation}, ' if rotation else ''}seed {seed}"


def config_text(config: Config, path: str, default: str) -> str:
    """A value of a configuration as text."""
    value = config_value(config, path)
    return default if value is None else f"{value:g}" if isinstance(value, float) else str(value)


Hold = Callable[[Loaded], Loaded]


def _in_memory(loaded: Loaded) -> Loaded:
    """The run with all its rounds in memory."""
    return replace(loaded, rounds=tuple(loaded.rounds))


def load_runs(paths: Iterable[Path], hold: Hold = _in_memory) -> tuple[Loaded, ...]:
    """Every run below the paths: run folders, or folders of them; a run that is named twice counts once.

    ``hold``: what is kept of each.

    Raises:
        UserError: a path holds no run, or a damaged one.
    """
    runs: dict[str, Loaded] = {}
    for path in map(Path, paths):
        for key, item in _folder(path, hold)[0]:
            held = item.loaded
            if item.status == "failed" and ((Path(key) / RUN_FILE).exists() if held is None else held.complete):
                raise UserError(item.why)
            if held is not None:
                runs.setdefault(key, held)
    return tuple(runs.values())


def condensed(loaded: Loaded) -> Loaded:
    """The run with rounds in memory as a comparison needs them, where they are in its ledger alone.

    The last one is whole, the others lack what only pages on clients show.
    """
    rounds = loaded.rounds
    if not isinstance(rounds, Rounds):
        return loaded
    return replace(loaded, rounds=(*rounds[:-1].light(), *rounds[-1:]))


def _check_folder(path: Path) -> None:
    """Check that there is a folder or file of this name.

    Raises:
        UserError: there is none; the likest beside it is named.
    """
    if not path.exists():
        others = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        raise UserError(
            f"{path}: does not exist{nearest(path.name, others)}; name a folder of runs, or committed results"
        )


def is_committed(path: Path) -> bool:
    """True for the file that `relief-ray report --commit` writes, or a folder with one."""
    return path.suffix == ".json" or (path / COMMITTED_FILE).exists()


def read_small(path: Path) -> dict[str, Loaded]:
    """Committed cells by name as runs without clients: final scores, cumulative costs and F1 round by round.

    Raises:
        UserError: the file is missing or damaged.
    """
    return {name: expanded(f"{path}#{name}", cell) for name, cell in read_committed(path).cells.items()}


def expanded(where: str, cell: CommittedCell) -> Loaded:
    """A committed cell as a run without clients; ``where`` stands for its folder."""
    shared = {name: getattr(cell, name) for name in SHARED}
    run = RunRecord(**shared, name=where, status="done", warnings=cell.warnings)
    before, rounds = Totals(), list[RoundRecord]()
    last = max((row.round for row in cell.rounds if row.f1 is not None), default=None)
    for row in cell.rounds:
        totals = Totals(time_s=row.time_s, energy_j=row.energy_j, bytes_up=row.bytes_up, bytes_down=row.bytes_down)
        cost = RoundCost(round_s=row.time_s - before.time_s, energy_j=row.energy_j - before.energy_j, clients=())
        record = RoundRecord(
            round=row.round,
            phase="",
            wall_s=cell.means.wall_s,
            ended_unix_s=0.0,
            participants=(),
            clients=(),
            costs={cell.planning_model: cost},
            totals={cell.planning_model: totals},
            model_sha256=cell.model_sha256,
            metrics=cell.metrics if row.round == last else _scored(row, cell),
            deadline_s=cell.deadline_s if row is cell.rounds[-1] else None,
            diagnostics=row.diagnostics,
        )
        rounds.append(record)
        before = totals
    return Loaded(where=where, run=run, rounds=tuple(rounds), committed=cell)


def _scored(row: RoundRow, cell: CommittedCell) -> Metrics | None:
    """Scores that are kept of an evaluation before the last: headline F1, of rare sensors, through own sensors."""
    if row.f1 is None:
        return None
    rare, own = (shares.get(row.round) for shares in (cell.means.rare, cell.means.own))
    if cell.metrics is not None and cell.metrics.f1_fleet is not None:
        return Metrics(f1=None, f1_fleet=row.f1, f1_rare=rare)
    return Metrics(f1=row.f1, f1_rare=rare, f1_own_sensors=own)


def below(path: Path, name: str) -> list[Path]:
    """Files of that name in and below a folder, but for runs that were set aside and MLflow's copies of records."""
    return [p for p in sorted(path.rglob(name)) if _NOT_RUNS.isdisjoint(p.relative_to(path).parts)]


def _state(folder: Path, run: RunRecord | None = None) -> CellState[None]:
    """State of a cell's folder, or of the run in it; its reason is one line."""
    state = look(folder) if run is None else status_of(folder, run)
    return replace(state, why=state.why.partition("\n")[0])


def _reached(loaded: Loaded) -> str:
    return f"{loaded.rounds[-1].round if loaded.rounds else 0} of {loaded.planned} rounds"


def require_complete(runs: Sequence[Loaded]) -> tuple[tuple[Loaded, ...], tuple[str, ...]]:
    """The complete runs, and a sentence about each of the others.

    Raises:
        UserError: none is complete.
    """
    states = ((r, _state(Path(r.where), r.run)) for r in runs if not r.complete)
    notes = tuple(
        f"{r.title}: {_reached(r)} ({': '.join(filter(None, (state.status, state.why)))}), left out"
        for r, state in states
    )
    complete = tuple(r for r in runs if r.complete)
    if not complete:
        raise UserError(
            f"no run is complete ({'; '.join(notes) or 'no runs'}); finish one with `relief-ray resume DIR`"
        )
    tested = tuple(r for r in complete if r.last_metrics is not None)
    if not tested:
        raise UserError(
            f"{complete[0].where}: no round was evaluated on the test part, so there is nothing to compare; "
            f"run with {Setting('evaluation.parts', ['test'])} (validation scores are in rounds.jsonl and MLflow)"
        )
    untested = tuple(f"{r.title}: never evaluated on the test part, left out" for r in complete if r not in tested)
    return tested, (*notes, *untested)


def variant_names(methods: Sequence[Named], facts: Sequence[MethodFacts | None] = ()) -> list[str]:
    """A name for each (label, configuration): ``relief``, and ``relief (gamma=0.5)`` where 0.5 is not the preset's.

    The bare name belongs to the preset itself, so a name does not depend on which other cells are there. A user's own
    method names the fields that have another value than its class's default, by the method's ``facts``; without these,
    those in which its cells differ. Fields that a search varies do not count. A grid's own level of a method
    stands for the values that it sets: ``fedavg (e1)``.
    """
    sections = [(label, _own_fields(config)) for label, config in methods]
    namesakes = grouped(sections)
    varied = [one.varied if one is not None else None for one in facts] or [None] * len(sections)
    # Name of a grid's own level of the method, and its values; both empty where it has none.
    levels = [(str(config_value(config, "choice.level") or ""), level_values(config)) for _, config in methods]
    names = [
        _variant_name(label, strategy, namesakes[label], keys, level)
        for (label, strategy), keys, (level, _) in zip(sections, varied, levels, strict=True)
    ]
    # A class whose defaults have changed since has two kinds of cells without varied fields: these differ by all, as
    # do cells of a level whose values have changed.
    whole = [(strategy, values) for (_, strategy), (_, values) in zip(sections, levels, strict=True)]
    behind = dict(zip(names, whole, strict=True))
    mixed = {name for name, values in zip(names, whole, strict=True) if behind[name] != values}
    return [
        _variant_name(label, strategy, namesakes[label], None, values) if name in mixed else name
        for name, (label, _), (strategy, values) in zip(names, sections, whole, strict=True)
    ]


def choice_kind(config: Config) -> str:
    """``tuned`` where a search chose values, ``try`` for one of its tries, ``level`` of a grid's own, else empty."""
    return str(config_value(config, "choice.kind") or "")


def level_values(config: Config) -> str:
    """What the level of a grid sets, with its values: ``epochs=1, up=int8``; empty where there is none."""
    keys = chosen_keys(config) if choice_kind(config) == "level" else ()
    return ", ".join(f"{key.rpartition('.')[2]}={config_value(config, key)}" for key in keys)


def chosen_keys(config: Config) -> tuple[str, ...]:
    """The dotted keys of the values that a search, or the grid's levels of single methods, vary."""
    keys = config_value(config, "choice.parameters")
    return tuple(str(k) for k in keys) if isinstance(keys, list | tuple) else ()


def searched_keys(configs: Iterable[Config]) -> tuple[str, ...]:
    """Union of ``chosen_keys``: a key may be varied for some methods that others keep."""
    return tuple(dict.fromkeys(key for config in configs for key in chosen_keys(config)))


def _own_fields(config: Config) -> Config:
    chosen = chosen_keys(config)
    return {k: v for k, v in section(config, "strategy").items() if f"strategy.{k}" not in chosen}


def _variant_name(
    label: str,
    mine: Config,
    namesakes: Sequence[Config],
    varied: Sequence[str] | None,
    level: str,
) -> str:
    preset = _PRESETS.get(label)
    if preset is not None:
        # Only a user's method may bear a preset's name without being that preset: then its import path is shown.
        keys = [k for k in mine if mine[k] != preset.get(k) and (k != "name" or is_path(mine[k]))]
    else:
        differing = [k for k in mine if any(other.get(k) != mine[k] for other in namesakes)]
        keys = differing if varied is None else [k for k in mine if k in varied or (k in differing and k == "name")]
    own = ", ".join(filter(None, [level, *(f"{k}={mine[k]}" for k in sorted(keys))]))
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
    config: Config
    status: Status
    why: str = ""
    loaded: Loaded | None = None
    repeats: tuple[Loaded, ...] = ()
    hash: str = ""
    method: MethodFacts | None = None

    @property
    def title(self) -> str:
        """As ``Loaded.title``."""
        return f"{self.label}, {draw_of(self.config)}"

    @property
    def done(self) -> Loaded | None:
        """Its run, where that is finished and tested."""
        return self.loaded if self.status == "done" else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Inventory:
    """All items in the order of their plans; ``titles``: of the plans."""

    items: tuple[GridItem, ...]
    titles: tuple[str, ...] = ()

    @property
    def done(self) -> tuple[Loaded, ...]:
        """Finished and tested runs, which tables use."""
        return tuple(loaded for s in self.items if (loaded := s.done))

    def count(self, status: Status) -> int:
        """Number of items of that status."""
        return sum(s.status == status for s in self.items)


def take_inventory(paths: Iterable[Path], hold: Hold | None = _in_memory) -> Inventory:
    """Inventory of everything below the paths: plans (``plan.json``) and run folders.

    A cell that is damaged, failed, interrupted or only planned is kept with its status; nothing of it enters a mean. A
    cell that several folders plan or hold is one: it is done where any of them finished it.

    ``hold``: what is kept of a run; None: nothing, its rounds are read from the folder each time they are used.

    Raises:
        UserError: a path holds neither a plan nor a run.
    """
    items: dict[str, GridItem] = {}
    titles: list[str] = []
    for path in map(Path, paths):
        below_path, plan_titles = _folder(path, hold)
        titles += plan_titles
        names = {item.name for item in items.values()}
        for key, item in below_path:
            items.setdefault(key, replace(item, name=_distinct(item.name, path, names)))
    return Inventory(items=labelled(merged(items.values())), titles=tuple(dict.fromkeys(titles)))


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
    user's own class may change, two of one hash must also agree on every key that both hold.
    """
    alike: dict[str, list[tuple[Config, list[GridItem]]]] = {}
    for item in items:
        values = flat({key: value for key, value in item.config.items() if key not in NOT_DECIDING})
        of_hash = alike.setdefault(choice_kind(item.config) + (item.hash or item.name), [])
        agrees = (same for theirs, same in of_hash if all(theirs[k] == values[k] for k in theirs.keys() & values))
        group = next(agrees, [])
        if not group:
            of_hash.append((values, group))
        group.append(item)
    return tuple(item for of_hash in alike.values() for _, group in of_hash for item in _one(group))


def _one(same: Sequence[GridItem]) -> Iterable[GridItem]:
    done = ((item, loaded) for item in same if (loaded := item.done))
    places = grouped((repr(loaded.place), (item, loaded)) for item, loaded in done)
    if not places:
        yield min(same, key=lambda s: _RANK.index(s.status))
    for (first, _), *others in places.values():
        yield replace(first, repeats=tuple(loaded for _, loaded in others))


def _folder(path: Path, hold: Hold | None) -> tuple[list[tuple[str, GridItem]], list[str]]:
    """The items below a path by what tells them apart, and the titles of its plans."""
    _check_folder(path)
    if is_committed(path):
        items = [(loaded.where, item_of(name, loaded)) for name, loaded in read_small(path).items()]
        return items, [read_committed(path).title]
    plans = [(file.parent, read_plan_file(file)) for file in below(path, PLAN_FILE)]
    planned = {
        str((parent / row.folder).resolve()): (parent / row.folder, row) for parent, plan in plans for row in plan.cells
    }

    items = [(key, _look(folder, path, row, hold)) for key, (folder, row) in planned.items()]
    others = [p.parent for p in below(path, RUN_FILE) if str(p.parent.resolve()) not in planned]
    items += [(str(folder.resolve()), _look(folder, path, None, hold)) for folder in others]
    if not plans and not items:
        raise UserError(
            f"{path}: found no {RUN_FILE} and no {PLAN_FILE} in or below it; name folders that "
            "`relief-ray run` or `relief-ray grid` made, or results that `relief-ray report --commit` wrote"
        )
    return items, [plan.title or plan.name for _, plan in plans]


def item_of(name: str, loaded: Loaded, status: Status = "done", why: str = "") -> GridItem:
    """The item of a run that was read; a finished one without a test score, such as a search's try, is untested."""
    run = loaded.run
    if status == "done" and loaded.last_metrics is None:
        is_folder = loaded.committed is None
        why = "evaluation.parts lacks `test`" if is_folder else "validation scores are in the run folder alone"
        status = "untested"
    return GridItem(
        name=name,
        label=loaded.label,
        method=run.method,
        config=run.config,
        hash=run.config_hash,
        status=status,
        why=why,
        loaded=loaded,
    )


def _look(folder: Path, top: Path, row: PlannedCell | None, hold: Hold | None) -> GridItem:
    """Read a cell's folder below ``top``: its status, and its run where there is one; ``row``: its row in a plan."""
    # ``f0/relief`` becomes ``f0-relief``.
    name = "-".join(folder.relative_to(top).parts) or folder.resolve().name
    state = _state(folder)
    why, run = state.why, state.run
    planned = GridItem(name=name, label=folder.name, config={}, status=state.status, why=why)
    if row is not None:
        planned = replace(planned, label=row.method.name, method=row.method, config=row.config, hash=row.hash)
    if run is None:
        return planned
    try:
        loaded = Loaded(where=str(folder.resolve()), run=run, rounds=read_rounds(folder, run))
        loaded = loaded if hold is None else hold(loaded)
    except UserError as damaged:
        return replace(planned, status="failed", why=str(damaged))
    if state.status != "done" and run.status != "done":
        why = f"{why} ({_reached(loaded)})" if why else _reached(loaded)
    return item_of(name, loaded, state.status, why)


def short_name(name: str) -> str:
    """The short name of a data set or a backbone of the configuration; of an import path, the last part."""
    return _PRETTY.get(name) or name.rpartition(":")[2].partition("@")[0]


def split_name(split: str) -> str:
    """The split in words."""
    return _SPLIT_NAMES.get(split, split)
