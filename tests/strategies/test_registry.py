"""The registry: a built-in method is one file or folder and one line; nothing else in the program knows its name.

Two methods have a role of their own, each under one constant: ``REFERENCE`` (FedAvg) and ``PROPOSED`` (RELIEF).
"""

import ast
from functools import cache
from pathlib import Path

import pytest

from relief_ray.records.schema import MethodFacts
from relief_ray.report.comparison import compare_runs
from relief_ray.report.paper import PAPER_METHODS, REPRESENTATIVE, VARIANT_ROWS
from relief_ray.strategies import (
    DESCRIBED,
    METHODS,
    PRESETS,
    PROPOSED,
    by_registry,
    facts_of,
    method_name,
    presets_of,
)
from tests.report.conftest import build
from tune_configs.cells import load_grid

ROOT = Path(__file__).parent.parent.parent
STRATEGIES = ROOT / "relief_ray" / "strategies"
PACKAGES = ("relief_ray", "actors", "tune_configs")
# Files that name methods of other files, and why; everything else goes by the registry or by a method's own facts.
TABLE_ACCOUNTING = "the value `fedavg` of `paper_accounting`: charged like FedAvg"
ALLOWED = {
    "fedavg": {
        "actors/commands/fleet.py": "a key of its JSON",
        "relief_ray/experiment/clocks.py": TABLE_ACCOUNTING,
        "relief_ray/experiment/what_if.py": "the field `fedavg` of a round's record",
        "relief_ray/records/schema.py": TABLE_ACCOUNTING,
        "relief_ray/strategies/bounds.py": "bounds are FedAvg over other clients",
        "relief_ray/strategies/common.py": TABLE_ACCOUNTING,
        "relief_ray/strategies/fedlease/strategy.py": TABLE_ACCOUNTING,
        "relief_ray/strategies/fedprox.py": "is FedAvg with another objective",
        "relief_ray/strategies/fedsa_lora.py": TABLE_ACCOUNTING,
        "relief_ray/strategies/harmony/strategy.py": TABLE_ACCOUNTING,
        "relief_ray/strategies/pilot/strategy.py": TABLE_ACCOUNTING,
    },
    "relief": {
        "relief_ray/report/claims.py": "claims on V0 to V3, one of them against a variant of ours",
        "relief_ray/report/figures/timeline.py": "the variant that is nearest to RELIEF where that was not run",
        "relief_ray/report/findings.py": "the finding that a variant of ours is V2 to the bit",
        "relief_ray/report/paper.py": "rows V1 to V3 of the paper's Table III",
        "relief_ray/report/tables/ablation.py": "the variants in words, in that table",
        "relief_ray/strategies/bounds.py": "drop_slow waits until RELIEF's T*",
        "tune_configs/paper_grids.py": "one grid has a single one of our variants",
    },
    "fedprox": {"tune_configs/presets.py": "presets choose methods"},
    "bounds": {
        "actors/runtime/session.py": "Ray's own word `local`, for its address",
        "relief_ray/report/captions.py": "the finding that a method scores below the bound `full_only`",
        "relief_ray/report/findings.py": "the same",
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


@pytest.mark.parametrize("method", METHODS)
def test_a_method_is_named_in_its_own_files_alone(method):
    labels, classes = names_of(method)
    assert labels and classes
    sources = {p for package in PACKAGES for p in (ROOT / package).rglob("*.py")}
    elsewhere = sources - home_of(method) - {STRATEGIES / "__init__.py"}
    assert {p for p in home_of(method) if mentions(p, labels, classes, method)}, "the test sees what it looks for"
    naming = {p.relative_to(ROOT).as_posix() for p in elsewhere if mentions(p, labels, classes, method)}
    assert naming == set(ALLOWED.get(method, ()))


def test_lists_tables_figures_and_grids_have_one_order():
    """The registry's is that of the paper's Table I; nothing else lists methods."""
    presets = list(PRESETS)
    for names in (PAPER_METHODS, REPRESENTATIVE, VARIANT_ROWS, load_grid("main_cnn").methods):
        assert sorted(names, key=presets.index) == list(names)
    labels = [method_name(config, name) for name, config in PRESETS.items()]
    assert by_registry(["mine", *reversed(labels), "relief (gamma=0.5)"]) == [*labels, "mine", "relief (gamma=0.5)"]
    bounds = presets_of("bound")
    compared = compare_runs([build(name) for name in ("mine:A", "mine:B", *reversed(presets))])
    others = [label for name, label in zip(presets, labels, strict=True) if name not in bounds]
    assert [row.label for row in compared.rows] == [*others, "mine:A", "mine:B", *bounds]


def test_grids_take_kinds_from_the_methods():
    kinds = {kind: {n for n, p in DESCRIBED.items() if p.kind == kind} for kind in ("bound", "ablation")}
    assert len(kinds["bound"]) == 4 and kinds["bound"] < set(load_grid("main_cnn").methods)
    assert kinds["ablation"] == set(VARIANT_ROWS) - {PROPOSED} < set(load_grid("search_lr").methods)


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
    names = {name: method_name(config, name) for name, config in PRESETS.items()}
    assert {shown for name, shown in names.items() if shown != name} == {
        "FedICU (reconstructed)",
        "FedICU (reconstructed), table",
    }
    assert names["fedicu_table"] == "FedICU (reconstructed), table"


def test_a_run_records_the_facts_of_a_preset_and_of_its_class():
    assert facts_of(PRESETS["v2"], "v2") == MethodFacts(
        name="v2",
        title="RELIEF without cohort-wise aggregation (V2)",
        kind="ablation",
        citation="wu2026relief",
    )
    central, pilot = facts_of(PRESETS["central"], "central"), facts_of(PRESETS["pilot"], "pilot")
    assert (central.pooled, central.is_bound) == (True, True)
    assert (pilot.pooled, pilot.paper_accounting, pilot.citation) == (False, "fedavg", "xiong2025pilot")
    assert facts_of(PRESETS["v2_mandatory"], "v2_mandatory").kind == "ablation of ours"
