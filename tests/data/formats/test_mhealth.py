"""MHEALTH: columns, bouts, and every way of damaging a file named."""

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from relief_ray.data.dataset import parse_source
from relief_ray.data.formats import mhealth
from relief_ray.data.loader import Members
from relief_ray.data.registry import get_spec
from relief_ray.data.source import find_source
from relief_ray.support.errors import UserError

SPEC = get_spec("mhealth")
NAME = "MHEALTHDATASET/mHealth_subject2.log"


def raw(rows: int = 300) -> np.ndarray:
    table = np.tile(np.arange(24.0), (rows, 1))
    table[:, 23] = np.where(np.arange(rows) < 100, 0, np.where(np.arange(rows) < 200, 3, 7))
    return table


def test_columns_and_bouts(
    members_of: Callable[[dict[str, bytes]], Members], as_text: Callable[[np.ndarray, str], bytes]
) -> None:
    recording = mhealth.parse(SPEC, members_of({NAME: as_text(raw(), "\t")}), Path("here"), 2)
    acc, gyro, mag, ecg = [0, 1, 2, 5, 6, 7, 14, 15, 16], [8, 9, 10, 17, 18, 19], [11, 12, 13, 20, 21, 22], [3, 4]
    np.testing.assert_array_equal(recording.signal[17], [*acc, *gyro, *mag, *ecg])
    assert recording.labels.tolist() == [3] * 100 + [7] * 100
    assert recording.bouts.tolist() == [[0, 100], [100, 200]]
    assert recording.facts["missing_labels"] == [1, 2, 4, 5, 6, 8, 9, 10, 11, 12]


def mutate(lines: list[bytes], rng: np.random.Generator) -> list[bytes]:
    """One of the faults that a copy or a download leaves behind."""
    row = int(rng.integers(1, len(lines)))
    fields = lines[row].split(b"\t")
    column = int(rng.integers(0, len(fields) - 1))
    kind = int(rng.integers(0, 5))
    if kind == 0:
        fields = fields[: column + 1]  # cut in the middle of a line
        return [*lines[:row], b"\t".join(fields)]
    if kind == 1:
        fields.insert(column, b"1.0")
    elif kind == 2:
        fields[column] = fields[column] + b"\x00?"
    elif kind == 3:
        fields[-1] = b"%d" % rng.integers(13, 90)
    else:
        table = [line.split(b"\t") for line in lines]
        return [b"\t".join([*cells[:column], b"NaN", *cells[column + 1 :]]) for cells in table]
    return [*lines[:row], b"\t".join(fields), *lines[row + 1 :]]


@pytest.mark.parametrize("seed", range(200))
def test_200_damaged_files_are_all_refused_by_name(
    seed: int, members_of: Callable[[dict[str, bytes]], Members], as_text: Callable[[np.ndarray, str], bytes]
) -> None:
    lines = mutate(as_text(raw(), "\t").splitlines(), np.random.default_rng(seed))
    with pytest.raises(UserError, match=r"mHealth_subject2\.log"):
        mhealth.parse(SPEC, members_of({NAME: b"\n".join(lines)}), Path("here"), 2)


@pytest.mark.ci
def test_100_flipped_bytes_in_an_archive_are_refused_or_harmless(
    tmp_path: Path, as_text: Callable[[np.ndarray, str], bytes]
) -> None:
    """Whatever byte is changed: an error that names the archive, or exactly the same numbers."""
    rng = np.random.default_rng(0)
    path = tmp_path / "mhealth.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for subject in SPEC.subjects:
            table = raw()
            table[:, :23] = rng.normal(size=(300, 23))
            out.writestr(f"mHealth_subject{subject}.log", as_text(table, "\t"))
    whole = path.read_bytes()
    expected = [recording.signal for recording in parse_source(SPEC, find_source(SPEC, path))]
    refused = 0
    for place in (*rng.integers(0, len(whole), 40), *rng.integers(len(whole) - 700, len(whole), 60)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        try:
            signals = [recording.signal for recording in parse_source(SPEC, find_source(SPEC, path))]
        except UserError as error:
            refused += 1
            assert "mhealth" in str(error)
        else:
            assert all(np.array_equal(a, b) for a, b in zip(signals, expected, strict=True))
    assert refused >= 60
