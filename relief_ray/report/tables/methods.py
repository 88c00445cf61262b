"""Main table of a setting, a row per method that was run or planned; the same figures beside the paper's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from relief_ray.records.schema import MethodFacts
from relief_ray.report.comparison import Comparison, Experiment, MethodResult, bounds_last
from relief_ray.report.paper import PAPER_ROWS, TABLES, Paper, PaperCell, paper_row
from relief_ray.report.remarks import (
    STAND_IN,
    alike_pairs,
    clock_note,
    equal_rounds,
    protocol,
    stand_in_note,
    stand_ins,
    versus,
    whose_intervals,
)
from relief_ray.report.runs import has_folds
from relief_ray.report.tables import columns as col
from relief_ray.report.tables.columns import Column
from relief_ray.report.tables.rows import (
    departures,
    difference_cell,
    gaps,
    headings,
    is_comparable,
    method_cell,
    name_of,
    names_line,
    origin_of,
    printed,
    recorded,
    runs_cell,
    second_line,
)
from relief_ray.strategies import REFERENCE, by_registry
from relief_ray.support.table import Cell, Row, Table

OWN = (col.OWN_F1, col.OWN_SUBJECTS_F1, col.AT_SECONDS_F1, col.AT_JOULES_F1)
COLUMNS = {
    "I": (col.RARE_F1, col.SPEEDUP, *col.SPEED_CONTEXT, col.ROUNDS_TO_85, col.UP["cnn"], col.JOULES),
    "II": (col.RARE_F1, col.SPEEDUP, *col.SPEED_CONTEXT, col.UP["moment_lora"], col.TRAINED, col.UP_SAVED, col.JOULES),
}


_OWN_COLUMNS = (col.RARE_F1, col.SPEEDUP, col.JOULES)


def main_table(experiment: Experiment, slug: str) -> Table:
    """F1, its difference to FedAvg's, speed, energy and upload of every method, by the clock that planned.

    Rows: presets in the registry's order, then a user's own methods and variants, bounds last. Methods of which nothing
    is done stand as gaps.
    """
    own_f1 = tuple(c for c in OWN if _has(experiment.main, c))
    at_rounds = (col.AT_ROUNDS_F1,) * _has(experiment.main, col.AT_ROUNDS_F1)
    up = col.UP.get(experiment.backbone, col.UP["cnn"])
    columns = (col.F1, *at_rounds, _difference(experiment.main), *own_f1, *_OWN_COLUMNS, up)
    columns = recorded(experiment.main, columns)
    labels = [v for v in labels_of(experiment) if any(s.label == v for s in experiment.items)]
    methods = facts_of_items(experiment)
    bounds = [v for v in labels if v in methods and methods[v].is_bound]
    return Table(
        slug=slug,
        caption=f"Results: {experiment.title}.",
        head=("method", "runs", *(column.head for column in columns)),
        rows=tuple(_own_row(experiment, v, columns, is_bound=v in bounds, rule=v in bounds[:1]) for v in labels),
        notes=tuple(_own_notes(experiment, columns)),
    )


def _difference(comparison: Comparison | None) -> Column:
    """Column of the differences to FedAvg; it has no figure of its own."""
    label = f"vs {REFERENCE} [95 %]" if comparison is None else versus(comparison)
    return Column(label=label, figure="", decimals=1)


def row_label(row: Row) -> str:
    """The method of a row of ``main_table``, without its marks."""
    return row.name.removesuffix(STAND_IN).removesuffix("*")


def _own_row(experiment: Experiment, label: str, columns: Sequence[Column], *, is_bound: bool, rule: bool) -> Row:
    comparison = experiment.main
    method = None if comparison is None else comparison.row(label)
    if comparison is None or method is None:
        cells = tuple(gaps(experiment, label, [(c, None) for c in columns]))
    else:
        figures = (_own_cell(experiment, comparison, method, column) for column in columns)
        cells = (runs_cell(method, experiment), *figures)
    name = label if method is None else name_of(method)
    name += STAND_IN * (label in stand_ins(experiment.runs))
    return Row(name=name, cells=cells, faint=is_bound, rule=rule)


def _own_cell(experiment: Experiment, comparison: Comparison, method: MethodResult, column: Column) -> Cell:
    if not column.figure:
        return difference_cell(comparison.gain(method), origin_of(experiment, comparison, method.label, "f1_percent"))
    cell = method_cell(experiment, comparison, method, column)
    if column is col.SPEEDUP:
        return replace(cell, below=_speed_context(experiment, method))
    return replace(cell, text=f"{cell.text}*") if column is col.OWN_F1 and method.personalised else cell


def _speed_context(experiment: Experiment, method: MethodResult) -> str:
    """Figures that the speedup depends on: without links, the link's share, the paper's protocol on built-in data."""
    shown = []
    for column in col.SPEED_CONTEXT:
        stat = method.stats.get(column.figure)
        if stat is not None and not (column is col.AT_PAPER and experiment.is_own_data):
            shown.append(_CONTEXT[column.figure].format(column.rounded(stat.mean)))
    return ", ".join(shown)


_CONTEXT = {
    col.SPEEDUP_COMPUTE.figure: "without links {}",
    col.LINK.figure: "link {} %",
    col.AT_PAPER.figure: "at 1,900 windows x 5 epochs {}",
}


def _own_notes(experiment: Experiment, columns: Sequence[Column]) -> Iterator[str]:
    """Notes that a reader needs before comparing rows."""
    comparison = experiment.main
    yield protocol(experiment)
    yield from clock_note(comparison)
    if comparison is not None and (sentence := equal_rounds(comparison)):
        yield f"{sentence}."
    if comparison is not None:
        yield from (f"{text}." for text in (alike_pairs(comparison), whose_intervals(comparison)) if text)
    spread = "Mean ± sample standard deviation over runs; last" if len(experiment.runs) > 1 else "Last"
    same = "same fold and seed" if any(has_folds(r.run.config) for r in experiment.runs) else "same seed"
    paired = f"; differences are of paired runs ({same}), with their 95 % interval" if comparison else ""
    yield f"{spread} evaluated round{paired}. `-`: undefined or never reached."
    if context := _context_text(experiment):
        yield context
    if len(meant := [f"`{c.head}`: {c.meaning}" for c in columns if c.meaning]) > 0:
        yield "; ".join(meant) + "."
    if _personalised(experiment):
        yield _STARRED
    yield from (f"{note}." for note in stand_in_note(experiment.runs))
    if comparison is not None and (names := names_line(comparison)):
        yield f"{names}."


def _context_text(experiment: Experiment) -> str:
    """Sentence on the figures below a speedup; empty where the records do not tell."""
    if not _has(experiment.main, col.LINK):
        return ""
    at_paper = ", and the same allocations with the paper's 1,900 windows and 5 epochs"
    below = "Below a speedup: the same without links (uploads and downloads), the links' share of the slowest client's"
    return f"{below} round{'' if experiment.is_own_data else at_paper}."


_STARRED = (
    "* Clients are tested on models of their own: the headline is `F1 own %`, the mean over clients, each seen through "
    "its own sensors; `F1 %` and rare F1 are the canonical model's, a diagnostic."
)


def clocks_table(experiment: Experiment, slug: str) -> Table | None:
    """Speedup of every method by every clock that was recorded; None where there is one clock."""
    clocks = list(experiment.comparisons)
    if len(clocks) < 2 or experiment.main is None:
        return None
    rows = [
        Row(
            name=name_of(method),
            cells=tuple(_clock_cells(experiment, method.label, clocks)),
            faint=method.is_bound,
        )
        for method in experiment.main.rows
        if "speedup" in method.stats
    ]
    head = ("method", *(f"`{clock}`" for clock in clocks), f"`{experiment.main.clock}`, with bootstrap")
    note = (
        f"Speedup over FedAvg by every time model of the same work; `{experiment.main.clock}` planned and stands in "
        "the main table. The last column counts the bootstrap round."
    )
    return Table(
        slug=slug, caption=f"Speedup by clock: {experiment.title}.", head=head, rows=tuple(rows), notes=(note,)
    )


def _clock_cells(experiment: Experiment, label: str, clocks: Sequence[str]) -> Iterator[Cell]:
    for clock in clocks:
        other = experiment.comparisons[clock]
        yield method_cell(experiment, other, next(m for m in other.rows if m.label == label), col.SPEEDUP)
    assert experiment.main is not None
    mine = next(m for m in experiment.main.rows if m.label == label)
    yield method_cell(experiment, experiment.main, mine, col.SPEEDUP_TOTAL)


def paper_table(experiment: Experiment, paper: Paper, slug: str) -> Table:
    """Our figures by the paper's clock, on its data over its own, where methods that were not run stand as gaps."""
    number = TABLES.get(experiment.backbone, "I")
    clock = None if experiment.shown is None else experiment.shown.clock
    own_f1 = (col.OWN_F1,) if _personalised(experiment) else ()
    labels = labels_of(experiment)
    if not experiment.is_on_papers_data:
        labels = [v for v in labels if paper_row(v) in PAPER_ROWS.values() and _ran(experiment, v)]
    builder = _Builder(
        experiment=experiment,
        number=number,
        columns=recorded(experiment.shown, (col.F1, *own_f1, *COLUMNS[number])),
        labels=tuple(labels),
        methods=facts_of_items(experiment),
        paper=paper,
    )
    return Table(
        slug=slug,
        caption=f"{_place(experiment, number)}: {experiment.title}.",
        head=("method", "runs", *headings(experiment, builder.columns, clock)),
        rows=tuple(_row(builder, label) for label in builder.labels),
        notes=tuple(_table_notes(experiment, number)),
        second=second_line(experiment),
    )


