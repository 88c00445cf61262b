"""Plain text for terminals: aligned tables, prose in lines that fit, paths within commands, names with titles."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from textwrap import wrap
from typing import Final

from relief_ray.support.errors import option
from relief_ray.support.table import word_table

# Characters of a line of a usual terminal.
WIDTH: Final = 80


def first_few(lines: Sequence[str], most: int, more: str = "and {} more") -> list[str]:
    """The first lines, and one that says how many more there are."""
    return [*lines[:most], *([more.format(len(lines) - most)] if len(lines) > most else [])]


class Printed:
    """Base of a result in words, its ``text``: a Python prompt and a notebook show what ``print`` shows."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return the text."""
        return str(self.text)  # type: ignore[attr-defined]  # a field or a property

    def _repr_html_(self) -> str:
        return f"<pre style='font-family: monospace'>{escape(repr(self))}</pre>"


def wrapped(text: str, head: str = "", rest: str | None = None, width: int = WIDTH) -> list[str]:
    """Lines of at most ``width`` characters, none for no text; a longer word has a line of its own.

    Words stay whole: a path or a command can be copied. ``head`` begins the first line, ``rest`` the others: by default
    as many spaces as ``head`` is long.
    """
    indent = " " * len(head) if rest is None else rest
    return wrap(
        text, width, initial_indent=head, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def filled(text: str, head: str = "", rest: str | None = None, width: int = WIDTH) -> str:
    """``wrapped`` as one text."""
    return "\n".join(wrapped(text, head, rest, width))


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1, indent: str = "  ", width: int | None = None
) -> str:
    """Aligned text of a table of words (``Table.text``), headings in one line each."""
    return word_table(head, rows).text(left=left, indent=indent, width=width, stacked=False)


def tables(head: Sequence[str], rows: Sequence[Sequence[str]], width: int, left: int = 1) -> list[str]:
    """The table as the fewest tables of at most ``width`` characters, each with the first column.

    ``left``: as in ``table``.
    """
    whole = word_table(head, rows)
    return [
        whole.selected(part).text(left=1 + sum(i + 1 < left for i in part), indent="  ", stacked=False)
        for part in whole.parts(width - 2, stacked=False)
    ]


def typed(path: Path | str) -> str:
    """Return a path as one types it in a shell: from the current folder, in quotes where it holds blanks."""
    absolute, here = Path(path).absolute(), Path.cwd()
    text = str(absolute.relative_to(here) if absolute.is_relative_to(here) else path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)  # no option


def resumed(folder: Path, how: str) -> str:
    """Return how to go on with what is in a folder: ``relief-ray resume DIR --other-code``, or ``other_code=True``."""
    word, command = option(how, True), f"relief-ray resume {typed(folder)}"
    return f"{command} {word}" if word.startswith("--") else word


def now() -> str:
    """Current UTC time, ISO 8601, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def pip(what: str) -> str:
    """Return the command that installs packages; every message that has one takes it from here."""
    return f"pip install {what}"


def install(extra: str) -> str:
    """Return how to install one of our extras; from a checkout, since no package index has RELIEF-Ray."""
    command = pip(f"-e '.[{extra}]'")
    mode = "demo" if extra == "server" else "setup"
    return f"install the extra `{extra}`: in a checkout, sh bootstrap.sh {mode}, or {command}"


def percent(value: float, decimals: int = 0) -> str:
    """``63``; ``> 99`` (``> 99.9``) for less than 100 that rounds to it: nearly all is not all."""
    text = f"{value:.{decimals}f}"
    return f"> {100 - 10.0**-decimals:.{decimals}f}" if value < 100.0 and float(text) == 100.0 else text


def with_title(label: str, title: str) -> str:
    """``v1: RELIEF without elastic training (V1)``; of a title that is the name in other letters, the title alone."""
    plain = ("".join(c for c in text.lower() if c.isalnum()) for text in (label, title))
    return title if len(set(plain)) == 1 else f"{label}: {title}"


def si(value: float, unit: str = "") -> str:
    """``3.2 M``, ``41.5 k``, ``12``: three significant digits with a prefix."""
    for limit, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}".rstrip()
