"""Figures beside the paper's: deviation, origin, gaps."""

import pytest

from relief_ray.report.comparison import Stat, by_setting
from relief_ray.report.paper import read_paper
from relief_ray.report.tables import columns
from relief_ray.report.tables.columns import HEADLINE, SPEEDUP
from relief_ray.report.tables.rows import (
    departures,
    figure_cell,
    gap,
    headings,
    is_comparable,
    origin_of,
    printed,
    runs_cell,
    second_line,
)

PAPER = read_paper()
F1, JOULES = HEADLINE, columns.JOULES


@pytest.fixture
def pamap2(make, put_on, inventory_of):
    def build(*runs, **config):
        on = [put_on(r, data={"name": "pamap2", "stride_s": 1.0}, **config) for r in runs]
        return by_setting(inventory_of(on))[0]

    return build


def test_an_entry_by_hand():
    cell = PAPER["I"].get("FedAvg", "PAMAP2 F1 (%)")
    stat = Stat(mean=90.84, std=1.26, num=3)
    entry = figure_cell(stat, F1, origin="measured", paper=cell, comparable=True, num_runs=4)
    assert (entry.text, entry.below) == ("90.8 ± 1.3 (3/4)", "92.0 ± 0.38, -1.2")
    assert entry.numbers["deviation"] == pytest.approx(-1.16)
    assert entry.numbers["paper_std"] == 0.38 and entry.numbers["n"] == 3


@pytest.mark.parametrize(("origin", "comparable"), [("FITTED", True), ("measured", False)])
def test_no_deviation_where_it_would_mean_nothing(origin, comparable):
    cell = PAPER["I"].get("FedAvg", "energy (J)")
    entry = figure_cell(Stat(mean=847.0, std=0.0, num=1), JOULES, origin=origin, paper=cell, comparable=comparable)
    assert (entry.text, entry.below, entry.numbers["deviation"]) == ("847", "847", None)


def test_what_was_never_reached_is_a_dash_also_in_the_paper():
    tta = columns.ROUNDS_TO_85
    entry = figure_cell(None, tta, origin="measured", paper=PAPER["I"].get("FedEL", "TTA (rounds)"))
    assert (entry.text, entry.below, entry.numbers["n"]) == ("-", "-", 0)


def test_a_gap_says_why():
    assert gap(()).text == "not run"
    assert gap(("planned", "failed", "planned")).text == "planned, failed"


def test_origins(pamap2, make):
    real = pamap2(make("fedavg"), make("relief"), make("fedicu_table"))
    fake = pamap2(make("fedavg", origin="SYNTHETIC"))
    assert origin_of(real.shown, "fedavg", "f1_percent") == "measured"
    assert origin_of(fake.shown, "fedavg", "f1_percent") == "SYNTHETIC"
    assert origin_of(real.shown, "fedavg", "energy_j") == "FITTED", "847 J are what the clock was fitted to"
    assert origin_of(real.shown, "relief", "energy_j") == "FITTED", "the same joules as FedAvg's: the same work"
    less = pamap2(make("fedavg"), make("relief", energy_j=60.0))
    assert origin_of(less.shown, "relief", "energy_j") == "simulated"
    assert origin_of(real.shown, "fedavg", "up_mib") == "FITTED", "the width gives 4.81 MiB"
    assert origin_of(real.shown, "FedICU (reconstructed), table", "speedup") == "FITTED"


def test_only_the_paper_s_data_fleet_and_coupling_compare(pamap2, make, inventory_of):
    assert is_comparable(pamap2(make("fedavg")))
    assert not is_comparable(pamap2(make("fedavg", origin="SYNTHETIC")))
    assert not is_comparable(pamap2(make("fedavg"), fleet={"coupling": "inverted"}))
    assert not is_comparable(by_setting(inventory_of([make("fedavg")]))[0])


