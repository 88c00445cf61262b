"""Synthetic raw files in the originals' formats, for where those are not at hand: never to be mistaken for them.

A marker file lies beside the files and the first row of each is a fixed ramp (`watermark`); either makes everything
computed from them SYNTHETIC. Lengths at scale 1, gaps, null segments and absent activities resemble the originals.
"""

import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

from relief_ray.data.files import write_atomic
from relief_ray.data.mhealth import COLUMN_ORDER
from relief_ray.data.motion import MOTIONS, Array, Motion, Person, ecg, heart_rate, make_person, move
from relief_ray.data.pamap2 import imu_columns
from relief_ray.data.source import MARKER
from relief_ray.data.spec import DatasetSpec, get_spec
from relief_ray.data.watermark import signature
from relief_ray.errors import UserError

Timeline = list[tuple[int, Motion, int]]

_PAMAP2_ORDER = (1, 2, 3, 17, 16, 12, 13, 12, 13, 4, 7, 6, 5, 24)
_PAMAP2_SECONDS = MappingProxyType({12: 72.0, 13: 65.0, 24: 90.0, 5: 160.0})
_PAMAP2_ABSENT = MappingProxyType({103: (5, 6, 7, 24), 104: (5, 24), 107: (24,)})
_MHEALTH_SECONDS = MappingProxyType({6: 54.0, 7: 56.0, 8: 58.0, 12: 20.0})
_CHUNK = 20_000


def synth(name: str, root: str | Path, seed: int = 0, scale: float = 1.0) -> Path:
    """Write `root/NAME_SYNTHETIC` and return it; `scale` shortens every segment (dsa's files have one length only).

    Raises UserError for a dataset without a raw text format, or a scale outside (0, 1].
    """
    spec = get_spec(name)
    if name not in _WRITERS:
        raise UserError(f"data synth {name!r}: no synthetic form; choose one of {', '.join(_WRITERS)}")
    if not 0.0 < scale <= 1.0 or (name == "dsa" and scale != 1.0):
        raise UserError(
            f"data synth {name}: scale {scale:g}, expected 0 < scale <= 1 (dsa: 1, its files have one length)"
        )
    folder = Path(root) / f"{name}_SYNTHETIC"
    marker = {"origin": "SYNTHETIC", "dataset": name, "seed": seed, "scale": scale}
    write_atomic(folder / MARKER, json.dumps(marker, sort_keys=True).encode())
    for subject in spec.subjects:
        _WRITERS[name](spec, folder, subject, scale, np.random.default_rng([seed, subject]))
    return folder


def _timeline(
    spec: DatasetSpec, codes: tuple[int, ...], seconds: Mapping[int, float], default_s: float, null_s: float
) -> list[tuple[int, Motion, float]]:
    """Null, activity, null, activity, ..., null; each with its motion and length in seconds."""
    names = dict(zip(spec.labels, spec.classes, strict=True))
    line = [(0, MOTIONS[""], null_s)]
    for code in codes:
        line += [(code, MOTIONS[names[code]], seconds.get(code, default_s)), (0, MOTIONS[""], null_s)]
    return line


def _rows(line: list[tuple[int, Motion, float]], rate_hz: int, scale: float, rng: np.random.Generator) -> Timeline:
    """Lengths in rows, each varied by up to a tenth."""
    return [(code, motion, max(1, round(s * scale * rate_hz * rng.uniform(0.9, 1.1)))) for code, motion, s in line]


def _moving(line: Timeline, person: Person, num_places: int, rate_hz: int, rng: np.random.Generator) -> Array:
    """(rows, places, 9): acc, gyro, mag of every sensor over the whole timeline."""
    bouts = []
    for _, motion, rows in line:
        sensors = [np.concatenate(move(motion, person, p, rows, rate_hz, rng), axis=1) for p in range(num_places)]
        bouts.append(np.stack(sensors, axis=1))
    return np.concatenate(bouts)


def _labels(line: Timeline) -> Array:
    return np.concatenate([np.full(rows, code, np.float64) for code, _, rows in line])


def _canonical(body: Array) -> Array:
    """(rows, places, 9) to (rows, 9 * places): acc of all places, then gyro, then mag."""
    rows, places, _ = body.shape
    return body.reshape(rows, places, 3, 3).transpose(0, 2, 1, 3).reshape(rows, 9 * places)


