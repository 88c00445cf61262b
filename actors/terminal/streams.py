"""Makes output safe to print: characters that a terminal has, streams that are open."""

from __future__ import annotations

import codecs
import os
import sys
from contextlib import suppress
from io import TextIOWrapper
from typing import Final

# Characters of tables, figures and bars, in ASCII. Whatever else an encoding lacks becomes a question mark.
_ASCII: Final = {
    "–": "-", "—": "-", "−": "-", "…": "...", "→": "->", "←": "<-", "×": "x", "·": ".", "±": "+-", "≤": "<=", "≥": ">=",
    "≈": "~", "Δ": "D", "σ": "s", "²": "^2", "│": "|", "┃": "|", "─": "-", "━": "-", "█": "#", "▌": "#", "░": ".",
    "•": "*", "●": "*", "○": "o", "┼": "+", "├": "+", "┤": "+", "└": "+", "┘": "+", "┌": "+", "┐": "+", "✓": "ok",
    "†": "+",
}  # fmt: skip
_HANDLER: Final = "relief_ray_ascii"


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    """Stand-ins for the characters that an encoding lacks (an error handler of ``codecs``)."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_ASCII.get(c, "?") for c in error.object[error.start : error.end]), error.end


def prepare_streams() -> None:
    """Let every text be printed: on an ASCII terminal in ASCII, and nowhere where a stream was closed (``>&-``)."""
    _open_closed()
    codecs.register_error(_HANDLER, _in_ascii)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
        elif isinstance(stream, TextIOWrapper) and stream.errors in ("strict", "surrogateescape", "backslashreplace"):
            stream.reconfigure(errors=_HANDLER)


def _open_closed() -> None:
    """Open the null device where one of the three standard streams is closed.

    Otherwise the next file that is opened takes its number, and what libraries print is written into that file.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                with suppress(OSError):
                    os.dup2(null, number)
                os.close(null)
