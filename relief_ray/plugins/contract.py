"""The contract of a method's functions: a table of valid return values, and a callable that checks them.

A round of a run checks a user's functions only, `relief-ray conformance` all of them, by the same table. A wrong value
would otherwise fail later, in this project's code or in the next round. A user's metric is checked where it is
computed (``records.metrics``), a loader where it parses (``data.checks``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from math import inf, isfinite, isnan
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch import Tensor

from relief_ray.core.client import ClientContext, ClientProgram, LocalStep
from relief_ray.core.codec import mismatch
from relief_ray.core.extra_modules import Classifier, Connector, Experts
from relief_ray.core.federated import Averaging, Insight, RoundContext, Strategy, first_not_finite
from relief_ray.core.groups import (
    GroupId,
    GroupLayout,
    ParamGroup,
    Params,
    Part,
    Selection,
    all_finite,
    described,
    gradient_violation,
    vector_violation,
)
from relief_ray.core.messages import (
    MAX_EPOCHS,
    STORED_TYPES,
    Assignment,
    ClientId,
    ClientInfo,
    EvalPlan,
    EvalTarget,
    Fleet,
    Receipt,
    ServerState,
    StageTimes,
    Update,
    WeightedSum,
    Work,
)
from relief_ray.core.protocols import Explanation
from relief_ray.plugins.blame import AnyFunction, called, require, users_function
from relief_ray.support.errors import kind_in_words, shown

_Check = Callable[..., str]
_SECONDS = tuple(field.name for field in fields(StageTimes))
_SELECTIONS = ("down", "train", "up", "keep")
# What a client's `after` may change of its receipt: what it sends, what it reports, and what both cost.
_MAY_CHANGE = frozenset({"assignment", "bytes_down", "bytes_up", "stats", "sq_norm"})


def kind_violation(value: object, kind: type, what: str = "") -> str:
    """What is wrong with a value that is no ``kind``."""
    if isinstance(value, kind):
        return ""
    name = kind.__name__ if kind.__module__ in ("builtins", "torch") else f"{kind.__module__}.{kind.__name__}"
    return f"{what}returned {kind_in_words(value)}, expected {'an' if name[0] in 'aeiou' else 'a'} {name}"


def _is(value: object, kind: type) -> bool:
    """Whether a value has its declared type; a user's code may return another one."""
    return isinstance(value, kind)


def _is_number(value: object) -> bool:
    """Whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


# A check of a value takes, beside it, the arguments of the function that returned it.


def _tasks_violation(tasks: object, state: ServerState, context: RoundContext) -> str:
    """What is wrong with a round's assignments: wrong kind, client, model, group, or flow of a group."""
    if not isinstance(tasks, Sequence) or isinstance(tasks, str):
        return f"returned {kind_in_words(tasks)}, expected a tuple of relief_ray.core.messages.Assignment"
    clients, participants = set[ClientId](), [c.id for c in context.participants]
    for task in tasks:
        if violation := kind_violation(task, Assignment):
            return f"{violation} for each participant"
        if violation := _task_violation(task, state.models, context.layout):
            return violation
        if task.client not in participants:
            return f"client {task.client} does not take part in this round; participants are {participants}"
        if task.client in clients:
            return f"client {task.client} has two assignments"
        clients.add(task.client)
    return ""


def _task_violation(task: Assignment, models: Collection[str], layout: GroupLayout) -> str:
    """What is wrong with one assignment by itself."""
    who = f"client {shown(task.client)}"
    if not _is(task.client, int):
        return f"{who}: found {kind_in_words(task.client)}, expected the number of a client"
    if task.view not in models:
        return f"{who} starts from model {shown(task.view)}; models are {sorted(models)}"
    for name in _SELECTIONS:
        if violation := _selection_violation(getattr(task, name), layout, layout.ids):
            return f"{who}, {name}: {violation}"
    if not _is(task.epochs, int) or not 1 <= task.epochs <= MAX_EPOCHS:
        return f"{who} trains {shown(task.epochs)} epochs, expected at least 1 and at most {MAX_EPOCHS}"
    for name in ("lr_scale", "args"):
        if wrong := _first_no_number(getattr(task, name)):
            return f"{who}, {name}: {wrong}, expected finite numbers by name"
    for name, least in (("weight", 0.0), ("step_flops", 0.0), ("lora_scale", -inf)):
        if not _is_number(value := getattr(task, name)) or value < least:
            return f"{who}, {name} = {shown(value)}, expected a finite number" + ", at least 0" * (least == 0.0)
    return _flow_violation(who, task, layout)


