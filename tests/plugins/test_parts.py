"""What a cell or a script defines is a user's code like a file's: stored with the run, hashed, imported, resumed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from relief_ray.plugins import parts
from relief_ray.plugins.load import PARTS, code_of, digests, load
from relief_ray.plugins.parts import parts_of, put
from relief_ray.records.run_folder import read_rounds, read_run

ROOT = Path(__file__).parents[2]
CLASSES = """import relief_ray as rr
from torch import nn

from my_helper import HALF

class Mine(rr.FedAvg):
    share: float = HALF

    def server_step(self, mean, memory):
        return {group: self.share * values for group, values in mean.items()}, memory

def plain(width, classes):
    return nn.Sequential(nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(width * 4, classes))

class Tcn(rr.PlainBackbone):
    width: int = 8

    def module(self, shape):
        return plain(shape.num_channels, shape.num_classes)

def hits(confusion):
    return confusion.trace() / confusion.sum()

print("defined")"""
RUN = """study = rr.run("quick", strategies=["fedavg", Mine], backbone=Tcn(width=4), metrics=[hits], seeds=[0],
                        rounds=2, quiet=True, out="runs")
print(study.run(Mine).record.own_code, study.gain(Mine).num_pairs)"""


def execute(place, *cells):
    """Run cells in a kernel of their own; their texts and errors, without warnings."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    content = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client = nbclient.NotebookClient(
        content, timeout=300, resources={"metadata": {"path": str(place)}}, kernel_name="python3", allow_errors=True
    )
    client.execute()
    outputs = [output for cell in content.cells for output in cell.outputs if output.get("name") != "stderr"]
    return [o.get("text") or o.get("evalue", "") or str(o.get("data")) for o in outputs]


