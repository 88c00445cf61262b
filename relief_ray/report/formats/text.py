"""A comparison as terminal text, Markdown, JSON or CSV. Undefined and unreached figures are ``-``, never imputed."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from textwrap import fill

from pydantic import JsonValue

from relief_ray.report.comparison import Comparison, MethodResult
from relief_ray.report.document import Table
from relief_ray.report.formats.markdown import table_markdown
from relief_ray.report.headline import alike_pairs, equal_rounds, whose_intervals
from relief_ray.report.remarks import caption, remarks
from relief_ray.report.statistics import Paired
from relief_ray.report.tables.comparison import (
    OF_PAPER,
    brief_tables,
    costs_table,
    legend,
    scores_table,
    wide_table,
)
from relief_ray.report.tables.rows import names_line
from relief_ray.support.errors import UserError

# Characters of a line: with all figures; of a usual terminal; and the fewest that hold a table.
WIDTH, NARROW, LEAST = 120, 80, 60
# Headings of so many letters stay on one line.
SHORT = 9


def plain(comparison: Comparison, width: int = WIDTH) -> str:
    """Caption, tables at most ``width`` columns wide (bounds below a rule), and remarks.

    Below ``WIDTH`` columns the tables hold the figures that matter most, and their legend is as short.

    Raises:
        UserError: the width holds no table.
    """
    if width < LEAST:
        raise UserError(f"width={width}: expected {LEAST} characters or more")
    is_wide = width >= WIDTH
    made = (scores_table(comparison), costs_table(comparison)) if is_wide else brief_tables(comparison)
    meanings = legend(made, comparison.sensors)
    tables = [part for table in made for part in fitted(table, width)]
    rounds = [*_taken_over(comparison), *([names] if (names := names_line(comparison)) else [])]
    notes = [
        fill(r, width, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
        for r in (*meanings, *rounds, *remarks(comparison))
    ]
    shown = "\n\n".join(table_text(table) for table in tables)
    head = fill(caption(comparison), width, break_on_hyphens=False)
    return "\n\n".join([head, shown, *(["\n".join(notes)] if notes else [])]) + "\n"


def _taken_over(comparison: Comparison) -> list[str]:
    """Sentences on what the differences to FedAvg are taken over."""
    told = (equal_rounds(comparison), alike_pairs(comparison), whose_intervals(comparison))
    return [sentence for sentence in told if sentence]


def table_text(table: Table) -> str:
    """Aligned columns, the first to the left, with a rule under the headings; long headings take two lines."""
    heads = list(zip(*map(_heading, table.head, _columns(table)), strict=True))
    texts = [[row.name, *(cell.text for cell in row.cells)] for row in table.rows]
    widths = [max(map(len, column)) for column in zip(*heads, *texts, strict=True)]
    rule = "  ".join("-" * width for width in widths)
    lines = [*(_line(head, widths) for head in heads if any(head)), rule]
    for row, cells in zip(table.rows, texts, strict=True):
        lines += [rule, _line(cells, widths)] if row.rule else [_line(cells, widths)]
    return "\n".join(lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = (c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True)))
    return "  ".join([first, *rest]).rstrip()


def _columns(table: Table) -> list[list[str]]:
    """The texts of every column without its heading, the rows' names first."""
    return [
        [row.name for row in table.rows],
        *([row.cells[i].text for row in table.rows] for i in range(len(table.head) - 1)),
    ]


def _heading(head: str, cells: Sequence[str]) -> tuple[str, str]:
    """The heading in two lines, the first empty where it is short or no wider than its cells."""
    if len(head) <= max(SHORT, *map(len, cells)):
        return "", head
    spaces = [i for i, letter in enumerate(head) if letter == " "]
    halves = [("", head), *((head[:i], head[i + 1 :]) for i in spaces)]
    return min(halves, key=lambda lines: max(map(len, lines)))


