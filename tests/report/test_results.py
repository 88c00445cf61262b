"""Every figure of a run by hand."""

from dataclasses import replace

import numpy as np
import pytest

from relief_ray.records.committed import condense
from relief_ray.report.comparison import compare_runs
from relief_ray.report.remarks import caption
from relief_ray.report.results import client_table, count_slots, curves, figures, round_table, run_table, score_at
from relief_ray.report.runs import expanded
from relief_ray.report.tables.rows import names_line
from relief_ray.support.errors import UserError

CLOCK = "split_naive"


def table(*runs):
    """The rows of some runs by label."""
    return run_table(runs, round_table(runs)).set_index("method")


def test_scores_last_best_and_mean_of_the_last_ten_rounds(make):
    found = figures(make(scores=(0.1, 0.9) + (0.5,) * 8 + (0.6, 0.7)), CLOCK)
    assert (found["f1_percent"], found["f1_best_percent"]) == (70.0, None)
    assert found["f1_last10_percent"] == pytest.approx(100 * (0.5 * 8 + 0.6 + 0.7) / 10)


def test_the_validation_part_chooses_the_best_round_the_first_of_equals(make):
    """Round 3 is best on the test part; nobody may know."""
    assert figures(make(scores=(0.2, 0.6, 0.9), validation=(0.5, 0.7, 0.7)), CLOCK)["f1_best_percent"] == 60.0


def test_own_models_are_the_headline_even_beside_a_canonical_one(make):
    own = table(make("local", personalised=True), make("fedlease", scores=(0.8, 0.9), own=(0.3, 0.5)))
    assert own["personalised"].all() and own["f1_canonical_percent"].isna()["local"]
    row = own.loc["fedlease"]
    assert [row[f"f1{kind}_percent"] for kind in ("", "_fleet", "_canonical", "_last10")] == [50.0, 50.0, 90.0, 40.0]
    assert own["tta85_rounds"].isna().all(), "what the server's model reaches does not count"


def test_clock_means_totals_and_speedups_by_hand(make):
    """Two rounds of 1 s, 60 J, the bootstrap and one more; FedAvg's round is 2 s, 100 J."""
    found = figures(make("relief", round_s=1.0, energy_j=60.0), CLOCK)
    assert [found[n] for n in ("round_s", "energy_j", "total_s", "energy_total_j")] == [1.0, 60.0, 2.0, 120.0]
    assert (found["speedup"], found["speedup_round"]) == (2.0, 2.0)
    assert found["energy_saved_percent"] == pytest.approx(40.0)
    # A tenth of FedAvg's round is link: 1.8 s of 2 s; half of the slowest client's second here.
    assert (found["speedup_compute"], found["link_percent"]) == (pytest.approx(1.8 / 0.5), pytest.approx(50.0))


def with_first(loaded, seconds):
    """The run with a first round of so many seconds."""
    cost = loaded.rounds[0].costs[CLOCK]
    times_s = [r.totals[CLOCK].time_s + seconds - cost.round_s for r in loaded.rounds]
    first, *rest = [
        r.model_copy(update={"totals": {CLOCK: r.totals[CLOCK].model_copy(update={"time_s": time_s})}})
        for r, time_s in zip(loaded.rounds, times_s, strict=True)
    ]
    longer = first.model_copy(update={"costs": {CLOCK: replace(cost, round_s=seconds)}})
    return replace(loaded, rounds=(longer, *rest))


def test_a_long_bootstrap_counts_in_the_speedup_and_not_in_that_of_a_round(make):
    """FedAvg's round is 2 s. RELIEF: 4 s, then 1 s twice, 2 s a round; after the bootstrap 1 s a round."""
    fast = {"scores": (0.5, 0.6, 0.7), "round_s": 1.0}
    relief = with_first(make("relief", **fast), 4.0)
    for run in (relief, read_again(relief)):
        found = figures(run, CLOCK)
        assert [found[n] for n in ("round_s", "total_s", "speedup", "speedup_round")] == [2.0, 6.0, 1.0, 2.0]
    own = figures(with_first(make("v1", **fast), 4.0), CLOCK)
    assert (own["speedup"], own["speedup_round"]) == (1.0, 1.0), "a first round of V1 is a round as others"
    alone = figures(make("relief", scores=(0.5,), round_s=4.0), CLOCK)
    assert (alone["speedup"], alone["speedup_round"]) == (0.5, 0.5), "there is no round after the bootstrap"


