"""README.md and docs/results.md say what the committed records say, and nothing that these do not carry."""

import re

import pytest

from benchmarks.marked import MARKED, filled
from benchmarks.results_page import BLOCKS, PAGES, ROOT, SHORT, STUDY, comparison


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_tables_are_those_of_the_committed_results(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert filled(text, BLOCKS) == text, "write them anew: python -m benchmarks.results_page --write"


def test_every_table_stands_on_a_page():
    names = {m["name"] for page in PAGES for m in MARKED.finditer((ROOT / page).read_text(encoding="utf-8"))}
    assert names == set(BLOCKS)


def test_a_changed_number_is_seen():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = (m[0] for m in MARKED.finditer(text) if m["name"] == "study")
    number = re.search(r"\d+\.\d", block)[0]
    assert filled(text.replace(block, block.replace(number, "99.9", 1)), BLOCKS) == text


def test_scores_are_means_of_the_records():
    """By hand from the cells: the mean of the last F1 of FedAvg's runs, and of paired differences."""
    runs = comparison(STUDY)
    last = {
        label: {r.replicate: 100 * r.rounds[-1].metrics.headline for r in runs.runs_of(label)} for label in SHORT[:2]
    }
    fedavg, relief = last["fedavg"], last["relief"]
    assert fedavg.keys() == relief.keys() and len(fedavg) >= 8
    gain = sum(relief[key] - score for key, score in fedavg.items()) / len(fedavg)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in BLOCKS["study"]().splitlines()]
    assert rows[2][1].startswith(f"{sum(fedavg.values()) / len(fedavg):.1f} ")
    assert rows[3][2].startswith(f"{gain:+.1f} ")
