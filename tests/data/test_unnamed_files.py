"""A file that a loader opens by itself is refused by name: the cache would not notice a change of it."""

import py_compile
import sqlite3
import sys
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from relief_ray.conformance.datasets import check_loader
from relief_ray.data import DataConfig, dataset, load_dataset, open_dataset
from relief_ray.data.describe import describe
from relief_ray.data.registry import get_loader
from relief_ray.support.errors import UserError
from tests.loaders import write_lab

BESIDE = """
import csv, os, sqlite3, tempfile
HERE = Path(__file__).parent
def mine(spec, members, path, subject):
    made = parse(spec, members, path, subject)
    OPEN
    return made
MINE = replace(GOOD, parse=mine)
"""


@pytest.fixture
def lab(write, tmp_path, monkeypatch):
    return partial(write_lab, write, tmp_path, monkeypatch)


def described(path: str) -> list[str]:
    config = DataConfig(name=path)
    return describe(open_dataset(config), config)["warnings"]


def folder_of(path: str) -> Path:
    get_loader(path)
    return Path(sys.modules[path.partition(":")[0]].__file__ or "").parent


@pytest.mark.parametrize(
    "opening",
    [
        '(path / "labels.csv").read_text()',
        'list(csv.DictReader(open(path / "labels.csv")))',
        'np.fromfile(str(path / "labels.csv"), np.uint8)',
        'os.close(os.open(path / "labels.csv", os.O_RDONLY))',
        'os.chdir(path); open("labels.csv").read()',
        '(path / "deep" / "labels.csv").read_bytes()',
        'open(HERE / "labels.csv").read()',
        'open(path / ".." / "lab" / "labels.csv").read()',
        '(HERE / "meta" / "labels.csv").read_text()',
        'Path(os.environ["ELSEWHERE"], "labels.csv").read_text()',
        'np.memmap(path / "labels.csv", np.uint8)',
        'open(path / "labels.csv", "a+").read()',
        'open(path / "labels.csv", "r+b").read()',
        'import threading; t = threading.Thread(target=open, args=(path / "labels.csv",)); t.start(); t.join()',
        'from concurrent.futures import ThreadPoolExecutor as T; list(T(2).map(np.genfromtxt, [path / "labels.csv"]))',
    ],
)
def test_it_is_refused_by_name(lab, tmp_path: Path, monkeypatch, opening: str) -> None:
    monkeypatch.chdir(Path.cwd())  # and back, after the loader left it
    path = lab(BESIDE.replace("OPEN", opening))
    module = folder_of(path)
    monkeypatch.setenv("ELSEWHERE", str(tmp_path / "else"))
    for folder in (tmp_path / "lab", tmp_path / "lab" / "deep", module, module / "meta", tmp_path / "else"):
        folder.mkdir(exist_ok=True)
        (folder / "labels.csv").write_text("first,stop,code\n0,400,1\n")
    with pytest.raises(UserError, match=r"parse\(\) of subject 1 opens .*labels\.csv, expected files that files\(\)"):
        load_dataset(path)


TABLE_ELSEWHERE = 'import importlib.util as u; s = u.spec_from_file_location("t", HERE / "else" / "table_of_mine.py"); '


@pytest.mark.parametrize(
    ("opening", "name"),
    [
        ('import importlib; importlib.import_module("table_of_mine")', "table_of_mine"),
        ('import importlib; importlib.import_module("else.table_of_mine")', "else/table_of_mine"),
        (TABLE_ELSEWHERE + "s.loader.exec_module(u.module_from_spec(s))", "else/table_of_mine"),
        ('import runpy; runpy.run_path(str(path / "table_of_mine.py"))', "lab/table_of_mine"),
        ('exec((HERE / "table_of_mine.py").read_text())', "table_of_mine"),
    ],
)
@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_table_in_a_file_of_code_is_refused_by_name(lab, tmp_path, opening: str, name: str, is_compiled: bool):
    path = lab(BESIDE.replace("OPEN", opening))
    for folder in (folder_of(path), folder_of(path) / "else", tmp_path / "lab"):
        folder.mkdir(exist_ok=True)
        (folder / "table_of_mine.py").write_text("ROWS = [(0, 400, 1)]\n")
        if is_compiled:
            py_compile.compile(str(folder / "table_of_mine.py"))
    for module in ("table_of_mine", "else.table_of_mine", "else"):
        sys.modules.pop(module, None)
    with pytest.raises(UserError, match=rf"parse\(\) of subject 1 opens .*/{name}\.py, expected files that files\(\)"):
        load_dataset(path)


