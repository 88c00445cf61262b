"""Tables I and II: every method of an experiment, the paper's in its order, then ours, then the bounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from relief_ray.report.compare import Comparison, Row
from relief_ray.report.experiments import Experiment
from relief_ray.report.page.document import Entry, Line, Sheet
from relief_ray.report.page.entries import (
    PAPER_ROWS,
    TABLE_PRESETS,
    Column,
    departures,
    entry,
    gap,
    is_comparable,
    open_states,
    origin_of,
    paper_line,
    printed,
    runs_entry,
    second_line,
    stat_of,
    value_of,
)
from relief_ray.report.page.notes import clock_note, headings, protocol
from relief_ray.report.paper import Paper, PaperCell
from relief_ray.report.summary import BOUNDS

VARIANTS = ("v1", "v2", "v3", "v2_mandatory", "v3_mandatory", "mandatory_only")
TABLES = {"cnn": "I", "moment_lora": "II"}
_SCORES = (
    Column(head="F1 %", figure="f1_percent", decimals=1, paper="{data} F1 (%)"),
    Column(head="rare F1 %", figure="f1_rare_percent", decimals=1, paper="rare-modality F1 (%)"),
    Column(head="speedup", figure="speedup", decimals=2, paper="speedup"),
)
_JOULES = Column(head="J per round", figure="energy_j", decimals=0, paper="energy (J)")
COLUMNS = {
    "I": (
        *_SCORES,
        Column(head="rounds to 85 %", figure="tta85_rounds", decimals=0, paper="TTA (rounds)"),
        Column(head="up, MiB", figure="up_mib", decimals=2, paper="Comm (MB)"),
        _JOULES,
    ),
    "II": (
        *_SCORES,
        Column(head="up, KiB", figure="up_mib", decimals=0, paper="Comm (KB)", scale=1024.0),
        Column(head="trained, % of trainable", figure="trained_percent", decimals=1),
        Column(head="up saved, %", figure="up_saved_percent", decimals=1, paper="save (%)"),
        _JOULES,
    ),
}  # fmt: skip


def main_table(experiment: Experiment, paper: Paper, slug: str) -> Sheet:
    """Our figures over the paper's; what was not run, failed or is missing stands as a gap."""
    table = TABLES.get(experiment.backbone, "I")
    clock = None if experiment.shown is None else experiment.shown.clock
    clocks = tuple(c for c in experiment.comparisons if c != clock)
    columns = headings(experiment, COLUMNS[table], clock)
    head = ("method", "runs", *columns, *(f"speedup, `{c}`" for c in clocks))
    labels = tuple(labels_of(experiment))
    made = _Table(experiment=experiment, number=table, clocks=clocks, labels=labels, paper=paper)
    lines = tuple(_line(made, label) for label in labels)
    title = f"Table {table} of the paper with our figures: {experiment.title}."
    notes = tuple(table_notes(experiment, table))
    return Sheet(slug=slug, caption=title, head=head, lines=lines, notes=notes, second=second_line(experiment))


def labels_of(experiment: Experiment) -> list[str]:
    """The paper's methods in its order, then what else was run or planned, bounds last."""
    ran = [row.label for row in experiment.main.rows] if experiment.main is not None else []
    planned = [s.label for s in experiment.slots if s.state != "done"]
    known = {*ran, *planned}
    ours = [v for v in VARIANTS if v in known]
    found = list(dict.fromkeys([*PAPER_ROWS, *ours, *ran, *planned]))
    return [v for v in found if v not in BOUNDS] + [v for v in found if v in BOUNDS]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Table:
    experiment: Experiment
    number: str
    clocks: tuple[str, ...]
    labels: tuple[str, ...]
    paper: Paper

    def theirs(self, label: str) -> list[PaperCell | None]:
        """The paper's cells of a method."""
        row = paper_row(label)
        return [printed(self.experiment, self.paper, self.number, row, c) for c in COLUMNS[self.number]]


def _line(table: _Table, label: str) -> Line:
    comparison = table.experiment.shown
    row = None if comparison is None else comparison.row(label)
    entries = _hole(table, label) if comparison is None or row is None else _figures(table, comparison, row)
    starred = label + ("*" if row is not None and row.personalised else "")
    return Line(name=starred, entries=tuple(entries), faint=label in BOUNDS, rule=_opens(label, table.labels))


def _hole(table: _Table, label: str) -> Iterator[Entry]:
    yield gap(open_states(table.experiment, label))
    for column, cell in zip(COLUMNS[table.number], table.theirs(label), strict=True):
        yield Entry(text="", below=paper_line(cell, column), tone="gap", numbers={"n": 0, "paper": value_of(cell)})
    yield from (Entry(text="", tone="gap") for _ in table.clocks)


def _figures(table: _Table, comparison: Comparison, row: Row) -> Iterator[Entry]:
    experiment = table.experiment
    yield runs_entry(row, experiment)
    for column, cell in zip(COLUMNS[table.number], table.theirs(row.label), strict=True):
        origin = origin_of(experiment, comparison, row.label, column.figure)
        # The paper's rare-modality column is PAMAP2's alone.
        fits = is_comparable(experiment) and (column.figure != "f1_rare_percent" or experiment.dataset == "pamap2")
        stat = row.stats.get(column.figure)
        yield entry(stat, column, origin=origin, paper=cell, comparable=fits, num_runs=row.num_runs)
    yield from (_speedup(experiment, experiment.comparisons[c], row) for c in table.clocks)


def paper_row(label: str) -> str:
    """The paper's name of a method, a `table` preset included."""
    for suffix in TABLE_PRESETS:
        label = label.removesuffix(suffix)
    return PAPER_ROWS.get(label, label)


def _opens(label: str, labels: Sequence[str]) -> bool:
    """A rule stands above the first of ours and above the first bound."""
    others = [v for v in labels if v not in PAPER_ROWS and v not in BOUNDS]
    bounds = [v for v in labels if v in BOUNDS]
    return label in (*others[:1], *bounds[:1])


def _speedup(experiment: Experiment, comparison: Comparison, row: Row) -> Entry:
    stat, column = stat_of(comparison, row.label, "speedup"), Column(head="", figure="speedup", decimals=2)
    origin = origin_of(experiment, comparison, row.label, "speedup")
    return entry(stat, column, origin=origin, num_runs=row.num_runs)


def table_notes(experiment: Experiment, table: str) -> Iterator[str]:
    """What a reader has to know before comparing lines."""
    yield protocol(experiment)
    yield from clock_note(experiment.shown)
    yield (
        "Mean ± sample standard deviation over runs (folds x seeds); last evaluated round. `-`: undefined or never "
        "reached. A speedup is FedAvg's mean round over the method's, same fleet, same clock."
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
    if any(r.personalised for r in (experiment.main.rows if experiment.main else ())):
        yield "* No common model: F1 is the mean over clients of their own models, seen through their own sensors."
