"""MHEALTH in part, z-scored upstream: a fixture for tests; one numpy archive per subject."""

import io
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from relief_ray.data.formats import mhealth
from relief_ray.data.formats.common import require_finite
from relief_ray.data.loader import DatasetSpec, Loader, Members, Recording, bouts_of, require_members
from relief_ray.support.errors import UserError

SPEC = replace(
    mhealth.SPEC,
    name="mhealth_partial",
    title="MHEALTH, chest accelerometer and arm gyroscope only, z-scored upstream (test fixture)",
    modalities=(("acc", 3), ("gyro", 3)),
    licence="none stated by the intermediate source; the original is CC BY 4.0 (as listed by UCI)",
    url="",
    hints=("mhealth_acc_gyro_partial",),
    own_folder=True,
    member=r"(^|/)subject(0[1-9]|10)\.npz$",
    max_abs=(40.0, 40.0),
)


def read_arrays(data: bytes, name: str, keys: tuple[str, ...]) -> dict[str, NDArray[np.generic]]:
    """The named arrays of an npz (pickles are never loaded); UserError names the file and the missing key."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            missing = [key for key in keys if key not in archive]
            if missing:
                raise UserError(f"{name}: arrays {missing} are missing, found {sorted(archive)}; fetch it again")
            return {key: archive[key] for key in keys}
    except UserError:
        raise
    except (ValueError, zipfile.BadZipFile, OSError, EOFError, KeyError) as error:
        raise UserError(f"{name}: not a whole .npz of plain arrays ({error}); fetch it again") from None


def files(spec: DatasetSpec, subject: int) -> list[str]:
    """The end of a subject's file name."""
    return [f"subject{subject:02d}.npz"]


def parse(spec: DatasetSpec, members: Members, path: Path, subject: int) -> Recording:
    """One subject of the partial fixture; a bout is a stretch of one segment without missing rows."""
    (name,) = require_members(spec, members.names, files(spec, subject), path)
    arrays = read_arrays(members.read(name), name, ("signal", "label", "sample_index", "segment"))
    signal = arrays["signal"].astype(np.float32)
    if signal.ndim != 2 or signal.shape[1] != spec.num_channels:
        raise UserError(f"{name}: signal has shape {signal.shape}, expected (rows, {spec.num_channels})")
    require_finite(signal, name)
    index = arrays["sample_index"].astype(np.int64)
    step = index - np.arange(len(index))
    bouts = bouts_of(arrays["segment"], step)
    return Recording(subject=subject, signal=signal, labels=arrays["label"].astype(np.int16), bouts=bouts)


MHEALTH_PARTIAL = Loader(spec=SPEC, files=files, parse=parse)
