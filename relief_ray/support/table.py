"""Tables: cells, rows and notes, written as aligned text, Markdown, HTML, LaTeX or CSV.

Whatever prints a table makes one of these: pages of results, `compare`, and commands that list things. Text is plain;
``code`` between backticks is the only mark-up.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from itertools import zip_longest
from textwrap import wrap
from typing import Literal, TypeVar

from relief_ray.support.errors import listed, visible

Origin = Literal["measured", "simulated", "SYNTHETIC", "FITTED"]
Tone = Literal["", "gap", "good", "bad", "warn", "info", "best"]
Number = float | int | str | None
NONE = "-"
MINUS = "\N{MINUS SIGN}"
# Columns of a CSV file of figures; others of the cells' numbers follow.
KEYS = ("mean", "std", "n", "paper", "paper_std", "deviation", "origin")
# Headings of so many letters stay on one line of text.
SHORT = 9
# Characters of a wrapped column, however narrow the terminal is.
_LEAST_ROOM = 8
_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "<": r"$<$",
    ">": r"$>$",
    "θ": r"$\theta$",
    "Δ": r"$\Delta$",
    "γ": r"$\gamma$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "≈": r"$\approx$",
    "−": "$-$",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """Table cell."""

    text: str
    """The first line, as it is printed."""
    below: str = ""
    """A smaller second line, e.g. the paper's value."""
    origin: Origin | None = None
    """Where the figure comes from; None for words."""
    tone: Tone = ""
    """Colour of the cell, empty for the usual one."""
    numbers: Mapping[str, Number] = field(default_factory=dict)
    """The same figure unrounded, for the CSV file."""


