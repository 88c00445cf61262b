"""Runs read from their folders: record, rounds, values of the configuration, and the fleet rebuilt from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pydantic import JsonValue, TypeAdapter, ValidationError

from relief_ray.core.messages import Fleet, RoundCost
from relief_ray.data.config import DataConfig
from relief_ray.data.partition import lacking
from relief_ray.data.registry import get_spec
from relief_ray.devices.fleet import FleetConfig, build_fleet
from relief_ray.records.cells import model_conflict, status_of
from relief_ray.records.committed import FILE as COMMITTED_FILE
from relief_ray.records.committed import SHARED, CommittedCell, Means, RoundRow, condense, means_of, read_committed
from relief_ray.records.facts import left_out_of, sentence
from relief_ray.records.ledger import Rounds
from relief_ray.records.run_folder import RUN_FILE, is_done, read_rounds, read_run
from relief_ray.records.schema import Metrics, RoundRecord, RunRecord, Totals
from relief_ray.support.errors import UserError, nearest

# How a configuration is read before it is compared with another one.
Parsed = Callable[[Mapping[str, JsonValue]], Mapping[str, JsonValue]]
Replicate = tuple[int, int, int]
# The number of a replicate and -1; where the configuration has none, seed and rotation.
Repetition = tuple[int, int]

_SPLIT_NAMES = {
    "held_out_subject": "held-out subjects",
    "within_subject": "within subjects",
    "random_leaky": "random windows (LEAKY)",
}
_FLEET = TypeAdapter(Fleet)
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
    def draw(self) -> str:
        """The fold (where the split has folds) and the seed or replicate, in words."""
        fold, rotation, seed = self.replicate
        place = f"fold {fold}, " if has_folds(self.run.config) else ""
        number = run_value(self.run, "replicate")
        if isinstance(number, int):
            return f"{place}replicate {number}"
        turned = f"rotation {rotation}, " if rotation else ""
        return f"{place}{turned}seed {seed}"

    @property
    def is_fitted(self) -> bool:
        """True where the fleet's utilisation was fitted to the paper's joules; committed cells tell by settings."""
        if self.committed is None:
            return self.run.calibration.get("origin") == "FITTED"
        return run_value(self.run, "costs.utilisation") is None

    @property
    def has_bootstrap(self) -> bool:
        """True where a round 0 was aggregated before round 1."""
        return bool(self.rounds) and self.rounds[0].round == 0

    def bootstrap_share(self, clock: str) -> float:
        """Share of all its seconds that the bootstrap round took; 0 without one."""
        whole = self.rounds[-1].totals[clock].time_s
        return self.rounds[0].totals[clock].time_s / whole if self.has_bootstrap and whole else 0.0

    def aggregations(self, record: RoundRecord) -> int:
        """Number of aggregations when the round was over: its number, and one more with a bootstrap."""
        return record.round + self.has_bootstrap

    @property
    def planned(self) -> int:
        """The number of rounds that the configuration asks for."""
        return config_int(self.run, "rounds", default=len(self.rounds))

    @property
    def complete(self) -> bool:
        """True where the run finished and all planned rounds are there."""
        return is_done(self.run, [r.round for r in self.rounds])

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about its data, of its start and of its rounds, and whom its rounds went on without."""
        missing = (f"{self.title}: {sentence(entry)}" for entry in left_out_of(self.rounds))
        return (*self.run.data_notes, *self.run.warnings, *(w for r in self.rounds for w in r.warnings), *missing)

    @property
    def trained(self) -> tuple[RoundRecord, ...]:
        """Rounds 1..R: all but the bootstrap."""
        return tuple(r for r in self.rounds if r.round >= 1)

    @cached_property
    def small(self) -> CommittedCell:
        """The run in its small form, as it is committed."""
        return self.committed or condense(self.run, self.rounds)

    def means(self, clock: str) -> Means | None:
        """Means over rounds 1..R by a clock, a committed cell's by its own; None where it keeps none."""
        return means_of(self.run, self.trained, clock) if self.committed is None else self.committed.means

    @property
    def chance(self) -> float | None:
        """F1 of a model that knows nothing, on the last tested round's windows, a share; None where it is unknown."""
        return self.small.chance

    @property
    def work(self) -> str:
        """Equal for two runs whose clients trained and sent the same in every round (``work_digest``).

        Some committed cells lack it: there only equal models count as equal work.
        """
        return self.small.work_sha256 or self.small.model_sha256


