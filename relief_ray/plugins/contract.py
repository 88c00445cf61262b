"""Checks of what a method's functions return: each gives the fault in words, or an empty text.

The rules of `relief-ray conformance` and the rounds of a run with a user's own method use the same checks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from math import isfinite, isnan
from typing import TypeVar

import torch
from torch import Tensor

from relief_ray.core.client import ClientContext, ClientProgram, LocalStep
from relief_ray.core.codec import encoded_nbytes, sparse_nbytes
from relief_ray.core.extra_modules import Classifier, Connector, Experts, ExtraModule
from relief_ray.core.federated import Diagnostics, ExplainRequest, PlannedRun, RoundContext, ServerTools, Strategy
from relief_ray.core.groups import GroupId, GroupLayout, ParamGroup, Params, Part, Selection, all_finite
from relief_ray.core.messages import (
    Assignment,
    ClientId,
    ClientInfo,
    EvalPlan,
    EvalTarget,
    Fleet,
    Receipt,
    Reduced,
    Reduction,
    ServerState,
    StageTimes,
    Update,
    WeightedSum,
    Work,
)
from relief_ray.core.protocols import Explanation, ModelGroups
from relief_ray.core.streams import Streams
from relief_ray.plugins.blame import called, require, users_function
from relief_ray.support.errors import shown

_SECONDS = tuple(field.name for field in fields(StageTimes))
_SELECTIONS = ("down", "train", "up", "keep")
# What a client's `after` may change of its receipt: what it sends, what it reports, and what both cost.
_MAY_CHANGE = frozenset({"assignment", "bytes_up", "stats", "sq_norm"})


def kind_fault(value: object, kind: type, what: str = "") -> str:
    """Fault of a value that is no ``kind``."""
    if isinstance(value, kind):
        return ""
    name = kind.__name__ if kind.__module__ in ("builtins", "torch") else f"{kind.__module__}.{kind.__name__}"
    return f"{what}returned {_a(value)}, expected {'an' if name[0] in 'aeiou' else 'a'} {name}"


def _a(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _is(value: object, kind: type) -> bool:
    """Whether a value is what its declaration says, which a user's own code need not keep."""
    return isinstance(value, kind)


def _is_number(value: object) -> bool:
    """Whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def tasks_fault(
    tasks: object,
    models: Collection[str],
    layout: GroupLayout,
    participants: Sequence[ClientId],
) -> str:
    """Fault of a round's assignments: wrong kind, client, model, group, or flow of a group."""
    if not isinstance(tasks, Sequence) or isinstance(tasks, str):
        return f"returned {_a(tasks)}, expected a tuple of relief_ray.core.messages.Assignment"
    seen: set[ClientId] = set()
    for task in tasks:
        if fault := kind_fault(task, Assignment):
            return f"{fault} for each participant"
        if fault := _task_fault(task, models, layout):
            return fault
        if task.client not in participants:
            return f"client {task.client} does not take part in this round; participants are {list(participants)}"
        if task.client in seen:
            return f"client {task.client} has two assignments"
        seen.add(task.client)
    return ""


def _task_fault(task: Assignment, models: Collection[str], layout: GroupLayout) -> str:
    """Fault of one assignment by itself."""
    who = f"client {shown(task.client)}"
    if not _is(task.client, int):
        return f"{who}: found {_a(task.client)}, expected the number of a client"
    if task.view not in models:
        return f"{who} starts from model {shown(task.view)}; models are {sorted(models)}"
    for name in _SELECTIONS:
        if fault := _selection_fault(getattr(task, name), layout, layout.ids):
            return f"{who}, {name}: {fault}"
    if not _is(task.epochs, int) or task.epochs < 1:
        return f"{who} trains {shown(task.epochs)} epochs, expected at least 1"
    for name in ("lr_scale", "args"):
        if wrong := _first_no_number(getattr(task, name)):
            return f"{who}, {name}: {wrong}, expected finite numbers by name"
    for name in ("step_flops", "lora_scale"):
        if not _is_number(value := getattr(task, name)):
            return f"{who}, {name} = {shown(value)}, expected a finite number"
    return _flow_fault(who, task, layout)


