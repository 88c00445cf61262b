"""`relief-ray grid` as a user meets it, as far as it goes without Ray."""

import json

import pytest

from actors.crew import Crew
from actors.grids.book import keep_error, write_book
from actors.grids.trial import carry_out
from tests.cli.conftest import Invoke
from tests.grids.scenes import tiny_book
from tests.grids.test_book import order_of


def test_a_dry_run_writes_nothing_and_says_where_its_figures_come_from(invoke: Invoke, tmp_path):
    done = invoke("grid", "smoke", "--dry-run", "--out", tmp_path / "g", "--set", "data.max_windows_per_client=5")
    assert done.exit_code == 0, done.output
    assert "12 cells (12 missing), seed-major" in done.stdout
    assert "as fedavg: one timed round" in done.stdout and "in all" in done.stdout
    assert not (tmp_path / "g").exists()


def test_status_lists_every_cell(invoke: Invoke, tmp_path):
    book = write_book(tiny_book(tmp_path, methods=("fedavg", "fedprox", "relief")))
    first, second, _ = book.entries()
    carry_out(order_of(first), Crew())
    keep_error(second.folder, RuntimeError("broken"))
    done = invoke("grid", "status", tmp_path)
    assert done.exit_code == 0 and "tiny: 1 done, 1 failed, 1 missing of 3 cells" in done.stdout
    assert f"failed  {second.cell.name}  0/3 rounds  RuntimeError: broken" in done.stdout
    (line,) = invoke("grid", "status", tmp_path, "--json").stdout.splitlines()
    assert [c["state"] for c in json.loads(line)["cells"]] == ["done", "failed", "missing"]


def test_resume_of_a_complete_grid_starts_nothing(invoke: Invoke, tmp_path):
    book = write_book(tiny_book(tmp_path, methods=("fedavg",)))
    carry_out(order_of(book.entries()[0]), Crew())
    done = invoke("grid", "resume", tmp_path)
    assert done.exit_code == 0 and "tiny: 1 done of 1 cells" in done.stdout


def test_failed_cells_can_be_left_alone(invoke: Invoke, tmp_path):
    book = write_book(tiny_book(tmp_path, methods=("fedavg",)))
    keep_error(book.entries()[0].folder, RuntimeError("broken"))
    done = invoke("grid", "resume", tmp_path, "--skip-failed")
    assert done.exit_code == 5 and "1 cells failed; the others are not touched by that" in done.stderr
    assert "relief-ray grid resume" in done.stderr


def test_a_budget_in_which_nothing_fits_runs_nothing(invoke: Invoke, tmp_path):
    write_book(tiny_book(tmp_path, methods=("fedavg",), rounds=200))
    done = invoke("grid", "resume", tmp_path, "--budget", "0.01s")
    assert done.exit_code == 0 and "0 of 1 cells to do fit; give it more" in done.stdout
    assert "0 done" not in done.stdout and "1 missing of 1 cells" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["smok"], "did you mean 'smoke'"),
        (["resume"], "expected a folder"),
        (["status"], "expected a folder"),
        (["smoke", "elsewhere"], "name the folder with --out elsewhere"),
        (["smoke", "--budget", "soon"], "expected a positive time such as 8h"),
        (["smoke", "--set", "methods=[]"], "expected"),
        (["smoke", "--set", "folds=[9]"], "expected"),
    ],
)
def test_what_is_wrong_is_named(invoke: Invoke, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    done = invoke("grid", *words)
    assert done.exit_code == 2 and message in " ".join(done.stderr.split()), done.output
    assert not list(tmp_path.iterdir())


def test_a_resume_does_not_change_what_is_computed(invoke: Invoke, tmp_path):
    write_book(tiny_book(tmp_path))
    done = invoke("grid", "resume", tmp_path, "--set", "rounds=5")
    assert done.exit_code == 2 and "a resume may only change" in done.stderr
