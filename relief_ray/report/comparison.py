"""Runs side by side: a row per method, averaged over folds and replicates, with differences to FedAvg by paired run.

A comparison is what a report or `compare` shows at once: planned and finished runs that differ in method, fold and
replicate alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from itertools import starmap
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from pydantic import JsonValue

from relief_ray.config.experiment import as_read
from relief_ray.core.messages import Fleet
from relief_ray.data.registry import recorded_spec
from relief_ray.devices.fleet import FleetConfig, device_types, own_gap
from relief_ray.plugins.load import is_path
from relief_ray.records.identity import flat
from relief_ray.records.schema import MethodFacts, section
from relief_ray.report.paper import PAPER_DATA
from relief_ray.report.results import (
    COSTS,
    FIRST_FIGURE,
    KEY,
    curves,
    round_table,
    run_table,
    score_at,
)
from relief_ray.report.runs import (
    Config,
    GridItem,
    Inventory,
    Loaded,
    Replicate,
    choice_kind,
    chosen_keys,
    condensed,
    config_text,
    item_of,
    labelled,
    load_runs,
    require_complete,
    searched_keys,
    short_name,
    split_name,
)
from relief_ray.report.statistics import MIN_REPLICATES, Paired, paired, units_of
from relief_ray.strategies import PRESETS, PROPOSED, REFERENCE, by_registry, method_name
from relief_ray.support.errors import UserError, listed
from relief_ray.support.table import grouped

if TYPE_CHECKING:
    from pandas import DataFrame

# Keys that may differ inside one comparison: the method, what means are taken over, and how a run was carried out.
# The number of a partition that is drawn.
_DRAW = "data.seed"
_FREE = (
    "name",
    "strategy",
    "seed",
    "replicate",
    "data.fold",
    "fleet.rotation",
    "runtime",
    "tracking",
    "record",
    "evaluation.every",
    "metrics",
)

HEADLINE_CLOCK = "flop_proportional"
BACKBONES = {"cnn": "Backbone 1 (CNN)", "moment_lora": "Backbone 2 (MOMENT + LoRA)"}
_TYPES, _MOST_FIGURES = "fleet.types.", 4
_CHOICES = {"tuned": "every method tuned", "try": "search", "level": "methods at levels of their own"}
# Keys that the title or every caption names.
_NAMED = ("data.name", "data.split", "backbone.", "fleet.gap", "data.num_clients", "engine", "data origin", "choice")
_PRESET_LABELS = frozenset(method_name(config, label) for label, config in PRESETS.items())


class Stat(NamedTuple):
    """Mean and sample standard deviation (none for a single value) over the ``num`` runs that have the figure."""

    mean: float
    std: float | None
    num: int


def stat(values: Sequence[float]) -> Stat:
    """Mean and sample standard deviation."""
    return Stat(mean(values), stdev(values) if len(values) > 1 else None, len(values))


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodResult:
    """Means and paired differences of one method, or of its variant."""

    label: str
    method: MethodFacts
    personalised: bool
    """Its clients are tested on models of their own."""
    num_runs: int
    stats: Mapping[str, Stat]
    """Figures by name, in the unit that the name ends with."""
    over_reference: Callable[[str], Paired | None]
    """Its paired difference to FedAvg in a column of the run table, in points; computed when asked for."""

    @property
    def f1(self) -> Paired | None:
        """Of the headline F1 after the last round."""
        return self.over_reference("f1_percent")

    @property
    def is_bound(self) -> bool:
        """Whether it is a bound rather than a federated method."""
        return self.method.is_bound

    def mean(self, figure: str) -> float | None:
        """Mean of a figure; None where no run has it."""
        return self.stats[figure].mean if figure in self.stats else None


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """Planned and finished runs of one setting, which differ in method, fold and replicate alone, side by side.

    Tables are made when they are asked for. Without finished runs there are no rows.
    """

    items: tuple[GridItem, ...]
    """Planned and existing runs."""
    clock: str
    """Time model behind seconds, joules and speedups; empty without finished runs."""
    left_out: tuple[str, ...] = ()
    """Sentences about runs that do not count."""
    differs: Mapping[str, str] = field(default_factory=dict)
    """Keys beside data and backbone in which it differs from the report's other settings, with its values."""
    _by_clock: dict[str, Comparison] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def _distinct(self) -> tuple[tuple[Loaded, ...], tuple[str, ...]]:
        """The runs that count, and sentences about the others: those of one method and replicate but the first."""
        done = [(s.label, loaded) for s in self.items if (loaded := s.done)]
        again = [(s.label, loaded) for s in self.items for loaded in s.repeats]
        kept: dict[tuple[str, Replicate], Loaded] = {}
        notes: list[str] = []
        for loaded in starmap(renamed, (*done, *again)):
            key = (loaded.label, loaded.replicate)
            first = kept.setdefault(key, loaded)
            if first is not loaded:
                same = first.rounds[-1].model_sha256 == loaded.rounds[-1].model_sha256
                bits = "the same bits" if same else "OTHER bits"
                notes.append(f"{loaded.title} was given twice, with {bits}; the first counts")
        return tuple(kept.values()), tuple(notes)

    @property
    def runs(self) -> tuple[Loaded, ...]:
        """The runs that count, one per method and replicate, under their methods' names."""
        return self._distinct[0]

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about runs that were left out."""
        return (*self.left_out, *self._distinct[1])

    @cached_property
    def rounds(self) -> DataFrame:
        """A row per run and round."""
        return round_table(self.runs, self.clock)

    @cached_property
    def table(self) -> DataFrame:
        """A row per run, in the same order."""
        return run_table(self.runs, self.rounds, self.clock)

    @cached_property
    def rows(self) -> tuple[MethodResult, ...]:
        """Methods that ran, in the registry's order, then others, bounds last."""
        if not self.runs:
            return ()
        over_reference = cache(lambda label, figure: self.difference(label, REFERENCE, figure))
        found = []
        for label in self.bounds_last(by_registry(dict.fromkeys(r.label for r in self.runs))):
            group = self.table[self.table["method"] == label]
            figures = group.loc[:, FIRST_FIGURE:].items()
            method = MethodResult(
                label=label,
                method=self.methods[label],
                personalised=bool(group["personalised"].any()),
                num_runs=len(group),
                stats={str(name): stat(known) for name, column in figures if (known := column.dropna().tolist())},
                over_reference=partial(over_reference, label),
            )
            found.append(method)
        return tuple(found)

    @property
    def labels(self) -> list[str]:
        """Names of the methods that ran, in the order of ``rows``."""
        return [row.label for row in self.rows]

    @property
    def clocks(self) -> list[str]:
        """The clocks that every run recorded."""
        known = [r.rounds[-1].costs for r in self.runs]
        return [clock for clock in known[0] if all(clock in costs for costs in known)] if known else []

    def by(self, clock: str) -> Comparison:
        """The same by another of ``clocks``, made once: its tables take long."""
        return self._by_clock.setdefault(clock, self if clock == self.clock else replace(self, clock=clock))

    @cached_property
    def shown(self) -> Comparison:
        """Comparison beside the paper's figures: by its clock where the runs have it."""
        return self.by(HEADLINE_CLOCK) if HEADLINE_CLOCK in self.clocks else self

    def row(self, label: str) -> MethodResult | None:
        """The method of that name; None where it did not run."""
        return next((r for r in self.rows if r.label == label), None)

    def stat(self, label: str, figure: str) -> Stat | None:
        """Statistic of a method; None where it did not run or lacks the figure."""
        method = self.row(label)
        return None if method is None else method.stats.get(figure)

    def runs_of(self, label: str) -> list[Loaded]:
        """The runs of one method."""
        return [r for r in self.runs if r.label == label]

    @cached_property
    def methods(self) -> dict[str, MethodFacts]:
        """Facts of every method that was run or planned, by its label."""
        # Of a label the first run's count, where there is one.
        in_order = sorted(reversed(self.items), key=lambda item: item.done is not None)
        return {item.label: item.method for item in in_order if item.method is not None}

    @cached_property
    def bounds(self) -> frozenset[str]:
        """Labels of the methods that are bounds."""
        return frozenset(label for label, method in self.methods.items() if method.is_bound)

    def bounds_last(self, labels: Iterable[str]) -> list[str]:
        """The labels with all bounds at the end; one without facts is of no bound."""
        return sorted(labels, key=self.bounds.__contains__)

    def has(self, label: str) -> bool:
        """True for a method that was run or planned."""
        return any(item.label == label for item in self.items)

    def open_statuses(self, label: str) -> list[str]:
        """The statuses of a method's runs that are not done."""
        return [item.status for item in self.items if item.label == label and item.status != "done"]

    def text(self, path: str) -> str:
        """A value of the configuration; empty where there is none."""
        return config_text(self.items[0].config, path, "")

    @property
    def sensors(self) -> tuple[str, ...]:
        """The sensors that the model was tested with one at a time, in the data set's order where it is known."""
        names = dict.fromkeys(name for run in self.runs for name in run.tested.f1_by_modality)
        order = () if self.fleet is None else self.fleet.modalities
        return tuple(sorted(names, key=lambda name: order.index(name) if name in order else len(order)))

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the users' metrics that some run has."""
        return tuple(dict.fromkeys(name for run in self.runs for name in run.tested.scores))

    @property
    def fleet(self) -> Fleet | None:
        """The fleet of the first run that has one."""
        return next((run.fleet for run in self.runs if run.fleet is not None), None)

    @property
    def personalised(self) -> list[str]:
        """Methods whose clients are tested on models of their own."""
        return [row.label for row in self.rows if row.personalised]

    def difference(self, label: str, other: str, figure: str) -> Paired | None:
        """``label`` minus ``other`` in points; None for a method and itself, and where no pair has the figure."""
        return None if label == other else paired_gain(pairs(self.table, self.rounds, label, other, figure))

    @property
    def subjects(self) -> tuple[str, ...]:
        """All test subjects."""
        return tuple(dict.fromkeys(subject for run in self.runs for subject in run.subjects))

    @property
    def dataset(self) -> str:
        """Its name in configurations."""
        return self.text("data.name")

    @property
    def data_title(self) -> str:
        """The data set as titles name it."""
        return self.runs[0].data_title if self.runs else short_name(self.dataset)

    @property
    def is_own_data(self) -> bool:
        """True for a user's data set: the paper says nothing about it."""
        return is_path(self.dataset)

    @property
    def is_on_papers_data(self) -> bool:
        """True for a data set of the paper, whose figures then stand under ours."""
        return self.dataset in PAPER_DATA

    @property
    def paper_data(self) -> str:
        """The paper's data set that stands beside ours: the same one, or PAMAP2."""
        return PAPER_DATA.get(self.dataset, "PAMAP2")

    @property
    def backbone(self) -> str:
        """Its name in configurations."""
        return self.text("backbone.name") or "cnn"

    @property
    def gap(self) -> float:
        """How many times the fastest device type is faster than the slowest."""
        return float(self.text("fleet.gap") or own_gap(device_types(self.fleet_config)))

    def in_order(self, kinds: Iterable[str]) -> list[str]:
        """Device types in order of capability, those that no run's fleet has last."""
        order = () if self.fleet is None else self.fleet.order
        return sorted(kinds, key=lambda kind: (order.index(kind) if kind in order else len(order), kind))

    @property
    def fleet_config(self) -> FleetConfig:
        """The fleet's part of the configuration."""
        return FleetConfig.model_validate(section(self.items[0].config, "fleet"))

    @property
    def num_clients(self) -> int:
        """Clients of the fleet: one per subject of the training part unless the configuration says otherwise."""
        if known := self.text("data.num_clients") or self.text("fleet.num_clients"):
            return int(known)
        if self.runs and (number := self.runs[0].covered("clients")):
            return number
        try:
            return len(recorded_spec(self.dataset).subjects)
        except UserError:
            return 0

    @property
    def is_real(self) -> bool:
        """True where no run used synthetic data."""
        return all(r.run.data_origin == "real" for r in self.runs)

    @property
    def choice(self) -> str:
        """``tuned``: each method as its search chose; ``try``: tries; ``level``: a grid's own levels; else empty."""
        return choice_kind(self.items[0].config)

    @property
    def searched(self) -> tuple[str, ...]:
        """Keys in which methods may differ, by a search or by levels of their own."""
        return searched_keys(item.config for item in self.items)

    def base(self, chosen: Iterable[str]) -> str:
        """The setting without the search and the values that it chose: equal for tuned and usual cells."""
        config = flat_settings([item.config for item in self.items])[0]
        return repr({k: v for k, v in config.items() if k not in {"choice", *chosen}})

    @property
    def is_drawn(self) -> bool:
        """True for the table's own gap and a client per subject: the settings of which figures are drawn."""
        return not self.text("fleet.gap") and not self.text("data.num_clients")

    @property
    def is_two_boards(self) -> bool:
        """True for the paper's per-device runs: one client of the first type, one of the last."""
        types = section(section(self.items[0].config, "fleet"), "types")
        return [row.get("share") for row in types.values() if isinstance(row, dict)] == [1, 0, 1]

    @property
    def is_testbed(self) -> bool:
        """True for the types of the paper's testbed, not for a table of other types."""
        if self.text("fleet.preset") != "testbed":
            return False
        return device_types(self.fleet_config).keys() == device_types(FleetConfig(preset="testbed")).keys()

    @property
    def title(self) -> str:
        """Data, split, backbone, and the other values that set it apart."""
        is_testbed, clients = self.is_testbed, self.text("data.num_clients")
        parts = [
            self.data_title,
            split_name(self.text("data.split")),
            BACKBONES.get(self.backbone) or short_name(self.backbone),
            f"gap {self.gap:g}" if self.text("fleet.gap") else "",
            f"N = {clients}" if clients else "",
            _CHOICES.get(self.choice, ""),
            ("testbed, two devices" if self.is_two_boards else "testbed, fleet") * is_testbed,
            *(f"{k} = {v}" for k, v in self.differs.items() if not (is_testbed and k in ("preset", "types"))),
        ]
        return ("" if self.is_real else "SYNTHETIC data: ") + ", ".join(filter(None, parts))

    def of_other_code(self, label: str) -> int:
        """Number of a method's runs that another program computed than most runs of the setting."""
        return sum(r.run.source_digest != digests_of(self.runs)[0] for r in self.runs_of(label))


