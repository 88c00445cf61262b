"""FedProx: FedAvg with a quadratic tether to the broadcast model, and partial work where devices are slow.

``h_n(w) = F_n(w) + (mu / 2) |w - theta^r|^2``; the server's step is FedAvg's. With ``partial_work="deadline"`` client n
runs the most epochs ``E_n`` in 1 .. E that end before ``T``, by the planner; 1 where none does.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020. RELIEF gives no mu; 0.01 is our default. The
original draws ``E_n`` at random; a deadline is our form of its inexactness ``gamma_n``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

from pydantic import Field
from torch import Tensor

from relief_ray.core.client import ClientProgram, LocalStep, task_loss
from relief_ray.core.federated import RoundContext, Strategy
from relief_ray.core.messages import Assignment, ClientInfo, ServerState
from relief_ray.strategies.common import (
    Preset,
    StrategyConfig,
    of_fastest_type,
    search_over,
    train_everything,
)
from relief_ray.strategies.fedavg import FedAvg

# Per trained value and step: difference, product with mu, sum into the gradient.
PROXIMAL_FLOPS_PER_VALUE = 3.0
# Keeps a client whose own time is the deadline from missing it by rounding.
ROUNDING = 1e-9


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
    """Configuration of FedProx."""

    title = "FedProx"
    kind = "baseline"
    about = "FedAvg with a pull (mu = 0.01) towards the server's model"
    citation = "li2020fedprox"
    search = search_over("mu", (0.001, 0.01, 0.1))
    read_with = (("partial_work", "deadline", ("deadline_s",)),)
    name: Literal["fedprox"] = "fedprox"
    mu: float = Field(default=0.01, ge=0.0)
    """Weight of the proximal term."""
    partial_work: Literal["off", "deadline"] = "off"
    """``off``: every client runs all epochs, as in the paper's tables; ``deadline``: those that fit."""
    deadline_s: float | None = Field(default=None, gt=0.0)
    """``T`` in seconds; None: the time of the fastest device type."""

    def build(self) -> Strategy:
        """Build the strategy: FedAvg with another objective and, where asked for, fewer epochs."""
        plain = FedAvg(weighting=self.weighting).build()
        program = ClientProgram(objective=partial(proximal_loss, self.mu), is_mean=True)
        return replace(plain, name=self.name, allocate=partial(allocate, self), client=program)


PRESETS = {"fedprox": Preset(FedProx())}


def allocate(config: FedProx, state: ServerState, context: RoundContext) -> tuple[Assignment, ...]:
    """Every participant trains everything, for as many epochs as end in time."""
    tasks = tuple(tethered(config, context, c) for c in context.participants)
    if config.partial_work == "off":
        return tasks
    limit_s = (config.deadline_s or fastest_s(config, context)) * (1.0 + ROUNDING)
    return tuple(until(task, context, limit_s) for task in tasks)


def tethered(config: FedProx, context: RoundContext, client: ClientInfo) -> Assignment:
    """FedAvg's task, charged for the tether: about three FLOPs per trained value and step."""
    flops = PROXIMAL_FLOPS_PER_VALUE * context.layout.numel if config.mu else 0.0
    return replace(train_everything(context, client), step_flops=flops)


def until(task: Assignment, context: RoundContext, limit_s: float) -> Assignment:
    """``task`` with the most epochs that end in time, sending included; at least one."""
    fewer = (replace(task, epochs=epochs) for epochs in range(task.epochs, 1, -1))
    in_time = (t for t in fewer if context.planner.times(task.client, t).busy_s <= limit_s)
    return next(in_time, replace(task, epochs=1))


def fastest_s(config: FedProx, context: RoundContext) -> float:
    """Seconds of all epochs on the fastest device type: its slowest client's time, over the whole fleet."""
    times = {c: context.planner.times(c.id, tethered(config, context, c)) for c in context.fleet.clients}
    return max(spent.busy_s for spent in of_fastest_type(times))