def _place(experiment: Experiment, number: str) -> str:
    """Title of the table; the paper's values stand under ours on its own data alone."""
    if experiment.is_on_papers_data:
        return f"Our figures beside the paper's (its Table {number})"
    return f"Our figures in the columns of the paper's Table {number}"


def _ran(experiment: Experiment, label: str) -> bool:
    return any(s.label == label for s in experiment.items)


def _has(comparison: Comparison | None, column: Column) -> bool:
    """True where a method has the figure."""
    return comparison is not None and any(column.figure in m.stats for m in comparison.rows)


def _personalised(experiment: Experiment) -> list[str]:
    return [m.label for m in (experiment.main.rows if experiment.main else ()) if m.personalised]


def labels_of(experiment: Experiment) -> list[str]:
    """The paper's methods in its order, then ablations, then what else was run or planned, bounds last."""
    ran = [m.label for m in experiment.main.rows] if experiment.main is not None else []
    planned = [s.label for s in experiment.items if s.status != "done"]
    methods = facts_of_items(experiment)
    labels = list(dict.fromkeys([*PAPER_ROWS, *ablations(methods), *ran, *planned]))
    return bounds_last(labels, methods)


def facts_of_items(experiment: Experiment) -> dict[str, MethodFacts]:
    """Facts of every method that was run or planned, by its label."""
    return {item.label: item.method for item in reversed(experiment.items) if item.method is not None}


