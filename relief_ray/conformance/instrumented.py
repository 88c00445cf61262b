"""Instruments a strategy: every result of its functions is checked before the round goes on.

Of the client's functions it checks what they change and what their receipts charge.
"""

from __future__ import annotations

import json
import pickle
import random
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from types import FunctionType, ModuleType

import numpy as np
import torch
from torch import Tensor

from relief_ray.client import ClientContext, ClientProgram, LocalStep
from relief_ray.codec import encoded_nbytes, sparse_nbytes
from relief_ray.config import ExperimentConfig
from relief_ray.conformance.rules import Broken
from relief_ray.federated import RoundContext, ServerTools, Strategy
from relief_ray.groups import GroupLayout, Params, Selection
from relief_ray.messages import (
    NO_STATE,
    Assignment,
    ClientId,
    ClientState,
    EvalPlan,
    Fleet,
    Reduced,
    ServerState,
    Update,
)
from relief_ray.plugins import check_returned, sources
from relief_ray.records.identity import state_sha256
from relief_ray.streams import Streams
from relief_ray.training.local_step import is_mean_over_windows

_Snapshot = dict[tuple[str, str], bytes]


def _instrument_client(client: ClientProgram) -> ClientProgram:
    """Wrap the client's functions; one that changes the received model or the client's state raises ``Broken``."""
    return ClientProgram(
        refine=partial(_refine, client),
        objective=partial(_objective, client),
        observe=partial(_observe, client),
        after=partial(_after, client),
        is_mean=is_mean_over_windows(client),
    )


def _refine(client: ClientProgram, context: ClientContext, task: Assignment) -> Assignment:
    before = _client_sha256(context.start, context.state)
    refined = client.refine(context, task)
    _check_client_kept("refine", before, context.start, context.state)
    return refined


def _objective(client: ClientProgram, step: LocalStep) -> Tensor:
    before = _client_sha256(step.start)
    loss = client.objective(step)
    _check_client_kept("objective", before, step.start)
    return loss


def _observe(client: ClientProgram, step: LocalStep) -> Mapping[str, Tensor]:
    before = _client_sha256(step.start)
    statistics = client.observe(step)
    _check_client_kept("observe", before, step.start)
    return statistics


def _after(client: ClientProgram, context: ClientContext, update: Update) -> Update:
    before = _client_sha256(context.start, context.state)
    sent = client.after(context, update)
    _check_client_kept("after", before, context.start, context.state)
    _check_bytes(sent, context.layout)
    return sent


def _check_client_kept(function: str, before: str, start: Params, state: ClientState = NO_STATE) -> None:
    if _client_sha256(start, state) != before:
        raise Broken("purity", f"client.{function} changed the model or the client's state that it was given")


def _client_sha256(start: Params, state: ClientState = NO_STATE) -> str:
    return state_sha256(ServerState(models={"start": start}, tensors=state))


def _check_bytes(update: Update, layout: GroupLayout) -> None:
    """Refuse a receipt that charges less than the length of what is sent; more may be charged, by a table.

    What is sent: ``encode(up)``, or ``encode_sparse(up)`` where that is shorter, and the receipt's ``stats``, however
    they are encoded no shorter than each distinct value once.

    Raises:
        Broken: rule ``bytes``.
    """
    receipt, task = update.receipt, update.receipt.assignment
    if any(j not in layout for j in (*task.down, *task.up)):
        return  # reported by the rule `allocation`
    num_kept = sum(int(delta.count_nonzero()) for delta in update.delta.values())
    shortest = min(encoded_nbytes(layout, task.up), sparse_nbytes(layout, task.up, num_kept)) if task.up else 0
    shortest += sum(torch.unique(value).numel() * value.element_size() for value in receipt.stats.values())
    received = encoded_nbytes(layout, task.down) if task.down else 0
    for name, charged, least in (("up", receipt.bytes_up, shortest), ("down", receipt.bytes_down, received)):
        if charged < least:
            raise Broken("bytes", f"client {task.client}: {charged} bytes {name}, its payload has at least {least}")


