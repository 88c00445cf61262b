"""Tuned cells beside the usual ones, and a search as one table."""

import dataclasses

import pytest

from actors.grids.search import Search, best_try
from relief_ray.report.build import build
from relief_ray.report.comparison import compare_runs
from relief_ray.report.document import Paragraphs
from relief_ray.report.remarks import STAND_IN
from relief_ray.report.runs import Inventory, labelled, merged
from relief_ray.strategies import PRESETS
from relief_ray.support.errors import UserError
from tune_configs.search import METHODS, Place, tries

USUAL = {"training": {"epochs": 2, "missing": "zero_input", "lr": 0.001, "batch_size": 32}}


def chosen(kind, lr, gamma=None, at_edge=()):
    parameters = ["training.lr"] + (["strategy.gamma"] if gamma else [])
    return {
        "training": {"epochs": 2, "missing": "zero_input", "lr": lr},
        "choice": {"kind": kind, "parameters": parameters, "at_edge": list(at_edge)},
    } | ({"strategy": {"name": "relief", "select": "divergence", "mandatory": True, "gamma": gamma}} if gamma else {})


@pytest.fixture
def page(put_on, inventory_of):
    def make_page(runs, others=()):
        on = [put_on(r, where=f"w{i}") for i, r in enumerate(runs)]
        return build(Inventory(items=labelled(merged(inventory_of(on, others).items))))

    return make_page


def test_values_of_a_cell_are_words_and_numbers(make, page):
    tuned = chosen("tuned", 0.01, {"A": 1.0, "B": 0.875})
    tuned["choice"]["parameters"].append("strategy.limit")
    tuned["strategy"]["limit"] = None
    usual = {"training": {"epochs": 2, "missing": "zero_input", "lr": 0.001}}
    document = page([make("relief", extra=usual), make("relief", extra=tuned)])
    main = next(s for s in document.tables if s.slug == "e1-main")
    assert main.rows[0].cells[-2].below == "lr 0.01, gamma A 1 B 0.875, limit none"


def test_tuned_figures_stand_beside_the_usual_ones_with_the_edge(make, page):
    """Every method's own learning rate is one setting, not one each; each is compared with a tuned FedAvg."""
    usual = {"training": {"epochs": 2, "missing": "zero_input", "lr": 0.001}}
    document = page(
        [
            make("fedavg", extra=usual),
            make("relief", extra=usual),
            make("fedavg", scores=(0.6, 0.7), extra=chosen("tuned", 0.003)),
            make("relief", scores=(0.6, 0.8), extra=chosen("tuned", 0.01, 0.5, ["training.lr"])),
        ]
    )
    slugs = [s.slug for s in document.tables]
    assert "e2-main" in slugs and "e3-main" not in slugs
    main, tuned = (next(s for s in document.tables if s.slug == slug) for slug in ("e1-main", "e2-main"))
    best_cells = {line.name: (line.cells[-2].text, line.cells[-2].below) for line in main.rows}
    assert main.head[-2:] == ("F1 %, tuned", "speedup, tuned")
    assert best_cells["fedavg"] == ("70.0", "lr 0.003")
    assert best_cells["relief"] == ("80.0", "lr 0.01, gamma 0.5, edge")
    assert set(best_cells) == {"fedavg", "relief"}, "rows are what was run or planned"
    assert tuned.caption.endswith("every method tuned.") and "values chosen by a search" in tuned.details[0]
    assert {"fedavg", "relief"} <= {line.name for line in tuned.rows if line.cells[0].text == "1"}


def test_the_speed_of_tuned_runs_stands_beside_their_f1(make, page):
    """HeLoRA at 4x with the usual values and at 1.25x with the chosen ones; its own words say why."""
    cnn = {"backbone": {"name": "cnn"}}
    usual = [make(name, extra={**USUAL, **cnn}, round_s=r) for name, r in (("fedavg", 2.0), ("helora", 0.5))]
    tuned = [
        make(name, extra={**chosen("tuned", 0.003), **cnn}, scores=(0.6, 0.7), round_s=r)
        for name, r in (("fedavg", 2.0), ("helora", 1.6))
    ]
    shown = page([*usual, *tuned])
    main = next(s for s in shown.tables if s.slug == "e1-main")
    rows = {row.name: dict(zip(main.head[1:], row.cells, strict=True)) for row in main.rows}
    helora = rows[f"helora{STAND_IN}"]
    assert (helora["speedup"].text, helora["speedup, tuned"].text) == (
        "4.00",
        "1.25",
    )
    assert rows["fedavg"]["speedup, tuned"].text == "1.00"
    (note,) = (n for n in main.details if "also decides the speed" in n)
    assert note.endswith(f"helora ({PRESETS['helora'].search_trades_speed}).") and "fedavg" not in note
    assert [n for n in main.notes if n.startswith(STAND_IN)], "the mark is explained below the table"
    lines = [line for block in shown.blocks if isinstance(block, Paragraphs) for line in block.lines]
    assert lines and not [line for line in lines if STAND_IN in line], "and not again among the remarks"


