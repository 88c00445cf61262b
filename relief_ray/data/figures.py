"""Figures of each person's sensors, taken once when the files are parsed: what warnings on data are made from."""

from typing import Final, TypedDict

import numpy as np

from relief_ray.data.loader import DatasetSpec, Doubles, Ints, Mask, Recording, bouts_where

_STEP_QUANTILE: Final = 0.999
# Where so many of the longest steps are apart from all others by this factor, they are no yardstick for themselves.
_APART: Final = (0.01, 10.0)
# Values that stand for "no reading" recur, are so many times farther from the median than all others, and few.
_RECURS, _FAR, _MOST_CODES = 3, 3.0, 8
# Changes below this share of a channel's deviation are none.
_LEVEL = 1e-4
# A channel is cut off at an extreme that it reaches this often, coming from other values; of so many values.
_VISITS, _MANY_VALUES = 10, 50
# Interpolated values are on their line but for float32's rounding.
_STRAIGHT = 2.0**-21


class SensorFigures(TypedDict):
    """Figures of one person's sensor in the rows of bouts; JSON-able.

    Attributes:
        subject: the person's number.
        sensor: the sensor's name.
        filled: share of readings that `parse` filled in, in the worst channel.
        longest_gap_s: seconds of the longest stretch of them.
        longest_line_s: seconds of the longest straight line, not level, of other readings.
        outside: share of readings beyond ``DatasetSpec.max_abs``.
        low: smallest value, in raw units.
        high: largest value.
        mean: mean of all channels.
        still: channels that never change: column, value.
        level_share: share of rows, in the worst channel, in stretches of at least a window in which it does not change.
        codes: values that recur, far from all others of their channel.
        code_rows: so often.
        zero_rows: rows in which all channels of a sensor with several are 0: for a window, or again and again by leaps.
        held: share of rows in which no channel of several changes, of those behind a bout's first that were not filled
            in; 0 of a sensor with one channel, which may be slow.
        rounded: deviation of the rounding to float32, as a share of the standard deviation, in the worst channel.
        cut: share of readings that are the channel's largest or smallest, in the worst channel that is cut off there.
        means: mean by channel.
        deviations: standard deviation by channel.
        step: the longest step from row to row within a bout, as a multiple of the 99.9th percentile of all steps
            (Euclidean, over the channels), or of the longest usual one where leaps are more than that.
        step_row: the row of the person's recording that it leads to.
        level: root of the mean square, over all channels, in raw units.
        pace: root mean square of steps, as a share of the standard deviation, by class; 0 where nothing changes.
    """

    subject: int
    sensor: str
    filled: float
    longest_gap_s: float
    longest_line_s: float
    outside: float
    low: float
    high: float
    mean: float
    still: list[tuple[int, float]]
    level_share: float
    codes: list[float]
    code_rows: int
    zero_rows: int
    held: float
    rounded: float
    cut: float
    means: list[float]
    deviations: list[float]
    step: float
    step_row: int
    level: float
    pace: list[float]


def measure(spec: DatasetSpec, recording: Recording) -> list[SensorFigures]:
    """The figures of every sensor that the person has."""
    rows = np.concatenate([np.arange(first, stop) for first, stop in recording.bouts])
    codes, begins = recording.labels[rows], np.isin(rows, recording.bouts[:, 0])
    limits = dict(zip(spec.names, spec.max_abs, strict=False))
    figures: list[SensorFigures] = []
    for name, first, stop in spec.columns():
        if name not in spec.sensors_of(recording.subject):
            continue
        given = recording.signal[rows, first:stop].astype(np.float64)
        values = given.astype(np.float32).astype(np.float64)
        deviations = given.std(axis=0)
        lost = np.zeros(values.shape, bool) if recording.filled is None else recording.filled[rows, first:stop]
        moves = np.diff(values, axis=0, prepend=values[:1])
        bends = np.abs(np.diff(moves, axis=0, prepend=np.nan)) > _STRAIGHT * np.abs(values)
        steps = np.where(begins, 0.0, np.linalg.norm(moves, axis=1))
        usual = _usual(np.sort(steps[steps > 0])) if steps.any() else 1.0
        is_level = np.abs(moves) <= _LEVEL * deviations
        is_read = ~(begins | lost.any(axis=1)) if stop - first > 1 else np.zeros(len(rows), bool)
        counted = [(channel, *np.unique(channel, return_counts=True)) for channel in values.T]
        absent = [_codes(*channel) for channel in counted]
        figures.append(
            {
                "subject": recording.subject,
                "sensor": name,
                "filled": float(lost.mean(axis=0).max()),
                "longest_gap_s": _longest(lost, begins) / spec.rate_hz,
                "longest_line_s": _longest((moves != 0) & ~bends & ~lost, begins) / spec.rate_hz,
                "outside": float((np.abs(values) > limits.get(name, np.inf)).mean()),
                "low": float(values.min()),
                "high": float(values.max()),
                "mean": float(values.mean()),
                "still": [(first + i, float(channel[0])) for i, channel in enumerate(values.T) if not np.ptp(channel)],
                "level_share": _level_share(is_level, begins, spec.window),
                "codes": np.unique(np.concatenate(absent)).tolist(),
                "code_rows": sum(
                    int(np.isin(channel, own).sum()) for (channel, *_), own in zip(counted, absent, strict=True)
                ),
                "zero_rows": _zero_rows(values, steps, begins, spec.window),
                "held": float((np.count_nonzero(moves, axis=1) == 0)[is_read].mean()) if is_read.any() else 0.0,
                "rounded": max(map(_rounded, given.T)),
                "cut": max(_cut(*channel) for channel in counted),
                "means": values.mean(axis=0).tolist(),
                "deviations": deviations.tolist(),
                "step": float(steps.max() / usual),
                "step_row": int(rows[steps.argmax()]),
                "level": float(np.sqrt((values**2).mean())),
                "pace": [_pace(values[codes == label], steps[codes == label]) for label in spec.labels],
            }
        )
    return figures


