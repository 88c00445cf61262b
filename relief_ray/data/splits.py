"""Train, validation and test windows of every bout, decided per subject before any sharding.

So the test set is the same for every number of clients. Between the parts of a bout lies a purge of one window; parts
of one bout never share a sample, except under the name `random_leaky`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from relief_ray.data.config import DataConfig
from relief_ray.data.windows import Starts, window_starts
from relief_ray.errors import UserError


def _none() -> Starts:
    return np.empty(0, np.int64)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BoutWindows:
    """First rows of one bout's windows by part; `note` says what a short bout had to go without."""

    subject: int
    train: Starts = field(default_factory=_none)
    validation: Starts = field(default_factory=_none)
    test: Starts = field(default_factory=_none)
    note: str = ""


def held_out(config: DataConfig, positions: Sequence[int]) -> tuple[int, ...]:
    """Which of the subjects' `positions` are only tested on: fold f holds out numbers 2f+1 and 2f+2, counted from 1."""
    if config.split != "held_out_subject":
        return ()
    if len(positions) < 3:
        raise UserError(f"data.split=held_out_subject needs at least 3 subjects, found {len(positions)}")
    return tuple(positions[2 * config.fold : 2 * config.fold + 2])


def cut_tail(start: int, stop: int, fraction: float, window: int) -> tuple[int, int] | None:
    """Where the head stops and the tail starts, one window apart; at least one window in each, else None."""
    length = stop - start
    if length < 3 * window:
        return None
    tail = min(max(round(fraction * length), window), length - 2 * window)
    return stop - tail - window, stop - tail


def split_bouts(
    bouts: NDArray[np.int64], config: DataConfig, positions: Sequence[int], window: int, stride: int
) -> Iterator[BoutWindows]:
    """The bouts (subject position, start, stop) of the subjects at `positions`, with their windows by part."""
    rng = np.random.default_rng(config.seed)
    tested = held_out(config, positions)
    for subject, start, stop in bouts[np.isin(bouts[:, 0], positions)].tolist():
        if stop - start < window:
            yield BoutWindows(subject=subject, note="shorter than a window: not used")
        elif config.split == "random_leaky":
            yield _random(subject, window_starts(start, stop, window, stride), config, rng)
        elif subject in tested:
            yield BoutWindows(subject=subject, test=window_starts(start, stop, window, stride))
        else:
            test_fraction = config.test_fraction if config.split == "within_subject" else None
            yield _chronological(subject, (start, stop), config, test_fraction, (window, stride))


def _chronological(
    subject: int, bout: tuple[int, int], config: DataConfig, test_fraction: float | None, size: tuple[int, int]
) -> BoutWindows:
    """Training first, then validation, then (within subjects) test; a short bout keeps what comes first."""
    start, stop = bout
    window, _ = size
    notes, test = [], _none()
    if test_fraction is not None:
        cut = cut_tail(start, stop, test_fraction, window)
        if cut is None:
            notes.append("too short for a test window")
        else:
            test = window_starts(cut[1], stop, *size)
            stop = cut[0]
    cut = cut_tail(start, stop, config.validation_fraction, window)
    if cut is None:
        notes.append("too short for a validation window")
        return BoutWindows(subject=subject, train=window_starts(start, stop, *size), test=test, note="; ".join(notes))
    validation = window_starts(cut[1], stop, *size)
    train = window_starts(start, cut[0], *size)
    return BoutWindows(subject=subject, train=train, validation=validation, test=test, note="; ".join(notes))


def _random(subject: int, starts: Starts, config: DataConfig, rng: np.random.Generator) -> BoutWindows:
    """Overlapping windows dealt at random: the test part shares samples with training (a leak, for comparison only)."""
    order = rng.permutation(len(starts))
    num_test = round(config.test_fraction * len(starts))
    num_validation = round(config.validation_fraction * (len(starts) - num_test))
    parts = np.split(order, [num_test, num_test + num_validation])
    test, validation, train = (np.sort(starts[part]) for part in parts)
    return BoutWindows(subject=subject, train=train, validation=validation, test=test, note="leaky")


def notes(parts: Sequence[BoutWindows]) -> dict[str, int]:
    """How many bouts carry each note."""
    found = [part.note for part in parts if part.note]
    return {note: found.count(note) for note in sorted(set(found))}
