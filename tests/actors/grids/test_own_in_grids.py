"""Grids, searches and tables over a user's own method, data and model, from files in a folder; names stay readable."""

import json

import pytest

from relief_ray.records.cells import PLAN_FILE
from relief_ray.studies.plan import Plan
from relief_ray.studies.spec import Spec, own_dataset
from relief_ray.support.errors import UserError
from tests.actors.conftest import Invoke
from tests.actors.trials import run_alone
from tests.plans import cells_of
from tune_configs.registry import load_grid

HELD_OUT = "data.split=held_out_subject"
OWN = ["datasets=[my_dataset:MY_DATASET]", "methods=[fedavg, my_method:MyMethod]", "backbones=[my_backbone:MyBackbone]"]
SHORT = [
    "rounds=2",
    "evaluation.every=1",
    "training.epochs=1",
    "data.max_windows_per_client=9",
    "tracking.enabled=false",
]


@pytest.fixture
def own(invoke: Invoke, write, tmp_path, monkeypatch):
    """The current folder, with a method, a data set and a backbone as `relief-ray new` writes them."""
    folder = tmp_path / "user"
    for kind in ("method", "dataset", "backbone"):
        assert invoke("new", kind, f"my_{kind}", "--out", folder).exit_code == 0
    assert invoke("data", "synth", "my_dataset:MY_DATASET", "--out", tmp_path / "data").exit_code == 0
    monkeypatch.setenv("RELIEF_DATA", str(tmp_path / "data"))
    return folder


def carried_out(plan):
    """The plan after its cells were computed in this process."""
    plan.out.mkdir(exist_ok=True)
    plan = plan.write()
    for entry in plan.look():
        assert run_alone(entry) == "done", entry.folder
    return plan


@pytest.mark.ci
def test_a_grid_over_ones_own_runs_resumes_and_is_reported_by_name(invoke: Invoke, own, tmp_path):
    cells = cells_of(load_grid("smoke"), [*OWN, *SHORT, "data.split=held_out_subject", "seeds=[0, 1]"])
    assert len(cells) == 2 * 2 * 2 and {c.config.data.fold for c in cells} == {0, 1}
    assert {c.setting for c in cells} == {"my_dataset-mybackbone"}
    assert {c.method for c in cells} == {"fedavg", "my_method"}
    plan = carried_out(Plan(kind="grid", out=tmp_path / "g", name="smoke", cells=cells))
    again = Plan.read(plan.out, kind="grid")
    assert again.cells == plan.cells and all(e.status == "done" for e in again.look())
    resumed = invoke("grid", "resume", plan.out)
    assert resumed.exit_code == 0 and "my_dataset-mybackbone  my_method" in resumed.stdout
    assert invoke("compare", plan.out).stdout.count("my_method ") >= 2
    planned = invoke("plan-study", plan.out, "--first", "my_method:MyMethod", "--second", "fedavg", "--pairs", 12)
    assert planned.exit_code == 0 and "12 paired runs" in planned.stdout, planned.output
    tested = invoke("model", "evaluate", again.look()[0].folder)
    assert tested.exit_code == 0 and "acc+gyro" in tested.stdout
    assert invoke("report", plan.out, "--out", tmp_path / "report").exit_code == 0
    page = (tmp_path / "report" / "report.md").read_text()
    assert "| my_method |" in page and "my_method:MyMethod |" not in page


@pytest.mark.ci
def test_a_search_over_ones_own_is_frozen_and_taken_by_a_table(invoke: Invoke, own, tmp_path):
    place = tmp_path / "s"
    cells = cells_of(load_grid("search_lr"), [*OWN[:1], "methods=[my_method:MyMethod]", *OWN[2:], *SHORT])
    assert len(cells) == 15 and {c.config.choice.parameters for c in cells} == {("training.lr", "strategy.alpha")}
    carried_out(Plan(kind="grid", out=place, name="search_lr", cells=cells))
    frozen = invoke("grid", "freeze", place, "--out", tmp_path / "tuned.json", "--json")
    assert frozen.exit_code == 0, frozen.output
    (choice,) = json.loads(frozen.stdout)["choices"]
    assert (choice["dataset"], choice["method"]) == ("my_dataset:MY_DATASET", "my_method:MyMethod")
    settings = [*OWN[:1], "methods=[my_method:MyMethod]", *OWN[2:], *SHORT, "seeds=[0]"]
    (tuned,) = cells_of(load_grid("smoke"), [*settings, f"tuned={tmp_path / 'tuned.json'}"])
    assert tuned.config.choice.kind == "tuned" and tuned.setting == "my_dataset-mybackbone-tuned"
    assert tuned.config.training.lr == choice["settings"]["training.lr"]


def test_a_file_may_name_them_and_call_a_level_something_else(own, tmp_path):
    path = own / "mine.py"
    path.write_text(
        "from relief_ray.studies.spec import CNN, Axis, Spec, own_backbone, own_dataset\n\n\n"
        "def grid():\n    return Spec(name='mine', title='', methods=('fedavg', 'my_method:MyMethod'),\n"
        "        datasets=('dsa_mini', 'my_dataset:MY_DATASET',\n"
        "            own_dataset('my_dataset:MY_DATASET', name='people', split='held_out_subject')),\n"
        "        axes=(Axis(name='backbones', levels=(CNN, own_backbone('my_backbone:MyBackbone'))),), seeds=(0,))\n"
    )
    cells = cells_of(load_grid(str(path)))
    assert {c.setting for c in cells} == {
        f"{data}-{model}" for data in ("dsa_mini", "my_dataset", "people") for model in ("cnn", "mybackbone")
    }
    chosen = cells_of(load_grid(str(path)), ["datasets=people", "folds=[1]", "backbones=[cnn]"])
    assert {(c.setting, c.config.data.fold) for c in chosen} == {("people-cnn", 1)}
    assert not (own / PLAN_FILE).exists()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["datasets=[no_such:THING]"], "no module 'no_such' in the current folder"),
        (["datasets=[my_dataset:THING]"], "has no 'THING'"),
        (["backbones=[cnnn]"], "did you mean 'cnn'"),
        (
            ["datasets=[dsa_mini, my_dataset:MY_DATASET]", "data.split=held_out_subject"],
            "data.split is in the cells' names",
        ),
        (["datasets=[my_dataset:MY_DATASET]", "folds=[0]"], "my_dataset has no folds"),
        (
            ["datasets=[my_dataset:MY_DATASET]", "data.split=held_out_subject", "folds=[5]"],
            "my_dataset has folds [0, 1]",
        ),
    ],
)
def test_what_is_wrong_is_named(own, settings, words):
    with pytest.raises(UserError) as caught:
        cells_of(load_grid("smoke"), settings)
    assert words in str(caught.value)


def test_two_levels_of_one_name_are_refused(own):
    grid = Spec(
        name="g", title="", methods=("fedavg",),
        datasets=("my_dataset:MY_DATASET", own_dataset("my_dataset:MY_DATASET", split="held_out_subject")),
    )  # fmt: skip
    with pytest.raises(UserError, match="two data sets are called 'my_dataset'"):
        cells_of(grid)
