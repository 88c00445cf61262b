"""Small plain tables: aligned columns, a rule under the head, nothing else."""

from __future__ import annotations

from collections.abc import Sequence

MIB = 2**20


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1, indent: str = "  ") -> str:
    """Aligned text: the first ``left`` columns to the left, the others to the right."""
    cells = [list(head), *(list(row) for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = [indent + "  ".join(_aligned(row, widths, left)).rstrip() for row in cells]
    rule = indent + "  ".join("-" * width for width in widths)
    return "\n".join([lines[0], rule, *lines[1:]])


def _aligned(row: Sequence[str], widths: Sequence[int], left: int) -> list[str]:
    return [c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]


def si(value: float, unit: str = "") -> str:
    """``3.2 M``, ``41.5 k``, ``12``: three significant digits with a prefix."""
    for limit, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}".rstrip()


def counted(number: int, word: str) -> str:
    """``1 group``, ``3 groups``."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def listed(names: Sequence[str]) -> str:
    """``acc, gyro and mag``."""
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)
