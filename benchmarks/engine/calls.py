"""Seconds by function: a profile of Python calls, asked for by the functions themselves."""

from __future__ import annotations

import pstats
from collections.abc import Callable
from cProfile import Profile
from typing import Any


class Calls:
    """What one action's functions took, those that they called included."""

    def __init__(self, action: Callable[[], object]) -> None:
        """Runs the action under a profile."""
        profile = Profile()
        profile.runcall(action)
        stats: Any = pstats.Stats(profile)
        self._seconds: dict[tuple[str, int, str], float] = {key: row[3] for key, row in stats.stats.items()}
        self.total_s: float = stats.total_tt

    def seconds(self, *functions: Callable[..., Any]) -> float:
        """Seconds of these functions together, 0 for what was not called; none may call another one of them."""
        return sum(self._seconds.get(_key(f), 0.0) for f in functions)


def _key(function: Callable[..., Any]) -> tuple[str, int, str]:
    code = function.__code__
    return code.co_filename, code.co_firstlineno, code.co_name
