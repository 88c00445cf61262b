"""Lays the search for an optimizer and a learning rate out: a row per method, a column per try.

    relief-ray grid search_optimizer --set datasets=dsa_within --set rounds=10 --out runs/search
    python -m benchmarks.tuned runs/search --write

Scores are of validation windows, mean over seeds; they stand in `results/search_optimizer.csv`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import fmean

from benchmarks.marked import table
from benchmarks.scores import Score, scores_of, write
from relief_ray.support.errors import UserError

SCORES = Path(__file__).parent.parent / "results" / "search_optimizer.csv"


def page_table(scores: Sequence[Score]) -> str:
    """Return a row per method, best first: validation F1 of every try, the best in bold; then how far seeds lie apart.

    Raises:
        UserError: a method lacks a try or a seed that others have.
    """
    tries = sorted({(score.optimizer, score.rate) for score in scores})
    cells = {(s.method, (s.optimizer, s.rate), s.seed): 100 * s.validation_f1 for s in scores}
    methods = dict.fromkeys(s.method for s in scores)
    seeds = sorted({s.seed for s in scores})
    for place in product(methods, tries, seeds):
        if place not in cells:
            method, (optimizer, rate), seed = place
            raise UserError(f"{method}, {optimizer} at {rate:g}: found no run of seed {seed}; finish the search")
    rows = []
    for method in methods:
        tried = [[cells[method, one, seed] for seed in seeds] for one in tries]
        means = [fmean(values) for values in tried]
        best = max(range(len(tries)), key=means.__getitem__)
        apart = max(tried[best]) - min(tried[best])
        texts = [f"**{mean:.1f}**" if i == best else f"{mean:.1f}" for i, mean in enumerate(means)]
        rows.append((means[best], [method, *texts, f"{apart:.1f}"]))
    head = ["", *(f"{optimizer}, {rate:g}" for optimizer, rate in tries), "seeds apart"]
    return table(head, [row for _, row in sorted(rows, key=lambda r: -r[0])])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, help="folders of the search's runs")
    parser.add_argument("--write", action="store_true", help=f"replace {SCORES.name}; without it only print")
    chosen = parser.parse_args()
    scores = scores_of(chosen.folders)
    print(page_table(scores))
    if chosen.write:
        write(scores, SCORES)


if __name__ == "__main__":
    main()