@pytest.fixture
def place(tmp_path, run_cache, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("RELIEF_CACHE", str(run_cache))
    (tmp_path / "my_helper.py").write_text("HALF = 0.5\n")
    return tmp_path


@pytest.mark.ci
def test_classes_of_a_cell_run_are_recorded_and_resume_elsewhere(place):
    texts = execute(place, CLASSES, RUN)
    assert texts[0] == "defined\n" and texts[-1] == "verified 1\n", texts
    folder = place / "runs" / "notebook_Mine.Mine-s0"
    run, last = read_run(folder), read_rounds(folder)[-1]
    assert run.config["strategy"]["name"] == "notebook_Mine:Mine" and run.config["strategy"]["share"] == 0.5
    assert run.config["backbone"]["name"] == "notebook_Tcn:Tcn" and run.config["metrics"] == ["notebook_hits:hits"]
    names = [f"notebook_{name}.py" for name in ("Mine", "Tcn", "hits")]
    assert sorted(run.own_sources) == ["my_helper.py", *sorted(names)] and sorted(run.own_parts) == sorted(names)
    assert "def plain" in run.own_parts["notebook_Tcn.py"] and "def plain" not in run.own_parts["notebook_Mine.py"]
    assert "print" not in "".join(run.own_parts.values()), "what a definition does not need is not run again"
    assert last.metrics.scores["hits"] == pytest.approx(last.metrics.accuracy)

    shutil.rmtree(folder)  # the plan has what its runs need
    env = os.environ | {"RELIEF_CACHE": str(place / "cache"), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "actors.cli.main", "resume", "runs", "--own-code"]
    done = subprocess.run(words[:-1], cwd=place, env=env, capture_output=True, text=True)
    assert done.returncode != 0 and "--own-code" in done.stderr, "another user has begun nothing"
    done = subprocess.run(words, cwd=place, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert read_rounds(folder)[-1].model_sha256 == last.model_sha256


@pytest.mark.ci
def test_a_changed_cell_is_other_code_and_what_a_cell_lacks_is_answered(place):
    first = RUN.replace('"fedavg", Mine', "Mine").replace(", study.gain(Mine).num_pairs", "")
    again = first.replace("quiet=True", "quiet=True, rerun_stale=True")
    imports, _, rest = CLASSES.partition("\n\nfrom my_helper import HALF\n")
    texts = execute(
        place,
        CLASSES,
        first,
        CLASSES.replace("self.share * values", "values"),
        first,
        again,
        imports + "\nHALF = 1",
        rest,
        first,
    )
    assert texts[1] == "verified\n", texts
    assert "notebook_Mine.py" in texts[3] and "rerun_stale=True" in texts[3]
    assert texts[4] == "verified\n" and sum(1 for _ in (place / "runs" / "stale").iterdir()) == 1
    assert texts[-1] == (
        "backbone: Tcn: what defines it uses nn and rr, which the cell that defines it lacks; what a definition needs "
        "is stored with the run and imported alone, so add there:\n    from torch import nn\n"
        "    import relief_ray as rr"
    )


def test_lines_that_bring_a_name_into_a_cell():
    import collections.abc

    import numpy as np
    import torch
    from torch import nn

    known = {"np": np, "torch": torch, "nn": nn, "net": nn, "Tensor": torch.Tensor, "T": torch.Tensor, "n": 3}
    assert [parts._line_for(name, value) for name, value in known.items()] == [
        "import numpy as np", "import torch", "from torch import nn", "import torch.nn as net",
        "from torch import Tensor", "from torch import Tensor as T", "n = ..  # as it is elsewhere",
    ]  # fmt: skip
    assert parts._line_for("abc", collections.abc) == "from collections import abc"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("import a, b\nx = 1\nclass N(a.B):\n    y = x\nN()", "import a, b\nx = 1\nclass N(a.B):\n    y = x\n"),
        (
            "def f():\n    return N\n\n@g\ndef N():\n    b = 1\n    return f, b\nb = run()",
            "def f():\n    return N\n\n@g\ndef N():\n    b = 1\n    return f, b\n",
        ),
        ("N = 1\nN += k\nk = 2\nM = N", "N = 1\nN += k\nk = 2\n"),
        ("N.x = 1", None),
        # What changes a value counts, a call that is only about it does not; errors name lines of the whole.
        ("import r\nN = {}\nN[1] = r\nN.update(a)\nr.run(N)\nM = 1", "import r\nN = {}\nN[1] = r\nN.update(a)\n"),
        ("M = 1\nN = 2\nif __name__ == '__main__':\n    N = 3", "\nN = 2\n"),
        ("try:\n    import a\nexcept E:\n    a = None\nN = a", "try:\n    import a\nexcept E:\n    a = None\nN = a\n"),
        ("from __future__ import annotations\nN = 1", "from __future__ import annotations\nN = 1\n"),
        ("from t import L\nclass N:\n    x: L", "from t import L\nclass N:\n    x: L\n"),
        # A comprehension's variable is its own, also where the module has one of that name.
        ("k = 1\nN = [k for k in run()]", "\nN = [k for k in run()]\n"),
        ("k = 1\n[N := k for _ in run()]", "k = 1\n[N := k for _ in run()]\n"),
        ("[k := x for x in xs()]\nclass N:\n    y = k", "[k := x for x in xs()]\nclass N:\n    y = k\n"),
        ("match a:\n    case [k, *N]:\n        pass\nk = 1", "match a:\n    case [k, *N]:\n        pass\nk = 1\n"),
        ("n = 0\ndef N():\n    global n\n    n = 1", "n = 0\ndef N():\n    global n\n    n = 1\n"),
    ],
)  # fmt: skip
def test_of_a_text_only_what_the_definition_needs_is_kept(text, kept):
    assert parts._part_of(text, "N") == kept


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        ("x = 1  # why\n\n# more\ny = '''a\n\n# b'''\n", True),
        ("x = 1\r\ny = '''a\n\n# b'''\r\n", True),
        ("x = 1\ny = '''a\n\n# b'''\nif __name__ == '__main__':\n    x = 2\n", True),
        ("x = 1\ny = '''a\n\n# b'''\nif __name__ == '__main__':\n    x = 2\nelse:\n    x = 3\n", False),
        ("x = 1\ny = '''a\n# b'''\n", False),
        ("x = 1\ny = '''a\n\n# c'''\n", False),
        # A comment that says how to read the file is none.
        ("# coding: utf-7\nx = 1\ny = '''a\n\n# b'''\n", False),
        ("x = 1 # \ry = 2\ny = '''a\n\n# b'''\n", False),
    ],
)  # fmt: skip
def test_comments_and_what_no_import_runs_do_not_count(other, is_same):
    assert (code_of(other.encode()) == code_of(b"x = 1\ny = '''a\n\n# b'''\n")) is is_same


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RELIEF_CACHE", str(tmp_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith(PARTS)]:
        del sys.modules[name]


def test_a_record_brings_its_cells_and_imports_nothing(cache, run_cache):
    text = "NUMBER = 1\n# Copied from a cell of a notebook\n"
    assert put({"notebook_N.py": text}) and "notebook_N" not in sys.modules
    assert load("notebook_N:NUMBER", "key") == 1 and parts_of(["notebook_N", "json"]) == {"notebook_N.py": text}
    before = digests(["notebook_N"])
    put({"notebook_N.py": text.replace("1", "2")})
    assert load("notebook_N:NUMBER", "key") == 1 and digests(["notebook_N"]) == before, "what runs here stays"
    put({"notebook_N.py": text.replace("1", "2")}, is_new=True)
    assert load("notebook_N:NUMBER", "key") == 2 and digests(["notebook_N"]) != before


@pytest.mark.parametrize("name", ["torch.py", "../notebook_x.py", "notebook_x/y.py", "notebook_.py"])
def test_a_record_writes_no_other_file(cache, name):
    with pytest.raises(ValueError, match=r"is no part of a notebook or script, expected notebook_NAME\.py"):
        put({name: "1 / 0"})
    assert not list(cache.rglob("*.py"))
