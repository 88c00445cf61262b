r"""Tables and figures of a document as LaTeX for a two-column IEEE paper (array, booktabs, graphicx, makecell)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from relief_ray.report.document import (
    COLUMN_WIDTH_IN,
    TEXT_WIDTH_IN,
    Cell,
    Document,
    Figure,
    Row,
    Table,
    column_origins,
)

_SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "×": r"$\times$", "<": r"$<$", ">": r"$>$",
    "θ": r"$\theta$", "Δ": r"$\Delta$", "γ": r"$\gamma$", "≤": r"$\leq$", "≥": r"$\geq$", "≈": r"$\approx$", "−": "$-$",
}  # fmt: skip
# Characters that T1 fonts have beside Latin letters.
_KNOWN = frozenset("\N{DAGGER}\N{DOUBLE DAGGER}\N{EN DASH}\N{EM DASH}\N{HORIZONTAL ELLIPSIS}\N{BULLET}‘’“”")
_LATIN_END = 0x180
# Lines of text that fit on a page under a caption.
PAGE_LINES = 44
NOTE_CHARS, WORDS_CHARS = 130, 28
_BREAK = r"\\ "
_HEAD = r"""% Tables and figures of the report: compile it as it is, or take what you need with the packages below.
\documentclass[journal]{IEEEtran}
\usepackage[T1]{fontenc}
\usepackage{array,booktabs,graphicx,makecell}
\begin{document}
"""


def latex(document: Document, figures: str = "figures") -> str:
    """A file that compiles by itself."""
    floats = [b for b in document.blocks if isinstance(b, Table | Figure)]
    blocks = [_tables(b) if isinstance(b, Table) else _figure(b, figures) for b in floats]
    return _HEAD + "\n".join(blocks) + f"\n\\section*{{Origin}}\n{escape(document.footer)}\n\\end{{document}}\n"


def escape(text: str) -> str:
    """Plain text as LaTeX; ``code`` becomes a typewriter."""
    safe = "".join(_SPECIAL.get(c) or (c if ord(c) < _LATIN_END or c in _KNOWN else f"U+{ord(c):04X}") for c in text)
    safe = re.sub(r"(?<![\w.`])-(?=\d)", "$-$", safe)
    return re.sub(r"`([^`]+)`", r"\\texttt{\1}", safe)


def paged(table: Table) -> Iterator[Table]:
    """The table in parts of a page at most, the notes under the last one: LaTeX breaks no float."""
    room = PAGE_LINES - sum(1 + len(note) // NOTE_CHARS for note in table.notes)
    parts: list[list[Row]] = [[]]
    for row in table.rows:
        if parts[-1] and sum(map(_height, [*parts[-1], row])) > max(1, room):
            parts.append([])
        parts[-1].append(row)
    for number, rows in enumerate(parts, 1):
        part = replace(table, rows=tuple(rows), notes=table.notes if number == len(parts) else ())
        if number > 1:
            part = replace(part, slug=f"{table.slug}-{number}", caption=f"{table.caption} (Continued.)")
        yield part


def _height(row: Row) -> float:
    """Lines of text that a row takes: a second line is small, words are wrapped."""
    return max((1.0 + 0.8 * bool(e.below) + len(e.text) // WORDS_CHARS for e in row.cells), default=1.0)


def _tables(table: Table) -> str:
    origins = column_origins(table)
    return "\n".join(_table(part, origins) for part in paged(table))


def _table(table: Table, origins: Sequence[str | None]) -> str:
    columns = "l" + (_word_columns(table) if table.is_text else "r" * len(origins))
    pairs = zip(table.head[1:], origins, strict=True)
    first = _stacked(escape(table.head[0]), escape(table.second)).replace("[tr]", "[tl]")
    comma = ", " if table.is_text else f",{_BREAK}"
    head = [first, *(_stacked(escape(name).replace(", ", comma), origin or "") for name, origin in pairs)]
    body = "\n".join(_row(row, origins) for row in table.rows)
    notes = "".join(f"\\par\\smallskip\\footnotesize\\raggedright {escape(note)}\n" for note in table.notes)
    return (
        f"\\begin{{table*}}[t]\n\\centering\n\\caption{{{escape(table.caption)}}}\n\\label{{tab:{table.slug}}}\n"
        "\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%\n"
        f"\\begin{{tabular}}{{{columns}}}\n"
        f"\\toprule\n{' & '.join(head)} \\\\\n\\midrule\n{body}\n\\bottomrule\n\\end{{tabular}}}}\n"
        f"{notes}\\end{{table*}}\n"
    )


def _word_columns(table: Table) -> str:
    """Columns of short words as wide as they are; the others wrap, in equal shares of most of the width."""
    longest = [max(len(e.text) for e in column) for column in zip(*(x.cells for x in table.rows), strict=True)]
    share = 0.6 / max(1, sum(n > WORDS_CHARS for n in longest))
    wrapped = f">{{\\raggedright\\arraybackslash}}p{{{share:.3f}\\linewidth}}"
    return "".join(wrapped if n > WORDS_CHARS else "l" for n in longest) or "l" * (len(table.head) - 1)


def _row(row: Row, origins: Iterable[str | None]) -> str:
    cells = (_cell(e, o) for e, o in zip(row.cells, origins, strict=True))
    # Behind `\\` a bracket would be a length and a star a break.
    name = re.sub(r"^(?=[\[*])", "{}", escape(row.name))
    return ("\\midrule\n" if row.rule else "") + " & ".join([name, *cells]) + " \\\\"


def _cell(cell: Cell, usual: str | None) -> str:
    other = cell.origin if cell.origin not in (None, usual) else ""
    return _stacked(" ".join(p for p in (escape(cell.text), other) if p), escape(cell.below))


def _stacked(above: str, below: str) -> str:
    lines = [*above.split(_BREAK), *([f"{{\\scriptsize {below}}}"] if below else [])]
    return f"\\makecell[tr]{{{_BREAK.join(lines)}}}" if len(lines) > 1 else above


def _figure(figure: Figure, figures: str) -> str:
    star, most_in = ("*", TEXT_WIDTH_IN) if figure.width_in > COLUMN_WIDTH_IN else ("", COLUMN_WIDTH_IN)
    # The page's column and text are a little less than 3.5 and 7.16 inches.
    width = "\\linewidth" if figure.width_in >= most_in else f"{figure.width_in:.2f}in"
    return (
        f"\\begin{{figure{star}}}[t]\n\\centering\n"
        f"\\includegraphics[width={width}]{{{figures}/{figure.slug}.pdf}}\n"
        f"\\caption{{{escape(figure.caption)}}}\n\\label{{fig:{figure.slug}}}\n\\end{{figure{star}}}\n"
    )
