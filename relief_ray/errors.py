"""Errors that a user is meant to read, and the hint that goes with a wrong name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def listed(values: Iterable[object]) -> str:
    """``0, 1 and 2``."""
    texts = [str(v) for v in values]
    return texts[0] if len(texts) == 1 else ", ".join(texts[:-1]) + " and " + texts[-1]


def several(noun: str, values: Iterable[int]) -> str:
    """``fold 0``, ``folds 0, 1 and 2``."""
    distinct = sorted(set(values))
    return f"{noun}{'s' if len(distinct) > 1 else ''} {listed(distinct)}"


class UserError(ValueError):
    """Bad input: names the place, what was found, what was expected and the fix."""


class ClientFailed(RuntimeError):
    """Code raised inside a client: a programming error, not a fault of the machine; the run stops."""


def nearest(name: str, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` or nothing."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean {found[0]!r}?)" if found else ""
