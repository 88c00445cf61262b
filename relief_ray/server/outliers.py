"""Updates that are too large to be true: one value of 1e30 from a broken client would end the model for everybody.

Both bounds must be broken, ``|Delta_n| > MEDIAN_FACTOR median_k |Delta_k|`` and ``|Delta_n| > MODEL_FACTOR |theta|``,
with ``theta`` the model that the client started from. Honest training never does that: a client's local steps move a
model by a fraction of its own length, and where a learning rate is far too large, all clients move far together.

Of one or two clients nobody can say what is usual: there ``|Delta_n| > LONE_FACTOR |theta|`` alone is refused, an
update after which nothing of the model is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from math import sqrt
from statistics import median_low

from relief_ray.core.groups import Params
from relief_ray.core.messages import ClientId, Receipt

MEDIAN_FACTOR, MODEL_FACTOR, LONE_FACTOR = 1e3, 10.0, 1e6
_LEAST_CLIENTS = 3


def outliers(receipts: Sequence[Receipt], models: Mapping[str, Params]) -> dict[ClientId, str]:
    """Reason by client whose update breaks its bounds; ``models``: those of the server at the round's begin.

    Norms are over all groups that a client sent; clients that sent nothing but zeros do not count for the median.
    """
    norms = {r.assignment.client: sqrt(sum(r.sq_norm.values())) for r in receipts}
    views = {r.assignment.client: r.assignment.view for r in receipts}
    norm_of = cache(lambda view: _norm(models[view]))  # a pass over the model, of no use in a sound round
    positive = [norm for norm in norms.values() if norm > 0.0]
    if len(positive) < _LEAST_CLIENTS:
        return {
            client: f"norm rule: its update has norm {norm:.3g}, {_times(norm, norm_of(views[client]))} that of the "
            f"model (allowed of fewer than {_LEAST_CLIENTS} clients: {LONE_FACTOR:g})"
            for client, norm in norms.items()
            if norm > LONE_FACTOR * norm_of(views[client]) > 0.0
        }
    middle = median_low(positive)
    return {
        client: f"norm rule: its update has norm {norm:.3g}, {norm / middle:.3g} times the median {middle:.3g} of "
        f"{len(positive)} clients (allowed: {MEDIAN_FACTOR:g}) and {_times(norm, norm_of(views[client]))} that of the "
        f"model (allowed: {MODEL_FACTOR:g})"
        for client, norm in norms.items()
        if norm > MEDIAN_FACTOR * middle and norm > MODEL_FACTOR * norm_of(views[client])
    }


def _norm(model: Params) -> float:
    """``|theta|`` over all groups, in float64."""
    return sqrt(sum(float(theta.double().square().sum()) for theta in model.values()))


def _times(norm: float, length: float) -> str:
    return f"{norm / length:.3g} times" if length else "more than"
