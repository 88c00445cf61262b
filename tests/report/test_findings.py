"""Findings: baselines that go another way than the paper."""

import pytest

from relief_ray.report.comparison import by_setting
from relief_ray.report.paper import read_paper
from relief_ray.report.remarks import directions

PAPER = read_paper()


@pytest.fixture
def said(put_on, inventory_of):
    def build(*runs):
        return directions(by_setting(inventory_of([put_on(r) for r in runs]))[0], PAPER)

    return build


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
