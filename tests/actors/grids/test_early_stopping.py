"""Early stopping of a search's tries: rungs, refusals, what a stopped cell says, and who can win."""

import json

import pytest
from rich.console import Console

from actors.grids.scheduler import SearchScheduler
from actors.grids.search import (
    SuggestedTries,
    asha,
    freeze,
    mark_stopped,
    rungs,
    samplers_of,
    scores_at,
    stopped_early,
    suggested_tries,
)
from actors.grids.trial import CellTrial
from actors.runtime import serialization
from actors.runtime.warm_pool import WorkerCache
from relief_ray.config.experiment import ExperimentConfig, parse, read_settings
from relief_ray.records.cells import EarlyStopping
from relief_ray.records.run_folder import read_rounds, read_run
from relief_ray.records.schema import comparable
from relief_ray.report.build import build
from relief_ray.report.runs import take_inventory
from relief_ray.studies.plan import Plan
from relief_ray.studies.progress import End, Leader, Running, View, end_line, picture
from relief_ray.studies.spec import Cell, choose
from relief_ray.support.errors import UserError
from tests.actors.conftest import Invoke
from tests.actors.grids.test_search import SETTINGS
from tests.actors.grids.tiny_plans import tiny_plan, tiny_search
from tests.actors.trials import run_alone, trial_of
from tests.plans import cells_of, typed
from tune_configs.registry import load_grid
from tune_configs.search import read_tuned

RULE = EarlyStopping(scheduler="asha", grace_rounds=1, reduction_factor=2)


@pytest.mark.parametrize(
    ("grace", "factor", "rounds", "every", "judged"),
    [(25, 3, 200, 5, (25, 75)), (1, 3, 27, 1, (1, 3, 9)), (6, 2, 30, 5, (10, 15, 25)), (4, 2, 5, 1, (4,)),
     (5, 2, 6, 5, (5,)), (9, 2, 10, 5, ())],
)  # fmt: skip
def test_rungs_are_tested_rounds_before_the_last(grace, factor, rounds, every, judged):
    config = parse({"rounds": rounds, "evaluation": {"every": every}})
    rule = EarlyStopping(scheduler="asha", grace_rounds=grace, reduction_factor=factor)
    assert rungs(rule, config) == judged and all(r % every == 0 and grace <= r < rounds for r in judged)


def test_the_first_rung_is_a_ninth_of_the_rounds_and_behind_every_warm_up():
    def rule(*settings, factor=None):
        return asha(cells_of(load_grid("search_lr"), ["datasets=dsa_mini", *settings]), None, factor)

    assert rule("methods=fedavg") == EarlyStopping(scheduler="asha", grace_rounds=25, reduction_factor=3)
    assert rule("methods=fedavg", factor=4).grace_rounds == 15, "200 / 16 is 12.5: the first tested round after it"
    assert rule("methods=fedavg", "rounds=20", "evaluation.every=1").grace_rounds == 3
    # FedLEASE's five rounds of warm-up and one more, HELoRA and others have none.
    assert rule("methods=[fedavg, fedlease]", "rounds=20", "evaluation.every=1").grace_rounds == 6


@pytest.mark.parametrize(
    ("change", "grace", "message"),
    [({"rounds": 3, "evaluation.every": 3}, None, "leaves no tested round between the first rung"),
     ({"rounds": 9, "evaluation.every": 4}, 2, "--set evaluation.every=2, or --grace-rounds 4"),
     ({"rounds": 3}, 3, "leaves no tested round"),
     ({"evaluation.parts": ["validation", "test"]}, None, r"expected --set evaluation.parts=\[validation\]")],
)  # fmt: skip
def test_where_nothing_could_be_stopped_it_is_refused(tmp_path, change, grace, message):
    with pytest.raises(UserError, match=message):
        asha(tiny_search(tmp_path, **change).cells, grace, None)


def test_a_mean_over_seeds_a_warm_up_and_cells_that_are_no_tries_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"2 seeds \(0, 1\)"):
        asha(tiny_search(tmp_path, seeds=(0, 1)).cells, None, None)
    with pytest.raises(UserError, match="is no try of a search"):
        asha(tiny_plan(tmp_path).cells, None, None)
    lease = cells_of(load_grid("search_lr"), ["datasets=dsa_mini", "methods=fedlease", "evaluation.every=1"])
    with pytest.raises(UserError, match=r"the last phase of fedlease.*--grace-rounds 2 or more"):
        asha(lease, 1, None)


