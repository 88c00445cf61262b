"""Baselines that go another way than in the paper: faster or slower, better or worse than FedAvg."""

from __future__ import annotations

from collections.abc import Iterator

from relief_ray.report.experiments import Experiment
from relief_ray.report.page.entries import paper_data
from relief_ray.report.paper import PAPER_ROWS, TABLES, Paper, PaperCell
from relief_ray.report.stats import Paired

# A speedup within 5 % of FedAvg's round is none; one within a fifth of the paper's surprises nobody.
SAME, NEAR = 0.05, 1.2
OURS = ("fedavg", "relief")


def directions(experiment: Experiment, paper: Paper) -> list[str]:
    """A sentence per baseline and figure whose sign differs from the paper's; nothing from synthetic data.

    A speedup counts where it differs from 1 by more than 5 % and from the paper's by more than a fifth, an F1 where
    the 95 % interval of the paired difference to FedAvg leaves out 0: without that, it has no direction.
    """
    comparison = experiment.shown
    if comparison is None or not experiment.is_real:
        return []
    found: list[str] = []
    for label, name in PAPER_ROWS.items():
        row = comparison.row(label)
        if row is None or label in OURS:
            continue
        theirs = paper[TABLES.get(experiment.backbone, "I")]
        if (speedup := row.stats.get("speedup")) is not None:
            found += _speed(label, speedup.mean, theirs.get(name, "speedup"), comparison.clock)
        data = paper_data(experiment)
        found += _score(label, "F1", row.f1, theirs.get(name, f"{data} F1 (%)"))
        found += _score(label, "rare-modality F1", row.rare, theirs.get(name, "rare-modality F1 (%)"))
    return found


def _speed(label: str, ours: float, cell: PaperCell | None, clock: str) -> Iterator[str]:
    if cell is None or cell.value is None or _away(ours) == _away(cell.value):
        return
    if max(ours, cell.value) <= NEAR * min(ours, cell.value):
        return
    yield f"`{label}`: {ours:.2f}x FedAvg's speed by the clock `{clock}`; the paper prints {cell.value:.2f}x."


def _away(speedup: float) -> int:
    return (speedup > 1 + SAME) - (speedup < 1 - SAME)


def _score(label: str, figure: str, ours: Paired | None, cell: PaperCell | None) -> Iterator[str]:
    if ours is None or ours.low is None or ours.high is None or cell is None or cell.delta is None:
        return
    here = (ours.low > 0) - (ours.high < 0)
    there = (cell.delta > 0) - (cell.delta < 0)
    if here and here != there:
        yield (
            f"`{label}`: {figure} is {ours.mean:+.1f} [{ours.low:+.1f}, {ours.high:+.1f}] points from FedAvg's; the "
            f"paper prints {cell.delta:+.1f}."
        )