def _selection_fault(selection: object, known: Container[object], ids: Iterable[GroupId]) -> str:
    if not isinstance(selection, Mapping):
        return f"found {_a(selection)}, expected groups and their parts, as layout.select(..) gives them"
    if unknown := [j for j in selection if j not in known]:
        return f"groups {shown(unknown)} are unknown; there are {list(ids)}"
    wrong = next((part for part in selection.values() if not isinstance(part, Part)), None)
    return "" if wrong is None else f"found the part {shown(wrong)}, expected a relief_ray.core.groups.Part"


def _first_no_number(values: object) -> str:
    if not isinstance(values, Mapping):
        return f"found {_a(values)}"
    return next((f"found {shown(name)}: {shown(v)}" for name, v in values.items() if not _is_number(v)), "")


def _flow_fault(who: str, task: Assignment, layout: GroupLayout) -> str:
    lacking = [j for j in task.train if not _is_within(layout, j, task.train, (task.down, task.keep))]
    if lacking:
        return f"{who} trains what it neither receives (down) nor keeps: {', '.join(_in_order(lacking, layout))}"
    lacking = [j for j in task.up if not _is_within(layout, j, task.up, (task.train,))]
    return f"{who} sends up what it does not train: {', '.join(_in_order(lacking, layout))}" if lacking else ""


def _in_order(groups: Iterable[GroupId], layout: GroupLayout) -> list[GroupId]:
    """The groups in storage order."""
    chosen = set(groups)
    return [j for j in layout.ids if j in chosen]


def _is_within(layout: GroupLayout, group: GroupId, inner: Selection, outer: Sequence[Selection]) -> bool:
    """Whether the part of a group lies within what the ``outer`` selections have of it together."""
    parts = [selection[group] for selection in outer if group in selection]
    if any(part.whole or part == inner[group] for part in parts):
        return True
    mask = torch.zeros(layout[group].numel, dtype=torch.bool)
    for part in parts:
        mask[layout.indices(group, part)] = True
    return bool(mask[layout.indices(group, inner[group])].all())


def state_fault(state: ServerState, layout: GroupLayout) -> str:
    """Fault of a server's state that a checkpoint could not restore, or a client not start from."""
    if not _is(state.models, Mapping) or not state.models:
        return f"models are {shown(state.models)}, expected a model at least, by name"
    for name, params in state.models.items():
        if not _is(params, Mapping):
            return f"model {shown(name)} is {_a(params)}, expected a vector by group"
        if set(params) != set(layout.ids):
            return f"model {name!r} has groups {list(params)}, expected {list(layout.ids)}"
        for j, theta in params.items():
            if fault := _vector_fault(theta, layout[j].numel):
                return f"{name!r}, group {j!r}: {fault}"
    return _extras_fault(state)


def _vector_fault(value: object, numel: int) -> str:
    """Fault of what should be a float32 vector of so many values in the CPU's memory."""
    if not isinstance(value, Tensor):
        return f"{_a(value)}, expected float32 vectors (torch.Tensor) of {numel} values"
    if value.dtype != torch.float32 or value.shape != (numel,) or value.device.type != "cpu":
        place = "" if value.device.type == "cpu" else f" on {value.device}"
        return f"{value.dtype} {tuple(value.shape)}{place}, expected float32 vectors of {numel} values"
    return ""


