"""Guards the functions of a user's own method: what each returns is checked where it is returned, and named.

A wrong value would otherwise fail later, in this project's code or in the next round. Functions of this project are
not wrapped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from relief_ray import returned
from relief_ray.client import ClientContext, ClientProgram, LocalStep
from relief_ray.errors import shown
from relief_ray.extra_modules import Classifier, Connector, Experts, ExtraModule
from relief_ray.federated import Diagnostics, ExplainRequest, PlannedRun, RoundContext, ServerTools, Strategy
from relief_ray.groups import GroupLayout, ParamGroup, Params
from relief_ray.messages import (
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
from relief_ray.plugins import fault_in, users_function
from relief_ray.protocols import Explanation, ModelGroups
from relief_ray.streams import Streams

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


def _call(function: Callable[..., T], step: str, *arguments: object) -> T:
    """Call a user's function; one that ends the process instead of returning is named.

    Raises:
        UserCodeFailed: it called ``sys.exit``.
    """
    try:
        return function(*arguments)
    except SystemExit as error:
        raise fault_in(
            function, f"{step} ended the process (sys.exit({error.code!r})), expected that it returns"
        ) from None


def _require(function: _Function, step: str, fault: str) -> None:
    """Raise a fault as the user's.

    Raises:
        UserCodeFailed: there is one.
    """
    if fault:
        raise fault_in(function, f"{step}{'' if fault.startswith('returned') else ':'} {fault}")


# The server's half ----------------------------------------------------------------------------------------------------


def _allocate(function: _Function, state: ServerState, context: RoundContext) -> tuple[Assignment, ...]:
    tasks = _call(function, "allocate", state, context)
    participants = [c.id for c in context.participants]
    _require(function, "allocate", returned.tasks_fault(tasks, state.models.keys(), context.layout, participants))
    return tuple(tasks)  # type: ignore[arg-type]


def _state(function: _Function, step: str, state: object, layout: GroupLayout) -> ServerState:
    _require(function, step, returned.kind_fault(state, ServerState))
    assert isinstance(state, ServerState)
    _require(function, step, returned.state_fault(state, layout))
    if group := returned.not_finite(state):
        raise fault_in(function, f"{step}: {group} has NaN or infinity, expected finite values; its inputs were finite")
    return state


def _init(function: _Function, layout: GroupLayout, fleet: Fleet, streams: Streams, start: Params) -> ServerState:
    return _state(function, "init", _call(function, "init", layout, fleet, streams, start), layout)


def _aggregate(function: _Function, state: ServerState, reduced: Reduced, tools: ServerTools) -> ServerState:
    return _state(function, "aggregate", _call(function, "aggregate", state, reduced, tools), tools.layout)


def _evaluate(function: _Function, state: ServerState, fleet: Fleet) -> EvalPlan:
    plan = _call(function, "evaluate", state, fleet)
    _require(function, "evaluate", returned.kind_fault(plan, EvalPlan))
    assert isinstance(plan, EvalPlan)
    _require(function, "evaluate", returned.plan_fault(plan, state.models.keys(), None, fleet))
    return plan


def _adapt(function: _Function, layout: GroupLayout, fleet: Fleet) -> tuple[ExtraModule, ...]:
    modules = _call(function, "adapt", layout, fleet)
    kinds = (Classifier, Experts, Connector)
    if not isinstance(modules, list | tuple) or not all(isinstance(m, kinds) for m in modules):
        raise fault_in(
            function, f"adapt returned {shown(modules)}, expected a tuple of Classifier, Experts or Connector; (): none"
        )
    return tuple(modules)


def _averaged(
    function: _Function, state: ServerState, reduced: Reduced, layout: GroupLayout, fleet: Fleet
) -> ModelGroups:
    groups = _call(function, "averaged", state, reduced, layout, fleet)
    _require(function, "averaged", returned.kind_fault(groups, Mapping))
    assert isinstance(groups, Mapping)
    if wrong := [j for each in groups.values() for j in each if j not in layout]:
        raise fault_in(function, f"averaged: groups {shown(wrong)} are unknown; there are {list(layout.ids)}")
    return groups


def _identities(function: _Function, state: ServerState) -> Mapping[str, str]:
    names = _call(function, "identities", state)
    if not isinstance(names, Mapping) or set(names) != set(state.models):
        raise fault_in(
            function, f"identities returned {shown(names)}, expected a text for each of {list(state.models)}"
        )
    return names


def _diagnose(function: _Function, state: ServerState, layout: GroupLayout) -> Diagnostics:
    tables = _call(function, "diagnose", state, layout)
    _require(function, "diagnose", returned.kind_fault(tables, Mapping))
    assert isinstance(tables, Mapping)
    for name, table in tables.items():
        if not isinstance(table, Mapping) or not all(isinstance(v, int | float) for v in table.values()):
            raise fault_in(function, f"diagnose: table {name!r} is {shown(table)}, expected a number by row")
    return tables


def _rests(function: _Function, context: RoundContext) -> bool:
    rests = _call(function, "rests", context)
    _require(function, "rests", returned.kind_fault(rests, bool))
    return bool(rests)


def _warnings(function: _Function, run: PlannedRun) -> tuple[str, ...]:
    lines = _call(function, "warnings", run)
    if not isinstance(lines, list | tuple) or not all(isinstance(line, str) for line in lines):
        raise fault_in(function, f"warnings returned {shown(lines)}, expected a tuple of sentences; (): none")
    return tuple(lines)


def _deadline_s(function: _Function, context: RoundContext) -> float:
    seconds = _call(function, "deadline_s", context)
    if not returned.is_number(seconds) or float(seconds) <= 0.0:  # type: ignore[arg-type]
        raise fault_in(function, f"deadline_s returned {shown(seconds)}, expected seconds, above 0")
    return float(seconds)  # type: ignore[arg-type]


def _explain(function: _Function, request: ExplainRequest) -> Explanation:
    explanation = _call(function, "explain", request)
    _require(function, "explain", returned.kind_fault(explanation, Explanation))
    assert isinstance(explanation, Explanation)
    return explanation


def _weight(function: _Function, group: ParamGroup, client: ClientInfo, task: Assignment) -> float:
    weight = _call(function, "reduction.weight", group, client, task)
    if isinstance(weight, Tensor) and weight.numel() == 1:
        weight = weight.item()
    if not returned.is_number(weight) or float(weight) < 0.0:  # type: ignore[arg-type]
        raise fault_in(
            function, f"reduction.weight returned {shown(weight)} for client {client.id}, expected a number, at least 0"
        )
    return float(weight)  # type: ignore[arg-type]


def _bucket(function: _Function, task: Assignment) -> str:
    bucket = _call(function, "reduction.bucket", task)
    _require(function, "reduction.bucket", returned.kind_fault(bucket, str))
    return str(bucket)


# The client's half ----------------------------------------------------------------------------------------------------


def _refine(function: _Function, context: ClientContext, task: Assignment) -> Assignment:
    refined = _call(function, "client.refine", context, task)
    _require(function, "client.refine", returned.kind_fault(refined, Assignment))
    assert isinstance(refined, Assignment)
    if (refined.client, refined.view) != (task.client, task.view):
        raise fault_in(
            function,
            f"client.refine: found client {refined.client!r} and model {refined.view!r}, expected client {task.client} "
            f"and {task.view!r} as they were assigned; change what is trained, not whose task it is",
        )
    _require(function, "client.refine", returned.task_fault(refined, [task.view], context.layout))
    return refined


def _objective(function: _Function, step: LocalStep) -> Tensor:
    loss = _call(function, "client.objective", step)
    _require(function, "client.objective", returned.kind_fault(loss, Tensor))
    assert isinstance(loss, Tensor)
    if loss.ndim or not loss.is_floating_point():
        raise fault_in(
            function,
            f"client.objective returned {loss.dtype} of shape {tuple(loss.shape)}, expected one number: a loss",
        )
    reads = (step.logits, *step.taps.values())
    if not loss.requires_grad and torch.is_grad_enabled() and any(x.requires_grad for x in reads):
        raise fault_in(
            function, "client.objective: the loss does not depend on the model (it has no gradient), expected one "
            "computed from step.logits, step.taps or step.params, without detach(), item() or no_grad()"
        )  # fmt: skip
    if not bool(torch.isfinite(loss.detach())) and all(bool(torch.isfinite(x.detach()).all()) for x in reads):
        raise fault_in(
            function, f"client.objective returned {float(loss.detach())} for finite logits, expected a finite loss"
        )
    return loss


def _observe(function: _Function, step: LocalStep) -> Mapping[str, Tensor]:
    rows = _call(function, "client.observe", step)
    _require(function, "client.observe", returned.kind_fault(rows, Mapping))
    assert isinstance(rows, Mapping)
    for name, value in rows.items():
        if not isinstance(value, Tensor) or not value.ndim:
            what = (
                f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
            )
            raise fault_in(function, f"client.observe: {name!r} is {what}, expected a tensor with a row per window")
    return rows


def _after(function: _Function, context: ClientContext, made: Update) -> Update:
    was_finite = not returned.values_fault(made)
    sent = _call(function, "client.after", context, made)
    _require(function, "client.after", returned.kind_fault(sent, Update))
    assert isinstance(sent, Update)
    _require(function, "client.after", returned.sent_fault(sent, made, context.layout))
    if was_finite and (part := returned.values_fault(sent)):
        raise fault_in(function, f"client.after: {part} has NaN or infinity, expected finite values as it was given")
    return sent


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
