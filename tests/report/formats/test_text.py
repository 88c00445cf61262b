"""The same comparison in every format."""

import csv
import io
import json

import pytest

from relief_ray.report.comparison import compare_runs
from relief_ray.report.formats.text import as_csv, as_json, markdown, plain


def test_plain_text_fits_a_terminal_and_rules_off_the_bounds(family, make):
    text = plain(compare_runs([*family, make("full_only"), make("local", personalised=True)]), wide=True)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 120
    names = [line.split()[0] for line in lines if line and line.split()[0].rstrip("*") in {"v3", "full_only", "local"}]
    assert names == ["v3", "local*", "full_only"] * 4
    rules = [i for i, line in enumerate(lines) if line.startswith("---")]
    # Scores, costs and two parts of the rest.
    assert len(rules) == 8
    assert all(lines[i - 1].startswith("v2_mandatory") and lines[i + 1].startswith("local") for i in rules[1::2])


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_narrow_terminal_gets_the_figures_that_matter_and_no_longer_line(family, make, width):
    comparison = compare_runs([*family, make("full_only")])
    text = plain(comparison, width)
    assert max(map(len, text.splitlines())) <= width
    assert "for orientation" not in text and "wall" not in text
    row = [line.split() for line in text.splitlines() if line.startswith("relief ")]
    assert row[0][1:3] == ["59.5", "+5.0"] and "2.00" in row[-1]


def test_nothing_of_the_paper_stands_beside_a_users_own_data(make):
    own = {"data": {"name": "my_lab:WALKS", "split": "within_subject", "stride_s": 2.0}}
    runs = [make(m, extra=own) for m in ("fedavg", "relief")]
    text = plain(compare_runs(runs))
    assert "for orientation" not in text and text.startswith("WALKS, within subjects") and "fold" not in text


def test_bounds_alone_need_one_rule_a_table(make):
    assert sum(line.startswith("---") for line in plain(compare_runs([make("full_only")])).splitlines()) == 1


def test_plain_text_has_our_cells_and_names_the_titles(family):
    text = plain(compare_runs(family), wide=True)
    assert "v2_mandatory" in text
    # V0 costs less than FedAvg, so its last F1 is that at equal seconds and joules too; +5 points, 2.00x, 60 J, 1 MiB.
    lines = [line.split() for line in text.splitlines() if line.startswith("relief ")]
    assert lines[0] == ["relief", "59.5", "59.5", "59.5", "+5.0", "(1", "run)", "14.0", "29.8", "14.9"]
    assert lines[1] == ["relief", "1.00", "2.00", "2.00", "3.60", "50", "60", "1.00", "0.50"], "no method reached 85 %"
    for shown in (text, plain(compare_runs(family), 80)):
        names = " ".join(shown.split()).partition("Names: ")[2]
        assert names.startswith("`v1`: RELIEF without elastic training (V1); `v2`: ") and "`relief`" not in names


def test_a_blank_line_stands_above_the_notes(family):
    lines = plain(compare_runs(family), 80).splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("- "))
    assert lines[first - 1] == "" and lines[first - 2].startswith("v2_mandatory")


def test_markdown_csv_and_json_agree(family):
    comparison = compare_runs(family)
    rows = list(csv.DictReader(io.StringIO(as_csv(comparison))))
    document = json.loads(as_json(comparison))
    assert [r["method"] for r in rows] == [m["method"] for m in document["methods"]] == [
        "fedavg", "relief", "v1", "v2", "v3", "v2_mandatory",
    ]  # fmt: skip
    for row, method in zip(rows, document["methods"], strict=True):
        assert {k for k, v in row.items() if v != ""} == {k for k, v in method.items() if v is not None}
        assert float(row["f1_percent"]) == method["f1_percent"]
    relief = document["methods"][1]
    assert relief["f1_vs_fedavg_points"] == pytest.approx(5.0)
    assert (relief["f1_vs_fedavg_p"], relief["f1_vs_fedavg_pairs"]) == (1.0, 1)
    assert (relief["speedup"], relief["up_saved_percent"], relief["up_mib"]) == (2.0, 50.0, 1.0)
    assert "| relief | 59.5 | 59.5 | 59.5 | +5.0 (1 run) |" in markdown(comparison)
