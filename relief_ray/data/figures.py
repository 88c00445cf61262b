"""Figures of each person's sensors, taken once when the files are parsed: what warnings on data are made from."""

from typing import Final, TypedDict

import numpy as np
from numpy.typing import NDArray

from relief_ray.data.loader import DatasetSpec, Mask, Recording, bouts_of

_STEP_QUANTILE: Final = 0.999
# A value that stands for "no reading" recurs, and is so many times farther from the median than all others.
_RECURS, _FAR = 3, 3.0
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
        code: a value that recurs, far from all others of its channel; 0 where there is none.
        code_rows: so often.
        step: the longest step from row to row within a bout, as a multiple of the 99.9th percentile of all steps
            (Euclidean, over the channels).
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
    code: float
    code_rows: int
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
        values = recording.signal[rows, first:stop].astype(np.float32).astype(np.float64)
        lost = np.zeros(values.shape, bool) if recording.filled is None else recording.filled[rows, first:stop]
        moves = np.diff(values, axis=0, prepend=values[:1])
        bends = np.abs(np.diff(moves, axis=0, prepend=np.nan)) > _STRAIGHT * np.abs(values)
        steps = np.where(begins, 0.0, np.linalg.norm(moves, axis=1))
        usual = np.quantile(steps[steps > 0], _STEP_QUANTILE, method="lower") if steps.any() else 1.0
        off = np.abs(values - np.median(values, axis=0))
        ends = off == off.max(axis=0)
        near = np.where(ends, 0.0, off).max(axis=0)
        is_code = (ends.sum(axis=0) >= _RECURS) & (near > 0) & (off.max(axis=0) > _FAR * near)
        codes_at = np.argwhere(ends & is_code)
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
                "code": float(values[tuple(codes_at[0])]) if len(codes_at) else 0.0,
                "code_rows": len(codes_at),
                "step": float(steps.max() / usual),
                "step_row": int(rows[steps.argmax()]),
                "level": float(np.sqrt((values**2).mean())),
                "pace": [_pace(values[codes == label], steps[codes == label]) for label in spec.labels],
            }
        )
    return figures


def _longest(mask: Mask, begins: Mask) -> int:
    """Most values in sequence within a bout that are true, in any column of (rows, columns)."""
    runs = (run for column in mask.T for run in bouts_of(column, np.cumsum(begins)) if column[run[0]])
    return max((int(stop - first) for first, stop in runs), default=0)


def _pace(values: NDArray[np.float64], steps: NDArray[np.float64]) -> float:
    spread = values.var(axis=0).sum() if len(values) else 0.0
    return float(np.sqrt((steps**2).mean() / spread)) if spread else 0.0
