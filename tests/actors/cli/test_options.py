"""Commands and the functions that carry them out."""

import ast
import inspect
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