def _selection_violation(selection: object, known: Container[object], ids: Iterable[GroupId]) -> str:
    if not isinstance(selection, Mapping):
        return f"found {kind_in_words(selection)}, expected groups and their parts, as layout.select(..) gives them"
    if unknown := [j for j in selection if j not in known]:
        return f"groups {shown(unknown)} are unknown; there are {list(ids)}"
    wrong = next((part for part in selection.values() if not isinstance(part, Part)), None)
    return "" if wrong is None else f"found the part {shown(wrong)}, expected a relief_ray.core.groups.Part"


def _first_no_number(values: object) -> str:
    if not isinstance(values, Mapping):
        return f"found {kind_in_words(values)}"
    return next((f"found {shown(name)}: {shown(v)}" for name, v in values.items() if not _is_number(v)), "")


def _flow_violation(who: str, task: Assignment, layout: GroupLayout) -> str:
    if lacking := _beyond(layout, task.train, task.down, task.keep):
        return f"{who} trains what it neither receives (down) nor keeps: {', '.join(lacking)}"
    lacking = _beyond(layout, task.up, task.train)
    return f"{who} sends up what it does not train: {', '.join(lacking)}" if lacking else ""


def _beyond(layout: GroupLayout, inner: Selection, *outer: Selection) -> list[GroupId]:
    """Groups of ``inner``, in storage order, of which it has more than the ``outer`` selections together."""
    beyond = []
    for j in [j for j in layout.ids if j in inner]:
        parts = [selection[j] for selection in outer if j in selection]
        if any(part.whole or part == inner[j] for part in parts):
            continue
        mask = torch.zeros(layout[j].numel, dtype=torch.bool)
        for part in parts:
            mask[layout.indices(j, part)] = True
        if not mask[layout.indices(j, inner[j])].all():
            beyond.append(j)
    return beyond


def _state_violation(state: ServerState, layout: GroupLayout) -> str:
    """What is wrong with a server's state that a checkpoint could not restore, or a client not start from."""
    if not _is(state.models, Mapping) or not state.models:
        return f"models are {shown(state.models)}, expected a model at least, by name"
    for name, params in state.models.items():
        if not _is(params, Mapping):
            return f"model {shown(name)} is {kind_in_words(params)}, expected a vector by group"
        if set(params) != set(layout.ids):
            return f"model {name!r} has groups {list(params)}, expected {list(layout.ids)}"
        for j, theta in params.items():
            if violation := vector_violation(theta, layout[j].numel):
                return f"{name!r}, group {j!r}: {violation}"
    return _extras_violation(state)


def _text_violation(value: object) -> str:
    """What is wrong with what should be a text that a file can hold."""
    if not isinstance(value, str):
        return f"{kind_in_words(value)}, expected a text"
    try:
        value.encode()
    except UnicodeEncodeError:
        return f"{value!a}, expected a text without lone surrogates"
    return ""


# Above it a whole number may have no float.
_MOST_FLOAT = 2**1023


def _tensor_violation(value: object) -> str:
    """What is wrong with what should be a tensor that a checkpoint can hold."""
    if not isinstance(value, Tensor):
        return f"{kind_in_words(value)}, expected a tensor"
    odd = "nested" if value.is_nested else "meta" if value.is_meta else str(value.layout).replace("torch.strided", "")
    if odd or value.is_quantized or value.dtype not in STORED_TYPES:
        layout = odd and f", {odd}"
        return f"{value.dtype}{layout}, expected a dense tensor of {', '.join(map(str, STORED_TYPES))}"
    return gradient_violation(value)