def compare(folders: Iterable[Path], clock: str | None = None) -> Comparison:
    """The comparison of all complete runs below the folders.

    Raises:
        UserError: no complete run, runs of different settings, or an unknown clock.
    """
    return compare_runs(load_runs(folders, condensed), clock)


def compare_runs(runs: Sequence[Loaded], clock: str | None = None) -> Comparison:
    """``compare`` for runs that are loaded already; ``clock`` is the runs' planning clock by default."""
    complete, left_out = require_complete(runs)
    items = labelled([item_of(loaded.where, loaded) for loaded in complete])
    _refuse_mixture(items)
    comparison = Comparison(items=items, clock=clock or complete[0].run.planning_model, left_out=left_out)
    for loaded in comparison.runs:
        if comparison.clock not in (known := loaded.rounds[-1].costs):
            raise UserError(
                f"{loaded.where}: no clock {comparison.clock!r}; recorded are {', '.join(known)}; choose one of them"
            )
    return comparison


def pairs(table: DataFrame, rounds: DataFrame, first: str, second: str, figure: str) -> DataFrame:
    """A row per pair of two methods' runs of the same fold, rotation and seed that both have the figure.

    Columns: ``KEY``, ``repetition``, scores ``first`` and ``second`` in percent, the runs' numbers ``run`` and
    ``run_second``. ``figure``: a column of the table or a name that claims use.
    """
    one, two = (table[(table["method"] == name).to_numpy()] for name in (first, second))
    return scored(one, two, KEY, rounds, figure)


