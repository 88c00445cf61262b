"""Baselines that go another way than in the paper."""

import pytest

from relief_ray.report.experiments import experiments
from relief_ray.report.findings import directions
from relief_ray.report.paper import read_paper

PAPER = read_paper()


@pytest.fixture
def said(put_on, inventory_of):
    def build(*runs):
        return directions(experiments(inventory_of([put_on(r) for r in runs]))[0], PAPER)

    return build


def test_a_speedup_that_the_paper_does_not_print_is_named(said, make):
    """FedAvg's round takes 2 s; the paper gives Harmony 1.00x, DarkDistill 1.82x, FedICU 1.15x."""
    runs = [
        make("fedavg"),
        make("harmony", round_s=0.5),
        make("darkdistill", round_s=1.0),
        make("fedicu", round_s=1.95),
    ]
    assert said(*runs) == ["`harmony`: 4.00x FedAvg's speed by the clock `flop_proportional`; the paper prints 1.00x."]


def test_a_score_counts_where_its_interval_leaves_out_zero(said, make, eight):
    """The paper: FedEL -10.4 points, FedProx +0.5, Pilot -0.2."""

    def moved(by, wobble=0.0):
        return {s: v + by + wobble * (-1) ** int(s) for s, v in eight.items()}

    runs = [
        make("fedavg", subjects=eight),
        make("fedel", subjects=moved(0.05), round_s=0.3),
        make("fedprox", subjects=moved(0.05)),
        make("pilot", subjects=moved(0.01, wobble=0.2)),
    ]
    assert said(*runs) == ["`fedel`: F1 is +5.0 [+5.0, +5.0] points from FedAvg's; the paper prints -10.4."]


def test_synthetic_data_give_no_findings(said, make):
    assert said(make("fedavg", origin="SYNTHETIC"), make("harmony", round_s=0.5, origin="SYNTHETIC")) == []
