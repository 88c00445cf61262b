"""Synthetic signals of body-worn sensors: what the formats' ``synthesise`` functions write their raw files from.

The physical model of a body-worn sensor: acceleration is gravity, turned by posture and placement, plus harmonics of
the cadence; rotation rates follow the same cadence; the magnetometer measures the Earth's field through the same
turning and a slowly drifting heading. Heart rate follows effort with a lag; ECG beats follow heart rate. Units: m/s^2,
rad/s, microtesla, beats per minute, mV.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from relief_ray.data.loader import DatasetSpec, Doubles, Ints
from relief_ray.support.files import write_atomic

GRAVITY = 9.81
_EARTH_UT = np.array([20.0, 0.0, -43.0])
_HEART_LAG_S = 35.0
_NUM_HARMONICS = 4


class Motion(NamedTuple):
    """An activity's cadence, acceleration amplitude, lean of the limb against gravity, and target heart rate."""

    cadence_hz: float
    swing: float
    tilt_rad: float
    heart_bpm: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Person:
    """A subject's pace, vigour, resting heart rate and the orientation of each sensor (rotation matrices)."""

    pace: float
    gain: float
    rest_bpm: float
    placements: tuple[Doubles, ...]


MOTIONS: Mapping[str, Motion] = {
    "": Motion(0.4, 0.8, 0.2, 90.0),
    "lying": Motion(0.25, 0.06, 1.5, 68.0),
    "lying_on_back": Motion(0.25, 0.06, 1.5, 68.0),
    "lying_on_right_side": Motion(0.25, 0.07, 2.2, 68.0),
    "sitting": Motion(0.3, 0.1, 0.9, 74.0),
    "standing": Motion(0.35, 0.12, 0.0, 80.0),
    "standing_in_elevator": Motion(0.2, 0.3, 0.05, 80.0),
    "moving_in_elevator": Motion(0.7, 0.9, 0.1, 84.0),
    "walking": Motion(1.8, 3.2, 0.15, 105.0),
    "walking_in_parking_lot": Motion(1.75, 3.0, 0.15, 104.0),
    "walking_on_treadmill_flat": Motion(1.65, 2.8, 0.12, 102.0),
    "walking_on_treadmill_inclined": Motion(1.6, 3.1, 0.3, 120.0),
    "nordic_walking": Motion(1.7, 4.2, 0.25, 118.0),
    "running": Motion(2.75, 9.0, 0.2, 155.0),
    "running_on_treadmill": Motion(2.7, 8.5, 0.2, 152.0),
    "jogging": Motion(2.5, 7.0, 0.2, 145.0),
    "cycling": Motion(1.2, 1.6, 0.7, 125.0),
    "cycling_horizontal": Motion(1.15, 1.5, 1.2, 122.0),
    "cycling_vertical": Motion(1.2, 1.7, 0.6, 124.0),
    "ascending_stairs": Motion(1.55, 3.4, 0.35, 132.0),
    "climbing_stairs": Motion(1.5, 3.4, 0.35, 130.0),
    "descending_stairs": Motion(1.8, 4.4, 0.1, 118.0),
    "vacuum_cleaning": Motion(0.8, 1.8, 0.5, 105.0),
    "ironing": Motion(0.6, 1.0, 0.3, 92.0),
    "rope_jumping": Motion(2.0, 12.0, 0.1, 165.0),
    "jumping": Motion(1.9, 11.0, 0.1, 150.0),
    "waist_bends": Motion(0.45, 2.2, 0.9, 100.0),
    "arm_elevation": Motion(0.5, 2.5, 0.4, 95.0),
    "crouching": Motion(0.4, 2.4, 0.6, 115.0),
    "stepper": Motion(1.4, 2.2, 0.25, 135.0),
    "cross_trainer": Motion(1.3, 2.6, 0.25, 138.0),
    "rowing": Motion(0.5, 3.0, 1.1, 140.0),
    "playing_basketball": Motion(2.1, 6.0, 0.3, 150.0),
}


def make_person(rng: np.random.Generator, num_placements: int) -> Person:
    """A subject: pace +-8 %, vigour +-15 %, resting heart rate, sensors a few degrees off their place."""
    turns = [_rotation(rng.normal(0.0, 0.2, 3) + np.array([0.0, 0.0, 1.1 * place])) for place in range(num_placements)]
    return Person(
        pace=float(rng.normal(1.0, 0.04)),
        gain=float(np.exp(rng.normal(0.0, 0.12))),
        rest_bpm=float(rng.normal(66.0, 5.0)),
        placements=tuple(turns),
    )


def _rotation(angles: Sequence[float] | Doubles) -> Doubles:
    """Rotation matrix (3, 3) from three angles about x, y, z."""
    (cx, cy, cz), (sx, sy, sz) = np.cos(angles), np.sin(angles)
    about_x = np.array([[1, 0, 0], [0, cx, -sx], [0, sx, cx]])
    about_y = np.array([[cy, 0, sy], [0, 1, 0], [-sy, 0, cy]])
    about_z = np.array([[cz, -sz, 0], [sz, cz, 0], [0, 0, 1]])
    turned: Doubles = about_z @ about_y @ about_x
    return turned


