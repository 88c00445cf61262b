"""Test the promises about the code: syntax, private names, one module for renames and one for statuses."""

import ast
import re
from collections import Counter

import pytest

from tests.project.tree import files, name_of, sources

# Statements that ruff does not lay out: tables of data.
MAX_LAID_OUT = 30

# Names of calls that make a file or folder beside another one, or rename it.
_RENAMES = ("mkdtemp", "mkstemp", "NamedTemporaryFile", "rename", "renames")


def renames_in(tree):
    """Calls by which code would write atomically by itself: ``os.rename(..)``, ``path.replace(other)``, .."""
    for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)):
        owner, name = ast.unparse(call.func.value), call.func.attr
        # A string's `replace` has two arguments, that of a Path one.
        is_path_replace = name == "replace" and len(call.args) == 1 and not call.keywords
        if name in _RENAMES or (owner, name) == ("os", "replace") or is_path_replace:
            yield f"{owner}.{name}"


def test_one_module_makes_files_and_folders_appear():
    offenders = [
        f"{name_of(path)}: {call}"
        for path in sources("benchmarks")
        for call in renames_in(ast.parse(path.read_text(encoding="utf-8")))
        if name_of(path) != "relief_ray/support/files.py"
    ]
    # Ray's sockets lie in a folder of their own that nobody else reads.
    assert offenders == ["actors/runtime/session.py: tempfile.mkdtemp"]


STATUS_WORDS = {"planned", "created", "running", "interrupted", "failed", "done", "finished", "stale", "untested"}


@pytest.mark.ci
def test_one_module_names_the_statuses_of_runs_and_cells():
    """Another `Literal` or `Enum` of these words would be a second vocabulary, and so would a collection of any words.

    One that is annotated with `Status` is none: mypy compares its words.
    """
    offenders = [
        f"{name_of(path)}: {text}"
        for path in sources()
        for text in status_lists(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert [o.partition(":")[0] for o in offenders] == ["relief_ray/records/schema.py"] * 2, offenders


def status_lists(tree):
    """Sources of literal types, enumerations and named collections of other types that list statuses."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and any("Enum" in ast.unparse(base) for base in node.bases):
            constants = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant)}
            names = {n.id.lower() for n in ast.walk(node) if isinstance(n, ast.Name)}
            words = constants | names
        elif isinstance(node, ast.Assign) or (isinstance(node, ast.AnnAssign) and not is_of_status(node)):
            collection = isinstance(node.value, ast.Tuple | ast.List | ast.Set)
            words = {n.value for n in node.value.elts if isinstance(n, ast.Constant)} if collection else set()
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("Literal"):
            words = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant)}
        else:
            continue
        if len({w for w in words if isinstance(w, str)} & STATUS_WORDS) > 1:
            yield ast.unparse(node)


def is_of_status(assignment):
    return re.search(r"\b(Run)?Status\b", ast.unparse(assignment.annotation)) is not None


@pytest.mark.parametrize(
    "code",
    [
        "Literal['done', 'failed']",
        "typing.Literal['done', 'x', 'failed']",
        "A = ('done', 'failed')",
        "A: set[str] = {'done', 'failed'}",
        "class S(enum.Enum):\n    A = 'done'\n    B = 'failed'",
        "class S(StrEnum):\n    DONE = auto()\n    FAILED = auto()",
    ],
)
def test_a_second_list_of_statuses_is_found(code):
    assert list(status_lists(ast.parse(code)))
    assert not list(status_lists(ast.parse(code.replace("failed", "late").replace("FAILED", "LATE"))))
    assert not list(status_lists(ast.parse("A: tuple[Status, ...] = ('done', 'failed')")))


def test_the_calls_that_rename_are_found():
    code = "os.replace(a, b)\nos.rename(a, b)\na.replace(b)\na.rename(b)\ntempfile.mkdtemp()\n'a'.replace('a', 'b')"
    assert len(list(renames_in(ast.parse(code)))) == 5


@pytest.mark.ci
def test_python_3_10_can_read_every_file():
    offenders = []
    for path in sorted(files({".py"})):
        try:
            ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 10))
        except SyntaxError as error:
            offenders.append(f"{name_of(path)}:{error.lineno}: {error.msg}")
    assert not offenders, "\n".join(offenders)


def test_functions_and_constants_that_only_their_file_names_are_private():
    """A public name promises that others may use it. A method's folder is exempt: it reads like its paper."""
    texts = {p: p.read_text(encoding="utf-8") for p in files({".py", ".md", ".ipynb", ".toml", ".yaml"})}
    named_in = Counter(word for text in texts.values() for word in set(re.findall(r"\w+", text)))
    alone = []
    for path in sources():
        if "strategies" in path.parts or path.name == "__init__.py":
            continue
        alone += [f"{name_of(path)}: {n}" for n in public_names(ast.parse(texts[path])) if named_in[n] == 1]
    assert alone == [], "give it an underscore, or use it elsewhere"


def public_names(tree):
    """Top-level functions without decorator, and constants in capitals, that have no underscore."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.decorator_list:
            names = [node.name]
        elif isinstance(node, ast.Assign):
            names = [t.id for t in node.targets if isinstance(t, ast.Name) and t.id.isupper()]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id.isupper():
            names = [node.target.id]
        else:
            continue
        yield from (n for n in names if not n.startswith("_") and n != "main")


def test_few_tables_of_data_are_laid_out_by_hand():
    marks = sum(path.read_text(encoding="utf-8").count("# fmt: " + "skip") for path in sources("benchmarks"))
    assert marks <= MAX_LAID_OUT
