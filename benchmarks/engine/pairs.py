"""Fair comparisons: harnesses take turns, ratios are taken inside a turn, the median of the turns is the figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from time import perf_counter

Segment = Callable[[int], list[float]]
"""Runs so many rounds and gives the seconds of each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Times:
    """Median seconds of a round, one value per turn, by harness."""

    turns: Mapping[str, tuple[float, ...]]

    def median_s(self, name: str) -> float:
        """The median of the turns."""
        return median(self.turns[name])

    def ratio(self, slow: str, fast: str) -> float:
        """The speed-up of ``fast`` over ``slow``: the median of the turns' ratios."""
        return median(a / b for a, b in zip(self.turns[slow], self.turns[fast], strict=True))

    def difference_s(self, more: str, less: str) -> float:
        """Seconds that ``more`` takes beyond ``less``: the median of the turns' differences."""
        return median(a - b for a, b in zip(self.turns[more], self.turns[less], strict=True))

    def spread(self, name: str) -> float:
        """Half the range of the turns over their median."""
        values = self.turns[name]
        return (max(values) - min(values)) / 2 / median(values)


def take_turns(harnesses: Mapping[str, Segment], num_turns: int, num_rounds: int) -> Times:
    """Every harness runs ``num_rounds`` rounds per turn; every second turn goes backwards, so that drift cancels."""
    medians: dict[str, list[float]] = {name: [] for name in harnesses}
    for turn in range(num_turns):
        names: Sequence[str] = list(harnesses)
        for name in names if turn % 2 == 0 else reversed(names):
            medians[name].append(median(harnesses[name](num_rounds)))
    return Times(turns={name: tuple(values) for name, values in medians.items()})


def averaged(segment: Segment) -> Segment:
    """The same rounds as one mean: a median would hide what only some of them pay."""

    def run(num_rounds: int) -> list[float]:
        return [fmean(segment(num_rounds))]

    return run


def timed(action: Callable[[], object]) -> Segment:
    """A segment that calls ``action`` and times each call."""

    def run(num_rounds: int) -> list[float]:
        seconds = []
        for _ in range(num_rounds):
            began = perf_counter()
            action()
            seconds.append(perf_counter() - began)
        return seconds

    return run


def slope(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Seconds per client: the least-squares line through (number of clients, seconds of a round)."""
    mean_x, mean_y = sum(sizes) / len(sizes), sum(seconds) / len(seconds)
    above = sum((x - mean_x) * (y - mean_y) for x, y in zip(sizes, seconds, strict=True))
    return above / sum((x - mean_x) ** 2 for x in sizes)
