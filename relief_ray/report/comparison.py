"""Runs side by side: a row per method, averaged over folds and replicates, with differences to FedAvg by paired run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Protocol, TypeVar

from pydantic import JsonValue

from relief_ray.config.experiment import parse
from relief_ray.data.registry import get_spec
from relief_ray.records.schema import MethodFacts, RunRecord
from relief_ray.report.inventory import choice_kind, chosen_keys, searched_keys, variant_names
from relief_ray.report.results import RunSummary, Values, measures, summarise_run
from relief_ray.report.runs import Loaded, Repetition, Replicate, flat, load_runs, require_complete, run_value
from relief_ray.report.statistics import Paired, paired
from relief_ray.report.variance import MIN_REPLICATES, units_of
from relief_ray.strategies import PRESETS, REFERENCE, by_registry, method_name
from relief_ray.support.errors import UserError

# Keys that may differ inside one comparison: the method, what means are taken over, and how a run was carried out.
_FREE = (
    "name", "strategy", "seed", "replicate", "data.fold", "fleet.rotation", "runtime", "tracking", "record",
    "evaluation.every",
)  # fmt: skip


class Replicated(Protocol):
    """Result of one run that can be paired with another method's."""

    @property
    def label(self) -> str:
        """The method."""

    @property
    def repetition(self) -> Repetition:
        """The replicate that it belongs to, in all folds."""

    @property
    def replicate(self) -> Replicate:
        """(fold, rotation, seed)."""


T = TypeVar("T", bound=Replicated)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stat:
    """Mean and sample standard deviation (none for a single value) over the ``num`` runs that have the figure."""

    mean: float
    std: float | None
    num: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodResult:
    """Means and paired differences of one method.

    Attributes:
        label: name of the method, or of its variant.
        method: facts of the method.
        personalised: its clients are tested on models of their own.
        num_runs: runs behind it.
        stats: figures by name, in the unit that the name ends with.
        f1: paired difference of the headline F1 to FedAvg's after the last round, in points.
        at_rounds: the same at equal numbers of aggregations; None where all aggregate as often, or where a run was not
            tested early enough.
        canonical: the same of the canonical model.
        rare: the same of the canonical model that sees the rare sensors alone.
    """

    label: str
    method: MethodFacts
    personalised: bool
    num_runs: int
    stats: Mapping[str, Stat]
    f1: Paired | None
    at_rounds: Paired | None
    canonical: Paired | None
    rare: Paired | None

    @property
    def is_bound(self) -> bool:
        """Whether it is a bound rather than a federated method."""
        return self.method.is_bound


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Comparable runs side by side.

    Attributes:
        clock: time model behind seconds, joules and speedups.
        runs: one per method and replicate.
        summaries: of the runs, in the same order.
        rows: methods in the registry's order, then others, bounds last.
        notes: sentences about runs that were left out.
    """

    clock: str
    runs: tuple[Loaded, ...]
    summaries: tuple[RunSummary, ...]
    rows: tuple[MethodResult, ...]
    notes: tuple[str, ...]

    def row(self, label: str) -> MethodResult | None:
        """The method of that name."""
        return next((r for r in self.rows if r.label == label), None)

    def runs_of(self, label: str) -> list[Loaded]:
        """The runs of one method."""
        return [r for r in self.runs if r.label == label]

    @property
    def sensors(self) -> tuple[str, ...]:
        """The sensors that the model was tested with one at a time, in the data set's order where it is known."""
        names = dict.fromkeys(m for s in self.summaries for m in s.last.f1_by_modality)
        order = {name: i for i, name in enumerate(_sensor_order(self.runs[0].run))}
        return tuple(sorted(names, key=lambda name: order.get(name, len(order))))

    @property
    def bootstrapped(self) -> tuple[str, ...]:
        """Methods that aggregate once more than their number of rounds: before round 1."""
        return tuple(dict.fromkeys(r.label for r in self.runs if r.has_bootstrap))

    @property
    def is_at_rounds(self) -> bool:
        """Whether differences are taken at equal numbers of aggregations: these differ, and tests came early enough."""
        known = [row for row in self.rows if row.f1 is not None]
        return bool(known) and all(row.at_rounds is not None for row in known)

    def gain(self, row: MethodResult) -> Paired | None:
        """The difference to FedAvg that tables and sentences lead with: at equal aggregations, where these differ."""
        return row.at_rounds if self.is_at_rounds else row.f1

    def bootstrap_percent(self, label: str) -> float:
        """Share of a method's seconds that its bootstrap round took, mean over its runs; 0 without one."""
        return mean(100 * loaded.bootstrap_share(self.clock) for loaded in self.runs_of(label))

    @property
    def subjects(self) -> tuple[str, ...]:
        """All test subjects."""
        return tuple(sorted({s for run in self.summaries for s in run.by_subject}, key=lambda s: (len(s), s)))