@pytest.mark.parametrize(
    "opening",
    [
        'np.load(path / f"person{subject}.npy")',
        'open(HERE / "written.txt", "w").close()',
        "tempfile.TemporaryFile().close()",
        "import turtle_of_mine",
        'import turtle_of_mine, importlib; importlib.import_module("turtle_of_mine")',
        "import elsewhere_of_mine as e, linecache; linecache.getline(e.__file__, 1)",
        "import json.tool; open(os.__file__).read()",
        'Path("/proc/self/status").read_text()',
        '(path / "missing.csv").exists()',
    ],
)
def test_members_code_and_files_elsewhere_are_not(lab, monkeypatch, opening: str) -> None:
    path = lab(BESIDE.replace("OPEN", opening))
    module = folder_of(path)
    (module / "turtle_of_mine.py").write_text("FACTOR = 2\n")
    (module / "else").mkdir()
    (module / "else" / "elsewhere_of_mine.py").write_text("FACTOR = 2\n")
    monkeypatch.syspath_prepend(module / "else")
    assert len(load_dataset(path).labels) == 5200


def test_labels_that_a_loader_names_are_read_anew_when_they_change(lab, tmp_path: Path) -> None:
    body = """
import csv
def files(spec, subject):
    return [f"person{subject}.npy", "labels.csv"]
def mine(spec, members, path, subject):
    names = require_members(spec, members.names, files(spec, subject), path)
    table = np.load(io.BytesIO(members.read(names[0])))
    table[:, 5] = 0
    for row in csv.DictReader(io.StringIO(members.read(names[1]).decode())):
        table[int(row["first"]) : int(row["stop"]), 5] = int(row["code"])
    return recording(subject, table)
MINE = Loader(spec=replace(SPEC, member=r"(^|/)(person\\d\\.npy|labels\\.csv)$"), files=files, parse=mine)
"""
    path, labels, seconds = lab(body), tmp_path / "lab" / "labels.csv", []
    for stop in (200, 500):
        labels.write_text(f"first,stop,code\n0,{stop},1\n600,800,2\n800,1000,3\n")
        seconds.append(int((load_dataset(path).labels == 0).sum()) / 10)
    assert seconds == [80.0, 200.0]


def test_a_file_beside_an_archive_counts_too(lab, tmp_path: Path, monkeypatch) -> None:
    path = lab(BESIDE.replace("OPEN", '(path.parent / "labels.csv").read_text()'))
    root = tmp_path / "zipped"
    root.mkdir()
    (root / "labels.csv").write_text("0")
    with zipfile.ZipFile(root / "lab.zip", "w") as archive:
        for file in (tmp_path / "lab").iterdir():
            archive.write(file, file.name)
    spec = 'MINE = replace(MINE, spec=replace(SPEC, hints=("lab",)))'
    path = lab(BESIDE.replace("OPEN", '(path.parent / "labels.csv").read_text()') + spec)
    monkeypatch.setenv("RELIEF_DATA", str(root))
    with pytest.raises(UserError, match=r"zipped/labels\.csv, expected files that files"):
        load_dataset(path)


def test_what_is_opened_in_c_is_seen_by_conformance(lab, tmp_path: Path) -> None:
    """A database that SQLite opens: its old values are used until somebody compares a fresh parse with the cache."""
    opening = 'made.signal[:, 0] *= sqlite3.connect(path / "scale.db").execute("select value from scale").fetchone()[0]'
    path = lab(BESIDE.replace("OPEN", opening))
    with sqlite3.connect(tmp_path / "lab" / "scale.db") as scale:
        scale.execute("create table scale (value real)")
        scale.execute("insert into scale values (2.0)")
    before = load_dataset(path)
    assert all(verdict.status == "kept" for verdict in check_loader(get_loader(path), {}))
    with sqlite3.connect(tmp_path / "lab" / "scale.db") as scale:
        scale.execute("update scale set value = 4.0")
    np.testing.assert_array_equal(load_dataset(path).signal(), before.signal())
    (broken,) = [verdict for verdict in check_loader(get_loader(path), {}) if verdict.status == "broken"]
    assert broken.rule == "repeats" and "signal.npy: not what the raw files say when they are parsed" in broken.found


