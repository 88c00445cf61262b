"""Test the sentences that lead a comparison: differences at equal aggregations, speed, and whose intervals."""

from dataclasses import replace

import pytest

from relief_ray.report.claims import Registry, judge, last_lines
from relief_ray.report.comparison import compare_runs
from relief_ray.report.formats.text import as_json, plain
from relief_ray.report.remarks import alike_pairs, equal_rounds, headline, headlines, told_once, versus, whose_intervals


@pytest.fixture
def ahead(make):
    """RELIEF stands 5 points above FedAvg after two rounds, and 15 below after two aggregations."""
    return compare_runs([make("fedavg", scores=(0.2, 0.5)), make("relief", scores=(0.35, 0.55), round_s=1.0)])


def test_the_first_sentence_compares_equal_numbers_of_aggregations(ahead):
    row = ahead.row("relief")
    assert (row.f1.mean, row.at_rounds.mean) == (pytest.approx(5.0), pytest.approx(-15.0))
    assert ahead.gain(row) is row.at_rounds
    assert headline(ahead) == (
        "Simulated: relief is 2.00 times as fast as fedavg, with as many joules; after the same time its F1 is 20.0 "
        "points higher (1 run), after the same number of rounds 15.0 points lower (1 run)."
    )
    assert headline(ahead) in " ".join(last_lines(ahead))
    assert versus(ahead) == "vs fedavg at equal rounds [95 %]" and "-15.0 (1 run)" in plain(ahead)
    assert '"f1_at_rounds_vs_fedavg_points": -15.0' in as_json(ahead)
    assert "`F1 %` is after the last round" in equal_rounds(ahead)


def test_without_an_early_test_the_difference_is_after_the_last_round_and_says_so(make):
    """RELIEF was tested after its last round alone: nobody knows its F1 after as many aggregations as FedAvg's."""
    late = make("relief", scores=(0.4, 0.55))
    rounds = tuple(r.model_copy(update={"metrics": None}) if r.round == 1 else r for r in late.rounds)
    comparison = compare_runs([make("fedavg"), make("v1"), replace(late, rounds=rounds)])
    assert not comparison.is_at_rounds and versus(comparison) == "vs fedavg [95 %]"
    assert "after as many rounds its F1 is 5.0 points lower (1 run)." in headline(comparison)
    assert "`F1 %` and `vs fedavg [95 %]` are after the last round" in equal_rounds(comparison)


def test_methods_that_aggregate_as_often_need_no_word_about_it(make):
    comparison = compare_runs([make("fedavg"), make("fedprox", scores=(0.5, 0.7))])
    assert comparison.row("fedprox").at_rounds is None and equal_rounds(comparison) == ""
    assert headline(comparison) == (
        "Simulated: fedprox is as fast as fedavg, with as many joules; after the same time and number of rounds its F1 "
        "is 10.0 points higher (1 run)."
    )


def test_claims_are_followed_by_the_headline(ahead, registry):
    claim = {"first": "relief", "second": "fedavg"}
    (judgement,), _ = judge([ahead], registry(claim))
    assert " ".join(last_lines(ahead, judgement)).endswith(f" {headline(ahead)}")
    assert " ".join(last_lines(ahead, *judge([ahead], Registry())[0])).startswith(headline(ahead))


def test_an_interval_names_the_people_that_it_is_about(make):
    runs = [make("fedavg", seed=seed) for seed in range(3)]
    runs += [make("fedprox", seed=seed, scores=(0.5, 0.61 + 0.01 * seed)) for seed in range(3)]
    assert whose_intervals(compare_runs(runs)) == (
        "An interval covers new starts on the same 2 test subjects, not new people"
    )
    assert whose_intervals(compare_runs(runs[:1] + runs[3:4])) == "", "one pair has no interval"