def instrument(strategy: Strategy, fleet: Fleet, layout: GroupLayout) -> Strategy:
    """Wrap all functions of a strategy; a call that breaks a rule raises ``Broken``."""
    return replace(
        strategy,
        init=partial(_init, strategy),
        allocate=partial(_allocate, strategy),
        aggregate=partial(_aggregate, strategy),
        client=_instrument_client(strategy.client),
        evaluate=partial(_evaluate, strategy, layout),
    )


def _init(strategy: Strategy, layout: GroupLayout, fleet: Fleet, streams: Streams, start: Params) -> ServerState:
    before, drawn = _sha256(ServerState(models={"start": start})), _generators()
    state = strategy.init(layout, fleet, streams, start)
    _same("init", before, ServerState(models={"start": start}), drawn)
    _check_state("init", state, layout)
    return state


def _allocate(strategy: Strategy, state: ServerState, context: RoundContext) -> tuple[Assignment, ...]:
    before, drawn = _sha256(state), _generators()
    tasks = strategy.allocate(state, context)
    _same("allocate", before, state, drawn)
    _check_tasks("allocate", tasks, state, context.layout, [c.id for c in context.participants], len(context.fleet))
    return tasks


def _aggregate(strategy: Strategy, state: ServerState, reduced: Reduced, tools: ServerTools) -> ServerState:
    tasks = [r.assignment for r in reduced.receipts]
    _check_tasks("client.refine", tasks, state, tools.layout, [c.id for c in tools.participants], len(tools.fleet))
    before, drawn = _sha256(state), _generators()
    after = strategy.aggregate(state, reduced, tools)
    check_returned(after, ServerState, strategy.aggregate, "aggregate")  # as the round does, which sees the wrapper
    _same("aggregate", before, state, drawn)
    _check_state("aggregate", after, tools.layout)
    return after


def _evaluate(strategy: Strategy, layout: GroupLayout, state: ServerState, fleet: Fleet) -> EvalPlan:
    before, drawn = _sha256(state), _generators()
    plan = strategy.evaluate(state, fleet)
    _same("evaluate", before, state, drawn)
    targets = (*((plan.canonical,) if plan.canonical else ()), *plan.clients)
    labels = [t.label for t in targets]
    known = {c.id for c in fleet.clients}
    for target in targets:
        unknown = [j for j in target.keep if j not in layout]
        if labels.count(target.label) > 1:
            raise Broken("evaluation", f"two targets are labelled {target.label!r}")
        if target.view not in state.models or unknown or not ({target.client} - {None}) <= known:
            raise Broken("evaluation", f"{target}: unknown model, client or group; models are {sorted(state.models)}")
    return plan


def _same(function: str, before: str, state: ServerState, drawn: Mapping[str, bytes]) -> None:
    if _sha256(state) != before:
        raise Broken("purity", f"{function} changed the state that it was given")
    now = _generators()
    if changed := sorted(name for name in drawn if now[name] != drawn[name]):
        raise Broken("randomness", f"{function} drew from {', '.join(changed)}")


def _sha256(state: ServerState) -> str:
    return state_sha256(state)


def _check_tasks(
    function: str,
    tasks: Iterable[Assignment],
    state: ServerState,
    layout: GroupLayout,
    participants: list[ClientId],
    num_clients: int,
) -> None:
    """Refuse assignments that cannot be carried out.

    Raises:
        Broken: rule ``allocation``.
    """
    seen: set[ClientId] = set()
    for task in tasks:
        who = f"{function}: client {task.client}"
        if task.client not in participants:
            raise Broken("allocation", f"{who} does not take part in this round; participants are {participants}")
        if task.client in seen:
            raise Broken("allocation", f"{who} has two assignments")
        seen.add(task.client)
        if task.view not in state.models:
            raise Broken("allocation", f"{who} starts from model {task.view!r}; models are {sorted(state.models)}")
        for name in ("down", "train", "up", "keep"):
            if unknown := [j for j in getattr(task, name) if j not in layout]:
                raise Broken("allocation", f"{who}, {name}: groups {unknown} are unknown; there are {list(layout.ids)}")
        _check_flow(who, task, layout)


