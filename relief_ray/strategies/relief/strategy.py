"""RELIEF: modality-aligned blocks decide what to aggregate, what to train and what to send (Algorithm 1).

Blue: T* and k_n (Eq. (7)), S_n = {A_m : m in M_n} + the most divergent groups. Green: only S_n learns and travels
(Eq. (8)). Orange: A_m and E_m averaged within the cohort that trained them (Eq. (3)), B with weights |M_n| / M
(Eq. (4)), head over those that trained it; then divergence (Eq. (5)) and its moving average (Eq. (6)).

Wu, Ding and Huang, "RELIEF: Turning Missing Modalities into Training Acceleration for Federated Learning on
Heterogeneous IoT Edge".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, Literal

from pydantic import Field

from relief_ray.federated import RoundContext, ServerTools, Strategy
from relief_ray.groups import GroupId, ParamGroup
from relief_ray.messages import Assignment, ClientInfo, Reduced, ServerState, WeightedSum
from relief_ray.server.aggregation import apply_step, mean_step, one_bucket, over_members, over_participants
from relief_ray.strategies.common import StrategyConfig, train_everything
from relief_ray.strategies.relief import budget
from relief_ray.strategies.relief.divergence import D_BAR, divergence, smooth, smoothed, to_tensor

BOOTSTRAP = "bootstrap"
Weight = Callable[[ParamGroup, ClientInfo, Assignment], float]


class Relief(StrategyConfig):
    """V0; ``variants`` below change one or two fields of it."""

    one_of: ClassVar[tuple[str, ...]] = ("deadline_s", "deadline_fraction")
    name: Literal["relief"] = "relief"
    select: Literal["divergence", "random", "none", "all"] = "divergence"
    mandatory: bool = True
    cohort: bool = True
    gamma: float = Field(default=0.9, gt=0.0, lt=1.0)
    deadline_s: float | None = Field(default=None, gt=0.0)
    deadline_fraction: float | None = Field(default=None, gt=0.0)

    def build(self) -> Strategy:
        """The strategy."""
        base = self.reduction().weight
        reduction = WeightedSum(weight=partial(role_weight, self, base), bucket=one_bucket)
        return Strategy(
            name=self.name,
            allocate=partial(allocate, self),
            aggregate=partial(aggregate, self, reduction),
            reduction=reduction,
            bootstrap=True,
        )


VARIANTS: dict[str, Relief] = {
    "relief": Relief(),
    "v1": Relief(select="all"),
    "v2": Relief(cohort=False, mandatory=False),
    "v3": Relief(select="random", mandatory=False),
    "v2_mandatory": Relief(cohort=False),
    "v3_mandatory": Relief(select="random"),
    "mandatory_only": Relief(select="none"),
}


def role_weight(config: Relief, base: Weight, group: ParamGroup, client: ClientInfo, task: Assignment) -> float:
    """1 (or the sample count), times ``|M_n|`` for B (Eq. (4); 1/M cancels). Dilution knows no modality weight."""
    weight = float(base(group, client, task))
    by_modalities = group.role == "fusion_b" and (config.cohort or task.phase == BOOTSTRAP)
    return weight * len(client.modalities) if by_modalities else weight


def client_load(context: RoundContext, client: ClientInfo) -> budget.Load:
    """The budget problem of one client, priced by the planner."""
    layout = context.layout

    def seconds(groups: Sequence[GroupId]) -> float:
        return context.planner.times(client.id, local_task(context, client, groups)).busy_s

    return budget.Load(
        accessible=tuple(g.id for g in layout.accessible(client.modalities)),
        mandatory=tuple(g.id for g in layout.mandatory(client.modalities)),
        seconds=seconds,
    )


def local_task(
    context: RoundContext, client: ClientInfo, groups: Sequence[GroupId], phase: str = "train"
) -> Assignment:
    """The whole model comes down, ``S_n`` is trained and goes up (Eq. (8))."""
    chosen = context.layout.select(groups)
    return Assignment(
        client=client.id, down=context.layout.select(), train=chosen, up=chosen, epochs=context.epochs, phase=phase
    )


def target_s(config: Relief, context: RoundContext) -> float:
    """``T*`` over the whole fleet: given, a fraction of FedAvg's slowest client, or the least feasible time."""
    if config.deadline_s is not None:
        return config.deadline_s
    if config.deadline_fraction is not None:
        whole = (context.planner.times(c.id, train_everything(context, c)) for c in context.fleet.clients)
        return config.deadline_fraction * max(spent.busy_s for spent in whole)
    return budget.least_target_s([client_load(context, client) for client in context.fleet.clients])


def allocate(config: Relief, state: ServerState, context: RoundContext) -> tuple[Assignment, ...]:
    """Blue box: round 0 trains ``G_n``; later rounds solve the allocation for each participant."""
    if context.round == 0 or config.select == "all":
        phase = BOOTSTRAP if context.round == 0 else "train"
        loads = [(client, client_load(context, client)) for client in context.participants]
        return tuple(local_task(context, client, load.accessible, phase) for client, load in loads)
    deadline = target_s(config, context)
    plans = [(client, plan(config, state, context, client, deadline)) for client in context.participants]
    return tuple(local_task(context, client, allocation.groups) for client, allocation in plans)


def plan(
    config: Relief, state: ServerState, context: RoundContext, client: ClientInfo, deadline: float
) -> budget.Allocation:
    """``S_n`` of one client; what ``relief-ray explain`` shows."""
    load = client_load(context, client)
    slots = budget.group_budget(load, deadline)
    return budget.allocate(load, deadline, slots, ranking(config, state, context, client, load), config.mandatory)


def ranking(
    config: Relief, state: ServerState, context: RoundContext, client: ClientInfo, load: budget.Load
) -> list[GroupId]:
    """The order in which free slots are offered: by divergence, at random, or not at all."""
    if config.select == "none":
        return []
    if config.select == "random":
        order = context.streams.numpy("relief.random", context.round, client.id).permutation(len(load.accessible))
        return [load.accessible[i] for i in order]
    return budget.by_divergence(load, smoothed(state.tensors, context.layout))


def aggregate(
    config: Relief, reduction: WeightedSum, state: ServerState, reduced: Reduced, tools: ServerTools
) -> ServerState:
    """Orange box: Eqs. (3) and (4), then (5) and (6). Without cohorts (V2) absent members count as zero change."""
    sums = reduced.sums.get("global", {})
    diluted = not config.cohort and tools.round > 0
    total = over_participants(reduction, reduced, tools.fleet) if diluted else over_members
    theta = apply_step(state.models["global"], mean_step(sums, total, tools.layout))
    d = {j: divergence(part) for j, part in sums.items()}
    d_bar = smooth(smoothed(state.tensors, tools.layout), d, config.gamma)
    return ServerState(models={"global": theta}, tensors={D_BAR: to_tensor(d_bar, tools.layout)}, facts=state.facts)
