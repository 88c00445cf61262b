"""Planning a study: the scatter of paired differences in finished cells, and what planned runs can decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from relief_ray.plugins.load import import_path, is_path
from relief_ray.records.cells import Claim, Claims, Figure, PlannedCell
from relief_ray.report.frames import FinishedCell, cell_scores
from relief_ray.report.power import detectable
from relief_ray.report.registered import planned_replicates
from relief_ray.report.runs import Repetition, Replicate, config_value, repetition_of
from relief_ray.report.statistics import ALPHA, Sides, smallest_p, special
from relief_ray.report.variance import MIN_REPLICATES, VarianceShares, variance_shares
from relief_ray.support.errors import UserError, nearest

Key = tuple[int, Repetition]
# Fewer means of replicates may lie close together by chance: then the unit that promises less is planned with.
_MIN_MEANS = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Scatter:
    """Scatter of paired differences, in points.

    Attributes:
        sd: standard deviation of one unit: a paired run, or a replicate's mean where pairs depend on each other.
        interval: its 95 % interval for normal differences; None without scipy.
        mean: mean difference.
        num_pairs: paired runs behind it.
        num_folds: folds among them.
        on_means: the unit is the mean of a replicate.
        shares: where the scatter comes from, if folds and replicates are enough to tell.
        num_replicates: replicates among the pairs.
        origins: what their data are, ``real`` or ``SYNTHETIC``.
    """

    sd: float
    interval: tuple[float, float] | None
    mean: float
    num_pairs: int
    num_folds: int
    on_means: bool
    shares: VarianceShares | None
    num_replicates: int
    origins: tuple[str, ...] = ("real",)

    @property
    def is_unsure(self) -> bool:
        """True where pairs seem to depend on each other, and replicates are too few to tell how much."""
        return not self.on_means and self.shares is not None and self.shares.pairs_depend


def scatter_of(cells: Sequence[FinishedCell], first: str, second: str, figure: Figure) -> Scatter:
    """Scatter of ``first`` minus ``second`` over paired cells of one setting.

    The unit is a replicate's mean where pairs depend on each other; below six replicates only if it promises less.

    Raises:
        UserError: several settings, or fewer than two pairs with that figure.
    """
    first, second = (_as_printed(cells, name) for name in (first, second))
    used = _cells_of(cells, (first, second))
    scores = _paired_scores(cells, first, second, figure)
    if len(scores) < 2:
        raise UserError(
            f"{len(scores)} paired runs of {first} and {second} with {figure}, expected two or more; give --sd POINTS"
        )
    one, two = ({key: pair[i] for key, pair in scores.items()} for i in (0, 1))
    shares = variance_shares(one, two)
    by_replicate: dict[Repetition, list[float]] = {}
    for (_, repetition), (a, b) in scores.items():
        by_replicate.setdefault(repetition, []).append(a - b)
    pairs, means = [a - b for a, b in scores.values()], [mean(v) for v in by_replicate.values()]
    on_means = shares is not None and shares.pairs_depend and _has_enough_means(means, pairs)
    units = means if on_means else pairs
    sd = stdev(units)
    return Scatter(
        sd=sd,
        interval=_sd_interval(sd, len(units)),
        mean=mean(units),
        num_pairs=len(scores),
        num_folds=len({fold for fold, _ in scores}),
        on_means=on_means,
        shares=shares,
        num_replicates=len(by_replicate),
        origins=tuple(sorted({cell.record.data_origin for cell in used})),
    )


def _cells_of(cells: Sequence[FinishedCell], names: Sequence[str]) -> list[FinishedCell]:
    """The cells of these methods.

    Raises:
        UserError: of several settings, or none of a method.
    """
    used = [cell for cell in cells if cell.label in names]
    settings, known = dict.fromkeys(cell.setting for cell in used), dict.fromkeys(cell.label for cell in cells)
    if len(settings) > 1:
        raise UserError(f"{len(settings)} settings hold these methods: {'; '.join(settings)}; name one: --setting TEXT")
    for name in names:
        if name not in known:
            raise UserError(f"no cell of {name!r}{nearest(name, known)}; expected one of {', '.join(known) or 'none'}")
    return used


def _as_printed(cells: Sequence[FinishedCell], name: str) -> str:
    """The label that tables print for a method given by its import path; any other name as it is."""
    path = import_path(name)
    labels = (c.label for c in cells if is_path(path) and config_value(c.record.config, "strategy.name") == path)
    return next(labels, name)


def _has_enough_means(means: Sequence[float], pairs: Sequence[float]) -> bool:
    """True where there are enough means of replicates, or where few of them scatter as much as independent pairs."""
    return len(means) >= _MIN_MEANS or stdev(means) >= stdev(pairs) * (len(means) / len(pairs)) ** 0.5


def _paired_scores(
    cells: Sequence[FinishedCell], first: str, second: str, figure: Figure
) -> dict[Key, tuple[float, float]]:
    by_label = {label: {c.replicate: c for c in reversed(cells) if c.label == label} for label in (first, second)}
    scores: dict[Key, tuple[float, float]] = {}
    for replicate in sorted(by_label[first].keys() & by_label[second].keys()):
        one, two = by_label[first][replicate], by_label[second][replicate]
        pair = cell_scores(one, two, figure)
        if pair is not None:
            scores[replicate[0], repetition_of(one.record.config)] = (100 * pair[0], 100 * pair[1])
    return scores


def _sd_interval(sd: float, number: int) -> tuple[float, float] | None:
    """95 % interval of a standard deviation from the quantiles of chi squared."""
    functions = special()
    if functions is None:
        return None
    df = number - 1
    low, high = (2 * float(functions.gammaincinv(df / 2, q)) for q in (1 - ALPHA / 2, ALPHA / 2))
    return sd * (df / low) ** 0.5, sd * (df / high) ** 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Outlook:
    """Prospects of a claim, from the planned runs alone.

    Attributes:
        claim: the claim.
        num_pairs: planned paired runs.
        num_folds: folds among them.
        num_replicates: replicates among them.
        smallest_p: smallest adjusted p that they can give.
        smallest_p_means: the same where means of replicates have to be tested.
        detectable_sds: smallest difference that they find with power 0.8, in standard deviations of one paired
            difference; None where they find none, or without scipy.
    """

    claim: Claim
    num_pairs: int
    num_folds: int
    num_replicates: int
    smallest_p: float
    smallest_p_means: float
    detectable_sds: float | None

    @property
    def verdict(self) -> str:
        """Reason why these runs will not decide the claim, whatever they give; empty where they can."""
        if not self.num_pairs:
            return "no runs of both methods on the claim's data are planned"
        if self.num_replicates < MIN_REPLICATES:
            return f"too short to judge: {self.num_replicates} replicates, expected {MIN_REPLICATES} or more"
        if self.smallest_p > ALPHA:
            return f"this study cannot decide: {self.num_pairs} pairs give no adjusted p below {self.smallest_p:.2g}"
        return ""


def outlooks(claims: Claims, cells: Sequence[PlannedCell]) -> list[Outlook]:
    """Return the prospects of each claim, from the planned cells."""
    planned = planned_replicates(claims, cells)
    return [_outlook(claim, len(claims.claims), planned) for claim in claims.claims]


def _outlook(claim: Claim, num_claims: int, planned: Mapping[str, Mapping[Replicate, Repetition]]) -> Outlook:
    first, second = planned.get(claim.first, {}), planned.get(claim.second, {})
    pairs = first.keys() & second.keys()
    num_replicates = len({first[pair] for pair in pairs})
    sides: Sides = 2 if claim.margin is None else 1
    alpha = ALPHA / num_claims
    return Outlook(
        claim=claim,
        num_pairs=len(pairs),
        num_folds=len({fold for fold, _, _ in pairs}),
        num_replicates=num_replicates,
        smallest_p=min(1.0, num_claims * smallest_p(len(pairs), sides)),
        smallest_p_means=min(1.0, num_claims * smallest_p(num_replicates, sides)),
        detectable_sds=detectable(len(pairs), 1.0, alpha, sides) if special() is not None else None,
    )
