"""The search for an optimizer and a rate: means over seeds, the best try marked, nothing left out in silence."""

from dataclasses import replace

import pytest

from benchmarks.scores import Score, read
from benchmarks.tuned import SCORES, page_table
from relief_ray.support.errors import UserError

ADAM = Score(
    method="fedavg", optimizer="adam", rate=0.001, fold=0, seed=1000, validation_f1=0.8, round_s=1.0, config_hash="a",
    program="p",
)  # fmt: skip
SGD = replace(ADAM, optimizer="sgd", rate=0.1, validation_f1=0.9)


def of(method, *scores):
    return [replace(score, method=method) for score in scores]


def test_a_row_has_means_over_seeds_its_best_try_in_bold_and_how_far_its_seeds_lie_apart():
    second = [replace(ADAM, seed=1001, validation_f1=0.84), replace(SGD, seed=1001, validation_f1=0.87)]
    lines = page_table(
        [*of("slow", ADAM, ADAM, SGD), *of("slow", *second), ADAM, SGD, *of("fedavg", *second)]
    ).splitlines()
    assert lines[0] == "|  | adam, 0.001 | sgd, 0.1 | seeds apart |"
    assert lines[2:] == ["| slow | 82.0 | **88.5** | 3.0 |", "| fedavg | 82.0 | **88.5** | 3.0 |"]


def test_the_best_method_comes_first():
    assert (
        page_table([*of("b", ADAM), *of("a", SGD), *of("b", SGD), *of("a", replace(ADAM, validation_f1=0.95))])
        .splitlines()[2]
        .startswith("| a | **95.0**")
    )


def test_a_try_or_a_seed_that_a_method_lacks_is_named():
    with pytest.raises(UserError, match=r"b, sgd at 0\.1: found no run of seed 1000"):
        page_table([ADAM, SGD, *of("b", ADAM)])
    with pytest.raises(UserError, match="found no run of seed 1001"):
        page_table([ADAM, SGD, replace(SGD, seed=1001)])


def test_the_committed_scores_are_whole():
    scores = read(SCORES)
    assert len({(s.config_hash, s.program) for s in scores}) == len(scores) == 12 * 6 * 2
    assert len({s.program for s in scores}) == 1
    page_table(scores)
