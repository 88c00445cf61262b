"""Tables of `compare`: scores, costs and everything else, the paper's printed values beside some columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from relief_ray.report.comparison import Comparison
from relief_ray.report.paper import PaperCell, beside, read_paper
from relief_ray.report.remarks import STAND_IN, stand_ins, versus
from relief_ray.report.runs import run_value
from relief_ray.report.statistics import Paired, interval_text
from relief_ray.report.tables import columns as col
from relief_ray.report.tables.columns import Column
from relief_ray.report.tables.rows import name_of, number_text
from relief_ray.strategies import REFERENCE
from relief_ray.support.errors import listed
from relief_ray.support.table import NONE, OF_PAPER, Cell, Row, Table

COSTS = (col.ROUND_S, col.SPEEDUP, *col.SPEED_CONTEXT, col.ROUNDS_TO_85, col.JOULES)
_WIDE = (
    col.BEST_F1,
    col.LAST10_F1,
    col.SPEEDUP_TOTAL,
    col.JOULES_TOTAL,
    col.JOULES_SAVED,
    col.UP_SAVED,
    col.UP_MAX,
    col.TRAINED,
    col.ROUNDS_TO_FEDAVG,
    col.SECONDS_TO_FEDAVG,
    col.JOULES_TO_FEDAVG,
    col.FREE_SLOTS,
    col.CHOSEN_SLOTS,
)
SCORES = (col.OWN_F1, col.OWN_SUBJECTS_F1, col.AT_ROUNDS_F1, col.AT_SECONDS_F1, col.AT_JOULES_F1)
_BRIEF_SCORES = (col.F1, col.OWN_F1, col.AT_ROUNDS_F1)
_BRIEF_COSTS = (col.SPEEDUP, col.SPEEDUP_COMPUTE, col.LINK, col.ROUND_S, col.JOULES)
# Left out where the validation part was not looked at.
_IF_KNOWN = (col.BEST_F1,)
Texts = tuple[str, list[str]]


def brief_tables(comparison: Comparison) -> tuple[Table, Table]:
    """The columns that a narrow terminal has room for: F1 and its differences, then speed and costs."""
    scores = [column for column in (*_BRIEF_SCORES, col.RARE_F1) if _has(comparison, column)]
    texts = [_ours(comparison, column) for column in scores]
    texts.insert(len(texts) - (col.RARE_F1 in scores), _change_of_f1(comparison))
    costs = [c for c in (*_BRIEF_COSTS, _upload(comparison)) if _has(comparison, c)]
    return _table(comparison, "scores", texts), _table(comparison, "costs", [_ours(comparison, c) for c in costs])


def _ours(comparison: Comparison, column: Column) -> Texts:
    """The column without the paper's beside it; headlines of own models are starred."""
    methods = comparison.rows
    cells = [number_text(m.stats.get(column.figure), column, m.num_runs, tight=True) for m in methods]
    if column is col.OWN_F1:
        cells = [cell + "*" if m.personalised else cell for cell, m in zip(cells, methods, strict=True)]
    return column.head, cells


def _change_of_f1(comparison: Comparison) -> Texts:
    return _changes(versus(comparison), [comparison.gain(m) for m in comparison.rows])


def _upload(comparison: Comparison) -> Column:
    return col.UP.get(_backbone(comparison), col.UP["cnn"])


def scores_table(comparison: Comparison) -> Table:
    """F1 of the canonical model, through own sensors (starred: own models), at equal cost, and by modality."""
    texts = [*_texts(comparison, col.F1)]
    if _has(comparison, col.OWN_F1):
        texts.insert(1, _ours(comparison, col.OWN_F1))
    for column in (col.OWN_SUBJECTS_F1, col.AT_ROUNDS_F1, col.AT_SECONDS_F1, col.AT_JOULES_F1):
        texts += _texts(comparison, column) if _has(comparison, column) else ()
    texts.append(_change_of_f1(comparison))
    for column in (col.RARE_F1, *map(col.modality_f1, comparison.sensors)):
        texts += _texts(comparison, column)
    return _table(comparison, "scores", texts)