def _sensor_order(run: RunRecord) -> Sequence[str]:
    """Sensors in canonical order: as recorded, else as the data set lists them; empty where neither is known."""
    names = run.fleet.get("modalities")
    if isinstance(names, list):
        return [str(name) for name in names]
    try:
        return get_spec(str(run_value(run, "data.name"))).names
    except UserError:
        return ()


def compare(folders: Iterable[Path], clock: str | None = None) -> Comparison:
    """The comparison of all complete runs below the folders.

    Raises:
        UserError: no complete run, runs of different experiments, or an unknown clock.
    """
    return compare_runs(load_runs(folders, whole=False), clock)


def compare_runs(runs: Sequence[Loaded], clock: str | None = None, searched: Iterable[str] = ()) -> Comparison:
    """``compare`` for runs that are loaded already; ``clock`` is the runs' planning clock by default.

    ``searched``: keys that a search varies beside those that the runs themselves name.
    """
    complete, notes = require_complete(runs)
    _refuse_mixture(complete, searched)
    distinct, repeats = _without_repeats(with_labels(complete))
    summaries = tuple(summarise_run(r) for r in distinct)
    chosen = _clock(distinct, clock)
    values = measures(distinct, summaries, chosen)
    methods = {r.label: r.run.method for r in reversed(distinct)}
    labels = bounds_last(by_registry(dict.fromkeys(s.label for s in summaries)), methods)
    rows = tuple(_row(label, methods[label], summaries, values) for label in labels)
    return Comparison(clock=chosen, runs=distinct, summaries=summaries, rows=rows, notes=(*notes, *repeats))


_PRESET_LABELS = frozenset(method_name(config, label) for label, config in PRESETS.items())


def is_own_method(label: str) -> bool:
    """True for a method that is no preset: a user's own, or a variant of a preset."""
    return label not in _PRESET_LABELS


def bounds_last(labels: Sequence[str], methods: Mapping[str, MethodFacts]) -> list[str]:
    """The labels with all bounds at the end; a label without facts is of no bound."""
    bounds = [v for v in labels if v in methods and methods[v].is_bound]
    return [v for v in labels if v not in bounds] + bounds


def setting(run: RunRecord, searched: Iterable[str] = ()) -> dict[str, JsonValue]:
    """Settings that must be equal in a comparison: the flat configuration without ``_FREE``, data origin and engine."""
    return flat_setting(run.config, searched) | {"data origin": run.data_origin, "engine": run.engine}


def flat_setting(config: Mapping[str, JsonValue], searched: Iterable[str] = ()) -> dict[str, JsonValue]:
    """The flat configuration without ``_FREE`` and without the values that a search chose; the choice itself stays.

    ``searched``: keys that a search varies for any method. A method that keeps its batch size stands beside one for
    which the batch size was searched, so the setting of a searched cell holds no batch size at all.
    """
    kind = choice_kind(config)
    free = (*_FREE, "choice", *chosen_keys(config), *(searched if kind else ()))
    values = flat(_parsed(config))
    kept = {k: v for k, v in values.items() if not any(k == name or k.startswith(f"{name}.") for name in free)}
    return kept | ({"choice": kind} if kind else {})


