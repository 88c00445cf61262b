"""Pictures of a data set: what each person's sensors recorded, and how long everybody did what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from relief_ray.report.document import Figure
from relief_ray.report.figures.style import COLOURS, look

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MplFigure


def strips_figure(strips: Mapping[str, NDArray[np.float32]]) -> Figure:
    """A strip for each name: its lowest and highest values, (2, parts), over time."""

    def draw(canvas: MplFigure) -> None:
        canvas.set_layout_engine("constrained")
        for axes, (name, (low, high)) in zip(
            canvas.subplots(len(strips), squeeze=False).flat, strips.items(), strict=True
        ):
            axes.fill_between(range(len(low)), low, high, color=look(0).color, linewidth=0)
            axes.set_ylabel(name, rotation=0, horizontalalignment="right", verticalalignment="center")
            axes.set(xticks=[], yticks=[], xlim=(0, len(low)))

    caption = (
        "Each person's sensors over time, all bouts in sequence: from the lowest to the highest value of all channels"
    )
    return Figure(slug="strips", caption=caption, draw=draw, height_in=0.3 * len(strips) + 0.3)


def classes_figure(seconds: Mapping[str, Mapping[str, float]]) -> Figure:
    """A bar for each person: seconds of each class."""

    def draw(canvas: MplFigure) -> None:
        canvas.set_layout_engine("constrained")
        axes, ends = canvas.subplots(), np.zeros(len(seconds))
        for number, name in enumerate(next(iter(seconds.values()))):
            lengths = [own_s[name] for own_s in seconds.values()]
            colour, hatch = look(number).color, "//" * (number // len(COLOURS))
            axes.barh(list(seconds), lengths, left=ends, color=colour, hatch=hatch, label=name, edgecolor="white")
            ends += lengths
        axes.set(xlabel="seconds", ylabel="person")
        axes.invert_yaxis()
        canvas.legend(loc="outside lower center", ncols=4)

    return Figure(slug="classes", caption="Seconds of each activity", draw=draw, height_in=0.25 * len(seconds) + 1.6)
