"""`relief-ray new` writes files that work and pass their own tests at once, as a user would run them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from actors.commands.new import names_of
from relief_ray.errors import UserError
from tests.actors.conftest import Invoke

ROOT = Path(__file__).parents[3]
KINDS = ("method", "dataset", "backbone", "grid")


@pytest.fixture(scope="module")
def written(invoke: Invoke, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one of each."""
    folder = tmp_path_factory.mktemp("user")
    for kind in KINDS:
        done = invoke("new", kind, f"my_{kind}", "--out", folder)
        assert done.exit_code == 0 and f"pytest test_my_{kind}.py" in done.stdout
    return folder


def run(folder: Path, *words: str) -> str:
    """Runs a command in that folder as a process of its own, and returns what it printed."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("RAY_AUTH")}
    env |= {"PYTHONPATH": str(ROOT), "RELIEF_DATA": str(folder / "data"), "RELIEF_CACHE": str(folder / "cache")}
    done = subprocess.run(words, cwd=folder, env=env, text=True, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_their_tests_pass_at_once(written):
    printed = run(written, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(written))
    assert "10 passed" in printed and "failed" not in printed


@pytest.mark.slow
def test_the_commands_accept_them(written):
    relief = (sys.executable, "-m", "actors.cli")
    assert "keeps" in run(written, *relief, "conformance", "my_method:MyMethod", "--no-ray")
    run(written, *relief, "data", "synth", "my_dataset:MY_DATASET", "--out", "data")
    assert "SYNTHETIC" in run(written, *relief, "data", "describe", "my_dataset:MY_DATASET")
    assert "fusion.A.acc" in run(
        written, *relief, "model", "describe", "smoke", "--set", "backbone=my_backbone:MyBackbone"
    )
    assert "8 cells (8 planned)" in run(written, *relief, "grid", "my_grid.py", "--dry-run")
    together = ("--set", "data.name=my_dataset:MY_DATASET", "--set", "backbone=my_backbone:MyBackbone")
    printed = run(written, *relief, "run", "smoke", "--strategies", "fedavg,my_method:MyMethod", *together)
    assert "my_method  " in printed and "runs/smoke" in printed


def test_nothing_is_overwritten(invoke: Invoke, written):
    before = {path: path.read_bytes() for path in written.glob("*.py")}
    done = invoke("new", "grid", "MyMethod", "--out", written)
    assert done.exit_code == 2
    assert "my_method.py: is there already and stays as it is" in " ".join(done.stderr.split())
    assert {path: path.read_bytes() for path in written.glob("*.py")} == before
    (written / "test_lone.py").write_text("# mine")
    assert invoke("new", "grid", "lone", "--out", written).exit_code == 2 and not (written / "lone.py").exists()


def test_for_a_script_it_is_json(invoke: Invoke, tmp_path):
    facts = json.loads(invoke("new", "backbone", "tiny-net", "--out", tmp_path / "deep" / "er", "--json").stdout)
    assert [Path(path).name for path in facts["files"]] == ["tiny_net.py", "test_tiny_net.py"]
    assert facts["next"][0].startswith("cd ") and "class TinyNet" in (tmp_path / "deep/er/tiny_net.py").read_text()


@pytest.mark.parametrize("name", ["FedAdam", "fed_adam", "fed-adam", "fedAdam.py"])
def test_names_are_those_of_a_module_a_class_and_a_constant(name):
    assert names_of(name) == {"name": "fed_adam", "Name": "FedAdam", "NAME": "FED_ADAM"}


@pytest.mark.parametrize("name", ["1st", "class", "a b", "lab/method", ""])
def test_what_is_no_name_is_refused(name):
    with pytest.raises(UserError, match="expected a name for a Python file"):
        names_of(name)


def test_a_name_that_an_installed_module_has_is_refused(invoke: Invoke, tmp_path):
    for name in ("torch", "json", "relief_ray"):
        done = invoke("new", "method", name, "--out", tmp_path)
        assert done.exit_code == 2 and "an installed module is called so" in " ".join(done.stderr.split())
