"""Clients by their set of sensors (a task of their own), and the adapters of all tasks as each of them holds them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from torch import Tensor

from relief_ray.extra_modules import Connector
from relief_ray.groups import GroupId, Params
from relief_ray.messages import ClientId, Fleet
from relief_ray.server.aggregation import mix_models, model_of, normalised, richest


def tasks_of(fleet: Fleet) -> list[int]:
    """Each client's task: sets of sensors, numbered by their first owner."""
    sets = list(dict.fromkeys(c.modalities for c in fleet.clients))
    return [sets.index(c.modalities) for c in fleet.clients]


def mixing_parts(connector: Connector) -> list[GroupId]:
    """What a client learns for itself in stage 2: the router and what it adds to other tasks' adapters."""
    return [connector.router, *(connector.cross(i) for i in range(2, connector.num_tasks + 1))]


def hand_out(
    models: Mapping[str, Params], adapters: Sequence[Tensor], connector: Connector, tasks: Sequence[int]
) -> dict[str, Params]:
    """Every client's model with all tasks' adapters: its own first, the others in order."""

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
    """By task the mean of what its clients have now, by their ``shares``; as it was where none of them took part."""
    own = connector.task(1)
    found = []
    for t in range(max(tasks) + 1):
        came = [n for n in local if tasks[n] == t]
        before = models[model_of(tasks.index(t))][own]
        found.append(
            mix_models([local[n] for n in came], normalised([shares[n] for n in came]), [own])[own] if came else before
        )
    return found


def canonical(
    models: Mapping[str, Params], fleet: Fleet, shares: Sequence[float], groups: Collection[GroupId]
) -> dict[GroupId, Tensor]:
    """The mean of the richest clients' models over ``groups``, the first one's elsewhere."""
    full = richest(fleet)
    mean = mix_models([models[model_of(n)] for n in full], normalised([shares[n] for n in full]), groups)
    return {**models[model_of(full[0])], **mean}
