"""Guards the functions of a user's own method: what each returns is checked where it is returned, and named.

A wrong value would otherwise fail later, in this project's code or in the next round. Functions of this project are
not wrapped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import TypeVar

from torch import Tensor

from relief_ray.core.client import ClientContext, ClientProgram, LocalStep
from relief_ray.core.extra_modules import ExtraModule
from relief_ray.core.federated import Diagnostics, ExplainRequest, PlannedRun, RoundContext, ServerTools, Strategy
from relief_ray.core.groups import GroupLayout, ParamGroup, Params
from relief_ray.core.messages import (
    Assignment,
    ClientInfo,
    EvalPlan,
    Fleet,
    Reduced,
    Reduction,
    ServerState,
    Update,
    WeightedSum,
)
from relief_ray.core.protocols import Explanation, ModelGroups
from relief_ray.core.streams import Streams
from relief_ray.plugins import contract as returned
from relief_ray.plugins.blame import called, require, users_function

T = TypeVar("T")
_Function = Callable[..., object]


def guarded(strategy: Strategy) -> Strategy:
    """The same method; whatever a function of the user's own returns is checked.

    A check that fails raises ``UserCodeFailed``: function, file and line, what it returned, what was expected.
    """
    return replace(
        strategy,
        client=_client(strategy.client),
        reduction=_reduction(strategy.reduction),
        **{name: _wrapped(guard, getattr(strategy, name)) for name, guard in _SERVER.items()},
    )


def _wrapped(guard: _Function, function: T) -> T:
    """The function behind its guard, where it is a user's; functions of ours, and None, as they are."""
    if not callable(function) or users_function(function) is None:
        return function
    return partial(guard, function)  # type: ignore[return-value]


def _client(client: ClientProgram) -> ClientProgram:
    return replace(client, **{name: _wrapped(guard, getattr(client, name)) for name, guard in _CLIENT.items()})


def _reduction(reduction: Reduction) -> Reduction:
    if not isinstance(reduction, WeightedSum):
        return reduction
    return WeightedSum(weight=_wrapped(_weight, reduction.weight), bucket=_wrapped(_bucket, reduction.bucket))


def _require(function: _Function, step: str, check: Callable[..., str], *arguments: object) -> None:
    """Raise what a check of ``relief_ray.plugins.contract`` finds, or that it cannot judge the value, as the user's.

    Raises:
        UserCodeFailed: there is a fault.
    """
    require(function, step, f"what it is declared as, {_DECLARED[step]}", check, *arguments)


# The server's half ----------------------------------------------------------------------------------------------------


def _allocate(function: _Function, state: ServerState, context: RoundContext) -> tuple[Assignment, ...]:
    tasks = called(function, "allocate", state, context)
    participants = [c.id for c in context.participants]
    _require(function, "allocate", returned.tasks_fault, tasks, state.models.keys(), context.layout, participants)
    return tuple(tasks)  # type: ignore[arg-type]


def _state(function: _Function, step: str, state: object, layout: GroupLayout) -> ServerState:
    _require(function, step, returned.kind_fault, state, ServerState)
    assert isinstance(state, ServerState)
    _require(function, step, returned.state_fault, state, layout)
    _require(function, step, returned.not_finite_fault, state)
    return state


def _init(function: _Function, layout: GroupLayout, fleet: Fleet, streams: Streams, start: Params) -> ServerState:
    return _state(function, "init", called(function, "init", layout, fleet, streams, start), layout)


def _aggregate(function: _Function, state: ServerState, reduced: Reduced, tools: ServerTools) -> ServerState:
    return _state(function, "aggregate", called(function, "aggregate", state, reduced, tools), tools.layout)


def _evaluate(function: _Function, state: ServerState, fleet: Fleet) -> EvalPlan:
    plan = called(function, "evaluate", state, fleet)
    _require(function, "evaluate", returned.kind_fault, plan, EvalPlan)
    assert isinstance(plan, EvalPlan)
    _require(function, "evaluate", returned.plan_fault, plan, state.models, fleet)
    return plan


def _adapt(function: _Function, layout: GroupLayout, fleet: Fleet) -> tuple[ExtraModule, ...]:
    modules = called(function, "adapt", layout, fleet)
    _require(function, "adapt", returned.modules_fault, modules)
    return tuple(modules)  # type: ignore[arg-type]


def _averaged(
    function: _Function, state: ServerState, reduced: Reduced, layout: GroupLayout, fleet: Fleet
) -> ModelGroups:
    groups = called(function, "averaged", state, reduced, layout, fleet)
    _require(function, "averaged", returned.kind_fault, groups, Mapping)
    assert isinstance(groups, Mapping)
    _require(function, "averaged", returned.averaged_fault, groups, state.models.keys(), layout)
    return groups


