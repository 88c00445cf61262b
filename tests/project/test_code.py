"""Test the promises about the code: sizes, syntax, documented names, one module for renames and one for statuses."""

import ast
import re
import statistics
import warnings
from collections import Counter

import pytest

from tests.project.tree import files, functions, lines_of, name_of, sources

MAX_FILE_LINES = 400
# Tests of one subject stay together a little longer.
MAX_TEST_LINES = 500
WARN_FILE_LINES = 300
SMALL_FILE_LINES = 60
MAX_FUNCTION_LINES = 40
P90_FUNCTION_LINES = 30
MEDIAN_FUNCTION_LINES = 10


@pytest.mark.ci
def test_source_keeps_to_the_style_guide():
    offenders = [f"{name_of(path)}: {fault}" for path in sources("benchmarks", "cluster") for fault in faults_of(path)]
    assert not offenders, "\n".join(offenders)


def test_files_of_tests_keep_to_the_limit_too():
    """A test file as long as the limit tests more than one thing."""
    lengths = {name_of(p): num_lines_of(p) for p in sources("tests") if has_limit(p)}
    assert not {name: num for name, num in lengths.items() if name.startswith("tests/") and num > MAX_TEST_LINES}


def num_lines_of(path):
    return len(path.read_text(encoding="utf-8").splitlines())


def faults_of(path):
    """Lists, in words, where a file breaks the style guide."""
    text = path.read_text(encoding="utf-8")
    tree, num_lines = ast.parse(text, feature_version=(3, 10)), len(text.splitlines())
    return [
        *([f"{num_lines} lines"] if num_lines > MAX_FILE_LINES and has_limit(path) else []),
        *(f"{f.name}: {lines_of(f)} lines" for f in functions(tree) if lines_of(f) > MAX_FUNCTION_LINES),
        *(f"{name}: no docstring" for name in undocumented(tree)),
    ]


def has_limit(path):
    """Whether the general limit holds; a method's own folder is as long as its paper needs."""
    return path.parent.parent.name != "strategies"


def test_files_near_the_limit_are_warned_of():
    lengths = {name_of(p): num_lines_of(p) for p in sources("benchmarks", "cluster") if has_limit(p)}
    near = [f"{name}: {num}" for name, num in lengths.items() if WARN_FILE_LINES < num <= MAX_FILE_LINES]
    if near:
        warnings.warn(
            f"{len(near)} files of {WARN_FILE_LINES} to {MAX_FILE_LINES} lines: {', '.join(near)}", stacklevel=1
        )


def undocumented(tree):
    """Public module, classes, functions and methods that have no docstring."""
    missing = [] if ast.get_docstring(tree) else ["module"]
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    for owner in [tree, *(n for n in tree.body if isinstance(n, ast.ClassDef) and not n.name.startswith("_"))]:
        public = [n for n in owner.body if isinstance(n, kinds) and not n.name.startswith("_")]
        missing += [n.name for n in public if not ast.get_docstring(n) and not is_overload(n)]
    return missing


def is_overload(node):
    return any(isinstance(d, ast.Name) and d.id == "overload" for d in node.decorator_list)


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
        for path in sources("benchmarks", "cluster")
        for call in renames_in(ast.parse(path.read_text(encoding="utf-8")))
        if name_of(path) != "relief_ray/support/files.py"
    ]
    # Ray's sockets lie in a folder of their own that nobody else reads.
    assert offenders == ["actors/runtime/session.py: tempfile.mkdtemp"]


STATUS_WORDS = {"planned", "created", "running", "interrupted", "failed", "done", "finished", "stale", "untested"}


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


def test_functions_are_short():
    lengths = sorted(lines_of(f) for path in sources() for f in functions(ast.parse(path.read_text(encoding="utf-8"))))
    assert statistics.median(lengths) <= MEDIAN_FUNCTION_LINES
    assert lengths[len(lengths) * 9 // 10] <= P90_FUNCTION_LINES


@pytest.mark.ci
def test_python_3_10_can_read_every_file():
    offenders = []
    for path in sorted(files({".py"})):
        try:
            ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 10))
        except SyntaxError as error:
            offenders.append(f"{name_of(path)}:{error.lineno}: {error.msg}")
    assert not offenders, "\n".join(offenders)


# A small file costs its reader a jump: each names what would be worse with its content elsewhere.
METHOD = "a method, or a part of its paper, is found by its file name"
LEAF = "imported everywhere, imports nothing of ours"
FILES_UNDER_60 = {
    "actors/__init__.py": "loads `actors.run` when it is first used: importing the command line needs no Ray",
    "actors/cluster/limits.py": "what a node offers, apart from what runs use of a machine (relief_ray/support/process.py)",
    "actors/commands/fetching.py": "of both `resume` commands, neither of which imports the other",
    "actors/commands/explain.py": "a command is a file: the library words the reasons, for notebooks too",
    "actors/commands/model.py": "a command is a file: the library describes and exports models, for notebooks too",
    "actors/commands/run_mode.py": "which mode follows from settings: rules, apart from what carries runs out",
    "actors/terminal/streams.py": "makes streams safe before anything is printed: to be checked by itself",
    "relief_ray/core/messages.py": "what devices tell: the messages of a round hold it, and records and devices make it",
    "relief_ray/strategies/citations.py": "reads citations.bib, which methods and data sets name",
    "relief_ray/data/formats/partial.py": "a data set is a file",
    "relief_ray/experiment/untrained.py": "counts one thing over rounds, for the loop that has no room for it",
    "relief_ray/support/frozen.py": LEAF,
    "relief_ray/models/extra.py": "changes any backbone's graph, apart from what each method puts in",
    "relief_ray/records/exported.py": "what a store is told of a run, apart from how MLflow takes it",
    "relief_ray/records/selection_text.py": "a format that records and terminal share, imports no other record",
    "relief_ray/records/tensor_file.py": "writes a format of others, apart from what a checkpoint puts in",
    "relief_ray/server/outliers.py": "a rule about clients that are broken: to be checked by itself",
    "relief_ray/strategies/fedavg.py": METHOD,
    "relief_ray/core/streams.py": LEAF,
    "relief_ray/training/serial_executor.py": "an executor is a file: those on Ray are in another package",
    "relief_ray/studies/verdicts.py": "judges a study, apart from study.py, which reads and shows one",
    "relief_ray/support/version.py": LEAF,
    "actors/grids/low_memory.py": "replaces a part of Tune that has no setting: it goes once Tune has one",
}


def is_bare_init(path):
    """Whether it is a package file with a docstring, imports and names alone."""
    plain = ast.Expr | ast.Import | ast.ImportFrom | ast.Assign
    return path.name == "__init__.py" and all(isinstance(n, plain) for n in ast.parse(path.read_text()).body)


def test_every_small_file_has_a_reason():
    small = {
        name_of(p) for p in sources() if len(p.read_text().splitlines()) < SMALL_FILE_LINES and not is_bare_init(p)
    }
    assert sorted(small - set(FILES_UNDER_60)) == [], "merge it with a neighbour, or give FILES_UNDER_60 a reason"
    assert sorted(set(FILES_UNDER_60) - small) == [], "no small file any more: its reason goes"


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
