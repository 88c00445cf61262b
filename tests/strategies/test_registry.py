"""The registry: a built-in method is one file or folder and one line; nothing else in the program knows its name.

Two methods have a role of their own, each under one constant: ``REFERENCE`` (FedAvg) and ``PROPOSED`` (RELIEF).
"""

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

import relief_ray as rr
from relief_ray.records.schema import MethodFacts
from relief_ray.report.comparison import compare_runs
from relief_ray.report.paper import PAPER_METHODS, REPRESENTATIVE, VARIANT_ROWS
from relief_ray.strategies import (
    DESCRIBED,
    METHODS,
    PRESETS,
    PROPOSED,
    built_in_name,
    by_registry,
    facts_of,
    method_name,
    presets_of,
)
from tests.report.conftest import build
from tune_configs.registry import load_grid

ROOT = Path(__file__).parent.parent.parent
STRATEGIES = ROOT / "relief_ray" / "strategies"
PACKAGES = ("relief_ray", "actors", "tune_configs")
# Files that name methods of other files: how often each name (``import``: from the method's module), and why.
# Everything else goes by the registry or by a method's own facts. Another name or use is a switch on a method: let the
# method's class state the fact instead.
TABLE_ACCOUNTING = "the value `fedavg` of `paper_accounting`: charged like FedAvg"
ALLOWED = {
    "fedavg": {
        "actors/commands/fleet.py": ({"fedavg": 3}, "keys of its JSON"),
        "relief_ray/conformance/backbones.py": ({"fedavg": 1}, "methods that a backbone is judged with"),
        "relief_ray/conformance/runner.py": ({"fedavg": 1}, "the reference numbers of every machine"),
        "relief_ray/experiment/setup.py": ({"fedavg": 1}, TABLE_ACCOUNTING),
        "relief_ray/studies/what_if.py": ({"fedavg": 1}, "the field `fedavg` of a round's record"),
        "relief_ray/records/schema.py": ({"fedavg": 1}, TABLE_ACCOUNTING),
        "relief_ray/strategies/bounds.py": ({"FedAvg": 4, "import": 1}, "bounds are FedAvg over other clients"),
        "relief_ray/strategies/common.py": ({"fedavg": 1}, TABLE_ACCOUNTING),
        "relief_ray/strategies/fedlease.py": ({"fedavg": 1}, TABLE_ACCOUNTING),
        "relief_ray/strategies/fednova.py": ({"FedAvg": 1, "import": 1}, "is FedAvg with another mean"),
        "relief_ray/strategies/fedprox.py": ({"FedAvg": 1, "import": 1}, "is FedAvg with another objective"),
        "relief_ray/strategies/fedsa_lora.py": (
            {"fedavg": 1, "FedAvg": 1, "import": 1},
            f"is FedAvg of a part of the model; {TABLE_ACCOUNTING}",
        ),
        "relief_ray/strategies/harmony.py": ({"fedavg": 1}, TABLE_ACCOUNTING),
        "relief_ray/strategies/pilot.py": ({"fedavg": 1}, TABLE_ACCOUNTING),
    },
    "relief": {
        "relief_ray/conformance/backbones.py": ({"relief": 1}, "methods that a backbone is judged with"),
        "relief_ray/report/paper.py": ({"v1": 1, "v2": 1, "v3": 1}, "rows V1 to V3 of the paper's Table III"),
        "relief_ray/strategies/bounds.py": ({"Relief": 2, "import": 2}, "drop_slow waits until RELIEF's T*"),
        "tune_configs/frontier.py": ({"v2_mandatory": 1}, "the search varies over whom updates are averaged"),
        "tune_configs/plus.py": ({"relief_plus": 1}, "what its pilot chose"),
        "tune_configs/paper_grids.py": (
            {"relief_plus": 1, "v2_mandatory": 2, "v3_mandatory": 2},
            "two grids have some of our variants, and two have RELIEF+ with a level of its own",
        ),
    },
    "fednova": {
        "tune_configs/plus.py": ({"fednova": 2}, "has epochs to a deadline too"),
    },
    "fedprox": {
        "relief_ray/strategies/fednova.py": ({"import": 1}, "has FedProx's partial work"),
        "tune_configs/plus.py": ({"fedprox": 2}, "has epochs to a deadline too"),
        "relief_ray/studies/preset_specs.py": ({"fedprox": 3}, "presets choose methods"),
    },
    "bounds": {
        "actors/runtime/session.py": ({"local": 1}, "Ray's own word, for its address"),
        "relief_ray/records/sync/mlflow.py": ({"local": 1}, "MLflow's own word, for a data set on disk"),
        "relief_ray/report/remarks.py": ({"full_only": 1}, "the finding that a method scores below this bound"),
    },
}
# Methods with a role: how often each file asks for it, and why.
CLAIM, CHOICE = "the paper's claims are about it", "a study chooses methods"
COMPARED = "the method that others are compared with"
ROLES = {
    "REFERENCE": {
        "relief_ray/studies/request.py": (1, "the method of a study that names none"),
        "relief_ray/studies/study.py": (2, COMPARED),
        "relief_ray/studies/plan.py": (1, "the method of a file that names none"),
        "relief_ray/config/experiment.py": (1, "the default"),
        "relief_ray/report/comparison.py": (2, COMPARED),
        "relief_ray/report/figures/progress.py": (2, COMPARED),
        "relief_ray/report/frames.py": (2, COMPARED),
        "relief_ray/report/figures/devices.py": (4, "the paper's figures 2 and 3 are of FedAvg"),
        "relief_ray/report/figures/timeline.py": (2, "the upper panel"),
        "relief_ray/report/results.py": (3, COMPARED),
        "relief_ray/report/tables/rows.py": (4, COMPARED),
        "relief_ray/report/tables/methods.py": (1, COMPARED),
        "actors/commands/study.py": (2, COMPARED),
        "relief_ray/report/tables/paper.py": (3, "figures of the paper's text"),
        "tune_configs/frontier.py": (4, CHOICE),
        "tune_configs/plus.py": (6, CHOICE),
        "tune_configs/paper_grids.py": (5, CHOICE),
        "relief_ray/studies/preset_specs.py": (4, CHOICE),
        "relief_ray/report/remarks.py": (5, COMPARED),
    },
    "PROPOSED": {
        "actors/commands/study.py": (1, "of more methods than two, the one whose scatter is asked for"),
        "actors/commands/fleet.py": (1, "its deadline is shown where the run's method has none"),
        "relief_ray/report/figures/devices.py": (3, "the figures of its allocation and its traces"),
        "relief_ray/report/figures/timeline.py": (1, "the lower panel"),
        "relief_ray/report/paper.py": (1, "V0 of the paper's Table III"),
        "tune_configs/frontier.py": (6, CHOICE),
        "tune_configs/plus.py": (4, CHOICE),
        "tune_configs/paper_grids.py": (6, CHOICE),
        "relief_ray/studies/preset_specs.py": (5, CHOICE),
        "relief_ray/report/comparison.py": (1, "it and FedAvg are drawn and described before others"),
        "relief_ray/report/remarks.py": (1, "the paper's claims are about it"),
        "relief_ray/report/results.py": (1, "the cheaper of the two sets the budget of equal cost"),
    },
    "V0": {
        "relief_ray/report/tables/paper.py": (4, "variants are compared with it, and figures of the paper's text"),
    },
    "V1": {
        "relief_ray/report/tables/paper.py": (1, "figures of the paper's text"),
        "tune_configs/frontier.py": (1, CHOICE),
        "tune_configs/paper_grids.py": (1, CHOICE),
    },
    "V2": {},
    "V3": {},
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
    """Returns how often code, not prose, has each text constant, identifier and module that it imports from."""
    texts, identifiers, modules = Counter(), Counter(), Counter()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts[node.value] += 1
        elif isinstance(node, ast.Name | ast.Attribute):
            identifiers[getattr(node, "id", getattr(node, "attr", ""))] += isinstance(node.ctx, ast.Load)
        elif isinstance(node, ast.ImportFrom):
            modules[str(node.module)] += 1
    return texts, identifiers, modules


def mentions(path, labels, classes, method):
    """Returns how often code, not prose, names the method: text constants, identifiers, imports."""
    texts, identifiers, modules = words_of(path)
    imports = sum(number for name, number in modules.items() if name.startswith(f"relief_ray.strategies.{method}"))
    numbers = {name: texts[name] for name in labels} | {name: identifiers[name] for name in classes}
    return {name: number for name, number in (numbers | {"import": imports}).items() if number}


def sources():
    """Returns the program's files."""
    return {p for package in PACKAGES for p in (ROOT / package).rglob("*.py")}


@pytest.mark.parametrize("method", METHODS)
def test_a_method_is_named_in_its_own_files_alone(method):
    labels, classes = names_of(method)
    assert labels and classes
    elsewhere = sources() - home_of(method) - {STRATEGIES / "__init__.py"}
    assert {p for p in home_of(method) if mentions(p, labels, classes, method)}, "the test sees what it looks for"
    naming = {p.relative_to(ROOT).as_posix(): mentions(p, labels, classes, method) for p in elsewhere}
    assert {path: names for path, names in naming.items() if names} == {
        path: names for path, (names, _) in ALLOWED.get(method, {}).items()
    }


@pytest.mark.parametrize("constant", ROLES)
def test_a_role_is_asked_for_where_there_is_a_reason(constant):
    uses = {p.relative_to(ROOT).as_posix(): words_of(p)[1][constant] for p in sources()}
    assert {path: number for path, number in uses.items() if number} == {
        path: number for path, (number, _) in ROLES[constant].items()
    }


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
        search_trades_speed=PRESETS["relief"].search_trades_speed,
    )
    assert facts_of(PRESETS["v1"], "v1").search_trades_speed == "", "nothing of V1 is searched"
    assert facts_of(PRESETS["helora"], "helora").dense_stand_in == PRESETS["helora"].dense_stand_in != ""
    central, pilot = facts_of(PRESETS["central"], "central"), facts_of(PRESETS["pilot"], "pilot")
    assert (central.pooled, central.is_bound) == (True, True)
    assert (pilot.pooled, pilot.paper_accounting, pilot.citation) == (False, "fedavg", "xiong2025pilot")
    assert facts_of(PRESETS["v2_mandatory"], "v2_mandatory").kind == "ablation of ours"


