"""From grids to checked configurations: hashes, names, scaling by settings, and words for what is wrong."""

import subprocess
import sys
from dataclasses import replace

import pytest

from relief_ray.config.experiment import parse
from relief_ray.records.identity import config_hash
from relief_ray.strategies import PRESETS
from relief_ray.studies.spec import Axis, Level, Spec
from relief_ray.support.errors import UserError
from tests.plans import cells_of
from tune_configs.registry import GRIDS, load_grid


@pytest.mark.ci
@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize(
    "settings", [(), ("datasets=[dsa, dsa_within]", "seeds=[0]", "rounds=6")], ids=["paper", "dsa"]
)
def test_every_cell_of_every_grid_is_a_valid_configuration(name, settings):
    cells = cells_of(load_grid(name), settings, skip_unknown=True)
    assert len({c.name for c in cells}) == len({c.hash for c in cells}) == len(cells) > 0
    for cell in cells:
        assert cell.hash == config_hash(cell.config.identity())
        assert cell.name.endswith(cell.hash[:8]) and cell.config.runtime.mode == "auto"
        if settings:
            assert cell.config.data.name == "dsa" and cell.config.rounds == 6 and cell.config.seed in (0, 1000)


def test_a_cell_is_what_its_values_say():
    cell = cells_of(load_grid("sensitivity"), ["methods=fedavg", "factors=gap100", "backbones=cnn"])[0]
    values = {"rounds": 200, "evaluation": {"every": 5}, "record": {"checkpoint_every": 5}, "fleet": {"gap": 100}}
    assert cell.hash == config_hash(parse({**values, "data": {"name": "pamap2"}, "seed": 10_000}).identity())
    assert (cell.label, cell.setting) == ("fedavg", "pamap2-cnn-gap100")
    assert cell.name == f"pamap2-cnn-gap100-fedavg-r0-{cell.hash[:8]}"
    assert cell.config.name == f"sensitivity-{cell.name}"


def test_the_same_configuration_is_the_same_cell_in_every_grid():
    first = [cells_of(load_grid(g), ["methods=[fedavg, relief]"])[0].hash for g in ("main_cnn", "ablation", "coupling")]
    assert len(set(first)) == 1


def test_two_points_with_the_same_configuration_are_one_cell():
    same = tuple(Level(name=name) for name in ("one", "two"))
    grid = Spec(name="g", title="", methods=("relief",), datasets=("dsa_mini",), axes=(Axis(name="x", levels=same),))
    assert [(c.setting, c.config.seed) for c in cells_of(grid)] == [
        ("dsa_mini-one", s) for s in (10_000, 10_100, 10_200)
    ]


@pytest.mark.parametrize(
    ("name", "setting", "words"),
    [
        ("smoke", "data.name=dsa", "--set data.name=dsa: data.name is in the cells' names; expected --set datasets="),
        ("smoke", "data.split=within_subject", "expected --set datasets="),
        ("smoke", "data={name: dsa}", "data.name is in the cells' names"),
        ("smoke", "data.fold=2", "expected --set folds="),
        ("smoke", "seed=5", "expected --set seeds="),
        ("smoke", "replicate=5", "expected --set replicates="),
        ("main_cnn", "fleet.rotation=1", "expected --set replicates="),
        ("smoke", "strategy.name=fedavg", "expected --set methods="),
        ("smoke", "strategy=fedavg", "expected --set methods="),
        ("smoke", "name=mine", "expected what the grid says, or a grid FILE.py of your own"),
        ("coupling", "fleet.coupling=inverted", "expected --set coupling="),
        ("sensitivity", "fleet.gap=20", "expected --set factors="),
        ("search_lr", "training.lr=0.1", "expected what the grid says"),
        ("smoke", "folds=[0, 9]", "dsa_mini_held_out has folds [0, 1, 2, 3]; expected some of those"),
        ("main_cnn", "folds=[2]", "pamap2, mhealth have no folds; expected one of --set 'datasets=[dsa, dsa_mini_hel"),
    ],
)
def test_what_a_cell_is_called_after_is_chosen_by_the_axes_alone(name, setting, words):
    with pytest.raises(UserError) as error:
        cells_of(load_grid(name), [setting])
    assert words in str(error.value)


def test_folds_stand_beside_datasets_without_any():
    cells = cells_of(load_grid("main_cnn"), ["datasets=[dsa, dsa_within]", "folds=[1]", "seeds=[0]", "methods=v1"])
    assert [(c.setting, c.config.data.fold) for c in cells] == [("dsa-cnn", 1), ("dsa_within-cnn", 0)]
    with pytest.raises(UserError, match="dsa_within has no folds"):
        cells_of(load_grid("main_cnn"), ["datasets=dsa_within", "folds=[2]"])


@pytest.mark.ci
@pytest.mark.parametrize("name", GRIDS)
def test_every_grid_is_scaled_by_rounds_and_sizes(name):
    cells = cells_of(load_grid(name), ["rounds=6", "record.checkpoint_every=1"], skip_unknown=True)
    assert {c.config.rounds for c in cells} == {6}


