"""A comparison as terminal text, Markdown, JSON or CSV. Undefined and unreached figures are ``-``, never imputed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from textwrap import fill

from relief_ray.report.comparison import Comparison, MethodResult
from relief_ray.report.remarks import caption, remarks
from relief_ray.report.tables.methods import all_tables, lead_table, taken_over
from relief_ray.support.errors import UserError, visible
from relief_ray.support.table import Number, Table, marked
from relief_ray.support.table import as_csv as write_csv
from relief_ray.support.table import legend as legend_of

# Characters of a line: with all figures; of a usual terminal; and the fewest that hold a table.
WIDTH, NARROW, LEAST = 120, 80, 60


def plain(comparison: Comparison, width: int = WIDTH, *, wide: bool = False, legend: bool = False) -> str:
    """Caption, tables at most ``width`` columns wide (bounds below a rule), and remarks.

    Columns of which no method has a figure are left out. ``wide``: all columns, not only those that lead; ``legend``:
    sentences on what the headings mean.

    Raises:
        UserError: the width holds no table.
    """
    if width < LEAST:
        raise UserError(f"width={width}: expected {LEAST} characters or more")
    made = [table.without_blanks() for table in (all_tables(comparison) if wide else [lead_table(comparison)])]
    tables = [part for table in made for part in table.fitted(width)]
    below = [
        fill(note, width, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
        for note in notes(comparison, made if legend else [])
    ]
    text = "\n\n".join(table.text() for table in tables)
    head = fill(caption(comparison), width, break_on_hyphens=False)
    return visible("\n\n".join([head, text, *(["\n".join(below)] if below else [])])) + "\n"


def notes(comparison: Comparison, tables: Sequence[Table] = ()) -> list[str]:
    """Sentences below the tables: what headings mean, what differences are taken over, names, and remarks."""
    return [*legend_of(tables), *taken_over(comparison), *remarks(comparison)]


def markdown(comparison: Comparison, *, wide: bool = True) -> str:
    """Caption, tables, what their headings mean, and remarks; ``wide``: all columns, not only those that lead."""
    made = all_tables(comparison) if wide else (lead_table(comparison),)
    tables = (replace(table, meanings={}).markdown() for table in made)
    below = "\n".join(f"- {marked(note)}" for note in notes(comparison, made))
    return "\n\n".join(p.rstrip("\n") for p in (marked(caption(comparison)), *tables, below) if p) + "\n"


def flat(comparison: Comparison) -> list[dict[str, Number]]:
    """One flat mapping per method: ``<figure>`` is the mean, ``<figure>_std``, ``<figure>_num`` stand beside it."""
    return [_flat_method(method) for method in comparison.rows]


def _flat_method(method: MethodResult) -> dict[str, Number]:
    values: dict[str, Number] = {
        "method": method.label,
        "kind": method.method.kind,
        "is_bound": method.is_bound,
        "personalised": method.personalised,
        "num_runs": method.num_runs,
    }
    for name, stat in method.stats.items():
        values |= {name: stat.mean, f"{name}_std": stat.std, f"{name}_num": stat.num}
    for name in ("f1", "f1_canonical", "f1_rare"):
        if (paired := method.over_reference(f"{name}_percent")) is not None:
            parts = {
                "points": paired.mean,
                "low": paired.low,
                "high": paired.high,
                "p": paired.p,
                "smallest_found": paired.smallest_found,
                "pairs": paired.num_pairs,
                "unit": paired.unit,
            }
            values |= {f"{name}_vs_fedavg_{part}": value for part, value in parts.items()}
    return values


def as_json(comparison: Comparison) -> str:
    """Caption, clock, remarks and every figure of every method, unrounded."""
    value = {
        "caption": caption(comparison),
        "clock": comparison.clock,
        "remarks": list(remarks(comparison)),
        "methods": flat(comparison),
    }
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


def as_csv(comparison: Comparison) -> str:
    """``flat`` as CSV; a figure that a method lacks is empty."""
    rows = flat(comparison)
    names = list(dict.fromkeys(name for row in rows for name in row))
    return write_csv([names, *([row.get(name) for name in names] for row in rows)])
