"""Progress as the driver sees it: rounds counted from folders, time left, leaders, a full disk."""

import json
import time
from dataclasses import replace

from actors.grids.display import GridJson, GridLines, duration, end_line, picture
from actors.grids.progress import GridProgress, is_disk_full, last_round, leaders
from actors.grids.trial import run_trial
from actors.runtime.warm_pool import WorkerCache
from actors.terminal.mlflow_export import Exports
from actors.terminal.progress import CellEnd
from relief_ray.records.run_folder import read_rounds
from relief_ray.studies.plan import Plan, keep_error
from tests.actors.grids.tiny_plans import tiny_grid, tiny_plan
from tests.actors.test_plans import spec_of
from tests.loaders import ODD, ODDITIES, write_lab
from tune_configs.registry import cells_of


def follow(plan, reporter):
    ticks = []
    exports = Exports(lambda text: None)
    return GridProgress(
        entries=plan.look(),
        todo=plan.look(),
        reporter=reporter,
        exports=exports,
        on_tick=lambda: ticks.append(1),
    ), ticks


def test_progress_follows_cells_to_their_end(tmp_path, capsys):
    plan = tiny_plan(tmp_path, methods=("fedavg", "relief")).write()
    progress, ticks = follow(plan, GridLines())
    fedavg, relief = plan.look()
    assert progress.view().left_s is None and sum(progress.left.values()) == 3 + 4
    progress.begun(fedavg.cell.name)
    run_trial(spec_of(fedavg), WorkerCache())
    time.sleep(0.01)
    progress.tick()
    view = progress.view()
    assert ticks and (view.num_done, view.num_cells) == (0, 2)
    assert [(c.title, c.num_rounds, c.num_planned) for c in view.running] == [("dsa_mini-fedavg-s0", 3, 3)]
    assert view.left_s is not None and view.left_s > 0
    progress.ended(fedavg.cell.name, "")
    f1 = read_rounds(fedavg.folder)[-1].metrics.f1
    assert last_round(fedavg.folder).metrics.f1 == f1 == progress.scores[fedavg.cell.name]
    assert "[1/2] dsa_mini-fedavg-s0: done in" in (said := capsys.readouterr().out) and f"F1 {100 * f1:.1f} %" in said
    progress.begun(relief.cell.name)
    progress.ended(relief.cell.name, "Traceback\nActorDiedError: killed")
    assert progress.view().num_failed == 1 and not progress.running
    assert plan.look()[1].why.startswith("its process died")
    assert "dsa_mini-relief-s0: FAILED in" in capsys.readouterr().out
    best = leaders(plan.look(), progress.scores)
    assert [(x.setting, x.label, x.num, x.of) for x in best] == [("dsa_mini", "fedavg", 1, 1)] and best[0].f1 == f1


def test_what_is_odd_about_the_data_is_shown_once_for_all_cells(write, tmp_path, monkeypatch, capsys):
    path = write_lab(write, tmp_path, monkeypatch, ODD)
    owned = {"fleet.owned": {"A": ["wrist", "hip", "ankle"], "B": ["wrist"], "C": ["wrist"]}}
    grid = replace(tiny_grid(methods=("fedavg", "v1"), **owned), datasets=(path,))
    (tmp_path / "grid").mkdir()
    plan = Plan(kind="grid", out=tmp_path / "grid", name="tiny", title="", cells=cells_of(grid)).write()
    progress, _ = follow(plan, GridLines())
    for entry in plan.look():
        progress.begun(entry.cell.name)
        assert run_trial(spec_of(entry), WorkerCache()) == "done"
        progress.ended(entry.cell.name, "")
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
    progress, _ = follow(plan, GridJson())
    (entry,) = plan.look()
    progress.begun(entry.cell.name)
    run_trial(spec_of(entry), WorkerCache())
    progress.tick()
    from rich.console import Console

    console = Console(width=100, record=True)
    console.print(picture(progress.view()))
    shown = console.export_text()
    assert "0/1 cells" in shown and "dsa_mini-fedavg-s0" in shown and "3/3" in shown
    capsys.readouterr()
    progress.ended(entry.cell.name, "")
    event = json.loads(capsys.readouterr().out)
    assert (event["event"], event["status"], event["done"], event["cells"]) == ("cell", "done", 1, 1)
    line = end_line(CellEnd(title="a", status="failed", seconds=2.0, why="first\nsecond", view=progress.view()))
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
