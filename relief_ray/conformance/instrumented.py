"""Instruments a strategy: every result of its functions is checked before the round goes on.

Of the client's functions it checks what they change and what their receipts charge.
"""

from __future__ import annotations

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

from relief_ray.config.experiment import ExperimentConfig
from relief_ray.conformance.rules import Broken
from relief_ray.core.client import ClientContext, ClientProgram, LocalStep
from relief_ray.core.codec import encoded_nbytes, sparse_nbytes
from relief_ray.core.federated import RoundContext, ServerTools, Strategy
from relief_ray.core.groups import GroupLayout, Params
from relief_ray.core.messages import (
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
from relief_ray.core.streams import Streams
from relief_ray.plugins.blame import check_returned
from relief_ray.plugins.contract import plan_fault, state_fault, tasks_fault
from relief_ray.plugins.load import sources
from relief_ray.records.identity import state_sha256
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


def instrument(strategy: Strategy) -> Strategy:
    """Wrap all functions of a strategy; a call that breaks a rule raises ``Broken``."""
    return replace(
        strategy,
        init=partial(_init, strategy),
        allocate=partial(_allocate, strategy),
        aggregate=partial(_aggregate, strategy),
        client=_instrument_client(strategy.client),
        evaluate=partial(_evaluate, strategy),
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
    _check_tasks("allocate", tasks, state, context.layout, [c.id for c in context.participants])
    return tasks


def _aggregate(strategy: Strategy, state: ServerState, reduced: Reduced, tools: ServerTools) -> ServerState:
    tasks = [r.assignment for r in reduced.receipts]
    _check_tasks("client.refine", tasks, state, tools.layout, [c.id for c in tools.participants])
    before, drawn = _sha256(state), _generators()
    after = strategy.aggregate(state, reduced, tools)
    check_returned(after, ServerState, strategy.aggregate, "aggregate")  # as the round does, which sees the wrapper
    _same("aggregate", before, state, drawn)
    _check_state("aggregate", after, tools.layout)
    return after


def _evaluate(strategy: Strategy, state: ServerState, fleet: Fleet) -> EvalPlan:
    before, drawn = _sha256(state), _generators()
    plan = strategy.evaluate(state, fleet)
    _same("evaluate", before, state, drawn)
    if fault := plan_fault(plan, state.models, fleet):
        raise Broken("evaluation", fault)
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
    function: str, tasks: Iterable[Assignment], state: ServerState, layout: GroupLayout, participants: list[ClientId]
) -> None:
    """Refuse assignments that cannot be carried out.

    Raises:
        Broken: rule ``allocation``.
    """
    if fault := tasks_fault(tuple(tasks), state.models.keys(), layout, participants):
        raise Broken("allocation", f"{function}: {fault}")


def _check_state(function: str, state: ServerState, layout: GroupLayout) -> None:
    """Refuse a state that a checkpoint could not restore.

    Raises:
        Broken: rule ``state``.
    """
    if fault := state_fault(state, layout):
        raise Broken("state", f"{function}: {fault}")


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
