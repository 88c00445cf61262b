"""Tests, by hand, the tables of trained groups, of how far updates moved each block, and of their agreement."""

import pytest

from relief_ray.report.findings import PAIRS, agreement, divergences, update_norms
from relief_ray.report.formats.markdown import means_markdown


def test_diagnostics_by_hand(make, groups):
    """Squared norms 4 and 16 in two runs: the root of their mean is sqrt(10)."""
    trained = {**groups, 2: ("fusion.A.acc",)}
    runs = [make("relief", trained=trained, sq_norm=4.0), make("relief", trained=trained, sq_norm=16.0, seed=1)]
    assert update_norms(runs)["fusion.A.acc"]["C"] == pytest.approx(10**0.5)
    assert "C" not in update_norms(runs)["head.1"]
    # Divergence 1 + n in rounds 1 and 2; the bootstrap does not count.
    assert divergences(runs)["fusion.A.acc"] == {"d": 2.5, "d_bar": 2.0}


def test_agreement_sorts_pairs_by_who_owns_the_modality(make):
    pairs = {"fusion.A.gyro": ((0, 1, 0.5), (0, 2, -0.25), (1, 2, -0.75)), "fusion.A.mag": ((1, 2, 0.125),)}
    means = agreement([make("fedavg", pairwise=pairs)])
    assert means["fusion.A.gyro"] == {"both own it": 0.5, "one owns it": -0.5}
    assert means["fusion.A.mag"] == {"neither owns it": 0.125}
    assert "| fusion.A.gyro | +0.500 | -0.500 | - |" in means_markdown(means, "group", "+.3f", PAIRS)
