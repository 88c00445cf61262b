"""Energy of a board: its rails are read every 100 ms in a thread and added up by the trapezoidal rule.

``E = sum_i (P_i + P_(i+1)) / 2 (t_(i+1) - t_i)`` over neighbouring samples, with one monotonic clock of the board. The
thread also looks every second whether the board is slowed down.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from pathlib import Path
from time import monotonic

from relief_ray.devices.power_sensors import Heat, RailReading, find_rails, heat, total_rails, was_throttled

PERIOD_S, _HEAT_PERIOD_S = 0.1, 1.0
# Share of dropped samples above which an energy is no measurement any more; smaller gaps are bridged.
MAX_DROPPED = 0.5
# A sensor that repeats itself to the last digit for so long does not measure.
_STUCK_S = 5.0
_STUCK = f"stuck, the same reading for {_STUCK_S:g} s or longer"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """All rails at one moment of the monotonic clock."""

    at_s: float
    readings: tuple[RailReading, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RailEnergy:
    """A rail over a stretch of time.

    Attributes:
        label: its name; ``total`` for the board.
        sensor: folder of its sensor; of the total the rails that were summed.
        mean_w: mean power; None where too much is missing, with the reason in ``why``.
        peak_w: largest power of a sample.
        energy_j: joules.
        dropped: share of the samples that should be there and are not, 0 to 1.
        why: reason for None, or a doubt about the figures.
    """

    label: str
    sensor: str
    mean_w: float | None = None
    peak_w: float | None = None
    energy_j: float | None = None
    dropped: float
    why: str


def energy_of(
    label: str,
    sensor: str,
    times_s: Sequence[float],
    watts: Sequence[float | None],
    span_s: float,
    why: str = "",
) -> RailEnergy:
    """Integrate the samples that are there over ``span_s`` seconds, of which one is expected every ``PERIOD_S``.

    With a share of dropped samples above ``MAX_DROPPED``, or fewer than two samples, the figures are None.
    """
    there = [(t, w) for t, w in zip(times_s, watts, strict=True) if w is not None]
    expected = max(1, round(span_s / PERIOD_S))
    dropped = max(0.0, 1.0 - len(there) / expected)
    rail = RailEnergy(label=label, sensor=sensor, dropped=dropped, why=why)
    if len(there) < 2 or dropped > MAX_DROPPED:
        return replace(rail, why=why or f"{100 * dropped:.0f} % of the samples are missing")
    area = sum((w + v) / 2 * (u - t) for (t, w), (u, v) in pairwise(there))
    mean_w = area / (there[-1][0] - there[0][0])
    # The edges, less than a period each, are taken at the mean.
    return replace(rail, mean_w=mean_w, peak_w=max(w for _, w in there), energy_j=mean_w * span_s)


class PowerMeter:
    """Reads a board's rails and its heat in a thread while its ``with`` block runs.

    Attributes:
        rails: the rails, in the order of each sample's readings.
        samples: what the rails read.
        heats: temperature and throttling at the beginning, about every second, and at the end.
        span_s: seconds of the block.
    """

    def __init__(self, root: Path) -> None:
        """Look for the rails below ``root``."""
        self.rails = find_rails(root)
        self.samples: list[Sample] = []
        self.heats: list[Heat] = []
        self.span_s = 0.0
        self._root = root
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._began_s = 0.0

    def __enter__(self) -> PowerMeter:
        """Begin; where neither rails nor slowing can be read, no thread is started."""
        self.heats.append(heat(self._root))
        self._began_s = monotonic()
        self._sample()
        if self.rails or self.heats[0].slowed is not None:
            self._thread = threading.Thread(target=self._loop, name="power", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Take a last sample and end."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        self._sample()
        self.span_s = monotonic() - self._began_s
        self.heats.append(heat(self._root))

    def _loop(self) -> None:
        due_s, heat_due_s = self._began_s + PERIOD_S, self._began_s + _HEAT_PERIOD_S
        while not self._over.wait(due_s - monotonic()):
            self._sample()
            if monotonic() >= heat_due_s:
                self.heats.append(heat(self._root))
                heat_due_s += _HEAT_PERIOD_S
            # A sample that comes late puts the next ones off: none are taken in a burst.
            due_s = max(due_s + PERIOD_S, monotonic())

    def _sample(self) -> None:
        if self.rails:
            self.samples.append(Sample(at_s=monotonic(), readings=tuple(rail.read() for rail in self.rails)))

    @property
    def was_throttled(self) -> bool | None:
        """Whether the board slowed itself down during the block; None where nothing tells."""
        return was_throttled(self.heats)

    def by_rail(self) -> tuple[RailEnergy, ...]:
        """Each rail over the block."""
        return tuple(map(self._rail, range(len(self.rails))))

    def total(self) -> RailEnergy | None:
        """The board over the block: its input rail, else the sum of all; None where it has no sensor.

        A sum needs all of its rails: with one that is missing or was stuck it is None, since it would be too small or
        count what nobody measured.
        """
        chosen = total_rails(self.rails)
        if not chosen:
            return None
        places = [self.rails.index(rail) for rail in chosen]
        if len(places) == 1:
            return replace(self._rail(places[0]), label="total", sensor=chosen[0].label)
        stuck = [self.rails[i].label for i in places if self._stuck(i)]
        rows = [[sample.readings[i] for i in places] for sample in self.samples]
        watts = [None if stuck else _sum(row) for row in rows]
        whys = {f"{rail.label}: {r.why}" for row in rows for rail, r in zip(chosen, row, strict=True) if r.why}
        doubts = "; ".join([*sorted(whys), *(f"{label}: {_STUCK}" for label in stuck)])
        sensor = " + ".join(rail.label for rail in chosen)
        return self._energy("total", sensor, watts, doubts)

    def _rail(self, index: int) -> RailEnergy:
        rail, stuck = self.rails[index], self._stuck(index)
        readings = [sample.readings[index] for sample in self.samples]
        watts = [None if place in stuck else r.watts for place, r in enumerate(readings)]
        why = _STUCK if stuck else next((r.why for r in reversed(readings) if r.why), "")
        return self._energy(rail.label, rail.sensor, watts, why)

    def _energy(self, label: str, sensor: str, watts: Sequence[float | None], why: str) -> RailEnergy:
        times_s = [sample.at_s for sample in self.samples]
        return energy_of(label, sensor, times_s, watts, self.span_s, why)

    def _stuck(self, index: int) -> set[int]:
        """Places of the samples at which a sensor repeats itself for 5 s or longer; one without current may do so."""
        stuck: set[int] = set()
        for raw, run in groupby(enumerate(self.samples), key=lambda placed: placed[1].readings[index].raw):
            samples = dict(run)
            lasted_s = samples[max(samples)].at_s - samples[min(samples)].at_s
            if raw and 0 not in raw and lasted_s >= _STUCK_S:
                stuck |= samples.keys()
        return stuck


def _sum(row: Sequence[RailReading]) -> float | None:
    """Sum of the rails' power at one moment; None if a rail is missing."""
    watts = [reading.watts for reading in row if reading.watts is not None]
    return sum(watts) if len(watts) == len(row) else None


def mean_w(meter: PowerMeter) -> float | None:
    """Mean power of the board over the block, watts; None where it is not measured."""
    total = meter.total()
    return None if total is None else total.mean_w
