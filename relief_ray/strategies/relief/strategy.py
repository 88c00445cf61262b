"""RELIEF: modality-aligned blocks decide what to aggregate, what to train and what to send (Algorithm 1).

``allocate`` (the paper's blue box): T* and k_n (Eq. (7)), S_n = {A_m : m in M_n} + the most divergent groups.
``local_task`` (green): only S_n learns and travels (Eq. (8)).
``aggregate`` (orange): A_m and E_m averaged within the cohort that trained them (Eq. (3)), B with weights |M_n| / M
(Eq. (4), ``role_weight``), head over those that trained it; then divergence (Eq. (5)) and its moving average (Eq. (6)).

``budget`` says what T* buys. ``groups`` is the paper's; with ``epochs``, which is ours, a client trains everything
within its reach, for the most whole epochs ``e`` with ``t_n(G_n, e) <= T*``; with ``none`` there is no T* (V1).

Wu, Ding and Huang, "RELIEF: Turning Missing Modalities into Training Acceleration for Federated Learning on
Heterogeneous IoT Edge".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import ROUND_CEILING, Decimal
from functools import partial
from statistics import median
from typing import Literal

from pydantic import Field, model_validator

from relief_ray.core.federated import ExplainRequest, Insight, PlannedRun, RoundContext, ServerTools, Strategy
from relief_ray.core.groups import GroupId, ParamGroup
from relief_ray.core.messages import (
    BOOTSTRAP,
    MAX_EPOCHS,
    Assignment,
    ClientId,
    ClientInfo,
    Reduced,
    ServerState,
    StageTimes,
    WeightedSum,
)
from relief_ray.core.protocols import Explanation
from relief_ray.server.aggregation import (
    Weight,
    apply_step,
    divergence,
    mean_step,
    one_bucket,
    over_members,
    over_participants,
    to_tensor,
)
from relief_ray.strategies.common import (
    SLACK,
    Preset,
    StrategyConfig,
    batch_sizes,
    late,
    most_epochs,
    search_over,
    train_everything,
    train_parts,
)
from relief_ray.strategies.relief import budget
from relief_ray.strategies.relief.budget import (
    D_BAR,
    LAST_ROUND,
    Select,
    diagnose,
    diagnosed_state,
    ranking,
    smooth,
    smoothed,
    trained_in,
)
from relief_ray.strategies.relief.explanation import (
    EpochsBought,
    Reasons,
    epochs_explained,
    explanation,
    without_choice,
)
from relief_ray.support.errors import for_method

# Steps an epoch below which one epoch was not enough: 2, 4 and 16 were too few, 30 were enough.
_ENOUGH_STEPS = 20
_DEADLINE_TEXT = "RELIEF's budget: the least time in which every client can train its mandatory number of groups"


class Relief(StrategyConfig):
    """Configuration of RELIEF (V0); ``variants`` change one or two fields of it.

    Without ``slots_slowest``, ``cover`` or a deadline, ``T*`` is the least time in which every device trains its
    mandatory groups.
    """

    title = "RELIEF"
    kind = "RELIEF, V0"
    about = "own sensors' blocks and what clients disagree on most, within a budget; cohort mean"
    citation = "wu2026relief"
    explains = True
    search_trades_speed = "a higher budget trains more groups"
    # Slots decide both speed and accuracy; gamma only smooths the ranking.
    search = search_over("slots_slowest", (None, 3, 5), "slots")
    one_of = ("slots_slowest", "deadline_s", "deadline_fraction")
    read_with = (
        ("budget", "groups", ("select", "mandatory", "fill", "slots_slowest", "cover")),
        ("budget", ("groups", "epochs"), ("deadline_s", "deadline_fraction")),
        ("budget", "epochs", ("max_epochs",)),
        ("fill", "count", ("slots_slowest", "cover")),
    )
    only_whole = ""
    name: Literal["relief"] = "relief"
    budget: Literal["groups", "epochs", "none"] = "groups"
    """What ``T*`` buys a client: a number of groups (Eq. (7)), or whole epochs of all groups that it reaches; ``none``:
    it trains all of these for all epochs."""
    max_epochs: int | None = Field(default=None, ge=1, le=MAX_EPOCHS)
    """The most epochs that ``budget: epochs`` buys; None: ``training.epochs``."""
    select: Select = "divergence"
    """The order in which groups beyond the mandatory ones are offered (``relief.budget``)."""
    mandatory: bool = True
    """Whether every client trains the fusion blocks of its own sensors, whatever they take."""
    mean: Literal["cohort", "participants"] = "cohort"
    """Whether to average within the ``cohort`` that trained a group, or over all ``participants`` (absent = no
    change)."""
    gamma: float = Field(default=0.9, gt=0.0, lt=1.0)
    """Weight of a round's divergence in its moving average (Eq. (6))."""
    fill: Literal["count", "time"] = "count"
    """``count``: a client trains k_n groups (Eq. (7)), whatever these cost; ``time``: they must fit into ``T*`` too."""
    slots_slowest: int | None = Field(default=None, ge=1)
    """Least number of groups that every client gets, as far as it reaches so many; raises ``T*``."""
    cover: bool = False
    """Whether to raise ``T*`` until each group has a client that trains everything within its reach."""
    deadline_s: float | None = Field(default=None, gt=0.0)
    """The deadline ``T*`` in seconds; None: the least that lets everyone train what is mandatory."""
    deadline_fraction: float | None = Field(default=None, gt=0.0)
    """``T*`` as a share of the slowest client's FedAvg round."""

    @model_validator(mode="after")
    def _covers_or_has_a_deadline(self) -> Relief:
        if self.cover and self.is_deadline_given:
            raise ValueError(
                "cover = True beside a given deadline, expected one of them: T* cannot be raised and given; set "
                "cover=false or remove deadline_s and deadline_fraction"
            )
        return self

    @property
    def has_deadline(self) -> bool:  # type: ignore[override]
        """Whether it has a round target ``T*``."""
        return self.budget != "none"

    @property
    def is_deadline_given(self) -> bool:
        """Whether ``T*`` is given in the configuration."""
        return self.deadline_s is not None or self.deadline_fraction is not None

    def rounds_needed(self, participation: float) -> int:
        """2 with budgets of groups, since round 1 is the bootstrap, which is the same whatever they are; 1 without."""
        return 2 if self.budget == "groups" else 1

    def full_epochs(self, epochs: int) -> int:
        """The most epochs that a client runs: ``max_epochs``, where that is given."""
        return self.max_epochs or epochs

    def build(self) -> Strategy:
        """Build the strategy."""
        base = self.reduction().weight
        reduction = WeightedSum(weight=partial(role_weight, self, base), bucket=one_bucket)
        return Strategy(
            name=self.name,
            allocate=partial(allocate, self),
            aggregate=partial(aggregate, self, reduction),
            reduction=reduction,
            everybody=partial(is_bootstrap, self),
            insight=Insight(
                deadline_s=partial(target_s, self) if self.has_deadline else None,
                deadline_text="" if self.is_deadline_given or self.cover or self.slots_slowest else _DEADLINE_TEXT,
                warnings=partial(doubts, self),
                rests=partial(fills_nothing, self),
                diagnose=diagnose,
                explain=partial(explain, self),
            ),
        )


