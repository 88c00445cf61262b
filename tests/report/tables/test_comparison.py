"""Cells, columns and tables that fit."""

import pytest

from relief_ray.report.comparison import Stat, compare_runs
from relief_ray.report.paper import beside, read_paper
from relief_ray.report.statistics import interval_text, paired
from relief_ray.report.tables.cells import number_text
from relief_ray.report.tables.columns import F1, HEADLINE
from relief_ray.report.tables.comparison import costs_table, legend, scores_table, wide_table


def cells(table, name):
    """A row by headings."""
    row = next(row for row in table.rows if row.name == name)
    return dict(zip(table.head[1:], (cell.text for cell in row.cells), strict=True))


def on_moment(loaded, put_on):
    return put_on(loaded, by_paper=False, backbone={"name": "moment_lora"})


@pytest.mark.parametrize(
    ("stat", "spread", "shown"),
    [
        (None, True, "-"),
        (Stat(mean=73.64, std=8.06, num=3), True, "73.6±8.1"),
        (Stat(mean=73.64, std=8.06, num=3), False, "73.6"),
        (Stat(mean=5.0, std=None, num=1), True, "5.0 (1/3)"),
        (Stat(mean=-0.0, std=None, num=3), True, "0.0"),
    ],
)
def test_numbers(stat, spread, shown):
    assert number_text(stat, F1 if spread else HEADLINE, 3, tight=True) == shown


def test_a_spread_of_zero_is_left_out_of_the_report():
    even = Stat(mean=50.0, std=0.01, num=3)
    assert (number_text(even, HEADLINE, 3), number_text(even, F1, 3, tight=True)) == ("50.0", "50.0±0.0")
    assert number_text(Stat(mean=73.64, std=8.06, num=3), HEADLINE, 4) == "73.6 ± 8.1 (3/4)"


def test_changes():
    assert interval_text(None) == "-"
    assert interval_text(paired([2.0])) == "+2.0 (1 subject)"
    assert interval_text(paired([1.0, 2.0, 3.0])) == "+2.0 [-0.5, +4.5]"


def test_a_star_marks_the_headline_of_methods_whose_clients_have_models_of_their_own(make):
    """FedAvg 60 %; canonical 80 %, own 50 %: the headline is 10 points below, the diagnostic 20 above."""
    both = make("fedlease", scores=(0.7, 0.8), own=(0.4, 0.5))
    comparison = compare_runs([make("fedavg"), both, make("local", personalised=True, scores=(0.2, 0.3))])
    scores = scores_table(comparison)
    lease, local = cells(scores, "fedlease*"), cells(scores, "local*")
    assert (lease["F1 %"], lease["F1 own %"], lease["vs fedavg [95 %]"]) == ("80.0", "50.0*", "-10.0 [-10.0, -10.0]")
    assert (local["F1 %"], local["F1 own %"], local["acc %"]) == ("-", "30.0*", "-")
    assert (cells(scores, "fedavg")["F1 own %"], cells(scores, "fedavg")["acc %"]) == ("-", "30.0")
    assert cells(wide_table(comparison), "fedlease*")["F1 % vs fedavg [95 %]"] == "+20.0 [+20.0, +20.0]"
    assert "F1 own %" not in scores_table(compare_runs([make("fedavg")])).head


def test_the_papers_cells_stand_beside_where_labels_match(make):
    comparison = compare_runs([make("fedicu_table"), make("v1"), make("v2_mandatory"), make("drop_slow")])
    scores, costs = scores_table(comparison), costs_table(comparison)
    icu = "FedICU (reconstructed), table"
    assert (cells(scores, icu)["PAMAP2 †"], cells(scores, icu)["MHEALTH †"], cells(scores, icu)["rare †"]) == (
        "87.6", "89.6", "28.4",
    )  # fmt: skip
    assert cells(scores, "v1")["PAMAP2 †"] == "94.0" and cells(costs, "v1")["speedup †"] == "1.66"
    assert {cells(scores, m)["PAMAP2 †"] for m in ("v2_mandatory", "drop_slow")} == {"-"}
    assert [cells(costs, icu)[c] for c in ("rounds †", "J †", "MB †")] == ["120", "761", "3.85"]
    assert any("orientation" in line for line in legend(comparison))


def test_nothing_is_printed_beside_methods_that_the_paper_lacks(make):
    comparison = compare_runs([make("full_only")])
    assert not [h for h in (*scores_table(comparison).head, *costs_table(comparison).head) if "†" in h]
    assert not any("†" in line for line in legend(comparison))


def test_backbone_2_has_table_ii_and_kibibytes(make, put_on):
    table = costs_table(compare_runs([on_moment(make("relief"), put_on), on_moment(make("v3"), put_on)]))
    row = cells(table, "relief")
    assert (row["speedup †"], row["up, KiB"], row["KB †"]) == ("9.41", "2048", "3408")
    assert "rounds †" not in row, "Table II has no such column"
    assert cells(table, "v3")["speedup †"] == f"{read_paper()['III'].get('V3', 'B2 speedup').value:.2f}"


def test_another_backbone_has_no_table():
    assert beside(read_paper(), "fedavg", "mine:Mine", "speedup") is None
