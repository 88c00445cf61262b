"""The generated page: golden text, diagnostics and the sentences about what surprised."""

from pathlib import Path

import pytest

from relief_ray.report.compare import compare_runs
from relief_ray.report.diagnostics import agreement, allocation, divergences, sections, update_norms
from relief_ray.report.study import study_markdown
from relief_ray.report.surprises import surprises

GOLDEN = Path(__file__).with_name("golden_study.txt")


def test_the_page_is_the_golden_one(family, put, tmp_path):
    for loaded in family:
        put(loaded, tmp_path / loaded.label)
    assert study_markdown([tmp_path / loaded.label for loaded in family]) == GOLDEN.read_text(encoding="utf-8")


def test_every_experiment_has_its_section(make, put, tmp_path):
    put(make("fedavg"), tmp_path / "a")
    within = {"data": {"name": "dsa", "split": "within_subject", "fold": 0, "stride_s": 5.0}}
    put(make("fedavg", extra=within, origin="SYNTHETIC"), tmp_path / "b")
    page = study_markdown([tmp_path])
    assert "## `dsa`, held-out subjects\n" in page
    assert "## SYNTHETIC data: `dsa`, within subjects\n" in page
    assert "| data | dsa (real) and dsa (SYNTHETIC) |" in page


def test_diagnostics_by_hand(make, groups):
    """Squared norms 4 and 16 in two runs: the root of their mean is sqrt(10)."""
    trained = {**groups, 2: ("fusion.A.acc",)}
    runs = [make("relief", trained=trained, sq_norm=4.0), make("relief", trained=trained, sq_norm=16.0, seed=1)]
    assert allocation(runs)["head.1"] == {"A": 1.0, "B": 1.0, "C": 0.0}
    assert update_norms(runs)["fusion.A.acc"]["C"] == pytest.approx(10**0.5)
    assert "C" not in update_norms(runs)["head.1"]
    # Divergence 1 + n in rounds 1 and 2; the bootstrap does not count.
    assert divergences(runs)["fusion.A.acc"] == {"d": 2.5, "d_bar": 2.0}


def test_agreement_sorts_pairs_by_who_owns_the_modality(make):
    pairs = {"fusion.A.gyro": ((0, 1, 0.5), (0, 2, -0.25), (1, 2, -0.75)), "fusion.A.mag": ((1, 2, 0.125),)}
    found = agreement([make("fedavg", pairwise=pairs)])
    assert found["fusion.A.gyro"] == {"both own it": 0.5, "one owns it": -0.5}
    assert found["fusion.A.mag"] == {"neither owns it": 0.125}
    text = sections(compare_runs([make("fedavg", pairwise=pairs)]))
    assert "| fusion.A.gyro | +0.500 | -0.500 | - |" in text


def test_surprises_follow_the_numbers(make, groups):
    def said(*runs):
        return "\n".join(surprises(compare_runs(runs)))

    every = make("relief", trained=groups)
    some = make("relief", trained={**groups, 2: ("fusion.A.acc", "head.1")})
    assert "ranking decided nothing: of 2.00 free slots" in said(every)
    assert "decided 0.33 of 1.67 free slots" in said(some)
    rising = [make("v1", scores=(0.9,)), make("relief", scores=(0.8,)), make("v2", scores=(0.7,))]
    assert "By mean F1 (%): v1 90.0 > relief 80.0 > v2 70.0; the paper's order. Neighbours" in said(*rising)
    falling = [make("v1", scores=(0.5,)), make("relief", scores=(0.8,))]
    assert "relief 80.0 > v1 50.0; the paper's order is v1 > relief." in said(*falling)
    bound = make("full_only", round_s=0.5, scores=(0.3,))
    with_bound = said(make("fedavg", scores=(0.4,)), make("relief", round_s=1.0, scores=(0.4,)), bound)
    assert "`full_only`) is faster still: 4.00x against 2.00x; it costs 10.0 points" in with_bound
    assert "Under FedAvg, device types without mag still move fusion.A.mag by 1.00" in with_bound
