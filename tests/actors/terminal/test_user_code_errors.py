"""An error in a user's own file is the user's: file, line, function and what was raised; never an internal error."""

import re

import numpy
import pytest

from relief_ray.plugins.blame import blamed
from relief_ray.records.cells import read_error
from relief_ray.records.run_folder import read_rounds, read_run
from tests.actors.conftest import SMALL, Invoke
from tests.own import METHOD
from tests.plans import override

BROKEN = {
    "divides": ("return 1 / 0", "ZeroDivisionError: division by zero"),
    "a missing key": ("return reduced.sums['nowhere']", "KeyError: 'nowhere'"),
    "a dict": ("return {'global': {}}", "aggregate returned a dict, expected a relief_ray.core.messages.ServerState"),
    "through ours": ("return average(reduction, None, reduced, tools)", "AttributeError: 'NoneType' object has no"),
}


def aggregating(line: str) -> str:
    """The method of ``tests.own`` with this line in the place of its aggregation."""
    head = "def damped(alpha, reduction, state, reduced, tools):\n"
    return METHOD.replace(head, f"{head}    {line}\n")


@pytest.mark.ci
@pytest.mark.parametrize(("line", "said"), BROKEN.values(), ids=BROKEN)
def test_a_method_that_raises_is_named_with_file_line_and_function(invoke: Invoke, write, tmp_path, line, said):
    name = write(aggregating(line))
    done = invoke("run", "quick", "--strategies", f"{name}:Mine", *SMALL, "--out", tmp_path / "runs")
    shown = " ".join(done.stderr.split())
    assert done.exit_code == 7 and shown.startswith("error: ") and said in shown
    assert re.search(rf"{name}\.py, line \d+, in damped", shown) and "mend it there" in shown
    assert "internal error" not in shown and "Traceback" not in shown
    assert not read_rounds(tmp_path / "runs" / f"{name}.Mine-s0")


@pytest.mark.slow
@pytest.mark.ray
def test_so_it_is_on_ray_and_in_a_trial(invoke: Invoke, cluster, write, tmp_path):
    name = write(aggregating("return 1 / 0"))
    words = ("run", "quick", "--strategies", f"{name}:Mine,fedavg", *SMALL)
    done = invoke(*words, "--set=runtime.mode=packed", "--set=runtime.num_hosts=1", "--out", tmp_path / "packed")
    shown = " ".join(done.stderr.split())
    assert done.exit_code == 7 and "ZeroDivisionError: division by zero" in shown and "in damped" in shown
    done = invoke(*words, "--jobs", 2, "--out", tmp_path / "jobs")
    assert done.exit_code == 5 and read_run(tmp_path / "jobs" / "fedavg-s0").status == "done"
    kept = read_error(tmp_path / "jobs" / f"{name}.Mine-s0").splitlines()[0]
    assert kept.startswith("ZeroDivisionError: division by zero (") and f"{name}.py, line" in kept


def test_a_loader_with_a_wrong_key_is_the_users(invoke: Invoke, write, tmp_path, monkeypatch):
    monkeypatch.setenv("RELIEF_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "user"
    assert invoke("new", "dataset", "my_set", "--out", folder).exit_code == 0
    path = folder / "my_set.py"
    path.write_text(path.read_text().replace("    labels = table[:, -1]", '    {}["sgnal"]\n    labels = table[:, -1]'))
    assert invoke("data", "synth", "my_set:MY_SET", "--out", tmp_path / "data").exit_code == 0
    monkeypatch.setenv("RELIEF_DATA", str(tmp_path / "data"))
    done = invoke("data", "describe", "my_set:MY_SET")
    shown = " ".join(done.stderr.split())
    assert done.exit_code == 7 and "KeyError: 'sgnal'" in shown and "my_set.py, line" in shown
    assert "internal error" not in shown and "mend that file or the loader" in shown


def test_what_only_we_raise_is_not_the_users():
    with pytest.raises(AttributeError) as caught:
        override({}, [3])
    assert blamed(caught.value) is None, "the test that called us is no file of the user's that we called"


@pytest.mark.parametrize(
    "line", ["numpy.random.default_rng(-1)", "numpy.random.default_rng(0).choice(3, 9, replace=False)"]
)
def test_a_library_that_was_compiled_is_not_the_users(line):
    """Its frames name sources that are on no disk here, ``numpy/random/_generator.pyx``."""
    ours = {"__name__": "relief_ray.made_up", "numpy": numpy}
    exec(compile(f"def ask():\n    {line}", "made_up.py", "exec"), ours)
    with pytest.raises(ValueError) as caught:
        ours["ask"]()
    assert blamed(caught.value) is None
    theirs = {"__name__": "made_by_a_user", "ask": ours["ask"], "numpy": numpy}
    exec(compile(f"def mine():\n    {line}", "/home/user/made_by_a_user.py", "exec"), theirs)
    exec(compile("def call(one):\n    one()", "made_up.py", "exec"), ours)
    with pytest.raises(ValueError) as caught:
        ours["call"](theirs["mine"])
    assert "made_by_a_user.py, line 2, in mine" in str(blamed(caught.value))
