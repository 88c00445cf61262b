"""Fig. 2 of the paper: do two clients' updates of a fusion block point the same way?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import mean
from typing import TYPE_CHECKING

from relief_ray.report.document import Plot
from relief_ray.report.experiments import Experiment
from relief_ray.report.figures.style import TEXT_WIDTH_IN, footnote
from relief_ray.report.findings import runs_of
from relief_ray.report.runs import Loaded, device_types
from relief_ray.report.summary import FUSION_BLOCK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

Pairs = Mapping[tuple[int, int], float]
MAX_CLIENTS = 20


def cosine(experiment: Experiment, slug: str, method: str = "fedavg") -> Plot | None:
    """A matrix of clients per fusion block; none where updates were not compared in pairs."""
    runs = [] if experiment.main is None else runs_of(experiment.main, method)
    blocks = pair_means(runs)
    if not blocks:
        return None
    compared = [sum(bool(r.pairwise) for r in loaded.trained) for loaded in runs]
    how_many = f"{sum(compared)} compared rounds of {sum(map(bool, compared))} runs"
    return Plot(
        slug=slug,
        caption=f"Cosine of two clients' updates of a fusion block under `{method}` (the paper's Fig. 2), mean over "
        f"{how_many}; {experiment.title}. Letters: device types. A client that did not upload a block, or did not move "
        "it, has no pair or 0 there.",
        draw=partial(_draw, experiment=experiment, blocks=blocks, types=device_types(runs[0])),
        width_in=TEXT_WIDTH_IN,
        height_in=2.35,
        columns=("block", "client", "other", "cosine"),
        rows=[[block, a, b, value] for block, pairs in blocks.items() for (a, b), value in sorted(pairs.items())],
    )


def pair_means(runs: Sequence[Loaded]) -> dict[str, Pairs]:
    """Block -> (client, client) -> mean cosine over all compared rounds of all runs."""
    found: dict[str, dict[tuple[int, int], list[float]]] = {}
    for record in (r for loaded in runs for r in loaded.trained):
        for block, rows in record.pairwise.items():
            if block.startswith(FUSION_BLOCK):
                for a, b, value in rows:
                    found.setdefault(block, {}).setdefault((min(a, b), max(a, b)), []).append(value)
    return {block: {pair: mean(v) for pair, v in pairs.items()} for block, pairs in found.items()}


def _draw(figure: Figure, experiment: Experiment, blocks: Mapping[str, Pairs], types: Mapping[int, str]) -> None:
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
    footnote(figure, experiment)


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
