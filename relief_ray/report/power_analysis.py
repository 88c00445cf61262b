"""Planning a study: the scatter of paired differences in finished cells, and what planned runs can decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from statistics import mean, stdev

from relief_ray.plugins.load import import_path, is_path
from relief_ray.records.cells import Claim, Claims, PlannedCell
from relief_ray.report.claims import planned_replicates, sides_of
from relief_ray.report.frames import Cells, pairs_of
from relief_ray.report.statistics import (
    ALPHA,
    MIN_REPLICATES,
    VarianceShares,
    detectable,
    fewest_pairs,
    smallest_p,
    special,
    units_of,
)
from relief_ray.support.errors import UserError

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


def scatter_of(cells: Cells, first: str, second: str, figure: str) -> Scatter:
    """Scatter of ``first`` minus ``second`` over paired cells of one setting.

    The unit is a replicate's mean where pairs depend on each other; below six replicates only if it promises less.

    Raises:
        UserError: as ``pairs_of``, or fewer than two pairs with that figure.
    """
    runs = cells.runs
    # The label that tables print for a method given by its import path.
    labels = dict(zip(reversed(runs["strategy"].tolist()), reversed(runs["method"].tolist()), strict=True))
    first, second = (labels.get(path, name) if is_path(path := import_path(name)) else name for name in (first, second))
    scores = pairs_of(cells, first, second, figure)
    if len(scores) < 2:
        raise UserError(
            f"{len(scores)} paired runs of {first} and {second} with {figure}, expected two or more; give --sd POINTS"
        )
    found, differences = units_of(scores), (scores["first"] - scores["second"]).tolist()
    on_means = found.on_means and _is_enough(found.values, differences)
    units = found.values if on_means else differences
    return Scatter(
        sd=(sd := stdev(units)),
        interval=_sd_interval(sd, len(units)),
        mean=mean(units),
        num_pairs=len(scores),
        num_folds=scores["fold"].nunique(),
        on_means=on_means,
        shares=found.shares,
        num_replicates=scores["repetition"].nunique(),
        origins=tuple(sorted(runs.loc[runs["method"].isin([first, second]), "data_origin"].unique())),
    )


def _is_enough(means: Sequence[float], differences: Sequence[float]) -> bool:
    """True where there are enough means of replicates, or where few of them scatter as much as independent pairs."""
    wanted = stdev(differences) * (len(means) / len(differences)) ** 0.5
    return len(means) >= _MIN_MEANS or stdev(means) >= wanted


def _sd_interval(sd: float, number: int) -> tuple[float, float] | None:
    """95 % interval of a standard deviation from the quantiles of chi squared."""
    functions = special()
    if functions is None:
        return None
    df = number - 1
    low, high = (sd * (df / (2 * float(functions.gammaincinv(df / 2, q)))) ** 0.5 for q in (1 - ALPHA / 2, ALPHA / 2))
    return low, high


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimPower:
    """Prospects of a claim, from the planned runs alone.

    Attributes:
        claim: the claim.
        num_pairs: planned paired runs.
        num_folds: folds among them.
        num_replicates: replicates among them.
        smallest_p: smallest adjusted p that they can give.
        smallest_p_means: the same where means of replicates have to be tested.
        needed: fewest pairs with which it can be decided.
        detectable_sds: smallest difference that they find with power 0.8, in standard deviations of one paired
            difference; None where they find none, or without scipy.
    """

    claim: Claim
    num_pairs: int
    num_folds: int
    num_replicates: int
    smallest_p: float
    smallest_p_means: float
    needed: int
    detectable_sds: float | None

    @property
    def verdict(self) -> str:
        """Reason why these runs will not decide the claim, whatever they give; empty where they can."""
        if not self.num_pairs:
            return "no runs of both methods on the claim's data are planned"
        replicates = max(MIN_REPLICATES, ceil(self.needed / self.num_folds))
        alike = "" if replicates >= self.needed else f", {self.needed} where the runs of each are alike"
        more = f"at least {replicates} seeds or replicates are needed (0-{replicates - 1}){alike}"
        if self.num_replicates < MIN_REPLICATES:
            return f"too short to judge: {self.num_replicates} replicates; {more}"
        if self.smallest_p > ALPHA:
            few = f"{self.num_pairs} pairs give no adjusted p below {self.smallest_p:.2g}"
            return f"this study cannot decide: {few}; {more}"
        return ""


def claim_powers(claims: Claims, cells: Sequence[PlannedCell]) -> list[ClaimPower]:
    """Return the prospects of each claim, from the planned cells."""
    planned, number = planned_replicates(claims, cells), len(claims.claims)
    found = []
    for claim in claims.claims:
        first, second = planned.get(claim.first, {}), planned.get(claim.second, {})
        pairs = first.keys() & second.keys()
        num_replicates = len({first[pair] for pair in pairs})
        sides = sides_of(claim)
        found.append(
            ClaimPower(
                claim=claim,
                num_pairs=len(pairs),
                num_folds=len({fold for fold, _, _ in pairs}),
                num_replicates=num_replicates,
                smallest_p=smallest_p(len(pairs), sides, number),
                smallest_p_means=smallest_p(num_replicates, sides, number),
                needed=fewest_pairs(number, sides),
                detectable_sds=detectable(len(pairs), 1.0, ALPHA / number, sides) if special() is not None else None,
            )
        )
    return found
