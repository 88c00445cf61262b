"""The order of a grid's points, and what the grids of the paper consist of."""

from itertools import groupby

import pytest

from relief_ray.records.schema import has_folds
from relief_ray.report.paper import PAPER_METHODS
from relief_ray.strategies import BOUNDS
from relief_ray.studies.plan import load_spec
from relief_ray.studies.spec import DATASETS, Axis, Level, Spec, points
from tests.plans import cells_of, planned
from tune_configs.registry import GRIDS, load_grid


def keys(grid):
    return [(p.settings["seed"], p.settings.get("data.fold"), p.setting, p.method) for p in points(grid)]


def test_all_methods_of_a_seed_fold_and_setting_come_before_the_next():
    factors = Axis(name="factors", levels=(Level(name=""), Level(name="gap10", settings={"fleet.gap": 10.0})))
    grid = Spec(
        name="g", title="", methods=("a", "b"), datasets=("pamap2", "dsa"), axes=(factors,), folds=(0, 1), seeds=(7, 8)
    )
    order = keys(grid)
    expected = []
    for seed in (7, 8):
        for dataset, fold in (("pamap2", None), ("dsa", 0), ("dsa", 1)):
            for setting in (dataset, f"{dataset}-gap10"):
                expected += [(seed, fold, setting, method) for method in "ab"]
    assert order == expected
    blocks = [list(rows) for _, rows in groupby(order, key=lambda row: row[:3])]
    assert len(blocks) == len(set(row[:3] for row in order)) and {len(b) for b in blocks} == {2}


def test_any_interruption_leaves_a_paired_comparison():
    order = keys(load_grid("main_cnn"))
    number = len(load_grid("main_cnn").methods)
    for stop in range(0, len(order), number):
        methods = [m for _, _, _, m in order[:stop]]
        assert {methods.count(m) for m in load_grid("main_cnn").methods} == {stop // number}
    assert [row[0] for row in order] == sorted(row[0] for row in order)


def test_later_settings_win_over_earlier_ones():
    axis = Axis(name="x", levels=(Level(name="long", settings={"rounds": 9, "data.name": "mhealth"}),))
    grid = Spec(
        name="g", title="", methods=("a",), datasets=("pamap2",), axes=(axis,), seeds=(3,), settings={"rounds": 1}
    )
    (point,) = points(grid)
    assert point.settings == {"rounds": 9, "data.name": "mhealth", "seed": 3}


def test_a_level_exists_only_for_its_datasets():
    axis = Axis(name="x", levels=(Level(name="one", datasets=("pamap2",)), Level(name="two")))
    grid = Spec(name="g", title="", methods=("a",), axes=(axis,), seeds=(0,))
    assert [p.setting for p in points(grid)] == ["pamap2-one", "pamap2-two", "mhealth-two"]


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("main_cnn", 15 * 2 * 3),
        ("main_lora", 16 * 2 * 3),
        ("ablation", 13 * 2 * 2 * 2 * 3),
        ("sensitivity", 9 * 2 * 2 * 6 * 3),
        ("diagnostics", 2 * 2),
        ("testbed", 9 * 2 * 2 * 2 * 3),
        ("coupling", 10 * 2 * 3 * 3),
        ("search_lr", 14 * 15 * 2),
        ("search_sgd", 14 * 15 * 2),
        ("search_optimizer", 14 * 6 * 2 * 2),
        ("smoke", 12),
    ],
)
def test_sizes(name, number):
    assert len(list(points(load_grid(name)))) == number


@pytest.mark.parametrize(("name", "budget"), [("search_lr", 15), ("search_sgd", 15), ("search_optimizer", 6)])
def test_every_method_of_the_search_has_the_same_budget(name, budget):
    grid = load_grid(name)
    assert {m: len(levels) for m, levels in grid.own.items()} == dict.fromkeys(grid.methods, budget)
    assert {"v1", "v2", "v3", *PAPER_METHODS} == set(grid.methods)
    assert all(p.settings["evaluation.parts"] == ["validation"] for p in points(grid))