def test_a_derived_method_never_bears_the_name_or_kind_of_what_it_derives_from():
    """Rows of a shipped method, of a class derived from it, and of one derived from that, have three names."""
    base, pooled = type(PRESETS["relief"]), type(PRESETS["central"])
    plain = type("Gentle", (base,), {"__module__": "lab"})
    titled = type("Second", (plain,), {"__module__": "lab", "title": "RELIEF of mine"})
    deeper = type("Third", (titled,), {"__module__": "lab"})
    facts = [facts_of(kind(), f"lab:{kind.__name__}") for kind in (plain, titled, deeper)]
    assert [f.name for f in facts] == [f.title for f in facts] == ["Gentle", "RELIEF of mine", "Third"]
    assert {f.kind for f in facts} == {"own"}, "the shipped one's kind is its place in the paper's tables"
    assert {f.citation for f in facts} == {None} != {base.citation}, "nor is it of that one's paper"
    assert base.search and not (plain.search or titled.search or deeper.search or plain.about), "or tuned like it"
    bound = type("Mine", (pooled,), {"__module__": "lab"})
    assert facts_of(bound(), "lab:Mine").is_bound and facts_of(bound(), "lab:Mine").name == "Mine"


def test_facts_that_are_asked_before_a_method_is_built_are_those_of_what_it_builds():
    for name, config in PRESETS.items():
        built = config.build()
        assert built.name == built_in_name(config), name
        assert (built.insight.explain is not None, built.insight.deadline_s is not None) == (
            config.explains,
            config.has_deadline,
        ), name


def test_a_method_is_built_once_for_its_run(monkeypatch, tmp_path, run_cache):
    """And no more for its name, its plan, its record or its facts."""
    kind, built = type(PRESETS["relief"]), []
    build = kind.build
    monkeypatch.setattr(kind, "build", lambda config: built.append(config) or build(config))
    small = {"conv1": 2, "conv2": 2, "steps": 2, "fusion": 2}
    rr.run("quick", strategies=["relief"], seeds=[0], rounds=1, backbone=small, out=tmp_path / "run", quiet=True)
    assert len(built) == 1
