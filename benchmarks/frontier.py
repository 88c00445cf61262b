"""Lays a search on validation data out: F1 against speed.

    relief-ray grid frontier --out runs/frontier          # likewise frontier_mean, frontier_rates, frontier_sgd
    python -m benchmarks.frontier runs/frontier runs/frontier_mean runs/frontier_rates runs/frontier_sgd --write

Its scores stand in `results/frontier.csv`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev

from benchmarks.marked import table
from benchmarks.scores import Score, Setting, scores_of, write
from relief_ray.strategies import REFERENCE
from relief_ray.support.errors import UserError
from tune_configs.frontier import RATES_REPLICATE, WHOLE_MEAN

SCORES = Path(__file__).parent.parent / "results" / "frontier.csv"
_COHORTS, _EVERYBODY = "cohort", "all participants"


def _settings(scores: Sequence[Score]) -> dict[Setting, dict[tuple[int, int], Score]]:
    """Group runs by setting and pair; those of the search for a rate only where a setting has no others.

    What chose the rate would flatter it.

    Raises:
        UserError: two runs are of one setting and pair.
    """
    groups: dict[Setting, dict[tuple[int, int], Score]] = {}
    for score in scores:
        runs = groups.setdefault(score.setting, {})
        if score.pair in runs:
            raise UserError(f"fold {score.fold}, seed {score.seed} of {score.setting}: found two runs, expected one")
        runs[score.pair] = score
    for setting, runs in groups.items():
        later = {pair: run for pair, run in runs.items() if run.replicate != RATES_REPLICATE}
        groups[setting] = later or runs
    return groups


def rows_of(scores: Sequence[Score]) -> list[list[str]]:
    """Rows by falling F1: setting, F1, its paired difference from FedAvg with the same optimizer, speed.

    FedAvg over a setting's mean round seconds, in the same pairs, is the speed. A difference has the standard error of
    its pairs in brackets.

    Raises:
        UserError: a setting has no FedAvg to be compared with, or two runs of one pair.
    """
    groups, rows = _settings(scores), []
    for (method, order, slots, optimizer, rate), runs in groups.items():
        base = groups.get((REFERENCE, "", 0, optimizer, rate), {})
        pairs = [(run, base[pair]) for pair, run in runs.items() if pair in base]
        if not pairs:
            raise UserError(
                f"{method}, {optimizer} at {rate:g}: found no run of {REFERENCE} to compare with; name its folder"
            )
        gains = [100 * (one.validation_f1 - other.validation_f1) for one, other in pairs]
        error = f"{stdev(gains) / sqrt(len(gains)):.1f}" if len(gains) > 1 else "–"
        mean = fmean(100 * score.validation_f1 for score in runs.values())
        gain = "–" if method == REFERENCE else f"{fmean(gains):+.1f} ({error})"
        speed = fmean(other.round_s / one.round_s for one, other in pairs)
        groups_of_slowest = str(slots) if slots else "–"
        over = {REFERENCE: "–", WHOLE_MEAN: _EVERYBODY}.get(method, _COHORTS)
        what = [method, order if slots else "–", groups_of_slowest, over, f"{optimizer}, {rate:g}"]
        rows.append((mean, [*what, str(len(runs)), f"{mean:.1f}", gain, f"{speed:.2f}x"]))
    return [row for _, row in sorted(rows, key=lambda r: -r[0])]


def page_table(scores: Sequence[Score]) -> str:
    """Return the table of the results page."""
    head = [
        "method",
        "order",
        "groups of the slowest",
        "mean over",
        "optimizer, rate",
        "runs",
        "validation F1, %",
        "minus FedAvg (s.e.)",
        "speed",
    ]
    return table(head, rows_of(scores))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, help="folders of the grids' runs")
    parser.add_argument("--write", action="store_true", help="replace results/frontier.csv; without it only print")
    chosen = parser.parse_args()
    scores = scores_of(chosen.folders)
    print(page_table(scores))
    if chosen.write:
        write(scores, SCORES)


if __name__ == "__main__":
    main()