def scored(one: DataFrame, two: DataFrame, keys: list[str], rounds: DataFrame, figure: str) -> DataFrame:
    """``pairs`` of the rows of two run tables that are equal in ``keys``, in their order; of equal rows the first.

    At equal cost the budget of a pair is what the cheaper one spent in all.
    """
    total, cost, score = COSTS.get(figure, (figure if figure in one.columns else f"{figure}_percent", "", ""))
    mine = one.reindex(columns=[*keys, "repetition", "run", total]).drop_duplicates(keys)
    other = two.reindex(columns=[*keys, "run", total]).drop_duplicates(keys)
    found = mine.merge(other, on=keys, suffixes=("", "_second")).sort_values(keys, ignore_index=True)
    scores = [found.pop(total), found.pop(f"{total}_second")]
    if cost:
        tested, budgets = curves(rounds), np.minimum(*scores)
        for side, name in enumerate(("run", "run_second")):
            spent = zip(found[name], budgets, strict=True)
            scores[side] = [score_at(tested.get(run), cost, budget, score) for run, budget in spent]
    found["first"], found["second"] = scores
    return found.dropna(subset=["first", "second"], ignore_index=True)


def paired_gain(scores: DataFrame) -> Paired | None:
    """First minus second in points, over the units that a claim is tested on: paired runs, or replicate means.

    Below three replicates nothing is tested, and the units are paired runs.
    """
    units = units_of(scores, least=MIN_REPLICATES)
    # Two runs of one fold and replicate count each by itself.
    if units.on_means and not scores.duplicated(["fold", "repetition"]).any():
        return paired(units.values, on_means=True)
    return paired((scores["first"] - scores["second"]).tolist())