def role_weight(config: Relief, base: Weight, group: ParamGroup, client: ClientInfo, task: Assignment) -> float:
    """Weight of a client: 1 or its sample count, times ``|M_n|`` for B (Eq. (4); 1/M cancels) unless diluted (V2)."""
    weight = base(group, client, task)
    by_modalities = group.role == "fusion_b" and (config.mean == "cohort" or task.phase == BOOTSTRAP)
    return weight * len(client.modalities) if by_modalities else weight


def fleet_loads(config: Relief, context: RoundContext) -> dict[ClientId, budget.Load]:
    """Return the budget problem of every client of the fleet, with the planner's seconds.

    ``fill: count``: ``T_o`` is the slowest link's time for the whole model down and up, the same for all;
    ``tau_n`` the compute seconds of ``G_n`` over ``|G_n|``. ``fill: time``: both are the client's own,
    ``T_o = t_n({})`` and ``tau_n = (t_n(G_n) - T_o) / |G_n|``.
    """
    clients, fleet_s = context.fleet.clients, None
    if config.fill == "count":
        fleet_s = max(context.planner.times(c.id, train_everything(context, c)).link_s for c in clients)
    return {c.id: client_load(context, c, fleet_s) for c in clients}


def client_load(context: RoundContext, client: ClientInfo, overhead_s: float | None) -> budget.Load:
    """Return the budget problem of one client; ``overhead_s`` is the fleet's ``T_o``, None: the client's own."""
    accessible = tuple(g.id for g in context.layout.accessible(client.modalities))

    def times(groups: Sequence[GroupId]) -> StageTimes:
        return context.planner.times(client.id, local_task(context, client, groups))

    def seconds(groups: Sequence[GroupId]) -> float:
        return times(groups).busy_s

    own_s = seconds(()) if overhead_s is None else overhead_s
    spent_s = seconds(accessible) - own_s if overhead_s is None else times(accessible).compute_s
    return budget.Load(
        accessible=accessible,
        mandatory=tuple(g.id for g in context.layout.mandatory(client.modalities)),
        overhead_s=own_s,
        tau_s=spent_s / len(accessible),
        seconds=seconds,
    )


