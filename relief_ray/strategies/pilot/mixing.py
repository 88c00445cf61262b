"""Adapters of all tasks as each client holds them, and models averaged with their nearest (Pilot).

A task is a set of sensors. Adaptive aggregation mixes a client's model with those nearest in parameter space.

Legend: n clients, ``theta_k`` the local model of client k, ``d_ki = |theta_k - theta_i|``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
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
    """Give every client's model all tasks' adapters: its own first, the others in order."""

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


Matrix = NDArray[np.float64]


def distances(models: Sequence[Params], groups: Collection[GroupId]) -> Matrix:
    """``d`` (n, n) over ``groups``, in float64 from true differences: equal models are at distance 0 exactly."""
    squares = torch.zeros(len(models) * (len(models) - 1) // 2, dtype=torch.float64)
    for j in groups:
        squares += torch.pdist(torch.stack([theta[j].to(torch.float64) for theta in models])).square()
    upper = np.zeros((len(models), len(models)))
    upper[np.triu_indices(len(models), 1)] = squares.sqrt().numpy()
    return upper + upper.T


def mixing(distance: Matrix, sizes: Sequence[float], num_neighbours: int) -> Matrix:
    """Weights (n, n), rows sum to 1: ``beta_k`` on the diagonal, the rest over the nearest others.

    ``w_ki`` is proportional to ``1 / d_ki`` within ``N_k``, the ``num_neighbours`` nearest (the first of equals);
    neighbours at distance 0 share everything. ``beta_k = n_k / (n_k + sum_{i in N_k} n_i)`` with ``sizes`` n_k.
    """
    number = len(distance)
    weights = np.zeros((number, number))
    for k in range(number):
        others = sorted((i for i in range(number) if i != k), key=lambda i: (distance[k, i], i))[:num_neighbours]
        own = sizes[k] / (sizes[k] + sum(sizes[i] for i in others))
        weights[k, k] = own if others else 1.0
        twins = [i for i in others if distance[k, i] == 0.0]
        parts = dict.fromkeys(twins, 1.0) if twins else {i: 1.0 / float(distance[k, i]) for i in others}
        for i, part in parts.items():
            weights[k, i] = (1.0 - own) * part / sum(parts.values())
    return weights


def mix_with_nearest(
    models: Sequence[Params], sizes: Sequence[float], num_neighbours: int, groups: Collection[GroupId]
) -> list[dict[GroupId, Tensor]]:
    """Mix each model with its nearest ones, by ``mixing``."""
    weights = mixing(distances(models, groups), sizes, num_neighbours)
    return [mix_models(models, row, groups) for row in weights.tolist()]


def local_models(starts: Sequence[Params], deltas: Sequence[Mapping[GroupId, Tensor]]) -> list[dict[GroupId, Tensor]]:
    """``theta_k = start_k + Delta_k`` in float64, of the groups that were sent."""
    return [
        {j: start[j].to(torch.float64) + moved.to(torch.float64) for j, moved in delta.items()}
        for start, delta in zip(starts, deltas, strict=True)
    ]
