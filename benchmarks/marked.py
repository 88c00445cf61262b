"""Tables that commands write into Markdown pages, between `<!-- table: NAME -->` and `<!-- end -->`.

A page holds words by hand and figures by command: nobody copies a number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from relief_ray.support.table import word_table

MARKED = re.compile(r"(<!-- table: (?P<name>\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out a Markdown table."""
    return word_table(head, rows).markdown().rstrip("\n")


def filled(text: str, blocks: Mapping[str, Callable[[], str]]) -> str:
    """Return a page with every marked block of ``blocks`` computed anew; others stay."""

    def block(match: re.Match[str]) -> str:
        make = blocks.get(match["name"])
        return match[0] if make is None else f"{match[1]}\n{make()}\n\n{match[3]}"

    return MARKED.sub(block, text)
