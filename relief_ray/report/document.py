"""Document: sections of text, tables and figures, of which a page is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from relief_ray.support.table import Number, Origin, Table, Tone

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MplFigure

ORIGINS: Mapping[Origin, str] = {
    "measured": "found by training and testing here: F1, losses, rounds, encoded bytes, trained values, wall seconds",
    "simulated": "computed from counted work by a clock: seconds, joules, speedup of a fleet that is not here",
    "SYNTHETIC": "trained on synthetic data: shows that the program runs, says nothing about methods",
    "FITTED": "a constant was chosen so that this figure agrees with the RELIEF paper: no deviation, no verdict",
}


# Width of the text of a two-column IEEE page, in inches.
TEXT_WIDTH_IN = 7.16


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """Drawing with its data: ``draw`` fills an empty sheet of that height, ``columns`` and ``rows`` become its CSV."""

    caption: str
    draw: Callable[[MplFigure], None]
    height_in: float
    columns: tuple[str, ...] = ()
    rows: Sequence[Sequence[Number]] = ()
    slug: str = ""
    views: Mapping[str, Callable[[MplFigure], None]] = field(default_factory=dict)
    """The same over each of several quantities, by the words of a switch; the first one is ``draw``."""
    answers: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """What a click on a part of the drawing shows, by the part's id: a heading, and plain text."""

    def view(self, word: str) -> str:
        """Name of the files of one of ``views``; the first has the figure's own."""
        return self.slug if word == next(iter(self.views), word) else f"{self.slug}-{word.lower()}"


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
    """Whole report; ``lead`` is its summary line, ``footer`` names machine, programs and data.

    Attributes:
        beside: pages in its folder that it leads to, by their files' names.
        command: what one types for it; empty where that is not known.
    """

    title: str
    lead: str
    sections: tuple[Section, ...]
    footer: str
    beside: Mapping[str, str] = field(default_factory=dict)
    command: str = ""

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
        return {
            block.slug: f"{kind.__name__} {number}"
            for kind in (Table, Figure)
            for number, block in enumerate((b for b in self.blocks if isinstance(b, kind) and b.caption), 1)
        }

    @property
    def figures(self) -> tuple[Figure, ...]:
        """All figures."""
        return tuple(b for b in self.blocks if isinstance(b, Figure))
