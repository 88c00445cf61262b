"""Which clients of a stack take a step together: those with a batch of the same size, since none is padded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby


@dataclass(frozen=True, kw_only=True, slots=True)
class StackStep:
    """Clients ``first`` .. ``last - 1`` of a stack take their windows ``start`` .. ``stop - 1`` of an epoch's order."""

    first: int
    last: int
    start: int
    stop: int

    @property
    def clients(self) -> slice:
        """Rows of the stack."""
        return slice(self.first, self.last)

    @property
    def windows(self) -> slice:
        """Columns of the order."""
        return slice(self.start, self.stop)

    @property
    def kind(self) -> tuple[int, int, int]:
        """What all steps of the same clients on as many windows have in common."""
        return self.first, self.last, self.stop - self.start

    @property
    def shape(self) -> tuple[int, int]:
        """Number of clients and of windows of each."""
        return self.last - self.first, self.stop - self.start


def epoch_steps(num_windows: Sequence[int], batch_size: int) -> list[StackStep]:
    """An epoch of clients that are sorted by falling ``num_windows``: full batches first, then what remains of each.

    Every client takes the batches that it would take alone, in the same order.
    """
    found = []
    for stop in range(batch_size, max(num_windows) + 1, batch_size):
        number = sum(n >= stop for n in num_windows)
        found.append(StackStep(first=0, last=number, start=stop - batch_size, stop=stop))
    first = 0
    for number, alike in groupby(num_windows):
        last = first + len(list(alike))
        if rest := number % batch_size:
            found.append(StackStep(first=first, last=last, start=number - rest, stop=number))
        first = last
    return found
