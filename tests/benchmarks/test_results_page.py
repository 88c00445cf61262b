"""README.md and docs/results.md say what the committed records say, and nothing that these do not carry."""

import re

import pytest

from benchmarks.marked import MARKED, filled
from benchmarks.results_page import BLOCKS, PAGES, PLUS, PLUS_PARTS, ROOT, STUDY, TABLE_ONE, TUNED, comparison


@pytest.mark.ci
@pytest.mark.parametrize("page", PAGES, ids=str)
def test_tables_are_those_of_the_committed_results(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert filled(text, BLOCKS) == text, "write them anew: python -m benchmarks.results_page --write"


def test_every_table_stands_on_a_page():
    names = {m["name"] for page in PAGES for m in MARKED.finditer((ROOT / page).read_text(encoding="utf-8"))}
    assert names == set(BLOCKS)


@pytest.mark.ci
def test_a_changed_number_is_seen():
    text = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    (block,) = (m[0] for m in MARKED.finditer(text) if m["name"] == "study_all")
    number = re.search(r"\d+\.\d", block)[0]
    assert filled(text.replace(block, block.replace(number, "99.9", 1)), BLOCKS) == text


def rows_of(block):
    """Cells of a table's rows, without its head."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in BLOCKS[block]().splitlines()[2:]]


def test_scores_are_means_of_the_records():
    """By hand from the cells: the mean of the last F1 of FedAvg's runs, and of paired differences."""
    runs = comparison(STUDY)
    last = {
        label: {r.replicate: 100 * r.rounds[-1].metrics.headline for r in runs.runs_of(label)}
        for label in ("fedavg", "relief")
    }
    fedavg, relief = last["fedavg"], last["relief"]
    assert fedavg.keys() == relief.keys() and len(fedavg) >= 8
    gain = sum(relief[key] - score for key, score in fedavg.items()) / len(fedavg)
    of_fedavg, of_relief = rows_of("study_all")[:2]
    assert of_fedavg[1].startswith(f"{sum(fedavg.values()) / len(fedavg):.1f} ")
    assert of_relief[2].startswith(f"{gain:+.1f} ")


def test_the_readme_says_what_the_studies_found():
    """Speed, joules, F1 with its interval, F1 through own sensors: rows of RELIEF+, RELIEF and FedAvg."""
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    plus = comparison(PLUS)
    row, own = plus.row("relief_plus (int8)"), plus.difference("relief_plus (int8)", "fedavg", "f1_own_sensors")
    of_fedavg, of_relief = rows_of("study_all")[:2]
    lost, less, gain = re.match(r"[-+][\d.]+", of_relief[2])[0], float(of_fedavg[3]) - float(of_relief[3]), row.f1
    speeds = [plus.row(label).mean("speedup") for label in ("relief_plus (int8)", "fedavg (e1-int8)")]
    assert (
        f"has the F1 of FedAvg with five epochs: {gain.mean:+.1f} points (95 %: {gain.low:+.1f} to {gain.high:+.1f}). "
        f"Its simulated rounds are {speeds[0]:.1f} times shorter and use {row.mean('energy_saved_percent'):.0f} % less "
        "energy. "
        f"Through own sensors it has {-own.mean:.1f} points less. FedAvg with one epoch and these formats takes "
        f"{speeds[0] / speeds[1]:.1f} times as long. Where epochs are short, RELIEF+ needs [several]"
        f"(docs/results.md#elsewhere). RELIEF as in the paper costs {lost[1:]} points ({less:.1f} through own sensors) "
        f"for {of_relief[4].removesuffix('x')} times the speed."
    ) in text


def test_the_page_says_what_the_parts_found():
    """Differences and their intervals, each from the runs of the two methods that are named."""
    text, parts = " ".join((ROOT / "docs/results.md").read_text(encoding="utf-8").split()), comparison(PLUS_PARTS)

    def gain(first, second, figure="f1"):
        found = parts.difference(first, second, figure)
        return f"{found.mean:.1f}", f"[{found.low:.1f}, {found.high:.1f}]"

    whole, part = "v2_mandatory (epochs-participants)", "v2_mandatory (groups-participants)"
    f1, own = gain(whole, part), gain(whole, part, "f1_own_sensors")
    assert f"It ends {f1[0]} points higher {f1[1]}, and {own[0]} through own sensors {own[1]}." in text
    means = [
        float(gain(f"{of_all} ({budget}-participants)", f"{of_some} ({budget}-cohort)")[0])
        for budget, of_all, of_some in (
            ("groups", "v2_mandatory", "relief"),
            ("epochs", "v2_mandatory", "relief"),
            ("none", "v1", "v1"),
        )
    ]
    assert f"by {min(means)} to {max(means)} points in three comparisons" in text
    exact, coded = gain(whole, "relief_plus"), gain("v2_mandatory (until-int8)", "relief_plus (int8)")
    assert f"F1 is {exact[0]} points higher in float32 after as many rounds {exact[1]}, and {coded[0]} in int8" in text
    assert f"int8 {coded[1]}." in text


def test_settings_elsewhere_have_the_clients_that_their_runs_had():
    assert [row[0] for row in rows_of("plus_elsewhere")[::4]] == [
        "6 clients",
        "100 clients",
        "gap 10",
        "coupling inverted",
        "MHEALTH",
    ]
    assert {run.small.means.num_clients for run in comparison(PLUS_PARTS).runs} == {6}


@pytest.mark.ci
def test_chosen_values_stand_beside_the_same_round_with_the_papers():
    """By hand: means over replicates of FedAvg's fifteenth round, of 15 and of 200, and of their differences."""
    chosen, before = (
        {r.replicate: next(100 * x.metrics.headline for x in r.rounds if x.round == 15) for r in runs}
        for runs in (comparison(folder).runs_of("fedavg") for folder in (TUNED, TABLE_ONE["within"]))
    )
    assert chosen.keys() == before.keys() and len(chosen) == 3
    gain = sum(chosen[key] - before[key] for key in chosen) / 3
    cells = next(row for row in rows_of("tuned") if row[0] == "FedAvg")
    assert cells[1:4] == ["sgd, 0.1", f"{sum(before.values()) / 3:.1f}", f"{sum(chosen.values()) / 3:.1f}"]
    assert cells[4].startswith(f"{gain:+.1f} ")
    assert all(row[2] != "–" for row in rows_of("tuned")), "every method has runs with the paper's values"


def test_settings_are_compared_within_themselves():
    """FedAvg learns the same whoever owns a sensor, and however far apart devices are; RELIEF's speed follows both."""
    for block in ("coupling", "sensitivity"):
        rows = rows_of(block)
        # Three couplings, and three gaps before the numbers of clients.
        fedavg = [row for row in rows if row[1] == "FedAvg"][:3]
        assert len({row[2] for row in fedavg}) == 1 and {row[6] for row in fedavg} == {"1.00x"}
        speeds = [row[6] for row in rows if row[1] == "RELIEF"]
        assert len(speeds) == len(set(speeds)) >= 3
