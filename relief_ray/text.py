"""Plain text for terminals: aligned tables."""

from __future__ import annotations

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1, indent: str = "  ") -> str:
    """Aligned text: the first ``left`` columns to the left, the others to the right."""
    cells = [list(head), *(list(row) for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = [indent + "  ".join(_line(row, widths, left)).rstrip() for row in cells]
    rule = indent + "  ".join("-" * width for width in widths)
    return "\n".join([lines[0], rule, *lines[1:]])


def _line(row: Sequence[str], widths: Sequence[int], left: int) -> list[str]:
    return [c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