def is_own_method(label: str) -> bool:
    """True for a method that is no preset: a user's own, or a variant of a preset."""
    return label not in _PRESET_LABELS


def interest(label: str) -> int:
    """How early a method is drawn or described, 0 first: FedAvg and RELIEF, a user's own, presets' variants, others."""
    if label in (REFERENCE, PROPOSED):
        return 0
    return (2 if label.partition(" (")[0] in _PRESET_LABELS else 1) if is_own_method(label) else 3


def flat_settings(configs: Sequence[Config], searched: Iterable[str] = ()) -> list[dict[str, JsonValue]]:
    """Each run's flat configuration without ``_FREE`` and what a search chose; the choice itself stays.

    Where every replicate, or seed, has a partition of its own, the partition's number is no setting; where one was
    named for all, it is. That is decided over the runs that are equal otherwise.
    ``searched``: keys that a search varies for any method. A method that keeps its batch size stands beside one for
    which the batch size was searched, so the setting of a searched cell holds no batch size at all.
    """
    whole = [_flat_setting(config, searched) for config in configs]
    others = [repr({key: value for key, value in each.items() if key != _DRAW}) for each in whole]
    are_own: dict[str, bool] = {}
    for config, each, rest in zip(configs, whole, others, strict=True):
        number = config.get("seed", 0) if config.get("replicate") is None else config["replicate"]
        is_own = each.get("data.partition", "subject") != "subject" and each.get(_DRAW, 0) == number
        are_own[rest] = is_own and are_own.get(rest, True)
    for each, rest in zip(whole, others, strict=True):
        if are_own[rest]:
            each.pop(_DRAW, None)
    return whole


