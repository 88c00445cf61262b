"""Paired statistics over test subjects: sign-flip test, t-interval, smallest detectable difference, Holm's correction.

Legend: ``d_i`` the difference of two methods on subject i, averaged over seeds first; n subjects. Subjects of one fold
are scored by one model, so they are not fully independent; every page that prints these figures says so. Quantiles of
Student's t are scipy's, which a device's base installation lacks: there, intervals are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import mean, stdev

import numpy as np

from relief_ray.report.document import NONE

ALPHA = 0.05
POWER = 0.8
MAX_EXACT = 16
NUM_DRAWS = 100_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Paired:
    """Mean paired difference of two methods.

    Attributes:
        mean: over subjects, in the unit of the differences.
        low: lower end of the 95 % t-interval; None for one subject, or without scipy.
        high: its upper end.
        p: of the two-sided sign-flip test.
        detectable: smallest true difference found with power 0.8 at alpha 0.05; None where ``low`` is.
        num_subjects: how many differences there are.
    """

    mean: float
    low: float | None
    high: float | None
    p: float
    detectable: float | None
    num_subjects: int

    def __str__(self) -> str:
        """``+1.2 [-0.4, +2.8]``: the mean with its interval."""
        if self.low is None or self.high is None:
            return f"{self.mean:+.1f}" + (" (1 subject)" if self.num_subjects == 1 else "")
        return f"{self.mean:+.1f} [{self.low:+.1f}, {self.high:+.1f}]"


def interval_text(difference: Paired | None) -> str:
    """The difference with its interval; ``-`` where there is none."""
    return NONE if difference is None else str(difference)


def paired(differences: Sequence[float]) -> Paired | None:
    """All figures of one set of differences; None for an empty set."""
    n = len(differences)
    if n == 0:
        return None
    centre = mean(differences)
    half, detectable = _half_widths(stdev(differences) / sqrt(n), n - 1) if n > 1 else (None, None)
    return Paired(
        mean=centre,
        low=None if half is None else centre - half,
        high=None if half is None else centre + half,
        p=sign_flip(differences),
        detectable=detectable,
        num_subjects=n,
    )


def _half_widths(error: float, df: int) -> tuple[float, float] | tuple[None, None]:
    """Half the t-interval for a standard error, and the smallest detectable difference."""
    try:
        from scipy.special import stdtrit  # Student's quantile; scipy.stats would take three times as long to import
    except ImportError:
        return None, None
    half = float(stdtrit(df, 1 - ALPHA / 2)) * error
    return half, half + float(stdtrit(df, POWER)) * error


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
    """Smallest p of a two-sided sign-flip test over that many subjects: ``2 / 2^n``, at most 1."""
    return min(1.0, 2.0 ** (1 - num_subjects))


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Holm's step-down adjusted p-values, in the order given."""
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = running
    return tuple(adjusted)
