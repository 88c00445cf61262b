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

from relief_ray.core.client import LocalStep
from relief_ray.core.federated import PlannedRun, RoundContext, Strategy
from relief_ray.core.messages import Assignment, ServerState
from relief_ray.strategies.common import Allocate, Preset, late, most_epochs, of_fastest_type, search_over
from relief_ray.strategies.fedavg import FedAvg


class FedProx(FedAvg):
    """Configuration of FedProx."""

    title = "FedProx"
    kind = "baseline"
    about = "FedAvg with a pull (mu = 0.01) towards the server's model"
    citation = "li2020fedprox"
    search = search_over("mu", (0.001, 0.01, 0.1))
    read_with = (("partial_work", "deadline", ("deadline_s",)),)
    name: Literal["fedprox"] = "fedprox"  # type: ignore[assignment]
    mu: float = Field(default=0.01, ge=0.0)
    """Weight of the proximal term."""
    partial_work: Literal["off", "deadline"] = "off"
    """``off``: every client runs all epochs, as in the paper's tables; ``deadline``: those that fit."""
    deadline_s: float | None = Field(default=None, gt=0.0)
    """``T`` in seconds; None: the time of the fastest device type."""

    @property
    def flops_per_value(self) -> float:  # type: ignore[override]
        """FLOPs of the tether: difference, product with mu, sum into the gradient."""
        return 3.0 if self.mu else 0.0

    def client_loss(self, step: LocalStep) -> Tensor:
        """``task loss + (mu / 2) sum_j |theta_j - theta_j^r|^2`` over the trained groups; ``theta^r`` is constant."""
        loss = super().client_loss(step)
        if self.mu == 0.0:
            return loss
        for j, theta in step.params.items():
            drift = theta - step.start[j]
            loss = loss + (self.mu / 2.0) * drift.dot(drift)
        return loss

    def build(self) -> Strategy:
        """Build the strategy: FedAvg with these hooks and, where asked for, fewer epochs."""
        plain = super().build()
        is_mean = type(self).client_loss is FedProx.client_loss
        tethered = replace(plain, client=replace(plain.client, is_mean=is_mean))
        return tethered if self.partial_work == "off" else with_deadline(tethered, self.deadline_s)


PRESETS = {"fedprox": Preset(FedProx())}


def with_deadline(plain: Strategy, deadline_s: float | None) -> Strategy:
    """FedAvg's ``plain`` tasks with the epochs that end by a deadline; None: the time of the fastest device type."""
    insight = replace(plain.insight, warnings=partial(warnings, deadline_s, plain))
    return replace(plain, allocate=partial(in_time, deadline_s, plain.allocate), insight=insight)


def warnings(deadline_s: float | None, plain: Strategy, run: PlannedRun) -> tuple[str, ...]:
    """Warn of clients for whom no epoch ends in time, after what ``plain`` warns of."""
    everybody, state = run.context, ServerState(models={})
    limit_s = deadline_s or fastest_s(plain.allocate, state, everybody)
    return (*plain.insight.warnings(run), *late("the deadline", limit_s, plain.allocate(state, everybody), everybody))


def in_time(
    deadline_s: float | None, allocate: Allocate, state: ServerState, context: RoundContext
) -> tuple[Assignment, ...]:
    """Every participant trains everything, for as many epochs as end in time."""
    limit_s = deadline_s or fastest_s(allocate, state, context)
    return tuple(most_epochs(task, context, limit_s) for task in allocate(state, context))


def fastest_s(allocate: Allocate, state: ServerState, context: RoundContext) -> float:
    """Seconds of all epochs on the fastest device type: its slowest client's time, over the whole fleet."""
    everyone = allocate(state, replace(context, participants=context.fleet.clients))
    times = {context.fleet[t.client]: context.planner.times(t.client, t) for t in everyone}
    return max(spent.busy_s for spent in of_fastest_type(times))