def move(
    motion: Motion, person: Person, place: int, rows: int, rate_hz: int, rng: np.random.Generator
) -> tuple[Doubles, Doubles, Doubles]:
    """Acceleration, rotation rate and field, (rows, 3) each, of one sensor during one bout."""
    time_s = np.arange(rows) / rate_hz
    drift = np.cumsum(rng.normal(0.0, 0.01 / np.sqrt(rate_hz), rows))
    phase = 2 * np.pi * (motion.cadence_hz * person.pace * time_s + drift)
    reach = person.gain * motion.swing * (0.7 + 0.3 * ((place * 7) % 3))
    acc = GRAVITY * np.array([0.0, np.sin(motion.tilt_rad), np.cos(motion.tilt_rad)]) + np.zeros((rows, 3))
    gyro = np.zeros((rows, 3))
    for harmonic in range(1, _NUM_HARMONICS + 1):
        offset = 2 * np.pi * np.array([0.0, 0.3, 0.6]) * harmonic + 0.8 * place
        wave = np.sin(harmonic * phase[:, None] + offset) / harmonic**1.3
        acc += reach * wave * np.array([0.5, 0.6, 1.0])
        gyro += 0.25 * reach * motion.cadence_hz * wave * np.array([1.0, 0.4, 0.5])
    heading = rng.uniform(0, 2 * np.pi) + np.cumsum(rng.normal(0.0, 0.05 / np.sqrt(rate_hz), rows))
    sway = motion.tilt_rad + 0.04 * reach * np.sin(phase)
    turn = person.placements[place]
    acc = (acc + rng.normal(0.0, 0.08, (rows, 3))) @ turn.T
    gyro = (gyro + rng.normal(0.0, 0.02, (rows, 3))) @ turn.T
    return acc, gyro, (_field(heading, sway) + rng.normal(0.0, 0.5, (rows, 3))) @ turn.T


def _field(heading: Doubles, sway: Doubles) -> Doubles:
    """The Earth's field (rows, 3) seen by a sensor turned by heading about z and sway about x."""
    north, down = _EARTH_UT[0], _EARTH_UT[2]
    x, y = north * np.cos(heading), -north * np.sin(heading)
    return np.stack([x, y * np.cos(sway) - down * np.sin(sway), y * np.sin(sway) + down * np.cos(sway)], axis=1)


def heart_rate(timeline: Sequence[tuple[Motion, int]], person: Person, rate_hz: int) -> Doubles:
    """Beats per minute over a timeline of (motion, rows): first-order lag behind effort, in 35 s."""
    current, pieces = person.rest_bpm, []
    for motion, rows in timeline:
        target = person.rest_bpm + (motion.heart_bpm - 66.0)
        decay = np.exp(-np.arange(1, rows + 1) / rate_hz / _HEART_LAG_S)
        piece = target + (current - target) * decay
        pieces.append(piece)
        current = float(piece[-1]) if rows else current
    return np.concatenate(pieces)


def ecg(bpm: Doubles, rate_hz: int, rng: np.random.Generator) -> Doubles:
    """Two leads (rows, 2): P, QRS and T waves once per beat, slow baseline, noise."""
    beat = np.cumsum(bpm / 60.0 / rate_hz) % 1.0
    waves = ((0.18, 0.12, 0.025), (0.3, 1.4, 0.012), (0.33, -0.35, 0.012), (0.55, 0.3, 0.05))
    trace = sum(height * np.exp(-0.5 * ((beat - centre) / width) ** 2) for centre, height, width in waves)
    baseline = 0.1 * np.sin(2 * np.pi * 0.2 * np.arange(len(bpm)) / rate_hz)
    lead: Doubles = np.asarray(trace) + baseline
    return np.stack([lead, 0.6 * lead], axis=1) + rng.normal(0.0, 0.03, (len(bpm), 2))


_CHUNK = 20_000


def record(
    spec: DatasetSpec,
    person: Person,
    codes: Sequence[int],
    seconds: Mapping[int, float],
    default_s: float,
    null_s: float,
    scale: float,
    rng: np.random.Generator,
) -> tuple[Ints, Doubles, Doubles]:
    """Null, activity, null, ..., null, each varied by up to a tenth: codes (rows,), motion (rows, P, 9), bpm (rows,).

    Args:
        spec: the dataset's facts.
        person: the subject, with P placements.
        codes: the activities in order.
        seconds: their length, where not ``default_s``.
        default_s: usual length of an activity.
        null_s: length of what is between activities.
        scale: factor of every length.
        rng: draws lengths and motion.
    """
    names = {0: "", **dict(zip(spec.labels, spec.classes, strict=True))}
    order = [0, *(code for activity in codes for code in (activity, 0))]
    lengths_s = [seconds.get(code, default_s) if code else null_s for code in order]
    rows = [max(1, round(s * scale * spec.raw_rate_hz * rng.uniform(0.9, 1.1))) for s in lengths_s]
    timeline = [(MOTIONS[names[code]], number) for code, number in zip(order, rows, strict=True)]
    bpm = heart_rate(timeline, person, spec.raw_rate_hz)
    return np.repeat(order, rows), moving(timeline, person, spec.raw_rate_hz, rng), bpm


def moving(timeline: Sequence[tuple[Motion, int]], person: Person, rate_hz: int, rng: np.random.Generator) -> Doubles:
    """(rows, places, 9): acc, gyro, mag of every sensor over a timeline of (motion, rows)."""
    bouts = []
    for motion, rows in timeline:
        sensors = [move(motion, person, place, rows, rate_hz, rng) for place in range(len(person.placements))]
        bouts.append(np.stack([np.concatenate(sensor, axis=1) for sensor in sensors], axis=1))
    return np.concatenate(bouts)


def write_table(path: Path, table: Doubles, formats: list[str], delimiter: str) -> None:
    """A text table, in chunks; NaN spelt as in the originals; the file appears whole."""

    def chunks() -> Iterator[bytes]:
        for first in range(0, len(table), _CHUNK):
            text = io.StringIO()
            np.savetxt(text, table[first : first + _CHUNK], fmt=formats, delimiter=delimiter)
            yield text.getvalue().replace("nan", "NaN").encode()

    write_atomic(path, chunks())