@pytest.mark.parametrize(
    "config",
    [
        {"fleet": {"gap": 10.0}},
        {"fleet": {"gap": 100.0}},
        {"data": {"name": "pamap2", "num_clients": 20}},
        {"fleet": {"num_clients": 50}},
    ],
)
def test_a_varied_fleet_compares_with_the_row_of_its_own_alone(pamap2, make, put_on, inventory_of, config):
    """Tables I to III are of gap 55 and a client per subject; Tables IV and V name gap and clients."""
    experiment = by_setting(inventory_of([put_on(make("fedavg"), **({"data": {"name": "pamap2"}} | config))]))[0]
    assert not is_comparable(experiment) and is_comparable(experiment, any_fleet=True)


@pytest.mark.parametrize(
    "config",
    [
        {"training": {"lr": 0.01}},
        {"training": {"batch_size": 8}},
        {"fleet": {"types": {"A": {"count": 6}}}},
        {"fleet": {"types": {"C": {"active_power_w": 4.0}}}},
        {"fleet": {"types": {"C": {"sensors": ["acc", "gyro"]}}}},
    ],
)
def test_other_training_and_devices_compare_with_nothing(pamap2, make, config):
    experiment = pamap2(make("fedavg"), **config)
    assert not is_comparable(experiment) and not is_comparable(experiment, any_fleet=True)


def test_departures_from_the_protocol_are_named(pamap2, make):
    experiment = pamap2(make("fedavg"))
    split = "data.split held_out_subject (paper: not said)"
    assert departures(experiment) == ["rounds 2 (paper: 200)", "training.epochs 2 (paper: 5)", split]
    assert departures(pamap2(make("fedavg"), rounds=200, training={"epochs": 5})) == [split]
    zero = pamap2(
        make("fedavg"), rounds=200, training={"epochs": 5, "missing": "zero_feature", "lr": 0.01, "batch_size": 8}
    )
    assert departures(zero) == [
        "training.lr 0.01 (paper: 0.001)", "training.batch_size 8 (paper: 32)",
        "training.missing zero_feature (paper: zero_input)", split,
    ]  # fmt: skip


def test_no_value_of_the_paper_stands_under_other_data(pamap2, make, put_on, inventory_of):
    """Of PAMAP2 it prints all figures, of MHEALTH F1 alone, of DSA none."""
    other = by_setting(inventory_of([make("fedavg")]))[0]
    assert printed(other, "I", "FedAvg", F1) is None and second_line(other) == ""
    mhealth = by_setting(inventory_of([put_on(make("fedavg"), data={"name": "mhealth"})]))[0]
    assert printed(mhealth, "I", "FedAvg", F1) is not None
    assert printed(mhealth, "I", "FedAvg", SPEEDUP) is None
    assert printed(pamap2(make("fedavg")), "I", "FedAvg", SPEEDUP) is not None
    assert second_line(pamap2(make("fedavg"))) == "second line: paper, PAMAP2, ours minus it"
    assert printed(pamap2(make("fedavg")), "I", "V1", F1) is None


def test_runs_are_counted_against_the_plan_and_other_code_is_marked(make, put_on, inventory_of):
    runs = [put_on(make("fedavg", seed=s), digest="b" if s == 2 else "a", where=f"w{s}") for s in range(3)]
    experiment = by_setting(inventory_of(runs, [(put_on(make("fedavg", seed=4)), "failed", "disk full")]))[0]
    cell = runs_cell(experiment, "fedavg")
    assert (cell.text, cell.below, cell.tone) == ("3 of 4", "1 by other code", "warn")


@pytest.mark.parametrize(
    ("every", "said"),
    [(2, "2nd"), (3, "3rd"), (5, "5th"), (11, "11th"), (12, "12th"), (13, "13th"), (20, "20th"), (21, "21st"),
     (22, "22nd"), (23, "23rd"), (101, "101st"), (111, "111th")],
)  # fmt: skip
def test_how_often_f1_was_tested_is_said_as_an_ordinal(pamap2, make, every, said):
    column = columns.ROUNDS_TO_85
    shown = pamap2(make("fedavg"), evaluation={"every": every}).shown
    assert headings(shown, [column]) == [f"{column.head}, tested every {said}"]