def _write_table(path: Path, table: Array, formats: list[str], delimiter: str) -> None:
    """A text table, in chunks; NaN spelt as in the originals; the file appears whole."""
    out = io.BytesIO()
    for first in range(0, len(table), _CHUNK):
        text = io.StringIO()
        np.savetxt(text, table[first : first + _CHUNK], fmt=formats, delimiter=delimiter)
        out.write(text.getvalue().replace("nan", "NaN").encode())
    write_atomic(path, out.getvalue())


def _pamap2(spec: DatasetSpec, folder: Path, subject: int, scale: float, rng: np.random.Generator) -> None:
    person = make_person(rng, 3)
    codes = tuple(code for code in _PAMAP2_ORDER if code not in _PAMAP2_ABSENT.get(subject, ()))
    line = _rows(_timeline(spec, codes, _PAMAP2_SECONDS, 225.0, 80.0), spec.raw_rate_hz, scale, rng)
    labels = _labels(line)
    table = np.full((len(labels), 54), 30.0)
    table[:, 0] = 5.0 + np.arange(len(labels)) / spec.raw_rate_hz
    table[:, 1] = labels
    bpm = heart_rate([(motion, rows) for _, motion, rows in line], person, spec.raw_rate_hz)
    measured = np.arange(len(labels)) % 11 == 7
    table[:, 2] = np.where(measured, np.round(bpm), np.nan)
    body = _moving(line, person, 3, spec.raw_rate_hz, rng)
    table[:, imu_columns()] = _canonical(body)
    for place, imu in enumerate((3, 20, 37)):
        table[:, imu + 4 : imu + 7] = np.clip(body[:, place, :3], -58.0, 58.0)
        table[:, imu + 13 : imu + 17] = (1.0, 0.0, 0.0, 0.0)
        _drop_rows(table, slice(imu, imu + 17), rng)
    table[0] = [5.0, 0.0, *signature(52)]
    path = folder / "PAMAP2_Dataset" / "Protocol" / f"subject{subject}.dat"
    _write_table(path, table, ["%.2f", "%d", *["%.6g"] * 52], " ")


def _drop_rows(table: Array, columns: slice, rng: np.random.Generator) -> None:
    """Lost wireless packets: stretches of NaN, about half a percent of the rows."""
    starts = rng.integers(1, len(table), max(1, len(table) // 4000))
    for start, length in zip(starts, rng.integers(2, 40, len(starts)), strict=True):
        table[start : start + length, columns] = np.nan


def _mhealth(spec: DatasetSpec, folder: Path, subject: int, scale: float, rng: np.random.Generator) -> None:
    person = make_person(rng, 3)
    line = _rows(_timeline(spec, spec.labels, _MHEALTH_SECONDS, 61.0, 130.0), spec.rate_hz, scale, rng)
    body = _moving(line, person, 3, spec.rate_hz, rng)
    bpm = heart_rate([(motion, rows) for _, motion, rows in line], person, spec.rate_hz)
    moved = [body[:, :, :3].reshape(len(body), 9), *(body[:, 1:, k : k + 3].reshape(len(body), 6) for k in (3, 6))]
    table = np.empty((len(body), 24))
    table[:, COLUMN_ORDER] = np.concatenate([*moved, ecg(bpm, spec.rate_hz, rng)], axis=1)
    table[:, 23] = _labels(line)
    table[0] = [*signature(23), 0.0]
    _write_table(folder / "MHEALTHDATASET" / f"mHealth_subject{subject}.log", table, [*["%.5g"] * 23, "%d"], "\t")


def _dsa(spec: DatasetSpec, folder: Path, subject: int, scale: float, rng: np.random.Generator) -> None:
    person = make_person(rng, 5)
    for code, name in zip(spec.labels, spec.classes, strict=True):
        body = _moving([(code, MOTIONS[name], round(scale * 7500))], person, 5, spec.rate_hz, rng)
        body[:, :, 6:] /= 50.0  # this set's magnetometers are given relative to the Earth's field
        table = body.reshape(len(body), 45)
        table[0] = signature(45)
        for part in range(60):
            path = folder / "data" / f"a{code:02d}" / f"p{subject}" / f"s{part + 1:02d}.txt"
            _write_table(path, table[125 * part : 125 * (part + 1)], ["%.5g"] * 45, ",")


_Writer = Callable[[DatasetSpec, Path, int, float, np.random.Generator], None]
_WRITERS: Mapping[str, _Writer] = MappingProxyType({"pamap2": _pamap2, "mhealth": _mhealth, "dsa": _dsa})
