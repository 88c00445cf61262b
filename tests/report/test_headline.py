"""Test the sentences that lead a comparison: after the same time and as many rounds, speed, and whose intervals."""

from dataclasses import replace

import pytest

from relief_ray.report.claims import Registry, judge, last_lines
from relief_ray.report.comparison import compare_runs
from relief_ray.report.formats.text import as_json, markdown, plain
from relief_ray.report.remarks import VERSUS, alike_pairs, headline, headlines, told_once, whose_intervals


@pytest.fixture
def ahead(make):
    """RELIEF ends with 45 % after 2 s, when FedAvg has 20 %; FedAvg ends with 50 % after 4 s."""
    return compare_runs([make("fedavg", scores=(0.2, 0.5)), make("relief", scores=(0.35, 0.45), round_s=1.0)])


def test_the_first_sentence_compares_after_the_same_time_and_after_as_many_rounds(ahead):
    row = ahead.row("relief")
    assert (row.f1.mean, row.over_reference("f1_at_seconds").mean) == (pytest.approx(-5.0), pytest.approx(25.0))
    assert headline(ahead) == (
        "Simulated: relief is 2.00 times as fast as fedavg, with as many joules; after the same time its F1 is 25.0 "
        "points higher (1 run), after as many rounds 5.0 points lower (1 run)."
    )
    assert headline(ahead) in " ".join(last_lines(ahead))
    assert VERSUS in markdown(ahead) and "-5.0 (1 run)" in plain(ahead)
    assert '"f1_vs_fedavg_points": -5.0' in as_json(ahead)


def test_without_an_early_test_the_sentence_is_of_as_many_rounds_alone(make):
    """FedAvg was tested after its last round alone, 4 s: nobody knows its F1 after the 2 s that RELIEF took."""
    late = make("fedavg", scores=(0.4, 0.6))
    rounds = tuple(r.model_copy(update={"metrics": None}) if r.round == 1 else r for r in late.rounds)
    comparison = compare_runs([replace(late, rounds=rounds), make("relief", scores=(0.4, 0.55), round_s=1.0)])
    assert headline(comparison).endswith("; after as many rounds its F1 is 5.0 points lower (1 run).")


@pytest.mark.parametrize("method", ["fedprox", "relief"])
def test_as_many_rounds_of_a_method_as_fast_as_fedavg_are_the_same_time(make, method):
    """RELIEF's bootstrap is one of its two rounds."""
    assert headline(compare_runs([make("fedavg"), make(method, scores=(0.5, 0.7))])) == (
        f"Simulated: {method} is as fast as fedavg, with as many joules; after the same time and number of rounds its "
        "F1 is 10.0 points higher (1 run)."
    )


def test_claims_are_followed_by_the_headline(ahead, registry):
    claim = {"first": "relief", "second": "fedavg"}
    (judgement,), _ = judge([ahead], registry(claim))
    assert " ".join(last_lines(ahead, judgement)).endswith(f" {headline(ahead)}")
    assert " ".join(last_lines(ahead, *judge([ahead], Registry())[0])).startswith(headline(ahead))


def test_an_interval_names_the_people_that_it_is_about(make):
    runs = [make("fedavg", seed=seed) for seed in range(3)]
    runs += [make("fedprox", seed=seed, scores=(0.5, 0.61 + 0.01 * seed)) for seed in range(3)]
    covers = "An interval covers new starts on the same 2 test subjects, not new people"
    few = f"{covers}; with 3 pairs it assumes normal differences (an exact test needs 6)"
    assert whose_intervals(compare_runs(runs)) == few
    runs += [make("fedavg", seed=seed) for seed in range(3, 6)]
    runs += [make("fedprox", seed=seed, scores=(0.5, 0.61 + 0.01 * seed)) for seed in range(3, 6)]
    assert whose_intervals(compare_runs(runs)) == covers
    assert whose_intervals(compare_runs([runs[0], runs[3]])) == "", "one pair has no interval"


