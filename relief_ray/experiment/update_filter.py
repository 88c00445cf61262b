"""Which of a round's updates count, and whether they are enough: the norm rule and the quorum, for every executor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from relief_ray.core.federated import RoundVoid
from relief_ray.core.groups import Params
from relief_ray.core.messages import Assignment, ClientId, ClientState, EvalTarget, Trained
from relief_ray.core.protocols import Executor
from relief_ray.server.aggregation import NOT_FINITE
from relief_ray.server.outliers import outliers
from relief_ray.support.errors import LeftOut, spans


@dataclass(frozen=True, kw_only=True, slots=True)
class Accepting:
    """An ``Executor`` around another one that applies the norm rule and the quorum to what comes back.

    Attributes:
        executor: where clients run.
        quorum: share of a round's clients whose updates must be used.
    """

    executor: Executor
    quorum: float

    def train(
        self,
        round_: int,
        models: Mapping[str, Params],
        tasks: Sequence[Assignment],
        states: Mapping[ClientId, ClientState],
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

    def evaluate(
        self,
        models: Mapping[str, Params],
        targets: Sequence[EvalTarget],
        states: Mapping[ClientId, ClientState],
        part: str,
    ) -> Mapping[str, Tensor]:
        """Confusion matrices of every target on the windows of ``part``."""
        return self.executor.evaluate(models, targets, states, part)

    def close(self) -> None:
        """Leave the executor open: it is the caller's."""


def _reasons(rejected: Mapping[ClientId, LeftOut]) -> str:
    """Reasons with their clients, each once, and what helps where training diverges at all of them."""
    clients: dict[str, list[ClientId]] = {}
    for client, left in sorted(rejected.items()):
        clients.setdefault(left.why, []).append(client)
    texts = [f"client{'s' if len(same) > 1 else ''} {spans(same)}: {why}" for why, same in clients.items()]
    diverged = all(why.endswith(NOT_FINITE) for why in clients)
    fix = "; where all clients diverge, lower training.lr or set training.clip_norm"
    return "; ".join(texts) + (fix if diverged and len(rejected) > 1 else "")


def _refuse(trained: Trained, far: Mapping[ClientId, str]) -> Trained:
    """The outcome with these clients' updates refused; its sums still hold them and may not be used."""
    receipts = tuple(r for r in trained.reduced.receipts if r.assignment.client in far)
    return replace(
        trained,
        rejected={**trained.rejected, **{c: LeftOut(cause="update", why=why) for c, why in far.items()}},
        refused=(*trained.refused, *receipts),
    )
