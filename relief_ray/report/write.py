"""Files of a document: ``index.html``, ``report.md``, ``report.tex``, ``tables/*.csv``, ``figures/*.pdf|png|csv``."""

from __future__ import annotations

import csv
import importlib.util
import io
from collections.abc import Sequence
from pathlib import Path

from relief_ray.files import disk_errors, replace_file
from relief_ray.report.document import Document, Figure, Number, Table
from relief_ray.report.figures.style import save, sheet
from relief_ray.report.formats.html import html
from relief_ray.report.formats.latex import latex
from relief_ray.report.formats.markdown import markdown

FORMATS = (".pdf", ".png", ".svg")
KEYS = ("mean", "std", "n", "paper", "paper_std", "deviation", "origin")


def write(document: Document, out: Path) -> list[Path]:
    """Write all files of the report; a file that is there already is replaced.

    Raises:
        UserError: the folder cannot be written.
    """
    with disk_errors(out, "write the report"):
        for folder in (out, out / "tables", out / "figures"):
            folder.mkdir(parents=True, exist_ok=True)
        drawings = draw(document.figures, out / "figures")
        texts = {
            "index.html": html(document, drawings), "report.md": markdown(document), "report.tex": latex(document),
            **{f"tables/{s.slug}.csv": table_csv(s) for s in document.tables},
            **{f"figures/{p.slug}.csv": as_csv([list(p.columns), *p.rows]) for p in document.figures},
        }  # fmt: skip
        for name, text in texts.items():
            replace_file(out / name, text.encode())
    return [out / name for name in texts if "/" not in name]


def draw(figures: Sequence[Figure], folder: Path) -> dict[str, str]:
    """Write every figure as PDF and PNG; return their SVG by slug, nothing where matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        return {}
    return {figure.slug: _draw(figure, folder) for figure in figures}


def _draw(figure: Figure, folder: Path) -> str:
    with sheet(figure.height_in, figure.width_in) as canvas:
        figure.draw(canvas)
        for suffix in (".pdf", ".png"):
            save(canvas, folder / f"{figure.slug}{suffix}")
    # Letters as outlines: the page looks the same where the font is not installed.
    with sheet(figure.height_in, figure.width_in, outlines=True) as canvas:
        figure.draw(canvas)
        return save(canvas, folder / f"{figure.slug}.svg").read_text(encoding="utf-8")


def table_csv(table: Table) -> str:
    """CSV with one line per cell and its numbers; a table of words as it is printed."""
    if table.is_text:
        return as_csv([list(table.head), *([row.name, *(c.text for c in row.cells)] for row in table.rows)])
    others = dict.fromkeys(k for row in table.rows for c in row.cells for k in c.numbers if k not in KEYS)
    keys = [*KEYS, *others]
    lines: list[list[Number]] = [["row", "column", "text", *keys]]
    for row in table.rows:
        for name, cell in zip(table.head[1:], row.cells, strict=True):
            lines.append([row.name, name, cell.text, *(cell.numbers.get(k) for k in keys)])
    return as_csv(lines)


def as_csv(rows: Sequence[Sequence[Number]]) -> str:
    """Rows as CSV; None is empty."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()
