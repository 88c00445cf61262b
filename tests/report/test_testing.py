"""The test of paired runs under no effect at all: its level is simulated, and its A/A rate is counted by hand."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from relief_ray.records.cells import Claim
from relief_ray.report.claims import aa_rate, judge_pairs, run_pairs, too_short
from relief_ray.report.comparison import compare_runs
from relief_ray.report.statistics import ALPHA, holm, sign_flip

STUDIES = 600


def scores(difference, rng):
    """Scores of two methods by (fold, replicate) with large effects of fold and run that pairing removes."""
    folds, replicates = difference.shape
    level = 70 + 6 * rng.normal(size=(folds, 1)) + 3 * rng.normal(size=(folds, replicates))
    fold, replicate = (place.ravel() for place in np.indices(difference.shape))
    first, second = ((level + half).ravel() for half in (difference / 2, -difference / 2))
    return pd.DataFrame({"fold": fold, "repetition": replicate, "first": first, "second": second})


def rate(make_difference, test, seed):
    rng = np.random.default_rng(seed)
    return sum(test(scores(make_difference(rng), rng)) < ALPHA for _ in range(STUDIES)) / STUDIES


def bounds(level):
    """Four standard errors of a rate over the simulated studies."""
    return 4 * (level * (1 - level) / STUDIES) ** 0.5


def pooled(values):
    """The test on pairs, whatever they depend on."""
    return sign_flip((values["first"] - values["second"]).tolist())


def test_the_level_is_kept_where_runs_are_independent():
    found = rate(lambda rng: 4 * rng.normal(size=(4, 6)), lambda s: judge_pairs(s).p, seed=1)
    assert found == pytest.approx(ALPHA, abs=bounds(ALPHA))


@pytest.mark.ci
def test_the_level_is_kept_where_a_method_has_luck_by_replicate():
    """As much scatter from replicates as from runs: the test on pairs calls a sixth of the studies."""

    def difference(rng):
        return 3 * rng.normal(size=(1, 7)) + 3 * rng.normal(size=(4, 7))

    assert rate(difference, pooled, seed=2) > 0.15
    found = rate(difference, lambda s: judge_pairs(s).p, seed=2)
    assert found <= ALPHA + bounds(ALPHA) + 0.02, "a share below a tenth by chance leaves the pairs"


def test_the_level_is_kept_where_folds_differ_but_cancel():
    """Claims are about these folds: effects of folds that sum to 0 are no difference."""

    def difference(rng):
        effect = 3 * rng.normal(size=(4, 1))
        return effect - effect.mean() + 3 * rng.normal(size=(4, 7))

    assert rate(difference, lambda s: judge_pairs(s).p, seed=3) <= ALPHA + bounds(ALPHA)


def test_a_claim_of_non_inferiority_is_supported_seldom_where_it_is_just_not_true():
    """The first method is worse by the very margin of one point."""
    found = rate(lambda rng: 2 * rng.normal(size=(4, 6)) - 1.0, lambda s: judge_pairs(s, margin=1.0).p, seed=4)
    assert found == pytest.approx(ALPHA, abs=bounds(ALPHA))


@pytest.mark.ci
def test_six_true_nothings_are_hardly_ever_called_something():
    rng = np.random.default_rng(5)
    families = [[judge_pairs(scores(4 * rng.normal(size=(4, 5)), rng)).p for _ in range(6)] for _ in range(300)]
    called = sum(min(holm(family)) < ALPHA for family in families) / 300
    assert 0.0 < called <= ALPHA + 4 * (ALPHA * (1 - ALPHA) / 300) ** 0.5


def test_a_difference_is_found():
    assert rate(lambda rng: 2 * rng.normal(size=(4, 6)) + 2.0, lambda s: judge_pairs(s).p, seed=6) > 0.85


def test_the_aa_rate_by_hand(repeat):
    """Replicates 0, 2, 4 against 1, 3, 5 in two folds: six pairs of a method with itself.

    FedAvg's odd replicates are always better by a point or two without a pattern, so it is called (p = 2/64); V1's are
    better and worse by turns.
    """
    better = [[0.50, 0.51, 0.50, 0.52, 0.50, 0.51], [0.60, 0.62, 0.60, 0.61, 0.60, 0.62]]
    turns = [[0.50, 0.51, 0.50, 0.49, 0.50, 0.51], [0.60, 0.59, 0.60, 0.61, 0.60, 0.59]]
    found = aa_rate(compare_runs([*repeat("fedavg", better), *repeat("v1", turns)]), "f1")
    assert (found.num_called, found.num_tests) == (1, 2)
    assert found.interval == pytest.approx((1 - 0.975**0.5, 0.975**0.5))
    assert aa_rate(compare_runs([*repeat("fedavg", better), *repeat("v1", turns)]), "f1_own_subjects") is None


def test_fewer_than_six_pairs_have_no_aa_rate(repeat):
    assert aa_rate(compare_runs(repeat("fedavg", [[0.5, 0.6, 0.5, 0.6]] * 2)), "f1") is None


def test_pairs_are_runs_of_one_fold_and_one_draw(repeat):
    runs = [*repeat("fedavg", [[0.5, 0.6]]), *repeat("v1", [[0.7, 0.8, 0.9]])]
    comparison = compare_runs(runs)
    pairs = run_pairs(comparison, "v1", "fedavg", "f1")
    assert pairs[["fold", "repetition"]].to_numpy().tolist() == [[0, 0], [0, 10**6]]
    assert pairs[["first", "second"]].to_numpy().tolist() == [pytest.approx([70.0, 50.0]), pytest.approx([80.0, 60.0])]
    claim = Claim(first="v1", second="fedavg")
    assert too_short(comparison, pairs, claim).startswith("2 replicates")


def test_runs_without_a_number_are_paired_by_seed(make):
    runs = [make(method, seed=seed, fold=fold) for method in ("fedavg", "v1") for seed in (0, 1) for fold in (0, 1)]
    pairs = run_pairs(compare_runs(runs), "v1", "fedavg", "f1")
    assert pairs[["fold", "seed"]].to_numpy().tolist() == [[0, 0], [1, 0], [0, 1], [1, 1]]


def turned(runs, rotations):
    """The runs with the rotation of their replicate."""
    configs = [dict(r.run.config) for r in runs]
    for config in configs:
        config["fleet"] = {**config["fleet"], "rotation": rotations[config["replicate"]]}
    return [replace(r, run=r.run.model_copy(update={"config": c})) for r, c in zip(runs, configs, strict=True)]


def test_a_method_meets_itself_with_the_same_devices_in_the_same_hands(repeat):
    """Rotations 0 1 2 0 1 2: replicate 0 meets 3, 1 meets 4, 2 meets 5. Rotation 1 is ten points worse for both."""
    table = [[0.50, 0.40, 0.50, 0.51, 0.41, 0.52], [0.60, 0.50, 0.60, 0.61, 0.52, 0.61]]
    found = aa_rate(compare_runs(turned(repeat("fedavg", table), (0, 1, 2, 0, 1, 2))), "f1")
    assert (found.num_called, found.num_tests) == (1, 1), "six gains of one or two points: p = 2/64"
    assert aa_rate(compare_runs(turned(repeat("fedavg", table), range(6))), "f1") is None, "no two of one rotation"


def test_methods_with_equal_bits_are_one_test(repeat):
    table = [[0.50, 0.51, 0.50, 0.52, 0.50, 0.51], [0.60, 0.62, 0.60, 0.61, 0.60, 0.62]]
    runs = [*repeat("fedavg", table), *repeat("v1", table), *repeat("v2", table)]
    models = {"fedavg": "a" * 64, "v1": "b" * 64, "v2": "b" * 64}
    changed = []
    for run in runs:
        last = run.rounds[-1].model_copy(update={"model_sha256": models[run.label]})
        changed.append(replace(run, rounds=(*run.rounds[:-1], last)))
    assert aa_rate(compare_runs(changed), "f1").num_tests == 2
