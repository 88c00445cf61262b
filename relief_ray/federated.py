"""The round: Algorithm 1 as one short function, and the seams it is cut along.

A method is a ``Strategy``: one pure function per coloured box of Algorithm 1. All that can differ is a value passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter

from torch import Tensor
from torch.nn import functional

from relief_ray.extra_modules import ExtraModule
from relief_ray.groups import GroupLayout, Params, all_finite
from relief_ray.messages import (
    Assignment,
    ClientInfo,
    ClientState,
    EvalPlan,
    EvalTarget,
    Fleet,
    Receipt,
    Reduced,
    Reduction,
    RoundCost,
    ServerState,
    Trained,
    Update,
)
from relief_ray.protocols import Accountant, Executor, Network, Planner, StateStore, Windows
from relief_ray.streams import Streams


class RoundVoid(RuntimeError):
    """No usable update came back: nothing may be committed for this round."""


def no_network() -> Network:
    """Who made this context gave no backbone to compute with."""
    raise NotImplementedError("this round has no backbone on the server; set RoundContext.build")


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundContext:
    """What a strategy may look at when it allocates: round 1 .. ``num_rounds``, ``participants`` in client order."""

    round: int
    num_rounds: int
    fleet: Fleet
    layout: GroupLayout
    participants: tuple[ClientInfo, ...]
    planner: Planner
    streams: Streams
    epochs: int
    build: Callable[[], Network] = no_network
    public: Windows | None = None
    batch_size: int = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Probed:
    """What a probe saw of each group: one optimizer step ``w' - w`` on one batch, and the gradient at ``w'``."""

    step: Params
    gradient: Params


def no_probe(trial: Assignment) -> Probed:
    """Who made this context has no data to probe on."""
    raise NotImplementedError("this context cannot probe; only a client in training can")


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientContext:
    """What a client's program may look at: the model it received (``start``) and its committed personal ``state``.

    ``probe`` takes one optimizer step of a trial on one batch and takes it back; its cost is charged.
    """

    info: ClientInfo
    round: int
    layout: GroupLayout
    start: Params
    state: ClientState
    streams: Streams
    planner: Planner | None = None
    probe: Callable[[Assignment], Probed] = no_probe


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalStep:
    """A mini-batch: ``logits`` (b, classes), ``taps`` by stage (b, ...; absent sensors' too), ``params``, ``start``."""

    logits: Tensor
    labels: Tensor
    taps: Mapping[str, Tensor]
    params: Params
    start: Params
    args: Mapping[str, float]


def keep_assignment(context: ClientContext, assignment: Assignment) -> Assignment:
    """The client does what the server asked."""
    return assignment


def task_loss(step: LocalStep) -> Tensor:
    """Cross-entropy of Eq. (2), the mean over the batch."""
    return functional.cross_entropy(step.logits, step.labels)


def observe_nothing(step: LocalStep) -> Mapping[str, Tensor]:
    """The client reports no statistics."""
    return {}


def send_all(context: ClientContext, update: Update) -> Update:
    """The client reports what it learned, unchanged."""
    return update


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientProgram:
    """The green box: what runs on the device. Module-level functions or partials of them, so that it travels.

    ``observe``: rows about each batch of the last epoch, before its step; together they are ``Receipt.stats``;
    ``is_mean``: ``objective`` is a mean over windows plus terms of parameters alone, so that micro-batches' add up.
    """

    refine: Callable[[ClientContext, Assignment], Assignment] = keep_assignment
    objective: Callable[[LocalStep], Tensor] = task_loss
    observe: Callable[[LocalStep], Mapping[str, Tensor]] = observe_nothing
    after: Callable[[ClientContext, Update], Update] = send_all
    is_mean: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerTools:
    """What an aggregation may use besides the updates: ``build`` makes a backbone, ``public`` has windows for it."""

    round: int
    fleet: Fleet
    layout: GroupLayout
    participants: tuple[ClientInfo, ...]
    streams: Streams
    build: Callable[[], Network] = no_network
    public: Windows | None = None


def server_tools(context: RoundContext) -> ServerTools:
    """The part of ``context`` that the server's side may use."""
    return ServerTools(
        round=context.round,
        fleet=context.fleet,
        layout=context.layout,
        participants=context.participants,
        streams=context.streams,
        build=context.build,
        public=context.public,
    )


def single_model(layout: GroupLayout, fleet: Fleet, streams: Streams, start: Params) -> ServerState:
    """One global model, nothing else."""
    return ServerState(models={"global": start})


def canonical_global(state: ServerState, fleet: Fleet) -> EvalPlan:
    """The global model with all modalities."""
    return EvalPlan(canonical=EvalTarget(label="global"))


def nothing_added(layout: GroupLayout, fleet: Fleet) -> tuple[ExtraModule, ...]:
    """The backbone as it is."""
    return ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Strategy:
    """A federated method, box by box.

    ``adapt`` names what it adds to a backbone of that layout (exits, experts); ``bootstrap`` says that round 0 is a
    full-training round (Algorithm 1, line 1); ``pooled`` that there is one client with everybody's data (``central``).
    """

    name: str
    allocate: Callable[[ServerState, RoundContext], tuple[Assignment, ...]]
    aggregate: Callable[[ServerState, Reduced, ServerTools], ServerState]
    reduction: Reduction
    init: Callable[[GroupLayout, Fleet, Streams, Params], ServerState] = single_model
    client: ClientProgram = field(default_factory=ClientProgram)
    evaluate: Callable[[ServerState, Fleet], EvalPlan] = canonical_global
    adapt: Callable[[GroupLayout, Fleet], tuple[ExtraModule, ...]] = nothing_added
    bootstrap: bool = False
    pooled: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundResult:
    """A finished round: the next state and what it took.

    ``charged``: the bill, which differs from ``trained.worked`` under ``table`` accounting; ``server_s``: real seconds.
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
    executor: Executor,
    store: StateStore,
    accountant: Accountant,
) -> RoundResult:
    """One round of Algorithm 1: allocate (blue), train (green), check, aggregate (orange), account.

    Raises:
        RoundVoid: no client returned a usable update.
        FloatingPointError: the aggregated model is not finite; the old state stays valid.
    """
    tasks = strategy.allocate(state, context)
    trained = executor.train(context.round, state.models, tasks, {t.client: store.load(t.client) for t in tasks})
    if tasks and not trained.reduced.receipts:
        raise RoundVoid(f"round {context.round}: all {len(tasks)} clients failed: {dict(trained.rejected)}")
    began = perf_counter()
    after = strategy.aggregate(state, trained.reduced, server_tools(context))
    server_s = perf_counter() - began
    check_finite(after)
    for client, personal in trained.states.items():
        store.stage(client, personal)
    charged = accountant.charged(trained.worked, context.participants)
    costs = accountant.cost(charged, context.fleet, server_s)
    return RoundResult(state=after, tasks=tasks, trained=trained, charged=charged, costs=costs, server_s=server_s)


def check_finite(state: ServerState) -> None:
    """Refuses a model with NaN or infinity before it is committed."""
    for name, params in state.models.items():
        if wrong := next((j for j, theta in params.items() if not all_finite(theta)), None):
            raise FloatingPointError(f"model {name!r}: group {wrong!r} is not finite after aggregation; not committed")
