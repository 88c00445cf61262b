"""Which groups were trained by whom, and how many of these slots a ranking really decided.

A slot is a group that a client trained in a round. Mandatory slots are the client's own fusion blocks ``A_m`` (unless
the method dropped that rule); the others are free. Free slots are a *choice* where at least one accessible group got
one and at least one did not: elsewhere the budget alone decided, whatever the ranking.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from relief_ray.records.schema import ClientRecord
from relief_ray.report.load import Loaded, fact

FUSION_BLOCK = "fusion.A."


@dataclass(frozen=True, kw_only=True, slots=True)
class Slots:
    """Sums over clients and rounds 1..R; ``chosen`` of the ``free`` slots were a choice."""

    mandatory: int
    free: int
    chosen: int
    client_rounds: int


def accessible(loaded: Loaded) -> dict[int, frozenset[str]]:
    """``G_n`` by client, as the bootstrap trained it; empty for methods without a bootstrap."""
    return {c.client: frozenset(c.trained) for r in loaded.rounds if r.round == 0 for c in r.clients}


def count_slots(loaded: Loaded) -> Slots | None:
    """Counts of one run; none for a method that has no bootstrap or offers everything."""
    reach = accessible(loaded)
    if not reach or fact(loaded.run, "strategy.select") == "all":
        return None
    forced = fact(loaded.run, "strategy.mandatory") is not False
    rows = [_count(c, reach[c.client], forced) for r in loaded.trained for c in r.clients if c.client in reach]
    return Slots(
        mandatory=sum(row[0] for row in rows),
        free=sum(row[1] for row in rows),
        chosen=sum(row[2] for row in rows),
        client_rounds=len(rows),
    )


def _count(client: ClientRecord, reach: frozenset[str], forced: bool) -> tuple[int, int, int]:
    mandatory = {j for j in reach if forced and j.startswith(FUSION_BLOCK)}
    free = set(client.trained) - mandatory
    is_choice = 0 < len(free) < len(reach - mandatory)
    return len(mandatory & set(client.trained)), len(free), len(free) if is_choice else 0


def trained_share(loaded: Loaded, types: Mapping[int, str]) -> dict[str, dict[str, float]]:
    """Share of client-rounds (rounds 1..R) in which a device type trained a group: group -> type -> 0..1."""
    possible: dict[str, int] = {}
    counts: dict[str, dict[str, int]] = {}
    for client in (c for r in loaded.trained for c in r.clients):
        kind = types.get(client.client, "?")
        possible[kind] = possible.get(kind, 0) + 1
        for group in client.trained:
            row = counts.setdefault(group, {})
            row[kind] = row.get(kind, 0) + 1
    return {j: {kind: row.get(kind, 0) / n for kind, n in sorted(possible.items())} for j, row in counts.items()}
