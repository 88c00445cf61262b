"""A comparison as a terminal table, Markdown, JSON or CSV. Undefined and unreached figures are ``-``, never imputed."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from textwrap import fill

from pydantic import JsonValue
from rich.table import Table as RichTable

from relief_ray.report.captions import caption, remarks
from relief_ray.report.comparison import Comparison, Row
from relief_ray.report.statistics import Paired
from relief_ray.report.tables.comparison import Table, costs_table, fitted, legend, scores_table, wide_table

WIDTH = 120


def plain(comparison: Comparison) -> str:
    """The terminal's tables, none wider than 120 columns: bounds below a rule, then remarks."""
    tables = "\n\n".join("\n".join(_lines(comparison, table)) for table in terminal_tables(comparison))
    sentences = (*legend(comparison), *remarks(comparison))
    notes = [fill(r, WIDTH, initial_indent="- ", subsequent_indent="  ") for r in sentences]
    return "\n".join([fill(caption(comparison), WIDTH), "", tables, *notes]) + "\n"


def terminal_tables(comparison: Comparison) -> list[Table]:
    """Scores, then costs; each in several tables where one would be too wide."""
    return [*fitted(scores_table(comparison), WIDTH), *fitted(costs_table(comparison), WIDTH)]


def _lines(comparison: Comparison, table: Table) -> Iterator[str]:
    headings, rows = table
    widths = [max(len(line[i]) for line in (headings, *rows)) for i in range(len(headings))]
    rule = "  ".join("-" * w for w in widths)
    yield from (_line(headings, widths), rule)
    was_bound = True
    for row, cells in zip(comparison.rows, rows, strict=True):
        yield from [rule] if row.is_bound and not was_bound else []
        yield _line(cells, widths)
        was_bound = row.is_bound


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = (c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True)))
    return "  ".join([first, *rest]).rstrip()


def rich_tables(comparison: Comparison) -> tuple[RichTable, ...]:
    """The terminal's tables for a rich console; caption and remarks are the caller's to print."""
    return tuple(_rich_table(comparison, table) for table in terminal_tables(comparison))


def _rich_table(comparison: Comparison, source: Table) -> RichTable:
    headings, rows = source
    table = RichTable(box=None, pad_edge=False, header_style="bold")
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="right" if i else "left", no_wrap=True)
    for row, cells in zip(comparison.rows, rows, strict=True):
        table.add_row(*cells, style="dim" if row.is_bound else None)
    return table


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]], numeric: bool = True) -> str:
    """A GitHub table; where it is ``numeric``, all columns but the first stand to the right."""
    dashes = ["---", *("---:" if numeric else "---" for _ in headings[1:])]
    return "\n".join(f"| {' | '.join(line)} |" for line in (headings, dashes, *rows)) + "\n"


def markdown(comparison: Comparison) -> str:
    """Caption, all tables and remarks."""
    tables = (scores_table(comparison), costs_table(comparison), wide_table(comparison))
    parts = [caption(comparison), *(markdown_table(*table) for table in tables)]
    notes = "\n".join(f"- {r}" for r in (*legend(comparison), *remarks(comparison)))
    return "\n\n".join(p.rstrip("\n") for p in [*parts, notes] if p) + "\n"


def flat(comparison: Comparison) -> list[dict[str, JsonValue]]:
    """One flat mapping per method: ``<figure>`` is the mean, ``<figure>_std``, ``<figure>_num`` stand beside it."""
    return [_flat_row(row) for row in comparison.rows]


def _flat_row(row: Row) -> dict[str, JsonValue]:
    found: dict[str, JsonValue] = {
        "method": row.label, "is_bound": row.is_bound, "personalised": row.personalised, "num_runs": row.num_runs,
    }  # fmt: skip
    for name, stat in row.stats.items():
        found |= {name: stat.mean, f"{name}_std": stat.std, f"{name}_num": stat.num}
    for name, paired in (("f1", row.f1), ("f1_canonical", row.canonical), ("f1_rare", row.rare)):
        if paired is not None:
            found |= _flat_paired(f"{name}_vs_fedavg", paired)
    return found


def _flat_paired(name: str, paired: Paired) -> dict[str, JsonValue]:
    return {
        f"{name}_points": paired.mean,
        f"{name}_low": paired.low,
        f"{name}_high": paired.high,
        f"{name}_p": paired.p,
        f"{name}_detectable": paired.detectable,
        f"{name}_subjects": paired.num_subjects,
    }


def as_json(comparison: Comparison) -> str:
    """Everything a script wants to read."""
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