_NO_JSON = (TypeError, ValueError, RecursionError)


def _through_json(value: object) -> object:
    """The value as a file of JSON gives it back."""
    return json.loads(json.dumps(value, allow_nan=False))


def _extras_violation(state: ServerState) -> str:
    for name, value in dict[str, object](state.tensors).items():
        if violation := _text_violation(name):
            return f"tensors has a name that is {violation}"
        if violation := _tensor_violation(value):
            return f"tensors[{name!r}] is {violation}"
    try:
        again = _through_json(state.facts)
    except _NO_JSON as error:
        return f"facts are no JSON ({error})"
    return "" if again == state.facts else f"facts {shown(state.facts)} come back from JSON as {shown(again)}"


def _not_finite_violation(state: ServerState) -> str:
    """What is wrong with a state whose models have NaN or infinity: the first such group is named."""
    wrong = first_not_finite(state)
    return wrong and f"{wrong} has NaN or infinity, expected finite values; its inputs were finite"


def _plan_violation(plan: EvalPlan, state: ServerState, fleet: Fleet) -> str:
    """What is wrong with a plan of evaluation: labels, models, clients, groups and sensors."""
    models = state.models
    targets = (*((plan.canonical,) if plan.canonical else ()), *plan.clients)
    labels = [getattr(t, "label", None) for t in targets]
    known = {c.id for c in fleet.clients}
    for target in targets:
        if violation := kind_violation(target, EvalTarget):
            return f"{violation} for each model to test"
        if not _is(target.label, str):
            return f"a target is labelled {shown(target.label)}, expected a text"
        if labels.count(target.label) > 1:
            return f"two targets are labelled {target.label!r}"
        if plan.canonical and target.label.startswith(f"{plan.canonical.label}|"):
            return f"a target is labelled {target.label!r}, as the canonical model is with some of the sensors"
        if target.view not in models or not ({target.client} - {None}) <= known:
            return f"{target}: unknown model or client; models are {sorted(models)}"
        if violation := _selection_violation(target.keep, models[target.view], models[target.view]):
            return f"{target.label!r}, keep: {violation}"
        if wrong := _first_no_number(target.mean_of):
            return f"{target.label!r}, mean_of: {wrong}, expected finite numbers by client"
        if lacking := [m for m in target.modalities or () if m not in fleet.modalities]:
            return f"{target.label!r} has the sensors {lacking}, expected some of {list(fleet.modalities)}"
    return "" if targets else "names no model to test, expected a canonical one or one for each client"


def _each_is(kinds: tuple[type, ...], expected: str) -> _Check:
    """A check of a tuple, empty or of one of these kinds each."""

    def violation(values: object, *_: object) -> str:
        if not isinstance(values, list | tuple) or not all(isinstance(value, kinds) for value in values):
            return f"returned {shown(values)}, expected a tuple of {expected}; (): none"
        wrong = next(filter(None, map(_text_violation, values)), "") if kinds == (str,) else ""
        return wrong and f"returned {wrong}"

    return violation


def _averaged_violation(
    groups: Mapping[str, Collection[GroupId]], state: ServerState, _: object, layout: GroupLayout, _fleet: Fleet
) -> str:
    """What is wrong with the groups, by model, whose change is a mean of updates."""
    if unknown := [name for name in groups if name not in state.models]:
        return f"models {shown(unknown)} are unknown; there are {sorted(state.models)}"
    wrong = [j for each in groups.values() for j in each if j not in layout]
    return f"groups {shown(wrong)} are unknown; there are {list(layout.ids)}" if wrong else ""


def _identities_violation(names: object, state: ServerState) -> str:
    """What is wrong with what the models stand for."""
    models = state.models
    if isinstance(names, Mapping) and set(names) == set(models) and all(isinstance(v, str) for v in names.values()):
        return ""
    return f"returned {shown(names)}, expected a text for each of {list(models)}"


