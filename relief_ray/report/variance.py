"""Sources of the scatter of runs: a random-effects decomposition of two methods' scores by fold and replicate.

Model: ``x[m, f, r] = mu + M[m] + F[f] + R[r] + FR[f, r] + MF[m, f] + MR[m, r] + E[m, f, r]``, everything random but mu
and M. Components are those of the analysis of variance (moments), negative ones set to 0. Pairing removes F, R and FR.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Key = tuple[int, tuple[int, int]]
Table = Mapping[Key, float]

# A share of the paired difference above this makes pairs depend on each other.
_LIMIT = 0.1
# Fewer replicates are too few for a verdict, and for an interval over their means.
MIN_REPLICATES = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Components:
    """Variance components of a table of folds x replicates without repetition."""

    fold: float
    replicate: float
    rest: float

    @property
    def total(self) -> float:
        """Their sum: the variance of one value."""
        return self.fold + self.replicate + self.rest


@dataclass(frozen=True, kw_only=True, slots=True)
class VarianceShares:
    """Shares of the variance of one run's score (they sum to 1), and of the paired difference.

    Attributes:
        fold: difficulty of a fold, equal for both methods.
        replicate: luck of a replicate in all folds (rotation of the devices), equal for both methods.
        run: luck of one paired run (its seed), equal for both methods.
        method_fold: differs from fold to fold between the methods.
        method_replicate: differs from replicate to replicate between the methods.
        residual: everything else; with the two above it makes up the scatter of the paired difference.
        sd_difference: standard deviation of one paired difference, in the scores' unit.
    """

    fold: float
    replicate: float
    run: float
    method_fold: float
    method_replicate: float
    residual: float
    sd_difference: float

    @property
    def of_difference(self) -> tuple[float, float, float]:
        """Shares of fold, replicate and residual in the variance of the paired difference; zeros where it has none."""
        parts = (self.method_fold, self.method_replicate, self.residual)
        total = sum(parts)
        fold, replicate, residual = (part / total if total else 0.0 for part in parts)
        return fold, replicate, residual

    @property
    def pairs_depend(self) -> bool:
        """True where fold or replicate holds more than a tenth of the paired difference's variance."""
        fold, replicate, _ = self.of_difference
        return max(fold, replicate) > _LIMIT

    def __str__(self) -> str:
        """Both decompositions in percent."""
        fold, replicate, residual = self.of_difference
        names = ("fold", "replicate", "run", "method x fold", "method x replicate", "residual")
        values = (self.fold, self.replicate, self.run, self.method_fold, self.method_replicate, self.residual)
        score = ", ".join(f"{name} {100 * value:.0f} %" for name, value in zip(names, values, strict=True))
        return (
            f"paired difference: fold {100 * fold:.0f} %, replicate {100 * replicate:.0f} %, residual "
            f"{100 * residual:.0f} % (sd {self.sd_difference:.1f} points); one run's score: {score}"
        )


def components(table: NDArray[np.float64]) -> Components:
    """Components of a table (folds, replicates), at least 2 x 2.

    With mean squares of folds, replicates and rest: ``(MS_fold - MS_rest) / replicates`` and so on, at least 0.
    """
    folds, replicates = table.shape
    centre, rows, columns = table.mean(), table.mean(axis=1), table.mean(axis=0)
    rest = table - rows[:, None] - columns[None, :] + centre
    ms_fold = replicates * float(np.sum((rows - centre) ** 2)) / (folds - 1)
    ms_replicate = folds * float(np.sum((columns - centre) ** 2)) / (replicates - 1)
    ms_rest = float(np.sum(rest**2)) / ((folds - 1) * (replicates - 1))
    return Components(
        fold=max(0.0, (ms_fold - ms_rest) / replicates),
        replicate=max(0.0, (ms_replicate - ms_rest) / folds),
        rest=ms_rest,
    )


def crossed(keys: Sequence[Key]) -> tuple[list[int], list[tuple[int, int]]]:
    """Folds and replicates of a complete table: all folds, and the replicates that have every one of them."""
    folds = sorted({fold for fold, _ in keys})
    present = set(keys)
    replicates = sorted({r for _, r in keys if all((fold, r) in present for fold in folds)})
    return folds, replicates


def variance_shares(first: Table, second: Table) -> VarianceShares | None:
    """Shares for two methods' scores by (fold, replicate); None below two folds and two complete replicates."""
    folds, replicates = crossed(sorted(first.keys() & second.keys()))
    if len(folds) < 2 or len(replicates) < 2:
        return None
    one, two = (np.array([[scores[f, r] for r in replicates] for f in folds]) for scores in (first, second))
    common, difference = components((one + two) / 2), components(one - two)
    # A difference of two methods holds each interaction twice, their mean half of it.
    method_fold, method_replicate, residual = (v / 2 for v in (difference.fold, difference.replicate, difference.rest))
    fold = max(0.0, common.fold - method_fold / 2)
    replicate = max(0.0, common.replicate - method_replicate / 2)
    run = max(0.0, common.rest - residual / 2)
    total = fold + replicate + run + method_fold + method_replicate + residual
    scale = 1 / total if total else 0.0
    return VarianceShares(
        fold=fold * scale,
        replicate=replicate * scale,
        run=run * scale,
        method_fold=method_fold * scale,
        method_replicate=method_replicate * scale,
        residual=residual * scale,
        sd_difference=difference.total**0.5,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Units:
    """Independent differences of two methods: of paired runs, or of whole replicates.

    Attributes:
        values: first minus second, in the scores' unit.
        on_means: they are means of replicates, since pairs of one fold or replicate depend on each other.
        shares: where the scatter comes from; None below two folds and two complete replicates.
    """

    values: tuple[float, ...]
    on_means: bool
    shares: VarianceShares | None


def units_of(first: Table, second: Table, *, least: int = 1) -> Units:
    """The differences that intervals and tests take for independent, of scores by (fold, replicate) that both have.

    Paired runs; means of whole replicates where fold or replicate holds more than a tenth of the scatter of the paired
    difference and there are at least ``least`` replicates.
    """
    shares = variance_shares(first, second)
    by_replicate: dict[tuple[int, int], list[float]] = {}
    for key in first:
        if key in second:
            by_replicate.setdefault(key[1], []).append(first[key] - second[key])
    on_means = shares is not None and shares.pairs_depend and len(by_replicate) >= least
    means = (sum(values) / len(values) for values in by_replicate.values())
    each = (value for values in by_replicate.values() for value in values)
    return Units(values=tuple(means if on_means else each), on_means=on_means, shares=shares)
