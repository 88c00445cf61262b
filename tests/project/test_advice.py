"""Test the commands that the program's own texts name: each is one that the command line takes as it stands."""

import ast
import re
import shlex

import click
import pytest
import typer

from actors.cli.main import app
from relief_ray.support.errors import UserError
from tests.project.tree import name_of, sources

# What is filled in when a text is shown, where a number or a path would be none that an option takes.
FILLED = {
    "typed(path)": "PLACE",
    "name.removeprefix('type_')": "c",
    "settings": " --set data.fold=1",
    "command": "report",
    "_options(plain)": " --num-cpus 2",
    "count": " --count 2",
    "head": " --address 1.2.3.4:8265",
}
# A command ends at a backtick, a comma, a closing bracket, the end of a line or of the text, and where prose goes on.
COMMAND = re.compile(r"(?<![\w./-])(?<!same )(?<!install )relief-ray ((?:[a-z][a-z-]*)(?:[^`;,()\n]|\([^)]*\))*)")
PROSE = re.compile(r"(?:\. |: | or | and | lists | completes | sends | shows | is | when ).*", flags=re.S)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
CLI = typer.main.get_command(app)


def texts():
    """Every text of the program but docstrings: (file, line, text), with something typical for what is filled in."""
    for path in sources():
        source = path.read_text(encoding="utf-8")
        if "relief-ray " in source:
            nodes = list(ast.walk(ast.parse(source)))
            first = (node.body[0] for node in nodes if isinstance(node, DOCUMENTED) and node.body)
            skipped = {id(line.value) for line in first if isinstance(line, ast.Expr)}
            # A string without values would be seen twice: as part of its f-string too.
            skipped |= {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
            for node in nodes:
                if id(node) not in skipped and isinstance(node, ast.JoinedStr | ast.Constant):
                    text = filled(node)
                    if "relief-ray " in text:
                        yield name_of(path), node.lineno, text


def filled(node):
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    return "".join(
        p.value if isinstance(p, ast.Constant) else FILLED.get(ast.unparse(p.value), "1") for p in node.values
    )


def commands():
    for file, line, text in texts():
        for found in COMMAND.finditer(text):
            # `--help` ends a command before its words are read.
            command = re.sub(r"\[--from FILE.DIR\]| --help", "", PROSE.sub("", found[1])).rstrip(". ")
            if not text[found.end() :].startswith(("` made", "` wrote")) and not is_name(command.split()):
                yield pytest.param(command, id=f"{file}:{line}: {command}")


def is_name(words):
    """Whether the words only name a command: ``grid freeze``."""
    command = CLI
    for word in words:
        command = getattr(command, "commands", {}).get(word)
        if command is None:
            return False
    return True


def parse(words):
    """Have the real command line read the words, down to the last command; nothing is carried out."""
    context = CLI.make_context("relief-ray", list(words))
    command = CLI
    while isinstance(command, click.Group) or hasattr(command, "resolve_command"):
        rest = [*getattr(context, "_protected_args", ()), *context.args]
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)
    return context


COMMANDS = list(commands())


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_in_a_text_can_be_typed(command):
    try:
        parse(shlex.split(command))
    except UserError as error:
        # A device profile is read at once, and here is none.
        assert "costs.profile = PLACE: cannot be read (No such file" in str(error)


def test_the_parser_of_this_test_notices_what_is_wrong():
    assert len(COMMANDS) > 30, "the texts were read"
    for wrong in ("resume X --rerun", "resum X", "grid resume", "grid thaw X --out Y --no", "run demo --wide", "sync"):
        with pytest.raises(Exception, match=r"No such (option|command)|Missing parameter"):
            parse(shlex.split(wrong))


@pytest.mark.ci
def test_an_option_that_a_text_names_is_one_of_some_command():
    theirs = {"--block", "--head", "--help", "--port", "--backend-store-uri", "--depth", "--version"}
    known = set(options(CLI)) | theirs
    wrong = [
        f"{file}:{line}: {option}"
        for file, line, text in texts()
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+\b", text)
        if option not in known
    ]
    assert not wrong, "\n".join(wrong)


def test_run_and_grid_have_their_common_options_in_the_same_words():
    run, grid = (
        {p.opts[-1]: (p.help, p.metavar) for p in command.params if p.opts[-1].startswith("--")}
        for command in (CLI.commands["run"], CLI.commands["grid"].commands["start"])
    )
    common = {"--set", "--strategies", "--seeds", "--folds", "--rounds", "--dry-run", "--address", "--dashboard"}
    assert common <= run.keys() & grid.keys()
    differ = {name for name in run.keys() & grid.keys() if run[name] != grid[name]}
    assert differ == {"--out", "--jobs"}, "their defaults differ"


def options(command):
    for parameter in command.params:
        yield from (*parameter.opts, *parameter.secondary_opts)
    for sub in getattr(command, "commands", {}).values():
        yield from options(sub)
