"""FedProx: FedAvg with a quadratic tether to the broadcast model.

``h_n(w) = F_n(w) + (mu / 2) |w - theta^r|^2``; the server's step is FedAvg's.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020. RELIEF gives no mu; 0.01 is our default.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

from pydantic import Field
from torch import Tensor

from relief_ray.federated import ClientProgram, LocalStep, Strategy, task_loss
from relief_ray.strategies.common import StrategyConfig
from relief_ray.strategies.fedavg import FedAvg


def proximal_loss(mu: float, step: LocalStep) -> Tensor:
    """``task loss + (mu / 2) sum_j |theta_j - theta_j^r|^2`` over the trained groups; ``theta^r`` is a constant."""
    loss = task_loss(step)
    if mu == 0.0:
        return loss
    for j, theta in step.params.items():
        drift = theta - step.start[j]
        loss = loss + (mu / 2.0) * drift.dot(drift)
    return loss


class FedProx(StrategyConfig):
    """FedAvg whose clients stay near the broadcast model."""

    name: Literal["fedprox"] = "fedprox"
    mu: float = Field(default=0.01, ge=0.0)

    def build(self) -> Strategy:
        """The strategy: FedAvg with another objective."""
        program = ClientProgram(objective=partial(proximal_loss, self.mu))
        return replace(FedAvg(weighting=self.weighting).build(), name=self.name, client=program)
