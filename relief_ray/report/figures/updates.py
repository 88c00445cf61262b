"""Updates of the blocks: cosine between clients (Fig. 2), divergence by phase (Fig. 3) and round by round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import mean, stdev
from typing import TYPE_CHECKING

from relief_ray.report.comparison import Experiment
from relief_ray.report.document import TEXT_WIDTH_IN, Figure
from relief_ray.report.figures.style import COLOURS, DASHES, MARKERS, footnote, plain_axes, top_legend
from relief_ray.report.results import FUSION_BLOCK
from relief_ray.report.runs import Loaded, device_types
from relief_ray.strategies import PROPOSED, REFERENCE
from relief_ray.support.errors import counted
from relief_ray.support.table import Number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as MplFigure
    from matplotlib.image import AxesImage

Pairs = Mapping[tuple[int, int], float]
MAX_CLIENTS = 20
_NUM_PHASES = 5
Series = Mapping[str, Sequence[tuple[int, float]]]


def cosine(experiment: Experiment, slug: str, method: str = REFERENCE) -> Figure | None:
    """A matrix of clients per fusion block; None where updates were not compared in pairs."""
    runs = [] if experiment.main is None else experiment.main.runs_of(method)
    blocks = pair_means(runs)
    if not blocks:
        return None
    compared = [sum(bool(r.pairwise) for r in loaded.trained) for loaded in runs]
    fig = "" if experiment.is_own_data else " (the paper's Fig. 2)"
    how_many = f"{counted(sum(compared), 'compared round')} of {counted(sum(map(bool, compared)), 'run')}"
    return Figure(
        slug=slug,
        caption=f"Cosine of two clients' updates of a fusion block under `{method}`{fig}, mean over "
        f"{how_many}; {experiment.title}. Letters: device types. A client that did not upload a block, or did not move "
        "it, has no pair or 0 there.",
        draw=partial(_cosine, runs=runs, blocks=blocks, types=device_types(runs[0])),
        width_in=TEXT_WIDTH_IN,
        height_in=2.35,
        columns=("block", "client", "other", "cosine"),
        rows=[[block, a, b, value] for block, pairs in blocks.items() for (a, b), value in sorted(pairs.items())],
    )


def pair_means(runs: Sequence[Loaded]) -> dict[str, Pairs]:
    """Block -> (client, client) -> mean cosine over all compared rounds of all runs."""
    values: dict[str, dict[tuple[int, int], list[float]]] = {}
    for record in (r for loaded in runs for r in loaded.trained):
        for block, rows in record.pairwise.items():
            if block.startswith(FUSION_BLOCK):
                for a, b, value in rows:
                    values.setdefault(block, {}).setdefault((min(a, b), max(a, b)), []).append(value)
    return {block: {pair: mean(v) for pair, v in pairs.items()} for block, pairs in values.items()}


def _cosine(figure: MplFigure, runs: Sequence[Loaded], blocks: Mapping[str, Pairs], types: Mapping[int, str]) -> None:
    clients = sorted({n for pairs in blocks.values() for pair in pairs for n in pair})[:MAX_CLIENTS]
    grid = figure.add_gridspec(1, len(blocks), left=0.05, right=0.895, top=0.87, bottom=0.14, wspace=0.12)
    limit = max([0.25, *(abs(v) for pairs in blocks.values() for v in pairs.values())])
    image: AxesImage | None = None
    for i, (block, pairs) in enumerate(blocks.items()):
        ax = figure.add_subplot(grid[0, i])
        image = _matrix(ax, clients, pairs, [f"{types.get(n, '')}{n}" for n in clients], limit)
        ax.set_title(block.removeprefix(FUSION_BLOCK))
        ax.tick_params(labelleft=i == 0, length=0, labelsize=6)
    if image is not None:
        bar = figure.colorbar(image, cax=figure.add_axes((0.91, 0.2, 0.012, 0.6)))
        bar.ax.tick_params(labelsize=6)
        bar.set_label("cosine", fontsize=7)
    footnote(figure, runs)


def _matrix(ax: Axes, clients: Sequence[int], pairs: Pairs, names: Sequence[str], limit: float) -> AxesImage:
    values = [[pairs.get((min(a, b), max(a, b)), float("nan")) for b in clients] for a in clients]
    ax.set_facecolor("#eeeeee")
    image = ax.imshow(values, cmap="PuOr", vmin=-limit, vmax=limit)
    ax.set_xticks(range(len(clients)), names, rotation=90)
    ax.set_yticks(range(len(clients)), names)
    if len(clients) <= 10:
        for y, row in enumerate(values):
            for x, value in enumerate(row):
                if value == value:  # not NaN
                    colour = "white" if abs(value) > 0.6 * limit else "black"
                    ax.text(x, y, f"{value:.2f}", ha="center", va="center", fontsize=3.8, color=colour)
    return image


def phases(experiment: Experiment, slug: str, method: str = REFERENCE) -> Figure | None:
    """Mean and spread of Eq. (5) per fusion block over five equal phases; the paper's setting is FedAvg.

    None below five rounds, which make no five phases.
    """
    runs = [] if experiment.main is None else experiment.main.runs_of(method)
    table = by_phase([r for r in runs if r.planned >= _NUM_PHASES])
    if not table:
        return None
    rows: list[list[Number]] = [
        [block, phase, mean(v), stdev(v) if len(v) > 1 else None, len(v)]
        for block, phases_of in table.items()
        for phase, v in sorted(phases_of.items())
    ]
    fig = "" if experiment.is_own_data else " (the paper's Fig. 3)"
    return Figure(
        slug=slug,
        caption=f"Divergence of each block's updates over its cohort by phase of training, under `{method}`"
        f"{fig}; {experiment.title}. Points: mean over rounds and runs, bars: sample standard deviation.",
        draw=partial(_phases, runs=runs, rows=rows),
        width_in=TEXT_WIDTH_IN,
        height_in=2.2,
        columns=("block", "phase", "divergence", "std", "num"),
        rows=rows,
    )


def by_phase(runs: Sequence[Loaded]) -> dict[str, dict[int, list[float]]]:
    """Block -> phase (1 to 5) -> the divergences of all its rounds and runs."""
    values: dict[str, dict[int, list[float]]] = {}
    for loaded in runs:
        for record in loaded.trained:
            phase = 1 + min(_NUM_PHASES - 1, (record.round - 1) * _NUM_PHASES // max(1, loaded.planned))
            for block, value in record.divergence.items():
                if block.startswith(FUSION_BLOCK):
                    values.setdefault(block, {}).setdefault(phase, []).append(value)
    return values


def _phases(figure: MplFigure, runs: Sequence[Loaded], rows: Sequence[Sequence[Number]]) -> None:
    ax = figure.add_axes((0.07, 0.25, 0.92, 0.61))
    blocks = list(dict.fromkeys(str(r[0]) for r in rows))
    for i, block in enumerate(blocks):
        mine = [r for r in rows if r[0] == block]
        x = [float(r[1] or 0) + 0.06 * (i - (len(blocks) - 1) / 2) for r in mine]
        ax.errorbar(
            x,
            [float(r[2] or 0) for r in mine],
            yerr=[float(r[3] or 0) for r in mine],
            color=COLOURS[i % 8],
            marker=MARKERS[i % 8],
            linestyle=DASHES[i % 8],
            markersize=4,
            linewidth=1.1,
            elinewidth=0.7,
            capsize=2,
            label=block.removeprefix(FUSION_BLOCK),
        )
    ax.set_xticks(range(1, _NUM_PHASES + 1))
    ax.set_xlabel("phase of training (fifths of the rounds)")
    ax.set_ylabel("divergence of updates")
    ax.set_ylim(bottom=0)
    plain_axes(ax)
    top_legend(figure)
    footnote(figure, runs)


def traces(experiment: Experiment, slug: str, method: str = PROPOSED) -> Figure | None:
    """Eq. (5) of every round and its moving average, Eq. (6), of every group; None without a method that keeps it."""
    runs = [] if experiment.main is None else experiment.main.runs_of(method)
    raw, smooth = series(runs, "divergence"), series(runs, "d_bar")
    if not smooth:
        return None
    rows: list[list[Number]] = [
        [kind, group, n, value]
        for kind, table in (("d", raw), ("d_bar", smooth))
        for group, points in table.items()
        for n, value in points
    ]
    return Figure(
        slug=slug,
        caption=f"Divergence of every group under `{method}`, round by round, left, and its moving average, "
        f"right; {experiment.title}.{_mean_over(runs)} The allocator ranks by the right half.",
        draw=partial(_traces, runs=runs, raw=raw, smooth=smooth),
        width_in=TEXT_WIDTH_IN,
        height_in=3.0,
        columns=("quantity", "group", "round", "value"),
        rows=rows,
    )


def _mean_over(runs: Sequence[Loaded]) -> str:
    return f" Mean over {len(runs)} runs." if len(runs) > 1 else ""


def series(runs: Sequence[Loaded], field: str) -> dict[str, list[tuple[int, float]]]:
    """Group -> (round, mean over runs)."""
    values: dict[str, dict[int, list[float]]] = {}
    for record in (r for loaded in runs for r in loaded.rounds):
        for group, value in getattr(record, field).items():
            values.setdefault(group, {}).setdefault(record.round, []).append(value)
    return {group: [(n, mean(v)) for n, v in sorted(rounds.items())] for group, rounds in values.items()}


def _traces(figure: MplFigure, runs: Sequence[Loaded], raw: Series, smooth: Series) -> None:
    from matplotlib.ticker import MaxNLocator

    grid = figure.add_gridspec(1, 2, left=0.065, right=0.99, top=0.74, bottom=0.18, wspace=0.08)
    shared: Axes | None = None
    halves = ((raw, "divergence of updates"), (smooth, "its moving average over rounds"))
    for column, (table, label) in enumerate(halves):
        ax = figure.add_subplot(grid[0, column], sharey=shared)
        for i, group in enumerate(smooth):
            points = table.get(group, [])
            ax.plot(
                *([p[k] for p in points] for k in (0, 1)),
                color=COLOURS[i % 8],
                linestyle=DASHES[(i + i // 8) % 8],
                marker=MARKERS[i % 8] if i >= 8 else "",
                markersize=2.5,
                linewidth=1.1,
                label=group,
            )
        ax.set_yscale("log")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_title(label, loc="left", fontsize=8, pad=3)
        ax.set_xlabel("round")
        plain_axes(ax)
        ax.tick_params(labelleft=shared is None)
        shared = shared or ax
    top_legend(figure)
    footnote(figure, runs)
