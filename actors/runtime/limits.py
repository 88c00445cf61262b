"""Time limits of calls and rounds: fixed by the user, or ten times the slowest answer so far.

They are looked up while a call runs, so that the first answers of a round also limit clients that are still out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

# Limit before the first answer, which may include a cold start, and the least one after it.
FIRST_S, LEAST_S = 600.0, 60.0
_SLACK = 10.0
# Each further client of a call adds at most so many times what a client took on average.
_CALL_SLACK = 50.0
# An automatic limit is news again where it has grown by this factor.
_NEWS_FACTOR = 1.5


@dataclass(kw_only=True, slots=True)
class Limits:
    """Limits of one kind of call, training or evaluation."""

    setting: float | Literal["auto"]
    """The user's limit for one client in seconds, or ``auto``."""
    slowest_s: float = 0.0
    """Seconds of the slowest answer for one client so far, start-up of its process included."""
    mean_s: float | None = None
    """Mean seconds of a client in the last round, and during the first in the answers so far; None before."""
    reported_s: float = LEAST_S
    """The automatic limit of the last news; the least one is none."""
    due_work: float = 0.0
    """The most work that a client of this round has, in any unit."""
    done_work: float = 0.0
    """The most work that a client has answered for so far."""
    due_types: frozenset[str] = frozenset()
    """Device types of this round, where clients are on machines of their types; none elsewhere."""
    heard_types: frozenset[str] = frozenset()
    """Those that have answered so far."""
    _is_first_round: bool = True
    _took_s: float = 0.0
    _num_clients: int = 0

    def note(
        self, slowest_s: float, took_s: float, num_clients: int = 1, work: float = 0.0, types: Iterable[str] = ()
    ) -> None:
        """Learn from an answer for some clients.

        Args:
            slowest_s: seconds of its slowest client.
            took_s: seconds that it took altogether.
            num_clients: number of its clients.
            work: the most work that one of them had.
            types: their device types.
        """
        self.heard_types |= frozenset(types)
        self.slowest_s, self.done_work = max(self.slowest_s, slowest_s), max(self.done_work, work)
        self._took_s, self._num_clients = self._took_s + took_s, self._num_clients + num_clients
        if self._is_first_round:
            self.mean_s = self._took_s / self._num_clients

    def end_round(self) -> None:
        """Take the mean of a round's answers for the next one; what a client may take is that of any from now on."""
        if self._num_clients:
            self.mean_s, self._is_first_round = self._took_s / self._num_clients, False
        self._took_s, self._num_clients, self.due_work, self.due_types = 0.0, 0, 0.0, frozenset()

    @property
    def one_s(self) -> float:
        """Limit for one client, seconds.

        While no client with as much work as the round's largest has answered, it is longer in that proportion. While
        a device type with machines of its own was not heard, it is not below the first one: boards differ 50 times.
        """
        if self.setting != "auto":
            return self.setting
        usual_s = max(LEAST_S, _SLACK * self.slowest_s)
        if not self.slowest_s or self.due_types - self.heard_types:
            return max(FIRST_S, usual_s)
        more = self.due_work / self.done_work if self.done_work else 1.0
        return max(usual_s, min(FIRST_S, more * _SLACK * self.slowest_s))

    @property
    def least_s(self) -> float:
        """Seconds that a client has in any case."""
        return LEAST_S if self.setting == "auto" else self.setting

    def call_s(self, num_clients: int) -> float:
        """Limit of a call: each further client adds ``_CALL_SLACK`` times a client's mean, at most the limit of one."""
        return self._several_s(num_clients, _CALL_SLACK)

    def round_s(self, num_turns: int) -> float:
        """Limit of a round in which a worker, or a core that several share, has ``num_turns`` clients to train in turn.

        With a worker and a core for each client this is the limit of one client.
        """
        return self._several_s(num_turns, _SLACK)

    def _several_s(self, number: int, slack: float) -> float:
        # Before the first answer only the one client whose process may be starting has more than the least.
        further_s = self.least_s if self.mean_s is None else min(self.one_s, slack * self.mean_s)
        return self.one_s + max(0, number - 1) * further_s

    def news(self) -> str | None:
        """Sentence on an automatic limit that has grown above the least one; None where nothing is new."""
        if self.setting != "auto" or not self.slowest_s or self.one_s < _NEWS_FACTOR * self.reported_s:
            return None
        self.reported_s = self.one_s
        return (
            f"a client has {self.one_s:.3g} s for its round from now on (runtime.client_timeout_s=auto: "
            f"{_SLACK:g} x the slowest answer so far, {self.slowest_s:.2g} s, at least {LEAST_S:g} s)"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Deadline:
    """End of a round, or of an evaluation, with all that is tried in it; it moves with what the answers teach."""

    limits: Limits
    """They decide how long it takes."""
    began_s: float
    """When it began (monotonic clock)."""
    num_turns: int = 1
    """The most clients that one worker, or a core that several share, has in turn."""

    @property
    def at_s(self) -> float:
        """Monotonic clock at which it is over."""
        return self.began_s + self.limits.round_s(self.num_turns)
