"""Verdicts: only on claims that were named before, only above the floor, Holm over the whole file."""

import dataclasses

import numpy as np
import pytest

from relief_ray.records.cells import Claim, Claims
from relief_ray.records.committed import condense, write_committed
from relief_ray.report.claims import (
    Registry,
    bound_text,
    is_about,
    judge,
    last_lines,
    registry_of,
    scatter,
    verdict_table,
)
from relief_ray.report.comparison import compare_runs
from relief_ray.report.remarks import headline
from relief_ray.report.runs import load_runs

FOLDS, REPLICATES = 4, 3
BETTER = {"first": "v1", "second": "fedavg"}
RNG = np.random.default_rng(2)
# Paired differences without a pattern by fold or replicate, all above 0: their shares are about 0.
GAINS = np.array([[0.05, 0.03, 0.04], [0.03, 0.05, 0.04], [0.04, 0.04, 0.04], [0.04, 0.04, 0.04]])
BASE = 0.5 + 0.01 * RNG.normal(size=(FOLDS, REPLICATES))
LESS = {0: ("fusion.A.acc",), 1: ("fusion.A.acc",), 2: ("fusion.A.acc",)}


@pytest.fixture
def runs(repeat):
    return [*repeat("fedavg", BASE), *repeat("v1", BASE + GAINS, trained=LESS)]


def judged(runs, registry):
    (judgement,), problems = judge([compare_runs(runs)], registry)
    return judgement.claims, problems


def test_a_verdict_by_hand(runs, registry):
    """Twelve pairs of one sign: p = 2 / 2^12; of six claims the one with runs has the factor 6."""
    others = [{"first": "v2", "second": "fedavg", "margin": float(m)} for m in range(1, 6)]
    (first, *rest), problems = judged(runs, registry(BETTER, *others))
    assert (first.verdict, problems) == ("supported", ())
    assert first.outcome.p == 2 / 2**12 and first.p_holm == pytest.approx(12 / 2**12)
    assert first.evidence.startswith("v1 - fedavg: +4.0 [") and "12 paired runs (4 folds x 3 replicates)" in (
        first.evidence
    )
    assert {c.verdict for c in rest} == {"no runs"} and rest[0].evidence == "needs runs of v2 and fedavg with F1"


@pytest.mark.parametrize(("bound", "text"), [(-1.26, "-1.3"), (-1.02, "-1.02"), (-0.996, "-0.996"), (-1.0, "-1.000")])
def test_a_bound_has_the_digits_that_tell_it_from_the_margin(repeat, registry, bound, text):
    judgement, _ = judged(
        [*repeat("fedavg", BASE), *repeat("v1", BASE, trained=LESS)], registry({**BETTER, "margin": 1})
    )
    claim, paired = judgement[0].claim, judgement[0].outcome
    assert bound_text(claim, dataclasses.replace(paired, bound=bound)) == text
    assert bound_text(claim.model_copy(update={"margin": None}), paired) == ""


def test_the_opposite_is_contradicted(repeat, registry):
    runs = [*repeat("fedavg", BASE), *repeat("v1", BASE - GAINS, trained=LESS)]
    assert judged(runs, registry(BETTER))[0][0].verdict == "contradicted"


def test_a_claim_of_non_inferiority_is_one_sided_against_its_margin(repeat, registry):
    """Worse by 0.5 to 1.5 points: not worse by 2 (each difference + 2 is above 0: p = 1/2^12), but perhaps by 1."""
    worse = BASE - 0.01 * np.array([[0.5, 1.5, 1.0]] * 2 + [[1.5, 0.5, 1.0]] * 2)
    runs = [*repeat("fedavg", BASE), *repeat("v1", worse, trained=LESS)]
    two, one = judged(runs, registry({**BETTER, "margin": 2.0}, {**BETTER, "margin": 1.0}))[0]
    assert (two.verdict, two.outcome.p) == ("supported", 1 / 2**12)
    assert "one-sided 95 % bound -1." in two.evidence and "margin -2" in two.evidence
    assert one.verdict == "undecided"
    plain = judged(runs, registry(BETTER))[0][0]
    assert plain.verdict == "contradicted", "not worse by two points, and worse all the same"


