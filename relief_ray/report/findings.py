"""Findings beyond the tables: updates, devices, and directions other than the paper's.

The first half gives means over rounds and runs, the second half sentences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from statistics import mean

from relief_ray.core.messages import Fleet
from relief_ray.plugins.load import is_path
from relief_ray.report.comparison import Comparison
from relief_ray.report.experiments import Experiment
from relief_ray.report.paper import PAPER_ROWS, TABLES, V0, V1, V2, V3, Paper, PaperCell
from relief_ray.report.remarks import clock_words, twins
from relief_ray.report.results import FUSION_BLOCK
from relief_ray.report.runs import Loaded, config_text, device_types, fleet_of
from relief_ray.report.statistics import MIN_INTERVAL, Paired
from relief_ray.strategies import PROPOSED, REFERENCE
from relief_ray.support.errors import counted, listed

# row -> column -> mean
Means = Mapping[str, Mapping[str, float]]


def _means_of(values: Iterable[tuple[str, str, float]]) -> Means:
    """Mean of every row and column from (row, column, value), in order of appearance."""
    groups: dict[str, dict[str, list[float]]] = {}
    for row, column, value in values:
        groups.setdefault(row, {}).setdefault(column, []).append(value)
    return {row: {column: mean(v) for column, v in columns.items()} for row, columns in groups.items()}


def update_norms(runs: Sequence[Loaded]) -> Means:
    """Root mean square of ``|Delta_j|`` over the clients of a device type and rounds 1..R: group -> type -> norm."""
    squares = _means_of(
        (group, types.get(client.client, "?"), value)
        for loaded in runs
        for types in (device_types(loaded),)
        for record in loaded.trained
        for client in record.clients
        for group, value in client.sq_norm.items()
    )
    return {group: {kind: sqrt(row[kind]) for kind in sorted(row)} for group, row in squares.items()}


def divergences(runs: Sequence[Loaded]) -> Means:
    """Eq. (5) averaged over rounds 1..R, and the last smoothed value, Eq. (6): group -> ``d`` and ``d_bar``."""
    return _means_of(triple for loaded in runs for triple in _divergences(loaded))


def _divergences(loaded: Loaded) -> Iterator[tuple[str, str, float]]:
    """A run's mean ``d`` and last ``d_bar`` of every group."""
    smoothed = loaded.rounds[-1].d_bar
    for group, row in _means_of((j, "d", v) for r in loaded.trained for j, v in r.divergence.items()).items():
        yield group, "d", row["d"]
        if group in smoothed:
            yield group, "d_bar", smoothed[group]


def mean_cosine(runs: Sequence[Loaded], block: str, kinds: tuple[str, str]) -> float | None:
    """Mean cosine of the block's updates between two clients of these device types."""
    values = [
        value
        for loaded in runs
        for types in (device_types(loaded),)
        for record in loaded.trained
        for a, b, value in record.pairwise.get(block, ())
        if tuple(sorted((types.get(a, "?"), types.get(b, "?")))) == kinds
    ]
    return mean(values) if values else None


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceShare:
    """Mean round of one device of a type under a method: seconds of computing, link and waiting, and joules."""

    method: str
    kind: str
    compute_s: float
    link_s: float
    wait_s: float
    energy_j: float
    num_devices: int


def device_shares(runs: Sequence[Loaded], method: str, clock: str) -> list[DeviceShare]:
    """Means over devices of a type, rounds 1..R and runs."""
    devices: dict[str, int] = {}
    values: list[tuple[str, str, float]] = []
    for loaded in runs:
        types = device_types(loaded)
        costs = [c for r in loaded.trained for c in r.costs[clock].clients]
        # Folds and rotations give a client another type: devices are counted run by run.
        for kind, number in Counter(types.get(client, "?") for client in {c.client for c in costs}).items():
            devices[kind] = max(number, devices.get(kind, 0))
        for cost in costs:
            kind, t = types.get(cost.client, "?"), cost.times
            values += [
                (kind, "compute_s", t.forward_s + t.backward_s + t.optimizer_s),
                (kind, "link_s", t.up_s + t.down_s),
                (kind, "wait_s", cost.wait_s),
                (kind, "energy_j", cost.energy_j),
            ]
    rows = sorted(_means_of(values).items())
    return [DeviceShare(method=method, kind=kind, num_devices=devices[kind], **row) for kind, row in rows]


# A speedup within 5 % of FedAvg's round is none; one within a fifth of the paper's agrees with it.
SAME, NEAR = 0.05, 1.2

_OURS = (REFERENCE, PROPOSED)


