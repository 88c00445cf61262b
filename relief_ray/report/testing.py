"""Tests of paired runs: their scores, the unit of the test, the floor below which nothing is judged, the A/A rate.

A pair is two runs of one fold and one replicate: two methods with the same seed, start, data and devices. Where fold or
replicate holds more than a tenth of the scatter of paired differences, pairs depend on each other and the means of
whole replicates are tested instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean

from relief_ray.records.cells import Figure
from relief_ray.records.schema import Metrics
from relief_ray.report.budgets import at_equal_cost
from relief_ray.report.comparison import Comparison
from relief_ray.report.runs import Loaded, Repetition, Replicate, config_value
from relief_ray.report.statistics import ALPHA, Paired, Sides, paired, rate_interval, sign_flip, smallest_p
from relief_ray.report.variance import MIN_REPLICATES, VarianceShares, units_of

# Points above guessing that a method has to reach before a difference between methods is worth a verdict.
_ABOVE_CHANCE = 5.0
_MIN_AA_UNITS = 6
Scores = Mapping[tuple[int, Repetition], tuple[float, float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPair:
    """Two runs of one fold and replicate, with their scores in points.

    ``chance``: what a model without knowledge scores: one fixed answer, or guessing all classes alike.
    """

    fold: int
    repetition: Repetition
    first: Loaded
    second: Loaded
    scores: tuple[float, float]
    chance: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Result of one test.

    Attributes:
        paired: mean and interval over the units that were tested.
        p: of the sign-flip test; one-sided against the margin where there is one.
        sides: of the test.
        num_pairs: number of paired runs.
        num_replicates: number of replicates among them.
        on_means: the units are means of replicates, since pairs depend on each other.
        shares: where the scatter comes from; None below two folds and two complete replicates.
    """

    paired: Paired
    p: float
    sides: Sides
    num_pairs: int
    num_replicates: int
    on_means: bool
    shares: VarianceShares | None

    @property
    def smallest_p(self) -> float:
        """Smallest p that this number of units can give."""
        return smallest_p(self.paired.num_pairs, self.sides)


def figure_of(metrics: Metrics, figure: Figure) -> float | None:
    """A figure of an evaluation, a share; None for figures that only a pair of runs has."""
    if figure in ("f1_at_seconds", "f1_at_joules"):
        return None
    if figure == "f1_own_sensors":
        return metrics.f1_own_sensors if metrics.f1_fleet is None else metrics.f1_fleet
    scores = {"f1": metrics.headline, "f1_rare": metrics.f1_rare, "f1_own_subjects": metrics.f1_own_subjects}
    return scores[figure]


def _scores_of(first: Loaded, second: Loaded, figure: Figure, clock: str) -> tuple[float, float] | None:
    """Both runs' figure in points; None where one has none."""
    if figure in ("f1_at_seconds", "f1_at_joules"):
        scores = at_equal_cost(first, second, clock, "time_s" if figure == "f1_at_seconds" else "energy_j")
        return None if scores is None else (100 * scores[0], 100 * scores[1])
    last = [next((r.metrics for r in reversed(run.trained) if r.metrics is not None), None) for run in (first, second)]
    one, two = (None if metrics is None else figure_of(metrics, figure) for metrics in last)
    return None if one is None or two is None else (100 * one, 100 * two)


def run_pairs(comparison: Comparison, first: str, second: str, figure: Figure) -> list[RunPair]:
    """All pairs of two methods that have the figure, in order of replicate and fold."""
    theirs = {run.replicate: run for run in comparison.runs_of(second)}
    chances = _chances(comparison)
    pairs = []
    for mine in comparison.runs_of(first):
        other = theirs.get(mine.replicate)
        scores = None if other is None else _scores_of(mine, other, figure, comparison.clock)
        if other is not None and scores is not None:
            fold = mine.replicate[0]
            pair = RunPair(
                fold=fold, repetition=mine.repetition, first=mine, second=other, scores=scores,
                chance=chances.get(fold),
            )  # fmt: skip
            pairs.append(pair)
    return sorted(pairs, key=lambda p: (p.repetition, p.fold))


def _chances(comparison: Comparison) -> dict[int, float]:
    """F1 without knowledge, in points, for every fold where a run knows it."""
    chances: dict[int, float] = {}
    for run in comparison.runs:
        if (chance := run.chance) is not None:
            chances.setdefault(run.replicate[0], 100 * chance)
    return chances