def test_two_replicates_are_too_short(runs, registry):
    few = [r for r in runs if r.run.config["replicate"] < 2]
    (claim,), _ = judged(few, registry(BETTER))
    assert (claim.verdict, claim.evidence) == ("too short to judge", "2 replicates, expected 3 or more")


def with_labels(run, counts):
    """The run with test windows per class in its confusion matrix."""
    matrix = tuple(tuple(n if i == j else 0 for j in range(len(counts))) for i, n in enumerate(counts))
    last = run.rounds[-1]
    metrics = last.metrics.model_copy(update={"confusion": (matrix,)})
    return dataclasses.replace(run, rounds=(*run.rounds[:-1], last.model_copy(update={"metrics": metrics})))


def test_a_method_near_guessing_is_too_short(repeat, registry):
    """Two classes: guessing has 50 %, always the frequent one 44.4 %. Below 55 % nothing is judged."""
    runs = [*repeat("fedavg", BASE * 0 + 0.549), *repeat("v1", BASE + 0.2, trained=LESS)]
    (claim,), _ = judged([with_labels(r, (8, 2)) for r in runs], registry(BETTER))
    assert claim.verdict == "too short to judge"
    assert claim.evidence == "fedavg has 54.9 %, less than 5 points above guessing (50.0 %)"
    learned = [*repeat("fedavg", BASE * 0 + 0.551), *repeat("v1", BASE + 0.2, trained=LESS)]
    assert judged([with_labels(r, (8, 2)) for r in learned], registry(BETTER))[0][0].verdict != "too short to judge"


@pytest.mark.parametrize(("level", "verdict"), [(0.2, "supported"), (0.0, "too short to judge")])
def test_a_metric_of_ones_own_is_not_held_against_the_f1_of_guessing(repeat, registry, level, verdict):
    """Kappa of a guess is 0: methods that learned are judged at 10 % of it, those that did not at no value of it."""

    def with_kappa(run, value):
        last = run.rounds[-1]
        metrics = last.metrics.model_copy(update={"scores": {"kappa": value}})
        return dataclasses.replace(run, rounds=(*run.rounds[:-1], last.model_copy(update={"metrics": metrics})))

    both = [*repeat("fedavg", BASE * 0 + 0.52 + level), *repeat("v1", BASE + 0.2, trained=LESS)]
    kappas = [0.05 + 0 * BASE, 0.06 + GAINS]
    runs = [with_labels(with_kappa(r, k), (8, 2)) for r, k in zip(both, np.ravel(kappas), strict=True)]
    (claim,), _ = judged(runs, registry({**BETTER, "figure": "kappa"}))
    assert claim.verdict == verdict, claim.evidence
    if not level:
        assert claim.evidence == "fedavg has an F1 of 52.0 %, less than 5 points above guessing (50.0 %)"


def test_a_study_of_too_few_pairs_cannot_decide_and_says_so(repeat, registry):
    """One fold, five replicates: p is 2/32 at best, above .05."""
    runs = [*repeat("fedavg", [[0.5] * 5]), *repeat("v1", [[0.6, 0.61, 0.62, 0.63, 0.64]], trained=LESS)]
    (claim,), _ = judged(runs, registry(BETTER))
    assert claim.verdict == "cannot decide"
    assert claim.evidence.startswith(
        "this study cannot decide: 5 paired runs give no adjusted p below 0.062, at least 6 are needed;"
    )
    six = [*repeat("fedavg", [[0.5] * 6]), *repeat("v1", [[0.6, 0.61, 0.62, 0.63, 0.64, 0.65]], trained=LESS)]
    assert judged(six, registry(BETTER))[0][0].verdict == "supported"
    assert judged(six, registry(BETTER, {**BETTER, "margin": 1.0}))[0][0].verdict == "cannot decide", "2/64 x 2 claims"