def directions(experiment: Experiment, paper: Paper) -> list[str]:
    """One sentence per baseline and figure whose sign differs from the paper's; none from synthetic data.

    A speedup counts where it differs from 1 by more than 5 % and from the paper's by more than a fifth, an F1 where
    the 95 % interval of the paired difference to FedAvg leaves out 0: without that, it has no direction.
    """
    comparison = experiment.shown
    if comparison is None or not experiment.is_real or experiment.is_own_data:
        return []
    sentences: list[str] = []
    for label, name in PAPER_ROWS.items():
        row = comparison.row(label)
        if row is None or label in _OURS:
            continue
        theirs = paper[TABLES.get(experiment.backbone, "I")]
        if (speedup := row.stats.get("speedup")) is not None:
            sentences += _speed(label, speedup.mean, theirs.get(name, "speedup"), comparison.clock)
        data = experiment.paper_data
        sentences += _score(label, "F1", row.f1, theirs.get(name, f"{data} F1 (%)"), data)
        sentences += _score(label, "rare-modality F1", row.rare, theirs.get(name, "rare-modality F1 (%)"), "PAMAP2")
    return sentences


def _speed(label: str, ours: float, cell: PaperCell | None, clock: str) -> Iterator[str]:
    if cell is None or cell.value is None or _away(ours) == _away(cell.value):
        return
    if max(ours, cell.value) <= NEAR * min(ours, cell.value):
        return
    speed = f"{ours:.2f}x FedAvg's speed, seconds simulated {clock_words(clock)}"
    yield f"`{label}`: {speed}; the paper prints {cell.value:.2f}x on PAMAP2."


def _away(speedup: float) -> int:
    return (speedup > 1 + SAME) - (speedup < 1 - SAME)


def _score(label: str, figure: str, ours: Paired | None, cell: PaperCell | None, data: str) -> Iterator[str]:
    if (
        ours is None
        or ours.num_pairs < MIN_INTERVAL
        or ours.low is None
        or ours.high is None
        or cell is None
        or cell.delta is None
    ):
        return
    here = (ours.low > 0) - (ours.high < 0)
    there = (cell.delta > 0) - (cell.delta < 0)
    if here and here != there:
        yield (
            f"`{label}`: {figure} is {ours.mean:+.1f} [{ours.low:+.1f}, {ours.high:+.1f}] points from FedAvg's; the "
            f"paper prints {cell.delta:+.1f} on {data}."
        )


_PAPER_ORDER = (V1, V0, V2, V3)


def surprises(comparison: Comparison) -> list[str]:
    """Sentences on what a reader of the paper would not expect of this comparison."""
    parts = (_order, _slots, _ranking, _rare, _dilution, _deadline)
    return [sentence for part in parts for sentence in part(comparison)]


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
    theirs = "" if is_path(config_text(comparison.runs[0].run, "data.name")) else f"; {verdict}"
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
    rounds = [(run.replicate, r) for run in runs for r in run.trained]
    chosen = {(replicate, c.client, frozenset(c.trained)) for replicate, r in rounds for c in r.clients}
    clients = {(replicate, client) for replicate, client, _ in chosen}
    fixed = bool(chosen) and len(runs[0].trained) > 1 and len(chosen) == len(clients)
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


def _rare(comparison: Comparison) -> Iterator[str]:
    fleet = _fleet(comparison)
    scores = [row.stats["f1_rare_percent"].mean for row in comparison.rows if "f1_rare_percent" in row.stats]
    classes = comparison.runs[0].run.coverage.get("classes")
    if fleet is None or not scores or not isinstance(classes, list) or not classes:
        return
    rare = fleet.rare()
    bounds = ", bounds included," if any(row.is_bound for row in comparison.rows) else ""
    alone = [m for m in rare if any(c.modalities == (m,) for c in fleet.clients)]
    guessing = 100 / len(classes)
    reason = "" if alone else " No client owns it alone, so no training window ever looks like this evaluation."
    yield (
        f"Through the rare modality alone ({listed(rare)}) all methods{bounds} reach {_span(scores, 1)} % "
        f"(guessing among {len(classes)} classes: {guessing:.1f} %).{reason}"
    )


def _dilution(comparison: Comparison) -> Iterator[str]:
    """Distance by which clients without a rare modality move its fusion block under FedAvg (term II of Lemma 1)."""
    runs, fleet = comparison.runs_of(REFERENCE), _fleet(comparison)
    norms = update_norms(runs)
    if not runs or fleet is None:
        return
    types = device_types(runs[0])
    for modality in fleet.rare():
        row = norms.get(FUSION_BLOCK + modality, {})
        owners = {types[n] for n in fleet.cohort(modality)}
        mine, others = [v for k, v in row.items() if k in owners], [v for k, v in row.items() if k not in owners]
        if mine and others:
            yield (
                f"Under FedAvg, device types without {modality} still move {FUSION_BLOCK}{modality} by "
                f"{_span(others)} a round (owners: {_span(mine)}): a zero input is not a zero feature."
            )


def _span(values: Sequence[float], decimals: int = 2) -> str:
    low, high = (f"{value:.{decimals}f}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


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


def _fleet(comparison: Comparison) -> Fleet | None:
    return next((f for r in comparison.runs if (f := fleet_of(r)) is not None), None)
