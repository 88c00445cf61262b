"""Every figure of a run by hand."""

import pytest

from relief_ray.report.results import SlotCounts, count_slots, summarise_run, time_to, values_of

MIB = 2**20


def test_scores_last_best_and_mean_of_the_last_ten_rounds(make):
    summary = summarise_run(make(scores=(0.1, 0.9) + (0.5,) * 8 + (0.6, 0.7)))
    assert (summary.shown, summary.best, summary.best_round, summary.rounds) == (0.7, None, None, 12)
    assert summary.last10 == pytest.approx((0.5 * 8 + 0.6 + 0.7) / 10)
    assert not summary.personalised


def test_the_validation_part_chooses_the_best_round_the_first_of_equals(make):
    """Round 3 is best on the test part; nobody may know."""
    summary = summarise_run(make(scores=(0.2, 0.6, 0.9), validation=(0.5, 0.7, 0.7)))
    assert (summary.best_round, summary.best) == (2, 0.6)


def test_personalised_methods_show_the_fleets_f1(make):
    summary = summarise_run(make("local", personalised=True, subjects={"1": 0.3, "2": 0.5}))
    assert (summary.shown, summary.last.f1, summary.personalised) == (0.6, None, True)
    assert dict(summary.by_subject) == {"1": 0.3, "2": 0.5}


def test_own_models_are_the_headline_even_beside_a_canonical_one(make):
    loaded = make("fedlease", scores=(0.8, 0.9), own=(0.3, 0.5))
    summary = summarise_run(loaded)
    assert (summary.shown, summary.last.f1, summary.personalised, summary.last10) == (0.5, 0.9, True, 0.4)
    assert dict(summary.by_subject) == {"1": 0.5, "2": 0.5}
    assert time_to(loaded, "split_naive", 0.85) is None
    values = values_of(loaded, summary, "split_naive", None)
    assert [values[f"f1{kind}_percent"] for kind in ("", "_fleet", "_canonical")] == [50.0, 50.0, 90.0]


def test_clock_means_totals_and_speedups_by_hand(make):
    """Two rounds of 1 s, 60 J after a bootstrap of the same; FedAvg's round is 2 s, 100 J."""
    clock = summarise_run(make("relief", round_s=1.0, energy_j=60.0)).clocks["split_naive"]
    assert (clock.round_s, clock.energy_j, clock.total_s, clock.total_j) == (1.0, 60.0, 3.0, 180.0)
    assert (clock.speedup, clock.speedup_total) == (2.0, pytest.approx(4 / 3))
    assert clock.energy_saved == pytest.approx(0.4)


def test_pooled_data_have_no_speedup_and_no_bytes(make):
    summary = summarise_run(make("central"))
    clock = summary.clocks["split_naive"]
    assert (clock.speedup, clock.speedup_total, clock.energy_saved, summary.up_bytes) == (None, None, None, None)


def test_time_to_a_target_counts_rounds_from_one_and_seconds_from_the_bootstrap(make):
    loaded = make("relief", scores=(0.5, 0.85, 0.9), round_s=1.0, energy_j=60.0)
    reached = time_to(loaded, "split_naive", 0.85)
    assert reached is not None
    assert (reached.rounds, reached.time_s, reached.energy_j) == (2, 3.0, 180.0)
    assert time_to(loaded, "split_naive", 0.95) is None


def test_measures_carry_units_and_leave_out_what_is_undefined(make):
    base = summarise_run(make(scores=(0.4, 0.5)))
    loaded = make("relief", scores=(0.3, 0.48), round_s=1.0, energy_j=60.0, up_bytes=MIB, rare={"1": 0.1, "2": 0.3})
    values = values_of(loaded, summarise_run(loaded), "split_naive", base)
    assert values["f1_percent"] == 48.0
    assert values["f1_rare_percent"] == pytest.approx(20.0)
    assert (values["f1_acc_percent"], values["f1_mag_percent"]) == (24.0, 12.0)
    assert (values["up_mib"], values["up_max_mib"], values["up_fleet_mib"], values["down_mib"]) == (1.0, 1.0, 3.0, 3.0)
    assert (values["up_saved_percent"], values["trained_percent"], values["wall_s"]) == (50.0, 50.0, 0.5)
    # 95 % of FedAvg's final 0.5 is 0.475: reached in round 2, after 3 s with the bootstrap.
    assert (values["tta95_rounds"], values["tta95_s"], values["tta95_j"]) == (2, 3.0, 180.0)
    assert not [name for name in values if name.startswith("tta85")]


def test_without_fedavg_nothing_is_saved(make):
    loaded = make("relief")
    values = values_of(loaded, summarise_run(loaded), "split_naive", None)
    assert "up_saved_percent" not in values
    assert "tta95_rounds" not in values


@pytest.mark.parametrize(
    ("strategy", "trained", "expected"),
    [
        pytest.param(
            "relief", {2: ("fusion.A.acc",)}, (6, 2 + 2 + 0, 0), id="a whole or an empty remainder is no choice"
        ),
        pytest.param("relief", {2: ("fusion.A.acc", "head.1")}, (6, 2 + 2 + 1, 1), id="one of two free: a choice"),
        pytest.param("v2", {2: ("head.1",)}, (0, 5 + 4 + 1, 1), id="nothing is mandatory: all slots are free"),
    ],
)
def test_slots_by_hand(make, groups, strategy, trained, expected):
    slots = count_slots(make(strategy, scores=(0.5,), trained={**groups, **trained}))
    assert slots == SlotCounts(mandatory=expected[0], free=expected[1], chosen=expected[2], client_rounds=3)


def test_methods_that_offer_everything_have_no_slots(make):
    assert count_slots(make("fedavg")) is None
    assert count_slots(make("v1")) is None
