"""Pairwise cosine of clients' updates per fusion block: Fig. 2."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from relief_ray.groups import GroupId
from relief_ray.messages import Update

Pairs = dict[GroupId, tuple[tuple[int, int, float], ...]]


def pairwise_cosine(updates: Sequence[Update]) -> Pairs:
    """(client, client, cosine) for every pair that uploaded the block; 0 where one of the updates is zero."""
    found: dict[GroupId, list[tuple[int, int, float]]] = {}
    for a, b in combinations(updates, 2):
        for j in a.delta.keys() & b.delta.keys():
            x, y = a.delta[j].double(), b.delta[j].double()
            scale = float(x.norm() * y.norm())
            cosine = float(x.dot(y)) / scale if scale > 0.0 else 0.0
            found.setdefault(j, []).append((a.receipt.assignment.client, b.receipt.assignment.client, cosine))
    return {j: tuple(rows) for j, rows in sorted(found.items())}