@dataclass(frozen=True, slots=True)
class Row:
    """Table row under its name; ``rule``: a line stands above it, ``faint``: printed pale (bounds)."""

    name: str
    cells: tuple[Cell, ...]
    rule: bool = False
    faint: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Table of figures or words."""

    head: tuple[str, ...]
    """Headings, that of the row names first."""
    rows: tuple[Row, ...]
    """Each with ``len(head) - 1`` cells."""
    slug: str = ""
    """Name of its files and anchor."""
    caption: str = ""
    """Title; empty where several tables share one."""
    notes: tuple[str, ...] = ()
    """Sentences under the table."""
    details: tuple[str, ...] = ()
    """Further sentences: on a page behind a click, elsewhere below the notes."""
    meanings: Mapping[str, str] = field(default_factory=dict)
    """What headings mean that do not say it themselves: tooltips on a page, elsewhere a ``legend``."""
    second: str = ""
    """Explains the cells' second lines, printed under the first heading."""
    is_text: bool = False
    """The cells are words: aligned to the left, printed as they are in the CSV file."""

    @property
    def lines(self) -> list[list[str]]:
        """The texts of every row, its name first."""
        return [[row.name, *(cell.text for cell in row.cells)] for row in self.rows]

    @property
    def origins(self) -> list[Origin | None]:
        """Most frequent origin of each column: it stands in the heading, cells of another origin name their own."""
        columns = zip(*(row.cells for row in self.rows), strict=True) if self.rows else [()] * (len(self.head) - 1)
        counts = (Counter(cell.origin for cell in column if cell.origin is not None) for column in columns)
        return [count.most_common(1)[0][0] if count else None for count in counts]

    def text(self, *, left: int = 1, indent: str = "", width: int | None = None, stacked: bool = True) -> str:
        """Aligned text with a rule under the headings: the first ``left`` columns to the left, others to the right.

        ``width``: characters of a line, to which the last column, prose, is wrapped. ``stacked``: long headings take
        two lines.
        """
        texts = [(row.rule, line) for row, line in zip(self.rows, self.lines, strict=True)]
        if width is not None:
            columns = list(zip(self.head, *self.lines, strict=True))[:-1]
            room = max(_LEAST_ROOM, width - len(indent) - sum(2 + max(map(len, column)) for column in columns))
            texts = [(False, line) for _, row in texts for line in _wrapped(row, room)]
        heads = list(zip(*self._headings(), strict=True)) if stacked else [self.head]
        widths = [max(map(len, column)) for column in zip(*heads, *(line for _, line in texts), strict=True)]
        rule = ["-" * each for each in widths]
        lines: list[Sequence[str]] = [*(head for head in heads if any(head)), rule]
        for is_ruled, line in texts:
            lines += [rule, line] if is_ruled else [line]
        return visible("\n".join(indent + _aligned(line, widths, left) for line in lines))

    def _headings(self) -> list[tuple[str, str]]:
        """Headings in two lines, the first empty where one is short or no wider than its cells."""
        columns = zip(self.head, *self.lines, strict=True)
        return [
            _halves(head) if len(head) > max(SHORT, *map(len, cells), 0) else ("", head) for head, *cells in columns
        ]

    def fitted(self, width: int) -> list[Table]:
        """The fewest tables that are at most ``width`` wide, evenly."""
        return [self.selected(part) for part in self.parts(width)]

    def parts(self, width: int, *, stacked: bool = True) -> list[list[int]]:
        """Numbers of the columns, names of rows not counted, of each of the tables; ``stacked``: as in ``text``."""
        heads = self._headings() if stacked else [("", head) for head in self.head]
        texts = zip(heads, zip(self.head, *self.lines, strict=True), strict=True)
        first, *widths = (max(map(len, (*halves, *cells))) for halves, (_, *cells) in texts)
        fewest = len(_packed(first, widths, width))
        narrow = next(w for w in range(width + 1) if len(_packed(first, widths, w)) <= fewest)
        return _packed(first, widths, narrow)

    def selected(self, columns: Sequence[int]) -> Table:
        """The row names and some of the other columns."""
        rows = tuple(replace(row, cells=tuple(row.cells[i] for i in columns)) for row in self.rows)
        return replace(self, head=(self.head[0], *(self.head[1 + i] for i in columns)), rows=rows)

    def with_best(self, least: Collection[str], most: Collection[str]) -> Table:
        """The table with the best mean of some columns in bold: of the columns ``least`` the least, else the most.

        Pale rows do not count, and where all are equal none is bold.
        """

        def best_of(i: int, head: str) -> set[str]:
            cells = [row.cells[i] for row in self.rows if not row.faint]
            means = {mean for cell in cells if isinstance(mean := cell.numbers.get("mean"), float)}
            if len(means) < 2 or head not in {*least, *most}:
                return set()
            best = min(means) if head in least else max(means)
            return {cell.text for cell in cells if cell.numbers.get("mean") == best}

        best = [best_of(i, head) for i, head in enumerate(self.head[1:])]

        def marked_in(row: Row) -> Row:
            cells = zip(row.cells, best, strict=True)
            return replace(row, cells=tuple(replace(c, tone=c.tone or "best") if c.text in b else c for c, b in cells))

        return replace(self, rows=tuple(row if row.faint else marked_in(row) for row in self.rows))

    def without_blanks(self) -> Table:
        """The columns in which a row has more than a dash."""
        return self.selected([i for i in range(len(self.head) - 1) if any(r.cells[i].text != NONE for r in self.rows)])

    def markdown(self, number: str = "") -> str:
        """GitHub's Markdown: caption after its ``number`` (``Table 1``), rows and notes."""
        origins = self.origins
        first, *names = map(marked, self.head)
        first = f"{first}<br><sub>{marked(self.second)}</sub>" if self.second else first
        heads = (f"{head} ({origin})" if origin else head for head, origin in zip(names, origins, strict=True))
        lines = [[first, *heads], ["---", *("---" if self.is_text else "---:" for _ in origins)]]
        for row in self.rows:
            cells = (
                f"{marked(_with_origin(cell, origin))}{f'<br><sub>{marked(cell.below)}</sub>' if cell.below else ''}"
                for cell, origin in zip(row.cells, origins, strict=True)
            )
            lines.append([cell.removeprefix("<br>").replace("|", "\\|") for cell in (marked(row.name), *cells)])
        notes = "\n\n".join(map(marked, (*self.notes, *self._folded())))
        body = "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n\n" + notes
        caption = marked(f"{number}. {self.caption}" if number else self.caption)
        return (f"**{caption}**\n\n{body}" if caption else body).rstrip("\n") + "\n"

    def _folded(self) -> Iterator[str]:
        """What a page shows behind a click."""
        yield from self.details
        if texts := legend([self]):
            yield f"{'; '.join(texts)}."

    def html(self, number: str = "") -> str:
        """An element for a page with our style, or for a notebook."""
        origins = self.origins
        second = f"<small>{inline(self.second)}</small>" if self.second else ""
        head = f"<th scope='col'>{inline(self.head[0])}{second}</th>" + "".join(
            f"<th scope='col'{_tooltip(self.meanings.get(name, ''))}>{inline(name)}{_chip(origin)}</th>"
            for name, origin in zip(self.head[1:], origins, strict=True)
        )
        lines = "\n".join(_html_row(row, origins) for row in self.rows)
        notes = "".join(f"<p class='note'>{inline(note)}</p>" for note in self.notes)
        if folded := "".join(f"<p class='note'>{inline(text)}</p>" for text in self._folded()):
            notes += f"<details><summary class='note'>About these figures</summary>{folded}</details>"
        numbered = f"<b>{number}.</b> {inline(self.caption)}" if number else inline(self.caption)
        caption = f"<caption>{numbered}</caption>\n" if self.caption else ""
        kind = " class='words'" if self.is_text else ""
        return (
            f"<div class='table' id='{self.slug}'><div><table{kind}>\n{caption}"
            f"<thead><tr>{head}</tr></thead>\n<tbody>\n{lines}\n</tbody></table></div>"
            f"{notes}</div>"
        )

    def latex(self) -> str:
        r"""A ``table*`` to be ``\input`` into a paper with the packages booktabs, makecell and graphicx."""
        origins = self.origins
        wide = f"p{{{0.9 / len(self.head):.2f}\\linewidth}}"
        columns = wide * len(self.head) if self.is_text else "l" + "r" * len(origins)
        heads = [_stacked(self.head[0], self.second, "l"), *map(_stacked, self.head[1:], (o or "" for o in origins))]
        lines = [heads, *([_after_break(r.name), *map(_latex_cell, r.cells, origins)] for r in self.rows)]
        rules = ["\\midrule\n" * (i == 0 or r.rule) for i, r in enumerate(self.rows)]
        body = "".join(
            f"{rule}{' & '.join(line)} \\\\\n" for rule, line in zip(("\\toprule\n", *rules), lines, strict=True)
        )
        tabular = f"\\begin{{tabular}}{{{columns}}}\n{body}\\bottomrule\n\\end{{tabular}}"
        shrink = "\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%\n"
        shrunk = tabular if self.is_text else f"{shrink}{tabular}}}"
        notes = "".join(
            f"\\par\\smallskip\\footnotesize\\raggedright {latex(note)}\n" for note in (*self.notes, *self._folded())
        )
        return (
            f"\\begin{{table*}}[!htbp]\n\\centering\\footnotesize\n\\caption{{{latex(self.caption)}}}\n"
            f"\\label{{tab:{self.slug}}}\n{shrunk}\n{notes}\\end{{table*}}\n"
        )

    def csv(self) -> str:
        """A line per cell with its numbers; of words the table as it is printed."""
        if self.is_text:
            return as_csv([self.head, *self.lines])
        others = dict.fromkeys(k for row in self.rows for c in row.cells for k in c.numbers if k not in KEYS)
        keys = [*KEYS, *others]
        cells = ((row.name, head, c) for row in self.rows for head, c in zip(self.head[1:], row.cells, strict=True))
        lines = ([name, head, cell.text, *(cell.numbers.get(key) for key in keys)] for name, head, cell in cells)
        return as_csv([["row", "column", "text", *keys], *lines])


