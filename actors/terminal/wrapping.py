"""Prose in lines that fit a terminal. Words stay whole: a path or a command can be copied."""

from __future__ import annotations

import textwrap
from typing import Final

WIDTH: Final = 80


def wrapped(text: str, head: str = "", rest: str | None = None, width: int = WIDTH) -> list[str]:
    """Lines of at most ``width`` characters, none for no text; a longer word has a line of its own.

    ``head`` begins the first line, ``rest`` the others: by default as many spaces as ``head`` is long.
    """
    indent = " " * len(head) if rest is None else rest
    return textwrap.wrap(
        text, width, initial_indent=head, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def filled(text: str, head: str = "", rest: str | None = None, width: int = WIDTH) -> str:
    """``wrapped`` as one text."""
    return "\n".join(wrapped(text, head, rest, width))