@pytest.mark.parametrize(
    ("data", "seeds", "said"),
    [
        ({"partition": "dirichlet"}, (5, 5, 5), "on one partition of the windows,"),
        ({"partition": "dirichlet"}, (0, 1, 2), "and partitions of the windows,"),
        ({"split": "random_leaky"}, (0, 0, 0), "on one random split of the windows,"),
        (
            {"split": "random_leaky", "partition": "quantity"},
            (0, 1, 2),
            "and random splits and partitions of the windows,",
        ),
        (
            {"split": "random_leaky", "partition": "quantity"},
            (5, 5, 5),
            "on one random split and partition of the windows,",
        ),
    ],
)
def test_an_interval_says_whether_windows_were_dealt_anew(make, data, seeds, said):
    drawn = [{"data": {**data, "seed": seed}} for seed in seeds]
    runs = [make("fedavg", seed=seed, extra=drawn[seed]) for seed in range(3)]
    runs += [make("fedprox", seed=seed, extra=drawn[seed], scores=(0.5, 0.61 + 0.01 * seed)) for seed in range(3)]
    assert whose_intervals(compare_runs(runs)).startswith(
        f"An interval covers new starts {said} on the same 2 test subjects"
    )


def test_the_same_time_is_that_of_the_column(make):
    """RELIEF ends after 2 s: FedAvg and Mine, whose rounds take 2 s, have had one round then, 50 and 70 %."""
    runs = [make("fedavg"), make("mine", scores=(0.7, 0.65)), make("relief", round_s=1.0)]
    beside = compare_runs(runs)
    assert beside.row("mine").mean("f1_at_seconds_percent") == pytest.approx(70.0)
    said = "2.00 times as fast as fedavg, with as many joules; after the same time its F1 is 10.0 points higher"
    assert said in headline(beside)
    assert "mine is as fast as fedavg, with as many joules; after as many rounds its F1 is 5.0" in headline(beside)
    assert "after the same time and number of rounds its F1 is 5.0 points higher" in headline(compare_runs(runs[:2]))


def test_of_a_method_as_fast_within_rounding_one_difference_is_said(make):
    nearly = make("mine", scores=(0.5, 0.7), round_s=2.004)
    assert headline(compare_runs([make("fedavg"), nearly])).endswith(
        "mine is as fast as fedavg, with as many joules; after as many rounds its F1 is 10.0 points higher (1 run)."
    )


def test_speed_is_arithmetic_and_no_claim(make, monkeypatch):
    fast = compare_runs([make("fedavg"), make("relief", round_s=1.0, energy_j=60.0)])
    assert headline(fast).startswith("Simulated: relief is 2.00 times as fast as fedavg, with 40 % fewer joules; ")
    monkeypatch.setattr("relief_ray.report.remarks._MOSTLY_LINK", 50.0)
    assert headline(fast).endswith(
        ". 50 % of its slowest client's round is network time: training still less would save little."
    )
    hungry = compare_runs([make("fedavg"), make("relief", round_s=1.0, energy_j=120.0)])
    assert "with 20 % more joules" in headline(hungry)
    assert headline(compare_runs([make("fedavg")])) == ""


def test_the_best_means_of_three_methods_and_more_are_named_with_those_that_print_the_same(make):
    """FedAvg's and FedProx's rounds take 2 s and 100 J, RELIEF's 1 s and 60 J: after its 2 s they have 50 %."""
    relief = make("relief", round_s=1.0, energy_j=60.0)
    runs = [make("fedavg"), make("fedprox", scores=(0.5, 0.7)), relief]
    assert headlines(compare_runs(runs))[-1] == (
        "The best means of 3 methods: F1 after as many rounds fedprox (70.0 %), after the same time relief (60.0 %), "
        "speed relief (2.00), joules a round relief (60)."
    )
    twins = [*runs[:2], make("fednova", scores=(0.5, 0.7))]
    assert "F1 after as many rounds fedprox and fednova (70.0 %)" in headlines(compare_runs(twins))[-1]
    assert "best means" not in headline(compare_runs(runs[:2]))


def test_bytes_are_named_where_fewer_are_sent(make):
    runs = [make("fedavg"), make("relief", up_bytes=2**20)]
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
    assert "its F1 is 2.5 points higher (95 %: +0.4 to +4.6, 4 pairs)." in headline(compare_runs(runs))
    same = compare_runs([make(m, seed=s) for s in range(4) for m in ("fedavg", "fedprox")])
    assert headline(same).endswith("its F1 is the same.")


def test_an_interval_over_folds_and_replicates_is_said_to_be_narrow(make):
    def both(folds, seeds):
        scores = {"fedavg": (0.5, 0.6), "relief": (0.5, 0.7)}
        return compare_runs([make(v, fold=f, seed=s, scores=scores[v]) for v in scores for f in folds for s in seeds])

    assert alike_pairs(both([0, 1], [0, 1])).endswith("is known from 3 replicates on")
    assert alike_pairs(both([0, 1], range(3))) == "", "no pair depends on another"
    assert alike_pairs(both([0], range(4))) == alike_pairs(both(range(4), [0])) == ""