def _extras_fault(state: ServerState) -> str:
    for name, value in dict[str, object](state.tensors).items():
        if not isinstance(value, Tensor):
            return f"tensors[{name!r}] is a {type(value).__name__}, expected a tensor"
    try:
        again = json.loads(json.dumps(state.facts, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        return f"facts are no JSON ({error})"
    return "" if again == state.facts else f"facts {shown(state.facts)} come back from JSON as {shown(again)}"


def _not_finite_fault(state: ServerState) -> str:
    """Fault of a state whose models have NaN or infinity: the first such group is named."""
    for name, params in state.models.items():
        for j, theta in params.items():
            if not all_finite(theta):
                return (
                    f"model {name!r}: group {j!r} has NaN or infinity, expected finite values; its inputs were finite"
                )
    return ""


def plan_fault(plan: EvalPlan, models: Mapping[str, Params], fleet: Fleet) -> str:
    """Fault of a plan of evaluation: labels, models, clients, groups and sensors."""
    targets = (*((plan.canonical,) if plan.canonical else ()), *plan.clients)
    labels = [getattr(t, "label", None) for t in targets]
    known = {c.id for c in fleet.clients}
    for target in targets:
        if fault := kind_fault(target, EvalTarget):
            return f"{fault} for each model to test"
        if not _is(target.label, str):
            return f"a target is labelled {shown(target.label)}, expected a text"
        if labels.count(target.label) > 1:
            return f"two targets are labelled {target.label!r}"
        if target.view not in models or not ({target.client} - {None}) <= known:
            return f"{target}: unknown model or client; models are {sorted(models)}"
        if fault := _selection_fault(target.keep, models[target.view], models[target.view]):
            return f"{target.label!r}, keep: {fault}"
        if wrong := _first_no_number(target.mean_of):
            return f"{target.label!r}, mean_of: {wrong}, expected finite numbers by client"
        if lacking := [m for m in target.modalities or () if m not in fleet.modalities]:
            return f"{target.label!r} has the sensors {lacking}, expected some of {list(fleet.modalities)}"
    return "" if targets else "names no model to test, expected a canonical one or one for each client"


def _modules_fault(modules: object) -> str:
    """Fault of the modules that a method adds to the backbone."""
    if isinstance(modules, list | tuple) and all(isinstance(m, Classifier | Experts | Connector) for m in modules):
        return ""
    return f"returned {shown(modules)}, expected a tuple of Classifier, Experts or Connector; (): none"


def _averaged_fault(groups: Mapping[str, Collection[GroupId]], models: Collection[str], layout: GroupLayout) -> str:
    """Fault of the groups, by model, whose change is a mean of updates."""
    if unknown := [name for name in groups if name not in models]:
        return f"models {shown(unknown)} are unknown; there are {sorted(models)}"
    wrong = [j for each in groups.values() for j in each if j not in layout]
    return f"groups {shown(wrong)} are unknown; there are {list(layout.ids)}" if wrong else ""


def _identities_fault(names: object, models: Collection[str]) -> str:
    """Fault of what the models stand for."""
    if isinstance(names, Mapping) and set(names) == set(models) and all(isinstance(v, str) for v in names.values()):
        return ""
    return f"returned {shown(names)}, expected a text for each of {list(models)}"


def _tables_fault(tables: Mapping[object, object]) -> str:
    """Fault of the numbers about a state that a record keeps."""
    for name, table in tables.items():
        if not isinstance(table, Mapping) or not all(isinstance(v, int | float) for v in table.values()):
            return f"table {name!r} is {shown(table)}, expected a number by row"
    return ""


def _sentences_fault(lines: object) -> str:
    """Fault of a method's warnings."""
    if isinstance(lines, list | tuple) and all(isinstance(line, str) for line in lines):
        return ""
    return f"returned {shown(lines)}, expected a tuple of sentences; (): none"


def _deadline_fault(seconds: object) -> str:
    """Fault of a deadline in seconds."""
    is_one = _is_number(seconds) and float(seconds) > 0.0  # type: ignore[arg-type]
    return "" if is_one else f"returned {shown(seconds)}, expected seconds, above 0"


def _weight_fault(weight: object, client: ClientId) -> str:
    """Fault of the weight of a client's update; a tensor of one value is a number too."""
    value = weight.item() if isinstance(weight, Tensor) and weight.numel() == 1 else weight
    if _is_number(value) and float(value) >= 0.0:  # type: ignore[arg-type]
        return ""
    return f"returned {shown(value)} for client {client}, expected a number, at least 0"


def times_fault(times: object) -> str:
    """Fault of a clock's seconds."""
    if fault := kind_fault(times, StageTimes):
        return fault
    for name in _SECONDS:
        value = getattr(times, name)
        if not _is_number(value) or value < 0:
            return f"{name} = {shown(value)}, expected a finite number of seconds, at least 0"
    return ""


# The client's half ----------------------------------------------------------------------------------------------------


def _refined_fault(refined: Assignment, task: Assignment, layout: GroupLayout) -> str:
    """Fault of a task as the client's ``refine`` changed it."""
    if (refined.client, refined.view) != (task.client, task.view):
        return (
            f"found client {refined.client!r} and model {refined.view!r}, expected client {task.client} and "
            f"{task.view!r} as they were assigned; change what is trained, not whose task it is"
        )
    return _task_fault(refined, [task.view], layout)


def _loss_fault(loss: Tensor, step: LocalStep) -> str:
    """Fault of the loss of a mini-batch: one finite number that depends on the model."""
    if loss.ndim or not loss.is_floating_point():
        return f"returned {loss.dtype} of shape {tuple(loss.shape)}, expected one number: a loss"
    reads = (step.logits, *step.taps.values())
    if not loss.requires_grad and torch.is_grad_enabled() and any(x.requires_grad for x in reads):
        return (
            "the loss does not depend on the model (it has no gradient), expected one computed from step.logits, "
            "step.taps or step.params, without detach(), item() or no_grad()"
        )
    if not bool(torch.isfinite(loss.detach())) and all(bool(torch.isfinite(x.detach()).all()) for x in reads):
        return f"returned {float(loss.detach())} for finite logits, expected a finite loss"
    return ""


def _observed_fault(rows: Mapping[object, object]) -> str:
    """Fault of the rows about a batch."""
    for name, value in rows.items():
        if not isinstance(value, Tensor) or not value.ndim:
            what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else _a(value)
            return f"{name!r} is {what}, expected a tensor with a row per window"
    return ""


def _sent_fault(sent: Update, made: Update, layout: GroupLayout) -> str:
    """Fault of an update that a client's ``after`` returned for the one that was ``made``.

    What it says about itself must be what was done: the client, its task, the windows, steps and loss; it may send
    fewer groups, other values, other statistics and another personal state.
    """
    if fault := kind_fault(sent.receipt, Receipt, "receipt: "):
        return fault.replace("returned", "found")
    task, asked = sent.receipt.assignment, made.receipt.assignment
    if not _is(task, Assignment) or not _is(sent.receipt.work, Work):
        return f"receipt: found {_a(task)} and {_a(sent.receipt.work)}, expected an Assignment and its Work"
    if claim := _differing(task, asked, {"up"}) or _differing(sent.receipt.work, made.receipt.work, set()):
        return f"the update of client {asked.client} claims {claim}; leave what it says about itself as it is"
    if claim := _differing(sent.receipt, made.receipt, _MAY_CHANGE | {"work"}):
        return f"the update of client {asked.client} claims {claim}; leave what it says about itself as it is"
    if fault := _selection_fault(task.up, layout, layout.ids) or _flow_fault(f"client {task.client}", task, layout):
        return f"up: {fault}"
    if asked.up and not task.up:
        return f"client {task.client} sends no group, expected those of its assignment, {sorted(asked.up)}, or some"
    return _payload_fault(sent, layout) or _bytes_fault(sent, made, layout)


def _differing(found: object, expected: object, without: Collection[str]) -> str:
    """First field in which two records differ: ``num_windows = 5, expected 56``."""
    for field in fields(expected):  # type: ignore[arg-type]
        a, b = getattr(found, field.name), getattr(expected, field.name)
        are_nan = isinstance(a, float) and isinstance(b, float) and isnan(a) and isnan(b)
        if field.name not in without and a is not b and not are_nan and a != b:
            return f"{field.name} = {shown(a)}, expected {shown(b)}"
    return ""


def _payload_fault(sent: Update, layout: GroupLayout) -> str:
    up = sent.receipt.assignment.up
    if not _is(sent.delta, Mapping):
        return f"delta: found {_a(sent.delta)}, expected a vector by group"
    if set(sent.delta) != set(up):
        return (
            f"delta has groups {sorted(map(str, sent.delta))}, expected those of its assignment, {sorted(up)}; send "
            "what `up` names"
        )
    for j, delta in sent.delta.items():
        if fault := _vector_fault(delta, layout.num_values({j: up[j]})):
            return f"delta, group {j!r}: {fault}"
    for name, values in (("stats", sent.receipt.stats), ("state", sent.state)):
        if not _is(values, Mapping):
            return f"{name}: found {_a(values)}, expected tensors by name"
        for key, value in values.items():
            if not _is(value, Tensor):
                return f"{name}[{key!r}] is {_a(value)}, expected a tensor"
    return ""


def _bytes_fault(sent: Update, made: Update, layout: GroupLayout) -> str:
    """Fault of a receipt that charges less than its payload has; checked where ``after`` changed the figure."""
    charged, up = sent.receipt.bytes_up, sent.receipt.assignment.up
    if charged == made.receipt.bytes_up:
        return ""
    if not _is(charged, int) or _is(charged, bool):
        return f"receipt: bytes_up = {shown(charged)}, expected a whole number of bytes"
    num_kept = sum(int(delta.count_nonzero()) for delta in sent.delta.values())
    least = min(encoded_nbytes(layout, up), sparse_nbytes(layout, up, num_kept)) if up else 0
    return "" if charged >= least else f"receipt: bytes_up = {charged}, its payload has at least {least}"


def _values_fault(sent: Update) -> str:
    """Name of the first part of an update with NaN or infinity; empty where all are finite."""
    parts = (("delta", sent.delta), ("stats", sent.receipt.stats), ("state", sent.state))
    for name, values in parts:
        for key, value in values.items():
            if value.is_floating_point() and not all_finite(value):
                return f"{name}[{key!r}]"
    return ""


def _sent_not_finite_fault(sent: Update) -> str:
    """Fault of an update with NaN or infinity where what it was made of had none."""
    part = _values_fault(sent)
    return f"{part} has NaN or infinity, expected finite values as it was given" if part else ""


# Guards the functions of a user's own method: what each returns is checked where it is returned, and named.
#
# A wrong value would otherwise fail later, in this project's code or in the next round. Functions of this project are
# not wrapped.


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
        insight=_guard(strategy.insight),
        averaging=_guard(strategy.averaging),
        **{
            name: _wrapped(guard, getattr(strategy, name)) for name, guard in _SERVER.items() if hasattr(strategy, name)
        },
    )


def _wrapped(guard: _Function, function: T) -> T:
    """The function behind its guard, where it is a user's; functions of ours, and None, as they are."""
    if not callable(function) or users_function(function) is None:
        return function
    return partial(guard, function)  # type: ignore[return-value]


def _guard(record: T) -> T:
    guards = {name: guard for name, guard in _SERVER.items() if hasattr(record, name)}
    return replace(record, **{name: _wrapped(guard, getattr(record, name)) for name, guard in guards.items()})  # type: ignore


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
    _require(function, "allocate", tasks_fault, tasks, state.models.keys(), context.layout, participants)
    return tuple(tasks)  # type: ignore[arg-type]


def _state(function: _Function, step: str, state: object, layout: GroupLayout) -> ServerState:
    _require(function, step, kind_fault, state, ServerState)
    assert isinstance(state, ServerState)
    _require(function, step, state_fault, state, layout)
    _require(function, step, _not_finite_fault, state)
    return state


def _init(function: _Function, layout: GroupLayout, fleet: Fleet, streams: Streams, start: Params) -> ServerState:
    return _state(function, "init", called(function, "init", layout, fleet, streams, start), layout)


def _aggregate(function: _Function, state: ServerState, reduced: Reduced, tools: ServerTools) -> ServerState:
    return _state(function, "aggregate", called(function, "aggregate", state, reduced, tools), tools.layout)


def _evaluate(function: _Function, state: ServerState, fleet: Fleet) -> EvalPlan:
    plan = called(function, "evaluate", state, fleet)
    _require(function, "evaluate", kind_fault, plan, EvalPlan)
    assert isinstance(plan, EvalPlan)
    _require(function, "evaluate", plan_fault, plan, state.models, fleet)
    return plan


def _adapt(function: _Function, layout: GroupLayout, fleet: Fleet) -> tuple[ExtraModule, ...]:
    modules = called(function, "adapt", layout, fleet)
    _require(function, "adapt", _modules_fault, modules)
    return tuple(modules)  # type: ignore[arg-type]


def _averaged(
    function: _Function, state: ServerState, reduced: Reduced, layout: GroupLayout, fleet: Fleet
) -> ModelGroups:
    groups = called(function, "averaged", state, reduced, layout, fleet)
    _require(function, "averaged", kind_fault, groups, Mapping)
    assert isinstance(groups, Mapping)
    _require(function, "averaged", _averaged_fault, groups, state.models.keys(), layout)
    return groups


def _identities(function: _Function, state: ServerState) -> Mapping[str, str]:
    names = called(function, "identities", state)
    _require(function, "identities", _identities_fault, names, state.models.keys())
    assert isinstance(names, Mapping)
    return names


def _diagnose(function: _Function, state: ServerState, layout: GroupLayout) -> Diagnostics:
    tables = called(function, "diagnose", state, layout)
    _require(function, "diagnose", kind_fault, tables, Mapping)
    assert isinstance(tables, Mapping)
    _require(function, "diagnose", _tables_fault, tables)
    return tables


def _rests(function: _Function, context: RoundContext) -> bool:
    rests = called(function, "rests", context)
    _require(function, "rests", kind_fault, rests, bool)
    return bool(rests)


def _warnings(function: _Function, run: PlannedRun) -> tuple[str, ...]:
    lines = called(function, "warnings", run)
    _require(function, "warnings", _sentences_fault, lines)
    return tuple(lines)  # type: ignore[arg-type]


def _deadline_s(function: _Function, context: RoundContext) -> float:
    seconds = called(function, "deadline_s", context)
    _require(function, "deadline_s", _deadline_fault, seconds)
    return float(seconds)  # type: ignore[arg-type]


def _explain(function: _Function, request: ExplainRequest) -> Explanation:
    explanation = called(function, "explain", request)
    _require(function, "explain", kind_fault, explanation, Explanation)
    assert isinstance(explanation, Explanation)
    return explanation


def _weight(function: _Function, group: ParamGroup, client: ClientInfo, task: Assignment) -> float:
    weight = called(function, "reduction.weight", group, client, task)
    _require(function, "reduction.weight", _weight_fault, weight, client.id)
    return float(weight)  # type: ignore[arg-type]


def _bucket(function: _Function, task: Assignment) -> str:
    bucket = called(function, "reduction.bucket", task)
    _require(function, "reduction.bucket", kind_fault, bucket, str)
    return str(bucket)


# The client's half ----------------------------------------------------------------------------------------------------


def _refine(function: _Function, context: ClientContext, task: Assignment) -> Assignment:
    refined = called(function, "client.refine", context, task)
    _require(function, "client.refine", kind_fault, refined, Assignment)
    assert isinstance(refined, Assignment)
    _require(function, "client.refine", _refined_fault, refined, task, context.layout)
    return refined


def _objective(function: _Function, step: LocalStep) -> Tensor:
    loss = called(function, "client.objective", step)
    _require(function, "client.objective", kind_fault, loss, Tensor)
    assert isinstance(loss, Tensor)
    _require(function, "client.objective", _loss_fault, loss, step)
    return loss


def _observe(function: _Function, step: LocalStep) -> Mapping[str, Tensor]:
    rows = called(function, "client.observe", step)
    _require(function, "client.observe", kind_fault, rows, Mapping)
    assert isinstance(rows, Mapping)
    _require(function, "client.observe", _observed_fault, rows)
    return rows


def _after(function: _Function, context: ClientContext, made: Update) -> Update:
    was_finite = not _values_fault(made)
    sent = called(function, "client.after", context, made)
    _require(function, "client.after", kind_fault, sent, Update)
    assert isinstance(sent, Update)
    _require(function, "client.after", _sent_fault, sent, made, context.layout)
    if was_finite:
        _require(function, "client.after", _sent_not_finite_fault, sent)
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
