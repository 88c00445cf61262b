r"""The document's tables and figures as LaTeX for a two-column IEEE paper (packages: booktabs, graphicx, makecell)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from relief_ray.report.canvas import COLUMN_WIDTH_IN
from relief_ray.report.page.document import Document, Entry, Line, Plot, Sheet, column_origins

_SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "×": r"$\times$", "<": r"$<$", ">": r"$>$",
    "θ": r"$\theta$", "Δ": r"$\Delta$", "γ": r"$\gamma$",
}  # fmt: skip
_HEAD = r"""% Tables and figures of the report; \input it, or compile it as it is.
\documentclass[journal]{IEEEtran}
\usepackage[T1]{fontenc}
\usepackage{booktabs,graphicx,makecell}
\begin{document}
"""


def latex(document: Document, figures: str = "figures") -> str:
    """A file that compiles by itself."""
    floats = [b for b in document.blocks if isinstance(b, Sheet | Plot)]
    blocks = [_table(b) if isinstance(b, Sheet) else _figure(b, figures) for b in floats]
    return _HEAD + "\n".join(blocks) + f"\n\\section*{{Origin}}\n{escape(document.footer)}\n\\end{{document}}\n"


def escape(text: str) -> str:
    """Plain text as LaTeX; ``code`` becomes a typewriter."""
    safe = "".join(_SPECIAL.get(c, c) for c in text)
    safe = re.sub(r"(?<![\w.`])-(?=\d)", "$-$", safe)
    return re.sub(r"`([^`]+)`", r"\\texttt{\1}", safe)


def _table(sheet: Sheet) -> str:
    origins = column_origins(sheet)
    columns = "l" + ("p{0.25\\linewidth}" if sheet.is_text else "r") * len(origins)
    pairs = zip(sheet.head[1:], origins, strict=True)
    first = _stacked(escape(sheet.head[0]), escape(sheet.second)).replace("[tr]", "[tl]")
    head = [first, *(_stacked(escape(name), origin or "") for name, origin in pairs)]
    body = "\n".join(_line(line, origins) for line in sheet.lines)
    notes = "".join(f"\\par\\footnotesize {escape(note)}\n" for note in sheet.notes)
    return (
        f"\\begin{{table*}}[t]\n\\centering\n\\caption{{{escape(sheet.caption)}}}\n\\label{{tab:{sheet.slug}}}\n"
        "\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%\n"
        f"\\begin{{tabular}}{{{columns}}}\n"
        f"\\toprule\n{' & '.join(head)} \\\\\n\\midrule\n{body}\n\\bottomrule\n\\end{{tabular}}}}\n"
        f"{notes}\\end{{table*}}\n"
    )


def _line(line: Line, origins: Iterable[str | None]) -> str:
    cells = (_cell(e, o) for e, o in zip(line.entries, origins, strict=True))
    return ("\\midrule\n" if line.rule else "") + " & ".join([escape(line.name), *cells]) + " \\\\"


def _cell(entry: Entry, usual: str | None) -> str:
    own = entry.origin if entry.origin not in (None, usual) else ""
    return _stacked(" ".join(p for p in (escape(entry.text), own) if p), escape(entry.below))


def _stacked(above: str, below: str) -> str:
    return f"\\makecell[tr]{{{above}\\\\ {{\\scriptsize {below}}}}}" if below else above


def _figure(plot: Plot, figures: str) -> str:
    star = "*" if plot.width_in > COLUMN_WIDTH_IN else ""
    return (
        f"\\begin{{figure{star}}}[t]\n\\centering\n"
        f"\\includegraphics[width={plot.width_in:.2f}in]{{{figures}/{plot.slug}.pdf}}\n"
        f"\\caption{{{escape(plot.caption)}}}\n\\label{{fig:{plot.slug}}}\n\\end{{figure{star}}}\n"
    )
