"""Statistics of paired runs: sign-flip test, t-interval, Holm's correction, sources of scatter, power of a study.

Legend: ``d_i`` the difference of two methods in one paired run i (same fold, same replicate: the same seed, start and
data); n pairs. Quantiles of Student's t and of the beta distribution are scipy's, which a device's base installation
lacks: there, intervals are left out.

Sources of scatter: a random-effects decomposition of two methods' scores by fold and replicate,
``x[m, f, r] = mu + M[m] + F[f] + R[r] + FR[f, r] + MF[m, f] + MR[m, r] + E[m, f, r]``, everything random but mu and M.
Components are those of the analysis of variance (moments), negative ones set to 0. Pairing removes F, R and FR.

Power: of normal differences with a known spread, from the noncentral t distribution. The sign-flip test that judges
claims has nearly the same power, and none below the number of pairs at which its p can fall below alpha at all.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import erfc, isnan, sqrt
from statistics import mean, stdev
from types import ModuleType
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from relief_ray.support.errors import UserError, counted
from relief_ray.support.table import NONE
from relief_ray.support.text import install

if TYPE_CHECKING:
    from pandas import DataFrame

ALPHA = 0.05
_POWER = 0.8
# Differences are in points: none can be larger.
_MOST_POINTS = 100.0
# Below so many pairs an interval spans more than F1 can differ by.
MIN_INTERVAL = 3
# 2^16 sums for each half of the pairs: a second.
MAX_EXACT = 32
_NUM_DRAWS = 100_000
_CHUNK = 20_000
Sides = Literal[1, 2]


@dataclass(frozen=True, kw_only=True, slots=True)
class Paired:
    """Mean paired difference of two methods.

    Attributes:
        mean: over pairs, in the unit of the differences.
        low: lower end of the 95 % t-interval, at least -100 points; None below three pairs, or without scipy.
        high: its upper end.
        bound: the lower one-sided 95 % bound; None where ``low`` is.
        p: of the sign-flip test, two-sided; one-sided where it was made against a margin.
        smallest_found: smallest true difference that so many find in 80 of 100 studies; None where ``low`` is.
        num_pairs: how many differences there are.
        on_means: each difference is the mean of a replicate, not of a paired run.
        is_still: all differences are exactly 0, as where every method is at 100 %. They have no scatter to learn from:
            interval, bound and ``smallest_found`` are None.
    """

    mean: float
    low: float | None
    high: float | None
    bound: float | None
    p: float
    smallest_found: float | None
    num_pairs: int
    on_means: bool = False
    is_still: bool = False

    @property
    def unit(self) -> str:
        """``paired run`` or ``replicate mean``: what the differences are of."""
        return "replicate mean" if self.on_means else "paired run"

    def __str__(self) -> str:
        """``+1.2 [-0.4, +2.8]``; below three pairs their number for the interval, a dash where it is undefined."""
        if self.num_pairs < MIN_INTERVAL:
            return f"{self.mean:+.1f} ({counted(self.num_pairs, 'replicate' if self.on_means else 'run')})"
        if self.low is None or self.high is None:
            return f"{self.mean:+.1f}{f' [{NONE}]' if self.is_still else ''}"
        return f"{self.mean:+.1f} [{self.low:+.1f}, {self.high:+.1f}]"


def paired(differences: Sequence[float], *, on_means: bool = False, margin: float | None = None) -> Paired | None:
    """All figures of one set of differences; None for an empty set.

    ``margin``: the hypothesis is that the first method is worse by the margin or more, and the test is one-sided.
    """
    n = len(differences)
    if n == 0:
        return None
    centre, is_still = mean(differences), not any(differences)
    low = high = bound = smallest_found = None
    if n >= MIN_INTERVAL and not is_still and (functions := special()) is not None:
        error = stdev(differences) / sqrt(n)
        one_sided, half, powered = (
            float(functions.stdtrit(n - 1, q)) * error for q in (1 - ALPHA, 1 - ALPHA / 2, _POWER)
        )
        low, high = max(-_MOST_POINTS, centre - half), min(_MOST_POINTS, centre + half)
        bound, smallest_found = centre - one_sided, half + powered
    return Paired(
        mean=centre,
        low=low,
        high=high,
        bound=bound,
        p=sign_flip(differences) if margin is None else sign_flip([d + margin for d in differences], sides=1),
        smallest_found=smallest_found,
        num_pairs=n,
        on_means=on_means,
        is_still=is_still,
    )


def special() -> ModuleType | None:
    """Return ``scipy.special`` (``scipy.stats`` takes three times as long to import); None where it is missing."""
    try:
        import scipy.special
    except ImportError:
        return None
    module: ModuleType = scipy.special
    return module


def sign_flip(differences: Sequence[float], *, sides: Sides = 2) -> float:
    """The p-value of the sign-flip test: under no effect every difference is as likely with the other sign.

    Two-sided: the share of the 2^n sign assignments whose mean is at least as far from 0 as the observed one;
    one-sided: at least as large. For a claim of non-inferiority add the margin to every difference and take one side.
    Exact up to 32 pairs, else 100,000 seeded draws with the observed assignment counted in.
    """
    values = np.asarray(differences, dtype=np.float64)
    observed = abs(values.sum()) if sides == 2 else values.sum()
    limit = observed - 1e-9 * np.abs(values).sum()
    if sides == 2 and limit <= 0.0:
        return 1.0
    tail = _exact_tail(values, limit) if len(values) <= MAX_EXACT else _drawn_tail(values, limit)
    # Sums are symmetric about 0, so the lower tail of the two-sided test is as large as the upper.
    return min(1.0, sides * tail)


def _exact_tail(values: NDArray[np.float64], limit: float) -> float:
    """Share of sign assignments whose sum is at least ``limit``: sums of either half, then how many pairs reach it."""
    half = len(values) // 2
    first, second = _signed_sums(values[:half]), np.sort(_signed_sums(values[half:]))
    reached = len(second) - np.searchsorted(second, limit - first, side="left")
    return float(reached.sum()) / 2.0 ** len(values)


def _signed_sums(values: NDArray[np.float64]) -> NDArray[np.float64]:
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate((sums + value, sums - value))
    return sums


def _drawn_tail(values: NDArray[np.float64], limit: float) -> float:
    generator, hits = np.random.default_rng(0), 0
    for _ in range(_NUM_DRAWS // _CHUNK):
        signs = 2.0 * generator.integers(0, 2, size=(_CHUNK, len(values))) - 1.0
        hits += int(np.sum(signs @ values >= limit))
    return (hits + 1) / (_NUM_DRAWS + 1)


def smallest_p(num_pairs: int, sides: Sides = 2, num_claims: int = 1) -> float:
    """Smallest p of a sign-flip test over that many pairs, adjusted over so many claims; at most 1.

    ``sides / 2^n`` where all signs are counted, ``sides / (draws + 1)`` above 32 pairs, where signs are drawn.
    """
    one_sided = 2.0**-num_pairs if num_pairs <= MAX_EXACT else 1.0 / (_NUM_DRAWS + 1)
    return min(1.0, num_claims * sides * one_sided)


def fewest_pairs(num_claims: int, sides: Sides = 2) -> int:
    """Fewest pairs with which a claim among so many can be decided: their ``smallest_p``, adjusted, is at most 0.05."""
    return next(n for n in range(1, MAX_EXACT + 1) if smallest_p(n, sides, num_claims) <= ALPHA)


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Holm's step-down adjusted p-values, in the order given."""
    order = np.argsort(p_values, kind="stable")
    steps = np.minimum(1.0, np.arange(len(p_values), 0, -1) * np.asarray(p_values)[order])
    return tuple(np.maximum.accumulate(steps)[np.argsort(order)].tolist())


