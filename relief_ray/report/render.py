"""A comparison as a terminal table, Markdown, JSON or CSV. Undefined and unreached figures are ``-``, never imputed."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from itertools import pairwise
from textwrap import fill

from pydantic import JsonValue
from rich.table import Table

from relief_ray.report.compare import FEDAVG, Comparison, Row, Stat
from relief_ray.report.facts import caption, remarks
from relief_ray.report.stats import Paired

NONE = "-"
WIDTH = 120
# heading, figure, decimals, whether the spread is shown
COLUMNS = (
    ("F1 %", "f1_percent", 1, True),
    ("rare F1 %", "f1_rare_percent", 1, True),
    ("round s", "round_s", 2, False),
    ("speedup", "speedup", 2, False),
    ("J/round", "energy_j", 0, False),
    ("up MiB", "up_mib", 2, False),
    ("wall s", "wall_s", 2, False),
)
WIDE = (
    ("F1 % at best validation", "f1_best_percent", 1, False),
    ("last-10 F1 %", "f1_last10_percent", 1, False),
    ("speedup with bootstrap", "speedup_total", 2, False),
    ("J in total", "energy_total_j", 0, False),
    ("J saved %", "energy_saved_percent", 1, False),
    ("up saved %", "up_saved_percent", 1, False),
    ("up max MiB", "up_max_mib", 2, False),
    ("trained %", "trained_percent", 1, False),
    ("rounds to 85 %", "tta85_rounds", 0, False),
    ("rounds to 95 % of FedAvg", "tta95_rounds", 0, False),
    ("s to it", "tta95_s", 1, False),
    ("J to it", "tta95_j", 0, False),
    ("free slots", "free_slots", 2, False),
    ("of them a choice", "chosen_slots", 2, False),
)
# Left out where the validation part was not looked at.
IF_KNOWN = ("f1_best_percent",)
Column = tuple[str, str, int, bool]


def number(stat: Stat | None, decimals: int, spread: bool, num_runs: int) -> str:
    """``73.6±8.1``; ``12 (3/4)`` where only 3 of 4 runs have the figure; ``-`` where none has."""
    if stat is None:
        return NONE
    shown = f"{stat.mean + 0.0:.{decimals}f}"
    shown += f"±{stat.std:.{decimals}f}" if spread and stat.std is not None else ""
    return shown if stat.num == num_runs else f"{shown} ({stat.num}/{num_runs})"


def change(paired: Paired | None) -> str:
    """``+1.2 [-0.4, +2.8]``: a mean paired difference with its 95 % interval."""
    if paired is None:
        return NONE
    if paired.low is None or paired.high is None:
        return f"{paired.mean:+.1f} (1 subject)"
    return f"{paired.mean:+.1f} [{paired.low:+.1f}, {paired.high:+.1f}]"


def name_of(row: Row) -> str:
    """The method, starred where it is personalised."""
    return f"{row.label}{'*' if row.personalised else ''}"


def main_table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Headings and cells of the table that fits a terminal."""
    head, first, *rest = ("method", *COLUMNS)
    headings = [head, first[0], f"vs {FEDAVG} [95 %]", *(c[0] for c in rest)]
    rows = []
    for row in comparison.rows:
        f1, *others = _cells(row, COLUMNS)
        rows.append([name_of(row), f1, change(row.f1), *others])
    return headings, rows


def wide_table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Headings and cells of everything that did not fit into ``main_table``."""
    shown = [c for c in WIDE if c[1] not in IF_KNOWN or any(c[1] in r.stats for r in comparison.rows)]
    headings = ["method", f"rare F1 vs {FEDAVG} [95 %]", *(c[0] for c in shown)]
    return headings, [[name_of(r), change(r.rare), *_cells(r, shown)] for r in comparison.rows]


def _cells(row: Row, columns: Sequence[Column]) -> list[str]:
    return [number(row.stats.get(key), decimals, spread, row.num_runs) for _, key, decimals, spread in columns]


def plain(comparison: Comparison) -> str:
    """The terminal's table (at most 120 columns for the shipped methods): bounds below a rule, then remarks."""
    headings, rows = main_table(comparison)
    widths = [max(len(line[i]) for line in (headings, *rows)) for i in range(len(headings))]
    rule = "  ".join("-" * w for w in widths)
    lines = [_line(headings, widths), rule]
    for row, (before, cells) in zip(comparison.rows, pairwise([headings, *rows]), strict=True):
        starts_bounds = row.is_bound and before is not headings and not _is_bound(comparison, before[0])
        lines += [rule] if starts_bounds else []
        lines.append(_line(cells, widths))
    notes = [fill(r, WIDTH, initial_indent="- ", subsequent_indent="  ") for r in remarks(comparison)]
    return "\n".join([fill(caption(comparison), WIDTH), "", *lines, *notes]) + "\n"


def _is_bound(comparison: Comparison, name: str) -> bool:
    row = comparison.row(name.removesuffix("*"))
    return row is not None and row.is_bound


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = (c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True)))
    return "  ".join([first, *rest]).rstrip()


def rich_table(comparison: Comparison) -> Table:
    """The terminal's table for a rich console; caption and remarks are the caller's to print."""
    headings, rows = main_table(comparison)
    table = Table(box=None, pad_edge=False, header_style="bold")
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
    """Caption, both tables and remarks."""
    parts = [caption(comparison), markdown_table(*main_table(comparison)), markdown_table(*wide_table(comparison))]
    notes = "\n".join(f"- {r}" for r in remarks(comparison))
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
    for name, paired in (("f1", row.f1), ("f1_rare", row.rare)):
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
