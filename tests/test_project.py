"""Tests the repository's promises about itself: sizes, syntax, documentation, links, packaging."""

import ast
import importlib.metadata
import os
import re
import statistics
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import pytest

import relief_ray

ROOT = Path(__file__).parent.parent
PACKAGES = ("relief_ray", "actors", "tune_configs")
NOT_OURS = {"venv", "runs", "mlruns", "mlartifacts", "datasets", "build", "dist"}
TEXT = {".py", ".md", ".toml", ".txt", ".sh", ".yaml", ".yml", ".cff", ".ipynb", ".json", ".cfg", ".sha256", ""}

MAX_FILE_LINES = 400
WARN_FILE_LINES = 300
SMALL_FILE_LINES = 60
MAX_FUNCTION_LINES = 40
P90_FUNCTION_LINES = 30
MEDIAN_FUNCTION_LINES = 10


def files(suffixes):
    """Every file of the project with one of the suffixes; caches and environments are left out."""
    for folder, names, leaves in os.walk(ROOT):
        names[:] = [n for n in names if n == ".ci" or not (n in NOT_OURS or n.startswith((".", "__pycache__")))]
        # In a further work tree of git, `.git` is a file, with a path of its machine.
        yield from (Path(folder, leaf) for leaf in leaves if Path(leaf).suffix in suffixes and leaf != ".git")


def sources(*more):
    return [path for package in (*PACKAGES, *more) for path in sorted((ROOT / package).rglob("*.py"))]


def name_of(path):
    return str(path.relative_to(ROOT))


def functions(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def lines_of(node):
    return node.end_lineno - node.lineno + 1


# Code ------------------------------------------------------------------------------------------------------------


def test_source_keeps_to_the_style_guide():
    offenders = [f"{name_of(path)}: {fault}" for path in sources("benchmarks") for fault in faults_of(path)]
    assert not offenders, "\n".join(offenders)


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
    lengths = {
        name_of(p): len(p.read_text(encoding="utf-8").splitlines()) for p in sources("benchmarks") if has_limit(p)
    }
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


# A docstring begins with a verb or the thing that is returned; these begin a riddle.
RIDDLES = frozenset(
    "what who whose whom nobody nothing of how why where when as so that for with without in on by from to at".split()
)


def documented(tree):
    """(name, first line) of every docstring."""
    nodes = [tree, *(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef))]
    texts = ((getattr(n, "name", "module"), ast.get_docstring(n)) for n in nodes)
    return [(name, text.splitlines()[0]) for name, text in texts if text]


@pytest.mark.parametrize("package", ["relief_ray", "actors", "tune_configs", "benchmarks"])
def test_docstrings_begin_with_a_verb_or_the_thing_returned(package):
    offenders = [
        f"{name_of(path)}: {name}: {line}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for name, line in documented(ast.parse(path.read_text(encoding="utf-8")))
        if re.split(r"\W", line.lower(), maxsplit=1)[0] in RIDDLES
    ]
    assert not offenders, "\n".join([f"{len(offenders)} docstrings", *offenders])


# Verbs in the third person; words that are plurals just as well ("Counts", "Samples") are left to the reader.
THIRD_PERSON = frozenset(
    "accepts accumulates acquires adds aligns allocates allows announces answers appends applies asks asserts "
    "assigns attaches averages backs begins binds builds caches calls cancels carries changes charges checks "
    "chooses cleans clears closes collects commits compares completes computes concatenates connects converts "
    "creates cuts decides declares decodes delegates describes discards distils divides does downloads draws "
    "drops embeds enables encodes ends ensures evaluates expands explains exports extracts fails fetches fills "
    "filters finds fits flattens follows formats freezes fuses gathers generates gives handles hashes hides "
    "holds imports initialises installs joins keeps kills learns leaves lets lists loads logs makes maps marks "
    "measures merges mixes moves normalises notes offers opens overlays packs parses passes pins places plans "
    "prepares prints probes puts raises reads rebuilds recomputes records redirects redraws refreshes refuses "
    "registers rejects releases removes renames renders replaces reports requires reserves resets reshapes "
    "resolves restarts restores resumes retries returns routes runs saves says scales selects sends sets shows "
    "slides solves sorts splits stacks standardises starts stops stores syncs takes tells trains tries turns "
    "undoes unpacks updates uploads validates verifies waits warns watches weighs wraps writes yields zeroes".split()
) - {"calls", "copies", "exports", "lists", "logs", "measures", "notes", "records", "reports"}


