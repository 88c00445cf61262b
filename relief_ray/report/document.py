"""A report before it has a format: sections of text, tables and figures. HTML, Markdown, LaTeX and CSV are made of it.

Text is plain; ``code`` between backticks is the only mark-up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Origin = Literal["measured", "simulated", "SYNTHETIC", "FITTED"]
Tone = Literal["", "gap", "good", "bad", "warn"]
Number = float | int | str | None

ORIGINS: Mapping[Origin, str] = {
    "measured": "found by training and testing here: F1, losses, rounds, encoded bytes, trained values, wall seconds",
    "simulated": "computed from counted work by a clock: seconds, joules, speedup of a fleet that is not here",
    "SYNTHETIC": "trained on synthetic data: shows that the program runs, says nothing about the paper",
    "FITTED": "a constant was chosen so that this figure agrees with the paper: no deviation, no verdict",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A table cell: ``text``, a second line ``below`` it, and its ``numbers`` for the CSV file."""

    text: str
    below: str = ""
    origin: Origin | None = None
    tone: Tone = ""
    numbers: Mapping[str, Number] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A table row; ``rule``: a line above it, ``faint``: of less weight (bounds)."""

    name: str
    entries: tuple[Entry, ...]
    rule: bool = False
    faint: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Sheet:
    """A table; ``slug`` names its files; ``second`` says what cells have below; ``is_text``: cells are words."""

    slug: str
    caption: str
    head: tuple[str, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()
    second: str = ""
    is_text: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """A figure: ``draw`` fills an empty sheet of that size; its data stand beside it as CSV."""

    slug: str
    caption: str
    draw: Callable[[Figure], None]
    width_in: float
    height_in: float
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Number]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Prose:
    """Paragraphs, or with ``is_list`` a list; ``tone`` sets a notice apart."""

    lines: tuple[str, ...]
    tone: Tone = ""
    is_list: bool = False


Block = Sheet | Plot | Prose


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A heading (level 2, or 3 inside the section before it) and what stands under it."""

    title: str
    slug: str
    blocks: tuple[Block, ...]
    level: int = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """The report; ``lead`` is its summary line, ``footer`` says where everything comes from."""

    title: str
    lead: str
    sections: tuple[Section, ...]
    footer: str

    @property
    def blocks(self) -> tuple[Block, ...]:
        """All blocks in order."""
        return tuple(b for s in self.sections for b in s.blocks)

    @property
    def sheets(self) -> tuple[Sheet, ...]:
        """All tables."""
        return tuple(b for b in self.blocks if isinstance(b, Sheet))

    @property
    def plots(self) -> tuple[Plot, ...]:
        """All figures."""
        return tuple(b for b in self.blocks if isinstance(b, Plot))


def words(sheet_slug: str, caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Sheet:
    """A table of words."""
    lines = tuple(Line(name=r[0], entries=tuple(Entry(text=c) for c in r[1:])) for r in rows)
    return Sheet(slug=sheet_slug, caption=caption, head=tuple(head), lines=lines, is_text=True)


def column_origins(sheet: Sheet) -> list[Origin | None]:
    """What most cells of each column come from: it stands in the heading, the others say their own."""
    columns = zip(*(line.entries for line in sheet.lines), strict=True) if sheet.lines else ()
    found: list[Origin | None] = []
    for column in columns:
        known = Counter(e.origin for e in column if e.origin is not None)
        found.append(known.most_common(1)[0][0] if known else None)
    return found or [None] * (len(sheet.head) - 1)
