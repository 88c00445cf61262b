"""Cut the packaged excerpt out of the dsa archive: `python -m relief_ray.data.make_mini ZIP OUT`.

Right leg, because stairs, ways of walking and elevator states show there without giving each other away at once
(docs/data.md has the comparison); the first 24 five-second files of eight activities and all subjects, int16 with one
scale per channel.
"""

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from relief_ray.data.formats.dsa import read_segment
from relief_ray.data.source import Members, Source, open_source, require_members
from relief_ray.data.spec import DATASETS, DSA_UNITS

NUM_SEGMENTS = 24


def _columns(unit: str) -> slice:
    first = 9 * DSA_UNITS.index(unit)
    return slice(first, first + 9)


def _bout(members: Members, path: Path, code: int, subject: int) -> NDArray[np.float32]:
    ends = [f"a{code:02d}/p{subject}/s{part:02d}.txt" for part in range(1, NUM_SEGMENTS + 1)]
    names = require_members(DATASETS["dsa"], members.names, ends, path)
    columns = _columns(DATASETS["dsa_mini"].units[0])
    return np.concatenate([read_segment(members, name)[:, columns] for name in names])


def make_mini(archive: Path, out: Path) -> int:
    """Write the excerpt of `archive` to `out` (.npz); returns its size in bytes."""
    spec = DATASETS["dsa_mini"]
    pairs = [(code, subject) for subject in spec.subjects for code in spec.labels]
    with open_source(DATASETS["dsa"], Source(name="dsa", path=archive)) as members:
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
    print(f"{make_mini(Path(sys.argv[1]), Path(sys.argv[2]))} bytes")