def _flat_setting(config: Config, searched: Iterable[str]) -> dict[str, JsonValue]:
    kind = choice_kind(config)
    free = (*_FREE, "choice", *chosen_keys(config), *(searched if kind else ()))
    values = flat(as_read({key: value for key, value in config.items() if key not in _FREE}))
    sections = tuple(f"{name}." for name in free)
    kept = {k: v for k, v in values.items() if k not in free and not k.startswith(sections)}
    return kept | ({"choice": kind} if kind else {})


def _settings(items: Sequence[GridItem]) -> list[tuple[GridItem, dict[str, JsonValue]]]:
    """Each item with its setting, what its run ran on among it; planned ones join the first run of their setting."""
    configs = [item.config for item in items]
    settings = flat_settings(configs, searched_keys(configs))
    known = list(zip(items, settings, strict=True))
    places = {repr(setting): item.loaded.place for item, setting in reversed(known) if item.loaded is not None}
    return [
        (item, setting | (places.get(repr(setting), {}) if item.loaded is None else item.loaded.place))
        for item, setting in known
    ]


def _refuse_mixture(items: Sequence[GridItem]) -> None:
    """Check that the runs are of one setting; the message names the first keys that differ.

    Raises:
        UserError: they differ in more than ``_FREE``.
    """
    (one, first), *others = _settings(items)
    for other, theirs in others:
        if keys := sorted(k for k in first.keys() | theirs.keys() if first.get(k) != theirs.get(k)):
            shown = ", ".join(f"{k} = {first.get(k)!r} and {theirs.get(k)!r}" for k in keys[:3])
            raise UserError(f"{one.name} and {other.name} differ in {shown}; compare runs of one experiment")


