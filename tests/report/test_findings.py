"""Findings: by hand, how far updates moved each block; what surprised; baselines that go another way than the paper."""

import pytest

from relief_ray.report.comparison import compare_runs
from relief_ray.report.experiments import experiments
from relief_ray.report.findings import directions, divergences, surprises, update_norms
from relief_ray.report.paper import read_paper

PAPER = read_paper()


@pytest.fixture
def said(put_on, inventory_of):
    def build(*runs):
        return directions(experiments(inventory_of([put_on(r) for r in runs]))[0], PAPER)

    return build


def test_diagnostics_by_hand(make, groups):
    """Squared norms 4 and 16 in two runs: the root of their mean is sqrt(10)."""
    trained = {**groups, 2: ("fusion.A.acc",)}
    runs = [make("relief", trained=trained, sq_norm=4.0), make("relief", trained=trained, sq_norm=16.0, seed=1)]
    assert update_norms(runs)["fusion.A.acc"]["C"] == pytest.approx(10**0.5)
    assert "C" not in update_norms(runs)["head.1"]
    # Divergence 1 + n in rounds 1 and 2; the bootstrap does not count.
    assert divergences(runs)["fusion.A.acc"] == {"d": 2.5, "d_bar": 2.0}


def test_surprises_follow_the_numbers(make, groups):
    def said(*runs):
        return "\n".join(surprises(compare_runs(runs)))

    every = make("relief", trained=groups)
    some = make("relief", trained={**groups, 2: ("fusion.A.acc", "head.1")})
    assert "ranking decided nothing: of 2.00 free slots" in said(every)
    assert "decided 0.33 of 1.67 free slots" in said(some)
    rising = [make("v1", scores=(0.9,)), make("relief", scores=(0.8,)), make("v2", scores=(0.7,))]
    assert "By mean F1 (%), untested: v1 90.0 > relief 80.0 > v2 70.0; the paper's order. Neighbours" in said(*rising)
    falling = [make("v1", scores=(0.5,)), make("relief", scores=(0.8,))]
    assert "relief 80.0 > v1 50.0; the paper's order is v1 > relief." in said(*falling)
    bound = make("full_only", round_s=0.5, scores=(0.3,))
    with_bound = said(make("fedavg", scores=(0.4,)), make("relief", round_s=1.0, scores=(0.4,)), bound)
    assert "`full_only`) is faster still: 4.00x against 2.00x; it costs 10.0 points" in with_bound
    fedavg, relief = make("fedavg", scores=(0.4,)), make("relief", round_s=1.0, scores=(0.4,))
    better = said(fedavg, relief, make("full_only", round_s=0.5, scores=(0.45,)))
    assert "4.00x against 2.00x; it gains 5.0 points of F1 against FedAvg." in better
    even = said(make("relief", round_s=1.0), make("full_only", round_s=0.9999))
    assert "`full_only`) is as fast as RELIEF, 2.00x." in even, "2.00x against 2.00x would say nothing"
    slower = said(make("relief", round_s=1.0), make("full_only", round_s=1.5))
    assert "`full_only`) is" not in slower
    assert "Under FedAvg, device types without mag still move fusion.A.mag by 1.00" in with_bound


def test_a_speedup_that_the_paper_does_not_print_is_named(said, make):
    """FedAvg's round takes 2 s; the paper gives Harmony 1.00x, DarkDistill 1.82x, FedICU 1.15x."""
    runs = [
        make("fedavg"),
        make("harmony", round_s=0.5),
        make("darkdistill", round_s=1.0),
        make("fedicu", round_s=1.95),
    ]
    words = "4.00x FedAvg's speed, seconds simulated in proportion to the FLOPs of what is trained"
    assert said(*runs) == [f"`harmony`: {words}; the paper prints 1.00x on PAMAP2."]


def test_a_score_counts_where_its_interval_leaves_out_zero(said, make):
    """The paper: FedEL -10.4 points, FedProx +0.5, Pilot -0.2."""

    def runs(method, gains, **more):
        return [make(method, seed=s, scores=(0.1, 0.5 + gain), **more) for s, gain in enumerate(gains)]

    found = said(
        *runs("fedavg", (0, 0, 0)), *runs("fedel", (0.05, 0.06, 0.04), round_s=0.3),
        *runs("fedprox", (0.05, 0.06, 0.04)), *runs("pilot", (0.2, -0.2, 0.03)),
    )  # fmt: skip
    assert found == ["`fedel`: F1 is +5.0 [+2.5, +7.5] points from FedAvg's; the paper prints -10.4 on PAMAP2."]


def test_synthetic_data_give_no_findings(said, make):
    assert said(make("fedavg", origin="SYNTHETIC"), make("harmony", round_s=0.5, origin="SYNTHETIC")) == []
