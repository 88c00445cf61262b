"""The choice of a search: by validation data alone, each fold for itself, with edges named; other grids take it."""

import json
from dataclasses import replace

import pytest

from actors.commands.run import freeze_choices
from actors.grids.search import Search, best_try, freeze
from relief_ray.records.run_folder import read_rounds, read_run
from relief_ray.studies.plan import Plan
from relief_ray.studies.spec import DATASETS, Level
from relief_ray.support.errors import UserError
from tests.actors.grids.tiny_plans import tiny_grid, tiny_plan, tiny_search
from tests.actors.trials import run_alone
from tests.plans import cells_of
from tests.sealed import change_rounds, change_run
from tune_configs.registry import load_grid
from tune_configs.search import Place

HELD_OUT = "dsa_mini_held_out"


def run(plan):
    for entry in plan.look():
        run_alone(entry)


def best_of(plan, fold):
    """The best try by validation, from the folders themselves."""
    scores = {}
    for entry in plan.look():
        config = entry.cell.config
        if config.data.fold == fold:
            tried = (config.training.lr, config.strategy.mu)
            scores.setdefault(tried, []).append(read_rounds(entry.folder)[-1].validation.f1)
    means = {tried: sum(by_fold) / len(by_fold) for tried, by_fold in scores.items()}
    best = max(means, key=lambda tried: means[tried])
    return best, means[best]


@pytest.mark.ci
def test_the_best_try_by_validation_is_frozen_and_used(tmp_path):
    plan, file = tiny_search(tmp_path / "g", seeds=(0, 1)).write(), tmp_path / "tuned.json"
    assert {c.config.choice.parameters for c in Plan.read(plan.out, kind="grid").cells} == {
        ("training.lr", "strategy.mu")
    }
    *most, last = plan.look()
    for entry in most:
        run_alone(entry)
    with pytest.raises(UserError, match="no method has all of its tries done"):
        freeze(plan, file)
    run_alone(last)
    (line,) = freeze(plan, file)
    (frozen,) = json.loads(file.read_text())["choices"]
    (lr, mu), score = best_of(plan, 0)
    assert frozen["settings"] == {"training.lr": lr, "strategy.mu": mu} and f"training.lr={lr:g}" in line
    assert (frozen["dataset"], frozen["fold"], frozen["backbone"]) == ("dsa_mini", None, "cnn")
    assert frozen["choice"]["f1_validation"] == pytest.approx(score)
    assert (frozen["choice"]["num_tries"], frozen["num_cells"]) == (4, 8)
    grid = tiny_grid(methods=("fedprox",))
    (cell,) = cells_of(grid, [f"tuned={file}"])
    assert (cell.config.training.lr, cell.config.strategy.mu) == (lr, mu) and cell.setting == "dsa_mini-tuned"
    with pytest.raises(UserError, match="no choice for relief on dsa_mini, cnn"):
        cells_of(grid, [f"tuned={file}", "methods=relief"])
    with pytest.raises(UserError, match="no choice for fedprox on dsa_mini, moment_lora"):
        cells_of(replace(grid, settings={**grid.settings, "backbone": "moment_lora"}), [f"tuned={file}"])
    with pytest.raises(UserError, match=r"training.lr=0.5: is chosen by --set tuned"):
        cells_of(grid, [f"tuned={file}", "training.lr=0.5"])


