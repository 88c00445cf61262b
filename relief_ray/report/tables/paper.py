"""Table III: RELIEF and what remains of it when one part is taken away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from relief_ray.report.comparison import Comparison, Experiment, MethodResult
from relief_ray.report.paper import PREFIX, V0, VARIANT_ROWS, Paper, PaperCell
from relief_ray.report.remarks import clock_note, protocol
from relief_ray.report.tables import columns as col
from relief_ray.report.tables.columns import Column
from relief_ray.report.tables.methods import ablations, facts_of_items
from relief_ray.report.tables.rows import (
    difference_cell,
    gaps,
    is_comparable,
    method_cell,
    origin_of,
    printed,
    recorded,
    runs_cell,
    second_line,
)
from relief_ray.strategies import DESCRIBED
from relief_ray.support.table import Cell, Row, Table

_DIFFERENCE = Column(label=f"F1 minus {V0}'s, points [95 %]", figure="", decimals=1)
_COLUMNS = (
    col.HEADLINE,
    _DIFFERENCE,
    col.RARE_F1,
    col.SPEEDUP,
    *col.SPEED_CONTEXT,
    col.JOULES,
    col.FREE_SLOTS,
    col.CHOSEN_SLOTS,
)


def ablation_table(experiment: Experiment, paper: Paper, slug: str) -> Table | None:
    """Our variants over the paper's; None where no variant was planned or run."""
    variants = [v for v in ablations(facts_of_items(experiment)) if v in DESCRIBED]
    if not variants:
        return None
    ours = [v for v in variants if v not in VARIANT_ROWS]
    papers = [v for v in VARIANT_ROWS if experiment.is_on_papers_data or any(s.label == v for s in experiment.items)]
    rows, opening = [*papers, *ours], next(iter(ours), "")
    comparison = experiment.shown
    columns = recorded(comparison, _COLUMNS)
    slots = "Slots per client and round that the ranking could fill, and in how many of them it had a choice."
    return Table(
        slug=slug,
        caption=f"RELIEF without one of its parts{' (the paper, Table III)' if experiment.is_on_papers_data else ''}: "
        f"{experiment.title}.",
        head=("variant", "runs", *(column.head for column in columns)),
        rows=tuple(_row(experiment, paper, v, opening, columns) for v in rows),
        notes=(
            protocol(experiment),
            *clock_note(comparison),
            "Differences are of paired runs (fold and replicate); in brackets the 95 % interval of their mean. "
            "V2 and V3 drop two parts at once; the variants with V0's mandatory blocks drop one.",
            *([slots] if col.FREE_SLOTS in columns else []),
        ),
        second=second_line(experiment),
    )


def _row(experiment: Experiment, paper: Paper, label: str, opening: str, columns: Sequence[Column]) -> Row:
    """Row of a variant; a rule stands above the first one that is not the paper's (``opening``)."""
    comparison = experiment.shown
    method = None if comparison is None else comparison.row(label)
    prefix = f"{PREFIX.get(experiment.backbone, 'B1')} "
    theirs = [(c, printed(experiment, paper, "III", VARIANT_ROWS.get(label, label), c, prefix)) for c in columns]
    if comparison is None or method is None:
        cells = tuple(gaps(experiment, label, theirs))
    else:
        cells = tuple(_figures(experiment, comparison, method, theirs))
    return Row(name=_name(label), cells=cells, rule=label == opening)


def _name(label: str) -> str:
    """Name of a variant, its title, and its number in the paper."""
    title, number = DESCRIBED[label].title, VARIANT_ROWS.get(label, "")
    return f"{label}: {title}" if number in title else f"{label}: {title} ({number})"


def _figures(
    experiment: Experiment,
    comparison: Comparison,
    method: MethodResult,
    theirs: Sequence[tuple[Column, PaperCell | None]],
) -> Iterator[Cell]:
    yield runs_cell(method, experiment)
    score = theirs[0][1]
    for column, paper in theirs:
        if column is _DIFFERENCE:
            yield _difference(experiment, comparison, method, None if score is None else score.delta)
        else:
            fits = is_comparable(experiment)
            yield method_cell(experiment, comparison, method, column, paper=paper, comparable=fits)


def _difference(experiment: Experiment, comparison: Comparison, method: MethodResult, theirs: float | None) -> Cell:
    """The paired difference to V0, the paper's printed one below."""
    ours = comparison.difference(method.label, V0, "f1_percent")
    return difference_cell(ours, origin_of(experiment, comparison, method.label, "f1_percent"), theirs)