def test_pooled_data_have_no_speedup_and_no_bytes(make):
    row = table(make("fedavg"), make("central")).loc["central"]
    undefined = ["speedup", "speedup_round", "energy_saved_percent", "up_mib", "up_max_mib", "up_fleet_mib", "down_mib"]
    assert row[undefined].isna().all() and row["f1_percent"] == 60.0


def test_time_to_a_target_counts_the_bootstrap_as_round_1(make):
    row = table(make("relief", scores=(0.5, 0.85, 0.9), round_s=1.0, energy_j=60.0)).loc["relief"]
    assert tuple(row[["tta85_rounds", "tta85_s", "tta85_j"]]) == (2, 2.0, 120.0)
    assert row[["tta95_rounds", "up_saved_percent"]].isna().all(), "without FedAvg nothing is saved"


def test_figures_beside_fedavg_by_hand(make):
    fast = {"round_s": 1.0, "energy_j": 60.0, "up_bytes": 2**20, "rare": {"1": 0.2}}
    row = table(make("fedavg", scores=(0.4, 0.5)), make("relief", scores=(0.3, 0.48), **fast)).loc["relief"]
    assert tuple(row[["f1_acc_percent", "f1_mag_percent", "f1_rare_percent"]]) == pytest.approx((24.0, 12.0, 20.0))
    assert tuple(row[["up_mib", "up_max_mib", "up_fleet_mib", "down_mib"]]) == (1.0, 1.0, 3.0, 3.0)
    assert tuple(row[["up_saved_percent", "trained_percent", "wall_s"]]) == (50.0, 50.0, 0.5)
    # 95 % of FedAvg's final 0.5 is 0.475: reached in round 2.
    assert tuple(row[["tta95_rounds", "tta95_s", "tta95_j"]]) == (2, 2.0, 120.0)


def test_f1_at_equal_cost_is_interpolated_between_tests(make):
    """RELIEF ends after 3 s; FedAvg, which ends after 4, had 40 % after 2 s and 50 % after 4."""
    row = table(make("fedavg", scores=(0.4, 0.5)), make("relief", scores=(0.3, 0.48), round_s=1.5)).loc
    assert row["fedavg"]["f1_at_seconds_percent"] == pytest.approx(45.0)
    assert row["relief"]["f1_at_seconds_percent"] == pytest.approx(48.0)
    tested = curves(round_table([make("fedavg", scores=(0.4, 0.5))]))[0]
    assert [score_at(tested, "time_s", s) for s in (2.0, 3.0, 9.0)] == pytest.approx([40.0, 45.0, 50.0])
    assert score_at(tested, "time_s", 1.9) != score_at(tested, "time_s", 1.9), "before the first test there is none"


def at_level(loaded, name, **values):
    """The run as a level of a grid that sets other keys than the method's own."""
    config = loaded.run.config | {"choice": {"kind": "level", "parameters": list(values), "level": name}}
    for key, value in values.items():
        section, _, rest = key.partition(".")
        config[section] = config.get(section, {}) | {rest: value}
    return replace(loaded, run=loaded.run.model_copy(update={"config": config}))


