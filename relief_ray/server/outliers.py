"""Updates that are too large to be true: one value of 1e30 from a broken client would end the model for everybody.

Both bounds must be broken, ``|Delta_n| > MEDIAN_FACTOR median_k |Delta_k|`` and ``|Delta_n| > MODEL_FACTOR |theta|``,
with ``theta`` the model that the client started from. Honest training never does that: a client's local steps move a
model by a fraction of its own length, and where a learning rate is far too large, all clients move far together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import median_low

from relief_ray.groups import Params
from relief_ray.messages import ClientId, Receipt

MEDIAN_FACTOR, MODEL_FACTOR = 1e3, 10.0
# With two clients nobody can say which one is wrong.
_LEAST_CLIENTS = 3


def outliers(receipts: Sequence[Receipt], models: Mapping[str, Params]) -> dict[ClientId, str]:
    """Reason by client whose update breaks both bounds; ``models``: those of the server at the round's begin.

    Norms are over all groups that a client sent; clients that sent nothing but zeros do not count for the median.
    """
    norms = {r.assignment.client: sqrt(sum(r.sq_norm.values())) for r in receipts}
    positive = [norm for norm in norms.values() if norm > 0.0]
    if len(positive) < _LEAST_CLIENTS:
        return {}
    middle, reasons = median_low(positive), dict[ClientId, str]()
    for receipt in receipts:
        client = receipt.assignment.client
        if norms[client] <= MEDIAN_FACTOR * middle:
            continue
        length = _norm(models[receipt.assignment.view])
        if norms[client] > MODEL_FACTOR * length:
            reasons[client] = (
                f"norm rule: its update has norm {norms[client]:.3g}, {norms[client] / middle:.3g} times the median "
                f"{middle:.3g} of {len(positive)} clients (allowed: {MEDIAN_FACTOR:g}) and "
                f"{_times(norms[client], length)} that of the model (allowed: {MODEL_FACTOR:g})"
            )
    return reasons


def _norm(model: Params) -> float:
    """``|theta|`` over all groups, in float64."""
    return sqrt(sum(float(theta.double().square().sum()) for theta in model.values()))


def _times(norm: float, length: float) -> str:
    return f"{norm / length:.3g} times" if length else "more than"
