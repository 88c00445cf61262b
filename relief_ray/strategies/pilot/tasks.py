"""Tasks, one per set of sensors, and the adapters of all tasks as each client holds them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from torch import Tensor

from relief_ray.extra_modules import Connector
from relief_ray.groups import GroupId, Params
from relief_ray.messages import ClientId, Fleet
from relief_ray.server.aggregation import mix_models, model_of, normalised, richest


def tasks_of(fleet: Fleet) -> list[int]:
    """Task of each client: its set of sensors, numbered by first owner."""
    sets = list(dict.fromkeys(c.modalities for c in fleet.clients))
    return [sets.index(c.modalities) for c in fleet.clients]


def mixing_parts(connector: Connector) -> list[GroupId]:
    """Groups that a client keeps in stage 2: the router and its additions to other tasks' adapters."""
    return [connector.router, *(connector.cross(i) for i in range(2, connector.num_tasks + 1))]


def hand_out(
    models: Mapping[str, Params], adapters: Sequence[Tensor], connector: Connector, tasks: Sequence[int]
) -> dict[str, Params]:
    """Gives every client's model all tasks' adapters: its own first, the others in order."""

    def held(own: int) -> dict[GroupId, Tensor]:
        order = [own, *(t for t in range(len(adapters)) if t != own)]
        return {connector.task(i): adapters[t] for i, t in enumerate(order, 1)}

    return {model_of(n): {**models[model_of(n)], **held(t)} for n, t in enumerate(tasks)}


def next_adapters(
    models: Mapping[str, Params],
    local: Mapping[ClientId, Params],
    shares: Sequence[float],
    connector: Connector,
    tasks: Sequence[int],
) -> list[Tensor]:
    """Adapter of each task: the mean over its clients by ``shares``, unchanged where none of them took part."""
    own = connector.task(1)
    adapters = []
    for t in range(max(tasks) + 1):
        present = [n for n in local if tasks[n] == t]
        before = models[model_of(tasks.index(t))][own]
        if present:
            weights = normalised([shares[n] for n in present])
            adapters.append(mix_models([local[n] for n in present], weights, [own])[own])
        else:
            adapters.append(before)
    return adapters


def canonical(
    models: Mapping[str, Params], fleet: Fleet, shares: Sequence[float], groups: Collection[GroupId]
) -> dict[GroupId, Tensor]:
    """Mean of the richest clients' models over ``groups``; other groups are the first one's."""
    full = richest(fleet)
    mean = mix_models([models[model_of(n)] for n in full], normalised([shares[n] for n in full]), groups)
    return {**models[model_of(full[0])], **mean}