def local_task(
    context: RoundContext, client: ClientInfo, groups: Sequence[GroupId], phase: str = "train"
) -> Assignment:
    """Green box: the model comes down, ``S_n`` is trained and goes up (Eq. (8))."""
    task = train_parts(context, client, context.layout.select(groups), context.download(client))
    return replace(task, phase=phase)


def whole_reach(config: Relief, context: RoundContext, client: ClientInfo, phase: str = "train") -> Assignment:
    """Everything within a client's reach, for all epochs that its budget may buy."""
    groups = [g.id for g in context.layout.accessible(client.modalities)]
    return replace(local_task(context, client, groups, phase), epochs=config.full_epochs(context.epochs))


def target_s(config: Relief, context: RoundContext) -> float:
    """Return ``T*`` of the whole fleet in seconds.

    As configured, a share of FedAvg's slowest client, or the least that gives every device its mandatory groups
    (``slots_slowest``: so many groups), raised by ``cover``.
    """
    return budgets(config, context)[1]


def budgets(config: Relief, context: RoundContext) -> tuple[dict[ClientId, budget.Load], float]:
    """Return the budget problem of every client of the fleet, and ``T*``."""
    loads = fleet_loads(config, context)
    return loads, _target_s(config, context, tuple(loads.values()))


def _target_s(config: Relief, context: RoundContext, loads: Sequence[budget.Load]) -> float:
    if config.deadline_s is not None:
        return config.deadline_s
    if config.deadline_fraction is not None:
        fedavg = (context.planner.times(c.id, train_everything(context, c)) for c in context.fleet.clients)
        return config.deadline_fraction * max(times.busy_s for times in fedavg)
    if config.fill == "time":
        return max(load.seconds(load.mandatory) for load in loads)
    least_s = budget.least_target_s(loads, config.slots_slowest or 0)
    return max(least_s, budget.covering_target_s(loads)) if config.cover else least_s


def planned_round_s(config: Relief, context: RoundContext) -> float:
    """Return the planned seconds of the longest round: every client's free slots hold its most expensive groups.

    Under ``fill: count`` it may exceed ``T*``, since groups differ in cost.
    """
    loads, target = budgets(config, context)
    return max(load.seconds(_allocate(config, load, target, budget.by_cost(load)).groups) for load in loads.values())


def allocate(config: Relief, state: ServerState, context: RoundContext) -> tuple[Assignment, ...]:
    """Allocate a round (blue box): the bootstrap trains ``G_n``; later rounds solve each participant's budget."""
    if (first := is_bootstrap(config, state)) or config.budget != "groups":
        phase = BOOTSTRAP if first else "train"
        tasks = tuple(whole_reach(config, context, client, phase) for client in context.participants)
        if config.budget != "epochs":
            return tasks
        limit_s = target_s(config, context)
        return tuple(most_epochs(task, context, limit_s) for task in tasks)
    loads, target = budgets(config, context)
    plans = ((c, plan(config, state, context, c, loads[c.id], target)) for c in context.participants)
    return tuple(local_task(context, client, allocation.groups) for client, allocation in plans)


def is_bootstrap(config: Relief, state: ServerState) -> bool:
    """Whether a state begins the bootstrap (Algorithm 1, line 1): no divergence is known yet by which to rank groups.

    It is the first round of a run whose budgets are of groups; others rank none and have no bootstrap.
    """
    return config.budget == "groups" and D_BAR not in state.tensors


