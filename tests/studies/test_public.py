"""Test the package's public names: lazy, typed, complete, and enough for what is one's own."""

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

import relief_ray as rr
from relief_ray.core.extra_modules import ExtraModule
from relief_ray.support.errors import UserError

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "ray", "pandas", "numpy", "pydantic", "rich")


def test_the_import_loads_nothing_heavy():
    code = f"import relief_ray as rr, actors, sys; dir(rr); print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_the_one_list_of_names_exports_each_to_type_checkers():
    tree = ast.parse((ROOT / "relief_ray" / "__init__.pyi").read_text(encoding="utf-8"))
    names = [each for node in tree.body if isinstance(node, ast.ImportFrom) for each in node.names]
    assert [each.asname for each in names] == [each.name for each in names] == rr.__all__ and len(names) > 80


@pytest.mark.parametrize("name", rr.__all__)
def test_every_name_is_there_and_documented(name):
    value = getattr(rr, name)
    assert name in ("RAW", "__version__") or (value.__doc__ and getattr(rr, name) is value)


def test_no_name_is_that_of_a_module():
    """A submodule's import would take the name's place."""
    assert not [
        name
        for name in rr.__all__
        if (ROOT / "relief_ray" / f"{name}.py").exists() or (ROOT / "relief_ray" / name).exists()
    ]


def test_a_wrong_name_suggests_the_nearest():
    with pytest.raises(AttributeError, match=r"no attribute 'Stratgy' \(did you mean 'Strategy'\?\)"):
        _ = rr.Stratgy
    import actors

    with pytest.raises(AttributeError, match="no attribute 'walk'"):
        _ = actors.walk


FILES_OF_ONES_OWN = [
    *(ROOT / "docs" / name for name in ("extending.md", "data.md", "api.md")),
    *(ROOT / "actors" / "templates" / f"{kind}.py.txt" for kind in ("method", "dataset", "backbone")),
]


@pytest.mark.parametrize("path", FILES_OF_ONES_OWN, ids=lambda path: path.name)
def test_one_import_is_enough_for_files_of_ones_own(path):
    """What the documentation and `relief-ray new` write imports nothing from below the package, and finds its names."""
    code = path.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", code, re.DOTALL) if path.suffix == ".md" else [code]
    assert re.findall(r"^\s*from relief_ray\b.*", "\n".join(blocks), re.M) == []
    names = {name for block in blocks for name in re.findall(r"\brr\.(\w+)", block)}
    assert names and names <= set(rr.__all__)


def test_what_a_method_may_add_to_a_backbone_is_public():
    assert (
        {kind.__name__ for kind in get_args(ExtraModule)} == {"Classifier", "Connector", "Experts"} <= set(rr.__all__)
    )


SCRIPT = """
from functools import partial
import sys

import relief_ray as rr
from my_helper import SHARE

SEEDS = [0]


class Mine(rr.StrategyConfig):
    share: float = SHARE

    def build(self) -> rr.Strategy:
        reduction = self.reduction()
        go = partial(step, self.share, reduction)
        return rr.Strategy(name="mine", allocate=rr.allocate_everything, reduction=reduction, aggregate=go)


def step(share, reduction, state, reduced, tools):
    mean = rr.mean_step(reduced.sums["global"], rr.over_participants(reduction, reduced, tools.fleet), tools.layout)
    return rr.ServerState(models={"global": rr.apply_step(state.models["global"], {j: share * mean[j] for j in mean})})


small = {"conv1": 2, "conv2": 2, "steps": 2, "fusion": 2}
study = rr.run("quick", strategies=[Mine(share=0.25)], seeds=SEEDS, rounds=1, backbone=small, out="study", quiet=True)
print(study.runs[0].record.strategy, sorted(study.runs[0].record.own_sources), len(study.runs))
"""


def script(folder, text, code=0):
    (folder / "my_script.py").write_text(text)
    done = python(folder, "my_script.py")
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def python(folder, *words, cwd=None):
    places = {"PYTHONPATH": str(ROOT), "RELIEF_CACHE": str(folder / "cache"), "HOME": str(folder)}
    env = {**places, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, cwd=cwd or folder, capture_output=True, text=True, timeout=120, env=env)


@pytest.mark.ci
def test_of_a_script_counts_what_its_method_needs(tmp_path, monkeypatch):
    (tmp_path / "my_helper.py").write_text("SHARE = 0.5\n")
    first = "script_Mine:Mine ['my_helper.py', 'script_Mine.py'] "
    assert first + "1" in script(tmp_path, SCRIPT)
    (ledger,) = tmp_path.glob("study/*/rounds.jsonl")
    before = ledger.stat().st_mtime_ns
    edited = SCRIPT.replace("SEEDS = [0]", "# Two are more.\nSEEDS = [0, 1]").replace(
        "    share:", "    # why\n    share:"
    )
    assert first + "2" in script(tmp_path, edited)
    assert ledger.stat().st_mtime_ns == before, "a new seed and a comment leave the finished run as it was"

    # It was begun here: no question, wherever the script is by then. Elsewhere there is one.
    (tmp_path / "my_script.py").unlink()
    done = python(tmp_path, "-m", "actors.cli.main", "model", "describe", ledger.parent)
    assert done.returncode == 0, done.stderr
    with pytest.raises(UserError, match=r"my_helper|only a record names this code.*import it first"):
        print(rr.load(tmp_path / "study").runs[0].config)

    # The method, or a helper of it, is other code.
    for file, text in (
        ("my_script.py", edited.replace("share * mean", "0.5 * share * mean")),
        ("my_helper.py", "SHARE = 0.5\nMORE = 1\n"),
    ):
        (tmp_path / "my_script.py").write_text(edited)
        (tmp_path / file).write_text(text)
        said = " ".join(python(tmp_path, "my_script.py").stderr.split())
        assert "holds a run of other code" in said and file.replace("my_script", "script_Mine") in said, said


@pytest.mark.ci
def test_an_error_in_a_script_names_its_own_line(tmp_path):
    (tmp_path / "my_helper.py").write_text("SHARE = 0.5\n")
    text = SCRIPT.replace("    mean = rr", "    1 / 0\n    mean = rr")
    line = text.splitlines().index("    1 / 0") + 1
    said = " ".join(script(tmp_path, text, code=1).split())
    assert f"{tmp_path / 'my_script.py'}, line {line}, in step: 1 / 0" in said, said
