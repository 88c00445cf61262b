"""Statistics of paired runs: sign-flip test, t-interval, Holm's correction, an interval for a rate.

Legend: ``d_i`` the difference of two methods in one paired run i (same fold, same replicate: the same seed, start and
data); n pairs. Quantiles of Student's t and of the beta distribution are scipy's, which a device's base installation
lacks: there, intervals are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import mean, stdev
from types import ModuleType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from relief_ray.support.errors import counted
from relief_ray.support.table import NONE

ALPHA = 0.05
POWER = 0.8
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
        p: of the two-sided sign-flip test.
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


def interval_text(difference: Paired | None) -> str:
    """The difference with its interval; ``-`` where there is none."""
    return NONE if difference is None else str(difference)


def paired(differences: Sequence[float], *, on_means: bool = False) -> Paired | None:
    """All figures of one set of differences; None for an empty set."""
    n = len(differences)
    if n == 0:
        return None
    centre, is_still = mean(differences), not any(differences)
    quantile = None if is_still or n < MIN_INTERVAL else _student_quantile(n - 1)
    error = stdev(differences) / sqrt(n) if n > 1 else None
    known = None if quantile is None or error is None else (quantile, error)
    half = None if known is None else known[0][1] * known[1]
    return Paired(
        mean=centre,
        low=None if half is None else max(-_MOST_POINTS, centre - half),
        high=None if half is None else min(_MOST_POINTS, centre + half),
        bound=None if known is None else centre - known[0][0] * known[1],
        p=sign_flip(differences),
        smallest_found=None if known is None or half is None else half + known[0][2] * known[1],
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


def _student_quantile(df: int) -> tuple[float, float, float] | None:
    """Student's quantiles at 1 - alpha, 1 - alpha / 2 and the power; None without scipy or a degree of freedom."""
    functions = special()
    if functions is None or df < 1:
        return None
    one, two, power = (float(functions.stdtrit(df, q)) for q in (1 - ALPHA, 1 - ALPHA / 2, POWER))
    return one, two, power


def sign_flip(differences: Sequence[float], *, sides: Sides = 2, seed: int = 0) -> float:
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
    tail = _exact_tail(values, limit) if len(values) <= MAX_EXACT else _drawn_tail(values, limit, seed)
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


def _drawn_tail(values: NDArray[np.float64], limit: float, seed: int) -> float:
    generator, hits = np.random.default_rng(seed), 0
    for _ in range(_NUM_DRAWS // _CHUNK):
        signs = 2.0 * generator.integers(0, 2, size=(_CHUNK, len(values))) - 1.0
        hits += int(np.sum(signs @ values >= limit))
    return (hits + 1) / (_NUM_DRAWS + 1)


def smallest_p(num_pairs: int, sides: Sides = 2) -> float:
    """Smallest p of a sign-flip test over that many pairs, at most 1.

    ``sides / 2^n`` where all signs are counted, ``sides / (draws + 1)`` above 32 pairs, where signs are drawn.
    """
    one_sided = 2.0**-num_pairs if num_pairs <= MAX_EXACT else 1.0 / (_NUM_DRAWS + 1)
    return min(1.0, sides * one_sided)


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Holm's step-down adjusted p-values, in the order given."""
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = running
    return tuple(adjusted)


def rate_interval(hits: int, number: int) -> tuple[float, float] | None:
    """Clopper and Pearson's 95 % interval of a rate, from quantiles of the beta distribution; None without scipy."""
    functions = special()
    if functions is None or number == 0:
        return None
    low = 0.0 if hits == 0 else float(functions.betaincinv(hits, number - hits + 1, ALPHA / 2))
    high = 1.0 if hits == number else float(functions.betaincinv(hits + 1, number - hits, 1 - ALPHA / 2))
    return low, high
