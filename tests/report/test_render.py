"""Cells, and the same comparison in every format."""

import csv
import io
import json

import pytest
from rich.console import Console

from relief_ray.report.compare import Stat, compare_runs
from relief_ray.report.render import as_csv, as_json, change, markdown, number, plain, rich_table
from relief_ray.report.stats import paired


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
    assert number(stat, 1, spread, 3) == shown


def test_changes():
    assert change(None) == "-"
    assert change(paired([2.0])) == "+2.0 (1 subject)"
    assert change(paired([1.0, 2.0, 3.0])) == "+2.0 [-0.5, +4.5]"


def test_plain_text_fits_a_terminal_and_rules_off_the_bounds(family, make):
    text = plain(compare_runs([*family, make("full_only"), make("local", personalised=True)]))
    lines = text.splitlines()
    assert max(map(len, lines)) <= 120
    names = [line.split()[0] for line in lines if line and line.split()[0].rstrip("*") in {"v3", "full_only", "local"}]
    assert names == ["v3", "full_only", "local*"]
    rules = [i for i, line in enumerate(lines) if line.startswith("---")]
    assert len(rules) == 2
    assert lines[rules[1] - 1].startswith("v3")
    assert lines[rules[1] + 1].startswith("full_only")


def test_bounds_alone_need_no_second_rule(make):
    assert sum(line.startswith("---") for line in plain(compare_runs([make("full_only")])).splitlines()) == 1


def test_rich_table_has_the_same_cells(family):
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(rich_table(compare_runs(family)))
    text = console.export_text()
    assert "v2_mandatory" in text
    # V0: 5 points above FedAvg on every one of eight subjects, 2.00x, 60 J, 1 MiB.
    row = next(line for line in text.splitlines() if line.startswith("relief"))
    assert row.split() == ["relief", "59.5", "+5.0", "[+5.0,", "+5.0]", "14.0", "1.00", "2.00", "60", "1.00", "0.50"]


def test_markdown_csv_and_json_agree(family):
    comparison = compare_runs(family)
    rows = list(csv.DictReader(io.StringIO(as_csv(comparison))))
    document = json.loads(as_json(comparison))
    assert [r["method"] for r in rows] == [m["method"] for m in document["methods"]] == [r.label for r in family]
    for row, method in zip(rows, document["methods"], strict=True):
        assert {k for k, v in row.items() if v != ""} == {k for k, v in method.items() if v is not None}
        assert float(row["f1_percent"]) == method["f1_percent"]
    relief = document["methods"][2]
    assert relief["f1_vs_fedavg_points"] == pytest.approx(5.0)
    assert (relief["f1_vs_fedavg_p"], relief["f1_vs_fedavg_subjects"]) == (2 / 256, 8)
    assert (relief["speedup"], relief["up_saved_percent"], relief["up_mib"]) == (2.0, 50.0, 1.0)
    assert "| relief | 59.5 | +5.0 [+5.0, +5.0] |" in markdown(comparison)
