"""An error of a user's `parse` names its line, and the file that it had read last."""

import re

import numpy as np
import pytest

from relief_ray.data import load_dataset
from relief_ray.support.errors import UserError
from tests.loaders import write_lab

# The lab's loader, but for CSV files with a heading.
TABLES = """
import csv

SPEC = replace(SPEC, member=r"(^|/)person\\d\\.csv$")
NAMES = ("a", "b", "c", "d", "e", "code")


def files(spec, subject):
    return [f"person{subject}.csv"]


def mine(spec, members, path, subject):
    (name,) = require_members(spec, members.names, files(spec, subject), path)
    rows = list(csv.DictReader(io.StringIO(members.read(name).decode())))
    return recording(subject, np.array([[float(row[name]) for name in NAMES] for row in rows], np.float32))
"""


@pytest.mark.parametrize(
    ("first", "line", "error"), [("a,b,c,e,code", "", "KeyError: 'd'"), ("a,b,c,d,e,code", "none,1,1,1,1,1", "'none'")]
)
def test_an_error_in_one_persons_file_names_that_file(first, line, error, write, tmp_path, monkeypatch) -> None:
    path = write_lab(write, tmp_path, monkeypatch, TABLES + "MINE = Loader(spec=SPEC, files=files, parse=mine)")
    for file in (tmp_path / "lab").glob("*.npy"):
        heading, wrong = (first, line) if file.stem == "person3" else ("a,b,c,d,e,code", "")
        table = np.load(file)[:, : heading.count(",") + 1]
        np.savetxt(
            file.with_suffix(".csv"), table, "%.4f", ",", header="\n".join(filter(None, (heading, wrong))), comments=""
        )
    file = tmp_path / "lab" / "person3.csv"
    wanted = (
        rf"parse\(\) of subject 3 fails with .*{re.escape(error)}.*it had read {re.escape(str(file))}: mend that file"
    )
    with pytest.raises(UserError, match=wanted):
        load_dataset(path)


def test_a_fault_of_the_loader_names_the_loader(write, tmp_path, monkeypatch) -> None:
    path = write_lab(
        write, tmp_path, monkeypatch, "MINE = Loader(spec=SPEC, files=files, parse=lambda *_: {}['sgnal'])"
    )
    with pytest.raises(UserError, match=r"KeyError: 'sgnal' .*; mend the loader$"):
        load_dataset(path)
