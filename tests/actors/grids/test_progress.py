"""Progress as the driver sees it: rounds counted from folders, time left, leaders, a full disk."""

import json
import time
from dataclasses import replace

import pytest

from actors.commands.plan_text import end_of
from actors.grids.scheduler import keep_death
from actors.terminal.progress import CellEvents
from relief_ray.experiment.experiment import open_cell, run_cell, run_opened
from relief_ray.records import ledger
from relief_ray.records.run_folder import read_rounds
from relief_ray.studies.loop import Loop, is_disk_full, leaders
from relief_ray.studies.plan import Plan, keep_error
from relief_ray.studies.progress import End, LinesOfSeveral, duration, end_line, picture
from tests.actors.grids.tiny_plans import tiny_grid, tiny_plan
from tests.actors.trials import run_alone
from tests.loaders import ODD, ODDITIES, write_lab
from tests.plans import cells_of


class Heard(LinesOfSeveral):
    """Shows lines, and remembers the rounds that it hears of."""

    def __init__(self):
        super().__init__()
        self.rounds = []

    def round(self, cell, record):
        super().round(cell, record)
        self.rounds.append((cell.title, record.round))


def follow(plan, callback):
    return Loop(plan, callback, plan.look())


def test_a_loop_follows_cells_to_their_end(tmp_path, capsys, monkeypatch):
    scans, scan = [], ledger._scan
    monkeypatch.setattr(ledger, "_scan", lambda *place: scans.append(place) or scan(*place))
    plan = tiny_plan(tmp_path, methods=("fedavg", "relief")).write()
    heard = Heard()
    loop = follow(plan, heard)
    fedavg, relief = plan.look()
    assert loop.view().left_s is None
    loop.begin(fedavg.cell.name)
    run_alone(fedavg)
    time.sleep(0.01)
    loop.tick()
    view = loop.view()
    assert [(c.title, c.num_rounds, c.num_planned) for c in view.running] == [("dsa_mini-fedavg-s0", 3, 3)]
    assert (view.num_done, view.num_cells) == (0, 2) and view.left_s is not None and view.left_s > 0
    scans.clear()
    loop.end(fedavg.cell.name)
    assert len(scans) == 2, "of its new lines, and of the whole ledger once"
    assert heard.rounds == [("dsa_mini-fedavg-s0", number) for number in (1, 2, 3)], "each once"
    f1 = read_rounds(fedavg.folder)[-1].metrics.f1
    assert plan.look()[0].last_tested().metrics.f1 == f1 == loop.view().leaders[0].f1
    assert "[1/2] dsa_mini-fedavg-s0: done in" in (said := capsys.readouterr().out) and f"F1 {100 * f1:.1f} %" in said
    loop.begin(relief.cell.name)
    keep_death(loop, relief.cell.name, "Traceback\nActorDiedError: killed", None)
    loop.end(relief.cell.name)
    assert loop.view().num_failed == 1 and not loop.view().running
    assert plan.look()[1].why.startswith("its process died")
    assert "dsa_mini-relief-s0: FAILED in" in capsys.readouterr().out
    assert [(x.setting, x.label, x.num, x.of) for x in loop.view().leaders] == [("dsa_mini", "fedavg", 1, 1)]


def test_rounds_are_told_once_while_a_cell_runs_and_not_again_after_a_resume(tmp_path):
    plan = tiny_plan(tmp_path, methods=("fedavg",)).write()
    (state,) = plan.look()
    heard = Heard()
    stops = iter((False, True))
    run_cell(state.cell.config, state.folder, should_stop=lambda: next(stops))
    loop = follow(plan, heard)
    setup = open_cell(state.cell.config, state.folder)
    loop.begin(state.cell.name)
    assert not loop.stop() and heard.rounds == [], "what a resume may drop is no news"
    run_opened(setup, state.folder, should_stop=loop.stop)
    loop.end(state.cell.name, "done")
    assert [number for _, number in heard.rounds] == [2, 3]


