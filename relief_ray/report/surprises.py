"""What a comparison shows that the paper would not lead one to expect: sentences computed from records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from relief_ray.messages import Fleet
from relief_ray.report.compare import Comparison
from relief_ray.report.diagnostics import divergences, runs_of, update_norms
from relief_ray.report.facts import listed, twins
from relief_ray.report.labels import device_types, fleet_of
from relief_ray.report.slots import FUSION_BLOCK

PAPER_ORDER = ("v1", "relief", "v2", "v3")


def surprises(comparison: Comparison) -> list[str]:
    """The sentences that apply."""
    parts = (_order, _slots, _ranking, _rare, _dilution, _deadline)
    return [sentence for part in parts for sentence in part(comparison)]


def _order(comparison: Comparison) -> Iterator[str]:
    scores = {m: row.stats["f1_percent"].mean for m in PAPER_ORDER if (row := comparison.row(m)) is not None}
    if len(scores) < 2:
        return
    found = sorted(scores, key=lambda m: -scores[m])
    here = " > ".join(f"{m} {scores[m]:.1f}" for m in found)
    expected = [m for m in PAPER_ORDER if m in scores]
    verdict = "the paper's order" if found == expected else f"the paper's order is {' > '.join(expected)}"
    gaps = [scores[a] - scores[b] for a, b in pairwise(found)]
    yield f"By mean F1 (%): {here}; {verdict}. Neighbours are {min(gaps):.1f} to {max(gaps):.1f} points apart."


def _slots(comparison: Comparison) -> Iterator[str]:
    row = comparison.row("relief")
    if row is None or "chosen_slots" not in row.stats:
        return
    free, chosen = row.stats["free_slots"].mean, row.stats["chosen_slots"].mean
    if chosen == 0.0:
        yield (
            f"V0's divergence ranking decided nothing: of {free:.2f} free slots per client and round none was a "
            "choice. A client's budget held either its mandatory blocks alone or everything that it can reach."
        )
    else:
        yield f"V0's divergence ranking decided {chosen:.2f} of {free:.2f} free slots per client and round."


def _ranking(comparison: Comparison) -> Iterator[str]:
    """Eq. (5) is not divided by a group's size: large groups rank first."""
    runs = runs_of(comparison, "relief")
    first = 0
    for loaded in runs:
        found = {j: row["d_bar"] for j, row in divergences([loaded]).items() if "d_bar" in row}
        blocks = [j for j in found if j.startswith(FUSION_BLOCK)]
        leaders = sorted(found, key=lambda j: -found[j])[: len(blocks)]
        first += bool(blocks) and set(leaders) == set(blocks)
    same = any({"v2", "v2_mandatory"} <= set(names) for names in twins(comparison))
    anyway = ", and forcing them in (`v2_mandatory`) changed not a bit of V2" if same else ""
    if runs:
        yield (
            f"The fusion blocks had the largest smoothed divergence in {first} of {len(runs)} runs of V0: Eq. (5) is "
            f"not divided by the number of values, so large groups rank first{anyway}."
        )


def _rare(comparison: Comparison) -> Iterator[str]:
    fleet = _fleet(comparison)
    scores = [row.stats["f1_rare_percent"].mean for row in comparison.rows if "f1_rare_percent" in row.stats]
    classes = comparison.runs[0].run.coverage.get("classes")
    if fleet is None or not scores or not isinstance(classes, list) or not classes:
        return
    rare = fleet.rare()
    alone = [m for m in rare if any(c.modalities == (m,) for c in fleet.clients)]
    constant = 200 / (len(classes) + 1) / len(classes)
    reason = "" if alone else " No client owns it alone, so no training window ever looks like this evaluation."
    yield (
        f"Through the rare modality alone ({listed(rare)}) all methods, bounds included, reach {min(scores):.1f} to "
        f"{max(scores):.1f} % (always the same class: {constant:.1f} %).{reason}"
    )


def _dilution(comparison: Comparison) -> Iterator[str]:
    """How far clients without a rare modality move its fusion block under FedAvg (term II of Lemma 1)."""
    runs, fleet = runs_of(comparison, "fedavg"), _fleet(comparison)
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


def _span(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def _deadline(comparison: Comparison) -> Iterator[str]:
    bound, elastic = comparison.row("full_only"), comparison.row("relief")
    if bound is None or elastic is None or "speedup" not in bound.stats or "speedup" not in elastic.stats:
        return
    fast, ours = bound.stats["speedup"].mean, elastic.stats["speedup"].mean
    if fast > ours:
        yield (
            f"Leaving the weak devices out (`full_only`) is faster still: {fast:.2f}x against {ours:.2f}x; "
            f"it costs {-bound.f1.mean:.1f} points of F1 against FedAvg."
            if bound.f1 is not None
            else f"Leaving the weak devices out (`full_only`) is faster still: {fast:.2f}x against {ours:.2f}x."
        )


def _fleet(comparison: Comparison) -> Fleet | None:
    return next((f for r in comparison.runs if (f := fleet_of(r)) is not None), None)