AT_IMPORT = BESIDE.replace("def mine(", "LABELS = READ\ndef mine(").replace("OPEN", "made.labels[:] *= int(LABELS)")
IN_FILES = BESIDE.replace("OPEN", "pass") + "files_before = files\ndef files(spec, subject):\n    READ\n"
IN_FILES += "    return files_before(spec, subject)\nMINE = replace(MINE, files=files)\n"


@pytest.mark.parametrize("body", [AT_IMPORT, IN_FILES])
@pytest.mark.parametrize("place", ["labels.txt", "meta/labels.txt"])
def test_what_the_import_or_files_opens_is_refused_also_with_parsed_data(lab, tmp_path, body: str, place: str) -> None:
    """The file appears after the data were parsed: whoever imports the loader from then on is told."""
    file = tmp_path / place
    file.parent.mkdir(exist_ok=True)
    reading = f"Path({str(file)!r}).read_text() if Path({str(file)!r}).exists() else 1"
    path = lab(body.replace("READ", reading))
    load_dataset(path)
    file.write_text("1")
    del sys.modules[path.partition(":")[0]]
    what = "the import of its module" if body is AT_IMPORT else r"files\(\)"
    with pytest.raises(UserError, match=rf"{what} opens .*labels\.txt, expected files that files\(\) names"):
        load_dataset(path)


@pytest.mark.parametrize(("seconds", "found"), [(0.2, True), (4.9, True), (5.1, False)])
def test_one_person_is_parsed_anew_also_where_that_takes_seconds(lab, monkeypatch, seconds, found):
    """Noise at every parse: seen unless a person takes more than five seconds."""
    path = lab(BESIDE.replace("OPEN", "made = replace(made, signal=made.signal + np.random.default_rng().normal())"))
    load_dataset(path)
    plain = dataset.read_entry
    monkeypatch.setattr(dataset, "read_entry", lambda folder: replace(plain(folder), parse_s=4 * seconds))
    fault, _ = dataset.parsed_anew(path, 0.0)
    assert fault.startswith("parse() does not return what the run has read") is found


@pytest.mark.parametrize(
    "asking",
    ['os.environ.get("WALK_IS", "1")', 'os.getenv("WALK_IS") or "1"', 'dict(os.environ) and os.environ["WALK_IS"]'],
)
def test_data_are_parsed_anew_when_a_variable_that_parse_asked_for_has_another_value(lab, monkeypatch, asking) -> None:
    path = lab(BESIDE.replace("OPEN", f"made.labels[made.labels == 1] = int({asking})"))
    counts, digests = [], []
    for value in "121":
        monkeypatch.setenv("WALK_IS", value)
        dataset = load_dataset(path)
        counts.append(int((dataset.labels == 1).sum()))
        digests.append(dataset.digest)
    assert counts == [1600, 3200, 1600]
    assert digests[0] == digests[2] != digests[1]


def test_a_program_that_parse_starts_is_told(lab) -> None:
    fork = 'import multiprocessing as m; p = m.get_context("fork").Process(target=int); p.start(); p.join()'
    for start in ('import subprocess; subprocess.run(["true"])', 'os.system("true")', 'os.popen("true").close()', fork):
        path = lab(BESIDE.replace("OPEN", start))
        (said,) = [line for line in described(path) if "its loader starts" in line]
        assert "goes unnoticed" in said


def test_parsing_leaves_torch_as_it_was(lab) -> None:
    import torch

    for change, undo, what in (
        ("torch.set_grad_enabled(False)", lambda: torch.set_grad_enabled(True), "gradients"),
        ("torch.set_default_dtype(torch.float64)", lambda: torch.set_default_dtype(torch.float32), "default type"),
        ("torch.relu_ = torch.relu", None, r"torch\.relu_"),
    ):
        before = torch.relu_
        try:
            with pytest.raises(UserError, match=rf"parse\(\).* (leaves|left) .*{what}.* at .*expected .*"):
                load_dataset(lab(BESIDE.replace("OPEN", f"import torch; {change}")))
        finally:
            torch.relu_ = before
            if undo:
                undo()
