"""What the repository promises about itself: sizes, syntax, documentation, links, packaging."""

import ast
import importlib.metadata
import os
import re
import statistics
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import relief_ray

ROOT = Path(__file__).parent.parent
PACKAGES = ("relief_ray", "actors", "tune_configs")
NOT_OURS = {"venv", "runs", "mlruns", "mlartifacts", "datasets", "build", "dist"}
TEXT = {".py", ".md", ".toml", ".txt", ".sh", ".yaml", ".yml", ".cff", ".ipynb", ".json", ".cfg", ".sha256", ""}

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 40
P90_FUNCTION_LINES = 30
MEDIAN_FUNCTION_LINES = 10


def files(suffixes):
    """Every file of the project with one of the suffixes; caches and environments are left out."""
    for folder, names, leaves in os.walk(ROOT):
        names[:] = [n for n in names if n == ".ci" or not (n in NOT_OURS or n.startswith((".", "__pycache__")))]
        yield from (Path(folder, leaf) for leaf in leaves if Path(leaf).suffix in suffixes)


def sources(*more):
    return [path for package in (*PACKAGES, *more) for path in sorted((ROOT / package).rglob("*.py"))]


def name_of(path):
    return str(path.relative_to(ROOT))


def functions(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def lines_of(node):
    return node.end_lineno - node.lineno + 1


# Code ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sources("benchmarks"), ids=name_of)
def test_source_keeps_to_the_style_guide(path):
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text, feature_version=(3, 10))
    # A method has no limit of its own: it is as long as its paper needs.
    assert len(text.splitlines()) <= MAX_FILE_LINES or "strategies" in path.parts
    assert not [f"{f.name}: {lines_of(f)} lines" for f in functions(tree) if lines_of(f) > MAX_FUNCTION_LINES]
    assert not undocumented(tree), "public names without a docstring"


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
    found = [
        f"{name_of(path)}: {name}: {line}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for name, line in documented(ast.parse(path.read_text(encoding="utf-8")))
        if re.split(r"\W", line.lower(), maxsplit=1)[0] in RIDDLES
    ]
    assert not found, "\n".join([f"{len(found)} docstrings", *found])


def is_overload(node):
    return any(isinstance(d, ast.Name) and d.id == "overload" for d in node.decorator_list)


def test_functions_are_short():
    lengths = sorted(lines_of(f) for path in sources() for f in functions(ast.parse(path.read_text(encoding="utf-8"))))
    assert statistics.median(lengths) <= MEDIAN_FUNCTION_LINES
    assert lengths[len(lengths) * 9 // 10] <= P90_FUNCTION_LINES


@pytest.mark.parametrize("path", sorted(files({".py"})), ids=name_of)
def test_python_3_10_can_read_it(path):
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 10))


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
skipped = tuple(sys.argv[2].split(",")) if sys.argv[2] else ()
for name in names:
    if not name.startswith(skipped):
        importlib.import_module(name)
print(len(names))
"""


@pytest.mark.parametrize(
    ("blocked", "skipped"),
    [
        pytest.param("ray,mlflow,momentfm,transformers,actors,tune_configs", "", id="no runtime"),
        pytest.param("pandas,matplotlib,sklearn,scipy,pytest,hypothesis", "", id="base dependencies only"),
    ],
)
def test_the_library_imports_without(blocked, skipped):
    command = [sys.executable, "-c", IMPORT_ALL, blocked, skipped]
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


@pytest.mark.parametrize("path", markdown(), ids=name_of)
def test_links_lead_somewhere(path):
    links = re.findall(r"\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)", prose(path))
    for link in (link for link in links if not re.match(r"[a-z]+:", link)):
        target, _, anchor = link.partition("#")
        file = (path.parent / target) if target else path
        assert file.exists(), link
        if anchor and file.suffix == ".md":
            assert anchor in [slug(h) for h in re.findall(r"^#+ (.+)$", prose(file), flags=re.M)], link


@pytest.mark.parametrize("path", markdown(), ids=name_of)
def test_tests_that_documents_name_exist(path):
    for file, test in re.findall(r"\b(tests/[\w/]+\.py)(?:::(\w+))?", path.read_text(encoding="utf-8")):
        assert (ROOT / file).is_file(), file
        assert not test or f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), test


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
    asked = {re.sub(r"[-_.]+", "-", n).lower() for _, body in lists for n in re.findall(r'^    "([\w.-]+)', body, re.M)}
    assert asked - pinned == set()


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
    assert assets <= set(names)
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
