"""The packaged excerpt of dsa: its facts, its parser, and how it is cut out of the dsa archive.

Right leg, because stairs, ways of walking and elevator states show there without giving each other away at once
(docs/data.md has the comparison). It holds the first 24 five-second files of eight activities and all subjects, as
int16 with one scale per channel. ``make_mini`` makes the file anew.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from relief_ray.data.formats import dsa
from relief_ray.data.formats.common import read_arrays
from relief_ray.data.loader import DatasetSpec, Floats, Loader, Members, Recording, bouts_of, require_members
from relief_ray.data.source import Source, open_source
from relief_ray.support.errors import UserError

FILE = "dsa_mini.npz"
NUM_SEGMENTS = 24
# Standing, two states in an elevator, two stairs, three walks: alike enough that a simple classifier stays below 1.
_ACTIVITIES = (2, 5, 6, 7, 8, 9, 10, 11)

SPEC = replace(
    dsa.SPEC,
    name="dsa_mini",
    title="Daily and Sports Activities, excerpt: right leg, 8 activities, 2 minutes each",
    modalities=(("acc", 3), ("gyro", 3), ("mag", 3)),
    classes=tuple(dsa.SPEC.classes[code - 1] for code in _ACTIVITIES),
    labels=_ACTIVITIES,
    url="",
    hints=("dsa_mini",),
    packaged=FILE,
    member=r"(^|/)dsa_mini\.npz$",
    units=("RL",),
    activity_s=(120.0, 120.0),
)


def files(spec: DatasetSpec, subject: int) -> list[str]:
    """The excerpt's only file, which holds all subjects."""
    return [FILE]


def parse(spec: DatasetSpec, members: Members, path: Path, subject: int) -> Recording:
    """One subject of the packaged excerpt: int16 times a scale per channel, one bout per activity."""
    name = members.names[0]
    arrays = read_arrays(members.read(name), str(path), ("signal", "scale", "label", "subject"))
    rows = arrays["subject"] == subject
    if not rows.any():
        raise UserError(f"{path}: no rows of subject {subject}; the package is damaged: install it again")
    scale = arrays["scale"].astype(np.float32)
    raw = arrays["signal"][rows]
    if raw.ndim != 2 or raw.shape[1] != spec.num_channels or len(scale) != spec.num_channels:
        raise UserError(f"{path}: signal has shape {raw.shape}, expected (rows, {spec.num_channels}); install it again")
    labels = arrays["label"][rows].astype(np.int16)
    signal = np.multiply(raw, scale, dtype=np.float32)
    return Recording(subject=subject, signal=signal, labels=labels, bouts=bouts_of(labels))


DSA_MINI = Loader(spec=SPEC, files=files, parse=parse)


def _bout(members: Members, path: Path, code: int, subject: int) -> Floats:
    """The first two minutes of an activity: (3000, 9), the columns of the excerpt's body unit."""
    ends = [f"a{code:02d}/p{subject}/s{part:02d}.txt" for part in range(1, NUM_SEGMENTS + 1)]
    names = require_members(dsa.SPEC, members.names, ends, path)
    first = 9 * dsa.UNITS.index(SPEC.units[0])
    return np.concatenate([dsa.read_segment(members, name)[:, first : first + 9] for name in names])


def make_mini(archive: Path, out: Path) -> int:
    """Write the excerpt of `archive` to `out` (.npz); returns its size in bytes."""
    pairs = [(code, subject) for subject in SPEC.subjects for code in SPEC.labels]
    with open_source(dsa.SPEC, Source(name=dsa.SPEC.name, path=archive)) as members:
        bouts = [_bout(members, archive, code, subject) for code, subject in pairs]
    signal = np.concatenate(bouts)
    scale = (np.abs(signal).max(axis=0) / 32767).astype(np.float32)
    rows = len(bouts[0])
    np.savez_compressed(
        out,
        signal=np.round(signal / scale).astype(np.int16),
        scale=scale,
        label=np.repeat(np.array([code for code, _ in pairs], np.int8), rows),
        subject=np.repeat(np.array([subject for _, subject in pairs], np.int8), rows),
    )
    return out.stat().st_size