def _tables_violation(tables: Mapping[object, object], *_: object) -> str:
    """What is wrong with the numbers about a state that a record keeps."""
    for name, table in tables.items():
        if violation := _text_violation(name):
            return f"a table's name is {violation}"
        if not isinstance(table, Mapping) or not all(isinstance(v, int | float) for v in table.values()):
            return f"table {name!r} is {shown(table)}, expected a number by row"
        for row, number in table.items():
            if violation := _text_violation(row):
                return f"table {name!r}: a row's name is {violation}"
            if isinstance(number, int) and abs(number) > _MOST_FLOAT:
                return f"table {name!r}, row {row!r}: a number beyond a float's range, expected less"
    return ""


def _deadline_violation(seconds: object, _: ServerState) -> str:
    """What is wrong with a deadline in seconds."""
    is_one = _is_number(seconds) and float(seconds) > 0.0  # type: ignore[arg-type]
    return "" if is_one else f"returned {shown(seconds)}, expected seconds, above 0"


def _weight_violation(weight: object, client: ClientId) -> str:
    """What is wrong with the weight of a client's update; a tensor of one value is a number too."""
    value = weight.item() if isinstance(weight, Tensor) and weight.numel() == 1 else weight
    if _is_number(value) and float(value) >= 0.0:  # type: ignore[arg-type]
        return ""
    return f"returned {shown(value)} for client {client}, expected a number, at least 0"


def sum_violation(total: float, whom: str) -> str:
    """What is wrong with the sum of somebody's weights, by which a mean is divided."""
    if total == 0.0:
        return f"returned 0 for {whom}, expected more for one of them"
    is_usable = 1e-200 < total < 1e200
    return "" if is_usable else f"returned {total:g} in sum for {whom}, expected a sum between 1e-200 and 1e200"


# Hooks of a method that derives from FedAvg ---------------------------------------------------------------------------


def _chosen_violation(chosen: object, client: ClientInfo, groups: Sequence[ParamGroup]) -> str:
    """What is wrong with the groups that a client is to train."""
    ids = [group.id for group in groups]
    if not isinstance(chosen, list | tuple) or not chosen:
        found = kind_in_words(chosen) if chosen or not isinstance(chosen, list | tuple) else "no group"
        return f"returned {found} for client {client.id}, expected a list of one at least of {ids}"
    unknown = [each for each in chosen if getattr(each, "id", each) not in ids]
    return f"returned {shown(unknown)} for client {client.id}, expected some of {ids}" if unknown else ""


def _stepped_violation(stepped: object, mean: Params, _: object) -> str:
    """Find a fault in a server step and its memory."""
    if not isinstance(stepped, tuple) or len(stepped) != 2 or not all(isinstance(part, Mapping) for part in stepped):
        return f"returned {shown(stepped)}, expected two mappings: the step by group, and the memory ({{}}: none)"
    step, memory = stepped
    for j, moved in step.items():
        if j not in mean:
            return f"the step has group {shown(j)}, expected some of {list(mean)}"
        if not isinstance(moved, Tensor) or not moved.is_floating_point() or moved.shape != mean[j].shape:
            like = f"expected a vector like its mean, of {len(mean[j])} values"
            return f"the step of group {j!r} is {described(moved)}, {like}"
    missing = [j for j in mean if j not in step]
    if missing:
        return f"the step lacks group {missing[0]!r}, expected every group of mean; mean[j] * 0 leaves one as it is"
    return _memory_violation(memory, "memory")


def _memory_violation(memory: Mapping[object, object], place: str) -> str:
    for name, value in memory.items():
        here = f"{place}[{shown(name)}]"
        if violation := _text_violation(name):
            return f"{here}: its name is {violation}"
        violation = _memory_violation(value, here) if isinstance(value, Mapping) else _kept_violation(value)
        if violation:
            return violation if isinstance(value, Mapping) else f"{here} is {violation}"
    return ""