def run_value(run: RunRecord, path: str) -> JsonValue:
    """``config_value`` of a run's configuration."""
    return config_value(run.config, path)


def config_value(config: Mapping[str, JsonValue], path: str) -> JsonValue:
    """A value of a configuration by its dotted path; None where there is none."""
    node: JsonValue = dict(config)
    for key in path.split("."):
        node = node.get(key) if isinstance(node, dict) else None
    return node


def has_folds(config: Mapping[str, JsonValue]) -> bool:
    """True where the split holds subjects out, pair by pair: no other split has folds."""
    return config_value(config, "data.split") in (None, "held_out_subject")


def replicate_of(config: Mapping[str, JsonValue]) -> Replicate:
    """(fold, rotation of device types over subjects, seed) of a configuration."""
    paths = ("data.fold", "fleet.rotation", "seed")
    fold, rotation, seed = (v if isinstance(v := config_value(config, path), int) else 0 for path in paths)
    return fold, rotation, seed


def repetition_of(config: Mapping[str, JsonValue]) -> Repetition:
    """The replicate that a run belongs to: equal in all folds; without a number its seed and rotation stand for it."""
    number, seed, rotation = (config_value(config, path) for path in ("replicate", "seed", "fleet.rotation"))
    if isinstance(number, int):
        return (number, -1)
    return (seed if isinstance(seed, int) else 0, rotation if isinstance(rotation, int) else 0)


