"""Adapters of all tasks as each client holds them, and models averaged with their nearest (Pilot).

A task is a set of sensors. Adaptive aggregation mixes a client's model with those nearest in parameter space.

Legend: n clients, ``theta_k`` the local model of client k, ``d_ki = |theta_k - theta_i|``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from relief_ray.core.extra_modules import Connector
from relief_ray.core.groups import GroupId, Params
from relief_ray.core.messages import ClientId, Fleet
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
    local: LocalModels,
    present: Sequence[ClientId],
    shares: Sequence[float],
    connector: Connector,
    tasks: Sequence[int],
) -> list[Tensor]:
    """Adapter of each task: the mean over its clients by ``shares``, unchanged where none of them took part.

    ``present``: the clients of ``local``.
    """
    own = connector.task(1)
    sent = {n: {own: row} for n, row in zip(present, local.rows(own) if present else (), strict=True)}
    adapters = []
    for t in range(max(tasks) + 1):
        members = [n for n in present if tasks[n] == t]
        if members:
            weights = normalised([shares[n] for n in members])
            adapters.append(mix_models([sent[n] for n in members], weights, [own])[own])
        else:
            adapters.append(models[model_of(tasks.index(t))][own])
    return adapters


def canonical(
    models: Mapping[str, Params], fleet: Fleet, shares: Sequence[float], groups: Collection[GroupId]
) -> dict[GroupId, Tensor]:
    """Mean of the richest clients' models over ``groups``; other groups are the first one's."""
    full = richest(fleet)
    mean = mix_models([models[model_of(n)] for n in full], normalised([shares[n] for n in full]), groups)
    return {**models[model_of(full[0])], **mean}


Matrix = NDArray[np.float64]

# Values of a group that are worked on at a time: 100 models' share of them stays in the processor's cache.
TILE = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalModels:
    """Models ``theta_k = start_k + Delta_k`` of a round's n clients, in float64, added up where they are read.

    All of them at once would take 8 bytes a value and client (0.7 GiB of 100 clients on Backbone 1), which costs more
    time than the arithmetic.

    Attributes:
        starts: models that the clients received.
        deltas: their updates, of the groups that were sent.
    """

    starts: Sequence[Params]
    deltas: Sequence[Mapping[GroupId, Tensor]]

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self.starts)

    def rows(self, group: GroupId, columns: slice = slice(None)) -> Tensor:
        """``theta`` of one group, a row for each client (n, width)."""
        start_NW, moved_NW = (
            torch.stack([params[group][columns] for params in of]).to(torch.float64)
            for of in (self.starts, self.deltas)
        )
        return start_NW.add_(moved_NW)

    def tiles(self, group: GroupId) -> Iterator[slice]:
        """Spans of a group's values, ``TILE`` each."""
        numel = len(self.starts[0][group])
        return (slice(first, min(first + TILE, numel)) for first in range(0, numel, TILE))


def distances(local: LocalModels, groups: Collection[GroupId]) -> Matrix:
    """``d`` (n, n) over ``groups``, in float64 from true differences: equal models are at distance 0 exactly."""
    squares = torch.zeros(len(local) * (len(local) - 1) // 2, dtype=torch.float64)
    for j in groups:
        for columns in local.tiles(j):
            squares += torch.pdist(local.rows(j, columns)).square()
    upper = np.zeros((len(local), len(local)))
    upper[np.triu_indices(len(local), 1)] = squares.sqrt().numpy()
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
    local: LocalModels, sizes: Sequence[float], num_neighbours: int, groups: Collection[GroupId]
) -> list[dict[GroupId, Tensor]]:
    """Mix each model with its nearest ones, by ``mixing``, in float64 in the order of the clients."""
    weights_NN = mixing(distances(local, groups), sizes, num_neighbours)
    mixed: list[dict[GroupId, Tensor]] = [{j: torch.empty_like(start[j]) for j in groups} for start in local.starts]
    terms = _terms(weights_NN)
    for j in groups:
        for columns in local.tiles(j):
            theta_NW = local.rows(j, columns)
            total_NW = torch.zeros_like(theta_NW)
            for clients_N, weights_N1 in terms:
                total_NW += theta_NW.index_select(0, clients_N).mul_(weights_N1)
            for row, model in zip(total_NW.unbind(), mixed, strict=True):
                model[j][columns] = row
    return mixed


def _terms(weights_NN: Matrix) -> list[tuple[Tensor, Tensor]]:
    """Summands of all mixtures, the i-th of each together: whose model (N,) and its weight (N, 1), in client order.

    Mixtures of fewer models are filled up with weight 0.
    """
    chosen = [np.flatnonzero(row) for row in weights_NN]
    most = max((len(c) for c in chosen), default=0)
    clients = [np.append(c, np.full(most - len(c), k)) for k, c in enumerate(chosen)]
    index_NT = torch.tensor(np.array(clients, dtype=np.int64))
    weights_NT = torch.tensor(np.take_along_axis(weights_NN, index_NT.numpy(), 1))
    for k, c in enumerate(chosen):
        weights_NT[k, len(c) :] = 0.0
    return list(zip(index_NT.unbind(1), weights_NT.unsqueeze(2).unbind(1), strict=True))
