"""Instruments a strategy: what each of its functions is given and returns is judged before the round goes on."""

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

from relief_ray.config.experiment import ExperimentConfig
from relief_ray.conformance.rules import Broken
from relief_ray.core.client import ClientContext, LocalStep
from relief_ray.core.federated import Strategy
from relief_ray.core.messages import Receipt, ServerState, Update
from relief_ray.plugins.blame import PROJECT, AnyFunction, settings_of_torch
from relief_ray.plugins.contract import held, with_functions
from relief_ray.plugins.load import sources
from relief_ray.records.identity import state_sha256
from relief_ray.training.local_step import is_mean_over_windows

_Snapshot = dict[tuple[str, str], object]


def instrument(strategy: Strategy) -> Strategy:
    """Wrap every function, also built-in ones, to check its contract and the rules on what it may change.

    A call that violates one raises ``UserCodeFailed`` with the rule, or ``Broken``.
    """
    watched = with_functions(strategy, lambda name, function: held(name, partial(_watched, name, function)))
    return replace(watched, client=replace(watched.client, is_mean=is_mean_over_windows(strategy.client)))


def _watched(name: str, function: AnyFunction, *arguments: object) -> object:
    """Call a function and check that it changes neither its inputs nor the global random generators."""
    before, generators = _inputs_sha256(arguments), _generators()
    value = function(*arguments)
    if _inputs_sha256(arguments) != before:
        changed = "the model or the client's state, or the labels" if name.startswith("client.") else "the state"
        raise Broken("purity", f"{name} changed {changed} that it was given")
    now = _generators()
    if drawn := sorted(each for each in generators if now[each] != generators[each]):
        raise Broken("randomness", f"{name} drew from {', '.join(drawn)}")
    if isinstance(value, Update) and isinstance(value.receipt, Receipt) and isinstance(arguments[0], ClientContext):
        _check_bytes(value)
    return value


def _inputs_sha256(arguments: Iterable[object]) -> list[str]:
    """Hashes of the models, states and labels among a function's arguments."""
    states: list[ServerState] = []
    for each in arguments:
        if isinstance(each, ServerState):
            states.append(each)
        elif isinstance(each, ClientContext):
            states.append(ServerState(models={"start": each.start}, tensors=each.state))
        elif isinstance(each, LocalStep):
            states.append(ServerState(models={"start": each.start}, tensors={"labels": each.labels}))
        elif isinstance(each, Mapping):  # the model that `init` begins with
            states.append(ServerState(models={"start": each}))
    return [state_sha256(state) for state in states]


def _check_bytes(update: Update) -> None:
    """Refuse a receipt that charges fewer bytes beside the payload than its ``stats`` have.

    However they are encoded, they are no shorter than each distinct value once.

    Raises:
        Broken: rule ``bytes``.
    """
    receipt = update.receipt
    least = sum(torch.unique(value).nbytes for value in receipt.stats.values())
    if receipt.bytes_up < least:
        raise Broken(
            "bytes",
            f"client {receipt.assignment.client}: {receipt.bytes_up} bytes up beside its payload, its statistics have "
            f"at least {least}",
        )


def _generators() -> dict[str, bytes]:
    states = {
        "random": random.getstate(),
        "numpy.random": np.random.get_state(),
        "torch's default generator": torch.get_rng_state().numpy().tobytes(),
    }
    return {name: pickle.dumps(state) for name, state in states.items()}


def global_state(config: ExperimentConfig) -> _Snapshot:
    """Everything global that a strategy must not change, by rule and name; what can change in place is pickled.

    These are random generators, torch's settings and functions, and the variables of its modules and their classes.
    """
    snapshot: _Snapshot = {("randomness", name): state for name, state in _generators().items()}
    snapshot |= {("globals", name): value for name, value in settings_of_torch().items()}
    files = {source.name for source in sources(config.modules())}
    names = {type(config.strategy).__module__, *(f.removesuffix(".py").replace("/", ".") for f in files)}
    for name in sorted(names & sys.modules.keys()):
        for place, value in _variables(sys.modules[name], name):
            try:
                snapshot["globals", place] = pickle.dumps(value)
            except Exception:
                continue
    return snapshot


def replaced(config: ExperimentConfig) -> list[str]:
    """Names of functions of this project, torch and NumPy that the user's modules have replaced."""
    own = set(config.modules())
    # By ``type``: some objects of torch warn where they are asked for their class.
    return sorted(
        f"{place}.{key}"
        for name, module in tuple(sys.modules.items())
        if name.partition(".")[0] in (*PROJECT, "torch", "numpy", "random")
        for place, owner in (
            (name, module),
            *((f"{name}.{key}", each) for key, each in tuple(vars(module).items()) if issubclass(type(each), type)),
        )
        for key, value in tuple(vars(owner).items())
        if type(value) is FunctionType and value.__module__ in own
    )


def _variables(owner: object, place: str) -> Iterable[tuple[str, object]]:
    for name, value in vars(owner).items():
        if isinstance(value, type) and value.__module__ == getattr(owner, "__name__", None):
            yield from _variables(value, f"{place}.{name}")
        elif not name.startswith(("__", "_abc", "model_")) and not isinstance(value, (type, ModuleType, FunctionType)):
            yield f"{place}.{name}", value
