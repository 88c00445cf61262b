"""Bounds that every table shows: the worth of federation, of the whole fleet and of waiting.

``central``: one client with everybody's data; ``local``: no federation; ``full_only``: FedAvg over the clients that own
all modalities; ``drop_slow``: FedAvg over the clients that finish everything within RELIEF's round.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

from relief_ray.core.federated import RoundContext, ServerTools, Strategy
from relief_ray.core.groups import WHOLE
from relief_ray.core.messages import Assignment, EvalPlan, Fleet, Reduced, ServerState
from relief_ray.strategies.common import Allocate, Preset, StrategyConfig, own_target
from relief_ray.strategies.fedavg import FedAvg
from relief_ray.strategies.relief import Relief
from relief_ray.strategies.relief.strategy import planned_round_s
from relief_ray.support.errors import UserError
from relief_ray.support.frozen import ReadWith

# Of bounds that average nothing: there is no mean that a client could weigh in.
_NO_MEAN: ReadWith = (("name", ("full_only", "drop_slow"), ("weighting",)),)


class Central(StrategyConfig):
    """Upper bound: the pooled training data on one device with all sensors."""

    title = "central"
    kind = "bound"
    about = "one client with everybody's data and all sensors"
    pooled = True
    read_with = _NO_MEAN
    name: Literal["central"] = "central"

    def build(self) -> Strategy:
        """Build the strategy: FedAvg of one pooled client."""
        return replace(FedAvg().build(), name=self.name)


class Local(StrategyConfig):
    """No federation: every client keeps its own model; nothing is sent."""

    title = "local"
    kind = "bound"
    about = "no federation: each client keeps a model of its own"
    only_whole = "each client keeps the whole model"
    no_average = "nothing is sent, every client keeps its own model"
    read_with = _NO_MEAN
    name: Literal["local"] = "local"

    def build(self) -> Strategy:
        """Build the strategy."""
        return replace(
            FedAvg().build(),
            name=self.name,
            allocate=stay_home,
            aggregate=unchanged,
            evaluate=own_models,
        )


def stay_home(state: ServerState, context: RoundContext) -> tuple[Assignment, ...]:
    """Train and keep everything; nothing is sent."""
    everything = context.layout.select()
    return tuple(
        Assignment(client=c.id, down={}, train=everything, up={}, keep=everything, epochs=context.epochs)
        for c in context.participants
    )


def unchanged(state: ServerState, reduced: Reduced, tools: ServerTools) -> ServerState:
    """Keep the server's model unchanged, and note which groups clients keep."""
    return replace(state, facts={**state.facts, "kept": list(tools.layout.ids)})


def own_models(state: ServerState, fleet: Fleet) -> EvalPlan:
    """Evaluate each client's own model with its own sensors; there is no canonical model."""
    kept = state.facts.get("kept", [])
    keep = dict.fromkeys([j for j in kept if isinstance(j, str)], WHOLE) if isinstance(kept, list) else {}
    return EvalPlan(canonical=None, clients=tuple(replace(own_target(c), keep=keep) for c in fleet.clients))


class FullOnly(StrategyConfig):
    """FedAvg without clients that lack a sensor."""

    title = "full_only"
    kind = "bound"
    about = "FedAvg over the clients that own all sensors"
    name: Literal["full_only"] = "full_only"

    def build(self) -> Strategy:
        """Build the strategy."""
        plain = FedAvg(weighting=self.weighting).build()
        return replace(plain, name=self.name, allocate=partial(allocate_full, plain.allocate))


def allocate_full(allocate: Allocate, state: ServerState, context: RoundContext) -> tuple[Assignment, ...]:
    """Let only clients with all modalities take part.

    Raises:
        UserError: there is none in this fleet.
    """
    full = {c.id for c in context.fleet.clients if set(c.modalities) == set(context.fleet.modalities)}
    if not full:
        raise UserError(
            "strategy full_only: no client of this fleet owns all modalities; use another strategy or fleet.types"
        )
    return tuple(task for task in allocate(state, context) if task.client in full)


class DropSlow(StrategyConfig):
    """FedAvg that does not wait: clients that need longer for everything than RELIEF's round are left out."""

    title = "drop_slow"
    kind = "bound"
    about = "FedAvg over the clients that finish everything within RELIEF's round"
    name: Literal["drop_slow"] = "drop_slow"

    def build(self) -> Strategy:
        """Build the strategy."""
        plain = FedAvg(weighting=self.weighting).build()
        return replace(plain, name=self.name, allocate=partial(allocate_fast, plain.allocate, Relief()))


def allocate_fast(
    allocate: Allocate, relief: Relief, state: ServerState, context: RoundContext
) -> tuple[Assignment, ...]:
    """Choose the participants whose full training fits into V0's planned round, before anything is sent.

    The planned round (``planned_round_s``) may exceed T*, since groups differ in cost. Where no participant's full
    training fits, the deadline is the fastest one's time.
    """
    tasks = allocate(state, context)
    seconds = [context.planner.times(t.client, t).busy_s for t in tasks]
    deadline = max(planned_round_s(relief, context), min(seconds))
    return tuple(t for t, s in zip(tasks, seconds, strict=True) if s <= deadline)


PRESETS = {
    "central": Preset(Central()),
    "local": Preset(Local()),
    "full_only": Preset(FullOnly()),
    "drop_slow": Preset(DropSlow()),
}