def _kept_violation(value: object) -> str:
    if isinstance(value, Tensor):
        return _tensor_violation(value)
    try:
        is_json = _through_json(value) == value
    except _NO_JSON:
        is_json = False
    return "" if is_json else f"{kind_in_words(value)}, expected a tensor, a JSON value (no NaN), or a mapping of such"


def times_violation(times: object) -> str:
    """What is wrong with a clock's seconds."""
    if violation := kind_violation(times, StageTimes):
        return violation
    for name in _SECONDS:
        value = getattr(times, name)
        if not _is_number(value) or value < 0:
            return f"{name} = {shown(value)}, expected a finite number of seconds, at least 0"
    return ""


# The client's half ----------------------------------------------------------------------------------------------------


def _refined_violation(refined: Assignment, context: ClientContext, task: Assignment) -> str:
    """What is wrong with a task as the client's ``refine`` changed it."""
    if (refined.client, refined.view) != (task.client, task.view):
        return (
            f"found client {refined.client!r} and model {refined.view!r}, expected client {task.client} and "
            f"{task.view!r} as they were assigned; change what is trained, not whose task it is"
        )
    return _task_violation(refined, [task.view], context.layout)


def _loss_violation(loss: Tensor, step: LocalStep) -> str:
    """What is wrong with the loss of a mini-batch: one finite number that depends on the model."""
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


def _observed_violation(rows: Mapping[object, object], _: LocalStep) -> str:
    """What is wrong with the rows about a batch."""
    for name, value in rows.items():
        if not isinstance(value, Tensor) or not value.ndim:
            what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else kind_in_words(value)
            return f"{name!r} is {what}, expected a tensor with a row per window"
    return ""


def _sent_violation(sent: Update, context: ClientContext, made: Update) -> str:
    """What is wrong with an update that a client's ``after`` returned for the one that was ``made``.

    What it says about itself must be what was done: the client, its task, the windows, steps and loss; it may send
    fewer groups, other values, other statistics and another personal state.
    """
    if violation := kind_violation(sent.receipt, Receipt, "receipt: "):
        return violation.replace("returned", "found")
    task, assigned, layout = sent.receipt.assignment, made.receipt.assignment, context.layout
    if not _is(task, Assignment) or not _is(sent.receipt.work, Work):
        found = f"{kind_in_words(task)} and {kind_in_words(sent.receipt.work)}"
        return f"receipt: found {found}, expected an Assignment and its Work"
    if claim := (
        _differing(task, assigned, {"up"})
        or _differing(sent.receipt.work, made.receipt.work, set())
        or _differing(sent.receipt, made.receipt, _MAY_CHANGE | {"work"})
    ):
        return f"the update of client {assigned.client} claims {claim}; leave what it says about itself as it is"
    if violation := _selection_violation(task.up, layout, layout.ids) or _flow_violation(
        f"client {task.client}", task, layout
    ):
        return f"up: {violation}"
    if assigned.up and not task.up:
        return f"client {task.client} sends no group, expected those of its assignment, {sorted(assigned.up)}, or some"
    return _payload_violation(sent, layout) or _bytes_violation(sent, made)


def _differing(value: object, expected: object, without: Collection[str]) -> str:
    """First field in which two records differ: ``num_windows = 5, expected 56``."""
    for field in fields(expected):  # type: ignore[arg-type]
        a, b = getattr(value, field.name), getattr(expected, field.name)
        are_nan = isinstance(a, float) and isinstance(b, float) and isnan(a) and isnan(b)
        if field.name not in without and a is not b and not are_nan and a != b:
            return f"{field.name} = {shown(a)}, expected {shown(b)}"
    return ""


def _payload_violation(sent: Update, layout: GroupLayout) -> str:
    """What is wrong with the tensors of an update that ``after`` returned."""
    tensors = {"stats": sent.receipt.stats, "state": sent.state}
    for name, values in ({"delta": sent.delta, "kept": sent.kept} | tensors).items():
        if not _is(values, Mapping):
            return f"{name}: found {kind_in_words(values)}, expected tensors by name"
    if violation := mismatch(layout, sent):
        return violation
    for name, values in tensors.items():
        for key, value in values.items():
            if violation := _tensor_violation(value):
                return f"{name}[{key!r}] is {violation}"
    return ""