def plan(
    config: Relief, state: ServerState, context: RoundContext, client: ClientInfo, load: budget.Load, target: float
) -> budget.Allocation:
    """Solve the budget of one client for ``S_n`` (blue box), which ``relief-ray explain`` shows."""
    return _allocate(config, load, target, ranking(config.select, state, context, client, load.accessible))


def _allocate(config: Relief, load: budget.Load, target: float, order: Sequence[GroupId]) -> budget.Allocation:
    limit_s = target if config.fill == "time" else math.inf
    return budget.allocate(load, budget.group_budget(load, target), order, config.mandatory, limit_s)


def aggregate(
    config: Relief, reduction: WeightedSum, state: ServerState, reduced: Reduced, tools: ServerTools
) -> ServerState:
    """Orange box: Eqs. (3) and (4), then (5) and (6). Without cohorts (V2) absent members count as zero change."""
    sums = reduced.sums.get("global", {})
    diluted = config.mean == "participants" and not is_bootstrap(config, state)
    total = over_participants(reduction, reduced, tools.fleet) if diluted else over_members
    theta = apply_step(state.models["global"], mean_step(sums, total, tools.layout))
    d = {j: divergence(part) for j, part in sums.items()}
    d_bar = smooth(smoothed(state.tensors, tools.layout), d, config.gamma)
    tensors = {D_BAR: to_tensor(d_bar, tools.layout)}
    if config.select == "oldest":
        tensors[LAST_ROUND] = trained_in(state, reduced.receipts, tools.round, tools.fleet, tools.layout)
    return replace(state, models={"global": theta}, tensors=tensors)


def fills_nothing(config: Relief, context: RoundContext) -> bool:
    """Return whether free slots stay empty on purpose (``mandatory_only``)."""
    return config.select == "none"


def doubts(config: Relief, run: PlannedRun) -> tuple[str, ...]:
    """Warn of a deadline that buys nothing, and of a model without blocks by sensor, of which nothing would be trained.

    ``mandatory_only`` chooses no groups.
    """
    if config.budget == "epochs":
        if config.max_epochs == 1:  # T* decides nothing
            return short_epochs(config, run.context)
        context = run.context
        reaches = (whole_reach(config, context, client) for client in context.fleet.clients)
        return late("T*", target_s(config, context), reaches, context)
    if config.budget == "none" or config.select == "none":
        return ()
    tight = tight_deadline(config, run)
    if not tight or any(group.role == "fusion_a" for group in run.context.layout):
        return tight
    return (
        "nothing is trained after the bootstrap, so F1 and speed say nothing: this backbone has no block of the fusion "
        "by sensor, and no client has a group that it must train; set "
        f"{for_method(config.name, {'cover': True})} or {for_method(config.name, {'slots_slowest': 1})}, or take a "
        "model with encoders by sensor",
    )


def short_epochs(config: Relief, context: RoundContext) -> tuple[str, ...]:
    """Warn that one epoch of so few steps was too little where it was tried (docs/results.md, docs/moment.md)."""
    steps = median(len(batch_sizes(context, client)) for client in context.fleet.clients)
    if steps >= _ENOUGH_STEPS:
        return ()
    return (
        f"one epoch is {steps:g} steps for most clients: with 2 to 16 steps F1 was 8 to 29 points below that of FedAvg "
        f"with two or five epochs; {for_method(config.name, {'max_epochs': 5})} lets a client run as many of five as "
        "end by T*",
    )


def tight_deadline(config: Relief, run: PlannedRun) -> tuple[str, ...]:
    """Warn where ``T*`` leaves no client a group beyond its mandatory ones: such a run looks like any other.

    The bootstrap round trains everything all the same.
    """
    loads, target = budgets(config, run.context)
    needed = {c.id: s for c in run.context.fleet.clients if (s := further_slot_s(config, loads[c.id])) is not None}
    if not needed or min(needed.values()) <= target * (1.0 + SLACK):
        return ()
    least_s, first = min((s, n) for n, s in needed.items())
    meaning = "as strategy.deadline_* has it" if config.is_deadline_given else "the least time for all mandatory blocks"
    return (
        f"T* = {target:.4g} s ({meaning}; clock {run.clock}) leaves no client a group beyond its mandatory fusion "
        "blocks: after the bootstrap nobody trains B, head or encoders. The next group goes to client "
        f"{first} (type {run.context.fleet[first].device}) at T* = {least_s:.4g} s; set "
        f"{for_method(config.name, {'deadline_s': float(rounded_up(least_s))})} or more, "
        f"{for_method(config.name, {'cover': True})}, or another clock to plan with (costs.planning_time)",
    )


