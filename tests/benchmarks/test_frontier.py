"""Scores of a search on validation data: kept as lines, and laid out as paired differences and speeds."""

from collections import Counter
from dataclasses import replace

import pytest

from benchmarks.frontier import SCORES, rows_of
from benchmarks.scores import Score, read, write
from relief_ray.support.errors import UserError

FEDAVG = Score(
    method="fedavg", order="", slots=0, optimizer="adam", rate=0.001, fold=0, replicate=1, seed=10100,
    validation_f1=0.8, round_s=4.0, config_hash="a", program="p",
)  # fmt: skip
RELIEF = replace(FEDAVG, method="relief", order="divergence", slots=3, validation_f1=0.79, round_s=2.0)


def test_rows_hold_paired_differences_with_their_standard_error_and_the_mean_speed():
    second = replace(FEDAVG, fold=1, validation_f1=0.9, round_s=6.0)
    slower = replace(RELIEF, fold=1, validation_f1=0.87, round_s=2.0)
    other = replace(FEDAVG, optimizer="sgd", rate=0.1, validation_f1=0.95)
    top, first, best = rows_of([FEDAVG, second, RELIEF, slower, other])
    assert top[4:] == ["sgd, 0.1", "1", "95.0", "–", "1.00x"]
    assert first == ["fedavg", "–", "–", "–", "adam, 0.001", "2", "85.0", "–", "1.00x"]
    # Differences -1 and -3: mean -2, standard error sqrt(2) / sqrt(2) = 1; speeds 4 / 2 and 6 / 2.
    assert best == ["relief", "divergence", "3", "cohort", "adam, 0.001", "2", "83.0", "-2.0 (1.0)", "2.50x"]


def test_a_run_without_a_pair_counts_for_the_mean_alone():
    lonely = replace(RELIEF, replicate=2, seed=10200, validation_f1=0.59)
    rows = rows_of([FEDAVG, RELIEF, lonely])
    assert rows[1][5:] == ["2", "69.0", "-1.0 (–)", "2.00x"]


def test_runs_of_the_search_for_a_rate_count_only_where_there_are_no_others():
    searched = [replace(run, replicate=110, seed=21_000, validation_f1=0.1) for run in (FEDAVG, RELIEF)]
    assert rows_of([FEDAVG, RELIEF, *searched]) == rows_of([FEDAVG, RELIEF])
    assert [row[6] for row in rows_of(searched)] == ["10.0", "10.0"]


def test_a_setting_without_fedavg_and_two_runs_of_one_pair_are_refused():
    with pytest.raises(UserError, match=r"relief, adam at 0\.001: found no run of fedavg"):
        rows_of([RELIEF])
    with pytest.raises(UserError, match=r"fold 0, seed 10100 .*: found two runs"):
        rows_of([FEDAVG, FEDAVG])


def test_lines_are_read_as_they_were_written(tmp_path):
    scores = [RELIEF, FEDAVG, replace(FEDAVG, replicate=None, seed=1000)]
    write(scores, tmp_path / "scores.csv")
    assert read(tmp_path / "scores.csv") == [scores[2], FEDAVG, RELIEF]


def test_the_committed_scores_are_whole():
    scores = read(SCORES)
    assert len({(s.config_hash, s.program) for s in scores}) == len(scores), f"{SCORES}: a run stands twice"
    number = Counter((s.optimizer, s.method == "v2_mandatory", s.replicate == 110) for s in scores)
    frontier, mean, rates, sgd = (
        ("adam", False, False),
        ("adam", True, False),
        ("sgd", False, True),
        ("sgd", False, False),
    )
    assert number == {frontier: 264, mean: 36, rates: 40, sgd: 24, ("sgd", True, False): 12}
    assert len({s.program for s in scores}) == 1
