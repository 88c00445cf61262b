"""Which of a round's updates count, and whether they are enough: the norm rule and the quorum, for every executor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import sqrt
from statistics import median_low

from relief_ray.core.federated import RoundVoid
from relief_ray.core.groups import Params
from relief_ray.core.messages import Assignment, ClientId, Models, Receipt, States, Trained
from relief_ray.core.protocols import Trains
from relief_ray.server.aggregation import NOT_FINITE
from relief_ray.support.errors import LeftOut, spans

# Updates that are too large to be true: one value of 1e30 from a broken client would end the model for everybody.
#
# Both bounds must be broken, ``|Delta_n| > MEDIAN_FACTOR median_k |Delta_k|`` and ``|Delta_n| > MODEL_FACTOR |theta|``,
# with ``theta`` the model that the client started from. Honest training never does that: a client's local steps move a
# model by a fraction of its own length, and where a learning rate is far too large, all clients move far together.
#
# Of one or two clients nobody can say what is usual: there ``|Delta_n| > LONE_FACTOR |theta|`` alone is refused, an
# update after which nothing of the model is left.


MEDIAN_FACTOR, MODEL_FACTOR, LONE_FACTOR = 1e3, 10.0, 1e6
_LEAST_CLIENTS = 3


def outliers(receipts: Sequence[Receipt], models: Models) -> dict[ClientId, str]:
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Accepting:
    """Training by an executor, with the norm rule and the quorum applied to what comes back.

    Attributes:
        executor: where clients run.
        quorum: share of a round's clients whose updates must be used.
    """

    executor: Trains
    quorum: float

    def train(
        self,
        round_: int,
        models: Models,
        tasks: Sequence[Assignment],
        states: States,
    ) -> Trained:
        """Train a round; where an update is refused as an outlier, the others train once more without that client.

        Sums are added up where clients are trained, so that one client cannot be taken out of them again.

        Raises:
            RoundVoid: fewer clients' updates can be used than the quorum asks for.
        """
        trained = self.executor.train(round_, models, tasks, states)
        while far := outliers(trained.reduced.receipts, models):
            trained = _refuse(trained, far)
            self._check_quorum(round_, len(tasks), trained)
            kept = {r.assignment.client for r in trained.reduced.receipts} - far.keys()
            again = self.executor.train(round_, models, [t for t in tasks if t.client in kept], states)
            trained = replace(
                again,
                rejected={**trained.rejected, **again.rejected},
                refused=(*trained.refused, *again.refused),
                moved_bytes=trained.moved_bytes + again.moved_bytes,
                measured={**trained.measured, **again.measured},
            )
        self._check_quorum(round_, len(tasks), trained)
        return trained

    def _check_quorum(self, round_: int, num_clients: int, trained: Trained) -> None:
        num_used = num_clients - len(trained.rejected)
        if num_clients and num_used < self.quorum * num_clients:
            raise RoundVoid(
                f"round {round_}: the updates of {num_used} of {num_clients} clients can be used, runtime.quorum = "
                f"{self.quorum:g}; {_reasons(trained.rejected)}",
                rejected=trained.rejected,
            )


def _reasons(rejected: Mapping[ClientId, LeftOut]) -> str:
    """List each reason once with its clients; if training diverged, add advice."""
    clients: dict[str, list[ClientId]] = {}
    for client, left in sorted(rejected.items()):
        clients.setdefault(left.why, []).append(client)
    texts = [f"client{'s' if len(same) > 1 else ''} {spans(same)}: {why}" for why, same in clients.items()]
    diverged = any(
        why.endswith(NOT_FINITE) for why in clients
    )  # the others' may be finite still, and refused as too far
    fix = "; where all clients diverge, lower training.lr or set training.clip_norm"
    return "; ".join(texts) + (fix if diverged else "")


def _refuse(trained: Trained, far: Mapping[ClientId, str]) -> Trained:
    """The outcome with these clients' updates refused; its sums still hold them and may not be used."""
    receipts = tuple(r for r in trained.reduced.receipts if r.assignment.client in far)
    return replace(
        trained,
        rejected={**trained.rejected, **{c: LeftOut(cause="update", why=why) for c, why in far.items()}},
        refused=(*trained.refused, *receipts),
    )