def test_levels_that_change_fedavgs_own_round_are_as_fast_as_fedavg_that_ran(make):
    """FedAvg's round takes 2 s; with one epoch 1 s, in which the run's own reference is FedAvg with one epoch."""
    usual = at_level(make("fedavg", scores=(0.4, 0.5)), "")
    brief = at_level(
        make("fedavg", scores=(0.3, 0.4), round_s=1.0, energy_j=60.0, reference=(1.0, 60.0)), "e1",
        **{"training.epochs": 1},
    )  # fmt: skip
    found = compare_runs([usual, brief])
    assert found.labels == ["fedavg", "fedavg (e1)"]
    assert found.table["speedup"].tolist() == [1.0, 2.0]
    assert found.table["energy_saved_percent"].tolist() == pytest.approx([0.0, 40.0])
    assert found.searched == ("training.epochs",) and "E = " not in caption(found)
    assert "`fedavg (e1)`: epochs=1" in names_line(found)
    alone = compare_runs([brief])
    assert alone.table["speedup"].isna().all(), "without FedAvg's run nothing says how long its round takes"
    with pytest.raises(UserError, match="differ in choice"):
        compare_runs([usual, at_level(make("fedavg", seed=1), "", **{"training.epochs": 1}), make("relief")])


def with_own(loaded, *scores):
    """The run with these F1 through own sensors, round by round."""
    rounds = [
        row.model_copy(update={"metrics": row.metrics.model_copy(update={"f1_own_sensors": own})})
        for row, own in zip(loaded.rounds, scores, strict=True)
    ]
    return replace(loaded, rounds=tuple(rounds))


def read_again(loaded):
    """The run as its committed cell keeps it."""
    return expanded(loaded.where, condense(loaded.run, loaded.rounds))


def test_f1_through_own_sensors_at_equal_seconds_is_interpolated(make):
    """FedAvg ends after 4 s, the other after 2: then FedAvg's own sensors had 20 %."""
    slow, fast = make("fedavg", scores=(0.4, 0.5)), make("fedprox", scores=(0.3, 0.48), round_s=1.0)
    own = [with_own(slow, 0.2, 0.3), with_own(fast, 0.1, 0.25)]
    for runs in (own, [*map(read_again, own)]):
        row = table(*runs).loc
        assert row["fedavg"]["f1_own_sensors_at_seconds_percent"] == pytest.approx(20.0)
        assert row["fedprox"]["f1_own_sensors_at_seconds_percent"] == pytest.approx(25.0)
        gain = compare_runs(runs).difference("fedprox", "fedavg", "f1_own_sensors_at_seconds")
        assert gain.mean == pytest.approx(5.0)
    assert table(slow, fast)["f1_own_sensors_at_seconds_percent"].isna().all(), "records without these scores"


def test_a_curve_of_one_evaluation_has_no_f1_at_an_unknown_cost(make):
    tested = curves(round_table([make("fedavg", scores=(0.4,))]))[0]
    assert score_at(tested, "time_s", 3.0) == pytest.approx(40.0)
    assert np.isnan(score_at(tested, "time_s", float("nan")))


def test_clients_of_a_run_have_seconds_by_stage(make):
    (row,) = client_table([make("fedavg", scores=(0.5,))], CLOCK).query("client == 2").to_dict("records")
    assert (row["compute_s"], row["link_s"], row["wait_s"], row["type"]) == (1.0, 1.0, 0.0, "C")


@pytest.mark.parametrize(
    ("strategy", "trained", "expected"),
    [
        pytest.param("relief", {2: ("fusion.A.acc",)}, (2 + 2 + 0, 0), id="a whole or an empty remainder is no choice"),
        pytest.param("relief", {2: ("fusion.A.acc", "head.1")}, (2 + 2 + 1, 1), id="one of two free: a choice"),
        pytest.param("v2", {2: ("head.1",)}, (5 + 4 + 1, 1), id="nothing is mandatory: all slots are free"),
    ],
)
def test_slots_by_hand(make, groups, strategy, trained, expected):
    """Of the three clients in round 2: round 1 is the bootstrap, which shows what each of them reaches."""
    slots = count_slots(make(strategy, trained={**groups, **trained}))
    assert len(slots) == 3 and tuple(map(sum, zip(*slots, strict=True))) == expected


def test_a_method_without_a_bootstrap_has_no_slots(make):
    assert count_slots(make("fedavg")) is None and count_slots(make("v1")) is None


def test_a_bootstrap_alone_has_no_slots(make):
    alone = make("relief", scores=(0.5,))
    assert count_slots(alone) == [] and figures(alone, CLOCK)["free_slots"] is None
