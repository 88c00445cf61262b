"""How long and how much: from finished cells, from a timed round, and what fits a budget."""

from dataclasses import replace

import pytest

from actors.crew import Crew
from actors.grids.book import Book, write_book
from actors.grids.estimate import Estimate, estimates, finished_rates, fitting, parse_hours, probe, probe_missing
from actors.grids.trial import carry_out
from relief_ray.errors import UserError
from relief_ray.records.reading import read_rounds
from tests.grids.scenes import tiny_book, tiny_grid
from tests.grids.test_book import order_of
from tune_configs.cells import cells_of


def test_a_timed_round_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    rate = probe(tiny_book(tmp_path, methods=("fedavg",)).cells[0].config)
    assert rate.round_s > 0 and rate.start_s > 0 and rate.origin == "one timed round"
    assert rate.round_bytes > 1000 and rate.fixed_bytes > 1000
    assert not list(tmp_path.glob("relief-probe-*"))


def test_finished_cells_tell_about_those_to_come(tmp_path):
    book = write_book(tiny_book(tmp_path, seeds=(0, 1)))
    first, *rest = book.entries()
    carry_out(order_of(first), Crew())
    entries = book.entries()
    mean_s = sum(r.wall_s for r in read_rounds(first.folder)) / 3
    ((key, rate),) = finished_rates(entries).items()
    assert key == (("cnn", "dsa_mini"), "fedavg") and rate.round_s == pytest.approx(mean_s)
    said = []
    assert probe_missing(entries, one_each=True, say=said.append) == {} and not said
    known = estimates(entries, {})
    assert set(known) == {e.cell.name for e in rest}
    relief0, fedavg1, _ = (known[e.cell.name] for e in rest)
    assert fedavg1.seconds == pytest.approx(3 * mean_s) and fedavg1.origin == "1 finished cell"
    assert relief0.seconds == pytest.approx(4 * mean_s) and relief0.origin == "as fedavg: 1 finished cell"
    probed = probe_missing(entries, one_each=False, say=said.append)
    assert list(probed) == [(("cnn", "dsa_mini"), "relief")] and len(said) == 1
    assert estimates(entries, probed)[rest[0].cell.name].origin == "one timed round"


def test_missing_data_are_said_not_raised(tmp_path, monkeypatch):
    monkeypatch.setenv("RELIEF_DATA", str(tmp_path))
    monkeypatch.setenv("RELIEF_CACHE", str(tmp_path))
    grid = replace(tiny_grid(methods=("fedavg",)), datasets=("pamap2",))
    entries = Book(out=tmp_path, name="tiny", title="", cells=cells_of(grid)).entries()
    (found,) = estimates(entries, probe_missing(entries, one_each=True, say=lambda text: None)).values()
    assert found.seconds is None and found.origin == "unknown: dataset 'pamap2' not found"


def test_a_budget_takes_the_first_cells_that_fit(tmp_path):
    entries = list(tiny_book(tmp_path, seeds=(0, 1)).entries())
    known = {
        e.cell.name: Estimate(seconds=s, num_bytes=0, origin="")
        for e, s in zip(entries, (5.0, 4.0, 2.0, None), strict=True)
    }
    assert fitting(entries, known, 4.9) == []
    assert fitting(entries, known, 9.0) == entries[:2]
    assert fitting(entries, known, 99.0) == entries[:3]


@pytest.mark.parametrize(("text", "seconds"), [("8h", 28800), ("90m", 5400), ("1.5s", 1.5)])
def test_budgets(text, seconds):
    assert parse_hours(text) == seconds


@pytest.mark.parametrize("text", ["8", "h", "", "-1h", "0s", "8 days", "nanh"])
def test_other_budgets_are_refused(text):
    with pytest.raises(UserError, match="expected a positive time such as 8h"):
        parse_hours(text)
