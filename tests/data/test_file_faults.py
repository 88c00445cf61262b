"""A fault in one person's file names that file, not the loader; a fault of the loader still names the loader."""

import io
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from relief_ray.data import load_dataset
from relief_ray.data.file_faults import Reading, columns, file_fault
from relief_ray.data.loader import Members
from relief_ray.support.errors import UserError
from tests.loaders import write_lab

# The lab's loader, but for CSV files with a heading.
TABLES = """
import csv

SPEC = replace(SPEC, member=r"(^|/)person\\d\\.csv$")
NAMES = ("a", "b", "c", "d", "e", "code")


def files(spec, subject):
    return [f"person{subject}.csv"]


def table_of(text):
    rows = list(csv.DictReader(io.StringIO(text)))
    return np.array([[float(row[name]) for name in NAMES] for row in rows], np.float32)


def mine(spec, members, path, subject):
    (name,) = require_members(spec, members.names, files(spec, subject), path)
    return recording(subject, table_of(members.read(name).decode()))


def past(spec, members, path, subject):
    return recording(subject, table_of((path / files(spec, subject)[0]).read_text()))
"""
MINE = "MINE = Loader(spec=SPEC, files=files, parse={})"


@pytest.fixture
def lab(write, tmp_path, monkeypatch):
    make = partial(write_lab, write, tmp_path, monkeypatch)

    def build(parse, heading="a,b,c,d,e,code", whose=3):
        path = make(TABLES + MINE.format(parse))
        for file in (tmp_path / "lab").glob("*.npy"):
            first = heading if file.stem == f"person{whose}" else "a,b,c,d,e,code"
            table = np.load(file)[:, : first.count(",") + 1]
            np.savetxt(file.with_suffix(".csv"), table, "%.4f", ",", header=first, comments="")
        return path

    return build


@pytest.mark.parametrize("parse", ["mine", "past"])
@pytest.mark.parametrize("whose", [1, 3])
def test_a_missing_column_names_the_file_the_column_and_those_there_are(parse, whose, lab, tmp_path) -> None:
    path = lab(parse, "a,b,c,e,code", whose)
    with pytest.raises(UserError) as refused:
        load_dataset(path)
    text, file = str(refused.value), tmp_path / "lab" / f"person{whose}.csv"
    assert f"parse() of subject {whose} fails with KeyError: 'd'" in text
    assert (
        f"{file} lacks the column d, which person{2 if whose == 1 else 1}.csv has; its columns are a, b, c, e, code."
        in text
    )
    assert f"Add or rename it in that file, or leave subject {whose} out of `subjects`" in text
    assert "or, where the person has no such sensor, name it in `lacks`" in text
    assert "loader" not in text


def test_a_wrong_value_in_one_file_names_that_file(lab, tmp_path) -> None:
    path = lab("mine")
    file = tmp_path / "lab" / "person2.csv"
    file.write_text(file.read_text().replace("\n", "\nnone,1,1,1,1,1\n", 1))
    with pytest.raises(UserError, match=rf"'none'.*person1.csv is read without an error, so look into {file} first"):
        load_dataset(path)


def test_of_several_files_all_that_were_read_are_named(tmp_path) -> None:
    def read(name: str) -> bytes:
        return b"x" if name == "acc2.csv" else b"1"

    def parse(spec, members, path, subject):
        return [float(members.read(f"{kind}{subject}.csv")) for kind in ("heart", "acc")]

    loader = SimpleNamespace(spec=SimpleNamespace(subjects=(1, 2)), parse=parse)
    reading = Reading(Members(names=("acc1.csv", "acc2.csv", "heart1.csv", "heart2.csv"), read=read))
    with pytest.raises(ValueError, match="'x'"):
        parse(loader.spec, reading.watched, tmp_path, 2)
    assert file_fault(loader, reading, tmp_path, 2).startswith(
        "; files heart1.csv, acc1.csv are read without an error, so look into files heart2.csv, acc2.csv in "
        f"{tmp_path} first. "
    )


def test_a_fault_of_the_loader_names_the_loader(lab) -> None:
    path = lab("lambda *_: {}['sgnal']")
    with pytest.raises(UserError, match=r"KeyError: 'sgnal' .*; mend the loader$"):
        load_dataset(path)


def test_columns_are_those_of_a_heading_or_of_an_archive_or_numbered() -> None:
    assert columns(b'\xef\xbb\xbfacc x;"gyro; y";code\r\n1;2;3\r\n') == ["acc x", "gyro; y", "code"]
    assert columns(b"a b  c\n1 2 3\n") == ["a", "b", "c"] and columns(b"0.1,2,\n") == ["1", "2", "3"]
    assert columns(b"0.1,0.2,walk\n") == columns(b"2026-01-01 10:00,0.3,?\n") == ["1", "2", "3"], "data, no heading"
    assert columns(b",acc,code\n0,1,2\n") == ["", "acc", "code"]
    arrays = io.BytesIO()
    np.savez(arrays, signal=np.zeros(2), code=np.zeros(2))
    assert columns(arrays.getvalue()) == ["signal", "code"]
    assert columns(b"") == columns(b"\x93NUMPY\x01\x00") == columns(b"\xff\xfe\n") == columns(b"PK\x03\x04cut") == []
