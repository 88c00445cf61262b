"""Time limits of calls and rounds: fixed by the user, or ten times the slowest answer so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# Limit before the first answer, which may include a cold start, and the least one after it.
FIRST_S, LEAST_S = 600.0, 60.0
_SLACK = 10.0
# Each further client of a call adds at most so many times what a client took on average.
_CALL_SLACK = 50.0
# An automatic limit is told again where it has grown by this factor.
_TELL = 1.5


@dataclass(kw_only=True, slots=True)
class Limits:
    """Limits of one kind of call, training or evaluation.

    Attributes:
        setting: the user's limit for one client in seconds, or ``auto``.
        slowest_s: seconds of the slowest answer for one client so far, start-up of its process included.
        mean_s: mean seconds of a client in the last round; None before the first.
        was_told_s: the automatic limit that the user was told of last.
    """

    setting: float | Literal["auto"]
    slowest_s: float = 0.0
    mean_s: float | None = None
    was_told_s: float = 0.0

    def note(self, answer_s: float) -> None:
        """Learn from an answer."""
        self.slowest_s = max(self.slowest_s, answer_s)

    @property
    def one_s(self) -> float:
        """Limit for one client, seconds."""
        if self.setting != "auto":
            return self.setting
        return max(LEAST_S, _SLACK * self.slowest_s) if self.slowest_s else FIRST_S

    def call_s(self, num_clients: int) -> float:
        """Limit of a call: each further client adds ``_CALL_SLACK`` times a client's mean, at most the limit of one."""
        return self._several_s(num_clients, _CALL_SLACK)

    def round_s(self, num_turns: int) -> float:
        """Limit of a round in which a host, or a core that several share, has ``num_turns`` clients to train in turn.

        With a host and a core for each client this is the limit of one client.
        """
        return self._several_s(num_turns, _SLACK)

    def _several_s(self, number: int, slack: float) -> float:
        further_s = self.one_s if self.mean_s is None else min(self.one_s, slack * self.mean_s)
        return self.one_s + max(0, number - 1) * further_s

    def news(self) -> str | None:
        """Sentence on an automatic limit above the least one that is new to the user; None where there is none."""
        is_least = not self.slowest_s or self.one_s == LEAST_S
        if self.setting != "auto" or is_least or self.one_s < _TELL * self.was_told_s:
            return None
        self.was_told_s = self.one_s
        return (
            f"a client has {self.one_s:.3g} s for its round from now on (runtime.client_timeout_s=auto: "
            f"{_SLACK:g} x the slowest answer so far, {self.slowest_s:.2g} s, at least {LEAST_S:g} s)"
        )
