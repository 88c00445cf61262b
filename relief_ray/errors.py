"""Errors that a user is meant to read, and the hint that goes with a wrong name."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Bad input: names the place, what was found, what was expected and the fix."""


class ClientFailed(RuntimeError):
    """Code raised inside a client: a programming error, not a fault of the machine; the run stops."""


def nearest(name: str, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` or nothing."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean {found[0]!r}?)" if found else ""
