"""Progress as the driver sees it: rounds counted from folders, time left, leaders, a full disk."""

import json
import time

from actors.grids.display import JsonScreen, LineScreen, duration, ended_line, picture
from actors.grids.grid_folder import keep_error, write_book
from actors.grids.progress import Board, is_disk_full, last_f1, leaders
from actors.grids.trial import carry_out
from actors.runtime.warm_pool import Crew
from actors.terminal.mlflow_export import Exports
from relief_ray.records.run_folder import read_rounds
from tests.actors.grids.scenes import tiny_book
from tests.actors.grids.test_grid_folder import order_of


def new_board(book, screen):
    ticks = []
    exports = Exports(lambda text: None)
    return Board(
        entries=book.entries(), todo=book.entries(), screen=screen, exports=exports, on_tick=lambda: ticks.append(1)
    ), ticks


def test_a_board_follows_cells_to_their_end(tmp_path, capsys):
    book = write_book(tiny_book(tmp_path, methods=("fedavg", "relief")))
    board, ticks = new_board(book, LineScreen())
    fedavg, relief = book.entries()
    assert board.view().left_s is None and sum(board.left.values()) == 3 + 4
    board.begun(fedavg.cell.name)
    carry_out(order_of(fedavg), Crew())
    time.sleep(0.01)
    board.tick()
    view = board.view()
    assert ticks and (view.num_done, view.num_cells) == (0, 2)
    assert [(c.title, c.num_rounds, c.num_planned) for c in view.running] == [("dsa_mini-fedavg-s0", 3, 3)]
    assert view.left_s is not None and view.left_s > 0
    board.ended(fedavg.cell.name, "")
    f1 = read_rounds(fedavg.folder)[-1].metrics.f1
    assert last_f1(fedavg.folder) == f1 == board.scores[fedavg.cell.name]
    assert "[1/2] dsa_mini-fedavg-s0: done in" in (said := capsys.readouterr().out) and f"F1 {100 * f1:.1f} %" in said
    board.begun(relief.cell.name)
    board.ended(relief.cell.name, "Traceback\nActorDiedError: killed")
    assert board.view().num_failed == 1 and not board.running
    assert book.entries()[1].why == "its process died: ActorDiedError: killed"
    assert "dsa_mini-relief-s0: FAILED in" in capsys.readouterr().out
    found = leaders(book.entries(), board.scores)
    assert [(x.setting, x.label, x.num, x.of) for x in found] == [("dsa_mini", "fedavg", 1, 1)] and found[0].f1 == f1


def test_leaders_are_by_mean_over_seeds(tmp_path):
    entries = tiny_book(tmp_path, seeds=(0, 1)).entries()
    scores = dict(zip([e.cell.name for e in entries], [0.9, 0.6, 0.1, 0.5], strict=True))
    (leader,) = leaders(entries, scores)
    assert (leader.label, leader.f1, leader.num, leader.of) == ("relief", 0.55, 2, 2)


def test_a_full_disk_is_recognised(tmp_path):
    book = tiny_book(tmp_path, methods=("fedavg",))
    (entry,) = book.entries()
    keep_error(entry.folder, OSError(28, "No space left on device"))
    assert is_disk_full(book.entries()[0])
    keep_error(entry.folder, ValueError("something else"))
    assert not is_disk_full(book.entries()[0])


def test_lines_json_and_table_say_the_same(tmp_path, capsys):
    book = write_book(tiny_book(tmp_path, methods=("fedavg",)))
    board, _ = new_board(book, JsonScreen())
    (entry,) = book.entries()
    board.begun(entry.cell.name)
    carry_out(order_of(entry), Crew())
    board.tick()
    from rich.console import Console

    console = Console(width=100, record=True)
    console.print(picture(board.view()))
    shown = console.export_text()
    assert "0/1 cells" in shown and "dsa_mini-fedavg-s0" in shown and "3/3" in shown
    capsys.readouterr()
    board.ended(entry.cell.name, "")
    event = json.loads(capsys.readouterr().out)
    assert (event["event"], event["state"], event["done"], event["cells"]) == ("cell", "done", 1, 1)
    line = ended_line("a", "failed", 2.0, None, "first\nsecond", board.view())
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
