"""Errors for users, the hint that goes with a wrong name, and why a round goes on without a client."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


def listed(values: Iterable[object]) -> str:
    """Join values in words: ``0, 1 and 2``."""
    texts = [str(v) for v in values]
    return texts[0] if len(texts) == 1 else ", ".join(texts[:-1]) + " and " + texts[-1]


def several(noun: str, values: Iterable[int]) -> str:
    """Name numbered things once each: ``fold 0``, ``folds 0, 1 and 2``."""
    distinct = sorted(set(values))
    return f"{noun}{'s' if len(distinct) > 1 else ''} {listed(distinct)}"


def spans(numbers: Iterable[int]) -> str:
    """``4-6, 9`` for ascending 4, 5, 6, 9."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return ", ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in runs)


def clipped(text: str, most: int = 160) -> str:
    """The text as messages show it: cut where it is long, and what cannot be printed written as an escape."""
    short = text if len(text) <= most else f"{text[: most - 2]}.."
    return "".join(c if c.isprintable() else c.encode("ascii", "backslashreplace").decode() for c in short)


def shown(value: object) -> str:
    """A value as messages show it: its ``repr``, cut where it is long."""
    return clipped(repr(value))


def counted(number: int, noun: str) -> str:
    """``1 run``, ``3 runs``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


class UserError(ValueError):
    """Bad input: the message names the place, the value, the expectation and the fix."""


class UserCodeError(UserError):
    """Error in a file of the user's own, met before a run begins: as it is loaded, or builds a model, or reads data."""


class ClientFailed(RuntimeError):
    """Error raised by code inside a client: a programming error, not a fault of the machine; the run stops."""


class UserCodeFailed(ClientFailed):
    """Error raised in a file of the user's own, by a method on the server too; the message names file and line."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` with the nearest known name, or an empty text."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


Cause = Literal["timeout", "lost", "update"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """Reason, in words too: no answer in time, a lost process or node, or an update that a check refused."""

    cause: Cause
    why: str
