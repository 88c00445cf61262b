"""Cells, and the same comparison in every format."""

import csv
import io
import json

import pytest
from rich.console import Console

from relief_ray.report.comparison import compare_runs
from relief_ray.report.formats.text import as_csv, as_json, markdown, plain, rich_tables


def test_plain_text_fits_a_terminal_and_rules_off_the_bounds(family, make):
    text = plain(compare_runs([*family, make("full_only"), make("local", personalised=True)]))
    lines = text.splitlines()
    assert max(map(len, lines)) <= 120
    names = [line.split()[0] for line in lines if line and line.split()[0].rstrip("*") in {"v3", "full_only", "local"}]
    assert names == ["v3", "full_only", "local*"] * 2
    rules = [i for i, line in enumerate(lines) if line.startswith("---")]
    # Scores, then costs.
    assert len(rules) == 4
    assert all(lines[i - 1].startswith("v3") and lines[i + 1].startswith("full_only") for i in rules[1::2])


def test_bounds_alone_need_one_rule_a_table(make):
    assert sum(line.startswith("---") for line in plain(compare_runs([make("full_only")])).splitlines()) == 2


def test_rich_tables_have_the_same_cells(family):
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(*rich_tables(compare_runs(family)))
    text = console.export_text()
    assert "v2_mandatory" in text
    # V0: 5 points above FedAvg on every one of eight subjects; 2.00x, 60 J, 1 MiB; the paper's cells between.
    scores, costs = [line.split() for line in text.splitlines() if line.startswith("relief")]
    assert scores == ["relief", "59.5", "90.1", "93.7", "+5.0", "[+5.0,", "+5.0]", "14.0", "52.8", "29.8", "14.9"]
    assert costs == ["relief", "1.00", "2.00", "2.87", "-", "55", "1", "60", "312", "1.00", "4.76", "0.50"]


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
    assert "| relief | 59.5 | 90.1 | 93.7 | +5.0 [+5.0, +5.0] |" in markdown(comparison)