def _bytes_violation(sent: Update, made: Update) -> str:
    """What is wrong with the bytes beside the payload, where ``after`` changed them."""
    for name in ("bytes_down", "bytes_up"):
        beside = getattr(sent.receipt, name)
        if not _is(beside, int) or _is(beside, bool) or beside < getattr(made.receipt, name):
            return f"receipt: {name} = {shown(beside)}, expected a whole number of bytes beside the payload, at least 0"
    return ""


def _values_violation(sent: Update) -> str:
    """Name of the first part of an update with NaN or infinity; empty where all are finite."""
    for name, values in (("delta", sent.delta), ("stats", sent.receipt.stats), ("state", sent.state)):
        for key, value in values.items():
            if value.is_floating_point() and not all_finite(value):
                return f"{name}[{key!r}]"
    return ""


def _sent_not_finite_violation(sent: Update) -> str:
    """Find NaN or infinity in an update whose inputs were finite."""
    part = _values_violation(sent)
    return f"{part} has NaN or infinity, expected finite values as it was given" if part else ""


# The table -----------------------------------------------------------------------------------------------------------

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Returned:
    """What a function of a method must return.

    Attributes:
        kind: class of the value.
        checks: checks of the value and of the function's arguments, each with the rule of `relief-ray conformance` that
            it belongs to; a check gives a violation in words, or an empty text.
        convert: makes what the program works with of an accepted value.
    """

    kind: type = object
    checks: tuple[tuple[str, _Check], ...] = ()
    convert: Callable[[Any], object] | None = None


def _returned(check: _Check, kind: type = object, rule: str = "finishes", convert: type | None = None) -> Returned:
    return Returned(kind=kind, checks=((rule, check),), convert=convert)


def _state(layout_of: Callable[..., GroupLayout]) -> Returned:
    return Returned(
        kind=ServerState,
        checks=(
            ("state", lambda after, *arguments: _state_violation(after, layout_of(*arguments))),
            ("finishes", lambda after, *_: _not_finite_violation(after)),
        ),
    )


_RECORDS: Mapping[str, type] = {
    "": Strategy,
    "client.": ClientProgram,
    "reduction.": WeightedSum,
    "insight.": Insight,
    "averaging.": Averaging,
}
# What each function is declared as, by its name in messages.
_DECLARED: Mapping[str, str] = {
    f"{prefix}{each.name}": str(each.type) for prefix, record in _RECORDS.items() for each in fields(record)
} | {"weight": "float", "train": "Sequence[ParamGroup]", "server_step": "tuple[Params, Memory]"}
# `client.after` is judged by `_after`, too.
_CONTRACT: Mapping[str, Returned] = MappingProxyType(
    {
        "init": _state(lambda layout, *_: layout),
        "allocate": _returned(_tasks_violation, rule="allocation", convert=tuple),
        "aggregate": _state(lambda _state, _reduced, tools: tools.layout),
        "evaluate": _returned(_plan_violation, EvalPlan, "evaluation"),
        "everybody": Returned(kind=bool),
        "adapt": _returned(
            _each_is((Classifier, Experts, Connector), "Classifier, Experts or Connector"), convert=tuple
        ),
        "client.refine": _returned(_refined_violation, Assignment, "allocation"),
        "client.objective": _returned(_loss_violation, Tensor),
        "client.observe": _returned(_observed_violation, Mapping),
        "client.after": _returned(_sent_violation, Update),
        "reduction.weight": _returned(
            lambda weight, _group, client, _task: _weight_violation(weight, client.id), convert=float
        ),
        "reduction.bucket": Returned(kind=str),
        "weight": _returned(lambda weight, client, _: _weight_violation(weight, client.id), convert=float),
        "train": _returned(_chosen_violation, rule="allocation"),
        "server_step": _returned(_stepped_violation, rule="state"),
        "insight.deadline_s": _returned(_deadline_violation, convert=float),
        "insight.warnings": _returned(_each_is((str,), "sentences"), convert=tuple),
        "insight.rests": Returned(kind=bool),
        "insight.diagnose": _returned(_tables_violation, Mapping),
        "insight.explain": Returned(kind=Explanation),
        "averaging.averaged": _returned(_averaged_violation, Mapping),
        "averaging.identities": _returned(_identities_violation),
    }
)


