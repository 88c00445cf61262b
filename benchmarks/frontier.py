"""Keeps the scores of a search on validation data, a line per run, and lays them out: F1 against speed.

    relief-ray grid frontier --out runs/frontier          # likewise frontier_mean, frontier_rates, frontier_sgd
    python -m benchmarks.frontier runs/frontier runs/frontier_mean runs/frontier_rates runs/frontier_sgd --write

Committed results hold test scores; a search has none, so its scores stand in `results/frontier.csv`.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev

from pydantic import TypeAdapter

from benchmarks.marked import table
from relief_ray.errors import UserError
from relief_ray.records.cells import find_runs
from relief_ray.records.run_folder import read_rounds, read_run
from relief_ray.records.schema import RunRecord
from relief_ray.report.runs import run_value
from relief_ray.strategies import REFERENCE
from tune_configs.frontier import RATES_REPLICATE, WHOLE_MEAN

ROOT = Path(__file__).parent.parent
SCORES = ROOT / "results" / "frontier.csv"
_CLOCK = "flop_proportional"
# Method, order, groups of the slowest client, optimizer, learning rate.
Setting = tuple[str, str, int, str, float]
_COHORTS, _EVERYBODY = "cohort", "all participants"


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """One run: its settings, and what its last round scored; ``round_s``: mean simulated seconds of a round."""

    method: str
    order: str
    slots: int
    optimizer: str
    rate: float
    fold: int
    replicate: int
    validation_f1: float
    round_s: float
    config_hash: str
    program: str

    @property
    def setting(self) -> Setting:
        """Return what tells settings apart."""
        return self.method, self.order, self.slots, self.optimizer, self.rate

    @property
    def pair(self) -> tuple[int, int]:
        """Return what two paired runs share."""
        return self.fold, self.replicate


_SCORE = TypeAdapter(Score)
# Fields that are settings of a run.
_KEYS: Mapping[str, str] = {
    "order": "strategy.select",
    "slots": "strategy.slots_slowest",
    "optimizer": "training.optimizer",
    "rate": "training.lr",
    "fold": "data.fold",
    "replicate": "replicate",
}


def score_of(folder: Path, run: RunRecord) -> Score:
    """Read one finished run.

    Raises:
        UserError: the record is damaged.
    """
    rounds = read_rounds(folder)
    scored = [f1 for r in rounds if r.validation is not None and (f1 := r.validation.headline) is not None]
    settings = {field: run_value(run, key) for field, key in _KEYS.items()}
    return _SCORE.validate_python(
        {
            **settings,
            "order": settings["order"] or "",
            "slots": settings["slots"] or 0,
            "method": run.method.name.partition(" ")[0],
            "validation_f1": scored[-1],
            "round_s": fmean(r.costs[_CLOCK].round_s for r in rounds if r.phase != "bootstrap"),
            "config_hash": run.config_hash,
            "program": run.source_digest,
        }
    )


def write(scores: Iterable[Score], path: Path = SCORES) -> None:
    """Write one line per run, ordered by setting, fold and replicate."""
    rows = [asdict(score) for score in sorted(scores, key=lambda s: (s.setting, s.pair))]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [f.name for f in fields(Score)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read(path: Path = SCORES) -> list[Score]:
    """Read the committed scores."""
    with path.open(newline="", encoding="utf-8") as file:
        return [_SCORE.validate_python(row) for row in csv.DictReader(file)]


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
            raise UserError(
                f"fold {score.fold}, replicate {score.replicate} of {score.setting}: found two runs, expected one"
            )
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
    head = ["method", "order", "groups of the slowest", "mean over", "optimizer, rate", "runs", "validation F1, %",
            "minus FedAvg (s.e.)", "speed"]  # fmt: skip
    return table(head, rows_of(scores))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, help="folders of the grids' runs")
    parser.add_argument("--write", action="store_true", help="replace results/frontier.csv; without it only print")
    chosen = parser.parse_args()
    runs = ((folder, read_run(folder)) for folder in find_runs(chosen.folders))
    scores = [score_of(folder, run) for folder, run in runs if run.status == "done"]
    print(page_table(scores))
    if chosen.write:
        write(scores)


if __name__ == "__main__":
    main()