def ablations(methods: Mapping[str, MethodFacts]) -> list[str]:
    """Labels of the ablations: presets in the registry's order, then variants of them and a user's own."""
    return by_registry(label for label, method in methods.items() if method.kind.startswith("ablation"))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Builder:
    """Table I or II (``number``) in the making.

    Attributes:
        experiment: the runs.
        number: of the paper's table.
        columns: figures of a method.
        labels: methods from above to below.
        methods: facts of those that were run or planned.
        paper: the paper's figures.
    """

    experiment: Experiment
    number: str
    columns: tuple[Column, ...]
    labels: tuple[str, ...]
    methods: Mapping[str, MethodFacts]
    paper: Paper

    def is_bound(self, label: str) -> bool:
        """Whether it is a bound rather than a federated method."""
        return label in self.methods and self.methods[label].is_bound

    def theirs(self, label: str) -> list[tuple[Column, PaperCell | None]]:
        """Each column with the paper's cell of a method."""
        row, has_own = paper_row(label), label in _personalised(self.experiment)
        cells = [printed(self.experiment, self.paper, self.number, row, c) for c in self.columns]
        return [
            (c, None if c is col.OWN_F1 and not has_own else cell) for c, cell in zip(self.columns, cells, strict=True)
        ]


def _row(table: _Builder, label: str) -> Row:
    comparison = table.experiment.shown
    method = None if comparison is None else comparison.row(label)
    if comparison is None or method is None:
        cells = tuple(gaps(table.experiment, label, table.theirs(label)))
    else:
        cells = tuple(_figures(table, comparison, method))
    name = label if method is None else name_of(method)
    name += STAND_IN * (label in stand_ins(table.experiment.runs))
    return Row(name=name, cells=cells, faint=table.is_bound(label), rule=label in _opening(table))


def _figures(table: _Builder, comparison: Comparison, method: MethodResult) -> Iterator[Cell]:
    experiment = table.experiment
    yield runs_cell(method, experiment)
    for column, paper in table.theirs(method.label):
        # The paper's rare-modality column is PAMAP2's alone; deviations are of headlines, and a personalised method's
        # canonical model has none.
        fits = is_comparable(experiment) and (column is not col.RARE_F1 or experiment.dataset == "pamap2")
        fits = fits and not (column is col.F1 and method.personalised)
        cell = method_cell(experiment, comparison, method, column, paper=paper, comparable=fits)
        yield replace(cell, text=f"{cell.text}*") if column is col.OWN_F1 and method.personalised else cell


def _opening(table: _Builder) -> tuple[str, ...]:
    """The first method that is not the paper's and the first bound: a rule stands above them."""
    others = [v for v in table.labels if v not in PAPER_ROWS and not table.is_bound(v)]
    bounds = [v for v in table.labels if table.is_bound(v)]
    return (*others[:1], *bounds[:1])


def _table_notes(experiment: Experiment, table: str) -> Iterator[str]:
    """Notes that a reader needs before comparing rows."""
    yield protocol(experiment)
    yield from clock_note(experiment.shown)
    yield (
        "Mean ± sample standard deviation over runs (folds x seeds); last evaluated round. `-`: undefined or never "
        "reached. A speedup is FedAvg's mean round over the method's, same fleet, same clock. "
        "Uploads are means over the clients that take part in a round."
    )
    if is_comparable(experiment):
        away = departures(experiment)
        if away:
            yield f"Not the paper's protocol: {', '.join(away)}. Deviations are printed, they are no verdict."
        yield f"Under each figure: Table {table} of the paper, and ours minus the paper's. FITTED cells have none."
    elif not experiment.is_on_papers_data:
        yield "The paper prints nothing about these data: its values stand under runs on PAMAP2 and MHEALTH alone."
    else:
        yield (
            f"Under each figure: Table {table} of the paper, for orientation only. Data, fleet, learning rate or batch "
            "are not that table's, so there is no deviation."
        )
    if _personalised(experiment):
        yield f"{_STARRED} The paper does not say which of the two it prints."
    yield from (f"{note}." for note in stand_in_note(experiment.runs))