def test_speed_is_arithmetic_and_no_claim(make, monkeypatch):
    fast = compare_runs([make("fedavg"), make("relief", round_s=1.0, energy_j=60.0)])
    assert headline(fast).startswith("Simulated: relief is 2.00 times as fast as fedavg, with 40 % fewer joules; ")
    monkeypatch.setattr("relief_ray.report.remarks._MOSTLY_LINK", 50.0)
    assert headline(fast).endswith(
        ". 50 % of its slowest client's round is network time, so training less saves little."
    )
    hungry = compare_runs([make("fedavg"), make("relief", round_s=1.0, energy_j=120.0)])
    assert "with 20 % more joules" in headline(hungry)
    assert headline(compare_runs([make("fedavg")])) == ""


def test_the_best_means_of_three_methods_and_more_are_named_with_those_that_print_the_same(make):
    """FedAvg's and FedProx's rounds take 2 s and 100 J, RELIEF's 1 s and 60 J: after its 2 s they have 50 %."""
    relief = make("relief", round_s=1.0, energy_j=60.0, bootstrap=False)
    runs = [make("fedavg"), make("fedprox", scores=(0.5, 0.7)), relief]
    assert headlines(compare_runs(runs))[-1] == (
        "The best means of 3 methods: F1 after as many rounds fedprox (70.0 %), after the same time relief (60.0 %), "
        "speed relief (2.00), joules a round relief (60)."
    )
    twins = [*runs[:2], make("fednova", scores=(0.5, 0.7))]
    assert "F1 after as many rounds fedprox and fednova (70.0 %)" in headlines(compare_runs(twins))[-1]
    assert "best means" not in headline(compare_runs(runs[:2]))


def test_bytes_are_named_where_fewer_are_sent(make):
    runs = [make("fedavg"), make("relief", up_bytes=2**20, bootstrap=False)]
    assert "with as many joules and 50 % fewer bytes sent; " in headline(compare_runs(runs))


def test_a_presets_variants_are_described_only_without_relief_and_own_methods(make):
    runs = [make("fedavg"), make("relief"), make("relief (fill=time)"), make("Mine")]
    told = headline(compare_runs(runs))
    assert "Mine is as fast" in told and "(fill=time) is" not in told
    assert "(fill=time) is as fast" in headline(compare_runs([runs[0], runs[2]]))


def test_what_many_rounds_warn_of_is_told_once_with_their_number():
    often = [f"round {n}: nobody of type ring is there (available)" for n in (1, 3, 4, 1, 7)]
    assert told_once([*often, "the cache is slow", "round 2: odd", "the cache is slow", "round 9: odd"]) == [
        "in 5 rounds: nobody of type ring is there (available)", "the cache is slow", "round 2: odd", "round 9: odd",
    ]  # fmt: skip
    assert told_once(["slow"] * 9) == ["slow"]


def test_a_difference_in_words(make):
    """Four seeds, 1 to 4 points: mean 2.5, t(3, 97.5 %) = 3.182, error 1.291 / 2."""
    runs = [make(m, seed=s, scores=(0.5, 0.6 + gain)) for s in range(4) for m, gain in
            (("fedavg", 0.0), ("fedprox", (s + 1) / 100))]  # fmt: skip
    assert "its F1 is 2.5 points higher (95 %: +0.4 to +4.6)." in headline(compare_runs(runs))
    same = compare_runs([make(m, seed=s) for s in range(4) for m in ("fedavg", "fedprox")])
    assert headline(same).endswith("its F1 is the same.")


def test_an_interval_over_folds_and_replicates_is_said_to_be_narrow(make):
    def both(folds, seeds):
        return compare_runs([make(v, fold=f, seed=s) for v in ("fedavg", "relief") for f in folds for s in seeds])

    assert alike_pairs(both([0, 1], [0, 1])).endswith("is known from 3 replicates on")
    assert alike_pairs(both([0, 1], range(3))) == "", "no pair depends on another"
    assert alike_pairs(both([0], range(4))) == alike_pairs(both(range(4), [0])) == ""
