"""Search for a method as fast as RELIEF and not worse than FedAvg, on validation data, in four steps.

``frontier`` varies which groups fill the free slots, and how many. For its best, ``frontier_mean`` varies over whom
updates are averaged, ``frontier_rates`` and ``frontier_sgd`` the optimizer. ``frontier_test`` tests one candidate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from relief_ray.report.paper import V1
from relief_ray.strategies import PROPOSED, REFERENCE
from relief_ray.studies.spec import CNN, SGD, SGD_RATES, SHORT, Axis, Level, Spec, Values, backbones
from tune_configs import CLAIMS

# A block that is always trained is never the oldest, so that this order decides over all slots.
_ORDERS: Mapping[str, Values] = {
    "divergence": {"strategy.select": "divergence"},
    "per_element": {"strategy.select": "per_element"},
    "oldest": {"strategy.select": "oldest", "strategy.mandatory": False},
    "random": {"strategy.select": "random"},
}
# The last models of the search are averaged, so that one lucky round decides less.
_VALIDATION: Values = {**SHORT, "evaluation.parts": ["validation"], "evaluation.average": "tail"}
_AXES = (backbones(CNN),)
# Averages every group over all participants, else as RELIEF.
WHOLE_MEAN = "v2_mandatory"
# Seeds that no other grid uses; learning rates are searched with one more.
_REPLICATES, RATES_REPLICATE = (100, 101, 102), 110


def _level(order: str, slots: int) -> Level:
    return Level(name=f"{order}-k{slots}", settings={**_ORDERS[order], "strategy.slots_slowest": slots})


FRONTIER = Spec(
    name="frontier",
    title="F1 against speed on validation data: four orders of groups, 1 to 5 groups for the slowest client",
    methods=(REFERENCE, PROPOSED, V1),
    datasets=("dsa",),
    axes=_AXES,
    own={PROPOSED: tuple(_level(order, slots) for order in _ORDERS for slots in range(1, 6))},
    replicates=_REPLICATES,
    settings=_VALIDATION,
)
"""F1 against speed: which ranking fills how many free slots best, looked for on validation data alone.

Four orders x a budget of 1 to 5 groups for the slowest client, beside FedAvg and V1; 4 folds x 3 replicates whose
seeds no other grid uses. Every method is tested with the mean of its last models (``evaluation.average``)."""


FRONTIER_MEAN = replace(
    FRONTIER,
    name="frontier_mean",
    title="the best of frontier averaged over all participants, validation data",
    methods=(WHOLE_MEAN,),
    own={WHOLE_MEAN: (_level("divergence", 3), _level("divergence", 2), _level("per_element", 3))},
)
"""The best of ``frontier`` with every group averaged over all participants instead of its cohort.

An absent update counts as no change (the paper's V2, own blocks kept). Same folds and replicates as ``frontier``."""


# Of `frontier`, and of both methods in `frontier_rates`.
_BEST, _BEST_RATE = (_level("divergence", 3),), 0.1


_RATES = tuple(Level(name=f"sgd{rate:g}", settings={**SGD, "training.lr": rate}) for rate in SGD_RATES)

FRONTIER_RATES = replace(
    FRONTIER,
    name="frontier_rates",
    title="learning rates of SGD with momentum, validation data",
    methods=(REFERENCE, PROPOSED),
    axes=(*_AXES, Axis(name="rates", levels=_RATES)),
    own={PROPOSED: _BEST},
    replicates=(RATES_REPLICATE,),
)
"""Learning rates of SGD with momentum for FedAvg and the best of ``frontier``; a replicate that no table uses."""


FRONTIER_SGD = replace(
    FRONTIER,
    name="frontier_sgd",
    title="the best of frontier with SGD, averaged over cohorts and over all participants, validation data",
    methods=(REFERENCE, PROPOSED, WHOLE_MEAN),
    own={PROPOSED: _BEST, WHOLE_MEAN: _BEST},
    settings={**_VALIDATION, **SGD, "training.lr": _BEST_RATE},
)
"""The best of ``frontier`` with SGD at the rate that ``frontier_rates`` has found, beside FedAvg with the same.

Averaged over cohorts and over all participants. Same folds and replicates as ``frontier``.
"""

FRONTIER_TEST = replace(
    FRONTIER,
    name="frontier_test",
    title="as fast as RELIEF and not worse than FedAvg? the candidate on the test part, 100 pairs",
    methods=(REFERENCE, WHOLE_MEAN),
    own={WHOLE_MEAN: _BEST},
    replicates=tuple(range(200, 225)),
    settings={**SHORT, "evaluation.average": "tail", **SGD, "training.lr": _BEST_RATE},
    claims=CLAIMS / "frontier_test.yaml",
)
"""The candidate against FedAvg on the test part, with seeds that no search used: 25 replicates x 4 folds.

Candidate: the highest F1 of the search at twice FedAvg's speed or more, three groups for the slowest client averaged
over all participants, with SGD. FedAvg has the same optimizer, rate and average over its last models.
"""
