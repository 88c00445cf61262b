"""The timeline of a round, FedAvg above RELIEF, as a figure of the report."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from relief_ray.report.canvas import TEXT_WIDTH_IN
from relief_ray.report.experiments import Experiment
from relief_ray.report.figures.common import FOOTER_IN, footnote
from relief_ray.report.load import Loaded
from relief_ray.report.page.document import Number, Plot
from relief_ray.report.timeline import STAGES, Panel, draw_panels, height_of, pair, panel

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def timeline_plot(experiment: Experiment, slug: str) -> Plot | None:
    """The last round of one pair of runs."""
    comparison = experiment.main
    found = None if comparison is None else pair(comparison)
    if comparison is None or found is None:
        return None
    panels = [panel(loaded, comparison.clock) for loaded in found]
    return Plot(
        slug=slug,
        caption=f"The last round device by device, FedAvg above {panels[1].title} (fold {found[1].replicate[0]}, seed "
        f"{found[1].replicate[2]}); {experiment.title}. Stages are sums over the round's mini-batches.",
        draw=partial(_draw, panels=panels, source=found[1], experiment=experiment, clock=comparison.clock),
        width_in=TEXT_WIDTH_IN,
        height_in=height_of(panels) + FOOTER_IN,
        columns=("panel", "device", "type", *(f"{name}_s" for name, _, _ in STAGES)),
        rows=[_row(p, i) for p in panels for i in range(len(p.bars))],
    )


def _row(part: Panel, i: int) -> list[Number]:
    bar = part.bars[i]
    return [part.title, bar.name, bar.kind, *bar.seconds]


def _draw(figure: Figure, panels: list[Panel], source: Loaded, experiment: Experiment, clock: str) -> None:
    draw_panels(figure, panels, source, clock, bottom_in=0.42 + FOOTER_IN)
    footnote(figure, experiment, clock)