def test_pairs_that_depend_are_tested_as_means_of_replicates(repeat, registry):
    """The gain is a replicate's: twelve pairs are three independent numbers, which decide nothing."""
    gains = np.array([[0.02, 0.05, 0.11]] * FOLDS) + 0.001 * RNG.normal(size=(FOLDS, REPLICATES))
    runs = [*repeat("fedavg", BASE), *repeat("v1", BASE + gains, trained=LESS)]
    (claim,), _ = judged(runs, registry(BETTER))
    assert claim.outcome.on_means and claim.outcome.num_pairs == 3 and claim.outcome.p == 0.25
    assert claim.verdict == "cannot decide" and "3 replicate means" in claim.evidence


def test_methods_that_train_and_send_the_same_are_judged_unless_they_end_with_the_same_model(repeat, registry):
    """A loss or an aggregation of one's own: the study that most users make."""
    runs = [*repeat("fedavg", BASE), *repeat("fedprox", BASE + GAINS)]
    claim = {"first": "fedprox", "second": "fedavg"}
    assert judged(runs, registry(claim))[0][0].verdict == "supported"
    equal = [with_model(run, str(run.replicate)) for run in runs]
    same = judged(equal, registry(claim))[0][0]
    assert (same.verdict, same.evidence) == (
        "same model", "both methods end with the same model, bit for bit, in all 12 pairs",
    )  # fmt: skip
    assert judged([with_model(equal[0], "another"), *equal[1:]], registry(claim))[0][0].verdict != "same model"


@pytest.mark.parametrize(
    ("written", "fits"),
    [
        ({}, True), ({"data": ""}, True), ({"data": "", "split": ""}, True), ({"split": ""}, True),
        ({"data": "pamap2"}, False), ({"data": "", "split": "within_subject"}, False),
        ({"data": "people", "name": "people:PEOPLE"}, True), ({"data": "people", "name": "x/people.py:PEOPLE"}, True),
        ({"data": "people:PEOPLE", "name": "people:PEOPLE"}, True), ({"data": "peop", "name": "people:P"}, False),
    ],
)  # fmt: skip
def test_claims_are_about_the_data_and_split_that_they_name_if_any(written, fits):
    config = {"data": {"name": written.pop("name", "dsa"), "split": "held_out_subject"}}
    claims = Claims(**{"data": "dsa", "split": "held_out_subject", **written}, claims=(Claim(**BETTER),))
    assert is_about(claims, config) is fits


def with_model(run, sha256):
    rounds = [*run.rounds[:-1], run.rounds[-1].model_copy(update={"model_sha256": sha256})]
    return dataclasses.replace(run, rounds=tuple(rounds))


def test_runs_that_were_there_before_the_claims_are_refused(runs, registry):
    """They were created at the start of 2026."""
    late = judged(runs, registry(BETTER, at="2026-02-01T00:00:00Z"))[0][0]
    assert late.verdict == "refused" and late.evidence.startswith("12 of 12 pairs were begun before the claims were")


@pytest.mark.parametrize("place", [0, -1])
def test_a_single_run_from_before_the_claims_is_enough_to_refuse_them(runs, registry, place):
    """The first one is FedAvg's, the last one V1's: each has seen half of a pair's result."""
    early = dataclasses.replace(runs[place], run=runs[place].run.model_copy(update={"created": "2025-12-31T00:00:00Z"}))
    runs[place] = early
    claim = judged(runs, registry(BETTER, at="2026-01-01T00:00:00Z"))[0][0]
    assert claim.verdict == "refused" and claim.evidence.startswith("1 of 12 pairs were begun before the claims were")


def late(run):
    """The run without the test after round 1."""
    rounds = tuple(r.model_copy(update={"metrics": None}) if r.round == 1 else r for r in run.rounds)
    return dataclasses.replace(run, rounds=rounds)


@pytest.mark.parametrize("figure", ["f1_at_seconds", "f1_at_joules"])
def test_a_first_test_after_the_budget_is_no_missing_run(repeat, registry, figure):
    """V1's round 1 takes what FedAvg's two do; tested in round 2 alone, nobody knows its F1 when FedAvg is done."""
    fedavg, v1 = repeat("fedavg", BASE), repeat("v1", BASE + GAINS, trained=LESS, round_s=4.0, energy_j=200.0)
    assert judged([*fedavg, *v1], registry({**BETTER, "figure": figure}))[0][0].verdict != "not tested early enough"
    for runs, number in (([*fedavg, *map(late, v1)], 12), ([*fedavg, late(v1[0]), *v1[1:]], 1)):
        claim = judged(runs, registry({**BETTER, "figure": figure}))[0][0]
        assert claim.verdict == "not tested early enough"
        assert claim.evidence == (
            f"in {number} of 12 pairs the first test came after the cheaper run's end; test after every round: "
            "--set evaluation.every=1"
        )
    absent = judged(fedavg, registry({**BETTER, "figure": figure}))[0][0]
    assert absent.verdict == "no runs"


