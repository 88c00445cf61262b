"""Test the package's public names: lazy, typed, complete, and enough for what is one's own."""

import ast
import importlib
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


class Mine(rr.StrategyConfig):
    share: float = 0.5

    def build(self) -> rr.Strategy:
        reduction = self.reduction()
        go = partial(step, self.share, reduction)
        return rr.Strategy(name="mine", allocate=rr.allocate_everything, reduction=reduction, aggregate=go)


def step(share, reduction, state, reduced, tools):
    mean = rr.mean_step(reduced.sums["global"], rr.over_participants(reduction, reduced, tools.fleet), tools.layout)
    return rr.ServerState(models={"global": rr.apply_step(state.models["global"], {j: share * mean[j] for j in mean})})


{guard}
    small = {"conv1": 2, "conv2": 2, "steps": 2, "fusion": 2}
    study = rr.run("quick", strategies=[Mine(share=0.25)], rounds=1, backbone=small, out="study", quiet=True)
    print(study.runs[0].record.strategy, sorted(study.runs[0].record.own_sources))
"""


def script(folder, guard, code=0):
    (folder / "my_script.py").write_text(SCRIPT.replace("{guard}", guard))
    places = {"PYTHONPATH": str(ROOT), "RELIEF_CACHE": str(folder / "cache"), "HOME": str(folder)}
    command = [sys.executable, "my_script.py"]
    env = {**places, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


@pytest.mark.ci
def test_a_method_of_the_script_that_runs_is_found_again(tmp_path, monkeypatch):
    assert "my_script:Mine ['my_script.py']" in script(tmp_path, 'if __name__ == "__main__":')
    monkeypatch.syspath_prepend(str(tmp_path))
    run = rr.load(tmp_path / "study").runs[0]
    with pytest.raises(UserError, match=r"only a record names this code.*import it first"):
        print(run.config)
    importlib.import_module("my_script")
    assert run.config.strategy.share == 0.25 and type(run.config.strategy).__module__ == "my_script"


@pytest.mark.slow
def test_a_script_without_its_guard_is_told_to_have_one(tmp_path):
    printed = " ".join(script(tmp_path, "if True:", code=1).split())
    assert "put the call of run() below `if __name__ == '__main__':`" in printed
