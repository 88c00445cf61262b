"""The round: Algorithm 1 as one short function, and the interface of a federated method.

A method is a ``Strategy``: one pure function per coloured box of Algorithm 1. All that can differ is a value passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter

from relief_ray.core.client import ClientProgram
from relief_ray.core.extra_modules import ExtraModule
from relief_ray.core.groups import GroupLayout, Params, Selection, all_finite
from relief_ray.core.messages import (
    Assignment,
    ClientId,
    ClientInfo,
    EvalPlan,
    EvalTarget,
    Fleet,
    Models,
    Receipt,
    Reduced,
    Reduction,
    RoundCost,
    ServerState,
    Trained,
)
from relief_ray.core.protocols import (
    Accountant,
    Explanation,
    ModelGroups,
    Network,
    Planner,
    ServerStep,
    StateStore,
    Trains,
    Windows,
    as_aggregated,
    by_name,
    sent_groups,
)
from relief_ray.core.streams import Streams
from relief_ray.support.errors import LeftOut


class RoundVoid(RuntimeError):
    """Raised where too few usable updates came back: nothing may be committed for this round.

    Attributes:
        rejected: clients whose update is missing or was not used, with the reasons.
    """

    def __init__(self, message: str, *, rejected: Mapping[ClientId, LeftOut] | None = None) -> None:
        """``message`` names round, clients and reasons."""
        super().__init__(message)
        self.rejected = dict(rejected or {})


def _as_they_are(models: Models) -> Models:
    """Return the models: they travel as float32."""
    return models


def _no_network() -> Network:
    """Default of ``build``: raises, because no server-side backbone was configured."""
    raise NotImplementedError("this round has no backbone on the server; set RoundContext.build")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerTools:
    """Input of ``Strategy.aggregate`` besides state and updates.

    Attributes:
        round: number of the round, 1 .. ``num_rounds``.
        fleet: all clients.
        layout: parameter groups of the model.
        participants: clients of this round, in client order.
        streams: random generators by purpose, round and client.
        build: makes the backbone for the server's own computations.
        public: windows without labels for them; None where there are none.
        received: ``D(theta)``, the server's models as clients decode them: what an update is a change of.
    """

    round: int
    fleet: Fleet
    layout: GroupLayout
    participants: tuple[ClientInfo, ...]
    streams: Streams
    build: Callable[[], Network] = _no_network
    public: Windows | None = None
    received: Callable[[Models], Models] = _as_they_are


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundContext(ServerTools):
    """Input of ``Strategy.allocate`` besides the server's state.

    Attributes:
        num_rounds: rounds of the whole run, R.
        planner: time model that predicts a task's seconds.
        epochs: local epochs as configured, E.
        batch_size: windows per optimizer step.
        reachable: whether a client receives what its sensors reach alone.
        momentum: of the clients' SGD; 0 with other optimizers.
    """

    num_rounds: int
    planner: Planner
    epochs: int
    batch_size: int = 32
    reachable: bool = False
    momentum: float = 0.0

    def download(self, client: ClientInfo) -> Selection:
        """Groups that come down to a client: all, or with ``transfer.download=reachable`` those within its reach."""
        return self.layout.select(self.layout.accessible(client.modalities) if self.reachable else None)


def single_model(layout: GroupLayout, fleet: Fleet, streams: Streams, start: Params) -> ServerState:
    """Begin with one global model and nothing else."""
    return ServerState(models={"global": start})


def _canonical_global(state: ServerState, fleet: Fleet) -> EvalPlan:
    """Evaluate the global model with all modalities."""
    return EvalPlan(canonical=EvalTarget(label="global"))


def _as_drawn(state: ServerState) -> bool:
    """Return False: the participants of every round are drawn."""
    return False


def nothing_added(layout: GroupLayout, fleet: Fleet) -> tuple[ExtraModule, ...]:
    """Add no modules to the backbone."""
    return ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRun:
    """A run before its first round, as a method may judge it.

    Attributes:
        context: round 1 with every client as a participant.
        clock: name of the time model behind ``context.planner``.
        participation: share of the clients that takes part in each round, in (0, 1].
    """

    context: RoundContext
    clock: str
    participation: float


def _always_trains(context: RoundContext) -> bool:
    """Return False: no round leaves groups untrained on purpose."""
    return False


def _no_warnings(run: PlannedRun) -> tuple[str, ...]:
    """Find no fault with any run."""
    return ()


# Numbers about the server's state that a round's record keeps: table -> row -> value.
Diagnostics = Mapping[str, Mapping[str, float]]


def _no_diagnostics(state: ServerState, layout: GroupLayout) -> Diagnostics:
    """Record nothing of the state."""
    return {}


@dataclass(frozen=True, kw_only=True, slots=True)
class ExplainRequest:
    """Question about one client's task in one round, as a method is asked it after the run.

    Attributes:
        context: the round, with the participants that the ledger names (all clients in a round that is to come).
        client: the client.
        before: ``Insight.diagnose`` of the state that the round began with, from the ledger; None before the first.
        fedavg_s: seconds of the client's round under FedAvg, by the clock of ``context.planner``.
    """

    context: RoundContext
    client: ClientInfo
    before: Diagnostics | None
    fedavg_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Insight:
    """What a method tells people and records about a run; no result depends on it.

    Attributes:
        deadline_s: round target ``T*`` in seconds of a method that has one; it is recorded with every round.
        deadline_text: what the target means, for `relief-ray fleet show`; empty: it is called the method's deadline.
        warnings: judges a run before it begins (a setting that leaves the method without effect); ``run.json`` keeps
            the sentences.
        rests: whether the method leaves groups untrained on purpose in a round (a first phase); otherwise a group that
            participants could train and none has for five rounds is a warning.
        diagnose: numbers about a state that the round's record keeps, e.g. a smoothed divergence by group.
        explain: reasons for one client's task, for `relief-ray explain`; None: the method has none to give.
    """

    deadline_s: Callable[[RoundContext], float] | None = None
    deadline_text: str = ""
    warnings: Callable[[PlannedRun], tuple[str, ...]] = _no_warnings
    rests: Callable[[RoundContext], bool] = _always_trains
    diagnose: Callable[[ServerState, GroupLayout], Diagnostics] = _no_diagnostics
    explain: Callable[[ExplainRequest], Explanation] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Averaging:
    """What ``server.optimizer`` and ``evaluation.average`` may do with a method's models.

    Attributes:
        averaged: groups of each server's model whose change in this round is a mean of updates: the pseudo-gradients of
            ``server.optimizer``. Other groups keep their values and moments.
        identities: what each of the server's models stands for, e.g. which clients of a cluster that is formed anew in
            every round: models are averaged over rounds (``evaluation.average``) as long as this stays the same.
    """

    averaged: Callable[[ServerState, Reduced, GroupLayout, Fleet], ModelGroups] = sent_groups
    identities: Callable[[ServerState], Mapping[str, str]] = by_name


@dataclass(frozen=True, kw_only=True, slots=True)
class Strategy:
    """A federated method: one function per box of Algorithm 1, and facts about the method.

    Facts that are asked before a method is built (``StrategyConfig``) are not repeated here.

    Attributes:
        name: name of the method.
        allocate: tasks of a round's participants (blue).
        aggregate: next state from the reduced updates (orange).
        reduction: how updates are brought to ``aggregate``: added up by weights, or one by one.
        init: state before the first round.
        client: the client's half (green).
        evaluate: models to evaluate in a state.
        everybody: whether all clients take part in the round that begins with a state, whatever ``participation`` is.
        adapt: modules that it adds to a backbone of that layout, e.g. early exits or experts.
        insight: what it tells people and records.
        averaging: what an optimizer on the server and a mean over rounds may do with its models.
    """

    name: str
    allocate: Callable[[ServerState, RoundContext], tuple[Assignment, ...]]
    aggregate: Callable[[ServerState, Reduced, ServerTools], ServerState]
    reduction: Reduction
    init: Callable[[GroupLayout, Fleet, Streams, Params], ServerState] = single_model
    client: ClientProgram = field(default_factory=ClientProgram)
    evaluate: Callable[[ServerState, Fleet], EvalPlan] = _canonical_global
    everybody: Callable[[ServerState], bool] = _as_drawn
    adapt: Callable[[GroupLayout, Fleet], tuple[ExtraModule, ...]] = nothing_added
    insight: Insight = Insight()
    averaging: Averaging = Averaging()


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundResult:
    """A finished round.

    Attributes:
        state: the server's next state.
        tasks: tasks as allocated.
        trained: outcome of the local training.
        charged: receipts that costs are made of; other than ``trained.worked`` under ``table`` accounting.
        costs: simulated time and energy by time model.
        server_s: real seconds of the aggregation.
    """

    state: ServerState
    tasks: tuple[Assignment, ...]
    trained: Trained
    charged: tuple[Receipt, ...]
    costs: Mapping[str, RoundCost]
    server_s: float = 0.0


def run_round(
    strategy: Strategy,
    state: ServerState,
    context: RoundContext,
    executor: Trains,
    store: StateStore,
    accountant: Accountant,
    server_step: ServerStep = as_aggregated,
) -> RoundResult:
    """Run one round of Algorithm 1: allocate (blue), train (green), check, aggregate (orange), account.

    ``server_step``: an optimizer's step in place of the aggregated one (``server.optimizer``).

    Raises:
        RoundVoid: no client returned a usable update.
        FloatingPointError: the aggregated model is not finite, or beyond its format; the old state stays valid.
    """
    tasks = strategy.allocate(state, context) if context.participants else ()
    if not tasks:  # nobody is there, or the method asks none of those who are: the round passes without a step
        idle = Trained(reduced=Reduced(sums={}, receipts=()), states={})
        costs = accountant.cost((), context.fleet)
        return RoundResult(state=state, tasks=(), trained=idle, charged=(), costs=costs)
    states = {t.client: store.load(t.client) for t in tasks}
    trained = executor.train(context.round, context.received(state.models), tasks, states)
    if not trained.reduced.receipts:
        raise RoundVoid(
            f"round {context.round}: all {len(tasks)} clients failed: {dict(trained.rejected)}",
            rejected=trained.rejected,
        )
    began = perf_counter()
    after = strategy.aggregate(state, trained.reduced.under(strategy.reduction), context)
    after = server_step(
        state, after, strategy.averaging.averaged(state, trained.reduced, context.layout, context.fleet)
    )
    server_s = round(perf_counter() - began, 6)  # costs are of the number that is recorded
    check_finite(after)
    context.received(after.models)
    for client, personal in trained.states.items():
        store.stage(client, personal)
    charged = accountant.charged(trained.worked, context.participants)
    costs = accountant.cost(charged, context.fleet, server_s)
    return RoundResult(state=after, tasks=tasks, trained=trained, charged=charged, costs=costs, server_s=server_s)


def check_finite(state: ServerState) -> None:
    """Refuse a model with NaN or infinity.

    Raises:
        FloatingPointError: model and group are named.
    """
    if wrong := first_not_finite(state):
        raise FloatingPointError(f"{wrong} is not finite after aggregation; not committed; lower training.lr")


def first_not_finite(state: ServerState) -> str:
    """Name the first model and group with NaN or infinity; empty: there is none."""
    groups = ((name, j, theta) for name, params in state.models.items() for j, theta in params.items())
    return next((f"model {name!r}: group {j!r}" for name, j, theta in groups if not all_finite(theta)), "")
