"""Seven claims, one rule."""

import pytest

from relief_ray.report.claims import claims, last_line, page_claims
from relief_ray.report.comparison import compare_runs


def test_verdicts_by_hand(family):
    """Eight subjects. p = 2/256 where all eight agree; V2 - V3 is +3 and -1 points by turns.

    Five claims with p = 1/128: Holm's largest factor is 6 (six tested claims), 6/128 = .047. V2 - V3: mean +1 point.
    """
    judged = claims(compare_runs(family))
    assert [c.supported for c in judged] == ["yes", "yes", "yes", "yes", "yes", "undecided", "yes"]
    assert [c.p for c in judged[:5]] == [1 / 128] * 5
    assert [c.p_holm for c in judged[:5]] == [pytest.approx(6 / 128)] * 5
    # Sums of four +-3 and four +-1 at least |8|: counted over 256 assignments.
    signs = [[1 if i >> k & 1 else -1 for k in range(8)] for i in range(256)]
    count = sum(abs(sum(s * d for s, d in zip(row, (-1, 3) * 4, strict=True))) >= 8 for row in signs)
    assert judged[5].p == judged[5].p_holm == count / 256
    assert "2.00x, 40 % fewer joules" in judged[6].evidence
    assert "arithmetic, no test" in judged[6].evidence


def test_the_opposite_is_said(make, eight):
    worse = {s: v - 0.1 for s, v in eight.items()}
    slow = {"round_s": 3.0, "energy_j": 120.0}
    judged = claims(compare_runs([make("fedavg", subjects=eight), make("v1", subjects=worse), make("relief", **slow)]))
    assert judged[0].supported == "no"
    assert judged[0].direction == -1
    assert judged[6].supported == "no"


def test_faster_but_hungrier_is_undecided(make):
    assert claims(compare_runs([make("relief", round_s=1.0, energy_j=120.0)]))[6].supported == "undecided"


def test_the_rare_modality_is_judged_with_and_without_elastic_training(make, eight):
    """V1 against FedAvg says nothing of V0 against V2: each claim needs its own pair of runs."""

    def rare(value):
        return dict.fromkeys(eight, value)

    runs = [make("fedavg", subjects=eight, rare=rare(0.1)), make("v1", subjects=eight, rare=rare(0.3))]
    full, elastic = claims(compare_runs(runs))[1:3]
    assert (full.supported, full.direction) == ("yes", 1) and "v1 - fedavg: +20.0" in full.evidence
    assert not elastic.is_tested and elastic.evidence.startswith("needs runs of relief and v2_mandatory")
    runs += [make("relief", subjects=eight, rare=rare(0.1)), make("v2_mandatory", subjects=eight, rare=rare(0.2))]
    elastic = claims(compare_runs(runs))[2]
    assert (elastic.direction, elastic.p) == (-1, 1 / 128) and "relief - v2_mandatory: -10.0" in elastic.evidence


def test_equal_models_leave_a_claim_undecided(make, eight):
    claim = claims(compare_runs([make("v2", subjects=eight), make("v3", subjects=eight)]))[5]
    assert (claim.supported, claim.p) == ("undecided", 1.0)
    assert "no difference at all in 8 subjects" in claim.evidence


def test_missing_runs_are_named_and_do_not_count_in_holm(make, eight):
    better = {s: v + 0.1 for s, v in eight.items()}
    judged = claims(compare_runs([make("fedavg", subjects=eight), make("v1", subjects=better)]))
    assert [c.is_tested for c in judged] == [True] + [False] * 6
    assert judged[0].p_holm == judged[0].p == 1 / 128
    assert judged[4].evidence == "needs runs of relief and v2"


def test_the_last_line_is_one_plain_sentence(family):
    assert last_line(compare_runs(family)) == (
        "This run supports that V1 > FedAvg in F1, V1 > FedAvg in rare-modality F1, V0 > V2 with mandatory blocks in "
        "rare-modality F1, V0 > FedAvg in rare-modality F1, V0 > V2 in F1 "
        "and RELIEF (V0) shortens rounds and saves energy (simulated: "
        "2.00x, 40 % fewer joules per round), speaks against none and "
        "cannot decide whether V2 > V3 in F1 (8 test subjects, sign-flip tests, "
        "Holm-corrected)."
    )


def test_the_last_line_of_a_small_demo_says_what_two_subjects_can_decide(make):
    fast = {"round_s": 1.0, "energy_j": 60.0}
    runs = [make("fedavg"), make("v1", scores=(0.6, 0.7)), make("relief", scores=(0.6, 0.65), **fast)]
    assert last_line(compare_runs(runs)) == (
        "This run supports that RELIEF (V0) shortens rounds and saves energy (simulated: 2.00x, 40 % fewer joules per "
        "round), speaks against none, cannot decide whether V1 > FedAvg in F1 (2 test subjects: no "
        "paired test can fall below p = 0.5) and holds no runs to judge V1 > FedAvg in rare-modality F1, V0 > V2 "
        "with mandatory blocks in rare-modality F1, V0 > FedAvg in rare-modality F1, V0 > V2 in F1 and V2 > V3 in F1."
    )


def test_synthetic_data_are_named_in_the_last_line(make):
    assert last_line(compare_runs([make("fedavg", origin="SYNTHETIC")])).startswith(
        "This run, on SYNTHETIC data, supports none"
    )


def test_the_paper_s_headline_is_judged(make, eight):
    """The paper: RELIEF's rare-modality F1 is 15.3 points above FedAvg's."""
    rare = {s: 0.1 for s in eight}
    runs = [make("fedavg", subjects=eight, rare=rare), make("relief", subjects=eight, rare={s: 0.2 for s in eight})]
    headline = next(c for c in claims(compare_runs(runs)) if c.brief == "V0 > FedAvg in rare-modality F1")
    assert (headline.supported, headline.p) == ("yes", 1 / 128) and "relief - fedavg: +10.0" in headline.evidence


def test_all_settings_are_corrected_together(family):
    """Six tested claims each, five of them at 1/128: one setting's factor is 6, that of two is 12: 12/128 > .05."""
    comparison = compare_runs(family)
    for judged in page_claims([comparison, comparison]):
        assert [c.p_holm for c in judged[:5]] == [pytest.approx(12 / 128)] * 5
        assert [c.supported for c in judged[:5]] == ["undecided"] * 5
    assert page_claims([comparison]) == [claims(comparison)] and page_claims([]) == []
    assert [c.p_holm for c in claims(comparison)[:5]] == [pytest.approx(6 / 128)] * 5


def test_the_cost_model_s_claim_is_marked_simulated(family):
    assert [c.is_simulated for c in claims(compare_runs(family))] == [False] * 6 + [True]