def _check_flow(who: str, task: Assignment, layout: GroupLayout) -> None:
    if task.epochs < 1:
        raise Broken("allocation", f"{who} trains {task.epochs} epochs, expected at least 1")
    down, train, up, keep = (_mask(layout, s) for s in (task.down, task.train, task.up, task.keep))
    for name, lacking in (
        ("trains what it neither receives (down) nor keeps", train & ~(down | keep)),
        ("sends up what it does not train", up & ~train),
    ):
        if bool(lacking.any()):
            groups = [j for j in layout.ids if bool(lacking[layout.span(j)].any())]
            raise Broken("allocation", f"{who} {name}: {', '.join(groups)}")


def _mask(layout: GroupLayout, selection: Selection) -> Tensor:
    mask = torch.zeros(layout.numel, dtype=torch.bool)
    for j, part in selection.items():
        mask[layout.span(j)][layout.indices(j, part)] = True
    return mask


def _check_state(function: str, state: ServerState, layout: GroupLayout) -> None:
    """Refuse a state that a checkpoint could not restore.

    Raises:
        Broken: rule ``state``.
    """
    for name, params in state.models.items():
        if set(params) != set(layout.ids):
            raise Broken("state", f"{function}: model {name!r} has groups {list(params)}, expected {list(layout.ids)}")
        for j, theta in params.items():
            if theta.dtype != torch.float32 or theta.shape != (layout[j].numel,):
                kind = f"{theta.dtype} {tuple(theta.shape)}"
                raise Broken("state", f"{function}: {name!r}, group {j!r}: {kind}, expected float32 vectors")
    for name, value in dict[str, object](state.tensors).items():
        if not isinstance(value, Tensor):
            raise Broken("state", f"{function}: tensors[{name!r}] is a {type(value).__name__}, expected a tensor")
    try:
        again = json.loads(json.dumps(state.facts, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise Broken("state", f"{function}: facts are no JSON ({error})") from error
    if again != state.facts:
        raise Broken("state", f"{function}: facts {state.facts} come back from JSON as {again}")


def _generators() -> dict[str, bytes]:
    states = {
        "random": random.getstate(),
        "numpy.random": np.random.get_state(),
        "torch's default generator": torch.get_rng_state().numpy().tobytes(),
    }
    return {name: pickle.dumps(state) for name, state in states.items()}


def global_state(config: ExperimentConfig) -> _Snapshot:
    """Pickle everything global that a strategy must not change, by rule and name.

    These are random generators, torch's settings, and the variables of its modules and their classes.
    """
    snapshot: _Snapshot = {("randomness", name): state for name, state in _generators().items()}
    settings = (torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads())
    snapshot["globals", "settings of torch"] = pickle.dumps([str(s) for s in settings])
    files = {source.name for source in sources(config.modules())}
    names = {type(config.strategy).__module__, *(f.removesuffix(".py").replace("/", ".") for f in files)}
    for name in sorted(names & sys.modules.keys()):
        for place, value in _variables(sys.modules[name], name):
            try:
                snapshot["globals", place] = pickle.dumps(value)
            except Exception:
                continue
    return snapshot


def _variables(owner: object, place: str) -> Iterable[tuple[str, object]]:
    for name, value in vars(owner).items():
        if isinstance(value, type) and value.__module__ == getattr(owner, "__name__", None):
            yield from _variables(value, f"{place}.{name}")
        elif not name.startswith(("__", "_abc", "model_")) and not isinstance(value, (type, ModuleType, FunctionType)):
            yield f"{place}.{name}", value
