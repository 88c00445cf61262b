"""`relief-ray new` writes files that work and pass their own tests at once, as a user would run them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from actors.commands.config import names_of
from relief_ray.support.errors import UserError
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


def pytest_of(folder: Path, *words: str, **places: str) -> str:
    """What pytest prints of the tests in a folder, wherever they end."""
    words = ("-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--rootdir", ".", *words)
    return started(folder, sys.executable, *words, **places).stdout


def run(folder: Path, *words: str) -> str:
    """Runs a command in that folder as a process of its own, and returns what it printed."""
    done = started(folder, *words, RELIEF_DATA=str(folder / "data"))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def started(folder: Path, *words: str, **places: str) -> "subprocess.CompletedProcess[str]":
    env = {key: value for key, value in os.environ.items() if not key.startswith("RAY_AUTH")}
    env.pop("RELIEF_DATA", None)
    env |= {"PYTHONPATH": str(ROOT), "RELIEF_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"} | places
    return subprocess.run(words, cwd=folder, env=env, text=True, capture_output=True, timeout=500)


# Those that train for seconds; `test_their_tests_pass_at_once` has the others.
LONG = "rules_of_every_method or rules_of_every_backbone or search or relief_trains or falls or learns"


@pytest.mark.ci
def test_their_tests_pass_at_once(written):
    printed = pytest_of(written, "-k", f"not ({LONG})")
    assert "6 passed, 8 deselected" in printed, printed


@pytest.mark.slow
def test_their_long_tests_pass_at_once(written):
    assert "7 passed, 1 skipped, 6 deselected" in pytest_of(written, "-k", LONG)


# What a user changes first in each file, and tests that must pass afterwards, or skip for the reason that is named.
TITLE = 'title: ClassVar[str] = "'
EDITS: dict[str, tuple[tuple[tuple[str, str], ...], str]] = {
    "dataset": (
        (
            ('(("acc", 3), ("gyro", 3))', '(("wrist", 3), ("hip", 2))'),
            ("labels=(1, 2, 3)", "labels=(0, 1, 2)"),
            ("null_labels=(0,)", "null_labels=()"),
            ("(1, 2, 3, 4)", "(1, 2, 3, 4, 5, 6)"),
            ('name="my_dataset"', 'name="lab"'),
        ),
        "2 passed",
    ),
    "method": (
        (("alpha", "beta"), ("default=0.5", "default=0.7"), (f"{TITLE}my_method", f"{TITLE}Mine")),
        "MyMethod has no field ['alpha']",
    ),
    "backbone": ((("width", "hidden"), ("default=8", "default=6"), ("kernel_size=5", "kernel_size=3")), "3 passed"),
    "grid": (
        (
            ('name="rates"', 'name="steps"'),
            ("folds=(0, 1)", "folds=()"),
            ('("fedavg", "relief")', '("fedavg", "my_method:MyMethod")'),
            ('("dsa_mini_held_out",)', '("my_dataset:MY_DATASET",)'),
            ("seeds=(0,)", "replicates=(0, 1)"),
        ),
        "3 passed",
    ),
}

# A fault in each file, and what the failing test says.
FAULTS = {
    "dataset": (
        ("Recording(subject=subject", "Recording(subject=1"),
        "subject 2: parse() returned subject 1, expected 2",
    ),
    "method": (("self.alpha * values", "-self.alpha * values"), "the training loss does not fall"),
    "backbone": (("nn.Linear(32, num_classes)", "nn.Linear(32, 2)"), "expected (B, 8), one logit a class"),
    "grid": (('"fedavg", "relief"', '"fedavg", "my_method.MyMethod"'), "type my_method:MyMethod"),
}


def changed(written: Path, place: Path, kind: str, *pairs: tuple[str, str]) -> Path:
    """A copy of the folder in which one file is changed."""
    shutil.copytree(written, place, ignore=shutil.ignore_patterns("cache", "__pycache__"))
    file = place / f"my_{kind}.py"
    text = file.read_text()
    for old, new in pairs:
        assert old in text, (file, old)
        text = text.replace(old, new)
    file.write_text(text)
    return place


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_their_tests_pass_after_the_first_edits(kind, written, tmp_path):
    edits, expected = EDITS[kind]
    printed = pytest_of(changed(written, tmp_path / "edited", kind, *edits), f"test_my_{kind}.py")
    assert expected in printed and "failed" not in printed and "error" not in printed, printed


@pytest.mark.slow
def test_a_datasets_tests_read_the_users_own_files(written, tmp_path):
    """Files that carry no mark of synthetic ones, of people who do not all do everything; no synthesise()."""
    run(
        written,
        sys.executable,
        "-m",
        "actors.cli.main",
        "data",
        "synth",
        "my_dataset:MY_DATASET",
        "--out",
        str(tmp_path),
    )
    (source,) = tmp_path.glob("*_SYNTHETIC")
    (source / "SYNTHETIC.json").unlink()
    mine = source.rename(tmp_path / "mine")
    (mine / "my_dataset_4.csv").write_text(
        "\n".join(line for line in (mine / "my_dataset_4.csv").read_text().split("\n") if not line.endswith(",3.0000"))
    )
    place = changed(written, tmp_path / "edited", "dataset", (", synthesise=synthesise", ""))
    assert "2 passed" in (said := pytest_of(place, "test_my_dataset.py", RELIEF_DATA=str(mine))), said
    assert "no files: set RELIEF_DATA to the folder that holds them" in pytest_of(place, "test_my_dataset.py")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_is_found_and_named(kind, written, tmp_path):
    fault, expected = FAULTS[kind]
    printed = pytest_of(changed(written, tmp_path / "faulty", kind, fault), f"test_my_{kind}.py")
    assert "failed" in printed and expected in " ".join(printed.split()), printed


@pytest.mark.slow
def test_the_commands_accept_them(written):
    relief = (sys.executable, "-m", "actors.cli.main")
    assert "keeps" in run(written, *relief, "conformance", "my_method:MyMethod", "--no-ray")
    run(written, *relief, "data", "synth", "my_dataset:MY_DATASET", "--out", "data")
    assert "SYNTHETIC" in run(written, *relief, "data", "describe", "my_dataset:MY_DATASET")
    assert "fusion.A.acc" in run(
        written, *relief, "model", "describe", "quick", "--set", "backbone=my_backbone:MyBackbone"
    )
    assert "8 cells (8 planned)" in run(written, *relief, "grid", "my_grid.py", "--dry-run")
    together = ("--set", "data.name=my_dataset:MY_DATASET", "--set", "backbone=my_backbone:MyBackbone")
    printed = run(written, *relief, "run", "quick", "--strategies", "fedavg,my_method:MyMethod", *together)
    assert "my_method  " in printed and "runs/quick" in printed


def test_nothing_is_overwritten(invoke: Invoke, written):
    before = {path: path.read_bytes() for path in written.glob("*.py")}
    done = invoke("new", "grid", "MyMethod", "--out", written)
    assert done.exit_code == 2
    assert "my_method.py: is there already and stays as it is" in " ".join(done.stderr.split())
    assert {path: path.read_bytes() for path in written.glob("*.py")} == before
    (written / "test_lone.py").write_text("# mine")
    assert invoke("new", "grid", "lone", "--out", written).exit_code == 2 and not (written / "lone.py").exists()


def test_what_to_type_after_a_dataset_reads_the_files_that_were_made_and_says_who_has_which_sensor(
    invoke: Invoke, tmp_path
):
    facts = json.loads(invoke("new", "dataset", "walks", "--out", tmp_path, "--json").stdout)
    make, where, *others = facts["next"][-4:]
    assert make.endswith("--out walks-data") and where == "export RELIEF_DATA=$PWD/walks-data"
    assert others[-1].endswith(
        "--set data.name=walks:WALKS --set 'fleet.types={B: {sensors: [acc, gyro]}, C: {sensors: [acc]}}'"
    )
    assert "fleet.types" in (tmp_path / "walks.py").read_text()


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


def test_a_name_that_a_library_looks_for_is_refused(invoke: Invoke, tmp_path):
    """``cuda.bindings`` is optional for torch, which would import the user's file in the midst of its own import."""
    done = invoke("new", "method", "cuda", "--out", tmp_path)
    assert done.exit_code == 2 and "torch would import that file" in " ".join(done.stderr.split())
    assert not list(tmp_path.iterdir())
