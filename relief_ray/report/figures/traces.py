"""Divergence of the blocks' updates: by phase as in Fig. 3 of the paper, and round by round with its moving average."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import mean, stdev
from typing import TYPE_CHECKING

from relief_ray.report.document import Number, Plot
from relief_ray.report.experiments import Experiment
from relief_ray.report.figures.style import COLOURS, DASHES, MARKERS, TEXT_WIDTH_IN, footnote, plain_axes, top_legend
from relief_ray.report.findings import runs_of
from relief_ray.report.runs import Loaded
from relief_ray.report.summary import FUSION_BLOCK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NUM_PHASES = 5
Series = Mapping[str, Sequence[tuple[int, float]]]


def phases(experiment: Experiment, slug: str, method: str = "fedavg") -> Plot | None:
    """Mean and spread of Eq. (5) per fusion block over five equal phases; the paper's setting is FedAvg."""
    runs = [] if experiment.main is None else runs_of(experiment.main, method)
    table = by_phase(runs)
    if not table:
        return None
    rows: list[list[Number]] = [
        [block, phase, mean(v), stdev(v) if len(v) > 1 else None, len(v)]
        for block, found in table.items()
        for phase, v in sorted(found.items())
    ]
    return Plot(
        slug=slug,
        caption=f"Divergence of each block's updates over its cohort by phase of training, under `{method}` (the "
        f"paper's Fig. 3); {experiment.title}. Points: mean over rounds and runs, bars: sample standard deviation.",
        draw=partial(_phases, experiment=experiment, rows=rows),
        width_in=TEXT_WIDTH_IN,
        height_in=2.2,
        columns=("block", "phase", "divergence", "std", "num"),
        rows=rows,
    )


def by_phase(runs: Sequence[Loaded]) -> dict[str, dict[int, list[float]]]:
    """Block -> phase (1 to 5) -> the divergences of all its rounds and runs."""
    found: dict[str, dict[int, list[float]]] = {}
    for loaded in runs:
        for record in loaded.trained:
            phase = 1 + min(NUM_PHASES - 1, (record.round - 1) * NUM_PHASES // max(1, loaded.planned))
            for block, value in record.divergence.items():
                if block.startswith(FUSION_BLOCK):
                    found.setdefault(block, {}).setdefault(phase, []).append(value)
    return found


def _phases(figure: Figure, experiment: Experiment, rows: Sequence[Sequence[Number]]) -> None:
    ax = figure.add_axes((0.07, 0.25, 0.92, 0.61))
    blocks = list(dict.fromkeys(str(r[0]) for r in rows))
    for i, block in enumerate(blocks):
        mine = [r for r in rows if r[0] == block]
        x = [float(r[1] or 0) + 0.06 * (i - (len(blocks) - 1) / 2) for r in mine]
        ax.errorbar(
            x, [float(r[2] or 0) for r in mine], yerr=[float(r[3] or 0) for r in mine], color=COLOURS[i % 8],
            marker=MARKERS[i % 8], linestyle=DASHES[i % 8], markersize=4, linewidth=1.1, elinewidth=0.7, capsize=2,
            label=block.removeprefix(FUSION_BLOCK),
        )  # fmt: skip
    ax.set_xticks(range(1, NUM_PHASES + 1))
    ax.set_xlabel("phase of training (fifths of the rounds)")
    ax.set_ylabel("divergence, Eq. (5)")
    ax.set_ylim(bottom=0)
    plain_axes(ax)
    top_legend(figure, len(blocks))
    footnote(figure, experiment)


def traces(experiment: Experiment, slug: str, method: str = "relief") -> Plot | None:
    """Eq. (5) of every round and its moving average, Eq. (6), of every group; none without a method that keeps it."""
    runs = [] if experiment.main is None else runs_of(experiment.main, method)
    raw, smooth = series(runs, "divergence"), series(runs, "d_bar")
    if not smooth:
        return None
    rows: list[list[Number]] = [
        [kind, group, n, value]
        for kind, table in (("d", raw), ("d_bar", smooth))
        for group, points in table.items()
        for n, value in points
    ]
    return Plot(
        slug=slug,
        caption=f"Divergence of every group under `{method}`, round by round: Eq. (5) left, its moving average, "
        f"Eq. (6), right; {experiment.title}. Mean over {len(runs)} runs. The allocator ranks by the right half.",
        draw=partial(_traces, experiment=experiment, raw=raw, smooth=smooth),
        width_in=TEXT_WIDTH_IN,
        height_in=3.0,
        columns=("quantity", "group", "round", "value"),
        rows=rows,
    )


def series(runs: Sequence[Loaded], field: str) -> dict[str, list[tuple[int, float]]]:
    """Group -> (round, mean over runs)."""
    found: dict[str, dict[int, list[float]]] = {}
    for record in (r for loaded in runs for r in loaded.rounds):
        for group, value in getattr(record, field).items():
            found.setdefault(group, {}).setdefault(record.round, []).append(value)
    return {group: [(n, mean(v)) for n, v in sorted(rounds.items())] for group, rounds in found.items()}


def _traces(figure: Figure, experiment: Experiment, raw: Series, smooth: Series) -> None:
    from matplotlib.ticker import MaxNLocator

    grid = figure.add_gridspec(1, 2, left=0.065, right=0.99, top=0.74, bottom=0.18, wspace=0.08)
    shared: Axes | None = None
    for column, (table, label) in enumerate(((raw, "d, Eq. (5)"), (smooth, "moving average, Eq. (6)"))):
        ax = figure.add_subplot(grid[0, column], sharey=shared)
        for i, group in enumerate(smooth):
            points = table.get(group, [])
            ax.plot(
                *([p[k] for p in points] for k in (0, 1)), color=COLOURS[i % 8], linestyle=DASHES[(i + i // 8) % 8],
                marker=MARKERS[i % 8] if i >= 8 else "", markersize=2.5, linewidth=1.1, label=group,
            )  # fmt: skip
        ax.set_yscale("log")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_title(label, loc="left", fontsize=8, pad=3)
        ax.set_xlabel("round")
        plain_axes(ax)
        ax.tick_params(labelleft=shared is None)
        shared = shared or ax
    top_legend(figure, 5)
    footnote(figure, experiment)