def rate_interval(hits: int, number: int) -> tuple[float, float] | None:
    """Clopper and Pearson's 95 % interval of a rate, from quantiles of the beta distribution; None without scipy."""
    functions = special()
    if functions is None or number == 0:
        return None
    low = 0.0 if hits == 0 else float(functions.betaincinv(hits, number - hits + 1, ALPHA / 2))
    high = 1.0 if hits == number else float(functions.betaincinv(hits + 1, number - hits, 1 - ALPHA / 2))
    return low, high


# A share of the paired difference above this makes pairs depend on each other.
_LIMIT = 0.1
# Fewer replicates are too few for a verdict, and for an interval over their means.
MIN_REPLICATES = 3


class VarianceShares(NamedTuple):
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
        total = self.method_fold + self.method_replicate + self.residual or 1.0
        return self.method_fold / total, self.method_replicate / total, self.residual / total

    @property
    def pairs_depend(self) -> bool:
        """True where fold or replicate holds more than a tenth of the paired difference's variance."""
        fold, replicate, _ = self.of_difference
        return max(fold, replicate) > _LIMIT

    def __str__(self) -> str:
        """Both decompositions in percent."""
        fold, replicate, residual = self.of_difference
        *shares, _ = self._asdict().items()
        score = ", ".join(f"{name.replace('_', ' x ')} {100 * value:.0f} %" for name, value in shares)
        return (
            f"paired difference: fold {100 * fold:.0f} %, replicate {100 * replicate:.0f} %, residual "
            f"{100 * residual:.0f} % (sd {self.sd_difference:.1f} points); one run's score: {score}"
        )


def components(table: NDArray[np.float64]) -> tuple[float, float, float]:
    """Variance of folds, of replicates and of the rest in a table (folds, replicates), at least 2 x 2.

    With mean squares of folds, replicates and rest: ``(MS_fold - MS_rest) / replicates`` and so on, at least 0.
    """
    folds, replicates = table.shape
    centre, rows, columns = table.mean(), table.mean(axis=1), table.mean(axis=0)
    rest = table - rows[:, None] - columns[None, :] + centre
    ms_fold = replicates * float(np.sum((rows - centre) ** 2)) / (folds - 1)
    ms_replicate = folds * float(np.sum((columns - centre) ** 2)) / (replicates - 1)
    ms_rest = float(np.sum(rest**2)) / ((folds - 1) * (replicates - 1))
    return max(0.0, (ms_fold - ms_rest) / replicates), max(0.0, (ms_replicate - ms_rest) / folds), ms_rest