def fitted(table: Table, width: int) -> list[Table]:
    """The table as the fewest that are at most ``width`` wide, evenly; the paper's columns stay beside ours."""
    texts = zip(table.head, _columns(table), strict=True)
    first, *widths = (max(map(len, (*_heading(head, cells), *cells))) for head, cells in texts)
    units: list[list[int]] = []
    for i, head in enumerate(table.head[1:]):
        if head.startswith(OF_PAPER):
            units[-1].append(i)
        else:
            units.append([i])
    fewest = len(_packed(first, widths, units, width))
    narrow = next(w for w in range(width + 1) if len(_packed(first, widths, units, w)) <= fewest)
    return [_selected(table, part) for part in _packed(first, widths, units, narrow)]


def _packed(first: int, widths: Sequence[int], units: Iterable[Sequence[int]], width: int) -> list[list[int]]:
    """Numbers of the columns of as many tables as it takes; two blanks stand between columns."""
    parts: list[list[int]] = [[]]
    for unit in units:
        if parts[-1] and first + sum(2 + widths[i] for i in (*parts[-1], *unit)) > width:
            parts.append([])
        parts[-1] += unit
    return parts


def _selected(table: Table, indices: Sequence[int]) -> Table:
    rows = tuple(replace(row, cells=tuple(row.cells[i] for i in indices)) for row in table.rows)
    return replace(table, head=(table.head[0], *(table.head[1 + i] for i in indices)), rows=rows)


def markdown(comparison: Comparison) -> str:
    """Caption, all tables and remarks."""
    made = [table(comparison) for table in (scores_table, costs_table, wide_table)]
    tables = map(table_markdown, made)
    rounds = [*_taken_over(comparison), *([names] if (names := names_line(comparison)) else [])]
    notes = "\n".join(f"- {r}" for r in (*legend(made, comparison.sensors), *rounds, *remarks(comparison)))
    return "\n\n".join(p.rstrip("\n") for p in (caption(comparison), *tables, notes) if p) + "\n"


def flat(comparison: Comparison) -> list[dict[str, JsonValue]]:
    """One flat mapping per method: ``<figure>`` is the mean, ``<figure>_std``, ``<figure>_num`` stand beside it."""
    return [_flat_method(method) for method in comparison.rows]


def _flat_method(method: MethodResult) -> dict[str, JsonValue]:
    values: dict[str, JsonValue] = {
        "method": method.label, "kind": method.method.kind, "is_bound": method.is_bound,
        "personalised": method.personalised, "num_runs": method.num_runs,
    }  # fmt: skip
    for name, stat in method.stats.items():
        values |= {name: stat.mean, f"{name}_std": stat.std, f"{name}_num": stat.num}
    for name, paired in _differences(method):
        if paired is not None:
            values |= _flat_paired(f"{name}_vs_fedavg", paired)
    return values


def _differences(method: MethodResult) -> tuple[tuple[str, Paired | None], ...]:
    """Paired differences to FedAvg by the beginning of their keys."""
    return (
        ("f1", method.f1),
        ("f1_at_rounds", method.at_rounds),
        ("f1_canonical", method.canonical),
        ("f1_rare", method.rare),
    )


def _flat_paired(name: str, paired: Paired) -> dict[str, JsonValue]:
    return {
        f"{name}_points": paired.mean,
        f"{name}_low": paired.low,
        f"{name}_high": paired.high,
        f"{name}_p": paired.p,
        f"{name}_smallest_found": paired.smallest_found,
        f"{name}_pairs": paired.num_pairs,
        f"{name}_unit": paired.unit,
    }


def as_json(comparison: Comparison) -> str:
    """Caption, clock, remarks and every figure of every method, unrounded."""
    value = {
        "caption": caption(comparison), "clock": comparison.clock, "remarks": list(remarks(comparison)),
        "methods": flat(comparison),
    }  # fmt: skip
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


def as_csv(comparison: Comparison) -> str:
    """``flat`` as CSV; a figure that a method lacks is empty."""
    rows = flat(comparison)
    names = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
