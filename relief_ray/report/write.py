"""Writes a document: ``index.html``, ``report.md``, ``report.tex``, ``tables/*.csv``, ``figures/*.pdf|png|csv``."""

from __future__ import annotations

import csv
import importlib.util
import io
from collections.abc import Sequence
from pathlib import Path

from relief_ray.files import disk_errors, replace_file
from relief_ray.report.document import Document, Number, Plot, Sheet
from relief_ray.report.figures.style import save, sheet
from relief_ray.report.formats.html import html
from relief_ray.report.formats.latex import latex
from relief_ray.report.formats.markdown import markdown

FORMATS = (".pdf", ".png", ".svg")
KEYS = ("mean", "std", "n", "paper", "paper_std", "deviation", "origin")


def write(document: Document, out: Path) -> list[Path]:
    """All files of the report; a file that is there already is replaced.

    Raises:
        UserError: the folder cannot be written.
    """
    with disk_errors(out, "write the report"):
        for folder in (out, out / "tables", out / "figures"):
            folder.mkdir(parents=True, exist_ok=True)
        drawings = draw(document.plots, out / "figures")
        texts = {
            "index.html": html(document, drawings), "report.md": markdown(document), "report.tex": latex(document),
            **{f"tables/{s.slug}.csv": table_csv(s) for s in document.sheets},
            **{f"figures/{p.slug}.csv": as_csv([list(p.columns), *p.rows]) for p in document.plots},
        }  # fmt: skip
        for name, text in texts.items():
            replace_file(out / name, text.encode())
    return [out / name for name in texts if "/" not in name]


def draw(plots: Sequence[Plot], folder: Path) -> dict[str, str]:
    """Every figure as PDF and PNG beside its data; gives their SVG by slug, nothing where matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        return {}
    return {plot.slug: _draw(plot, folder) for plot in plots}


def _draw(plot: Plot, folder: Path) -> str:
    with sheet(plot.height_in, plot.width_in) as figure:
        plot.draw(figure)
        for suffix in (".pdf", ".png"):
            save(figure, folder / f"{plot.slug}{suffix}")
    # Letters as outlines: the page looks the same where the font is not installed.
    with sheet(plot.height_in, plot.width_in, outlines=True) as figure:
        plot.draw(figure)
        return save(figure, folder / f"{plot.slug}.svg").read_text(encoding="utf-8")


def table_csv(table: Sheet) -> str:
    """A line per cell with its numbers; a table of words as it is printed."""
    if table.is_text:
        return as_csv([list(table.head), *([line.name, *(e.text for e in line.entries)] for line in table.lines)])
    others = dict.fromkeys(k for line in table.lines for e in line.entries for k in e.numbers if k not in KEYS)
    keys = [*KEYS, *others]
    rows: list[list[Number]] = [["row", "column", "text", *keys]]
    for line in table.lines:
        for name, entry in zip(table.head[1:], line.entries, strict=True):
            rows.append([line.name, name, entry.text, *(entry.numbers.get(k) for k in keys)])
    return as_csv(rows)


def as_csv(rows: Sequence[Sequence[Number]]) -> str:
    """Rows as CSV; what is not there is empty."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()
