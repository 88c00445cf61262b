"""What raw files with a label column share: checked labels, bouts of known activities, absent activities."""

import numpy as np
from numpy.typing import NDArray

from relief_ray.data.spec import DatasetSpec
from relief_ray.errors import UserError

_NULL_CODE = 0


def check_labels(column: NDArray[np.float32], spec: DatasetSpec, name: str) -> NDArray[np.int16]:
    """The label column as int16; UserError names the first line whose label the dataset does not have."""
    known = np.isin(column, (_NULL_CODE, *spec.labels))
    if not known.all():
        row = int(np.flatnonzero(~known)[0])
        codes = ", ".join(str(code) for code in spec.labels)
        raise UserError(f"{name}, line {row + 1}: label {column[row]:g}, expected 0 or one of {codes}; fetch it again")
    labels = column.astype(np.int16)
    if not (labels != _NULL_CODE).any():
        raise UserError(f"{name}: every row has label 0 (no activity), expected some of {spec.labels}; fetch it again")
    return labels


def keep_bouts(bouts: NDArray[np.int64], wanted: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The runs whose rows are wanted (a run is wanted whole or not at all)."""
    return bouts[wanted[bouts[:, 0]]]


def missing_classes(labels: NDArray[np.int16], spec: DatasetSpec) -> list[int]:
    """Raw codes of the activities that this subject does not do: reported, not refused."""
    return sorted(set(spec.labels) - set(np.unique(labels).tolist()))