def test_every_table_has_the_bounds():
    for name in ("main_cnn", "main_lora", "ablation", "sensitivity", "testbed", "coupling"):
        assert set(BOUNDS) < set(load_grid(name).methods)


def test_every_fold_of_a_replicate_has_a_seed_of_its_own_and_turns_the_devices():
    grid = Spec(name="g", title="", methods=("a", "b"), datasets=("dsa",), replicates=(0, 1, 7))
    found = list(points(grid))
    keys = ("data.fold", "seed", "fleet.rotation", "replicate")
    assert [tuple(p.settings[k] for k in keys) for p in found[::2]] == [
        (fold, 10_000 + 100 * r + fold, r % 6, r) for r in (0, 1, 7) for fold in range(4)
    ]
    assert all(a.settings == b.settings for a, b in zip(found[::2], found[1::2], strict=True)), "methods are paired"


def test_seeds_that_a_grid_names_replace_replicates():
    grid = Spec(name="g", title="", methods=("a",), datasets=("dsa",), seeds=(1000,), folds=(0, 1))
    assert [p.settings for p in points(grid)] == [
        {**DATASETS["dsa"].settings, "seed": 1000, "data.fold": fold} for fold in (0, 1)
    ]


def test_every_grid_runs_on_dsa_too():
    assert set(GRIDS) == {load_grid(name).name for name in GRIDS}
    assert DATASETS["dsa"].folds == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ([], []),
        (["data.leave_out=1"], ["subjects 5, 6, 7 and 8, expected everybody: --set 'folds=[0, 1, 2, 3, 4, 5, 6, 7]'"]),
        (["folds=[0,2]"], ["subjects 3, 4, 7 and 8, expected everybody: --set 'folds=[0, 1, 2, 3]'"]),
        (["folds=[3]"], []),
        (["data.split=within_subject"], []),
    ],
)
def test_people_of_ones_own_data_whom_no_fold_of_a_study_tests_are_told(settings, told, tmp_path, monkeypatch):
    """`demo` has the folds 0 to 3, whatever the number of people; one fold is a choice."""
    plan = planned("demo", tmp_path, *settings)
    assert plan.untested() == [], "folds of a built-in data set are chosen by its grids"
    monkeypatch.setattr("relief_ray.studies.plan.DATASETS", {})
    assert plan.untested() == [f"data dsa_mini: no fold of this study tests {text}" for text in told]


def test_folds_follow_how_many_people_each_holds_out():
    grid = Spec(name="g", title="", methods=("fedavg",), datasets=("dsa",), seeds=(0,))
    assert [c.config.data.fold for c in cells_of(grid, ["data.leave_out=1"])] == list(range(8))
    assert [c.config.data.fold for c in cells_of(grid, ["data.leave_out=3", "folds=2"])] == [2]
    (one,) = cells_of(grid, ["data.test_subjects=[3, 7]"])
    assert one.config.data.test_subjects == (3, 7) and one.config.data.fold == 0
    assert "-f0-" not in one.name and not has_folds(one.config.model_dump(mode="json")), "people by name are no fold"


@pytest.mark.parametrize("partition", ["dirichlet", "quantity"])
@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        (["replicates=[0, 3]"], [0, 3]),
        (["seeds=[5, 7]"], [5, 7]),
        (["seed=9"], [9]),
        (["replicates=[0, 3]", "data.seed=4"], [4, 4]),
    ],
)
def test_a_drawn_partition_is_drawn_anew_for_each_replicate(partition, levels, expected):
    """An interval over replicates would otherwise be one over seeds of training alone."""
    for_all = ["methods=[fedavg, relief]", f"data.partition={partition}", "data.split=within_subject"]
    configs = [cell.config for cell in cells_of(load_spec("quick"), [*for_all, *levels])]
    assert [config.data.seed for config in configs] == [seed for seed in expected for _ in "12"]


def test_the_deal_of_people_stays_where_nothing_is_drawn():
    assert {cell.config.data.seed for cell in cells_of(load_spec("quick"), ["replicates=[0, 3]"])} == {0}
