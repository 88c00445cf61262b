"""Commands and the functions that carry them out."""

import ast
import inspect
import os
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def declared() -> dict[str, set[str]]:
    """By ``module:function``, the parameters of the command that it carries out."""
    found = {}
    for path in (ROOT / "actors/cli").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            for decorator in getattr(node, "decorator_list", ()):
                if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") == "runs":
                    names = {argument.arg for argument in node.args.args + node.args.kwonlyargs}
                    found[ast.literal_eval(decorator.args[2])] = names - {"as_json", "own_code"}
    return found


def test_commands_are_found():
    assert len(declared()) > 30


@pytest.mark.parametrize(("target", "names"), declared().items(), ids=declared())
def test_a_command_has_the_parameters_of_what_carries_it_out(target, names):
    module, _, function = target.partition(":")
    assert set(inspect.signature(getattr(import_module(f"actors.commands.{module}"), function)).parameters) == names


def test_a_command_says_what_it_read(invoke):
    done = invoke("model", "describe", "quick", "--set", "seed=010", "--set", "rounds=2")
    assert done.exit_code == 0 and done.stderr == "NOTE: read as seed=10\n"


METHOD = """
import os
import sys

from relief_ray.strategies.fedavg import FedAvg


class Mine(FedAvg):
    def FUNCTION(self, *given):
        LINE
"""


@pytest.mark.parametrize(
    "words",
    [
        ("fleet", "show", "quick", "--set", "strategy="),
        ("run", "quick", "--dry-run", "--strategies", ""),
        ("conformance", ""),
    ],
)
@pytest.mark.parametrize(
    ("function", "line"),
    [
        ("build", "os._exit(0)"),
        ("build", "sys.exit(0)"),
        ("model_post_init", "os._exit(0)"),
        ("model_post_init", "exit()"),
    ],
)
def test_own_code_that_ends_the_process_never_reads_as_success(invoke, write, monkeypatch, words, function, line):
    monkeypatch.setattr(os, "_exit", sys.exit)  # so that it never ends the tests
    name = write(METHOD.replace("FUNCTION", function).replace("LINE", line))
    done = invoke(*words[:-1], f"{words[-1]}{name}:Mine", *(["--no-ray"] if words[0] == "conformance" else []))
    assert done.exit_code == 7, done.output
    said = " ".join(done.output.split())
    assert f"SystemExit: {line if line.startswith('os') else 'None' if line == 'exit()' else 0} (" in said
    assert f"{name}.py, line 10, in {function}: {line}" in said