def _parsed(config: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    """Return the settings beside ``_FREE`` as this program reads them, so that equal identities give equal settings.

    A configuration that it cannot read, such as one with a user's backbone that is not here, is returned as it stands.
    """
    try:
        return parse({key: value for key, value in config.items() if key not in _FREE}).model_dump(mode="json")
    except UserError:
        return config


def _refuse_mixture(runs: Sequence[Loaded], searched: Iterable[str] = ()) -> None:
    """Check that the runs are of one experiment; the message names the first keys that differ.

    Raises:
        UserError: they differ in more than ``_FREE``.
    """
    first, *others = runs
    free = (*searched, *searched_keys(r.run.config for r in runs))
    wanted = setting(first.run, free)
    for other in others:
        theirs = setting(other.run, free)
        keys = sorted(k for k in wanted.keys() | theirs.keys() if wanted.get(k) != theirs.get(k))
        if keys:
            shown = ", ".join(f"{k} = {wanted.get(k)!r} and {theirs.get(k)!r}" for k in keys[:3])
            raise UserError(f"{first.where} and {other.where} differ in {shown}; compare runs of one experiment")


def with_labels(runs: Sequence[Loaded]) -> tuple[Loaded, ...]:
    """The runs under their variants' names (``variant_names``)."""
    names = variant_names([(r.label, r.run.config) for r in runs], [r.run.method for r in runs])
    return tuple(renamed(r, name) for r, name in zip(runs, names, strict=True))


def renamed(loaded: Loaded, label: str) -> Loaded:
    """The run under another label."""
    if label == loaded.label:
        return loaded
    method = loaded.run.method.model_copy(update={"name": label})
    return replace(loaded, run=loaded.run.model_copy(update={"method": method}))


def _without_repeats(runs: Sequence[Loaded]) -> tuple[tuple[Loaded, ...], tuple[str, ...]]:
    """One run per method and replicate (the first), and a sentence about each other one.

    Where bits are equal the first takes over what only the other compared in pairs: a diagnostic cell is a table's cell
    that wrote more down.
    """
    kept: dict[tuple[str, Replicate], Loaded] = {}
    notes: list[str] = []
    for loaded in runs:
        key = (loaded.label, loaded.replicate)
        first = kept.setdefault(key, loaded)
        if first is not loaded:
            same = first.rounds[-1].model_sha256 == loaded.rounds[-1].model_sha256
            kept[key] = _with_pairs(first, loaded) if same else first
            bits = "the same bits" if same else "OTHER bits"
            notes.append(f"{loaded.title} was given twice, with {bits}; the first counts")
    return tuple(kept.values()), tuple(notes)


def _with_pairs(first: Loaded, other: Loaded) -> Loaded:
    pairs_of = {(r.round, r.model_sha256): r.pairwise for r in other.rounds}
    rounds = [(r, r.pairwise or pairs_of.get((r.round, r.model_sha256), {})) for r in first.rounds]
    return replace(first, rounds=tuple(r.model_copy(update={"pairwise": pairs}) for r, pairs in rounds))


def _clock(runs: Sequence[Loaded], wanted: str | None) -> str:
    clock = wanted or runs[0].run.planning_model
    for loaded in runs:
        if clock not in (known := loaded.rounds[-1].costs):
            raise UserError(f"{loaded.where}: no clock {clock!r}; recorded are {', '.join(known)}; choose one of them")
    return clock


def _row(label: str, method: MethodFacts, summaries: Sequence[RunSummary], values: Sequence[Values]) -> MethodResult:
    mine = [(s, v) for s, v in zip(summaries, values, strict=True) if s.label == label]
    names = list(dict.fromkeys(name for _, figures in mine for name in figures))
    return MethodResult(
        label=label,
        method=method,
        personalised=any(s.personalised for s, _ in mine),
        num_runs=len(mine),
        stats={name: stat([v[name] for _, v in mine if name in v]) for name in names},
        f1=difference(summaries, label, REFERENCE, lambda s: s.shown),
        at_rounds=difference(summaries, label, REFERENCE, _at_rounds(summaries, values)),
        canonical=difference(summaries, label, REFERENCE, lambda s: s.last.f1),
        rare=difference(summaries, label, REFERENCE, lambda s: s.last.f1_rare),
    )


def _at_rounds(summaries: Sequence[RunSummary], values: Sequence[Values]) -> Callable[[RunSummary], float | None]:
    """Score of a run at the least number of aggregations of its replicate; none where all aggregate as often."""
    name = "f1_at_rounds_percent"
    scores = {(s.label, s.replicate): v[name] / 100 for s, v in zip(summaries, values, strict=True) if name in v}
    return lambda summary: scores.get((summary.label, summary.replicate))


def stat(values: Sequence[float]) -> Stat:
    """Mean and sample standard deviation."""
    return Stat(mean=mean(values), std=stdev(values) if len(values) > 1 else None, num=len(values))


def difference(
    summaries: Sequence[RunSummary], label: str, other: str, score: Callable[[RunSummary], float | None]
) -> Paired | None:
    """``label`` minus ``other`` in points of F1 over the runs that both methods have."""
    return None if label == other else paired_gain(summaries, label, other, score)


def paired_gain(items: Sequence[T], label: str, other: str, score: Callable[[T], float | None]) -> Paired | None:
    """``label`` minus ``other`` in points, over the units that a claim is tested on: paired runs, or replicate means.

    Below three replicates nothing is tested, and the units are paired runs.
    """
    differences = run_differences(items, label, other, score)
    mine, theirs = ({s.replicate: s for s in items if s.label == name} for name in (label, other))
    scores = [{(k[0], of[k].repetition): 100 * (score(of[k]) or 0.0) for k in differences} for of in (mine, theirs)]
    units = units_of(scores[0], scores[1], least=MIN_REPLICATES)
    # Two runs of one fold and replicate count each by itself.
    if units.on_means and len(scores[0]) == len(differences):
        return paired(units.values, on_means=True)
    return paired([100 * value for value in differences.values()])


def run_differences(
    items: Sequence[T], label: str, other: str, score: Callable[[T], float | None]
) -> dict[Replicate, float]:
    """The difference of every paired run: same fold, rotation and seed."""
    mine = {s.replicate: score(s) for s in items if s.label == label}
    theirs = {s.replicate: score(s) for s in items if s.label == other}
    pairs = ((key, mine[key], theirs[key]) for key in sorted(mine.keys() & theirs.keys()))
    return {key: one - two for key, one, two in pairs if one is not None and two is not None}