def test_a_search_is_one_table_of_methods_and_tries(make, page):
    runs = [
        make("fedavg", validation=(0.1, f1), scores=(None, None), extra=chosen("try", lr), model=str(lr))
        for lr, f1 in ((0.001, 0.5), (0.01, 0.7))
    ]
    runs += [make("relief", validation=(0.1, 0.6), scores=(None, None), extra=chosen("try", 0.01, 0.5))]
    document = page([], [(r, "untested") for r in runs])
    assert not any(s.slug == "gaps" for s in document.tables), "a try is looked at on the validation part alone"
    assert [s.slug for s in document.tables if s.slug.startswith(("e1", "search"))] == ["search-1"]
    table = next(s for s in document.tables if s.slug == "search-1")
    assert table.head == ("method", "lr 0.001", "lr 0.01")
    assert [(line.name, [(e.text, e.tone) for e in line.cells]) for line in table.rows] == [
        ("fedavg", [("50.0", ""), ("70.0", "good")]),
        ("relief gamma 0.5", [("not run", "gap"), ("60.0", "good")]),
    ]


def searched(make, method, kind, number, **more):
    """A cell with one of the shipped search's fifteen settings of a method."""
    level = tries(method)[number]
    strategy = dict(make(method).run.config["strategy"])
    sections = {"strategy": strategy, "training": dict(USUAL["training"])}
    for key, value in level.settings.items():
        section, _, name = key.partition(".")
        sections[section][name] = value
    choice = {"kind": kind, "parameters": list(level.settings), "at_edge": []}
    return make(method, extra={**sections, "choice": choice}, model=f"{method}-{number}", **more)


def test_a_method_whose_batch_size_was_searched_stands_beside_those_that_keep_theirs(make, page, put_on):
    """FedAvg and V1 have no number of their own and get the batch size, RELIEF its deadline."""
    usual = [make(m, extra=USUAL, scores=(0.5, 0.6)) for m in ("fedavg", "relief", "v1")]
    tuned = [searched(make, m, "tuned", n, scores=(0.6, 0.7)) for m, n in (("fedavg", 6), ("relief", 10), ("v1", 8))]
    document = page([*usual, *tuned])
    assert [s.slug for s in document.tables if s.slug.endswith("-main")] == ["e1-main", "e2-main"]
    main, own = (next(s for s in document.tables if s.slug == slug) for slug in ("e1-main", "e2-main"))
    best_cells = {line.name: (line.cells[-2].text, line.cells[-2].below) for line in main.rows}
    assert best_cells["fedavg"] == ("70.0", "lr 0.001, batch_size 16")
    assert best_cells["relief"] == ("70.0", "lr 0.003, slots_slowest 3")
    assert {"fedavg", "relief"} <= {line.name for line in own.rows if line.cells[0].text == "1"}
    assert "batch" not in own.details[0] and "batch 32" in main.details[0], "no batch size is everybody's"
    assert [r.label for r in compare_runs(tuned).rows] == ["fedavg", "relief", "v1"]
    with pytest.raises(UserError, match="choice = None and 'tuned'"):
        compare_runs([*usual, *tuned])


def test_the_shipped_search_is_one_table(make, page):
    runs = [
        searched(make, method, "try", number, validation=(0.1, 0.5), scores=(None, None))
        for method in METHODS
        for number in range(15)
    ]
    document = page([], [(r, "untested") for r in runs])
    assert [s.slug for s in document.tables if s.slug.startswith("search")] == ["search-1"]
    table = next(s for s in document.tables if s.slug == "search-1")
    assert len(table.head) == 6 and len(table.rows) == 3 * len(METHODS)
    assert not any(e.tone == "gap" for line in table.rows for e in line.cells)


def own_models(loaded, f1_fleet):
    """The run with clients' own models looked at on the validation part too."""
    rounds = [r.model_copy(update={"validation": r.validation.model_copy(update={"f1_fleet": f1_fleet})})
              for r in loaded.rounds]  # fmt: skip
    return dataclasses.replace(loaded, rounds=tuple(rounds))


def test_the_green_cell_is_what_is_frozen_each_fold_for_itself(make, page):
    """Own models' F1 ranks the tries the other way round than the canonical model's; the folds disagree."""
    scores = {0: {0.001: (0.9, 0.2), 0.01: (0.1, 0.4)}, 1: {0.001: (0.3, 0.8), 0.01: (0.3, 0.7)}}
    runs = [
        own_models(
            make("fedavg", fold=f, validation=(0, f1), scores=(None, None), extra=chosen("try", lr), model=f"{f}{lr}"),
            f1_fleet,
        )
        for f, tried in scores.items()
        for lr, (f1, f1_fleet) in tried.items()
    ]
    table = next(s for s in page([], [(r, "untested") for r in runs]).tables if s.slug == "search-1")
    assert [(line.name, [(e.text, e.tone) for e in line.cells]) for line in table.rows] == [
        ("fedavg fold 0", [("20.0", ""), ("40.0", "good")]),
        ("fedavg fold 1", [("80.0", "good"), ("70.0", "")]),
    ]
    for fold, line in zip(scores, table.rows, strict=True):
        tries = {(("training.lr", str(lr)),): [own] for lr, (_, own) in scores[fold].items()}
        frozen = best_try(Place("dsa", fold, "cnn", "fedavg"), Search(tries=tries))
        green = next(h for h, e in zip(table.head[1:], line.cells, strict=True) if e.tone == "good")
        assert green == f"lr {frozen.settings['training.lr']:g}"


def test_of_equal_tries_one_is_green(make, page):
    runs = [
        make("fedavg", validation=(0, 0.5), scores=(None, None), extra=chosen("try", lr), model=str(lr))
        for lr in (0.001, 0.01)
    ]
    table = next(s for s in page([], [(r, "untested") for r in runs]).tables if s.slug == "search-1")
    assert [e.tone for e in table.rows[0].cells] == ["good", ""]