def flat(config: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """The configuration's values by dotted path."""
    return dict(_flat("", config))


def _flat(prefix: str, node: Mapping[str, JsonValue]) -> Iterator[tuple[str, JsonValue]]:
    for key, value in sorted(node.items()):
        if isinstance(value, dict):
            yield from _flat(f"{prefix}{key}.", value)
        else:
            yield f"{prefix}{key}", value


def config_int(run: RunRecord, path: str, default: int = 0) -> int:
    """An integer of the configuration."""
    value = run_value(run, path)
    return value if isinstance(value, int) else default


def config_text(run: RunRecord, path: str, default: str = "-") -> str:
    """A value of the configuration as text."""
    value = run_value(run, path)
    return default if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def load_runs(paths: Iterable[Path], *, whole: bool = True) -> tuple[Loaded, ...]:
    """Every run below the paths: run folders, or folders of them; a run that is named twice counts once.

    ``whole``: with all that rounds hold; else ``condensed``.

    Raises:
        UserError: a path holds no run, or a damaged one.
    """
    runs: dict[str, Loaded] = {}
    for path in paths:
        for loaded in _load(Path(path), whole):
            runs.setdefault(loaded.where, loaded)
    return tuple(runs.values())


def _load(path: Path, whole: bool) -> Iterator[Loaded]:
    if is_committed(path):
        yield from read_small(path).values()
        return
    folders = [path] if (path / RUN_FILE).exists() else [p.parent for p in below(path, RUN_FILE)]
    check_folder(path)
    if not folders:
        raise UserError(f"{path}: found no {RUN_FILE} in or below it; name folders that `relief-ray run` made")
    for folder in folders:
        run = read_run(folder)
        rounds = read_rounds(folder, run)
        if is_done(run, rounds.numbers) and (conflict := model_conflict(folder, rounds)):
            raise UserError(conflict)
        yield Loaded(where=str(folder.resolve()), run=run, rounds=tuple(rounds) if whole else condensed(rounds))


def condensed(rounds: Rounds) -> tuple[RoundRecord, ...]:
    """Rounds as a comparison needs them: the last one whole, the others without what only pages on clients show."""
    return (*rounds[:-1].without("client_costs", "norms", "confusion"), *rounds[-1:])


def check_folder(path: Path) -> None:
    """Check that there is a folder of this name.

    Raises:
        UserError: there is none; the likest beside it is named.
    """
    if not path.exists():
        others = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        raise UserError(f"{path}: does not exist{nearest(path.name, others)}; name a folder of runs")


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
    first = cell.rounds[0].round if cell.rounds else 1
    run = RunRecord(**shared, name=where, status="done", warnings=cell.warnings, first_round=first)
    before, rounds = Totals(), list[RoundRecord]()
    last = max((row.round for row in cell.rounds if row.f1 is not None), default=None)
    for row in cell.rounds:
        totals = Totals(time_s=row.time_s, energy_j=row.energy_j, bytes_up=row.bytes_up, bytes_down=row.bytes_down)
        cost = RoundCost(round_s=row.time_s - before.time_s, energy_j=row.energy_j - before.energy_j, clients=())
        record = RoundRecord(
            round=row.round,
            phase="",
            wall_s=0.0 if cell.means is None else cell.means.wall_s,
            ended_unix_s=0.0,
            participants=(),
            clients=(),
            costs={cell.planning_model: cost},
            totals={cell.planning_model: totals},
            model_sha256=cell.model_sha256,
            metrics=cell.metrics if row.round == last else _scored(row, cell),
            diagnostics=row.diagnostics,
        )
        rounds.append(record)
        before = totals
    return Loaded(where=where, run=run, rounds=tuple(rounds), committed=cell)


def _scored(row: RoundRow, cell: CommittedCell) -> Metrics | None:
    """Scores that are kept of an evaluation before the last: the headline F1, and that of the rare sensors."""
    if row.f1 is None:
        return None
    rare = None if cell.means is None else cell.means.rare.get(row.round)
    own = cell.metrics is not None and cell.metrics.f1_fleet is not None
    return Metrics(f1=None if own else row.f1, f1_fleet=row.f1 if own else None, f1_rare=rare)


def below(path: Path, name: str) -> list[Path]:
    """Files of that name in and below a folder, but for runs that were set aside and MLflow's copies of records."""
    return [p for p in sorted(path.rglob(name)) if _NOT_RUNS.isdisjoint(p.relative_to(path).parts)]


def _status(loaded: Loaded) -> str:
    """Status of a run, with the reason where one is known, in a line."""
    state = status_of(Path(loaded.where), loaded.run)
    why = state.why.partition("\n")[0]
    return f"{state.status}: {why}" if why else state.status


def require_complete(runs: Sequence[Loaded]) -> tuple[tuple[Loaded, ...], tuple[str, ...]]:
    """The complete runs, and a sentence about each of the others.

    Raises:
        UserError: none is complete.
    """
    notes = tuple(
        f"{r.title}: {r.rounds[-1].round if r.rounds else 0} of {r.planned} rounds ({_status(r)}), left out"
        for r in runs
        if not r.complete
    )
    complete = tuple(r for r in runs if r.complete)
    if not complete:
        raise UserError(
            f"no run is complete ({'; '.join(notes) or 'no runs'}); finish one with `relief-ray resume DIR`"
        )
    tested = tuple(r for r in complete if any(n.metrics is not None for n in r.trained))
    if not tested:
        raise UserError(
            f"{complete[0].where}: no round was evaluated on the test part, so there is nothing to compare; "
            "run with --set 'evaluation.parts=[test]' (validation scores are in rounds.jsonl and MLflow)"
        )
    untested = tuple(f"{r.title}: never evaluated on the test part, left out" for r in complete if r not in tested)
    return tested, (*notes, *untested)


def is_pooled(loaded: Loaded) -> bool:
    """True where all data lay on one device: then a fleet's speedup and bytes have no meaning."""
    return loaded.run.method.pooled


def fleet_of(loaded: Loaded) -> Fleet | None:
    """Fleet of the run, as recorded or built again; None for pooled data and where it is not known."""
    if is_pooled(loaded):
        return None
    if loaded.run.fleet:
        return _FLEET.validate_python(loaded.run.fleet)
    number = len(subjects(loaded)) or max((len(c.clients) for c in loaded.rounds[-1].costs.values()), default=0)
    if loaded.committed is not None and loaded.committed.means is not None:
        number = loaded.committed.means.num_clients
    if not number:
        return None
    try:
        data = DataConfig.model_validate(loaded.run.config.get("data"))
        config, spec = FleetConfig.model_validate(loaded.run.config.get("fleet")), get_spec(data.name)
        fleet, _ = build_fleet(config, spec.names, spec.type_counts, number, lacking=lacking(data, number))
    except (UserError, ValidationError):
        return None
    return fleet


def device_types(loaded: Loaded) -> dict[int, str]:
    """Device type by client; empty where the fleet is unknown."""
    fleet = fleet_of(loaded)
    return {} if fleet is None else {c.id: c.device for c in fleet.clients}


def subjects(loaded: Loaded) -> dict[int, str]:
    """The subject behind each client, from the coverage report."""
    rows = loaded.run.coverage.get("clients")
    by_client: dict[int, str] = {}
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, dict) and isinstance(client := row.get("client"), int):
            by_client[client] = str(row.get("subject", "?"))
    return by_client


def split_name(split: str) -> str:
    """The split in words."""
    return _SPLIT_NAMES.get(split, split)