@pytest.mark.parametrize(
    ("setting", "seeds"), [("seeds=0-1", [0, 1]), ("seeds=3,0", [3, 0]), ("seeds=[5]", [5]), ("seeds=[4, 2]", [4, 2])]
)
def test_seeds_are_a_list_or_a_range(setting, seeds):
    cells = cells_of(load_grid("smoke"), [setting, "methods=relief", "folds=0"])
    assert [c.config.seed for c in cells] == seeds


def test_the_smoke_grid_is_as_short_on_other_data():
    """The settings of its own data set are the grid's: not the paper's, nor a configuration's defaults."""
    cells = cells_of(load_grid("smoke"), ["datasets=[pamap2, dsa_mini_held_out]"])
    assert {c.config.data.name for c in cells} == {"pamap2", "dsa_mini"}
    assert {(c.config.data.stride_s, c.config.training.epochs, c.config.rounds) for c in cells} == {(5.0, 1, 3)}


@pytest.mark.parametrize(("setting", "numbers"), [("replicates=2", [0, 1]), ("replicates=[5]", [5])])
def test_replicates_replace_seeds_and_name_the_cells(setting, numbers):
    cells = cells_of(load_grid("smoke"), [setting, "methods=relief", "folds=0"])
    assert [(c.config.replicate, c.config.seed) for c in cells] == [(n, 10_000 + 100 * n) for n in numbers]
    assert [c.config.fleet.rotation for c in cells] == [n % 6 for n in numbers]
    assert [c.name.split("-")[3] for c in cells] == [f"r{n}" for n in numbers]
    turned = cells_of(load_grid("smoke"), ["seeds=[3]", "fleet.rotation=2", "methods=relief", "folds=0"])
    assert [(c.config.replicate, c.config.fleet.rotation) for c in turned] == [(None, 2)]


def test_a_replicate_is_not_part_of_what_a_cell_is():
    (cell,) = cells_of(load_grid("smoke"), ["replicates=[7]", "methods=relief", "folds=2"])
    (plain,) = cells_of(load_grid("smoke"), ["seeds=[10702]", "fleet.rotation=1", "methods=relief", "folds=2"])
    assert cell.hash == plain.hash


def test_methods_that_are_not_built_are_named():
    grid = Spec(name="g", title="", methods=("fedavg", "no_such_method"), datasets=("dsa_mini",))
    with pytest.raises(UserError, match=r"no method no_such_method; known are fedavg.*--skip-unknown"):
        cells_of(grid)
    assert {c.label for c in cells_of(grid, skip_unknown=True)} == {"fedavg"}
    assert cells_of(replace(grid, methods=("no_such_method",)), skip_unknown=True) == ()


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("methods=relif", "did you mean 'relief'"),
        ("datasets=pamap", "did you mean 'pamap2'"),
        ("factors=gap11", "expected some of moderate, gap10, gap100, n20, n50, n100"),
        ("seeds=none", "expected a list of numbers"),
        ("seeds=2", "could be 2 seeds or seed 2; expected a list: --set seeds=0-1 for 2 seeds from 0 on"),
        ("replicates=none", "expected a number of replicates or a list"),
        ("folds=[a]", "expected a fold or a list of numbers"),
        ("round=3", "did you mean 'rounds'"),
        ("rounds=0", "rounds = 0"),
    ],
)
def test_what_is_wrong_is_named(setting, words):
    with pytest.raises(UserError, match=words.replace("(", r"\(")):
        cells_of(load_grid("sensitivity"), [setting], skip_unknown=True)


def test_a_grid_of_the_users_own(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from relief_ray.studies.spec import Spec\n"
        "def grid():\n    return Spec(name='mine', title='', methods=('v1',), datasets=('dsa_mini',), seeds=(4,))\n"
    )
    (cell,) = cells_of(load_grid(str(path)))
    assert (cell.label, cell.config.seed, cell.config.data.name) == ("v1", 4, "dsa_mini")
    path.write_text("grid = lambda: 3\n")
    with pytest.raises(UserError, match=r"expected a function grid\(\)"):
        load_grid(str(path))


def test_an_unknown_grid_is_named_with_the_nearest():
    with pytest.raises(UserError, match="did you mean 'ablation'"):
        load_grid("abblation")


@pytest.mark.ci
def test_grids_do_not_load_ray():
    code = (
        "import sys\nfrom tune_configs.registry import GRIDS, load_grid\n[load_grid(name) for name in GRIDS]\n"
        "assert 'ray' not in sys.modules and 'relief_ray.strategies' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_methods_of_the_paper_that_exist_are_used_under_their_preset_names():
    cells = cells_of(load_grid("main_cnn"), skip_unknown=True)
    assert {c.label for c in cells} == {m for m in load_grid("main_cnn").methods if m in PRESETS}
    assert all(c.config.label() == c.label for c in cells)


def test_an_axis_that_is_misspelt_is_named():
    with pytest.raises(UserError, match=r"--set method=..: unknown \(did you mean 'methods'\?\); its axes are replic"):
        cells_of(load_grid("smoke"), ["method=[fedavg]"])
    with pytest.raises(UserError, match=r"unknown key 'training.method'"):
        cells_of(load_grid("smoke"), ["training.method=1"])