def word_table(head: Sequence[str], rows: Iterable[Sequence[str]], slug: str = "", caption: str = "") -> Table:
    """Table of words; the first of each row is its name."""
    named = tuple(Row(first, tuple(Cell(text) for text in rest)) for first, *rest in rows)
    return Table(slug=slug, caption=caption, head=tuple(head), rows=named, is_text=True)


def legend(tables: Iterable[Table]) -> list[str]:
    """Sentences that explain the headings of these tables, from left to right; those that mean the same together."""
    heads: dict[str, dict[str, None]] = {}
    for table in tables:
        for head in table.head:
            if meaning := table.meanings.get(head):
                heads.setdefault(meaning, {})[head] = None
    return [f"{listed(f'`{head}`' for head in same)}: {meaning}" for meaning, same in heads.items()]


def as_csv(rows: Iterable[Sequence[Number]]) -> str:
    """Rows as CSV; None is empty."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return visible(out.getvalue())


def inline(text: str) -> str:
    """HTML of a text: escaped, ``code`` marked up; minus signs before digits, not in ``a=-1``; ``%`` at its number."""
    safe = re.sub(r"(?<![\w.`=])-(?=\d)", MINUS, escape(visible(text)))
    safe = re.sub(r"(?<=\d) (?=%)", "&nbsp;", safe)
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", safe)


def marked(text: str) -> str:
    """GitHub's Markdown of a text: what would be HTML, a link or a picture there stands as it is; ``code`` stays."""
    # Behind a backslash a backtick would mark nothing.
    parts = re.split(r"((?<!`)`[^`]+`(?!`))", re.sub(r"\\+(?=`)", "", visible(text)))
    plain = (re.sub(r"<(?=[A-Za-z/!?])", "&lt;", part).replace("](", "]\\(") for part in parts[::2])
    return "".join(part for pair in zip_longest(plain, parts[1::2], fillvalue="") for part in pair)


