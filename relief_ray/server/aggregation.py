"""Means of updates and of whole models, Eqs. (3) and (4); checks of updates; what methods with many models share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import isfinite
from typing import Final

import torch
from torch import Tensor

from relief_ray.core.codec import mismatch
from relief_ray.core.groups import GroupId, GroupLayout, ParamGroup, Params, Selection, all_finite, inner_product
from relief_ray.core.messages import (
    Assignment,
    ClientId,
    ClientInfo,
    Fleet,
    GroupSum,
    Models,
    Reduced,
    States,
    Update,
    WeightedSum,
)
from relief_ray.server.reduction import add_exactly

NOT_FINITE: Final = "the update is not finite"

Total = Callable[[ParamGroup, GroupSum], float]
Weight = Callable[[ParamGroup, ClientInfo, Assignment], float]


def uniform(group: ParamGroup, client: ClientInfo, assignment: Assignment) -> float:
    """Weight 1 for every client (the default; Lemma 1's 1/N)."""
    return 1.0


def by_samples(group: ParamGroup, client: ClientInfo, assignment: Assignment) -> float:
    """Number of the client's training windows as its weight (McMahan et al.)."""
    return float(client.num_windows)


def by_task(group: ParamGroup, client: ClientInfo, assignment: Assignment) -> float:
    """Weight that the client's task was given when it was assigned."""
    return assignment.weight


def one_bucket(assignment: Assignment) -> str:
    """Bucket of a method with one global model."""
    return "global"


def mean_step(sums: Mapping[GroupId, GroupSum], total: Total, layout: GroupLayout) -> dict[GroupId, Tensor]:
    """``sum_n w_n Delta_n / total`` per group, in float64; ``total`` decides over whom the weights are normalised."""
    return {j: part.weighted / total(layout[j], part) for j, part in sums.items()}


def divergence(part: GroupSum) -> float | None:
    """``d_j = mean_n |Delta_n - mean_k Delta_k|^2`` over the clients that trained ``j`` (Eq. (5)).

    From one pass: mean of squares minus square of mean, in float64, never below zero. None where fewer than two
    trained it.
    """
    count = len(part.members)
    if count < 2:
        return None
    mean = part.plain / count
    return max(0.0, part.sq_norm / count - inner_product(mean, mean))


def mean_of(updates: Sequence[Update], shares: Sequence[float]) -> dict[GroupId, Tensor]:
    """``sum_n w_n Delta_n / sum_n w_n`` per group over collected updates that sent it whole, in float64.

    ``shares``: the weights ``w_n`` by client. Clients of weight 0 are left out, and so are groups that only they sent.
    """
    sums: dict[GroupId, tuple[float, Tensor]] = {}
    for update in updates:
        w = shares[update.receipt.assignment.client]
        for j, delta in update.delta.items() if w else ():
            before, total = sums.get(j, (0.0, torch.zeros((), dtype=torch.float64)))
            sums[j] = (before + w, total + w * delta.to(torch.float64))
    return {j: total / w for j, (w, total) in sums.items()}


def means(buckets: Sequence[Mapping[GroupId, GroupSum]]) -> dict[GroupId, Tensor]:
    """``sum_n w_n Delta_n / sum_n w_n`` over all members of several buckets, in their order, in float64."""
    mean = {}
    for j in dict.fromkeys(j for bucket in buckets for j in bucket):
        parts = [bucket[j] for bucket in buckets if j in bucket]
        first, *rest = (part.weighted for part in parts)
        mean[j] = sum(rest, first) / sum(part.weight for part in parts)
    return mean


def over_members(group: ParamGroup, part: GroupSum) -> float:
    """Divide by the summed weights of the clients that sent the group (Eqs. (3), (4)).

    The weights themselves are the strategy's, e.g. ``relief.strategy.role_weight`` with ``|M_n|`` for B.
    """
    return part.weight


def apply_step(theta: Params, step: Mapping[GroupId, Tensor]) -> dict[GroupId, Tensor]:
    """``theta_j + step_j`` added in float64, in theta's type; groups without a step stay bit for bit."""
    return {
        j: add_exactly(value, step[j], torch.empty_like(value)) if j in step else value for j, value in theta.items()
    }


def weighted_mean(parts: Sequence[tuple[float, Tensor]]) -> Tensor:
    """``sum_k w_k theta_k / sum_k w_k`` of ``(w_k, theta_k)``, in float64."""
    total = torch.stack([w * theta.to(torch.float64) for w, theta in parts]).sum(0)
    return (total / sum(w for w, _ in parts)).to(torch.float32)


def mean_models(models: Sequence[Params]) -> dict[GroupId, Tensor]:
    """Plain mean of whole models, ``weighted_mean`` group by group."""
    return {j: weighted_mean([(1.0, theta[j]) for theta in models]) for j in models[0]}


def mix(parts: Sequence[tuple[float, Tensor]]) -> Tensor:
    """``sum_i w_i theta_i`` of ``(s_i, theta_i)`` with ``w_i = s_i / sum_k s_k``, in float64 in their order.

    Unlike ``weighted_mean`` it multiplies by normalised weights and adds one model after the other: a model whose
    weight is 1 comes back to the bit, and the two differ in the last bits otherwise.
    """
    whole, total = sum(share for share, _ in parts), torch.zeros_like(parts[0][1], dtype=torch.float64)
    for share, theta in parts:
        if weight := share / whole:
            total += weight * theta.to(torch.float64)
    return total.to(torch.float32)


def mix_clients(
    models: Models, clients: Sequence[ClientId], shares: Sequence[float], groups: Collection[GroupId]
) -> dict[GroupId, Tensor]:
    """``mix`` of these clients' own models over ``groups``; ``shares``: of all clients."""
    return {j: mix([(shares[n], models[model_of(n)][j]) for n in clients]) for j in groups}


def model_of(client: ClientId) -> str:
    """Name of a client's own model among a server's: ``client.3``."""
    return f"client.{client}"


def richest(fleet: Fleet) -> list[ClientId]:
    """Clients with most modalities; where several such sets differ, those with the first one."""
    most = max(fleet.clients, key=lambda c: len(c.modalities)).modalities
    return [c.id for c in fleet.clients if c.modalities == most]


def to_tensor(values: Mapping[GroupId, float], layout: GroupLayout) -> Tensor:
    """One number per group as a server's state keeps them: float64 (G,) in layout order, NaN where there is none."""
    return torch.tensor([values.get(j, float("nan")) for j in layout.ids], dtype=torch.float64)


def from_tensor(values: Tensor | None, layout: GroupLayout) -> dict[GroupId, float]:
    """Numbers by group as ``to_tensor`` stored them, without those that are NaN; None: nothing is stored yet."""
    return {} if values is None else {j: v for j, v in zip(layout.ids, values.tolist(), strict=True) if v == v}


def apply_parts(
    theta: Params, step: Mapping[GroupId, Tensor], selection: Selection, layout: GroupLayout
) -> dict[GroupId, Tensor]:
    """``apply_step`` where only a part of each group was sent: everything outside ``selection`` stays bit for bit."""
    after = apply_step(theta, {j: moved for j, moved in step.items() if selection[j].whole})
    for j, moved in step.items():
        if not selection[j].whole:
            index = layout.indices(j, selection[j])
            after[j] = theta[j].clone()
            chosen = theta[j][index]
            after[j][index] = add_exactly(chosen, moved, torch.empty_like(chosen))
    return after


def check_update(update: Update, layout: GroupLayout) -> str | None:
    """Reason why an update must not be summed or kept: groups, length, not finite, its format; None if it is sound."""
    if refusal := update.refusal or mismatch(layout, update):
        return refusal
    for j in update.delta:
        if not isfinite(update.receipt.sq_norm[j]):
            return f"group {j!r}: {NOT_FINITE}"
    for name, value in update.receipt.stats.items():
        if not bool(torch.isfinite(value).all()):  # of any dtype, unlike state, which is stored
            return f"statistic {name!r} is not finite"
    for name, value in update.state.items():
        if not all_finite(value):
            return f"personal state {name!r} is not finite"
    return None


def over_participants(reduction: WeightedSum, reduced: Reduced, fleet: Fleet) -> Total:
    """Normalise over all clients of the round: an untrained group counts as zero change (Lemma 1, term I)."""

    def total(group: ParamGroup, part: GroupSum) -> float:
        tasks = (r.assignment for r in reduced.receipts)
        return sum(float(reduction.weight(group, fleet[t.client], t)) for t in tasks)

    return total


def mean_personal(
    theta: Params,
    states: States,
    keep: Selection,
    layout: GroupLayout,
    mean_of: Mapping[ClientId, float] | None = None,
) -> dict[GroupId, Tensor]:
    """``theta`` with the parts of ``keep`` replaced by their mean over all clients that have any, in float64.

    ``mean_of``: the clients that count, and their weights (all the same by default). Clients are summed in ascending
    order; a part that no client keeps yet stays as it is.
    """
    after, weights = dict(theta), mean_of or dict.fromkeys(states, 1.0)
    for j, part in keep.items():
        kept = [(states[c][j].to(torch.float64), weights[c]) for c in sorted(states) if j in states[c] and c in weights]
        if kept:
            first, *rest = (value * weight for value, weight in kept)
            after[j] = theta[j].clone()
            after[j][layout.indices(j, part)] = (sum(rest, first) / sum(w for _, w in kept)).to(torch.float32)
    return after