def test_a_score_that_was_never_recorded_is_not_tested_too_late(runs, registry):
    """An earlier test would not show it either: these runs have no F1 through own sensors."""
    figure = "f1_own_sensors_at_seconds"
    (claim,), _ = judged(runs, registry({**BETTER, "figure": figure}))
    assert (claim.verdict, claim.evidence) == (
        "no runs", "needs runs of v1 and fedavg with F1 through own sensors at equal simulated seconds",
    )  # fmt: skip


def test_a_study_is_judged_once_when_all_planned_pairs_are_there(runs, registry):
    keys = {run.replicate: run.repetition for run in runs}
    more = {**keys, (0, 0, 10_300): (3, -1)}
    claim = judged(runs, registry(BETTER, planned={"v1": more, "fedavg": more}))[0][0]
    assert (claim.verdict, claim.evidence) == (
        "not finished", "12 of 13 planned pairs are finished; judged once, when all are there",
    )  # fmt: skip
    assert judged(runs, registry(BETTER, planned={"v1": more, "fedavg": keys}))[0][0].verdict == "supported"


def test_claims_about_other_data_or_several_settings_are_not_judged(runs, registry):
    comparison = compare_runs(runs)
    found, problems = judge([comparison], registry(BETTER, where={"fleet.gap": 10}))
    assert found == [None] and "no finished runs of that here" in problems[0]
    found, problems = judge([comparison, comparison], registry(BETTER))
    assert found == [None, None] and "2 settings here fit, none is judged" in problems[0]
    others = compare_runs([run for run in runs if run.label == "fedavg"])
    found, problems = judge([others, comparison], registry(BETTER))
    assert found[0] is None and found[1].claims[0].verdict == "supported" and not problems, "there both methods ran"


def test_other_sensors_than_all_have_their_own_figure(repeat, registry):
    """The rare sensor's F1 stands still while F1 rises."""
    rare = {"1": 0.2, "2": 0.3}
    runs = [*repeat("fedavg", BASE, rare=rare), *repeat("v1", BASE + GAINS, rare=rare, trained=LESS)]
    f1, alone = judged(runs, registry(BETTER, {**BETTER, "figure": "f1_rare"}))[0]
    assert (f1.verdict, alone.verdict) == ("supported", "undecided")
    assert alone.evidence == "no difference at all in 12 paired runs (4 folds x 3 replicates)"


def test_f1_at_equal_seconds_may_turn_a_claim_around(repeat, registry):
    """V1 ends lower but is twice as fast: when it is done, FedAvg stands at half of its rounds and has half its F1."""
    level = BASE * 0 + 0.5
    runs = [*repeat("fedavg", level), *repeat("v1", level - GAINS, trained=LESS, round_s=1.0)]
    rounds, seconds = judged(runs, registry(BETTER, {**BETTER, "figure": "f1_at_seconds"}))[0]
    assert (rounds.verdict, seconds.verdict) == ("contradicted", "supported")
    assert "v1 - fedavg: +21.0 [" in seconds.evidence


def test_the_last_line_says_what_was_named_and_found(runs, registry):
    comparison = compare_runs(runs)
    (judgement,), problems = judge([comparison], registry(BETTER, {"first": "v2", "second": "v1"}))
    line = " ".join(last_lines(comparison, judgement, problems))
    assert line.startswith(
        "Of 2 claims named before the first run: supported: v1 > fedavg in F1 (+4.0 [+3.6, +4.4] points, adjusted p = "
        "0.00098); no runs: v2 > v1 in F1 (needs runs of v2 and v1 with F1). p is adjusted over 2 claims "
        "(Holm), intervals are not."
    )
    lines = last_lines(comparison, judgement, problems)
    assert " ".join(lines) == line
    assert [text.split(":")[0] for text in lines[:3]] == [
        "Of 2 claims named before the first run",
        "supported",
        "no runs",
    ]
    (alone,), problems = judge([comparison], registry(BETTER))
    assert "adjusted over" not in " ".join(last_lines(comparison, alone, problems)), "one claim: nothing is adjusted"


