"""Clusters of alike clients: k-means over their reports, and rules for the number of clusters."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor

from relief_ray.core.messages import ClientInfo, Fleet, Json, Receipt

MAX_STEPS = 100
ENERGY = 0.9
# Number of clusters: by the number of clients, or by the reports' singular values.
Rule = Literal["size", "dominant"]


def texts(fact: Json) -> dict[str, str]:
    """Read a fact of the server's state that is a table of texts, such as each client's cluster."""
    assert isinstance(fact, dict)
    return {key: str(value) for key, value in fact.items()}


def scale_columns(d_NM: Tensor) -> Tensor:
    """Divide every column by its maximum; columns of zeros stay."""
    largest_M = d_NM.amax(0)
    return d_NM / torch.where(largest_M > 0, largest_M, 1.0)


def num_by_size(number: int) -> int:
    """``K = floor((n - 1) / 5) + 1``: one cluster for up to five clients, two for up to ten, and so on."""
    return (number - 1) // 5 + 1


def num_dominant(d_NM: Tensor) -> int:
    """``K``: number of leading singular values that hold 90 % of the sum of squares; 1 for a zero matrix."""
    squares = torch.linalg.svdvals(d_NM).square()
    return max(1, int((squares.cumsum(0) < ENERGY * squares.sum()).sum()) + bool(squares.sum() > 0))


def k_means(points_ND: Tensor, number: int) -> list[int]:
    """Cluster of every point, numbered by first members: ``number`` clusters, fewer where points coincide.

    Deterministic: the first point is the first centre, the point farthest from all centres the next one (of equal ones
    the first), then Lloyd's steps until nothing moves.
    """
    centres = [points_ND[0]]
    while len(centres) < number:
        nearest_N = _distances(points_ND, torch.stack(centres)).amin(1)
        if not bool(nearest_N.max() > 0):
            break
        centres.append(points_ND[int(nearest_N.argmax())])
    labels_N = _distances(points_ND, torch.stack(centres)).argmin(1)
    for _ in range(MAX_STEPS):
        means_KD = torch.stack([points_ND[labels_N == k].mean(0) for k in sorted(set(labels_N.tolist()))])
        again_N = _distances(points_ND, means_KD).argmin(1)
        if torch.equal(again_N, labels_N):
            break
        labels_N = again_N
    return _renumbered(labels_N.tolist())


def alike(d_NM: Tensor, teams: Sequence[Hashable], rule: Rule | int) -> list[int]:
    """Cluster of every row: k-means within each team on scaled columns; rows of two teams never share a cluster."""
    scaled_NM = scale_columns(d_NM)
    labels: list[tuple[Hashable, int]] = [(team, 0) for team in teams]
    for team in dict.fromkeys(teams):
        rows = [i for i, t in enumerate(teams) if t == team]
        points = scaled_NM[rows]
        number = num_by_size(len(rows)) if rule == "size" else num_dominant(points) if rule == "dominant" else rule
        for i, k in zip(rows, k_means(points, min(number, len(rows))), strict=True):
            labels[i] = (team, k)
    return _renumbered(labels)


def _distances(a_ND: Tensor, b_KD: Tensor) -> Tensor:
    """Euclidean distances, from differences, so that coinciding points are exactly 0 apart."""
    return (a_ND.unsqueeze(1) - b_KD.unsqueeze(0)).square().sum(2).sqrt()


def _renumbered(labels: Sequence[Hashable]) -> list[int]:
    order = {label: k for k, label in enumerate(dict.fromkeys(labels))}
    return [order[label] for label in labels]


def last_reports(
    known_NM: Tensor | None, receipts: Iterable[Receipt], name: str, fleet: Fleet
) -> tuple[Tensor, tuple[ClientInfo, ...]]:
    """Last report of every client, one value per modality (N, M), and the clients that ever sent one.

    ``known_NM``: reports of earlier rounds; ``receipts`` carry this round's as ``stats[name]``, in order of the
    client's modalities. NaN: no report.
    """
    unknown_NM = torch.full((len(fleet), len(fleet.modalities)), float("nan"), dtype=torch.float64)
    reports_NM = unknown_NM if known_NM is None else known_NM.clone()
    for receipt in receipts:
        client = fleet[receipt.assignment.client]
        columns = [fleet.modalities.index(m) for m in client.modalities]
        reports_NM[client.id, columns] = receipt.stats[name].to(torch.float64)
    return reports_NM, tuple(c for c in fleet.clients if not bool(reports_NM[c.id].isnan().all()))
