"""The transcribed tables: complete, and consistent with themselves where the paper is."""

import pytest

from relief_ray.report.paper import read_paper

PAPER = read_paper()


def row_of(table, name):
    return next(row for row in PAPER[table].rows if row.name == name)


@pytest.mark.parametrize(
    ("table", "rows", "columns"),
    [
        ("I", 11, 7),
        ("II", 11, 8),
        ("III", 4, 6),
        ("IV", 7, 10),
        ("V", 7, 10),
        ("VI", 3, 3),
        ("testbed", 8, 8),
        ("text", 10, 2),
    ],
)
def test_every_cell_is_there(table, rows, columns):
    table_rows = PAPER[table]
    assert [r.row for r in table_rows.rows] == list(range(1, rows + 1))
    assert {len(r.cells) for r in table_rows.rows} == {columns}


def test_spot_checks_against_the_text_of_the_paper():
    relief = row_of("I", "RELIEF").cells
    assert (relief["MHEALTH F1 (%)"].value, relief["speedup"].value, relief["energy (J)"].value) == (93.7, 2.87, 312)
    assert row_of("I", "FedEL").cells["TTA (rounds)"].value is None
    assert row_of("II", "Pilot").cells["save (%)"].value == -6.7
    assert row_of("II", "RELIEF").cells["PAMAP2 F1 (%)"].std == 0.58
    assert row_of("III", "V1").cells["B2 MHEALTH F1 (%)"].delta == 2.3
    assert row_of("IV", "Hetero. Extreme (100x)").cells["B1 FedEL"].value == 80.9
    assert row_of("V", "Scale N=100").cells["B2 Harmony"].value == 17.2


@pytest.mark.parametrize(("table", "anchor"), [("I", "FedAvg"), ("II", "FedAvg"), ("III", "V0")])
def test_printed_differences_agree_with_printed_values(table, anchor):
    base = row_of(table, anchor).cells
    for row in PAPER[table].rows:
        for column, cell in row.cells.items():
            if cell.delta is not None:
                assert cell.value - base[column].value == pytest.approx(cell.delta, abs=0.051), (row.name, column)


def test_the_same_setting_has_the_same_value_in_every_table():
    methods = {
        "FedAvg": "FedAvg",
        "FedEL": "FedEL",
        "Harmony": "Harmony",
        "DarkDistill": "DarkDistill",
        "RELIEF": "RELIEF",
    }
    for table, data, smallest in (("IV", "PAMAP2", "Scale N=8"), ("V", "MHEALTH", "Scale N=10")):
        for row in (row_of(table, "Hetero. Moderate (55x)"), row_of(table, smallest)):
            for backbone, main in (("B1", "I"), ("B2", "II")):
                for mine, theirs in methods.items():
                    assert row.cells[f"{backbone} {mine}"].value == row_of(main, theirs).cells[f"{data} F1 (%)"].value


def test_the_testbed_s_own_ratios_agree_with_its_figures():
    base, ours = row_of("testbed", "B1 FedAvg").cells, row_of("testbed", "B1 RELIEF").cells
    assert base["round (s)"].value / ours["round (s)"].value == pytest.approx(ours["speedup"].value, abs=0.006)
    assert 1 - ours["fleet energy (J)"].value / base["fleet energy (J)"].value == pytest.approx(0.37, abs=0.005)
    assert 200 * base["fleet energy (J)"].value / 1000 == pytest.approx(base["energy to it (kJ)"].value, abs=0.5)
    assert 200 * ours["fleet energy (J)"].value / 1000 == pytest.approx(ours["energy to it (kJ)"].value, abs=0.5)


def test_a_cell_that_the_paper_does_not_have_is_none():
    assert PAPER["I"].get("V1", "speedup") is None
    assert PAPER["I"].get("RELIEF", "nothing") is None
    assert PAPER["VI"].get("Orin-2, Type-C", "modality").text == "acc"
