"""Test docstrings: their first words, and the fields that central classes explain."""

import ast
import re

import pytest

from tests.project.tree import ROOT, functions, name_of, sources

# A docstring begins with a verb or the thing that is returned; these begin a riddle.
RIDDLES = frozenset(
    "what who whose whom nobody nothing of how why where when as so that for with without in on by from to at".split()
)


def documented(tree):
    """(name, first line) of every docstring."""
    nodes = [tree, *(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef))]
    texts = ((getattr(n, "name", "module"), ast.get_docstring(n)) for n in nodes)
    return [(name, text.splitlines()[0]) for name, text in texts if text]


@pytest.mark.parametrize("package", ["relief_ray", "actors", "tune_configs", "benchmarks", "cluster"])
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


@pytest.mark.parametrize("package", ["relief_ray", "actors", "tune_configs", "benchmarks", "cluster"])
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
