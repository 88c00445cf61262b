"""Sentences and headings on differences to FedAvg in F1 and in speed, and on what these are taken over.

RELIEF trains everything once before round 1. So after as many rounds it has aggregated once more than FedAvg, and its
whole run has one round more than the rounds whose speed is compared; both are said here.
"""

from __future__ import annotations

from relief_ray.report.comparison import Comparison, MethodResult, is_own_method
from relief_ray.report.variance import MIN_REPLICATES
from relief_ray.strategies import PROPOSED, REFERENCE
from relief_ray.support.errors import counted, listed
from relief_ray.support.text import percent

# Methods that the first sentence describes: more would be the table again.
_MOST_DESCRIBED = 3
_SAME_JOULES = 0.5
# Percent of the slowest client's round above which seconds say nearly nothing of training.
_MOSTLY_LINK = 90.0


def featured(comparison: Comparison) -> list[MethodResult]:
    """Methods that sentences set against FedAvg: RELIEF and a user's own, else the others where they are few."""
    rows = [r for r in comparison.rows if not r.is_bound and r.label != REFERENCE]
    first = [r for r in rows if r.label == PROPOSED or is_own_method(r.label)]
    return (first or (rows if len(rows) <= _MOST_DESCRIBED else []))[:_MOST_DESCRIBED]


def described(comparison: Comparison) -> str:
    """Sentence on each featured method's F1 against FedAvg's, without a test; empty without paired runs."""
    parts = [_gain(comparison, row) for row in featured(comparison) if row.f1 is not None]
    at = " at equal numbers of aggregations" if comparison.is_at_rounds else ""
    return f"F1 against FedAvg's{at}, in points: {'; '.join(parts)}." if parts else ""


def _gain(comparison: Comparison, row: MethodResult) -> str:
    """``relief +4.1 (1 run) (+8.7 (1 run) after its last round, one aggregation more)``."""
    more = "after its last round, one aggregation more" if row.label in comparison.bootstrapped else ""
    if not comparison.is_at_rounds:
        return f"{row.label} {row.f1}{f' ({more}, its bootstrap)' if more else ''}"
    return f"{row.label} {row.at_rounds}{f' ({row.f1} {more})' if more else ''}"


def faster(comparison: Comparison) -> str:
    """Sentence on the featured methods' speed and joules; empty without FedAvg's. Arithmetic on a clock, no test."""
    parts = [_fast(comparison, row) for row in featured(comparison) if "speedup" in row.stats]
    kind = "Simulated with measured speeds" if comparison.clock == "measured" else "Simulated"
    return f"{kind}: {'; '.join(parts)}." if parts else ""


def _fast(comparison: Comparison, row: MethodResult) -> str:
    speedup, saved = row.stats["speedup"].mean, row.stats["energy_saved_percent"].mean
    if f"{speedup:.2f}" == "1.00" and abs(saved) < _SAME_JOULES:
        return f"{row.label}'s rounds are as fast as FedAvg's with as many joules{_whole(comparison, row)}"
    joules = f"{percent(abs(saved))} % {'fewer' if saved >= 0 else 'more'} joules"
    link = row.stats.get("link_percent")
    share = "" if link is None else f" (link: {percent(link.mean)} % of its slowest client's round{_hidden(link.mean)})"
    return f"{row.label}'s rounds are {speedup:.2f}x FedAvg's speed{share} with {joules}{_whole(comparison, row)}"


def _hidden(link_percent: float) -> str:
    """Return what a link of nearly the whole round means: few windows a client, so methods look alike in seconds."""
    return ", so that less training hardly shows" if link_percent >= _MOSTLY_LINK else ""


def _whole(comparison: Comparison, row: MethodResult) -> str:
    """``, its whole run 1.33x (the bootstrap round is 33 % of its seconds)``; empty without a bootstrap."""
    share = comparison.bootstrap_percent(row.label)
    if not share or "speedup_total" not in row.stats:
        return ""
    total = row.stats["speedup_total"].mean
    return f", its whole run {total:.2f}x (the bootstrap round is {percent(share)} % of its seconds)"


def equal_rounds(comparison: Comparison) -> str:
    """Sentence on methods that aggregate once more than others; empty where all aggregate as often."""
    names = comparison.bootstrapped
    if not names or len(names) == len({r.label for r in comparison.runs}):
        return ""
    verb = "aggregates" if len(names) == 1 else "aggregate"
    fair = f"`F1 at equal rounds %`, `{versus(comparison)}` and curves" if comparison.is_at_rounds else "Curves"
    last = "`F1 %` is" if comparison.is_at_rounds else f"`F1 %` and `{versus(comparison)}` are"
    return (
        f"{listed(names)} {verb} once more than the others, in a bootstrap round. {fair} compare equal numbers of "
        f"aggregations; {last} after the last round"
    )


def whose_intervals(comparison: Comparison) -> str:
    """Sentence on what an interval covers: new starts on the people that were tested; empty without intervals."""
    if all(gain is None or gain.low is None for gain in map(comparison.gain, comparison.rows)):
        return ""
    people = counted(len(comparison.subjects), "test subject")
    return f"An interval covers new starts on the same {people}, not new people"


def versus(comparison: Comparison) -> str:
    """Heading of the differences to FedAvg; it says where they are taken at equal numbers of aggregations."""
    return f"vs {REFERENCE}{' at equal rounds' if comparison.is_at_rounds else ''} [95 %]"


def alike_pairs(comparison: Comparison) -> str:
    """Sentence on intervals whose unit is the mean of a replicate, and on what no interval of two replicates says."""
    folds, repetitions = {r.replicate[0] for r in comparison.runs}, {r.repetition for r in comparison.runs}
    gains = {row.label: gain for row in comparison.rows if (gain := comparison.gain(row)) is not None}
    known = {label: gain for label, gain in gains.items() if gain.low is not None}
    if min(len(folds), len(repetitions)) < 2 or not known:
        return ""
    if len(repetitions) < MIN_REPLICATES:
        return (
            f"`{versus(comparison)}` takes paired runs for independent; whether those of a fold or replicate are "
            f"alike is known from {MIN_REPLICATES} replicates on"
        )
    means = [label for label, gain in known.items() if gain.on_means]
    if not means:
        return ""
    return (
        f"`{versus(comparison)}` is taken over paired runs; of {listed(means)} over means of replicates, as in a "
        "claim's test, since pairs of one fold or replicate are alike"
    )