def further_slot_s(config: Relief, load: budget.Load) -> float | None:
    """Return the least ``T*`` that grants a group beyond the mandatory ones; None where there is no other.

    Without forced blocks (V2, V3) the mandatory number of slots is free already.
    """
    free = [j for j in load.accessible if j not in load.mandatory]
    if not free:
        return None
    forced = load.mandatory if config.mandatory else ()
    number = len(forced) + 1
    needed_s = load.overhead_s + number * load.tau_s if number > len(load.mandatory) else 0.0
    if config.fill == "time":
        needed_s = max(needed_s, min(load.seconds((*forced, j)) for j in free))
    return needed_s


def rounded_up(seconds: float) -> str:
    """Three significant digits, never below."""
    exact = Decimal(seconds)
    return f"{exact.quantize(Decimal(1).scaleb(exact.adjusted() - 2), rounding=ROUND_CEILING):f}"


def explain(config: Relief, request: ExplainRequest) -> Explanation:
    """Solve one client's allocation again with the functions of the run."""
    context, client = request.context, request.client
    state = diagnosed_state(request.before, context.fleet, context.layout)
    if config.budget == "epochs":
        return epochs_bought(config, request)
    if (first := is_bootstrap(config, state)) or config.budget == "none":
        return without_choice(client, len(context.layout.accessible(client.modalities)), is_bootstrap=first)
    loads, target = budgets(config, context)
    load = loads[client.id]
    return explanation(
        Reasons(
            client=client,
            round=context.round,
            select=config.select,
            fill=config.fill,
            forced=config.mandatory,
            target_s=target,
            set_by=_set_by(config, context, loads, target),
            load=load,
            chosen=plan(config, state, context, client, load, target),
            d_bar=smoothed(state.tensors, context.layout),
            fedavg_s=request.fedavg_s,
        )
    )


def epochs_bought(config: Relief, request: ExplainRequest) -> Explanation:
    """Price one to all epochs of everything within a client's reach."""
    context, client = request.context, request.client
    task, (loads, target) = whole_reach(config, context, client), budgets(config, context)
    tries = [replace(task, epochs=epochs) for epochs in range(1, task.epochs + 1)]
    chosen, planner = most_epochs(task, context, target), context.planner
    return epochs_explained(
        EpochsBought(
            client=client,
            target_s=target,
            set_by=_set_by(config, context, loads, target),
            seconds=tuple(planner.times(client.id, trial).busy_s for trial in tries),
            chosen=chosen.epochs,
            groups=tuple(chosen.train),
            nbytes=planner.nbytes(client.id, chosen),
            whole_nbytes=planner.nbytes(client.id, train_everything(context, client)),
            fedavg_s=request.fedavg_s,
        )
    )


def _set_by(
    config: Relief, context: RoundContext, loads: Mapping[ClientId, budget.Load], target: float
) -> ClientInfo | None:
    """Return the client whose groups take longest, which sets ``T*``; None where it is given or raised by ``cover``."""

    def needed_s(client: ClientInfo) -> float:
        load = loads[client.id]
        if config.fill == "time":
            return load.seconds(load.mandatory)
        return load.overhead_s + budget.least_slots(load, config.slots_slowest or 0) * load.tau_s

    slowest = max(context.fleet.clients, key=needed_s)
    is_raised = config.cover and target > needed_s(slowest) * (1.0 + SLACK)
    return None if config.is_deadline_given or is_raised else slowest


# The paper's V0, RELIEF+ (ours), the paper's V1 to V3, and three of these with one field changed (ours).
PRESETS = {
    "relief": Preset(Relief()),
    "relief_plus": Preset(
        Relief(budget="epochs", max_epochs=1, mean="participants"),
        title="RELIEF+",
        kind="RELIEF, ours",
        about="one epoch of all groups a client can reach, averaged over everybody; with transfer.download=reachable",
        search={},
    ),
    "v1": Preset(
        Relief(budget="none"),
        title="RELIEF without elastic training (V1)",
        kind="ablation",
        about="RELIEF without elastic training: all groups a client can reach, every round",
        search={},
    ),
    "v2": Preset(
        Relief(mean="participants", mandatory=False),
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
        Relief(mean="participants"),
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