def _stretches(mask: Mask, begins: Mask) -> list[Ints]:
    """First row and one past the last of stretches within a bout that are true: (n, 2) by column of (rows, columns)."""
    bout = np.cumsum(begins)
    return [bouts_where(column, column, bout) for column in mask.T]


def _longest(mask: Mask, begins: Mask) -> int:
    """Most values in sequence within a bout that are true, in any column of (rows, columns)."""
    return max((int(np.diff(own).max()) for own in _stretches(mask, begins) if len(own)), default=0)


def _level_share(is_level: Mask, begins: Mask, window: int) -> float:
    """Share of rows in stretches of at least a window that are level, in the worst column."""
    lengths = map(np.diff, _stretches(is_level, begins))
    return max(int(own[own >= window].sum()) for own in lengths) / len(is_level)


def _codes(channel: Doubles, values: Doubles, times: Ints) -> Doubles:
    """Those of a channel's values that stand for "no reading"; ``times``: how often it has each, ascending values."""
    off = np.abs(values - np.median(channel))
    farthest = np.argsort(off)[: -_MOST_CODES - 2 : -1]
    nearer = off[farthest[1:]]
    recur = np.logical_and.accumulate(times[farthest[:-1]] >= _RECURS)
    last = np.flatnonzero(recur & (off[farthest[:-1]] > _FAR * nearer) & (nearer > 0))
    return values[farthest[: last[-1] + 1]] if len(last) else values[:0]


def _usual(steps: Doubles) -> float:
    """The yardstick of steps (ascending, above 0): their 99.9th percentile, of those below a gap near the top."""
    share, factor = _APART
    top = steps[int((1.0 - share) * len(steps)) :]
    apart = np.flatnonzero(top[1:] > factor * top[:-1])
    below = steps if not len(apart) else steps[: len(steps) - len(top) + apart[0] + 1]
    return float(np.quantile(below, _STEP_QUANTILE, method="lower"))


def _zero_rows(values: Doubles, steps: Doubles, begins: Mask, window: int) -> int:
    """Rows of (rows, channels) that stand for "no reading" by zeros.

    They come together in all channels, and by leaps: a coarse sensor has zeros in one of them more often, and comes to
    rest by its least steps.
    """
    is_zero: Mask = np.count_nonzero(values, axis=1) == 0
    number = int(is_zero.sum())
    edges = steps[np.diff(is_zero, prepend=is_zero[:1]) & (steps > 0)]
    if values.shape[1] < 2 or 2 * number <= np.count_nonzero((values == 0).any(axis=1)) or not len(edges):
        return 0
    has_leaps = np.median(edges) > _FAR * steps[steps > 0].min()
    recurs = len(edges) >= 2 * _RECURS or _longest(is_zero[:, None], begins) >= window
    return number if has_leaps and recurs else 0


def _cut(channel: Doubles, values: Doubles, times: Ints) -> float:
    """Share of readings at the ends of a channel where it is cut off, as a sensor does beyond its range; else 0."""
    if len(values) < _MANY_VALUES:
        return 0.0
    ends = (values[i] for i in (0, -1) if times[i] >= _VISITS and values[i])
    at = [channel == end for end in ends]
    often = [mask for mask in at if np.count_nonzero(np.diff(mask.astype(np.int8)) > 0) >= _VISITS]
    return float(np.mean(np.any(often, axis=0))) if often else 0.0


def _rounded(channel: Doubles) -> float:
    """Deviation of the rounding to float32 as a share of the channel's; 0 for whole numbers that float32 holds."""
    deviation, step = channel.std(), float(np.spacing(np.float32(np.abs(channel).max())))
    is_whole = step <= 1.0 and not (channel % 1.0).any()
    return 0.0 if is_whole or not deviation else step / 12**0.5 / float(deviation)


def _pace(values: Doubles, steps: Doubles) -> float:
    spread = values.var(axis=0).sum() if len(values) else 0.0
    return float(np.sqrt((steps**2).mean() / spread)) if spread else 0.0