def _has(comparison: Comparison, column: Column) -> bool:
    """True where a method has the figure."""
    return any(column.figure in m.stats for m in comparison.rows)


def costs_table(comparison: Comparison) -> Table:
    """Seconds, joules, bytes and rounds to a target, which no method may reach; else what the records tell alone."""
    known = (*COSTS, _upload(comparison), col.WALL_S)
    columns = [c for c in known if c is col.ROUNDS_TO_85 or _has(comparison, c)]
    return _table(comparison, "costs", [pair for c in columns for pair in _texts(comparison, c)])


def wide_table(comparison: Comparison) -> Table:
    """Everything that stands in neither ``scores_table`` nor ``costs_table``."""
    methods = comparison.rows
    texts = [_changes(f"rare F1 vs {REFERENCE} [95 %]", [m.rare for m in methods])]
    if any(m.personalised for m in methods):
        texts.insert(0, _changes(f"F1 % vs {REFERENCE} [95 %]", [m.canonical for m in methods]))
    for column in _WIDE:
        if column not in _IF_KNOWN or any(column.figure in m.stats for m in methods):
            texts += _texts(comparison, column)
    return _table(comparison, "more", texts)


def _changes(head: str, differences: Sequence[Paired | None]) -> Texts:
    return head, [interval_text(d) for d in differences]


def _texts(comparison: Comparison, column: Column) -> Iterator[Texts]:
    """The column, and the paper's behind it where it printed something for one of the methods."""
    methods = comparison.rows
    yield column.head, [number_text(m.stats.get(column.figure), column, m.num_runs, tight=True) for m in methods]
    for head, printed in column.printed(str(run_value(comparison.runs[0].run, "data.name"))):
        cells = [_printed(comparison, m.label, printed) for m in methods]
        if any(cell is not None for cell in cells):
            yield OF_PAPER + head, [_value_text(cell, column.decimals) for cell in cells]


def _printed(comparison: Comparison, label: str, column: str) -> PaperCell | None:
    """The paper's cell."""
    return beside(read_paper(), label, _backbone(comparison), column)


def _value_text(cell: PaperCell | None, decimals: int) -> str:
    return NONE if cell is None or cell.value is None else f"{cell.value:.{decimals}f}"


def _table(comparison: Comparison, slug: str, texts: Sequence[Texts]) -> Table:
    """One row per method; a rule stands above the first bound."""
    rows, replaced = [], stand_ins(comparison.runs)
    previous_is_bound = True
    for i, method in enumerate(comparison.rows):
        rule = method.is_bound and not previous_is_bound
        cells = tuple(Cell(text=column[i]) for _, column in texts)
        name = name_of(method) + STAND_IN * (method.label in replaced)
        rows.append(Row(name=name, cells=cells, rule=rule, faint=method.is_bound))
        previous_is_bound = method.is_bound
    return Table(slug=slug, caption="", head=("method", *(head for head, _ in texts)), rows=tuple(rows))


def legend(tables: Iterable[Table], sensors: Sequence[str] = ()) -> list[str]:
    """Sentences that explain the headings of these tables, and no others, from left to right."""
    heads = dict.fromkeys(head for table in tables for head in table.head)
    columns = (*SCORES, col.RARE_F1, *COSTS, col.WALL_S, *_WIDE)
    texts = {c.head: f"`{c.head}`: {c.meaning}" for c in columns if c.meaning}
    alone = [c.head for c in map(col.modality_f1, sensors) if c.head in heads]
    if alone:
        texts[alone[0]] = f"{listed([f'`{head}`' for head in alone])}: F1 with one sensor alone"
    meanings = [texts[head] for head in heads if head in texts]
    return [*meanings, _PRINTED] if any(head.startswith(OF_PAPER) for head in heads) else meanings


_PRINTED = (
    "`paper's ..`: printed in the paper, for orientation only: 200 rounds on its splits of these data; it does not say "
    "whether personalised methods were tested as one model or as the clients' own"
)


def _backbone(comparison: Comparison) -> str:
    return str(run_value(comparison.runs[0].run, "backbone.name") or "cnn")
