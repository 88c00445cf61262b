"""Test docstrings: central classes explain every field."""

import ast
import re
from itertools import pairwise

from tests.project.tree import name_of, sources

# Classes that everything else is explained with; their fields are documented one a line, however few they are.
CENTRAL = frozenset(
    "Assignment Update Receipt ServerState Strategy ClientProgram ExperimentConfig DataConfig FleetConfig CostConfig "
    "TrainingConfig RuntimeConfig Dataset DatasetSpec Loader Recording FederatedData WindowSet DeviceType Workload "
    "StageRun Footprint CostPlanner CostAccountant RunRecord RoundRecord ClientRecord CellState PlannedCell GridItem "
    "End View".split()
)


def fields_of(node):
    """A class's own fields: annotated, public, no class variables and none that only tells classes apart."""
    for n in node.body:
        if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name) and not n.target.id.startswith("_"):
            annotation = ast.unparse(n.annotation)
            is_tag = n.target.id in ("name", "kind") and annotation.startswith("Literal")
            if "ClassVar" not in annotation and not is_tag:
                yield n.target.id


def explained(node):
    """Names of fields with a string under them, and those in the ``Attributes:`` block of the class's docstring."""
    block = (ast.get_docstring(node) or "").partition("Attributes:")[2]
    named = {name for line in re.findall(r"^    (\w[\w, ]*):", block, re.MULTILINE) for name in line.split(", ")}
    return named | {field.target.id for field, text in pairwise(node.body) if is_text(text) and is_field(field)}


def is_text(node):
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def is_field(node):
    return isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)


def test_fields_of_central_classes_are_explained():
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
        if node.name in CENTRAL
        if (missing := [field for field in fields_of(node) if field not in explained(node)])
    ]
    assert not offenders, "\n".join(offenders)