@pytest.mark.parametrize("package", ["relief_ray", "actors", "tune_configs", "benchmarks"])
def test_functions_docstrings_are_in_the_imperative(package):
    offenders = [
        f"{name_of(path)}: {node.name}: {text.splitlines()[0]}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in functions(ast.parse(path.read_text(encoding="utf-8")))
        if (text := ast.get_docstring(node)) and is_third_person(*re.findall(r"\w+", text.lower())[:2])
    ]
    assert not offenders, "\n".join([f"{len(offenders)} docstrings", *offenders])


def is_third_person(first, second=""):
    """Whether a sentence with these first words begins with such a verb; "plans of" are things."""
    return first in THIRD_PERSON and second != "of"


# Classes that everything else is explained with; their fields are documented one a line, however few they are.
CENTRAL = frozenset(
    "Assignment Update Receipt ServerState Strategy ClientProgram ExperimentConfig DataConfig FleetConfig CostConfig "
    "TrainingConfig RuntimeConfig Dataset DatasetSpec Loader Recording FederatedData WindowSet DeviceType Workload "
    "StageRun Footprint CostPlanner CostAccountant RunRecord RoundRecord ClientRecord CellState PlannedCell GridItem "
    "CellEnd".split()
)
MANY_FIELDS = 8


def fields_of(node):
    """A class's own fields: annotated, public, no class variables and none that only tells classes apart."""
    for n in node.body:
        if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name) and not n.target.id.startswith("_"):
            annotation = ast.unparse(n.annotation)
            is_tag = n.target.id in ("name", "kind") and annotation.startswith("Literal")
            if "ClassVar" not in annotation and not is_tag:
                yield n.target.id


def explained(node):
    """Names in the ``Attributes:`` block of a class's docstring."""
    block = (ast.get_docstring(node) or "").partition("Attributes:")[2]
    return {name for line in re.findall(r"^    (\w[\w, ]*):", block, re.MULTILINE) for name in line.split(", ")}


def test_fields_of_central_and_of_large_classes_are_explained():
    classes = [
        (f"{name_of(path)}: {node.name}", node)
        for path in sources()
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    assert {node.name for _, node in classes} >= CENTRAL
    offenders = [
        f"{name}: {', '.join(missing)}"
        for name, node in classes
        if node.name in CENTRAL or len(list(fields_of(node))) >= MANY_FIELDS
        if (missing := [field for field in fields_of(node) if field not in explained(node)])
    ]
    assert not offenders, "\n".join(offenders)


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
        for path in sources("benchmarks")
        for call in renames_in(ast.parse(path.read_text(encoding="utf-8")))
        if name_of(path) != "relief_ray/files.py"
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
    "actors/runtime/errors.py": "raised by driver and hosts, which do not import one another",
    "actors/terminal/options.py": "options that subcommands share, apart from what any of them does",
    "relief_ray/citations.py": "reads citations.bib, which methods and data sets name",
    "relief_ray/data/formats/partial.py": "a data set is a file",
    "relief_ray/data/registry.py": "imports every data set: none of them may import it",
    "relief_ray/errors.py": LEAF,
    "relief_ray/frozen.py": LEAF,
    "relief_ray/models/extra/rewire.py": "changes any backbone's graph, apart from what each method puts in",
    "relief_ray/models/registry.py": "imports every backbone: none of them may import it",
    "relief_ray/records/redact.py": "masks credentials: to be checked by itself",
    "relief_ray/records/selection_text.py": "a format that records and terminal share, imports no other record",
    "relief_ray/strategies/fedavg.py": METHOD,
    "relief_ray/strategies/relief/divergence.py": METHOD,
    "relief_ray/streams.py": LEAF,
    "relief_ray/training/serial_executor.py": "an executor is a file: those on Ray are in another package",
    "tune_configs/search_lr.py": "a search is a grid of another kind: its tries come from the methods",
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


def imported_at_the_top(tree):
    """Import statements that run with the module, and those under TYPE_CHECKING; not those inside functions."""
    waiting = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting += [
                child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt | ast.excepthandler)
            ]