def test_a_cell_in_parts_has_the_bits_of_one_in_a_piece_and_says_its_score(tmp_path):
    parts, whole = (tiny_search(tmp_path / name).write().look()[0] for name in ("parts", "whole"))
    run_alone(whole)
    trial = trial_of(parts, 1, 2)
    workers = WorkerCache()
    first = trial.step(workers)
    f1 = read_rounds(parts.folder)[-1].validation.headline
    assert first == {"done": False, "status": "interrupted", "round": 1, "f1": f1}
    assert scores_at(parts.folder, (1, 2)) == {1: f1} and scores_at(parts.folder / "none", (1,)) == {}
    assert trial.step(WorkerCache())["round"] == 2 and read_run(parts.folder).num_resumes == 0, (
        "the same process goes on"
    )
    assert (
        trial_of(parts, 1, 2).step(WorkerCache()) == {"done": True, "status": "done"}
        and read_run(parts.folder).num_resumes == 1
    )
    assert [comparable(r) for r in read_rounds(parts.folder)] == [comparable(r) for r in read_rounds(whole.folder)]


def test_another_cell_in_the_same_process_begins_anew(tmp_path, monkeypatch):
    first, second, *_ = tiny_search(tmp_path / "s").write().look()
    process = CellTrial.__new__(CellTrial)
    monkeypatch.setattr(serialization, "get", lambda trials: trials)  # without Ray
    process._trials = {state.cell.name: trial_of(state) for state in (first, second)}
    process._worker_cache = WorkerCache()
    assert process.reset_config({"cell": first.cell.name}) and process.step()["status"] == "done"
    assert process.reset_config({"cell": second.cell.name}) and process.step()["status"] == "done"
    assert [read_run(state.folder).name for state in (first, second)] == [
        first.cell.config.name, second.cell.config.name
    ]  # fmt: skip


class Trial:
    """What a scheduler reads of Tune's trials."""

    def __init__(self, entry):
        self.trial_id, self.config = entry.cell.name[::-1], {"cell": entry.cell.name}


def judge(plan, entry, round_, f1):
    scheduler = SearchScheduler(plan.look(), RULE)
    scheduler.on_trial_add(None, trial := Trial(entry))
    return scheduler.on_trial_result(None, trial, {"round": round_, "f1": f1})


def test_a_try_is_judged_by_those_of_earlier_sessions_and_of_its_own_place_alone(tmp_path):
    plan = stopped_early(tiny_search(tmp_path / "s", datasets=("dsa_mini", "dsa_mini_held_out")), RULE).write()
    first, *others = (e for e in plan.look() if e.cell.setting.startswith("dsa_mini-"))
    elsewhere = next(e for e in plan.look() if e.cell.setting.startswith("dsa_mini_held_out-"))
    run_alone(first)
    best = scores_at(first.folder, (1,))[1]
    run_alone(others[0], 1)
    run_alone(elsewhere, 1)
    assert judge(plan, elsewhere, 1, best / 2) == "CONTINUE", "the first of its fold"
    assert judge(plan, others[0], 1, 1.01 * best) == "CONTINUE"
    # What its own ledger holds is known, and was judged then: the same round is not judged again.
    assert judge(plan, others[0], 1, best / 2) == "CONTINUE"
    scheduler = SearchScheduler(plan.look(), RULE)
    scheduler.on_trial_add(None, trial := Trial(others[1]))
    run_alone(others[1], 1)
    assert scheduler.on_trial_result(None, trial, {"round": 1, "f1": best / 2}) == "STOP"
    assert [e.why for e in plan.look() if e.status == "stopped"] == ["stopped early by ASHA at round 1"]


@pytest.mark.ci
def test_a_stopped_try_says_so_stays_stopped_and_cannot_win(tmp_path):
    plan = stopped_early(tiny_search(tmp_path / "s"), RULE).write()
    assert plan.title.endswith("ASHA judges tries after rounds 1 and 2 of 3 (reduction factor 2, evaluation.every = 1)")
    weak, *others = plan.look()
    run_alone(weak, 1)
    mark_stopped(weak.folder, 1)
    for entry in others[:-1]:
        run_alone(entry)
    (stopped, *_), run = plan.look(), read_run(weak.folder)
    assert (stopped.status, stopped.why, stopped.num_rounds) == ("stopped", "stopped early by ASHA at round 1", 1)
    assert not stopped.is_open and (run.status, run.note) == ("stopped", stopped.why)
    with pytest.raises(UserError, match="no method has all of its tries done"):
        freeze(Plan.read(plan.out, kind="grid"), tmp_path / "tuned.json")
    run_alone(others[-1])
    assert Plan.read(plan.out, kind="grid").stopping == RULE
    freeze(Plan.read(plan.out, kind="grid"), tmp_path / "tuned.json")
    (frozen,) = read_tuned(tmp_path / "tuned.json").choices
    means = {e.cell.config.training.lr: read_rounds(e.folder)[-1].validation.headline for e in others}
    assert frozen.choice.num_tries == 4 and frozen.num_cells == 3
    assert frozen.choice.f1_validation == max(read_rounds(e.folder)[-1].validation.headline for e in others) and means
    with pytest.raises(UserError, match=r"stopped by --scheduler asha --grace-rounds 1.*asked: run to their end"):
        tiny_search(tmp_path / "s").write()
    table = next(t for t in build(take_inventory([plan.out])).tables if t.slug == "search-1")
    cells = [cell for row in table.rows for cell in row.cells]
    assert sorted(cell.below for cell in cells) == ["1 rounds, stopped", "3 rounds", "3 rounds", "3 rounds"]
    assert [c.tone for c in cells].count("good") == 1 and "stopped early" in table.notes[-1]


