"""Cells, columns and tables that fit."""

import dataclasses

import pytest

from relief_ray.records.schema import MethodFacts
from relief_ray.report.comparison import Stat, compare_runs
from relief_ray.report.formats.text import markdown, plain
from relief_ray.report.remarks import STAND_IN
from relief_ray.report.statistics import paired
from relief_ray.report.tables.columns import F1, HEADLINE, LINK
from relief_ray.report.tables.methods import all_tables, lead_table
from relief_ray.report.tables.rows import names_line, number_text
from relief_ray.support.table import legend


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


def test_a_link_that_only_rounds_to_all_says_so():
    nearly, whole = Stat(mean=99.7, std=None, num=3), Stat(mean=100.0, std=None, num=3)
    assert (number_text(nearly, LINK, 3), number_text(whole, LINK, 3)) == ("> 99", "100")


def test_a_legend_is_read_from_left_to_right(make):
    """No meaning is `the same` as another: the one before it may be of another column."""
    runs = [make("fedavg"), make("relief", scores=(0.55, 0.6), round_s=1.0), make("local", own=(0.4, 0.5))]
    tables = all_tables(compare_runs(runs))[:2]
    lines = legend(tables)
    places = [[head for table in tables for head in table.head].index(line.split("`")[1]) for line in lines]
    assert places == sorted(places) and len(places) > 3
    assert "`F1 at equal J %`: as `F1 at equal s %`, at equal joules" in lines


def test_a_spread_of_zero_is_left_out_of_the_report():
    even = Stat(mean=50.0, std=0.01, num=3)
    assert (number_text(even, HEADLINE, 3), number_text(even, F1, 3, tight=True)) == ("50.0", "50.0±0.0")
    assert number_text(Stat(mean=73.64, std=8.06, num=3), HEADLINE, 4) == "73.6 ± 8.1 (3/4)"


def test_changes():
    assert str(paired([2.0])) == "+2.0 (1 run)"
    assert str(paired([1.0, 2.0, 3.0])) == "+2.0 [-0.5, +4.5]"
    assert str(paired([-9.0, 7.0])) == "-1.0 (2 runs)", "its interval would be [-102.6, +100.6]"
    assert str(paired([-9.0, 7.0], on_means=True)) == "-1.0 (2 replicates)", "each of several runs"
    assert str(paired([-60.0, 70.0, 80.0])) == "+30.0 [-100.0, +100.0]", "no F1 differs by more"


def test_a_star_marks_the_headline_of_methods_whose_clients_have_models_of_their_own(make):
    """FedAvg 60 %; canonical 80 %, own 50 %: the headline is 10 points below, the diagnostic 20 above."""
    both = make("fedlease", scores=(0.7, 0.8), own=(0.4, 0.5))
    comparison = compare_runs([make("fedavg"), both, make("local", personalised=True, scores=(0.2, 0.3))])
    scores = all_tables(comparison)[0]
    lease, local = cells(scores, "fedlease*"), cells(scores, "local*")
    assert (lease["F1 %"], lease["F1 own %"], lease["vs fedavg [95 %]"]) == ("80.0", "50.0*", "-10.0 (1 run)")
    assert (local["F1 %"], local["F1 own %"], local["acc %"]) == ("-", "30.0*", "-")
    assert (cells(scores, "fedavg")["F1 own %"], cells(scores, "fedavg")["acc %"]) == ("-", "30.0")
    assert cells(all_tables(comparison)[2], "fedlease*")["F1 % vs fedavg [95 %]"] == "+20.0 (1 run)"
    assert "F1 own %" not in all_tables(compare_runs([make("fedavg")]))[0].head


def test_a_variant_is_named_only_where_the_title_of_its_preset_says_more(make):
    titles = {"relief (fill=time)": "RELIEF", "v3_mandatory (slots_slowest=3)": "V3 with mandatory blocks"}
    runs = [make(n, facts=MethodFacts(name=n, title=title, kind="own")) for n, title in titles.items()]
    assert names_line(compare_runs(runs)) == (
        "Names: `v3_mandatory (slots_slowest=3)`: V3 with mandatory blocks; `fill`: `count`: a client trains k_n "
        "groups (Eq. (7)), whatever these cost; `time`: they must fit into `T*` too; `slots_slowest`: Least number of "
        "groups that every client gets, as far as it reaches so many; raises `T*`"
    )


def test_rows_of_stand_ins_have_the_mark_that_their_remark_begins_with(make):
    runs = [make(name, extra={"backbone": {"name": "cnn"}}) for name in ("fedavg", "helora")]
    for table in all_tables(compare_runs(runs))[:2]:
        assert [row.name for row in table.rows] == ["fedavg", f"helora{STAND_IN}"]


def test_sensors_are_explained_together_where_they_begin(make):
    comparison = compare_runs([make("fedavg")])
    scores = all_tables(comparison)[0]
    lines = legend([scores])
    assert "`acc %` and `mag %`: F1 with one sensor alone" in lines[-1:]
    assert "`rare F1 %`: F1 with one sensor alone, mean over the sensors that the fewest clients own" in lines


def test_sensors_stand_in_the_order_of_the_data_set(make):
    """Sorted by name, gravity would stand before gyro and mag."""
    facts = {"modalities": ["mag", "acc"], "clients": []}
    runs = [make("fedavg")]
    assert [h for h in all_tables(compare_runs(runs))[0].head if h in ("acc %", "mag %")] == ["acc %", "mag %"]
    other = dataclasses.replace(runs[0], run=runs[0].run.model_copy(update={"fleet": facts}))
    assert [h for h in all_tables(compare_runs([other]))[0].head if h in ("acc %", "mag %")] == ["mag %", "acc %"]