def renamed(label: str, loaded: Loaded) -> Loaded:
    """The run under another label."""
    if label == loaded.label:
        return loaded
    method = loaded.run.method.model_copy(update={"name": label})
    return replace(loaded, run=loaded.run.model_copy(update={"method": method}))


def distinct(values: Iterable[object]) -> str:
    """Different values in order of appearance: ``1, 2 and 3``."""
    return listed(dict.fromkeys(map(str, values)))


def digests_of(runs: Sequence[Loaded]) -> tuple[str, ...]:
    """Source digests of the runs' programs, the commonest first."""
    return tuple(digest for digest, _ in Counter(r.run.source_digest for r in runs).most_common())


def programs(runs: Iterable[Loaded]) -> Counter[tuple[str, str, str]]:
    """Programs that computed the runs, by sources, torch and processor architecture."""
    return Counter((r.run.source_digest[:12], r.run.machine.torch, r.run.machine.architecture) for r in runs)


def by_setting(inventory: Inventory) -> tuple[Comparison, ...]:
    """All cells, by setting; planned cells join the runs of the same setting, whatever those ran on."""
    known = _settings([item for item in inventory.items if item.config])
    settings = {repr(setting): setting for _, setting in known}
    return tuple(
        Comparison(
            items=tuple(group),
            clock=next((loaded.run.planning_model for item in group if (loaded := item.done)), ""),
            differs=differences(settings[key], list(settings.values())),
        )
        for key, group in grouped((repr(setting), item) for item, setting in known).items()
    )


def differences(mine: Config, others: Sequence[Config]) -> dict[str, str]:
    """The keys in which settings vary, beside those that every title names, with ``mine``'s values.

    Empty values are left out: that the others' are not is in their titles. A setting of tuned cells lacks what the
    search chose, which is no difference.
    """
    keys = dict.fromkeys(k for other in (mine, *others) for k in other if not k.startswith(_NAMED))
    varied = [k for k in keys if len({repr(s.get(k)) for s in others if k in s or "choice" not in s}) > 1]
    said = {k: in_title(mine.get(k)) for k in varied if mine.get(k) not in (None, "", [], (), {})}
    figures = [f"{k.removeprefix(_TYPES)} {text}" for k, text in said.items() if k.startswith(_TYPES)]
    if len(figures) > _MOST_FIGURES:
        # A whole table of types by its names in their order, but where another setting has the same ones.
        names = mine.get("fleet.types")
        twins = (s for s in others if s.get("fleet.types") == names)
        has_twin = any(s.get(k) != mine.get(k) for s in twins for k in varied if k.startswith(_TYPES))
        is_named = isinstance(names, list) and not has_twin
        figures = list(map(str, names)) if is_named else [*figures[:_MOST_FIGURES], ".."]  # type: ignore[arg-type]
    rest = {k.rpartition(".")[2]: text for k, text in said.items() if not k.startswith(_TYPES)}
    return rest | ({"types": ", ".join(figures)} if figures else {})


def in_title(value: JsonValue) -> str:
    """A value of a configuration as titles and tables of searches show it: ``0.5``, ``[1, 2]``, ``A 1 B 0.75``."""
    if isinstance(value, Mapping):
        return " ".join(f"{key} {in_title(v)}" for key, v in value.items())
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(str, value))}]"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
