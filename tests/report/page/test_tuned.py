"""Tuned cells beside the usual ones, and a search as one table."""

import pytest

from relief_ray.report.page.build import build
from relief_ray.report.stock import Stock, labelled, merged


def chosen(kind, lr, gamma=None, at_edge=()):
    parameters = ["training.lr"] + (["strategy.gamma"] if gamma else [])
    return {
        "training": {"epochs": 2, "missing": "zero_input", "lr": lr},
        "choice": {"kind": kind, "parameters": parameters, "at_edge": list(at_edge)},
    } | ({"strategy": {"name": "relief", "select": "divergence", "mandatory": True, "gamma": gamma}} if gamma else {})


@pytest.fixture
def page(put_on, stock_of):
    def make_page(runs, others=()):
        on = [put_on(r, where=f"w{i}") for i, r in enumerate(runs)]
        return build(Stock(slots=labelled(merged(stock_of(on, others).slots))))

    return make_page


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
    slugs = [s.slug for s in document.sheets]
    assert "e2-main" in slugs and "e3-main" not in slugs
    main, tuned = (next(s for s in document.sheets if s.slug == slug) for slug in ("e1-main", "e2-main"))
    found = {line.name: (line.entries[-1].text, line.entries[-1].below) for line in main.lines}
    assert main.head[-1] == "F1 %, tuned"
    assert found["fedavg"] == ("70.0", "lr 0.003")
    assert found["relief"] == ("80.0", "lr 0.01, gamma 0.5, edge")
    assert found["fedel"] == ("not run", "")
    assert tuned.caption.endswith("every method tuned.") and "values chosen by a search" in tuned.notes[0]
    assert {"fedavg", "relief"} <= {line.name for line in tuned.lines if line.entries[0].text == "1"}


def test_a_search_is_one_table_of_methods_and_tries(make, page):
    runs = [
        make("fedavg", validation=(0.1, f1), scores=(None, None), extra=chosen("try", lr), model=str(lr))
        for lr, f1 in ((0.001, 0.5), (0.01, 0.7))
    ]
    runs += [make("relief", validation=(0.1, 0.6), scores=(None, None), extra=chosen("try", 0.01, 0.5))]
    document = page([], [(r, "untested") for r in runs])
    assert not any(s.slug == "gaps" for s in document.sheets), "a try is looked at on the validation part alone"
    assert [s.slug for s in document.sheets if s.slug.startswith(("e1", "search"))] == ["search-1"]
    table = next(s for s in document.sheets if s.slug == "search-1")
    assert table.head == ("method", "lr 0.001", "lr 0.01")
    assert [(line.name, [(e.text, e.tone) for e in line.entries]) for line in table.lines] == [
        ("fedavg", [("50.0", ""), ("70.0", "good")]),
        ("relief gamma 0.5", [("not run", "gap"), ("60.0", "good")]),
    ]