def import_graph():
    """For every module of ours, those of ours that it imports."""
    files = sources("benchmarks")
    paths = {name_of(p).removesuffix(".py").removesuffix("/__init__").replace("/", "."): p for p in files}
    graph = {module: set() for module in paths}
    for module, path in paths.items():
        for node in imported_at_the_top(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                targets = {alias.name for alias in node.names}
            else:
                assert not node.level, f"{name_of(path)}: relative import"
                inner = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
                targets = {full if full in paths else node.module for full in inner.values()}
            graph[module] |= targets & set(paths)
    return graph


def circles(graph):
    """Groups of modules each of which imports, over others or not, all of its group."""
    reach = {}
    for module in graph:
        seen, waiting = set(), [module]
        while waiting:
            fresh = graph[waiting.pop()] - seen
            seen |= fresh
            waiting += fresh
        reach[module] = seen
    groups = {tuple(sorted(n for n in reach[m] if m in reach[n])) for m in graph if m in reach[m]}
    return sorted(groups)


def test_imports_of_functions_are_left_out_and_those_for_type_checkers_count():
    text = "import a\nif TYPE_CHECKING:\n    import b\ntry:\n    import c\nexcept ImportError:\n    import d\n"
    tree = ast.parse(f"{text}def f():\n    import e\nclass C:\n    import g\n")
    assert {node.names[0].name for node in imported_at_the_top(tree)} == set("abcdg")


def test_a_circle_is_found():
    graph = {"a": {"b", "d"}, "b": {"c"}, "c": {"a"}, "d": {"b"}, "e": {"a"}, "f": set()}
    assert circles(graph) == [("a", "b", "c", "d")] and circles({"a": {"a"}, "b": {"a"}}) == [("a",)]


def test_modules_import_one_another_in_no_circle():
    """Imports for type checkers count: a reader has to follow them too."""
    graph = import_graph()
    assert graph["actors.cli"] and graph["relief_ray.config"], "imports are seen"
    assert circles(graph) == []


IMPORT_ALL = """
import importlib, pkgutil, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(name)

BLOCKED = set(sys.argv[1].split(","))
sys.meta_path.insert(0, Absent())
import relief_ray
names = [m.name for m in pkgutil.walk_packages(relief_ray.__path__, "relief_ray.") if "__main__" not in m.name]
for name in names:
    importlib.import_module(name)
print(len(names))
"""


def test_the_library_imports_without_the_runtime_and_with_base_dependencies_only():
    runtime, others = "ray,mlflow,momentfm,transformers,actors,tune_configs", "pandas,matplotlib,sklearn,scipy"
    command = [sys.executable, "-c", IMPORT_ALL, f"{runtime},{others},pytest,hypothesis"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 5


# Words -----------------------------------------------------------------------------------------------------------


def markdown():
    return sorted(files({".md"}))


def prose(path):
    """The text of a Markdown file without its code blocks."""
    return re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)


def slug(heading):
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def test_links_lead_somewhere():
    offenders = [f"{name_of(path)}: {link}" for path in markdown() for link in broken_links(path)]
    assert not offenders, "\n".join(offenders)


def broken_links(path):
    """Links of a page whose file or heading is not there."""
    links = re.findall(r"\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)", prose(path))
    for link in (link for link in links if not re.match(r"[a-z]+:", link)):
        target, _, anchor = link.partition("#")
        file = (path.parent / target) if target else path
        if not file.exists():
            yield link
        elif anchor and file.suffix == ".md":
            if anchor not in [slug(h) for h in re.findall(r"^#+ (.+)$", prose(file), flags=re.M)]:
                yield link


def test_tests_that_documents_name_exist():
    offenders = []
    for page in markdown():
        for file, test in re.findall(r"\b(tests/[\w/]+\.py)(?:::(\w+))?", page.read_text(encoding="utf-8")):
            path = ROOT / file
            if not path.is_file() or (test and f"def {test}(" not in path.read_text(encoding="utf-8")):
                offenders.append(f"{name_of(page)}: {file}::{test}")
    assert not offenders, "\n".join(offenders)


def test_code_that_documents_name_exists():
    """``path.py::name`` and plain paths of sources in the documentation."""
    missing = []
    for path in markdown():
        for file, name in re.findall(r"`((?:relief_ray|actors|tune_configs)/[\w/]+\.py)(?:::(\w+))?`", prose(path)):
            source = ROOT / file
            defined = rf"^(?:def |class |async def )?{name}\b"
            if not source.is_file() or (
                name and not re.search(defined, source.read_text(encoding="utf-8"), flags=re.M)
            ):
                missing.append(f"{name_of(path)}: {file} {name}")
    assert not missing


def test_no_machine_is_named():
    # Folders of one machine, and hosts that a user's settings choose. Brackets: this file must not name them either.
    words = re.compile(r"/wor[k]/|/opt/(pyp[i]|wheel[s])|pyp[i]\.org|pythonhoste[d]|download\.pytorc[h]")
    texts = ((path, path.read_text(encoding="utf-8", errors="ignore")) for path in files(TEXT))
    assert not [f"{name_of(path)}: {hit.group()}" for path, text in texts for hit in words.finditer(text)]


# Packaging -------------------------------------------------------------------------------------------------------


def project_file(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_version_is_stated_alike_everywhere():
    assert f'version = "{relief_ray.__version__}"' in project_file("pyproject.toml")
    assert f"version: {relief_ray.__version__}" in project_file("CITATION.cff")
    assert f"## [{relief_ray.__version__}]" in project_file("CHANGELOG.md")


def test_tested_set_pins_every_direct_dependency_without_local_tags():
    pins = re.findall(r"^([\w.-]+)==([^;\s]+)", project_file("constraints.txt"), flags=re.M)
    assert not [f"{name}=={version}" for name, version in pins if "+" in version]
    pinned = {re.sub(r"[-_.]+", "-", name).lower() for name, _ in pins}
    lists = re.findall(r"^(dependencies|server|dev) = \[\n(.*?)^\]", project_file("pyproject.toml"), flags=re.M | re.S)
    assert [name for name, _ in lists] == ["dependencies", "server", "dev"]
    required = {
        re.sub(r"[-_.]+", "-", n).lower() for _, body in lists for n in re.findall(r'^    "([\w.-]+)', body, re.M)
    }
    assert required - pinned == set()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The project's wheel, built here by its own build backend."""
    builder = pytest.importorskip("hatchling.builders.wheel", reason="hatchling comes with the dev extra")
    folder = tmp_path_factory.mktemp("wheel")
    return next(builder.WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"]))


def test_wheel_holds_the_three_packages_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {n.partition("/")[0] for n in names if ".dist-info/" not in n} == set(PACKAGES)
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)
    assets = {name_of(path) for path in (ROOT / "relief_ray/data/assets").glob("*") if path.is_file()}
    assert assets | {"relief_ray/citations.bib"} <= set(names)
    assert {name_of(path) for path in sources()} <= set(names)


def test_installed_wheel_owns_its_package_names(wheel, tmp_path, monkeypatch):
    # `actors` is a generic name: were a dependency to ship one too, it would show here.
    zipfile.ZipFile(wheel).extractall(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    owners = importlib.metadata.packages_distributions()
    assert {package: set(owners[package]) for package in PACKAGES} == {package: {"relief-ray"} for package in PACKAGES}
    (script,) = importlib.metadata.entry_points(name="relief-ray", group="console_scripts").select(
        value="actors.cli:main"
    )
    assert script.value == "actors.cli:main"
