"""Sentences on what a reader of the RELIEF paper would not expect of this project's own study."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import sqrt
from statistics import mean

from relief_ray.plugins.load import is_path
from relief_ray.report.comparison import Comparison
from relief_ray.report.paper import V0, V1, V2, V3
from relief_ray.report.remarks import span_text, twins
from relief_ray.report.results import FUSION_BLOCK
from relief_ray.report.runs import Loaded
from relief_ray.strategies import REFERENCE
from relief_ray.support.errors import counted

# row -> column -> mean
Means = Mapping[str, Mapping[str, float]]


def surprises(comparison: Comparison) -> list[str]:
    """Return the sentences; those on what clients did need run folders."""
    parts = (_order, _slots, _ranking, _dilution, _deadline)
    return [sentence for part in parts for sentence in part(comparison)]


def _means_of(values: Iterable[tuple[str, str, float]]) -> Means:
    """Mean of every row and column from (row, column, value), in order of appearance."""
    groups: dict[str, dict[str, list[float]]] = {}
    for row, column, value in values:
        groups.setdefault(row, {}).setdefault(column, []).append(value)
    return {row: {column: mean(v) for column, v in columns.items()} for row, columns in groups.items()}


def update_norms(runs: Sequence[Loaded]) -> Means:
    """Root mean square of ``|Delta_j|`` over the clients of a device type and rounds: group -> type -> norm."""
    squares = _means_of(
        (group, types.get(client.client, "?"), value)
        for loaded in runs
        for types in (loaded.types,)
        for record in loaded.rounds
        for client in record.clients
        for group, value in client.sq_norm.items()
    )
    return {group: {kind: sqrt(row[kind]) for kind in sorted(row)} for group, row in squares.items()}


def divergences(runs: Sequence[Loaded]) -> Means:
    """Eq. (5) averaged over rounds, and the last smoothed value, Eq. (6): group -> ``d`` and ``d_bar``."""
    return _means_of(triple for loaded in runs for triple in _divergences(loaded))


def _divergences(loaded: Loaded) -> Iterator[tuple[str, str, float]]:
    """A run's mean ``d`` and last ``d_bar`` of every group."""
    smoothed = loaded.rounds[-1].d_bar
    for group, row in _means_of((j, "d", v) for r in loaded.rounds for j, v in r.divergence.items()).items():
        yield group, "d", row["d"]
        if group in smoothed:
            yield group, "d_bar", smoothed[group]


_PAPER_ORDER = (V1, V0, V2, V3)


def _order(comparison: Comparison) -> Iterator[str]:
    scores = {m: row.stats["f1_percent"].mean for m in _PAPER_ORDER if (row := comparison.row(m)) is not None}
    if len(scores) < 2:
        return
    order = sorted(scores, key=lambda m: -scores[m])
    here = " > ".join(f"{m} {scores[m]:.1f}" for m in order)
    expected = [m for m in _PAPER_ORDER if m in scores]
    verdict = "the paper's order" if order == expected else f"the paper's order is {' > '.join(expected)}"
    gaps = [scores[a] - scores[b] for a, b in pairwise(order)]
    low, high = f"{min(gaps):.1f}", f"{max(gaps):.1f}"
    apart = (
        f"They are {low} points"
        if len(gaps) == 1
        else f"Neighbours are {low if low == high else f'{low} to {high}'} points"
    )
    theirs = "" if is_path(comparison.dataset) else f"; {verdict}"
    yield f"By mean F1 (%), untested: {here}{theirs}. {apart} apart."


def _slots(comparison: Comparison) -> Iterator[str]:
    row = comparison.row(V0)
    if row is None or "chosen_slots" not in row.stats:
        return
    free, chosen = row.stats["free_slots"].mean, row.stats["chosen_slots"].mean
    if chosen == 0.0:
        yield (
            f"RELIEF's divergence ranking decided nothing: of {free:.2f} free slots per client and round none was a "
            "choice. A client's budget held either its mandatory blocks alone or everything that it can reach."
        )
    else:
        yield (
            f"RELIEF's divergence ranking decided {chosen:.2f} of {free:.2f} free slots per client and round"
            f"{_always_the_same(comparison)}."
        )


def _always_the_same(comparison: Comparison) -> str:
    """Remark that a ranking chose the same groups in every round of every run, as a fixed list would have."""
    runs = [run for run in comparison.runs_of(V0) if run.committed is None]
    rounds = [(run.replicate, r) for run in runs for r in run.rounds if r.phase != "bootstrap"]
    chosen = {(replicate, c.client, frozenset(c.trained)) for replicate, r in rounds for c in r.clients}
    clients = {(replicate, client) for replicate, client, _ in chosen}
    fixed = len({r.round for _, r in rounds}) > 1 and len(chosen) == len(clients)
    return ", and gave every client the same groups in every round: a fixed list would have done" if fixed else ""


def _ranking(comparison: Comparison) -> Iterator[str]:
    """Sentence on the largest groups ranking first, since Eq. (5) is not divided by a group's size."""
    runs = comparison.runs_of(V0)
    first = 0
    for loaded in runs:
        smoothed = {j: row["d_bar"] for j, row in divergences([loaded]).items() if "d_bar" in row}
        blocks = [j for j in smoothed if j.startswith(FUSION_BLOCK)]
        leaders = sorted(smoothed, key=lambda j: -smoothed[j])[: len(blocks)]
        first += bool(blocks) and set(leaders) == set(blocks)
    same = any({V2, "v2_mandatory"} <= set(names) for names in twins(comparison))
    anyway = ", and forcing them in (`v2_mandatory`) changed not a bit of V2" if same else ""
    if first:
        yield (
            f"The fusion blocks had the largest smoothed divergence in {first} of {counted(len(runs), 'run')} of "
            f"{V0}: a group's divergence (Eq. (5) of the RELIEF paper) sums over its values and is not divided by "
            f"their number, so large groups rank first{anyway}."
        )


def _dilution(comparison: Comparison) -> Iterator[str]:
    """Distance by which clients without a rare modality move its fusion block under FedAvg (term II of Lemma 1)."""
    runs, fleet = comparison.runs_of(REFERENCE), comparison.fleet
    norms = update_norms(runs)
    if not runs or fleet is None:
        return
    types = runs[0].types
    for modality in fleet.rare():
        row = norms.get(FUSION_BLOCK + modality, {})
        owners = {types[n] for n in fleet.cohort(modality)}
        mine, others = [v for k, v in row.items() if k in owners], [v for k, v in row.items() if k not in owners]
        if mine and others:
            yield (
                f"Under FedAvg, device types without {modality} still move {FUSION_BLOCK}{modality} by "
                f"{span_text(others)} a round (owners: {span_text(mine)}): a zero input is not a zero feature."
            )


def _deadline(comparison: Comparison) -> Iterator[str]:
    bound, elastic = comparison.row("full_only"), comparison.row(V0)
    if bound is None or elastic is None or "speedup" not in bound.stats or "speedup" not in elastic.stats:
        return
    fast, ours = (f"{method.stats['speedup'].mean:.2f}" for method in (bound, elastic))
    if float(fast) < float(ours):
        return
    what = f"as fast as RELIEF, {fast}x" if fast == ours else f"faster still: {fast}x against {ours}x"
    gain = 0.0 if bound.f1 is None else bound.f1.mean
    price = f"; it {'costs' if gain < 0 else 'gains'} {abs(gain):.1f} points of F1 against FedAvg"
    yield f"Leaving the weak devices out (`full_only`) is {what}{'' if bound.f1 is None else price}."
