"""Tables I and II: every method of an experiment, the paper's in its order, then ours, then the bounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from relief_ray.report.comparison import Comparison, Row
from relief_ray.report.document import Entry, Line, Sheet
from relief_ray.report.experiments import Experiment
from relief_ray.report.paper import PAPER_ROWS, TABLES, Paper, PaperCell, paper_row
from relief_ray.report.summary import BOUNDS
from relief_ray.report.tables.cells import (
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
from relief_ray.report.tables.notes import clock_note, headings, protocol
from relief_ray.strategies import DESCRIBED

VARIANTS = tuple(name for name, preset in DESCRIBED.items() if preset.kind.startswith("ablation"))
_F1 = Column(head="F1 %", figure="f1_canonical_percent", decimals=1, paper="{data} F1 (%)")
_OWN = Column(head="F1 own %", figure="f1_fleet_percent", decimals=1, paper="{data} F1 (%)")
_SCORES = (
    _F1,
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
    columns = _columns(experiment, table)
    heads = headings(experiment, columns, clock)
    head = ("method", "runs", *heads, *(f"speedup, `{c}`" for c in clocks))
    labels = tuple(labels_of(experiment))
    made = _Table(experiment=experiment, number=table, columns=columns, clocks=clocks, labels=labels, paper=paper)
    lines = tuple(_line(made, label) for label in labels)
    title = f"Table {table} of the paper with our figures: {experiment.title}."
    notes = tuple(table_notes(experiment, table))
    return Sheet(slug=slug, caption=title, head=head, lines=lines, notes=notes, second=second_line(experiment))


def _columns(experiment: Experiment, table: str) -> tuple[Column, ...]:
    """The table's columns, and the F1 of clients' own models where a method has such."""
    return (_F1, *((_OWN,) if _starred(experiment) else ()), *COLUMNS[table][1:])


def _starred(experiment: Experiment) -> list[str]:
    return [r.label for r in (experiment.main.rows if experiment.main else ()) if r.personalised]


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
    columns: tuple[Column, ...]
    clocks: tuple[str, ...]
    labels: tuple[str, ...]
    paper: Paper

    def theirs(self, label: str) -> list[PaperCell | None]:
        """The paper's cells of a method."""
        row = paper_row(label)
        cells = [printed(self.experiment, self.paper, self.number, row, c) for c in self.columns]
        unknown = label not in _starred(self.experiment)
        return [None if c is _OWN and unknown else cell for c, cell in zip(self.columns, cells, strict=True)]


def _line(table: _Table, label: str) -> Line:
    comparison = table.experiment.shown
    row = None if comparison is None else comparison.row(label)
    entries = _hole(table, label) if comparison is None or row is None else _figures(table, comparison, row)
    starred = label + ("*" if row is not None and row.personalised else "")
    return Line(name=starred, entries=tuple(entries), faint=label in BOUNDS, rule=_opens(label, table.labels))


def _hole(table: _Table, label: str) -> Iterator[Entry]:
    yield gap(open_states(table.experiment, label))
    for column, cell in zip(table.columns, table.theirs(label), strict=True):
        yield Entry(text="", below=paper_line(cell, column), tone="gap", numbers={"n": 0, "paper": value_of(cell)})
    yield from (Entry(text="", tone="gap") for _ in table.clocks)


def _figures(table: _Table, comparison: Comparison, row: Row) -> Iterator[Entry]:
    experiment = table.experiment
    yield runs_entry(row, experiment)
    for column, cell in zip(table.columns, table.theirs(row.label), strict=True):
        origin = origin_of(experiment, comparison, row.label, column.figure)
        # The paper's rare-modality column is PAMAP2's alone.
        fits = is_comparable(experiment) and (column.figure != "f1_rare_percent" or experiment.dataset == "pamap2")
        # Deviations are of headlines: a personalised method's canonical model has none.
        fits = fits and not (column is _F1 and row.personalised)
        stat = row.stats.get(column.figure)
        found = entry(stat, column, origin=origin, paper=cell, comparable=fits, num_runs=row.num_runs)
        yield replace(found, text=f"{found.text}*") if column is _OWN and row.personalised else found
    yield from (_speedup(experiment, experiment.comparisons[c], row) for c in table.clocks)


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
    if _starred(experiment):
        yield (
            "* Clients are tested on models of their own: the headline is `F1 own %`, the mean over clients, each seen "
            "through its own sensors; `F1 %` and rare F1 are the canonical model's, a diagnostic. The paper does not "
            "say which of the two it prints."
        )
