"""Cuts the packaged excerpt ``dsa_mini.npz`` out of the dsa archive: the first two minutes of its activities.

python -m benchmarks.excerpt ZIP OUT.npz
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from relief_ray.data.formats import dsa
from relief_ray.data.formats.dsa_mini import SPEC
from relief_ray.data.loader import Floats, Members, require_members
from relief_ray.data.source import Source, open_source

NUM_SEGMENTS = 24


def _bout(members: Members, path: Path, code: int, subject: int) -> Floats:
    """The first two minutes of an activity: (3000, 9), the columns of the excerpt's body unit."""
    ends = [f"a{code:02d}/p{subject}/s{part:02d}.txt" for part in range(1, NUM_SEGMENTS + 1)]
    names = require_members(dsa.SPEC, members.names, ends, path)
    first = 9 * dsa.UNITS.index(SPEC.units[0])
    return np.concatenate([dsa.read_segment(members, name)[:, first : first + 9] for name in names])


def make_mini(archive: Path, out: Path) -> int:
    """Write the excerpt of `archive` to `out` (.npz); returns its size in bytes."""
    pairs = [(code, subject) for subject in SPEC.subjects for code in SPEC.labels]
    with open_source(dsa.SPEC, Source(path=archive)) as members:
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


if __name__ == "__main__":
    print(make_mini(Path(sys.argv[1]), Path(sys.argv[2])))
