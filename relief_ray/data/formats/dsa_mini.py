"""The packaged excerpt of dsa: its facts and its parser.

Right leg, because stairs, ways of walking and elevator states show there without giving each other away at once
(docs/data.md has the comparison). It holds the first 24 five-second files of eight activities and all subjects, as
int16 with one scale per channel. ``python -m benchmarks.excerpt`` makes the file anew.
"""

import io
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from relief_ray.data.formats import dsa
from relief_ray.data.loader import DatasetSpec, Loader, Members, Recording, bouts_of
from relief_ray.support.errors import UserError

FILE = "dsa_mini.npz"
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
    try:
        with np.load(io.BytesIO(members.read(members.names[0])), allow_pickle=False) as arrays:
            rows = arrays["subject"] == subject
            labels = arrays["label"][rows].astype(np.int16)
            signal = np.multiply(arrays["signal"][rows], arrays["scale"], dtype=np.float32)
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path}: damaged ({error}); install the package again") from None
    return Recording(subject=subject, signal=signal, labels=labels, bouts=bouts_of(labels))


DSA_MINI = Loader(spec=SPEC, files=files, parse=parse)
