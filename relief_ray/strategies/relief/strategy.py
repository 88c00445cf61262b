"""RELIEF: modality-aligned blocks decide what to aggregate, what to train and what to send (Algorithm 1).

``allocate`` (the paper's blue box): T* and k_n (Eq. (7)), S_n = {A_m : m in M_n} + the most divergent groups.
``local_task`` (green): only S_n learns and travels (Eq. (8)).
``aggregate`` (orange): A_m and E_m averaged within the cohort that trained them (Eq. (3)), B with weights |M_n| / M
(Eq. (4), ``role_weight``), head over those that trained it; then divergence (Eq. (5)) and its moving average (Eq. (6)).

Wu, Ding and Huang, "RELIEF: Turning Missing Modalities into Training Acceleration for Federated Learning on
Heterogeneous IoT Edge".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from functools import partial
from typing import ClassVar, Literal

from pydantic import Field

from relief_ray.federated import ExplainRequest, PlannedRun, RoundContext, ServerTools, Strategy
from relief_ray.groups import GroupId, ParamGroup
from relief_ray.messages import Assignment, ClientInfo, Reduced, ServerState, WeightedSum
from relief_ray.protocols import Explanation
from relief_ray.server.aggregation import (
    apply_step,
    divergence,
    mean_step,
    one_bucket,
    over_members,
    over_participants,
    to_tensor,
)
from relief_ray.strategies.common import Preset, Search, StrategyConfig, search_over, train_everything
from relief_ray.strategies.relief import budget
from relief_ray.strategies.relief.divergence import D_BAR, diagnose, smooth, smoothed
from relief_ray.strategies.relief.explanation import Reasons, explanation, offers, without_choice

BOOTSTRAP = "bootstrap"
_DEADLINE_TEXT = "the least time in which every client manages its mandatory blocks: RELIEF's deadline"
Weight = Callable[[ParamGroup, ClientInfo, Assignment], float]


class Relief(StrategyConfig):
    """Configuration of RELIEF (V0); ``variants`` change one or two fields of it.

    Attributes:
        select: the order in which groups beyond the mandatory ones are offered; ``all`` trains every accessible group.
        mandatory: every client trains the fusion blocks of its own sensors, whatever they take.
        cohort: average within the clients that trained a group; else over all participants (absent = no change).
        gamma: weight of a round's divergence in its moving average (Eq. (6)).
        deadline_s: ``T*`` in seconds; None: ``deadline_fraction``, or the least feasible time.
        deadline_fraction: ``T*`` as a share of the slowest client's FedAvg round.
    """

    title: ClassVar[str] = "RELIEF"
    kind: ClassVar[str] = "RELIEF, V0"
    about: ClassVar[str] = "own sensors' blocks, then the most divergent groups within T*; cohort mean"
    citation: ClassVar[str | None] = "wu2026relief"
    # How much slower than the least possible round it may be; gamma only smooths a ranking that seldom decides.
    search: ClassVar[Search] = search_over("deadline_fraction", (None, 0.6, 0.8), "deadline")
    one_of: ClassVar[tuple[str, ...]] = ("deadline_s", "deadline_fraction")
    name: Literal["relief"] = "relief"
    select: Literal["divergence", "random", "none", "all"] = "divergence"
    mandatory: bool = True
    cohort: bool = True
    gamma: float = Field(default=0.9, gt=0.0, lt=1.0)
    deadline_s: float | None = Field(default=None, gt=0.0)
    deadline_fraction: float | None = Field(default=None, gt=0.0)

    @property
    def has_deadline(self) -> bool:
        """Whether T* is a given number, or a given share of FedAvg's round."""
        return self.deadline_s is not None or self.deadline_fraction is not None

    def build(self) -> Strategy:
        """Build the strategy."""
        base = self.reduction().weight
        reduction = WeightedSum(weight=partial(role_weight, self, base), bucket=one_bucket)
        return Strategy(
            name=self.name,
            allocate=partial(allocate, self),
            aggregate=partial(aggregate, self, reduction),
            reduction=reduction,
            deadline_s=None if self.select == "all" else partial(target_s, self),
            warnings=partial(tight_deadline, self),
            diagnose=diagnose,
            explain=partial(explain, self),
            deadline_text="" if self.has_deadline else _DEADLINE_TEXT,
            bootstrap=True,
        )


def role_weight(config: Relief, base: Weight, group: ParamGroup, client: ClientInfo, task: Assignment) -> float:
    """Weight of a client: 1 or its sample count, times ``|M_n|`` for B (Eq. (4); 1/M cancels) unless diluted (V2)."""
    weight = float(base(group, client, task))
    by_modalities = group.role == "fusion_b" and (config.cohort or task.phase == BOOTSTRAP)
    return weight * len(client.modalities) if by_modalities else weight


def client_load(context: RoundContext, client: ClientInfo) -> budget.Load:
    """Budget problem of one client, with the planner's seconds."""
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
    """Green box: the whole model comes down, ``S_n`` is trained and goes up (Eq. (8))."""
    chosen = context.layout.select(groups)
    return Assignment(
        client=client.id, down=context.layout.select(), train=chosen, up=chosen, epochs=context.epochs, phase=phase
    )


def target_s(config: Relief, context: RoundContext) -> float:
    """``T*`` over the whole fleet: as configured, a fraction of FedAvg's slowest client, or the least feasible time."""
    if config.deadline_s is not None:
        return config.deadline_s
    if config.deadline_fraction is not None:
        fedavg = (context.planner.times(c.id, train_everything(context, c)) for c in context.fleet.clients)
        return config.deadline_fraction * max(times.busy_s for times in fedavg)
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
    """Blue box for one client: solves for ``S_n``, which ``relief-ray explain`` shows."""
    load = client_load(context, client)
    slots = budget.group_budget(load, deadline)
    return budget.allocate(load, deadline, slots, ranking(config, state, context, client, load), config.mandatory)