def test_optuna_hears_of_a_stopped_try_as_pruned_at_its_last_round():
    import optuna

    (sampler,) = samplers_of(load_small(), 0)
    sampler.ask(3)
    first, second, third = (level.name for level in sampler.tries)
    sampler.tell({first: 0.5}, {second: {1: 0.2, 2: 0.3}})
    trials = {t.number: t for t in sampler._study.get_trials()}
    assert [t.state for t in trials.values()] == [
        optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED, optuna.trial.TrialState.FAIL,
    ]  # fmt: skip
    assert trials[1].intermediate_values == {1: 0.2, 2: 0.3} and third


def load_small():
    return choose(load_grid("search_lr"), read_settings(["datasets=dsa_mini", "methods=fedprox"]))[0]


def test_a_suggested_search_keeps_its_rule_when_it_is_asked_again(tmp_path):
    from actors.grids.search import again

    search = suggested_tries("search_lr", typed(*SETTINGS), tmp_path / "s", 4, seed=0)
    search = search.with_stopping(asha(search.listed(), 1, 2))
    assert isinstance(search, SuggestedTries) and "suggested by Optuna (seed 0)" in search.plan.title
    plan = search.ask()
    plan.out.mkdir()
    plan = plan.write()
    weak, *others = plan.look()
    run_alone(weak, 1)
    mark_stopped(weak.folder, 1)
    for entry in others:
        run_alone(entry)
    assert search.tell(plan)
    resumed = again(Plan.read(plan.out, kind="grid"), [])
    assert resumed.plan.title == search.plan.title and resumed.ask().stopping == RULE
    assert resumed.tell(Plan.read(plan.out, kind="grid"))
    assert [c.name for c in resumed.ask().cells] == [c.name for c in search.ask().cells]


def test_lines_of_cells_fit_a_narrow_terminal(monkeypatch):
    view = View(
        num_cells=432, num_done=140, num_failed=1, num_stopped=2, elapsed_s=1.0, left_s=5100.0, running=(), leaders=(),
    )  # fmt: skip
    name = "dsa-cnn-slots3_of_the_slowest_client-relief_by_divergence-f2-r13"
    why = "stopped early by ASHA at round 25"
    cell = Cell(name="x", label="relief", config=ExperimentConfig(), hash="", title=name)
    stopped = End(status="stopped", seconds=40.7, why=why, view=view)
    done = End(status="done", seconds=40.7, view=view)
    monkeypatch.delenv("COLUMNS", raising=False)
    assert end_line(cell, stopped) == f"[143/432] {name}: {why} in 40.7 s  ~85 min left"
    monkeypatch.setenv("COLUMNS", "80")
    assert len(end_line(cell, done)) == 80 and end_line(cell, done).startswith("[143/432] dsa-cnn-slots3")
    assert "…" in end_line(cell, done) and "-f2-r13: done in 40.7 s  ~85 min left" in end_line(cell, done)


def test_the_live_table_fits_a_narrow_terminal(monkeypatch, capsys):
    name = "dsa-cnn-slots3_of_the_slowest_client_and_more-relief_by_divergence-f2-r13"
    cell = Running(title=name, num_rounds=143, num_planned=200, f1=0.775)
    best = Leader(setting=name, label="relief_by_divergence", f1=0.775, num=100, of=11)
    view = View(
        num_cells=432, num_done=140, num_failed=1, num_stopped=2, elapsed_s=5100.0, left_s=5100.0, running=(cell,),
        leaders=(best,), f1_heading="validation F1 %",
    )  # fmt: skip
    monkeypatch.setenv("COLUMNS", "80")
    Console(width=80).print(picture(view))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5 and max(map(len, lines)) <= 80, "a line each: head, two tables of a row"
    assert "140/432 cells, 2 stopped, 1 failed" in lines[0] and "…" in lines[2] and "…" in lines[4]


def test_options_without_a_scheduler_are_refused(invoke: Invoke, tmp_path):
    def said(*words):
        done = invoke("grid", *words, "--out", tmp_path / "g")
        assert done.exit_code == 2 and not (tmp_path / "g").exists()
        return " ".join(done.stderr.split())

    assert "--grace-rounds 3: is read by --scheduler asha" in said("search_lr", "--grace-rounds", 3)
    assert "is no try of a search" in said("smoke", "--scheduler", "asha")


def test_the_plan_file_holds_the_rule(tmp_path):
    stopped_early(tiny_search(tmp_path), RULE).write()
    assert json.loads((tmp_path / "plan.json").read_text())["stopping"] == RULE.model_dump()
