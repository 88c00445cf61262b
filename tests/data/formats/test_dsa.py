"""dsa: file order, canonical columns, bouts, and damage named; on the original where it is at hand."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from relief_ray.data.formats import dsa
from relief_ray.data.loader import Members
from relief_ray.data.registry import get_spec
from relief_ray.data.source import Source, open_source
from relief_ray.support.errors import UserError

SPEC = get_spec("dsa")
HERE = Path("archive.zip")


def test_column_order_gathers_modalities_over_units() -> None:
    units = [f"{u}_{s}{a}" for u in SPEC.units for s in ("acc", "gyro", "mag") for a in "xyz"]
    ordered = [units[column] for column in dsa.column_order()]
    assert ordered[:6] == ["T_accx", "T_accy", "T_accz", "RA_accx", "RA_accy", "RA_accz"]
    assert [name.split("_")[1][:3] for name in ordered] == ["acc"] * 15 + ["gyr"] * 15 + ["mag"] * 15


def test_one_subject(members_of: Callable[[dict[str, bytes]], Members]) -> None:
    def text(code: int, part: int) -> bytes:
        return (",".join(f"{code}.{part:02d}{c:02d}" for c in range(45)) + "\n").encode() * 125

    files = {f"data/a{a:02d}/p3/s{s:02d}.txt": text(a, s) for a in SPEC.labels for s in range(1, 61)}
    recording = dsa.parse(SPEC, members_of(files), HERE, 3)
    assert recording.signal.shape == (19 * 7500, 45)
    assert recording.bouts.tolist() == [[7500 * n, 7500 * (n + 1)] for n in range(19)]
    row = 7500 * 4 + 125 * 6 + 11  # activity 5, file 7
    assert recording.labels[row] == 5
    np.testing.assert_allclose(recording.signal[row], [5 + (700 + c) / 1e4 for c in dsa.column_order()], atol=1e-6)
    assert not recording.synthetic
    del files["data/a05/p3/s07.txt"]
    with pytest.raises(UserError, match=r"a05/p3/s07\.txt"):
        dsa.parse(SPEC, members_of(files), HERE, 3)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows: rows[:124], "found 124 lines, expected 125"),
        (lambda rows: [*rows[:50], rows[50][:44], *rows[51:]], "line 51: found 44 columns, expected 45"),
        (lambda rows: [*rows[:50], ["nan", *rows[50][1:]], *rows[51:]], "line 51, column 1: found nan"),
        (lambda rows: [*rows[:50], ["oops", *rows[50][1:]], *rows[51:]], "line 51, column 1: found 'oops'"),
    ],
)
def test_damage_is_named(
    members_of: Callable[[dict[str, bytes]], Members], change: Callable[[list[list[str]]], list[list[str]]], said: str
) -> None:
    rows = change([["0.5"] * 45 for _ in range(125)])
    data = "\n".join(",".join(row) for row in rows).encode()
    with pytest.raises(UserError, match=rf"a01/p1/s01\.txt.*{said}"):
        dsa.read_segment(members_of({"a01/p1/s01.txt": data}), "a01/p1/s01.txt")


def test_against_the_original(dsa_zip: Path) -> None:
    with open_source(SPEC, Source(name="dsa", path=dsa_zip)) as members:
        assert len(members.names) == 19 * 8 * 60
        name = "data/a09/p4/s33.txt"
        expected = np.loadtxt(io.BytesIO(members.read(name)), delimiter=",").astype(np.float32)
        np.testing.assert_array_equal(dsa.read_segment(members, name), expected)
