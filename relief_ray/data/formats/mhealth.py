"""MHEALTH: its facts and its parser; per subject one text file of 24 columns at 50 Hz.

Columns: chest acc (3), ECG leads (2), left ankle acc, gyro, mag (9), right lower arm acc, gyro, mag (9), label. The
null class 0 is dropped.
"""

from pathlib import Path

import numpy as np

from relief_ray.data.formats.common import missing_classes, read_subject, signature
from relief_ray.data.loader import (
    DatasetSpec,
    Loader,
    Members,
    Recording,
    bouts_between,
    bouts_where,
    fill_linear,
)
from relief_ray.data.synthetic import ecg, make_person, record, write_table

_LABEL = 23
# acc chest, ankle, arm; gyro ankle, arm; mag ankle, arm; ECG leads
_COLUMN_ORDER = (0, 1, 2, 5, 6, 7, 14, 15, 16, 8, 9, 10, 17, 18, 19, 11, 12, 13, 20, 21, 22, 3, 4)

SPEC = DatasetSpec(
    name="mhealth",
    title="MHEALTH (mobile health)",
    rate_hz=50,
    raw_rate_hz=50,
    modalities=(("acc", 9), ("gyro", 6), ("mag", 6), ("ecg", 2)),
    classes=(
        "standing",
        "sitting",
        "lying",
        "walking",
        "climbing_stairs",
        "waist_bends",
        "arm_elevation",
        "crouching",
        "cycling",
        "jogging",
        "running",
        "jumping",
    ),
    labels=tuple(range(1, 13)),
    null_labels=(0,),
    subjects=tuple(range(1, 11)),
    citation=(
        "O. Banos et al., 'mHealthDroid: A Novel Framework for Agile Development of Mobile Health Applications', "
        "6th International Work-Conference on Ambient Assisted Living (IWAAL), 2014."
    ),
    licence="CC BY 4.0 (as listed by UCI)",
    doi="10.24432/C5TW22",
    url="https://archive.ics.uci.edu/static/public/319/mhealth+dataset.zip",
    hints=("mhealth",),
    member=r"(^|/)mHealth_subject(10|[1-9])\.log$",
    max_abs=(100.0, 20.0, 700.0, 30.0),
    activity_s=(10.0, 80.0),
)


def files(spec: DatasetSpec, subject: int) -> list[str]:
    """The end of a subject's file name."""
    return [f"mHealth_subject{subject}.log"]


def parse(spec: DatasetSpec, members: Members, path: Path, subject: int) -> Recording:
    """One subject; facts: absent activities."""
    (end,) = files(spec, subject)
    _, read, labels, synthetic = read_subject(
        spec, members, path, end, columns=24, label=_LABEL, sensors=_COLUMN_ORDER, ramp=slice(0, _LABEL)
    )
    table = read.astype(np.float32)
    filled = np.stack([fill_linear(table[:, column]) for column in _COLUMN_ORDER], axis=1)
    kept = labels > 0
    bouts = bouts_where(kept, labels)
    return Recording(
        subject=subject,
        signal=filled[kept],
        labels=labels[kept],
        bouts=bouts_between(np.cumsum([0, *(bouts[:, 1] - bouts[:, 0])])),
        synthetic=synthetic,
        facts={"missing_labels": missing_classes(labels, spec)},
        filled=np.isnan(table[kept][:, _COLUMN_ORDER]),
    )


# Seconds of activities in synthetic recordings where not 61.
_SYNTHETIC_SECONDS = {6: 54.0, 7: 56.0, 8: 58.0, 12: 20.0}


def synthesise(spec: DatasetSpec, folder: Path, subject: int, scale: float, rng: np.random.Generator) -> None:
    """Write one subject's synthetic file: null, activity, null, .. by the physical model of `data.synthetic`."""
    person = make_person(rng, 3)
    labels, body, bpm = record(spec, person, spec.labels, _SYNTHETIC_SECONDS, 61.0, 130.0, scale, rng)
    moved = [body[:, :, :3].reshape(len(body), 9), *(body[:, 1:, k : k + 3].reshape(len(body), 6) for k in (3, 6))]
    table = np.empty((len(body), 24))
    table[:, _COLUMN_ORDER] = np.concatenate([*moved, ecg(bpm, spec.rate_hz, rng)], axis=1)
    table[:, 23] = labels
    table[0] = [*signature(23), 0.0]
    write_table(folder / "MHEALTHDATASET" / f"mHealth_subject{subject}.log", table, [*["%.5g"] * 23, "%d"], "\t")


MHEALTH = Loader(spec=SPEC, files=files, parse=parse, synthesise=synthesise)