@pytest.mark.ci
def test_what_is_odd_about_the_data_is_shown_once_for_all_cells(write, tmp_path, monkeypatch, capsys):
    path = write_lab(write, tmp_path, monkeypatch, ODD)
    owned = {"fleet.types": {"A": {"sensors": "all"}, "B": {"sensors": "wrist"}, "C": {"sensors": "wrist"}}}
    grid = replace(tiny_grid(methods=("fedavg", "v1"), **owned), datasets=(path,))
    (tmp_path / "grid").mkdir()
    plan = Plan(kind="grid", out=tmp_path / "grid", name="tiny", title="", cells=cells_of(grid)).write()
    loop = follow(plan, LinesOfSeveral())
    for entry in plan.look():
        loop.begin(entry.cell.name)
        assert run_alone(entry) == "done"
        loop.end(entry.cell.name)
    said = capsys.readouterr().out
    assert [said.count(f"WARNING: data {path}: {text}") for text in ODDITIES] == [1] * len(ODDITIES)


def test_leaders_are_by_mean_over_seeds(tmp_path):
    entries = tiny_plan(tmp_path, seeds=(0, 1)).look()
    scores = dict(zip([e.cell.name for e in entries], [0.9, 0.6, 0.1, 0.5], strict=True))
    (leader,) = leaders(entries, scores)
    assert (leader.label, leader.f1, leader.num, leader.of) == ("relief", 0.55, 2, 2)


def test_a_full_disk_is_recognised(tmp_path):
    plan = tiny_plan(tmp_path, methods=("fedavg",))
    (entry,) = plan.look()
    keep_error(entry.folder, OSError(28, "No space left on device"))
    assert is_disk_full(plan.look()[0])
    keep_error(entry.folder, ValueError("something else"))
    assert not is_disk_full(plan.look()[0])


def test_lines_json_and_table_say_the_same(tmp_path, capsys):
    plan = tiny_plan(tmp_path, methods=("fedavg",)).write()
    loop = follow(plan, CellEvents(stderr=True))
    (entry,) = plan.look()
    loop.begin(entry.cell.name)
    from rich.console import Console

    console = Console(width=100, record=True)
    console.print(picture(loop.view()))
    shown = console.export_text()
    assert "0/1 cells" in shown and "dsa_mini-fedavg-s0" in shown and "0/3" in shown
    capsys.readouterr()
    run_alone(entry)
    loop.end(entry.cell.name)
    event = json.loads(capsys.readouterr().out)
    assert (event["event"], event["status"], event["done"], event["cells"]) == ("cell", "done", 1, 1)
    cell = replace(entry.cell, title="a")
    line = end_line(cell, End(status="failed", seconds=2.0, why="first\nsecond", view=loop.view()))
    assert line == "[1/1] a: FAILED in 2.0 s  first"


def test_durations_are_short():
    assert [duration(s) for s in (0.4, 99, 100, 3600, 6000, 90000)] == [
        "0 s",
        "99 s",
        "2 min",
        "60 min",
        "1.7 h",
        "25.0 h",
    ]


@pytest.mark.ci
@pytest.mark.parametrize(("part", "said"), [("test", "too short to judge: relief > fedavg in F1"), ("validation", "")])
def test_a_finished_grid_ends_with_the_verdicts_on_its_claims_where_it_was_tested(part, said, run_cache, tmp_path):
    claims = tmp_path / "claims.yaml"
    claims.write_text("claims:\n  - {first: relief, second: fedavg}\n")
    plan = replace(tiny_plan(tmp_path / "grid", **{"evaluation.parts": [part]}), claims_file=claims).write()
    assert [run_alone(state) for state in plan.look()] == ["done", "done"]
    result = end_of(plan)
    text = " ".join(" ".join(result.text).split())
    assert said in text and bool(said) == ("Of 1 claim named" in text)
    assert len(result.facts.get("verdicts", [])) == bool(said)