def test_compare_prints_none_of_the_papers_values(make, put_on):
    methods = ("fedicu_table", "v1", "full_only")
    comparison = compare_runs([put_on(make(m), data={"name": "pamap2", "stride_s": 5.0}) for m in methods])
    tables = all_tables(comparison)[:2]
    assert not [head for table in tables for head in table.head if "paper" in head]
    assert not any("in the paper" in line for line in legend(tables))


def test_backbone_2_has_kibibytes(make, put_on):
    runs = [put_on(on_moment(make(m), put_on), data={"name": "pamap2", "stride_s": 5.0}) for m in ("relief", "v3")]
    assert cells(all_tables(compare_runs(runs))[1], "relief")["up, KiB"] == "2048"


def test_f1_at_equal_cost_by_hand(make):
    """FedAvg: 2 s and 50 J a round, 4 s and 100 J in all; V0: 1.5 s and 120 J a round, 3 s and 240 J in all.

    At 3 s FedAvg stands half-way between its rounds, (50 + 60) / 2 %. At 100 J V0 is in its first round: no figure.
    """
    runs = [
        make("fedavg", scores=(0.5, 0.6), round_s=2.0, energy_j=50.0),
        make("relief", scores=(0.4, 0.55), round_s=1.5, energy_j=120.0),
        make("full_only", scores=(0.3, 0.35), round_s=0.5, energy_j=10.0),
    ]
    scores = all_tables(compare_runs(runs))[0]
    shown = {name: cells(scores, name) for name in ("fedavg", "relief", "full_only")}
    assert [shown[name]["F1 at equal s %"] for name in shown] == ["55.0", "55.0", "35.0"]
    assert [shown[name]["F1 at equal J %"] for name in shown] == ["60.0", "-", "35.0"]
    assert any(line.startswith("`F1 at equal s %`: F1 when as many") for line in legend([scores]))
    assert "F1 at equal s %" not in all_tables(compare_runs(runs[:1]))[0].head, "alone nothing is equal"


def seen(loaded, **own):
    """The run with further F1 in its last round."""
    last = loaded.rounds[-1]
    changed = last.model_copy(update={"metrics": last.metrics.model_copy(update=own)})
    return dataclasses.replace(loaded, rounds=(*loaded.rounds[:-1], changed))


def test_the_own_sensors_f1_leads_wherever_it_is_known(make):
    """Without clients' own models too: it is what a device has whose sensors are few."""
    runs = [seen(make("fedavg"), f1_own_sensors=0.45), seen(make("relief"), f1_own_sensors=0.4)]
    scores = lead_table(compare_runs(runs)).without_blanks()
    assert scores.head[1:] == (
        "F1 %",
        "vs fedavg [95 %]",
        "F1 at equal s %",
        "F1 own %",
        "speedup",
        "J/round",
    )
    assert (cells(scores, "fedavg")["F1 own %"], cells(scores, "relief")["F1 own %"]) == ("45.0", "40.0")
    assert any(line.startswith("`F1 own %`: mean over clients") for line in legend([scores]))
    assert "F1 own %" not in lead_table(compare_runs([make("fedavg")])).head


def test_own_sensors_and_own_subjects_stand_beside_f1_for_every_method(make, put_on):
    runs = [
        seen(make("fedavg"), f1_own_sensors=0.4, f1_own_subjects=0.45),
        seen(make("fedlease", own=(0.4, 0.5)), f1_own_sensors=0.5, f1_own_subjects=0.7),
    ]
    scores = all_tables(compare_runs(runs))[0]
    assert scores.head[1:3] == ("F1 %", "F1 own %")
    fedavg, lease = cells(scores, "fedavg"), cells(scores, "fedlease*")
    assert (fedavg["F1 own %"], lease["F1 own %"]) == ("40.0", "50.0*")
    assert (fedavg["F1 own subjects %"], lease["F1 own subjects %"]) == ("45.0", "70.0")


def test_the_legend_explains_the_columns_that_are_shown_and_no_others(make):
    """`rounds to 85 %` is there where a method got so far."""
    slow, fast = ([make("fedavg", scores=(0.5, 0.6)), make("v1", scores=(0.5, f1), model="v1")] for f1 in (0.61, 0.9))
    assert "rounds to 85 %" not in plain(compare_runs(slow), wide=True)
    comparison = compare_runs(fast)
    shown = {
        "lead": plain(comparison, legend=True),
        "wide": plain(comparison, wide=True, legend=True),
        "markdown": markdown(comparison),
    }
    explained = {
        name: {line.split("`")[1] for line in text.splitlines() if line.startswith("- `")}
        for name, text in shown.items()
    }
    assert {"rounds to 85 %", "rounds to 95 % of FedAvg", "compute", "link %"} <= explained["wide"]
    assert explained["wide"] <= explained["markdown"] and "speedup" in explained["lead"]
    assert not {"rounds to 85 %", "compute"} & explained["lead"]
    assert "- `speedup`" not in plain(comparison), "asked for alone"


def test_worst_clients_and_who_sends_by_hand(make):
    """Eleven clients with F1 of 0.10 to 0.20: the worst tenth are two, 10.5 %."""
    served = {number: 0.1 + number / 100 for number in range(11)}
    shown = cells(all_tables(compare_runs([seen(make("fedavg"), f1_by_client=served)]))[0], "fedavg")
    assert (shown["worst client %"], shown["worst tenth %"]) == ("10.0", "10.5")
    assert "worst client %" not in all_tables(compare_runs([make("fedavg")]))[0].head
