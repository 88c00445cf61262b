"""Table III: RELIEF and what remains of it when one part is taken away."""

from __future__ import annotations

from collections.abc import Iterator

from relief_ray.report.comparison import Comparison, Row, difference
from relief_ray.report.document import Entry, Line, Sheet
from relief_ray.report.experiments import Experiment
from relief_ray.report.paper import VARIANT_ROWS, Paper
from relief_ray.report.tables.cells import (
    Column,
    entry,
    gap,
    is_comparable,
    open_states,
    origin_of,
    paper_line,
    printed,
    runs_entry,
    second_line,
)
from relief_ray.report.tables.comparison import change
from relief_ray.report.tables.main import VARIANTS
from relief_ray.report.tables.notes import clock_note, headings, protocol

V0 = "relief"
MEANING = {
    "relief": "V0, RELIEF",
    "v1": "V1, without elastic training",
    "v2": "V2, without cohort-wise aggregation",
    "v3": "V3, random allocation",
    "v2_mandatory": "V2 with V0's mandatory blocks",
    "v3_mandatory": "V3 with V0's mandatory blocks",
    "mandatory_only": "mandatory blocks alone",
}
PREFIX = {"cnn": "B1", "moment_lora": "B2"}
_SLOTS = (
    Column(head="free slots", figure="free_slots", decimals=2),
    Column(head="of them a choice", figure="chosen_slots", decimals=2),
)
_COLUMNS = (
    Column(head="F1 %", figure="f1_percent", decimals=1),
    Column(head="F1 minus V0's, points [95 %]", figure="", decimals=1),
    Column(head="rare F1 %", figure="f1_rare_percent", decimals=1),
    Column(head="speedup", figure="speedup", decimals=2),
    Column(head="J per round", figure="energy_j", decimals=0),
    *_SLOTS,
)


def ablation_table(experiment: Experiment, paper: Paper, slug: str) -> Sheet | None:
    """Our variants over the paper's; none where no variant was planned or run."""
    labels = {s.label for s in experiment.slots}
    if not labels & set(VARIANTS):
        return None
    shown = [v for v in (V0, *VARIANTS) if v in labels or v in VARIANT_ROWS]
    lines = tuple(_line(experiment, paper, label) for label in shown)
    comparison = experiment.shown
    notes = (
        protocol(experiment),
        *clock_note(comparison),
        "Differences are paired by test subject, seeds averaged first; in brackets the 95 % interval of the mean. V2 "
        "and V3 drop two things at once (ADR 2); the variants with V0's mandatory blocks drop one.",
        "Slots per client and round that the ranking could fill, and in how many of them it had a choice.",
    )
    title = f"Table III of the paper with our figures: {experiment.title}."
    head = ("variant", "runs", *headings(experiment, _COLUMNS, None if comparison is None else comparison.clock))
    return Sheet(slug=slug, caption=title, head=head, lines=lines, notes=notes, second=second_line(experiment))


def _line(experiment: Experiment, paper: Paper, label: str) -> Line:
    comparison = experiment.shown
    row = None if comparison is None else comparison.row(label)
    entries = _hole(experiment, paper, label) if comparison is None or row is None else (
        _figures(experiment, paper, comparison, row)
    )  # fmt: skip
    return Line(name=MEANING.get(label, label), entries=tuple(entries), rule=label == VARIANTS[3])


def _column(experiment: Experiment, head: str, figure: str, decimals: int, paper: str = "") -> Column:
    named = f"{PREFIX.get(experiment.backbone, 'B1')} {paper}" if paper else ""
    return Column(head=head, figure=figure, decimals=decimals, paper=named)


def _hole(experiment: Experiment, paper: Paper, label: str) -> Iterator[Entry]:
    score = _column(experiment, "F1 %", "f1_percent", 1, "{data} F1 (%)")
    cell = printed(experiment, paper, "III", VARIANT_ROWS.get(label, label), score)
    yield gap(open_states(experiment, label))
    yield Entry(text="", below=paper_line(cell, score), tone="gap")
    yield from (Entry(text="", tone="gap") for _ in _COLUMNS[1:])


def _figures(experiment: Experiment, paper: Paper, comparison: Comparison, row: Row) -> Iterator[Entry]:
    score = _column(experiment, "F1 %", "f1_percent", 1, "{data} F1 (%)")
    yield runs_entry(row, experiment)
    yield _entry(experiment, paper, comparison, row, score)
    yield _against(experiment, paper, comparison, row, score)
    yield _entry(experiment, paper, comparison, row, _column(experiment, "", "f1_rare_percent", 1))
    yield _entry(experiment, paper, comparison, row, _column(experiment, "", "speedup", 2, "speedup"))
    yield _entry(experiment, paper, comparison, row, _column(experiment, "", "energy_j", 0))
    yield from (_entry(experiment, paper, comparison, row, column) for column in _SLOTS)


def _entry(experiment: Experiment, paper: Paper, comparison: Comparison, row: Row, column: Column) -> Entry:
    return entry(
        row.stats.get(column.figure),
        column,
        origin=origin_of(experiment, comparison, row.label, column.figure),
        paper=printed(experiment, paper, "III", VARIANT_ROWS.get(row.label, row.label), column),
        comparable=is_comparable(experiment),
        num_runs=row.num_runs,
    )


def _against(experiment: Experiment, paper: Paper, comparison: Comparison, row: Row, score: Column) -> Entry:
    """The paired difference to V0, the paper's printed one below."""
    found = difference(comparison.summaries, row.label, V0, lambda s: s.by_subject)
    cell = printed(experiment, paper, "III", VARIANT_ROWS.get(row.label, row.label), score)
    theirs = None if cell is None else cell.delta
    origin = origin_of(experiment, comparison, row.label, "f1_percent")
    return Entry(
        text=change(found),
        below="" if theirs is None else f"{theirs:+.1f}",
        origin=origin,
        numbers={
            "mean": found.mean if found else None, "low": found.low if found else None,
            "high": found.high if found else None, "n": found.num_subjects if found else 0, "paper": theirs,
            "origin": origin,
        },
    )  # fmt: skip