def test_without_claims_nothing_is_judged(runs, make):
    comparison = compare_runs(runs)
    (judgement,), problems = judge([comparison], Registry())
    assert judgement is None
    told = headline(comparison)
    assert told.startswith("Simulated: v1 is as fast as fedavg, with as many joules; after the same ")
    assert " ".join(last_lines(comparison, None, problems)) == (
        f"{told} Described, not tested: no claim was named before these runs."
    )
    assert " ".join(last_lines(comparison, None, ("a.yaml: was changed",))) == f"a.yaml: was changed {told}"
    false = compare_runs([make("fedavg", origin="SYNTHETIC")])
    assert " ".join(last_lines(false, None)).startswith("SYNTHETIC data: nothing follows for methods. Described, not")


def test_the_table_has_a_row_per_claim_and_a_note_on_the_rule(runs, registry):
    (judgement,), _ = judge([compare_runs(runs)], registry(BETTER, {**BETTER, "margin": 1.0, "text": "V1 is no worse"}))
    table = verdict_table(judgement)
    assert [row.name for row in table.rows] == [
        "v1 > fedavg in F1", "V1 is no worse (v1 not worse than fedavg by 1 point in F1)",
    ]  # fmt: skip
    assert [row.cells[0].text for row in table.rows] == ["supported", "supported"]
    assert "adjusted over all 2 claims of the file and decides" in table.notes[0]
    assert "of that difference alone, so it may leave out 0 although `p (Holm)` is above 0.05" in table.notes[0]
    assert "2025-01-01T00:00:00Z" in table.notes[0]
    lines = scatter(judgement).lines
    assert lines[0].startswith("v1 and fedavg, F1: variance of the paired difference: fold 0 %, replicate 0 %")
    assert lines[-1].startswith("A/A rate") and lines[-1].endswith("no method has six pairs of its own replicates")


def test_committed_results_are_judged_as_their_run_folders(repeat, registry, tmp_path):
    """Verdict, evidence and p by the small file alone; claims of equal work and of methods near guessing included."""
    runs = [
        with_labels(r, (8, 2))
        for r in (
            *repeat("fedavg", BASE + 0.1), *repeat("v1", BASE + 0.1 + GAINS, trained=LESS),
            *repeat("fedprox", BASE + 0.1 - GAINS), *repeat("v3", BASE - 0.2, trained=LESS),
        )
    ]  # fmt: skip
    runs = [dataclasses.replace(r, run=r.run.model_copy(update={"created": "2025-06-01T00:00:00Z"})) for r in runs]
    planned = {r.label: {} for r in runs}
    for r in runs:
        planned[r.label][r.replicate] = r.repetition
    claims = [BETTER, {"first": "fedprox", "second": "fedavg"}, {"first": "v1", "second": "v3"}]
    known = registry(*claims, planned=planned)
    cells = [
        (name, condense(r.run, r.rounds).model_copy(update={"config_hash": name}))
        for number, r in enumerate(runs)
        for name in [f"{r.label}-{number}"]
    ]
    write_committed(tmp_path / "cells.json", "g", cells, known.files[0].committed)
    kept = registry_of([tmp_path])
    assert kept.files[0].committed == known.files[0].committed
    (small,), _ = judge([compare_runs(load_runs([tmp_path]))], kept)
    assert small.claims == judged(runs, known)[0]
    assert [c.verdict for c in small.claims] == ["supported", "contradicted", "too short to judge"]
    write_committed(tmp_path / "cells.json", "g", cells[1:], known.files[0].committed)
    (fewer,), _ = judge([compare_runs(load_runs([tmp_path]))], registry_of([tmp_path]))
    assert fewer.claims[0].verdict == "not finished"
