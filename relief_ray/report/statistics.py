"""Paired statistics over test subjects: sign-flip test, t-interval, smallest detectable difference, Holm's correction.

Legend: ``d_i`` the difference of two methods on subject i, averaged over seeds first; n subjects. Subjects of one fold
are scored by one model, so they are not fully independent; every page that prints these figures says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import atan, comb, cos, pi, sin, sqrt
from statistics import mean, stdev

import numpy as np

ALPHA = 0.05
POWER = 0.8
MAX_EXACT = 16
NUM_DRAWS = 100_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Paired:
    """A mean paired difference.

    ``low`` and ``high``: 95 % t-interval of the mean; ``p``: two-sided sign-flip test; ``detectable``: the smallest
    true difference found with power 0.8 at alpha 0.05. Interval and ``detectable`` need two subjects.
    """

    mean: float
    low: float | None
    high: float | None
    p: float
    detectable: float | None
    num_subjects: int


def paired(differences: Sequence[float]) -> Paired | None:
    """All figures of one set of differences; none where there is no subject."""
    n = len(differences)
    if n == 0:
        return None
    centre = mean(differences)
    half = detectable = None
    if n > 1:
        error = stdev(differences) / sqrt(n)
        half = t_quantile(1 - ALPHA / 2, n - 1) * error
        detectable = half + t_quantile(POWER, n - 1) * error
    return Paired(
        mean=centre,
        low=None if half is None else centre - half,
        high=None if half is None else centre + half,
        p=sign_flip(differences),
        detectable=detectable,
        num_subjects=n,
    )


def sign_flip(differences: Sequence[float], seed: int = 0) -> float:
    """Two-sided p: the share of the 2^n sign assignments whose mean is at least as far from 0 as the observed one.

    Exact up to 16 subjects, else 100,000 seeded draws with the observed assignment counted in.
    """
    values = np.asarray(differences, dtype=np.float64)
    observed = abs(values.sum())
    slack = 1e-9 * np.abs(values).sum()
    if len(values) <= MAX_EXACT:
        sums = np.zeros(1)
        for value in values:
            sums = np.concatenate((sums + value, sums - value))
        return float(np.mean(np.abs(sums) >= observed - slack))
    signs = np.random.default_rng(seed).choice((-1.0, 1.0), size=(NUM_DRAWS, len(values)))
    hits = int(np.sum(np.abs(signs @ values) >= observed - slack))
    return (hits + 1) / (NUM_DRAWS + 1)


def smallest_p(num_subjects: int) -> float:
    """What a two-sided sign-flip test over that many subjects can reach at best: ``2 / 2^n``."""
    return min(1.0, 2.0 ** (1 - num_subjects))


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Holm's step-down adjusted p-values, in the order given."""
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = running
    return tuple(adjusted)


def t_cdf(t: float, df: int) -> float:
    """Student's distribution function for whole degrees of freedom (finite series, A&S 26.7.3 and 26.7.4)."""
    angle = atan(t / sqrt(df))
    if df % 2:
        terms = (4.0**k / (2 * k + 1) / comb(2 * k, k) * cos(angle) ** (2 * k + 1) for k in range((df - 1) // 2))
        return 0.5 + (angle + sin(angle) * sum(terms)) / pi
    series = sum(comb(2 * k, k) / 4.0**k * cos(angle) ** (2 * k) for k in range(df // 2))
    return 0.5 + sin(angle) * series / 2


def t_quantile(probability: float, df: int) -> float:
    """The inverse of ``t_cdf`` above the median, by bisection to the last bits."""
    assert 0.5 <= probability < 1.0
    low, high = 0.0, 1.0
    while t_cdf(high, df) < probability:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, df) < probability else (low, middle)
    return high
