"""FedNova: FedAvg with partial work, each update divided by its effective number of local steps.

``Theta^{r+1} = Theta^r + tau_eff sum_n p_n Delta_n / |a_n|``, ``tau_eff = sum_n p_n |a_n|``. After ``tau`` local steps
their effective number ``|a_n|`` is ``tau`` for SGD and ``(tau - b (1 - b^tau) / (1 - b)) / (1 - b)`` with momentum
``b``; with Adam it is ``tau``, which is ours. Epochs are those that end by a deadline, as FedProx's partial work. Equal
steps are FedAvg.

Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization", NeurIPS 2020.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

from pydantic import Field

from relief_ray.core.federated import RoundContext, ServerTools, Strategy
from relief_ray.core.messages import Assignment, Reduced, ServerState
from relief_ray.server.aggregation import apply_step
from relief_ray.strategies.common import Allocate, Preset, batch_sizes, mean_change
from relief_ray.strategies.fedavg import MEAN, FedAvg
from relief_ray.strategies.fedprox import with_deadline
from relief_ray.support.errors import UserError

# Arguments of a task: ``|a_n|``, and the largest one of its round.
_STEPS, _MOST_STEPS = "effective_steps", "most_effective_steps"


class FedNova(FedAvg):
    """Configuration of FedNova."""

    title = "FedNova"
    kind = "baseline of ours"
    about = "FedAvg with the epochs that end in time, each update divided by its number of steps"
    citation = "wang2020fednova"
    no_average = "its step is a mean of updates that are divided by their numbers of steps"
    name: Literal["fednova"] = "fednova"  # type: ignore[assignment]
    deadline_s: float | None = Field(default=None, gt=0.0)
    """Deadline of a round in seconds; None: the time of the fastest device type."""

    def build(self) -> Strategy:
        """Build the strategy: FedAvg's tasks with fewer epochs and normalised weights."""
        if type(self).server_step is not FedNova.server_step:
            raise UserError(
                f"class {type(self).__name__}: server_step is called by nobody, since FedNova has a step of its own; "
                "derive from rr.FedAvg"
            )
        timely = with_deadline(super().build(), self.deadline_s)
        return replace(timely, allocate=partial(normalised, timely.allocate), aggregate=aggregate)


PRESETS = {"fednova": Preset(FedNova())}


def effective_steps(num_steps: int, momentum: float) -> float:
    """``|a_n|`` after so many steps: the sum of how often each of their gradients has moved the model."""
    if not momentum:
        return float(num_steps)
    return (num_steps - momentum * (1.0 - momentum**num_steps) / (1.0 - momentum)) / (1.0 - momentum)


def normalised(allocate: Allocate, state: ServerState, context: RoundContext) -> tuple[Assignment, ...]:
    """Weigh every task by ``p_n max_k |a_k| / |a_n|``, so that equal numbers of steps leave the weights as they are."""
    tasks = allocate(state, context)
    planned = [t.epochs * len(batch_sizes(context, context.fleet[t.client])) for t in tasks]
    steps = [effective_steps(number, context.momentum) for number in planned]
    most = max(steps, default=1.0)
    return tuple(
        replace(task, weight=task.weight * most / number, args={_STEPS: number, _MOST_STEPS: most})
        for task, number in zip(tasks, steps, strict=True)
    )


def aggregate(state: ServerState, reduced: Reduced, tools: ServerTools) -> ServerState:
    """Scale the mean of the normalised updates by ``tau_eff`` (Wang et al. 2020, Eq. (6))."""
    tasks = [receipt.assignment for receipt in reduced.receipts]
    mean = mean_change(MEAN, reduced, tools)
    most, steps = tasks[0].args[_MOST_STEPS], [task.args[_STEPS] for task in tasks]
    shares = [task.weight * number / most for task, number in zip(tasks, steps, strict=True)]
    effective = sum(p * number for p, number in zip(shares, steps, strict=True)) / sum(shares)
    factor = 1.0 if len(set(steps)) == 1 else sum(task.weight for task in tasks) / sum(shares) * (effective / most)
    step = {j: factor * change for j, change in mean.items()}
    return replace(state, models={"global": apply_step(state.models["global"], step)})
