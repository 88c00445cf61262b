"""F1 at equal cost: what a run had reached after so many aggregations, simulated seconds or joules.

Models exist after evaluated rounds only. Between two evaluations F1 is interpolated linearly over the cost; a run that
ended earlier keeps its last F1; before the first evaluation there is none. Costs include the bootstrap round.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from relief_ray.records.schema import RoundRecord
from relief_ray.report.runs import Loaded, Replicate
from relief_ray.strategies import PROPOSED, REFERENCE

# The two whose cheaper one sets the budget of a table's columns; where one is missing, all methods but the bounds do.
_ANCHORS = (REFERENCE, PROPOSED)
Cost = Literal["time_s", "energy_j", "aggregations"]


def points(loaded: Loaded, clock: str, cost: Cost) -> list[tuple[float, float]]:
    """Return (cost so far, headline F1) of every evaluated round 1..R."""
    rows = [(_spent(loaded, r, clock, cost), r.metrics) for r in loaded.trained]
    scores = [(spent, None if metrics is None else metrics.headline) for spent, metrics in rows]
    return [(spent, f1) for spent, f1 in scores if f1 is not None]


def _spent(loaded: Loaded, record: RoundRecord, clock: str, cost: Cost) -> float:
    """Return what all rounds up to this one have cost; a bootstrap counts as one aggregation."""
    return float(loaded.aggregations(record) if cost == "aggregations" else getattr(record.totals[clock], cost))


def score_at(curve: Sequence[tuple[float, float]], budget: float) -> float | None:
    """Return F1 at the budget, between the two evaluations around it; None before the first one."""
    if not curve or budget < curve[0][0]:
        return None
    for (before, low), (after, high) in pairwise(curve):
        if before <= budget < after:
            return low + (high - low) * (budget - before) / (after - before)
    return curve[-1][1]


def _least_total(runs: Sequence[Loaded], clock: str, cost: Cost) -> float:
    """Return the cost of all rounds of the cheapest run."""
    return min(_spent(r, r.rounds[-1], clock, cost) for r in runs)


def at_equal_cost(first: Loaded, second: Loaded, clock: str, cost: Cost) -> tuple[float, float] | None:
    """Return F1 of two runs when both have spent what the cheaper one spent in all; None without a test by then."""
    budget = _least_total([first, second], clock, cost)
    one, two = (score_at(points(run, clock, cost), budget) for run in (first, second))
    return None if one is None or two is None else (one, two)


def equal_cost_scores(runs: Sequence[Loaded], clock: str) -> list[dict[str, float]]:
    """Return each run's F1 in percent at the budgets of its replicate, by names of figures.

    A budget is what the cheaper one of FedAvg and RELIEF spent in all, or the cheapest method that is no bound. Where
    the numbers of aggregations differ, the least of them is a budget too.
    """
    groups: dict[Replicate, list[Loaded]] = {}
    for run in runs:
        groups.setdefault(run.replicate, []).append(run)
    return [_at_budgets(run, groups[run.replicate], clock) for run in runs]


def _at_budgets(run: Loaded, group: Sequence[Loaded], clock: str) -> dict[str, float]:
    anchors = [other for other in group if other.label in _ANCHORS]
    if len(anchors) < len(_ANCHORS):
        anchors = [other for other in group if not other.run.method.is_bound]
    values: dict[str, float] = {}
    costs: tuple[tuple[str, Cost], ...] = (("f1_at_seconds_percent", "time_s"), ("f1_at_joules_percent", "energy_j"))
    for name, cost in costs if len(anchors) > 1 else ():
        score = score_at(points(run, clock, cost), _least_total(anchors, clock, cost))
        values |= {} if score is None else {name: 100 * score}
    totals = {_spent(other, other.rounds[-1], clock, "aggregations") for other in group}
    if len(totals) > 1 and (score := score_at(points(run, clock, "aggregations"), min(totals))) is not None:
        values["f1_at_rounds_percent"] = 100 * score
    return values
