r"""Document as LaTeX (array, booktabs, graphicx, makecell): text, tables and figures in its order.

The page has one column of IEEE's text width, so that the verdict and the first table stand on page 1; ``table*`` and
``figure*`` keep that width in a two-column paper too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from textwrap import wrap

from relief_ray.report.document import (
    COLUMN_WIDTH_IN,
    TEXT_WIDTH_IN,
    Block,
    Cell,
    Document,
    Figure,
    Paragraphs,
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
# Letters of a line in a heading, and in the small text below a figure.
HEAD_CHARS, BELOW_CHARS = 12, 30
_BREAK = r"\\ "
_HEAD = r"""% The report: compile it as it is, or take tables and figures with the packages below.
\documentclass[journal,onecolumn]{IEEEtran}
\usepackage[T1]{fontenc}
\usepackage{array,booktabs,graphicx,makecell}
\begin{document}
"""


def latex(document: Document, figures: str = "figures") -> str:
    """A file that compiles by itself."""
    parts = [
        f"\\noindent{{\\LARGE\\bfseries {escape(document.title)}}}\\par\\medskip\n\\noindent {escape(document.lead)}\n"
    ]
    for section in document.sections:
        command = "section" if section.level == 2 else "subsection"
        parts.append(f"\\{command}*{{{escape(section.title)}}}\n")
        parts += [_block(block, figures) for block in section.blocks]
    return _HEAD + "\n".join(parts) + f"\n\\section*{{Origin}}\n{escape(document.footer)}\n\\end{{document}}\n"


def _block(block: Block, figures: str) -> str:
    if isinstance(block, Table):
        return _tables(block)
    return _figure(block, figures) if isinstance(block, Figure) else _paragraphs(block)


def _paragraphs(block: Paragraphs) -> str:
    if not block.is_list:
        return "\n\n".join(escape(line) for line in block.lines) + "\n"
    # A line may begin with a bracket, which would be the item's label.
    items = "\n".join(f"\\item {{}}{escape(line)}" for line in block.lines)
    return f"\\begin{{itemize}}\n{items}\n\\end{{itemize}}\n"


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
    columns = _word_columns(table) if table.is_text else "l" + "r" * len(origins)
    pairs = zip(table.head[1:], origins, strict=True)
    first = _stacked(escape(table.head[0]), escape(table.second)).replace("[tr]", "[tl]")
    broken = (lambda text: [text]) if table.is_text else partial(wrap, width=HEAD_CHARS, break_long_words=False)
    head = [first, *(_stacked(_BREAK.join(map(_line, broken(name))), origin or "") for name, origin in pairs)]
    rows = "\n".join(_row(row, origins) for row in table.rows)
    notes = "".join(f"\\par\\smallskip\\footnotesize\\raggedright {escape(note)}\n" for note in table.notes)
    body = (
        f"\\begin{{tabular}}{{{columns}}}\n\\toprule\n{' & '.join(head)} \\\\\n\\midrule\n{rows}\n\\bottomrule\n"
        "\\end{tabular}"
    )
    # Figures may be made a little smaller to fit; words wrap in a readable size instead.
    body = f"\\footnotesize\n{body}" if table.is_text else f"{_SHRINK}%\n{body}}}"
    caption = f"\\caption{{{escape(table.caption)}}}\n\\label{{tab:{table.slug}}}"
    return f"\\begin{{table*}}[!htbp]\n\\centering\n{caption}\n{body}\n{notes}\\end{{table*}}\n"


_SHRINK = "\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{"
# Share of the text that a letter of a short column and the gap between columns take.
_LETTER, _GAP = 0.0085, 0.027


def _word_columns(table: Table) -> str:
    """Columns of short words as wide as they are; the others wrap and share what is left by their length."""
    columns = [
        [row.name for row in table.rows],
        *([e.text for e in c] for c in zip(*(x.cells for x in table.rows), strict=True)),
    ]
    if not table.rows:
        return "l" * len(table.head)
    longest = [max(map(len, (head, *cells))) for head, cells in zip(table.head, columns, strict=True)]
    taken = sum(_LETTER * n for n in longest if n <= WORDS_CHARS) + _GAP * (len(longest) - 1)
    weights = {i: min(n, 4 * WORDS_CHARS) for i, n in enumerate(longest) if n > WORDS_CHARS}
    total = sum(weights.values())
    wrapped = ">{{\\raggedright\\arraybackslash}}p{{{:.3f}\\linewidth}}"
    return "".join(
        wrapped.format(max(0.1, 0.95 - taken) * weights[i] / total) if i in weights else "l"
        for i in range(len(longest))
    )


def _row(row: Row, origins: Iterable[str | None]) -> str:
    cells = (_cell(e, o) for e, o in zip(row.cells, origins, strict=True))
    return ("\\midrule\n" if row.rule else "") + " & ".join([_line(row.name), *cells]) + " \\\\"


def _cell(cell: Cell, usual: str | None) -> str:
    other = cell.origin if cell.origin not in (None, usual) else ""
    return _stacked(" ".join(p for p in (escape(cell.text), other) if p), *map(_line, wrap(cell.below, BELOW_CHARS)))


def _line(text: str) -> str:
    """Escaped text that may follow a line break: a bracket there would be a length, a star a break."""
    return re.sub(r"^(?=[\[*])", "{}", escape(text))


def _stacked(above: str, *below: str) -> str:
    """Lines of a cell; those ``below`` are small."""
    lines = [*above.split(_BREAK), *(f"{{\\scriptsize {line}}}" for line in below if line)]
    return f"\\makecell[tr]{{{_BREAK.join(lines)}}}" if len(lines) > 1 else above


def _figure(figure: Figure, figures: str) -> str:
    star, most_in = ("*", TEXT_WIDTH_IN) if figure.width_in > COLUMN_WIDTH_IN else ("", COLUMN_WIDTH_IN)
    # The page's column and text are a little less than 3.5 and 7.16 inches.
    width = "\\linewidth" if figure.width_in >= most_in else f"{figure.width_in:.2f}in"
    return (
        f"\\begin{{figure{star}}}[!htbp]\n\\centering\n"
        f"\\includegraphics[width={width}]{{{figures}/{figure.slug}.pdf}}\n"
        f"\\caption{{{escape(figure.caption)}}}\n\\label{{fig:{figure.slug}}}\n\\end{{figure{star}}}\n"
    )