def variance_shares(scores: DataFrame) -> VarianceShares | None:
    """Shares for the scores ``first`` and ``second`` of pairs by ``fold`` and ``repetition``.

    Folds are crossed with the replicates that have every one of them; None below two folds and two such replicates.
    """
    folds, row = np.unique(scores["fold"].to_numpy(), return_inverse=True)
    replicates, column = np.unique(scores["repetition"].to_numpy(), return_inverse=True)
    table = np.full((2, len(folds), len(replicates)), np.nan)
    table[:, row, column] = scores["first"].to_numpy(), scores["second"].to_numpy()
    one, two = table[:, :, ~np.isnan(table).any(axis=(0, 1))]
    if min(one.shape) < 2:
        return None
    difference = components(one - two)
    # A difference of two methods holds each interaction twice, their mean half of it.
    own = [part / 2 for part in difference]
    common = [max(0.0, part - mine / 2) for part, mine in zip(components((one + two) / 2), own, strict=True)]
    total = sum(common) + sum(own) or 1.0
    return VarianceShares._make((*(part / total for part in (*common, *own)), sum(difference) ** 0.5))


class Units(NamedTuple):
    """Independent differences of two methods: of paired runs, or of whole replicates.

    Attributes:
        values: first minus second, in the scores' unit.
        on_means: they are means of replicates, since pairs of one fold or replicate depend on each other.
        shares: where the scatter comes from; None below two folds and two complete replicates.
    """

    values: tuple[float, ...]
    on_means: bool
    shares: VarianceShares | None


def units_of(scores: DataFrame, *, least: int = 1) -> Units:
    """The differences of pairs that intervals and tests take for independent.

    Paired runs; means of whole replicates where fold or replicate holds more than a tenth of the scatter of the paired
    difference and there are at least ``least`` replicates. ``scores``: as ``comparison.pairs`` makes them.
    """
    shares = variance_shares(scores)
    differences = scores["first"].to_numpy() - scores["second"].to_numpy()
    _, replicate = np.unique(scores["repetition"].to_numpy(), return_inverse=True)
    means = np.bincount(replicate, differences) / np.bincount(replicate)
    on_means = shares is not None and shares.pairs_depend and len(means) >= least
    return Units(tuple((means if on_means else differences).tolist()), on_means, shares)


_MAX_PAIRS = 100_000


def power(num_pairs: int, difference: float, sd: float, alpha: float, sides: Sides = 2) -> float:
    """Probability that ``num_pairs`` pairs with spread ``sd`` find a true ``difference`` at level ``alpha``.

    One-sided tests of non-inferiority: ``difference`` is the margin plus the true difference.

    Raises:
        UserError: scipy is missing.
    """
    functions = special()
    if functions is None:
        raise UserError(f"power of a study: needs scipy; {install('server')}")
    if num_pairs < 2 or smallest_p(num_pairs, sides) > alpha:
        return 0.0
    df, shift = num_pairs - 1, difference / (sd / sqrt(num_pairs))
    limit = float(functions.stdtrit(df, 1 - alpha / sides))
    found = 1.0 - float(functions.nctdtr(df, shift, limit))
    if isnan(found):  # scipy gives none for a non-centrality of 38 and more, where the normal law is exact to the digit
        return 0.5 * erfc((limit - shift) / sqrt(2))
    # The other tail of a two-sided test; far from 0 it is nothing, and scipy has no number for it.
    return found + (float(functions.nctdtr(df, shift, -limit)) if sides == 2 and shift < 5.0 else 0.0)


def pairs_needed(difference: float, sd: float, alpha: float, sides: Sides = 2, wanted: float = _POWER) -> int | None:
    """Smallest number of pairs that finds ``difference`` with the ``wanted`` power; None above 100,000.

    Raises:
        UserError: scipy is missing.
    """
    enough = bisect_left(range(_MAX_PAIRS + 1), wanted, key=lambda n: power(n, difference, sd, alpha, sides))
    return enough if enough <= _MAX_PAIRS else None


def detectable(num_pairs: int, sd: float, alpha: float, sides: Sides = 2, wanted: float = _POWER) -> float | None:
    """Smallest true difference that ``num_pairs`` pairs find with the ``wanted`` power; None where they find none.

    Raises:
        UserError: scipy is missing.
    """
    if power(num_pairs, 1e3 * sd, sd, alpha, sides) < wanted:
        return None
    functions = special()
    assert functions is not None, "else `power` has raised"
    # From half power on the other tail of a two-sided test is nothing.
    limit = functions.stdtrit(num_pairs - 1, 1 - alpha / sides)
    return float(functions.nctdtrinc(num_pairs - 1, 1 - wanted, limit)) * sd / sqrt(num_pairs)