def _identities(function: _Function, state: ServerState) -> Mapping[str, str]:
    names = called(function, "identities", state)
    _require(function, "identities", returned.identities_fault, names, state.models.keys())
    assert isinstance(names, Mapping)
    return names


def _diagnose(function: _Function, state: ServerState, layout: GroupLayout) -> Diagnostics:
    tables = called(function, "diagnose", state, layout)
    _require(function, "diagnose", returned.kind_fault, tables, Mapping)
    assert isinstance(tables, Mapping)
    _require(function, "diagnose", returned.tables_fault, tables)
    return tables


def _rests(function: _Function, context: RoundContext) -> bool:
    rests = called(function, "rests", context)
    _require(function, "rests", returned.kind_fault, rests, bool)
    return bool(rests)


def _warnings(function: _Function, run: PlannedRun) -> tuple[str, ...]:
    lines = called(function, "warnings", run)
    _require(function, "warnings", returned.sentences_fault, lines)
    return tuple(lines)  # type: ignore[arg-type]


def _deadline_s(function: _Function, context: RoundContext) -> float:
    seconds = called(function, "deadline_s", context)
    _require(function, "deadline_s", returned.deadline_fault, seconds)
    return float(seconds)  # type: ignore[arg-type]


def _explain(function: _Function, request: ExplainRequest) -> Explanation:
    explanation = called(function, "explain", request)
    _require(function, "explain", returned.kind_fault, explanation, Explanation)
    assert isinstance(explanation, Explanation)
    return explanation


def _weight(function: _Function, group: ParamGroup, client: ClientInfo, task: Assignment) -> float:
    weight = called(function, "reduction.weight", group, client, task)
    _require(function, "reduction.weight", returned.weight_fault, weight, client.id)
    return float(weight)  # type: ignore[arg-type]


def _bucket(function: _Function, task: Assignment) -> str:
    bucket = called(function, "reduction.bucket", task)
    _require(function, "reduction.bucket", returned.kind_fault, bucket, str)
    return str(bucket)


# The client's half ----------------------------------------------------------------------------------------------------


def _refine(function: _Function, context: ClientContext, task: Assignment) -> Assignment:
    refined = called(function, "client.refine", context, task)
    _require(function, "client.refine", returned.kind_fault, refined, Assignment)
    assert isinstance(refined, Assignment)
    _require(function, "client.refine", returned.refined_fault, refined, task, context.layout)
    return refined


def _objective(function: _Function, step: LocalStep) -> Tensor:
    loss = called(function, "client.objective", step)
    _require(function, "client.objective", returned.kind_fault, loss, Tensor)
    assert isinstance(loss, Tensor)
    _require(function, "client.objective", returned.loss_fault, loss, step)
    return loss


def _observe(function: _Function, step: LocalStep) -> Mapping[str, Tensor]:
    rows = called(function, "client.observe", step)
    _require(function, "client.observe", returned.kind_fault, rows, Mapping)
    assert isinstance(rows, Mapping)
    _require(function, "client.observe", returned.observed_fault, rows)
    return rows


def _after(function: _Function, context: ClientContext, made: Update) -> Update:
    was_finite = not returned.values_fault(made)
    sent = called(function, "client.after", context, made)
    _require(function, "client.after", returned.kind_fault, sent, Update)
    assert isinstance(sent, Update)
    _require(function, "client.after", returned.sent_fault, sent, made, context.layout)
    if was_finite:
        _require(function, "client.after", returned.sent_not_finite_fault, sent)
    return sent


# What each function is declared as, by the name that a fault has for it.
_DECLARED: Mapping[str, str] = {
    f"{prefix}{each.name}": str(each.type)
    for prefix, kind in (("", Strategy), ("client.", ClientProgram), ("reduction.", WeightedSum))
    for each in fields(kind)
}
_CLIENT: Mapping[str, _Function] = {
    "refine": _refine,
    "objective": _objective,
    "observe": _observe,
    "after": _after,
}
_SERVER: Mapping[str, _Function] = {
    "allocate": _allocate,
    "aggregate": _aggregate,
    "init": _init,
    "evaluate": _evaluate,
    "adapt": _adapt,
    "averaged": _averaged,
    "identities": _identities,
    "diagnose": _diagnose,
    "rests": _rests,
    "warnings": _warnings,
    "deadline_s": _deadline_s,
    "explain": _explain,
}