def ranking(
    config: Relief, state: ServerState, context: RoundContext, client: ClientInfo, load: budget.Load
) -> list[GroupId]:
    """Order in which free slots are offered: by divergence, at random, or not at all."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class FurtherGroup:
    """The cheapest group that a client could train beyond its mandatory ones, and the least ``T*`` that grants it."""

    client: ClientInfo
    group: GroupId
    needed_s: float


def tight_deadline(config: Relief, run: PlannedRun) -> tuple[str, ...]:
    """Warn where ``T*`` leaves no client a group beyond its mandatory ones: such a run looks like any other.

    The bootstrap round trains everything all the same. V1 and ``mandatory_only`` have no free slots to lose.
    """
    if config.select in ("all", "none"):
        return ()
    context = run.context
    deadline = target_s(config, context)
    further = [cheapest_further(config, context, client) for client in context.fleet.clients]
    if any(f.needed_s <= deadline * (1.0 + budget.SLACK) for f in further):
        return ()
    least = min(further, key=lambda f: f.needed_s)
    meaning = "as strategy.deadline_* has it" if config.has_deadline else "the least time for all mandatory blocks"
    return (
        f"T* = {deadline:.4g} s ({meaning}; clock {run.clock}) leaves no client a group beyond its mandatory fusion "
        "blocks: after the bootstrap nobody trains B, head or encoders. The cheapest further group is "
        f"{least.group} of client {least.client.id} (type {least.client.device}): T* = {least.needed_s:.4g} s; set "
        f"strategy.deadline_s={rounded_up(least.needed_s)} or more, or another clock to plan with "
        "(costs.planning_time)",
    )


def cheapest_further(config: Relief, context: RoundContext, client: ClientInfo) -> FurtherGroup:
    """The group that needs the least ``T*``: its time beside the mandatory ones, and a slot under Eq. (7)."""
    load = client_load(context, client)
    forced = load.mandatory if config.mandatory else ()
    free = [j for j in load.accessible if j not in load.mandatory]
    seconds = {j: load.seconds((*forced, j)) for j in free}
    group = min(free, key=lambda j: seconds[j])
    needed_s = max(seconds[group], budget.least_slot_s(load, len(forced) + 1))
    return FurtherGroup(client=client, group=group, needed_s=needed_s)


def rounded_up(seconds: float) -> str:
    """Three significant digits, never below."""
    exact = Decimal(seconds)
    return f"{exact.quantize(Decimal(1).scaleb(exact.adjusted() - 2), rounding=ROUND_CEILING):f}"


def explain(config: Relief, request: ExplainRequest) -> Explanation:
    """Solve one client's allocation again with the functions of the run."""
    context, client = request.context, request.client
    load = client_load(context, client)
    if context.round == 0 or config.select == "all":
        return without_choice(client, len(load.accessible), context.round)
    d_bar = dict(request.before.get(D_BAR, {}))
    state = ServerState(models={}, tensors={D_BAR: to_tensor(d_bar, context.layout)})
    deadline = target_s(config, context)
    overhead, tau = budget.group_seconds(load)
    chosen = plan(config, state, context, client, deadline)
    return explanation(
        Reasons(
            client=client,
            round=context.round,
            select=config.select,
            forced=config.mandatory,
            target_s=deadline,
            is_target_given=config.has_deadline,
            slowest=slowest(context),
            overhead_s=overhead,
            tau_s=tau,
            affordable=math.floor((deadline - overhead) / tau + budget.SLACK),
            slots=chosen.budget,
            mandatory=load.mandatory,
            offers=offers(load, chosen, ranking(config, state, context, client, load), d_bar),
            groups=chosen.groups,
            planned_s=load.seconds(chosen.groups),
            fedavg_s=request.fedavg_s,
        )
    )


def slowest(context: RoundContext) -> ClientInfo:
    """The client whose mandatory blocks take longest: it sets T*."""

    def needed(client: ClientInfo) -> float:
        load = client_load(context, client)
        return load.seconds(load.mandatory)

    return max(context.fleet.clients, key=needed)


# V0 to V3 of the paper's Table III, and three variants of ours.
PRESETS = {
    "relief": Preset(Relief()),
    "v1": Preset(
        Relief(select="all"),
        title="RELIEF without elastic training (V1)",
        kind="ablation",
        about="RELIEF without elastic training: all groups a client can reach, every round",
        search={},
    ),
    "v2": Preset(
        Relief(cohort=False, mandatory=False),
        title="RELIEF without cohort-wise aggregation (V2)",
        kind="ablation",
        about="RELIEF averaging over everybody (absent = no change); blocks not forced",
    ),
    "v3": Preset(
        Relief(select="random", mandatory=False),
        title="RELIEF with random allocation (V3)",
        kind="ablation",
        about="RELIEF with random groups instead of divergent ones; blocks not forced",
    ),
    "v2_mandatory": Preset(
        Relief(cohort=False),
        title="V2 with mandatory blocks",
        kind="ablation of ours",
        about="V2 with the own sensors' blocks still forced: only dilution differs",
    ),
    "v3_mandatory": Preset(
        Relief(select="random"),
        title="V3 with mandatory blocks",
        kind="ablation of ours",
        about="V3 with the own sensors' blocks still forced: only the choice differs",
    ),
    "mandatory_only": Preset(
        Relief(select="none"),
        title="RELIEF, mandatory blocks alone",
        kind="ablation of ours",
        about="the own sensors' blocks and nothing else",
    ),
}