@pytest.mark.ci
def test_that_it_was_tuned_is_a_fact_of_plan_and_record(tmp_path):
    search, file = tiny_search(tmp_path / "g", rounds=1).write(), tmp_path / "tuned.json"
    run(search)
    said = freeze_choices(search.out, file).facts
    assert said["choices"] == json.loads(file.read_text())["choices"]
    assert said["written"] == str(file) and "fedprox" in said["methods"][0]
    (plain,), (tuned,) = (cells_of(tiny_grid(methods=("fedprox",)), given) for given in ([], [f"tuned={file}"]))
    plan = replace(tiny_plan(tmp_path / "t"), cells=(plain, tuned)).write()
    run(plan)
    planned = [row["config"]["choice"] for row in json.loads((plan.out / "plan.json").read_text())["cells"]]
    assert planned == [read_run(e.folder).config["choice"] for e in plan.look()]
    assert planned[0] is None and planned[1]["kind"] == "tuned" and planned[1]["num_tries"] == 4
    assert planned[1]["parameters"] == ["training.lr", "strategy.mu"] == planned[1]["at_edge"]
    assert read_run(search.look()[0].folder).config["choice"]["kind"] == "try"
    same = ["training.lr=" + str(tuned.config.training.lr), "strategy.mu=" + str(tuned.config.strategy.mu)]
    assert cells_of(tiny_grid(methods=("fedprox",)), same)[0].hash == tuned.hash


@pytest.mark.ci
def test_a_fold_never_sees_another_folds_subjects(tmp_path):
    """Fold 1 validates on subjects that fold 0 tests, so its scores may decide nothing in fold 0."""
    plan, file = tiny_search(tmp_path / "g", datasets=(HELD_OUT,)).write(), tmp_path / "tuned.json"
    assert {e.cell.config.data.fold for e in plan.look()} == {0, 1}
    run(plan)
    lines = freeze(plan, file)
    assert [line.partition(":")[0] for line in lines] == [f"fedprox on {HELD_OUT}, fold {f}, cnn" for f in (0, 1)]
    grid = replace(tiny_grid(methods=("fedprox",)), datasets=(HELD_OUT,))
    cells = cells_of(grid, [f"tuned={file}", "folds=[0,1]"])
    chosen = {c.config.data.fold: (c.config.training.lr, c.config.strategy.mu) for c in cells}
    assert chosen == {fold: best_of(plan, fold)[0] for fold in (0, 1)}
    before = json.loads(file.read_text())["choices"][0]
    # Whatever fold 1 scored: the choice of fold 0 stays, bit for bit.
    for entry in plan.look():
        if entry.cell.config.data.fold == 1:
            change_rounds(entry.folder, validation={"f1": entry.cell.config.training.lr})
    freeze(plan, file)
    assert json.loads(file.read_text())["choices"][0] == before
    with pytest.raises(UserError, match=f"no choice for fedprox on {HELD_OUT}, fold 2, cnn"):
        cells_of(grid, [f"tuned={file}", "folds=[2]"])


def test_data_sets_whose_names_begin_alike_are_places_of_their_own(tmp_path):
    """A name may hold dashes, as the names of folders do that it is a part of."""
    mini = DATASETS["dsa_mini"].settings
    levels = tuple(
        Level(name=f"dsa-{n}", settings={**mini, "data.stride_s": s}) for n, s in (("long", 30.0), ("short", 15.0))
    )
    plan, file = tiny_search(tmp_path / "g", rounds=1, datasets=levels).write(), tmp_path / "tuned.json"
    run(plan)
    lines = freeze(Plan.read(plan.out, kind="grid"), file)
    assert [line.partition(":")[0] for line in lines] == [f"fedprox on {level.name}, cnn" for level in levels]
    frozen = {c["dataset"]: c["settings"]["strategy.mu"] for c in json.loads(file.read_text())["choices"]}
    taken = cells_of(replace(tiny_grid(methods=("fedprox",)), datasets=levels), [f"tuned={file}"])
    assert {c.setting.removesuffix("-tuned"): c.config.strategy.mu for c in taken} == frozen


def test_a_search_that_opened_the_test_part_is_refused(tmp_path):
    plan = tiny_search(tmp_path / "g", rounds=1, **{"evaluation.parts": ["test", "validation"]}).write()
    run(plan)
    with pytest.raises(UserError, match="a search reads the validation part alone"):
        freeze(plan, tmp_path / "tuned.json")


