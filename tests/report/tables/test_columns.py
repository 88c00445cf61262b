"""docs/metrics.md explains the headings and keys that `compare` and the report print, and no others."""

import re
from dataclasses import fields as fields_of
from pathlib import Path

import pytest

from relief_ray.core.messages import RoundCost
from relief_ray.records.schema import Metrics, RoundRecord
from relief_ray.report.comparison import by_setting, compare_runs
from relief_ray.report.formats.text import flat
from relief_ray.report.tables import columns
from relief_ray.report.tables.columns import Column, modality_f1
from relief_ray.report.tables.methods import TUNED, all_tables, lead_table, main_table
from relief_ray.report.tables.paper import ablation_table

PAGE = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text(encoding="utf-8")
PROSE = re.sub(r"\s+", " ", PAGE)
ALL = [c for c in vars(columns).values() if isinstance(c, Column)]
ALL += [*columns.UP.values(), *map(modality_f1, ("acc", "gyro", "mag", "hr")), *map(columns.sent_by, "ABC")]


def table_of(section):
    """Names in code of the first and of the last column of a section's table."""
    rows = re.findall(r"^\| (`.*)\|$", PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0], flags=re.M)
    parts = [row.split(" | ") for row in rows]
    return [{name for part in parts for name in re.findall(r"`([^`]+)`", part[i])} for i in (0, -1)]


@pytest.fixture
def compared(family, make):
    starred = make("fedlease", scores=(0.7, 0.8), own=(0.4, 0.5))
    return [compare_runs([*family, starred]), compare_runs([make("fedavg"), make("fedprox")])]


def test_every_heading_is_explained_and_none_that_is_not_printed(compared, family, put_on, inventory_of):
    made = [table for c in compared for table in (lead_table(c), *all_tables(c))]
    (setting,) = by_setting(inventory_of([put_on(run) for run in family]))
    made += [main_table(setting), ablation_table(setting)]
    printed = {head for table in made for head in table.head}
    printed |= {c.head for c in ALL} | {c.head for c in TUNED}
    assert table_of("Columns")[0] == printed


def test_every_key_of_json_and_csv_is_explained_and_none_that_is_not_there(compared):
    keys = {re.sub(r"_(std|num)$", "", key) for c in compared for row in flat(c) for key in row} - {"num_runs"}
    keys = {re.sub(r"(?<=_vs_fedavg_).*", "*", key) for key in keys} | {"num_runs"}
    explained = table_of("Columns")[1]
    further = PROSE.partition("and further keys: ")[2].partition("The `*` of")[0]
    others = set(re.findall(r"`(\w+)`", further)) - {"f1_fleet"}
    alike = {"f1_mag_percent", "sent_B_percent", "sent_C_percent"}
    assert keys - alike <= explained | others, "sensors and types have the key of the first"
    figures = {c.figure for c in ALL}
    assert figures - alike - {f"f1_{m}_percent" for m in ("gyro", "mag", "hr")} <= explained
    assert explained <= figures | keys and others <= keys


def test_the_parts_of_a_difference_are_those_of_json(compared):
    parts = {
        key.partition("_vs_fedavg_")[2] for c in compared for row in flat(c) for key in row if "_vs_fedavg_" in key
    }
    told = PROSE.partition("The `*` of a difference stands for ")[2].partition(".")[0]
    assert set(re.findall(r"`(\w+)`", told)) == parts


def test_a_field_of_the_records_is_one():
    fields = {*Metrics.model_fields, *RoundRecord.model_fields, *(f.name for f in fields_of(RoundCost))}
    named = table_of("In the records")[0]
    assert named and named <= fields
