"""Checks of what a method's functions return: each gives the fault in words, or an empty text.

The rules of `relief-ray conformance` and the rounds of a run with a user's own method use the same checks.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from math import isfinite, isnan

import torch
from torch import Tensor

from relief_ray.codec import encoded_nbytes, sparse_nbytes
from relief_ray.errors import shown
from relief_ray.groups import GroupId, GroupLayout, Part, Selection, all_finite
from relief_ray.messages import (
    Assignment,
    ClientId,
    EvalPlan,
    EvalTarget,
    Fleet,
    Receipt,
    ServerState,
    Update,
    Work,
)

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


def is_number(value: object) -> bool:
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
        return f"returned {_a(tasks)}, expected a tuple of relief_ray.messages.Assignment"
    seen: set[ClientId] = set()
    for task in tasks:
        if fault := kind_fault(task, Assignment):
            return f"{fault} for each participant"
        if fault := task_fault(task, models, layout):
            return fault
        if task.client not in participants:
            return f"client {task.client} does not take part in this round; participants are {list(participants)}"
        if task.client in seen:
            return f"client {task.client} has two assignments"
        seen.add(task.client)
    return ""


def task_fault(task: Assignment, models: Collection[str], layout: GroupLayout) -> str:
    """Fault of one assignment by itself."""
    who = f"client {shown(task.client)}"
    if not _is(task.client, int):
        return f"{who}: found {_a(task.client)}, expected the number of a client"
    if task.view not in models:
        return f"{who} starts from model {shown(task.view)}; models are {sorted(models)}"
    for name in _SELECTIONS:
        if fault := _selection_fault(getattr(task, name), layout):
            return f"{who}, {name}: {fault}"
    if not _is(task.epochs, int) or task.epochs < 1:
        return f"{who} trains {shown(task.epochs)} epochs, expected at least 1"
    for name in ("lr_scale", "args"):
        if wrong := _first_no_number(getattr(task, name)):
            return f"{who}, {name}: {wrong}, expected finite numbers by name"
    for name in ("step_flops", "lora_scale"):
        if not is_number(value := getattr(task, name)):
            return f"{who}, {name} = {shown(value)}, expected a finite number"
    return _flow_fault(who, task, layout)


def _selection_fault(selection: object, layout: GroupLayout) -> str:
    if not isinstance(selection, Mapping):
        return f"found {_a(selection)}, expected groups and their parts, as layout.select(..) gives them"
    if unknown := [j for j in selection if j not in layout]:
        return f"groups {shown(unknown)} are unknown; there are {list(layout.ids)}"
    wrong = next((part for part in selection.values() if not isinstance(part, Part)), None)
    return "" if wrong is None else f"found the part {shown(wrong)}, expected a relief_ray.groups.Part"


def _first_no_number(values: object) -> str:
    if not isinstance(values, Mapping):
        return f"found {_a(values)}"
    return next((f"found {shown(name)}: {shown(v)}" for name, v in values.items() if not is_number(v)), "")


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


def not_finite(state: ServerState) -> str:
    """Name of the first group of a state with NaN or infinity; empty where all are finite."""
    for name, params in state.models.items():
        for j, theta in params.items():
            if not all_finite(theta):
                return f"model {name!r}: group {j!r}"
    return ""


def plan_fault(plan: EvalPlan, models: Collection[str], layout: GroupLayout | None, fleet: Fleet) -> str:
    """Fault of a plan of evaluation: labels, models, clients, groups and sensors."""
    targets = (*((plan.canonical,) if plan.canonical else ()), *plan.clients)
    labels = [getattr(t, "label", None) for t in targets]
    known = {c.id for c in fleet.clients}
    for target in targets:
        if fault := kind_fault(target, EvalTarget):
            return f"{fault} for each model to test"
        unknown = [j for j in target.keep if layout is not None and j not in layout]
        if labels.count(target.label) > 1:
            return f"two targets are labelled {target.label!r}"
        if target.view not in models or unknown or not ({target.client} - {None}) <= known:
            return f"{target}: unknown model, client or group; models are {sorted(models)}"
        if lacking := [m for m in target.modalities or () if m not in fleet.modalities]:
            return f"{target.label!r} has the sensors {lacking}, expected some of {list(fleet.modalities)}"
    return "" if targets else "names no model to test, expected a canonical one or one for each client"


def sent_fault(sent: Update, made: Update, layout: GroupLayout) -> str:
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
    if fault := _selection_fault(task.up, layout) or _flow_fault(f"client {task.client}", task, layout):
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


def values_fault(sent: Update) -> str:
    """Name of the first part of an update with NaN or infinity; empty where all are finite."""
    parts = (("delta", sent.delta), ("stats", sent.receipt.stats), ("state", sent.state))
    for name, values in parts:
        for key, value in values.items():
            if value.is_floating_point() and not all_finite(value):
                return f"{name}[{key!r}]"
    return ""