def guarded(strategy: Strategy) -> Strategy:
    """The same method; each function of the user's own is held to its contract, those of this project are as they were.

    A violation raises ``UserCodeFailed``: function, file and line, what it returned, what was expected.
    """
    checked = with_functions(
        strategy, lambda name, function: held(name, function) if users_function(function) else function
    )
    weight = getattr(strategy.reduction, "weight", None)
    if weight is None or not users_function(weight):
        return checked
    return replace(checked, aggregate=partial(_weighed, weight, checked.aggregate))


def with_functions(strategy: Strategy, wrap: Callable[[str, AnyFunction], AnyFunction]) -> Strategy:
    """The same method with ``wrap(name, function)`` in place of each function that ``_CONTRACT`` names."""
    parts = {name: _wrapped(getattr(strategy, name), f"{name}.", wrap) for name in _PARTS}
    return _wrapped(replace(strategy, **parts), "", wrap)


_PARTS = tuple(prefix.removesuffix(".") for prefix in _RECORDS if prefix)


def _wrapped(record: T, prefix: str, wrap: Callable[[str, AnyFunction], AnyFunction]) -> T:
    names = [each.name for each in fields(record) if f"{prefix}{each.name}" in _CONTRACT]  # type: ignore[arg-type]
    functions = {name: value for name in names if callable(value := getattr(record, name))}
    return replace(record, **{name: wrap(f"{prefix}{name}", f) for name, f in functions.items()})  # type: ignore[type-var]


def held(name: str, function: AnyFunction) -> Callable[..., Any]:
    """The function, which is held to ``_CONTRACT[name]`` whenever it is called."""
    own: Mapping[str, AnyFunction] = {"client.after": _after, "client.objective": _objective}
    return partial(own.get(name, _call), name, function)


def _call(name: str, function: AnyFunction, *arguments: object) -> object:
    value, expected = called(function, name, *arguments), _CONTRACT[name]
    _require(name, function, "finishes", lambda: kind_violation(value, expected.kind))
    for rule, check in expected.checks:
        _require(name, function, rule, check, value, *arguments)
    return value if expected.convert is None else expected.convert(value)


def _objective(name: str, function: AnyFunction, step: LocalStep) -> object:
    versions = {j: x._version for j, x in step.start.items()}
    loss = _call(name, function, step)
    changed = next((j for j, x in step.start.items() if x._version != versions[j]), None)
    if changed is not None:
        said = f"changed the received model in place, group {changed!r}; expected a loss alone"
        _require(name, function, "finishes", lambda: said)
    return loss


def _weighed(weight: AnyFunction, aggregate: AnyFunction, *arguments: Any) -> Any:
    """Aggregate, after it was seen that a mean can be divided by every group's weights."""
    sums = ((j, part.weight) for groups in arguments[1].sums.values() for j, part in groups.items())
    said = (sum_violation(total, f"every client that sent group {j!r}") for j, total in sums)
    if wrong := next(filter(None, said), ""):
        _require("reduction.weight", weight, "finishes", lambda: wrong)
    return aggregate(*arguments)


def _after(name: str, function: AnyFunction, context: ClientContext, made: Update) -> object:
    was_finite = not _values_violation(made)
    sent = _call(name, function, context, made)
    if was_finite:
        _require(name, function, "finishes", _sent_not_finite_violation, sent)
    return sent


def _require(name: str, function: AnyFunction, rule: str, check: _Check, *arguments: object) -> None:
    require(function, name, f"what it is declared as, {_DECLARED[name]}", check, *arguments, rule=rule)
