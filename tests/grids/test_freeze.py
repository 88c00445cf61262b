"""The choice of a search: by validation data alone, with equal budgets, edges named; other grids take it."""

import json
from dataclasses import replace

import pytest

from actors.crew import Crew
from actors.grids.book import Book, write_book
from actors.grids.freeze import choose, freeze
from actors.grids.trial import carry_out
from relief_ray.errors import UserError
from relief_ray.records.reading import read_rounds
from tests.grids.scenes import TINY, tiny_grid
from tests.grids.test_book import order_of
from tune_configs.cells import cells_of, load_grid
from tune_configs.grid import Level

RATES = (1e-3, 1e-2)


def search(out, **changes):
    levels = tuple(
        Level(name=f"lr{r:g}-mu{m:g}", settings={"training.lr": r, "strategy.mu": m})
        for r in RATES
        for m in (0.01, 0.1)
    )
    settings = {**TINY, "evaluation.parts": ["validation"], **changes}
    grid = replace(tiny_grid(methods=("fedprox",), seeds=(0, 1)), own={"fedprox": levels}, settings=settings, is_search=True)
    return write_book(Book(out=out, name="tiny", title="", cells=cells_of(grid)))


def test_the_best_try_by_validation_is_frozen_and_used(tmp_path):
    book, file = search(tmp_path), tmp_path / "tuned.json"
    *most, last = book.entries()
    for entry in most:
        carry_out(order_of(entry), Crew())
    with pytest.raises(UserError, match="no method has all of its tries done"):
        freeze(book, file)
    carry_out(order_of(last), Crew())
    (line,) = freeze(book, file)
    choice = json.loads(file.read_text())["choices"]["dsa_mini"]["fedprox"]
    scores = {}
    for entry in book.entries():
        key = (entry.cell.config.training.lr, entry.cell.config.strategy.mu)
        scores.setdefault(key, []).append(read_rounds(entry.folder)[-1].validation.f1)
    best = max(sum(v) / 2 for v in scores.values())
    chosen = (choice["settings"]["training.lr"], choice["settings"]["strategy.mu"])
    assert choice["f1_validation"] == pytest.approx(best) == pytest.approx(sum(scores[chosen]) / 2)
    assert (choice["num_tries"], choice["num_cells"]) == (4, 8) and f"training.lr={chosen[0]:g}" in line
    grid = replace(tiny_grid(methods=("fedprox",)))
    (cell,) = cells_of(grid, [f"tuned={file}"])
    assert (cell.config.training.lr, cell.config.strategy.mu) == chosen and cell.setting == "dsa_mini-tuned"
    with pytest.raises(UserError, match="no choice for relief on dsa_mini"):
        cells_of(grid, [f"tuned={file}", "methods=relief"])


def test_a_search_that_opened_the_test_part_is_refused(tmp_path):
    book = search(tmp_path, **{"evaluation.parts": ["test", "validation"], "rounds": 1})
    for entry in book.entries():
        carry_out(order_of(entry), Crew())
    with pytest.raises(UserError, match="a search reads the validation part alone"):
        freeze(book, tmp_path / "tuned.json")


def test_an_optimum_at_the_edge_is_named():
    inside = choose("relief", {(1e-4, 0.5): [0.1], (1e-3, 0.9): [0.5, 0.7], (1e-2, 0.99): [0.4]})
    assert inside["settings"] == {"training.lr": 1e-3, "strategy.gamma": 0.9} and inside["at_edge"] == []
    assert inside["f1_validation"] == pytest.approx(0.6)
    edge = choose("fedavg", {(1e-2, 32.0): [0.9], (1e-3, 16.0): [0.1]})
    assert edge["settings"] == {"training.lr": 1e-2, "training.batch_size": 32} and edge["at_edge"] == ["training.lr"]


def test_a_file_that_is_no_choice_is_named(tmp_path):
    (tmp_path / "x.json").write_text("[]")
    with pytest.raises(UserError, match="expected what `relief-ray grid freeze` wrote"):
        cells_of(load_grid("smoke"), [f"tuned={tmp_path / 'x.json'}"])
