"""The packaged excerpt: small, complete, and reproduced bit for bit from the archive."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.excerpt import make_mini
from relief_ray.data import Dataset, get_spec
from relief_ray.data.dataset import read_entry
from relief_ray.data.describe import known_digests
from relief_ray.data.formats.dsa import UNITS, read_segment
from relief_ray.data.formats.dsa_mini import DSA_MINI
from relief_ray.data.loader import Members
from relief_ray.data.source import Source, open_source
from relief_ray.support.errors import UserError
from relief_ray.support.files import sha256_file


def test_the_excerpt_is_small_and_complete(mini: Dataset) -> None:
    assert mini.source.path.stat().st_size < 4_000_000
    assert (mini.source.path.parent / "NOTICE.md").exists()
    assert mini.signal().shape == (8 * 8 * 3000, 9)
    assert mini.origin == "real"
    assert {tuple(np.unique(mini.labels[a:b])) for _, a, b in mini.bouts} == {(c,) for c in range(8)}
    assert sha256_file(mini.source.path) == known_digests("dsa_mini")["dsa_mini.npz"]
    assert read_entry(mini.signal_path.parent).signal_sha256 == sha256_file(mini.signal_path)


def test_a_damaged_package_is_named() -> None:
    members = Members(names=("dsa_mini.npz",), read=lambda name: b"PK no archive")
    with pytest.raises(UserError, match=r"here: damaged \(.*\); install the package again"):
        DSA_MINI.parse(DSA_MINI.spec, members, Path("here"), 1)


@pytest.mark.slow
def test_the_script_makes_the_same_arrays(mini: Dataset, dsa_zip: Path, tmp_path: Path) -> None:
    out = tmp_path / "again.npz"
    make_mini(dsa_zip, out)
    with np.load(out, allow_pickle=False) as again, np.load(mini.source.path, allow_pickle=False) as packaged:
        assert sorted(again) == sorted(packaged)
        assert all(np.array_equal(again[key], packaged[key]) for key in again)


def test_the_excerpt_equals_the_archive(mini: Dataset, dsa_zip: Path) -> None:
    unit = UNITS.index(mini.spec.units[0])
    signal = mini.signal()
    with open_source(get_spec("dsa"), Source(path=dsa_zip)) as members:
        for subject, start, stop in mini.bouts[::9]:
            code = mini.spec.labels[mini.labels[start]]
            names = [f"data/a{code:02d}/p{subject + 1}/s{part:02d}.txt" for part in range(1, 25)]
            raw = np.concatenate([read_segment(members, name) for name in names])[:, 9 * unit : 9 * unit + 9]
            step = np.abs(signal).max(axis=0) / 32767
            assert stop - start == 3000
            assert (np.abs(signal[start:stop] - raw) <= 0.51 * step).all()