def latex(text: str) -> str:
    """LaTeX of a text: escaped, ``code`` in a typewriter, a sign that T1 fonts may lack by its number."""
    safe = "".join(_LATEX.get(c) or (c if ord(c) < 0x180 or c in "†‡–—…•‘’“”" else f"U+{ord(c):04X}") for c in text)
    safe = re.sub(r"(?<![\w.`=])-(?=\d)", "$-$", safe)
    return re.sub(r"`([^`]+)`", r"\\texttt{\1}", safe)


def _halves(head: str) -> tuple[str, str]:
    cuts = ((head[:i], head[i + 1 :]) for i, letter in enumerate(head) if letter == " ")
    return min([("", head), *cuts], key=lambda lines: max(map(len, lines)))


def _aligned(line: Sequence[str], widths: Sequence[int], left: int) -> str:
    texts = (t.ljust(w) if i < left else t.rjust(w) for i, (t, w) in enumerate(zip(line, widths, strict=True)))
    return "  ".join(texts).rstrip()


def _wrapped(row: Sequence[str], room: int) -> Iterator[list[str]]:
    """The row as as many as its last text takes."""
    first, *others = wrap(row[-1], room, break_long_words=False, break_on_hyphens=False) or [""]
    yield [*row[:-1], first]
    yield from ([*[""] * (len(row) - 1), other] for other in others)


def _packed(first: int, widths: Sequence[int], width: int) -> list[list[int]]:
    """Numbers of the columns of as many tables as it takes; two blanks stand between columns."""
    parts: list[list[int]] = [[]]
    for i in range(len(widths)):
        if parts[-1] and first + sum(2 + widths[j] for j in (*parts[-1], i)) > width:
            parts.append([])
        parts[-1].append(i)
    return parts


def _with_origin(cell: Cell, usual: Origin | None) -> str:
    return f"{cell.text} {cell.origin}" if cell.origin not in (None, usual) else cell.text


def _tooltip(text: str) -> str:
    return f" title='{escape(text, quote=True)}'" if text else ""


def _chip(origin: Origin | None) -> str:
    """The mark of an exception: what bears none was measured."""
    return f"<span class='origin {origin.lower()}'>{origin}</span>" if origin and origin != "measured" else ""


def _html_row(row: Row, origins: Sequence[Origin | None]) -> str:
    kinds = " ".join(name for name, is_so in (("rule", row.rule), ("faint", row.faint)) if is_so)
    cells = "".join(
        f"<td{f' class={cell.tone!r}' if cell.tone else ''}>{inline(cell.text)}"
        f"{_chip(cell.origin) if cell.origin != usual else ''}"
        f"{f'<small>{inline(cell.below)}</small>' if cell.below else ''}</td>"
        for cell, usual in zip(row.cells, origins, strict=True)
    )
    return f"<tr{f' class={kinds!r}' if kinds else ''}><th scope='row'>{inline(row.name)}</th>{cells}</tr>"


def _after_break(text: str) -> str:
    r"""LaTeX that may follow ``\\``: a bracket there would be a length, a star a break."""
    return re.sub(r"^(?=[\[*])", "{}", latex(text))


def _stacked(above: str, below: str, side: str = "r") -> str:
    small = f" \\\\ {{\\scriptsize {_after_break(below)}}}" if below else ""
    return f"\\makecell[t{side}]{{{_after_break(above)}{small}}}" if below else _after_break(above)


def _latex_cell(cell: Cell, usual: Origin | None) -> str:
    text = _stacked(_with_origin(cell, usual), cell.below)
    return f"\\textbf{{{text}}}" if cell.tone == "best" else text


K = TypeVar("K")
V = TypeVar("V")


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values of each key, both in order of appearance."""
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found
