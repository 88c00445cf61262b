"""A search whose tries Optuna suggests: repeatable from its folders, inside its space, on validation data alone."""

import importlib.util
from dataclasses import replace

import pytest
from optuna.distributions import IntDistribution

from actors.commands.plan_text import Forecast
from actors.grids.estimate import Estimate
from actors.grids.search import again, freeze, samplers_of, space_of, suggested_tries
from relief_ray.records.run_folder import read_rounds
from relief_ray.studies.loop import f1_heading
from relief_ray.studies.plan import Plan
from relief_ray.studies.spec import Level
from relief_ray.support.errors import UserError
from tests.actors.conftest import Invoke
from tests.actors.grids.tiny_plans import TINY
from tests.actors.trials import run_alone
from tests.plans import typed
from tune_configs.registry import load_grid
from tune_configs.search import read_tuned, tries

SMALL = [f"{k}={v}" for k, v in TINY.items() if k != "backbone"] + ["backbone.conv1=2", "backbone.fusion=4"]
SETTINGS = ["datasets=dsa_mini", "methods=fedprox", *SMALL, "rounds=2"]


def carried_out(search, batches):
    """The plan after so many batches, every cell in this process; ends before the last one is told."""
    for batch in range(batches):
        plan = search.ask()
        plan.out.mkdir(exist_ok=True)
        plan = plan.write()
        for entry in plan.look():
            run_alone(entry)
        if batch < batches - 1:
            assert search.tell(plan)
    return plan


@pytest.mark.ci
def test_a_resumed_search_gets_the_same_tries_and_goes_on(tmp_path):
    whole = carried_out(suggested_tries("search_lr", typed(*SETTINGS), tmp_path / "whole", 7, seed=3), 3)
    carried_out(suggested_tries("search_lr", typed(*SETTINGS), tmp_path / "part", 7, seed=3), 1)
    part = carried_out(again(Plan.read(tmp_path / "part", kind="grid"), []), 3)
    assert [c.name for c in part.cells] == [c.name for c in whole.cells] and len(whole.cells) == 7
    other = suggested_tries("search_lr", typed(*SETTINGS), tmp_path / "other", 7, seed=4).ask()
    assert not {c.name for c in other.cells} & {c.name for c in whole.cells}
    records = [record for entry in whole.look() for record in read_rounds(entry.folder)]
    assert records and all(r.metrics is None and r.validation is not None for r in records), "the test part stays shut"
    for cell in whole.cells:
        assert 1e-4 <= cell.config.training.lr <= 1e-2 and 0.001 <= cell.config.strategy.mu <= 0.1
        assert cell.config.choice.parameters == ("training.lr", "strategy.mu")


def test_what_a_search_takes_is_told_of_all_its_tries(tmp_path):
    plan = suggested_tries("search_lr", typed(*SETTINGS), tmp_path / "whole", 12, seed=3).ask()
    entries = plan.look()
    known = {e.cell.name: Estimate(seconds=4.0, num_bytes=2**20, origin="one timed round") for e in entries}
    forecast = Forecast(plan=plan, states=entries, known=known, num_places=2, start_s=20.0, share=3 / 12)
    text = forecast.text()
    lines, text = text.splitlines(), " ".join(text.split())
    assert "3 cells (3 planned)" in text and "of 12: later ones" in text and "(all 12 cells" in text
    assert "in all 48 s of work, 12 MiB of disk; on 2 cores it takes 44 s with Ray's start" in text
    assert all(len(line) <= 80 or str(tmp_path) in line for line in lines)
    assert forecast.facts()["core_s"] == 48.0
    assert "later ones" not in replace(forecast, share=1.0).text()
    assert f1_heading(entries) == "validation F1 %"


@pytest.mark.ci
def test_a_choice_is_frozen_once_all_tries_are_done_and_knows_the_edge_of_the_space(tmp_path):
    search = suggested_tries("search_lr", typed(*SETTINGS), tmp_path / "s", 4, seed=0)
    plan = carried_out(search, 1)
    with pytest.raises(UserError, match="no method has all of its tries done"):
        freeze(Plan.read(plan.out, kind="grid"), tmp_path / "tuned.json")
    assert search.tell(plan)
    plan = carried_out(search, 1)
    freeze(Plan.read(plan.out, kind="grid"), tmp_path / "tuned.json")
    (frozen,) = read_tuned(tmp_path / "tuned.json").choices
    rate = frozen.settings["training.lr"]
    assert frozen.choice.num_tries == 4 and rate in {c.config.training.lr for c in plan.cells}
    assert ("training.lr" in frozen.choice.at_edge) == (not 1e-4 * 100**0.05 < rate < 1e-4 * 100**0.95)


def test_an_open_cell_is_waited_for(tmp_path):
    search = suggested_tries("search_lr", typed(*SETTINGS), tmp_path / "s", 4, seed=0)
    plan = search.ask()
    plan.out.mkdir()
    assert not search.tell(plan.write())


@pytest.mark.parametrize(
    ("method", "kinds"),
    [("fedprox", ["log", "log"]), ("fedel", ["log", "linear"]), ("darkdistill", ["log", "int"]),
     ("relief", ["log", "choice"]), ("helora", ["log", "choice"]), ("fedavg", ["log", "int"])],
)  # fmt: skip
def test_the_space_lies_between_the_fixed_tries(method, kinds):
    space = space_of(tries(method))
    shown = ["choice" if d.choices else "int" if isinstance(d.values, IntDistribution)
             else "log" if d.values.log else "linear" for d in space]  # fmt: skip
    assert shown == kinds and (space[0].low, space[0].high) == (1e-4, 1e-2)
    assert all(len(d.choices) == 3 for d in space if d.choices)


def test_every_place_is_searched_for_itself():
    places = list(samplers_of(load_grid("search_lr"), 0))
    assert len({p.name for p in places}) == len(places) == 14 * 2
    assert all(len(p.grid.methods) == len(p.grid.datasets) == 1 for p in places)
    (only,) = space_of((Level(name="a", settings={"training.lr": 0.1}),))
    assert only.low == only.high == 0.1


def test_what_is_wrong_is_named(invoke: Invoke, monkeypatch, tmp_path):
    def said(*words):
        done = invoke("grid", *words, "--out", tmp_path / "g")
        assert done.exit_code == 2 and not (tmp_path / "g").exists()
        return " ".join(done.stderr.split())

    assert "grid smoke: is no search" in said("smoke", "--search", "optuna")
    assert "--tries 3: is read by --search optuna alone" in said("search_lr", "--tries", 3)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None)
    assert "pip install -e '.[search]'" in said("search_lr", "--search", "optuna")
