"""docs/allocation.md is what the program computes today, and the marked claims of its text follow from it."""

from pathlib import Path

import pytest

from benchmarks.allocation import BLOCKS, CASES, CLOCKS, allocate, backbone1, backbone2, hardware_of
from benchmarks.marked import MARKED, filled

PAGE = Path(__file__).parents[2] / "docs/allocation.md"


COMMAND = "python -m benchmarks.allocation --doc docs/allocation.md"


@pytest.mark.ci
def test_the_page_holds_what_the_program_computes():
    text = PAGE.read_text(encoding="utf-8")
    assert {match["name"] for match in MARKED.finditer(text)} == {*BLOCKS, "backbone2"}
    assert filled(text, {"backbone1": backbone1}) == text, COMMAND


@pytest.mark.slow
def test_the_page_holds_what_the_program_computes_elsewhere():
    text = PAGE.read_text(encoding="utf-8")
    assert filled(text, {**BLOCKS, "backbone2": backbone2}) == text, f"{COMMAND} --backbone2"


def test_pamap2_by_hand():
    """T* = T_o + tau_C: 0.861 s of link and 0.437 s a group; C's one group, its fusion block, takes twice the mean."""
    planned = allocate(hardware_of(CASES[0], CLOCKS[0], "relief"), CLOCKS[0])
    assert planned.groups == {"A": (14, 14, 14), "B": (3, 3, 8), "C": (1, 1, 5)}
    assert planned.slots == (3, 3 * 14 + 3 * 3 + 2 * 1) and planned.untrained == ()
    assert planned.fedavg.round_s / planned.cost.round_s == pytest.approx(5.33, abs=0.005)
    assert planned.cost.energy_j == pytest.approx(257, abs=0.5)
    assert planned.cost.round_s == planned.planned_s > planned.target_s


def test_the_same_devices_look_faster_at_the_papers_protocol():
    """Link seconds do not shrink with windows and epochs; compute-only speed does not change at all."""
    speeds = {}
    for name, case in (("short", CASES[2]), ("long", CASES[3])):
        planned = allocate(hardware_of(case, CLOCKS[0], "relief"), CLOCKS[0])
        speeds[name] = planned.fedavg.round_s / planned.cost.round_s
        assert planned.fedavg.compute_s / planned.cost.compute_s == pytest.approx(4.549, abs=5e-4)
    assert speeds == {"short": pytest.approx(2.21, abs=0.005), "long": pytest.approx(3.72, abs=0.005)}
