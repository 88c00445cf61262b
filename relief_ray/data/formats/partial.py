"""Numpy archives: the partial MHEALTH fixture (z-scored upstream) and the packaged excerpt of dsa."""

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from relief_ray.data.formats.common import require_finite
from relief_ray.data.sensor_recording import Recording, runs
from relief_ray.data.source import Members, require_members
from relief_ray.data.spec import DatasetSpec
from relief_ray.errors import UserError

Arrays = Mapping[str, NDArray[np.generic]]


def read_arrays(data: bytes, name: str, keys: tuple[str, ...]) -> Arrays:
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
    """The end of a subject's file name; the excerpt is one file."""
    return ["dsa_mini.npz"] if spec.name == "dsa_mini" else [f"subject{subject:02d}.npz"]


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
    bouts = runs(arrays["segment"], step)
    return Recording(subject=subject, signal=signal, labels=arrays["label"].astype(np.int16), bouts=bouts)


def parse_mini(spec: DatasetSpec, members: Members, path: Path, subject: int) -> Recording:
    """One subject of the packaged excerpt: int16 times a scale per channel, one bout per activity."""
    name = members.names[0]
    arrays = read_arrays(members.read(name), str(path), ("signal", "scale", "label", "subject"))
    own = arrays["subject"] == subject
    if not own.any():
        raise UserError(f"{path}: no rows of subject {subject}; the package is damaged: install it again")
    scale = arrays["scale"].astype(np.float32)
    raw = arrays["signal"][own]
    if raw.ndim != 2 or raw.shape[1] != spec.num_channels or len(scale) != spec.num_channels:
        raise UserError(f"{path}: signal has shape {raw.shape}, expected (rows, {spec.num_channels}); install it again")
    labels = arrays["label"][own].astype(np.int16)
    signal = np.multiply(raw, scale, dtype=np.float32)
    return Recording(subject=subject, signal=signal, labels=labels, bouts=runs(labels))
