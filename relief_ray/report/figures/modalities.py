"""F1 by modality (Fig. 6 of the paper): the canonical model seen through one sensor at a time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from relief_ray.report.comparison import Comparison, Experiment, MethodResult
from relief_ray.report.document import TEXT_WIDTH_IN, Figure
from relief_ray.report.figures.style import all_styles, drawn, footnote, legend_in, plain_axes, top_legend
from relief_ray.report.runs import fleet_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MplFigure

_HATCHES = ("", "///", "...", "\\\\\\", "xxx", "---")


def modalities(experiment: Experiment, slug: str) -> Figure | None:
    """Bars per modality and method; None where no method has a canonical model."""
    comparison = experiment.main
    names = [] if comparison is None else comparison.sensors
    if comparison is None or not names:
        return None
    rows = [
        [r.label, m, s.mean, s.std, s.num]
        for r in comparison.rows
        for m in names
        if (s := r.stats.get(f"f1_{m}_percent")) is not None
    ]
    is_spread = any(row[3] is not None for row in rows)
    fig = "" if experiment.is_own_data else " (the paper's Fig. 6)"
    lines = " over runs, lines: sample standard deviation" if is_spread else ""
    has_owners = any(fleet_of(r) is not None for r in comparison.runs)
    owned = " The number of clients that own it stands under a modality's name." if has_owners else ""
    return Figure(
        slug=slug,
        caption=f"F1 with one modality alone{fig}; {experiment.title}. Bars: mean{lines}.{owned}",
        draw=partial(_draw, experiment=experiment, comparison=comparison, names=names),
        width_in=TEXT_WIDTH_IN,
        height_in=2.2,
        columns=("method", "modality", "f1_percent", "std", "num_runs"),
        rows=rows,
    )


def _draw(figure: MplFigure, experiment: Experiment, comparison: Comparison, names: Sequence[str]) -> None:
    methods = [m for m in drawn(comparison) if _bars(comparison.row(m), names)]
    look, width = all_styles(comparison), 0.8 / max(1, len(methods))
    height = float(figure.get_size_inches()[1])
    ax = figure.add_axes((0.072, 0.55 / height, 0.918, 1 - (0.63 + legend_in(methods)) / height))
    for i, method in enumerate(methods):
        bars = _bars(comparison.row(method), names)
        x = [names.index(m) + (i - (len(methods) - 1) / 2) * width for m, _, _ in bars]
        ax.bar(
            x,
            [b[1] for b in bars],
            width * 0.92,
            yerr=[b[2] for b in bars],
            color=look[method].colour,
            label=method,
            hatch=_HATCHES[i % len(_HATCHES)],
            edgecolor="white",
            linewidth=0.3,
            error_kw={"elinewidth": 0.7},
        )
    ax.set_xticks(range(len(names)), [_owners(comparison, m) for m in names])
    ax.set_ylim(bottom=0)
    ax.set_ylabel("macro-F1, %")
    plain_axes(ax)
    ax.grid(visible=False, axis="x")
    top_legend(figure)
    footnote(figure, experiment.runs)


def _bars(method: MethodResult | None, names: Sequence[str]) -> list[tuple[str, float, float]]:
    stats = [(m, None if method is None else method.stats.get(f"f1_{m}_percent")) for m in names]
    return [(m, s.mean, s.std or 0.0) for m, s in stats if s is not None]


def _owners(comparison: Comparison, modality: str) -> str:
    fleet = next((f for r in comparison.runs if (f := fleet_of(r)) is not None), None)
    return modality if fleet is None else f"{modality}\n{len(fleet.cohort(modality))} of {len(fleet)} clients"
