"""Power of a study of paired runs: how many find a difference, and what a planned number can find.

Normal differences with a known spread: the t-test's power, from the noncentral t distribution. The sign-flip test that
judges claims has nearly the same power, and none below the number of pairs at which its p can fall below alpha at all.
"""

from __future__ import annotations

from math import erfc, isnan, sqrt

from relief_ray.report.statistics import POWER, Sides, smallest_p, special
from relief_ray.support.errors import UserError
from relief_ray.support.text import install

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


def pairs_needed(difference: float, sd: float, alpha: float, sides: Sides = 2, wanted: float = POWER) -> int | None:
    """Smallest number of pairs that finds ``difference`` with the ``wanted`` power; None above 100,000.

    Raises:
        UserError: scipy is missing.
    """
    low, high = 1, 2
    while power(high, difference, sd, alpha, sides) < wanted:
        low, high = high, 2 * high
        if high > _MAX_PAIRS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(middle, difference, sd, alpha, sides) >= wanted else (middle, high)
    return high


def detectable(num_pairs: int, sd: float, alpha: float, sides: Sides = 2, wanted: float = POWER) -> float | None:
    """Smallest true difference that ``num_pairs`` pairs find with the ``wanted`` power; None where they find none.

    Raises:
        UserError: scipy is missing.
    """
    if power(num_pairs, 1e3 * sd, sd, alpha, sides) < wanted:
        return None
    low, high = 0.0, sd
    while power(num_pairs, high, sd, alpha, sides) < wanted:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if power(num_pairs, middle, sd, alpha, sides) >= wanted else (middle, high)
    return high
