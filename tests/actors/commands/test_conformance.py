"""Test which targets the command `conformance` takes, and what it answers to others."""

from relief_ray.config.experiment import parse
from relief_ray.conformance.runner import PROBLEM
from tests.plans import override


def test_a_file_without_the_name_in_it_is_answered_with_its_names(invoke, write):
    name = write("from relief_ray.strategies.fedavg import FedAvg\n\nclass Mine(FedAvg):\n    pass\n\nBIG = Mine()\n")
    for target in (name, f"{name}.py"):
        done = invoke("conformance", target, "--no-ray")
        said = " ".join(done.stderr.split())
        assert done.exit_code == 2
        assert f"{name}.py is a file here; type {name}:Mine or {name}:BIG" in said


def test_a_path_that_is_absolute_works_here_and_says_elsewhere_what_to_type(invoke, write, tmp_path):
    name = write("from relief_ray.strategies.fedavg import FedAvg\n\nclass Mine(FedAvg):\n    pass\n")
    file = tmp_path / "user" / f"{name}.py"
    assert parse(override(PROBLEM, [f"strategy={file}:Mine"])).label() == f"{name}:Mine"
    other = file.rename(tmp_path / f"{name}_moved.py")
    said = " ".join(invoke("conformance", f"{other}:Mine", "--no-ray").stderr.split())
    assert f"{other} is not in the current folder, and records name code by its import path" in said
    assert f"type {name}_moved:Mine after `cd {tmp_path}`, or after `export PYTHONPATH={tmp_path}`" in said
    assert "there is no file /no/such.py" in " ".join(invoke("conformance", "/no/such.py:X", "--no-ray").stderr.split())
