"""Tables I and II: every method of an experiment, the paper's in its order, then ours, then the bounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from relief_ray.records.schema import MethodFacts
from relief_ray.report.captions import STAND_IN, clock_note, protocol, stand_in_note, stand_ins
from relief_ray.report.comparison import Comparison, MethodResult, bounds_last
from relief_ray.report.document import Cell, Row, Table
from relief_ray.report.experiments import Experiment
from relief_ray.report.paper import PAPER_ROWS, TABLES, Paper, PaperCell, paper_row
from relief_ray.report.tables import columns as col
from relief_ray.report.tables.cells import (
    departures,
    gaps,
    headings,
    is_comparable,
    method_cell,
    name_of,
    printed,
    runs_cell,
    second_line,
)
from relief_ray.report.tables.columns import Column
from relief_ray.strategies import by_registry

OWN = (col.OWN_F1, col.OWN_SUBJECTS_F1, col.AT_SECONDS_F1, col.AT_JOULES_F1)
COLUMNS = {
    "I": (col.RARE_F1, col.SPEEDUP, *col.SPEED_CONTEXT, col.ROUNDS_TO_85, col.UP["cnn"], col.JOULES),
    "II": (col.RARE_F1, col.SPEEDUP, *col.SPEED_CONTEXT, col.UP["moment_lora"], col.TRAINED, col.UP_SAVED, col.JOULES),
}


def main_table(experiment: Experiment, paper: Paper, slug: str) -> Table:
    """Our figures over the paper's; methods that were not run, failed or are missing stand as gaps."""
    number = TABLES.get(experiment.backbone, "I")
    clock = None if experiment.shown is None else experiment.shown.clock
    clocks = tuple(c for c in experiment.comparisons if c != clock)
    own_f1 = tuple(column for column in OWN if _has(experiment, column))
    builder = _Builder(
        experiment=experiment, number=number, columns=(col.F1, *own_f1, *COLUMNS[number]), clocks=clocks,
        labels=tuple(labels_of(experiment)), methods=facts_of_items(experiment), paper=paper,
    )  # fmt: skip
    return Table(
        slug=slug,
        caption=f"Table {number} of the paper with our figures: {experiment.title}.",
        head=("method", "runs", *headings(experiment, builder.columns, clock), *(f"speedup, `{c}`" for c in clocks)),
        rows=tuple(_row(builder, label) for label in builder.labels),
        notes=tuple(_table_notes(experiment, number)),
        second=second_line(experiment),
    )


def _has(experiment: Experiment, column: Column) -> bool:
    """True where a method has the figure."""
    return experiment.shown is not None and any(column.figure in m.stats for m in experiment.shown.rows)


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
        clocks: time models of which the speedup alone is shown.
        labels: methods from above to below.
        methods: facts of those that were run or planned.
        paper: the paper's figures.
    """

    experiment: Experiment
    number: str
    columns: tuple[Column, ...]
    clocks: tuple[str, ...]
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
            (c, None if c is col.OWN_F1 and not has_own else cell)
            for c, cell in zip(self.columns, cells, strict=True)
        ]  # fmt: skip


def _row(table: _Builder, label: str) -> Row:
    comparison = table.experiment.shown
    method = None if comparison is None else comparison.row(label)
    if comparison is None or method is None:
        unknown = (Cell(text="", tone="gap") for _ in table.clocks)
        cells = (*gaps(table.experiment, label, table.theirs(label)), *unknown)
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
    for clock in table.clocks:
        other = experiment.comparisons[clock]
        same = next(m for m in other.rows if m.label == method.label)
        yield method_cell(experiment, other, same, col.SPEEDUP)


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
    else:
        yield (
            f"Under each figure: Table {table} of the paper, for orientation only. Data, fleet, learning rate or batch "
            "are not that table's, so there is no deviation."
        )
    if _personalised(experiment):
        yield (
            "* Clients are tested on models of their own: the headline is `F1 own %`, the mean over clients, each seen "
            "through its own sensors; `F1 %` and rare F1 are the canonical model's, a diagnostic. The paper does not "
            "say which of the two it prints."
        )
    yield from (f"{note}." for note in stand_in_note(experiment.runs))