def judge_scores(scores: Scores, margin: float | None = None) -> Outcome:
    """Test of paired scores (points) by fold and replicate: two-sided, or one-sided against a margin.

    With a margin the hypothesis is that the first method is worse by the margin or more.
    """
    first = {key: one for key, (one, _) in scores.items()}
    second = {key: two for key, (_, two) in scores.items()}
    units = units_of(first, second)
    result = paired(units.values, on_means=units.on_means)
    assert result is not None, "a test needs a pair"
    sides: Sides = 2 if margin is None else 1
    return Outcome(
        paired=result,
        p=result.p if margin is None else sign_flip([value + margin for value in units.values], sides=1),
        sides=sides,
        num_pairs=len(scores),
        num_replicates=len({repetition for _, repetition in scores}),
        on_means=units.on_means,
        shares=units.shares,
    )


def judge_pairs(pairs: Iterable[RunPair], margin: float | None = None) -> Outcome:
    """``judge_scores`` for pairs of runs."""
    return judge_scores({(p.fold, p.repetition): p.scores for p in pairs}, margin)


def too_short(pairs: Sequence[RunPair]) -> str:
    """Reason why nothing can be judged yet; empty where it can.

    Below three replicates, or where a method is less than five points above a model that knows nothing.
    """
    number = len({p.repetition for p in pairs})
    if number < MIN_REPLICATES:
        return f"{number} replicate{'s' if number != 1 else ''}, expected {MIN_REPLICATES} or more"
    known = [(p, p.chance) for p in pairs if p.chance is not None]
    for place, label in enumerate((pairs[0].first.label, pairs[0].second.label) if known else ()):
        score, chance = mean(p.scores[place] for p, _ in known), mean(c for _, c in known)
        if score < chance + _ABOVE_CHANCE:
            return f"{label} has {score:.1f} %, less than {_ABOVE_CHANCE:g} points above guessing ({chance:.1f} %)"
    return ""


def have_equal_work(pairs: Sequence[RunPair]) -> bool:
    """True where both methods' clients trained and sent the same groups in every round 1..R of every pair."""
    return all(p.first.work == p.second.work for p in pairs)


@dataclass(frozen=True, kw_only=True, slots=True)
class AaRate:
    """Rate at which the test calls a method different from itself: other replicates, the same test at level 0.05.

    Attributes:
        figure: what was compared.
        num_called: tests with p below 0.05.
        num_tests: methods with at least six units; methods that train the same bits count once.
        interval: Clopper and Pearson's 95 %, as if methods were independent, which share seeds; None without scipy.
    """

    figure: Figure
    num_called: int
    num_tests: int
    interval: tuple[float, float] | None


def aa_rate(comparison: Comparison, figure: Figure) -> AaRate | None:
    """The A/A rate of a figure over all methods; None where no method has six units."""
    outcomes = [o for label in _unlike(comparison) if (o := _aa_test(comparison, label, figure)) is not None]
    if not outcomes:
        return None
    called = sum(o.p < ALPHA for o in outcomes)
    return AaRate(
        figure=figure, num_called=called, num_tests=len(outcomes), interval=rate_interval(called, len(outcomes))
    )


def _unlike(comparison: Comparison) -> list[str]:
    """Return the methods' labels; of methods whose last models are equal in all runs, the first one's."""
    first: dict[frozenset[tuple[Replicate, str]], str] = {}
    for row in comparison.rows:
        models = frozenset((r.replicate, r.rounds[-1].model_sha256) for r in comparison.runs_of(row.label))
        first.setdefault(models, row.label)
    return list(first.values())


def _aa_test(comparison: Comparison, label: str, figure: Figure) -> Outcome | None:
    """A method against itself: pairs of replicates with equal devices in the same hands (``fleet.rotation``).

    Each fold of each two replicates is a pair. Replicates with other rotations differ in more than their seeds.
    """
    runs = {(run.replicate[0], run.repetition): run for run in comparison.runs_of(label)}
    scores: dict[tuple[int, Repetition], tuple[float, float]] = {}
    for one, other in _replicate_pairs(runs):
        for fold in sorted({fold for fold, _ in runs}):
            if (fold, one) in runs and (fold, other) in runs:
                pair = _scores_of(runs[fold, one], runs[fold, other], figure, comparison.clock)
                if pair is not None:
                    scores[fold, one] = pair
    outcome = judge_scores(scores) if scores else None
    return outcome if outcome is not None and outcome.paired.num_pairs >= _MIN_AA_UNITS else None


def _replicate_pairs(runs: Mapping[tuple[int, Repetition], Loaded]) -> list[tuple[Repetition, Repetition]]:
    """First and second, third and fourth ... replicate of each rotation."""
    by_rotation: dict[object, list[Repetition]] = {}
    for (_, repetition), run in sorted(runs.items(), key=lambda item: item[0][1]):
        same = by_rotation.setdefault(config_value(run.run.config, "fleet.rotation"), [])
        if repetition not in same:
            same.append(repetition)
    return [pair for same in by_rotation.values() for pair in list(pairwise(same))[::2]]
