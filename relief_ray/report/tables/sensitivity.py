"""Tables IV and V: F1 as devices differ more, and as there are more clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from relief_ray.report.comparison import BACKBONES, Experiment
from relief_ray.report.paper import PAPER_ROWS, PREFIX, REPRESENTATIVE, Paper, PaperCell
from relief_ray.report.remarks import own_models, protocol
from relief_ray.report.runs import split_name
from relief_ray.report.tables.columns import HEADLINE
from relief_ray.report.tables.methods import facts_of_items
from relief_ray.report.tables.rows import gap, is_comparable, method_cell, open_statuses
from relief_ray.strategies import by_registry
from relief_ray.support.table import Cell, Row, Table

TABLES = {"pamap2": "IV", "mhealth": "V"}
GAPS = {10.0: "Hetero. Mild (10x)", 55.0: "Hetero. Moderate (55x)", 100.0: "Hetero. Extreme (100x)"}
_USUAL_GAP = 55.0
Key = tuple[str, float, int]


def sensitivity_tables(experiments: Sequence[Experiment], paper: Paper) -> Iterator[Table]:
    """One table per data set and split of which the fleet was varied."""
    for i, group in enumerate(families(experiments), 1):
        if len({(e.gap, e.num_clients) for e in group}) > 1:
            yield _table(group, paper, f"sensitivity-{i}")


def families(experiments: Sequence[Experiment]) -> list[list[Experiment]]:
    """Experiments that differ in backbone, gap and number of clients alone."""
    groups: dict[str, list[Experiment]] = {}
    for experiment in experiments:
        key = repr((experiment.dataset, experiment.text("data.split"), experiment.differs))
        groups.setdefault(key, []).append(experiment)
    return list(groups.values())


def _table(group: Sequence[Experiment], paper: Paper, slug: str) -> Table:
    first = group[0]
    by_key: Mapping[Key, Experiment] = {(e.backbone, e.gap, e.num_clients): e for e in group}
    backbones = [b for b in BACKBONES if any(e.backbone == b for e in group)]
    columns = [(b, m) for b in backbones for m in methods(group)]
    head = ("setting", *(f"{PREFIX[b]} {m}" for b, m in columns))
    rows = [
        Row(name=name, cells=tuple(_cell(by_key.get((b, wide, n)), m, paper, name) for b, m in columns), rule=opens)
        for name, wide, n, opens in settings(group)
    ]
    place = f"{first.data_title}, {split_name(first.text('data.split'))}"
    theirs = f"Table {TABLES[first.dataset]}" if first.dataset in TABLES else "In the form of Tables IV and V"
    note = "F1 in %, mean ± sample standard deviation over runs. B1, B2: the two backbones."
    note += " Under it the paper's." if first.dataset in TABLES else ""
    note += " *: of the clients' own models." if any(own_models(e.main) for e in group if e.main is not None) else ""
    notes = (*dict.fromkeys(protocol(e) for e in group), note)
    second = "second line: paper" if first.dataset in TABLES else ""
    return Table(slug=slug, caption=f"{theirs}: {place}.", head=head, rows=tuple(rows), notes=notes, second=second)


def methods(group: Sequence[Experiment]) -> list[str]:
    """The paper's five, then what else was run or planned everywhere, bounds last."""
    labels = [{s.label for s in e.items} for e in group]
    common = [
        v for v in dict.fromkeys(s.label for s in group[0].items) if all(v in group_labels for group_labels in labels)
    ]
    five = [
        v for v in REPRESENTATIVE if group[0].dataset in TABLES or any(v in group_labels for group_labels in labels)
    ]
    facts = facts_of_items(group[0])
    bounds = by_registry(v for v in common if v in facts and facts[v].is_bound)
    return list(dict.fromkeys([*five, *(v for v in common if v not in bounds), *bounds]))


def settings(group: Sequence[Experiment]) -> Iterator[tuple[str, float, int, bool]]:
    """Row name, gap, clients, and whether a rule stands above: gaps at the own fleet, then fleets at the usual gap."""
    own = min((e.num_clients for e in group if not e.text("data.num_clients")), default=group[0].num_clients)
    is_papers = group[0].dataset in TABLES
    wide = sorted({e.gap for e in group if e.num_clients == own} | (set(GAPS) if is_papers else set()))
    yield from ((GAPS.get(g, f"gap {g:g}x"), g, own, False) for g in wide)
    many = sorted({e.num_clients for e in group if e.gap == _USUAL_GAP} | ({own, 20, 50, 100} if is_papers else set()))
    yield from ((f"Scale N={n}", _USUAL_GAP, n, n == many[0]) for n in many)


def _cell(experiment: Experiment | None, label: str, paper: Paper, name: str) -> Cell:
    if experiment is None:
        return gap(())
    comparison = experiment.main
    method = None if comparison is None else comparison.row(label)
    if comparison is None or method is None:
        return gap(open_statuses(experiment, label))
    theirs, fits = _theirs(experiment, label, paper, name), is_comparable(experiment, any_fleet=True)
    cell = method_cell(experiment, comparison, method, HEADLINE, paper=theirs, comparable=fits)
    return replace(cell, text=f"{cell.text}*") if method.personalised else cell


def _theirs(experiment: Experiment, label: str, paper: Paper, name: str) -> PaperCell | None:
    table = TABLES.get(experiment.dataset)
    column = f"{PREFIX[experiment.backbone]} {PAPER_ROWS.get(label, label)}"
    return None if table is None else paper[table].get(name, column)
