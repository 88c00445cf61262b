"""Records of simulated time and energy: what a round cost by one time model, its sums, and FedAvg's round."""

from __future__ import annotations

from relief_ray.records.base import Record


class Stages(Record):
    """Seconds per stage of a client's round, as in ``messages.StageTimes``."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    optimizer_s: float = 0.0
    up_s: float = 0.0
    down_s: float = 0.0

    @property
    def compute_s(self) -> float:
        """Seconds of forward, backward and optimizer."""
        return self.forward_s + self.backward_s + self.optimizer_s

    @property
    def link_s(self) -> float:
        """Seconds of download and upload."""
        return self.up_s + self.down_s


class ClientCostRecord(Record):
    """Simulated round of one client; ``wait_s`` is idle time until the slowest client is done."""

    client: int
    times: Stages
    wait_s: float
    energy_j: float


class CostRecord(Record):
    """Simulated round under one time model.

    Attributes:
        round_s: its length in seconds.
        energy_j: joules of the whole fleet.
        clients: costs of all clients.
    """

    round_s: float
    energy_j: float
    clients: tuple[ClientCostRecord, ...]

    @property
    def compute_s(self) -> float:
        """Longest compute time of a client: the round's length if links took no time."""
        return max((c.times.compute_s for c in self.clients), default=0.0)

    @property
    def link_share(self) -> float:
        """Share of its busy time that the slowest client spends on the link; 0 where nobody works."""
        times = max((c.times for c in self.clients), key=lambda t: t.compute_s + t.link_s, default=Stages())
        busy_s = times.compute_s + times.link_s
        return times.link_s / busy_s if busy_s else 0.0


class Totals(Record):
    """Sums over all rounds so far, the bootstrap included."""

    time_s: float = 0.0
    energy_j: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0


class FedAvgRecord(Record):
    """Simulated FedAvg round of the same participants: the 1.00x of ``speedup``.

    Attributes:
        round_s: its length in seconds.
        energy_j: joules of the whole fleet.
        compute_s: longest compute time of a client.
        link_share: share of the slowest client's busy time that is link.
    """

    round_s: float
    energy_j: float
    compute_s: float
    link_share: float
