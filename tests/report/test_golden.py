"""Pages and numbers of results and of small runs are those that are kept.

Where a change is meant: `python -m tests.report.golden --write`, and look at what git shows.
"""

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.report.golden.fixtures import FIXTURES, demo_committed, place
from tests.report.golden.kept import KEPT, NUMBERS, differences
from tests.report.golden.numbers import BETWEEN, folded, unfolded
from tests.report.golden.outputs import normalised, outputs, without_wall, written

MOST_BYTES = 500_000


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.ci] if f.is_long else []) for n, f in FIXTURES.items()]
)
def test_pages_and_numbers_are_those_that_are_kept(name):
    with tempfile.TemporaryDirectory() as folder:
        found = differences(name, outputs(name, Path(folder).resolve()))
    assert not found, "\n".join(["", *found, f"meant? python -m tests.report.golden {name} --write"])


@pytest.mark.ci
def test_committed_results_hold_the_numbers_of_their_runs(tmp_path):
    """`report --commit` loses none of a setting's results and claims, but for free slots and the largest upload."""
    with place(tmp_path):
        small = written(demo_committed(), replace(FIXTURES["demo"], compared=())).numbers
    tables = ("e1-main | ", "e1-all | ", "e1-verdicts | ", "e1-ablation | ", "e1-paper | ", "e1-convergence.csv | ")
    wanted = [line for line in unfolded((KEPT / "demo" / NUMBERS).read_text()) if line.startswith(tables)]
    lost = {line for line in wanted if line not in small}
    names = {line.split(BETWEEN)[1] for line in lost}
    assert len(wanted) > 80 and names == {"free slots", "of them a choice", "up max, MiB"}


def test_folded_lines_come_back():
    lines = ["a | b | c | 1", "a | b | d | 1", "a | e | d | 1 | 2", "b | e | d | 1", "b | e | d | 1"]
    assert folded(lines).splitlines()[1:3] == ["| | d | 1", "| e | d | 1 | 2"] and unfolded(folded(lines)) == lines


def test_what_changes_from_day_to_day_is_replaced():
    text = "EPYC, 2 cores, 1 thread; torch 2.13.0+cpu; sources 0123456789ab, commit 12ab\n3 runs, 1.2 s of process time"
    assert normalised(text) == " CPU; torch VERSION; sources SOURCES\n3 runs, WALL of process time\n"


def test_seconds_of_this_machine_are_replaced_in_tables():
    aligned = "a  wall, s  up\n-  -------  --\nx     0.31   2\n\nx     0.31   2\n"
    assert without_wall(aligned) == aligned.replace("   0.31", "   WALL", 1)
    page = "| a | wall, s | up |\n| --- | ---: | ---: |\n| x | 0.31 | 2 |\n"
    assert without_wall(page) == page.replace("0.31", "WALL")


def test_what_is_kept_is_small():
    assert {path.name for path in KEPT.iterdir()} == set(FIXTURES)
    assert sum(path.stat().st_size for path in KEPT.rglob("*.*")) < MOST_BYTES
