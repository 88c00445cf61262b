"""Why the methods differ: who trained what, how far updates moved each block, whether they agree (records only)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from math import sqrt
from statistics import mean

from relief_ray.report.compare import Comparison
from relief_ray.report.labels import device_types, fleet_of
from relief_ray.report.load import Loaded
from relief_ray.report.render import markdown_table
from relief_ray.report.slots import FUSION_BLOCK
from relief_ray.report.tables import NONE

Table = Mapping[str, Mapping[str, float]]


def runs_of(comparison: Comparison, label: str) -> list[Loaded]:
    """The runs of one method."""
    return [r for r in comparison.runs if r.label == label]


def update_norms(runs: Sequence[Loaded]) -> Table:
    """Root mean square of ``|Delta_j|`` over the clients of a device type and rounds 1..R: group -> type -> norm."""
    squares: dict[str, dict[str, list[float]]] = {}
    for loaded in runs:
        types = device_types(loaded)
        for client in chain.from_iterable(r.clients for r in loaded.trained):
            for group, value in client.sq_norm.items():
                squares.setdefault(group, {}).setdefault(types.get(client.client, "?"), []).append(value)
    return {j: {kind: sqrt(mean(v)) for kind, v in sorted(row.items())} for j, row in squares.items()}


def divergences(runs: Sequence[Loaded]) -> Table:
    """Eq. (5) averaged over rounds 1..R, and the last smoothed value, Eq. (6): group -> ``d`` and ``d_bar``."""
    return average(_divergences(loaded) for loaded in runs)


def _divergences(loaded: Loaded) -> Table:
    last = loaded.rounds[-1]
    found: dict[str, dict[str, float]] = {}
    for group in dict.fromkeys(chain.from_iterable(r.divergence for r in loaded.trained)):
        found[group] = {"d": mean(r.divergence[group] for r in loaded.trained if group in r.divergence)}
        if group in last.d_bar:
            found[group]["d_bar"] = last.d_bar[group]
    return found


def agreement(runs: Sequence[Loaded]) -> Table:
    """Mean cosine of two clients' updates of a fusion block: pairs in which both, one or none own the modality."""
    found: dict[str, dict[str, list[float]]] = {}
    for loaded in runs:
        fleet = fleet_of(loaded)
        if fleet is None:
            continue
        for block, pairs in chain.from_iterable(r.pairwise.items() for r in loaded.trained):
            owners = set(fleet.cohort(block.removeprefix(FUSION_BLOCK)))
            for a, b, cosine in pairs:
                kind = PAIRS[2 - (a in owners) - (b in owners)]
                found.setdefault(block, {}).setdefault(kind, []).append(cosine)
    return {block: {kind: mean(v) for kind, v in row.items()} for block, row in found.items()}


PAIRS = ("both own it", "one owns it", "neither owns it")


def average(tables: Iterable[Table]) -> Table:
    """Cell by cell over the tables that have the cell."""
    values: dict[str, dict[str, list[float]]] = {}
    for table in tables:
        for group, row in table.items():
            for column, value in row.items():
                values.setdefault(group, {}).setdefault(column, []).append(value)
    return {j: {c: mean(v) for c, v in row.items()} for j, row in values.items()}


def as_markdown(table: Table, head: str, form: str = ".2f", columns: Sequence[str] = ()) -> str:
    """The table in the order of its groups; columns in order of appearance unless given."""
    names = [
        c for c in columns or dict.fromkeys(chain.from_iterable(table.values())) if any(c in r for r in table.values())
    ]
    rows = [[j, *(format(row[c], form) if c in row else NONE for c in names)] for j, row in table.items()]
    return markdown_table([head, *names], rows)
