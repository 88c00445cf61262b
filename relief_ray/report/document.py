"""Document model: sections of text, tables and figures, from which HTML, Markdown, LaTeX, text and CSV are made.

`report` writes a whole ``Document``, `compare` three of its tables. Text is plain; ``code`` between backticks is the
only mark-up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MplFigure

Origin = Literal["measured", "simulated", "SYNTHETIC", "FITTED"]
Tone = Literal["", "gap", "good", "bad", "warn", "info"]
Number = float | int | str | None

ORIGINS: Mapping[Origin, str] = {
    "measured": "found by training and testing here: F1, losses, rounds, encoded bytes, trained values, wall seconds",
    "simulated": "computed from counted work by a clock: seconds, joules, speedup of a fleet that is not here",
    "SYNTHETIC": "trained on synthetic data: shows that the program runs, says nothing about methods",
    "FITTED": "a constant was chosen so that this figure agrees with the RELIEF paper: no deviation, no verdict",
}


NONE = "-"
# Widths of a two-column IEEE page, in inches.
TEXT_WIDTH_IN = 7.16
COLUMN_WIDTH_IN = 3.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """Table cell.

    Attributes:
        text: the first line, as it is printed.
        below: a smaller second line, e.g. the paper's value.
        origin: where the figure comes from; None for words.
        tone: colour of the cell, empty for the usual one.
        numbers: the same figure unrounded, for the CSV file.
    """

    text: str
    below: str = ""
    origin: Origin | None = None
    tone: Tone = ""
    numbers: Mapping[str, Number] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """Table row under its name; ``rule``: a line stands above it, ``faint``: printed pale (bounds)."""

    name: str
    cells: tuple[Cell, ...]
    rule: bool = False
    faint: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Table of figures or words.

    Attributes:
        slug: name of its files and anchor.
        caption: title; empty for the tables of `compare`, which share one.
        head: headings, that of the row names first.
        rows: each with ``len(head) - 1`` cells.
        notes: sentences under the table.
        second: explains the cells' second lines, printed under the first heading.
        is_text: the cells are words: aligned to the left, printed as they are in the CSV file.
    """

    slug: str
    caption: str
    head: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    second: str = ""
    is_text: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """Drawing with its data: ``draw`` fills an empty sheet of that size, ``columns`` and ``rows`` become its CSV."""

    slug: str
    caption: str
    draw: Callable[[MplFigure], None]
    width_in: float
    height_in: float
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Number]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Paragraphs:
    """Paragraphs, or with ``is_list`` the items of a list; ``tone`` sets a notice apart."""

    lines: tuple[str, ...]
    tone: Tone = ""
    is_list: bool = False


Block = Table | Figure | Paragraphs


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """Heading (level 2, or 3 inside the section before it) and the blocks under it.

    ``is_folded``: the page shows its heading alone until it is clicked; of level 2, with all sections inside it.
    """

    title: str
    slug: str
    blocks: tuple[Block, ...]
    level: int = 2
    is_folded: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """Whole report; ``lead`` is its summary line, ``footer`` names machine, programs and data."""

    title: str
    lead: str
    sections: tuple[Section, ...]
    footer: str

    @property
    def blocks(self) -> tuple[Block, ...]:
        """All blocks in order."""
        return tuple(b for s in self.sections for b in s.blocks)

    @property
    def tables(self) -> tuple[Table, ...]:
        """All tables."""
        return tuple(b for b in self.blocks if isinstance(b, Table))

    @property
    def numbers(self) -> Mapping[str, str]:
        """``Table 1``, ``Figure 2`` by slug, each kind counted in order; tables without a caption have none."""
        kinds: tuple[tuple[str, Sequence[Table | Figure]], ...] = (("Table", self.tables), ("Figure", self.figures))
        return {
            block.slug: f"{kind} {number}"
            for kind, blocks in kinds
            for number, block in enumerate((b for b in blocks if b.caption), 1)
        }

    @property
    def figures(self) -> tuple[Figure, ...]:
        """All figures."""
        return tuple(b for b in self.blocks if isinstance(b, Figure))


def word_table(slug: str, caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Table of words; the first of each row is its name."""
    named = tuple(Row(name=r[0], cells=tuple(Cell(text=c) for c in r[1:])) for r in rows)
    return Table(slug=slug, caption=caption, head=tuple(head), rows=named, is_text=True)


def column_origins(table: Table) -> list[Origin | None]:
    """Most frequent origin of each column: it stands in the heading, cells of another origin name their own."""
    columns = zip(*(row.cells for row in table.rows), strict=True) if table.rows else ()
    counts = [Counter(c.origin for c in column if c.origin is not None) for column in columns]
    return [c.most_common(1)[0][0] if c else None for c in counts] or [None] * (len(table.head) - 1)