def test_tries_of_another_program_count_and_several_programs_are_named(tmp_path):
    plan, file = tiny_search(tmp_path / "g", rounds=1).write(), tmp_path / "tuned.json"
    run(plan)
    first, *others = plan.look()
    for entry in others:
        change_run(entry.folder, source_digest="0" * 64)
    *lines, said = freeze(plan, file)
    assert len(lines) == 1 and "4 tries" in lines[0]
    assert "computed by 2 programs (000000000000" in said and "--rerun-stale" in said
    change_run(first.folder, source_digest="0" * 64)
    assert freeze(plan, file) == lines


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    plan = tiny_search(tmp_path / "g", rounds=1).write()
    run(plan)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/t\.json: cannot write: .*expected a writable place"):
        freeze(plan, tmp_path / "file" / "t.json")


def test_a_grid_without_tries_is_refused(tmp_path):
    with pytest.raises(UserError, match="tiny is no search"):
        freeze(tiny_plan(tmp_path).write(), tmp_path / "tuned.json")


def attempt(**values):
    """A try: its keys, dots for double underscores, with their values as JSON."""
    return tuple((key.replace("__", "."), json.dumps(value)) for key, value in values.items())


def test_an_optimum_at_the_edge_is_named():
    place = Place("d", None, "cnn", "relief")
    tries = {
        attempt(training__lr=lr, strategy__deadline_fraction=own): [0.5 if (lr, own) == (0.001, 0.6) else 0.1]
        for lr in (0.0001, 0.001, 0.01)
        for own in (None, 0.6, 0.8)
    }
    best, none = (attempt(training__lr=0.001, strategy__deadline_fraction=own) for own in (0.6, None))
    inside = best_try(place, Search(tries={**tries, best: [0.5, 0.7]}))
    assert inside.settings == {"training.lr": 1e-3, "strategy.deadline_fraction": 0.6}
    assert inside.choice.at_edge == () and inside.choice.f1_validation == pytest.approx(0.6)
    edge = best_try(place, Search(tries={**tries, none: [0.9]}))
    assert edge.settings["strategy.deadline_fraction"] is None
    assert edge.choice.at_edge == ("strategy.deadline_fraction",)


@pytest.mark.parametrize(
    ("best", "rate", "edges"), [("adam", 0.001, ()), ("sgd", 0.03, ("training.lr",)), ("sgd", 0.1, ())]
)
def test_tries_may_set_different_keys_and_an_edge_is_among_tries_of_the_same_optimizer(best, rate, edges):
    """A choice of SGD keeps its momentum and clipping; Adam, listed first, sets neither."""
    adam = [attempt(training__lr=r, training__optimizer="adam") for r in (0.0003, 0.001, 0.003)]
    own = {"training__momentum": 0.9, "training__clip_norm": 1.0}
    sgd = [attempt(training__lr=r, training__optimizer="sgd", **own) for r in (0.03, 0.1, 0.3)]
    chosen = {("adam", 0.001): adam[1], ("sgd", 0.03): sgd[0], ("sgd", 0.1): sgd[1]}[best, rate]
    tries = {tried: [0.9 if tried == chosen else 0.5] for tried in (*adam, *sgd)}
    frozen = best_try(Place("d", None, "cnn", "fedavg"), Search(tries=tries))
    assert frozen.settings == {key: json.loads(value) for key, value in chosen}
    assert frozen.choice.parameters == tuple(frozen.settings) and ("training.clip_norm" in frozen.settings) == (
        best == "sgd"
    )
    assert frozen.choice.at_edge == edges


@pytest.mark.parametrize("text", ["[]", "{}", '{"grid": "g", "score": "s", "choices": {"dsa": {}}}'])
def test_a_file_that_is_no_choice_is_named(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(UserError, match="expected what `relief-ray grid freeze` wrote"):
        cells_of(load_grid("smoke"), [f"tuned={tmp_path / 'x.json'}"])
