"""The registry: a built-in method is one file or folder and one line; nothing else in the program knows its name."""

import ast
from functools import cache
from pathlib import Path

import pytest

from relief_ray.strategies import DESCRIBED, METHODS, PRESETS, display_name

ROOT = Path(__file__).parent.parent.parent
STRATEGIES = ROOT / "relief_ray" / "strategies"
# FedAvg is the reference of every comparison, RELIEF what the program is about, and a bound may be measured by it.
REFERENCES = {"fedavg", "relief"}
# Files that name other methods, and why.
ALLOWED = {
    "fedel": {
        "relief_ray/report/figures/style.py",  # the paper's five representative methods come first in figures
        "relief_ray/report/tables/sensitivity.py",  # these five again, in the paper's Tables IV and V
    },
    "harmony": {"relief_ray/report/figures/style.py", "relief_ray/report/tables/sensitivity.py"},
    "darkdistill": {"relief_ray/report/figures/style.py", "relief_ray/report/tables/sensitivity.py"},
    "fedprox": {"relief_ray/report/figures/style.py"},
    "bounds": {
        "actors/runtime/session.py",  # Ray's own word `local`, for its address
        "relief_ray/report/captions.py",  # the finding that a method scores below the bound `full_only`
        "relief_ray/report/findings.py",  # the same
    },
}


def home_of(method):
    """The module and, for a package, everything below it."""
    package = STRATEGIES / method
    return set(package.rglob("*.py")) if package.is_dir() else {STRATEGIES / f"{method}.py"}


def names_of(method):
    """Presets and configuration names, and the classes' names."""
    presets = [c for c in PRESETS.values() if type(c).__module__.startswith(f"relief_ray.strategies.{method}")]
    labels = {label for label, c in PRESETS.items() if c in presets}
    return labels | {c.build().name for c in presets}, {type(c).__name__ for c in presets}


@cache
def words_of(path):
    """Returns the text constants and identifiers of code, not prose, and the modules it imports from."""
    texts, identifiers, modules = set(), set(), set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.add(node.value)
        elif isinstance(node, ast.Name | ast.Attribute):
            identifiers.add(getattr(node, "id", getattr(node, "attr", "")))
        elif isinstance(node, ast.ImportFrom):
            modules.add(str(node.module))
    return texts, identifiers, modules


def mentions(path, labels, classes, method):
    """Whether code, not prose, names the method: a text constant, an identifier or an import."""
    texts, identifiers, modules = words_of(path)
    from_here = any(module.startswith(f"relief_ray.strategies.{method}") for module in modules)
    return bool(texts & labels or identifiers & classes) or from_here


@pytest.mark.parametrize("method", [m for m in METHODS if m not in REFERENCES])
def test_a_method_is_named_in_its_own_files_alone(method):
    labels, classes = names_of(method)
    assert labels and classes
    sources = {p for package in ("relief_ray", "actors") for p in (ROOT / package).rglob("*.py")}
    elsewhere = sources - home_of(method) - {STRATEGIES / "__init__.py"}
    assert {p for p in home_of(method) if mentions(p, labels, classes, method)}, "the test sees what it looks for"
    naming = {p.relative_to(ROOT).as_posix() for p in elsewhere if mentions(p, labels, classes, method)}
    assert naming == ALLOWED.get(method, set())


def test_every_preset_says_what_it_is():
    for name, preset in DESCRIBED.items():
        assert preset.config is PRESETS[name]
        assert preset.title and preset.kind and preset.about
    titles = [preset.title for preset in DESCRIBED.values()]
    assert len(titles) == len(set(titles))


def test_a_method_of_ours_searches_three_values_of_its_own_number_or_none():
    for preset in DESCRIBED.values():
        assert len(preset.search) in (0, 3)
        for settings in preset.search.values():
            type(preset.config).model_validate({**preset.config.model_dump(), **settings})


def test_a_reconstruction_says_so():
    assert display_name("fedicu") == "FedICU (reconstructed)"
    assert display_name("fedicu_table") == "FedICU (reconstructed), table"
    assert {display_name(n) for n in PRESETS} - set(PRESETS) == {display_name("fedicu"), display_name("fedicu_table")}
    assert display_name("my.lab:Method") == "my.lab:Method"
