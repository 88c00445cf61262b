"""What a round is charged for: what was done (``method``), or what Tables I and II imply (``table``; docs/costs.md)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from relief_ray.codec import encoded_nbytes
from relief_ray.devices.workload import num_steps
from relief_ray.groups import GroupLayout, Selection
from relief_ray.messages import Assignment, ClientInfo, Receipt, StageTimes, Work

Accounting = Literal["method", "table"]
# Added groups whose bytes Tables I and II add to FedAvg's: adapters (+6.7 %) and routers (+3.3 %).
ADDED_ROLES = frozenset({"connector", "router"})


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeRounds:
    """Bill of a method that Tables I and II list with FedAvg's rounds and bytes although it trains or sends less.

    Every participant is charged for training and sending the backbone (``StrategyConfig.paper_accounting``).
    ``own``: the backbone's groups, in a ``layout`` that also has what the method adds.
    """

    layout: GroupLayout
    own: Selection
    epochs: int
    batch_size: int
    engine: str

    def receipts(self, done: Sequence[Receipt], participants: Iterable[ClientInfo]) -> tuple[Receipt, ...]:
        """One per participant, with or without work: FedAvg's computing, its bytes and those of added groups sent."""
        sent = {r.assignment.client: r.assignment.up for r in done}
        return tuple(self._receipt(client, sent.get(client.id, {})) for client in participants)

    def _receipt(self, client: ClientInfo, sent: Selection) -> Receipt:
        added = {j: part for j, part in sent.items() if j not in self.own and self.layout[j].role in ADDED_ROLES}
        whole = {**self.own, **added}
        nbytes = encoded_nbytes(self.layout, {j: whole[j] for j in self.layout.ids if j in whole})
        task = Assignment(client=client.id, down=whole, train=self.own, up=whole, epochs=self.epochs)
        work = Work(
            num_windows=client.num_windows,
            epochs=self.epochs,
            num_steps=num_steps(client.num_windows, self.epochs, self.batch_size),
            engine=self.engine,
            loss=0.0,
            measured=StageTimes(),
        )
        return Receipt(assignment=task, work=work, bytes_down=nbytes, bytes_up=nbytes)
