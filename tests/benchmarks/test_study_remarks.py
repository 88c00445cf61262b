"""Remarks on the study: by hand, how far updates moved each block; what surprised."""

import pytest

from benchmarks.study_remarks import divergences, surprises, update_norms
from relief_ray.report.comparison import compare_runs
from tests.report.conftest import GROUPS, build


def test_diagnostics_by_hand():
    """Squared norms 4 and 16 in two runs: the root of their mean is sqrt(10)."""
    trained = {**GROUPS, 2: ("fusion.A.acc",)}
    runs = [build("relief", trained=trained, sq_norm=4.0), build("relief", trained=trained, sq_norm=16.0, seed=1)]
    assert update_norms(runs)["fusion.A.acc"]["C"] == pytest.approx(10**0.5)
    assert update_norms(runs)["head.1"]["C"] == pytest.approx(10**0.5), "C trains its head in the bootstrap alone"
    assert "C" not in update_norms(runs)["fusion.A.mag"]
    # Divergence 1 + n in rounds 1 and 2, of which the first is the bootstrap.
    assert divergences(runs)["fusion.A.acc"] == {"d": 2.5, "d_bar": 2.0}


def test_surprises_follow_the_numbers():
    def said(*runs):
        return "\n".join(surprises(compare_runs(runs)))

    every = build("relief", trained=GROUPS)
    trained = {**GROUPS, 2: ("fusion.A.acc", "head.1")}
    some, longer = build("relief", trained=trained), build("relief", trained=trained, scores=(0.4, 0.5, 0.6))
    assert "ranking decided nothing: of 2.00 free slots" in said(every)
    assert "decided 0.33 of 1.67 free slots per client and round." in said(some), "of one round after the bootstrap"
    assert "per client and round, and gave every client the same groups in every round: a fixed list" in said(longer)
    rising = [build("v1", scores=(0.9,)), build("relief", scores=(0.8,)), build("v2", scores=(0.7,))]
    assert "By mean F1 (%), untested: v1 90.0 > relief 80.0 > v2 70.0; the paper's order. Neighbours" in said(*rising)
    falling = [build("v1", scores=(0.5,)), build("relief", scores=(0.8,))]
    assert "relief 80.0 > v1 50.0; the paper's order is v1 > relief. They are 30.0 points apart." in said(*falling)
    bound = build("full_only", round_s=0.5, scores=(0.3,))
    with_bound = said(build("fedavg", scores=(0.4,)), build("relief", round_s=1.0, scores=(0.4,)), bound)
    assert "`full_only`) is faster still: 4.00x against 2.00x; it costs 10.0 points" in with_bound
    fedavg, relief = build("fedavg", scores=(0.4,)), build("relief", round_s=1.0, scores=(0.4,))
    better = said(fedavg, relief, build("full_only", round_s=0.5, scores=(0.45,)))
    assert "4.00x against 2.00x; it gains 5.0 points of F1 against FedAvg." in better
    even = said(build("relief", round_s=1.0), build("full_only", round_s=0.9999))
    assert "`full_only`) is as fast as RELIEF, 2.00x." in even, "2.00x against 2.00x would say nothing"
    slower = said(build("relief", round_s=1.0), build("full_only", round_s=1.5))
    assert "`full_only`) is" not in slower
    assert "Under FedAvg, device types without mag still move fusion.A.mag by 1.00" in with_bound
