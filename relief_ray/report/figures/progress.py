"""F1 over rounds, simulated seconds, joules and bytes; where each method ends, with the Pareto front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import mean, quantiles
from typing import TYPE_CHECKING

from relief_ray.report.canvas import FAINT, TEXT_WIDTH_IN
from relief_ray.report.compare import Comparison, Stat
from relief_ray.report.curves import CurvePoint, curve_points
from relief_ray.report.experiments import Experiment
from relief_ray.report.facts import listed, own_models
from relief_ray.report.figures.common import all_styles, drawn, footnote, plain_axes, top_legend
from relief_ray.report.page.document import Number, Plot
from relief_ray.report.summary import MIB, is_pooled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = (("round", "round"), ("time_s", "seconds"), ("energy_j", "kJ"), ("bytes_up", "MiB sent by the fleet"))
SCALES = {"energy_j": 1e-3, "bytes_up": 1 / MIB}
HEIGHT_IN = 2.35
MIN_POINTS = 4


def progress(experiment: Experiment, slug: str) -> Plot | None:
    """Fig. 5 of the paper (convergence), and the same against what was spent."""
    comparison = experiment.main
    points = () if comparison is None else curve_points(comparison)
    if comparison is None or len({p.round for p in points}) < 2:
        return None
    names = ("method", "round", "f1_percent", "std", "time_s", "energy_j", "bytes_up", "num_runs")
    more = len([r for r in comparison.rows if not r.is_bound]) - len(drawn(comparison))
    shown = [p for p in points if p.method in drawn(comparison)]
    left_out = f" {more} more methods are in the CSV file." if more > 0 else ""
    return Plot(
        slug=slug,
        caption="Convergence (the paper's Fig. 5): F1 over rounds, seconds, joules and uploaded bytes of the whole "
        f"fleet, bootstrap included; {experiment.title}. Mean over runs.{left_out}{lost(shown)}"
        f"{own_models(comparison)}",
        draw=partial(_progress, experiment=experiment, comparison=comparison, points=points),
        width_in=TEXT_WIDTH_IN,
        height_in=HEIGHT_IN,
        columns=names,
        rows=[[getattr(p, n) for n in names] for p in points],
    )


def _progress(figure: Figure, experiment: Experiment, comparison: Comparison, points: Sequence[CurvePoint]) -> None:
    look, methods = all_styles(comparison), drawn(comparison)
    grid = figure.add_gridspec(1, 4, left=0.06, right=0.99, top=0.86, bottom=0.235, wspace=0.1)
    shared: Axes | None = None
    for column, (field, label) in enumerate(panels(comparison)):
        ax = figure.add_subplot(grid[0, column], sharey=shared)
        for method in methods:
            mine, style = [p for p in points if p.method == method], look[method]
            x = [getattr(p, field) * SCALES.get(field, 1.0) for p in mine]
            ax.plot(
                x, [p.f1_percent for p in mine], color=style.colour, marker=style.marker, linestyle=style.dash,
                markerfacecolor=style.fill, markersize=3, linewidth=1.1, label=method,
            )  # fmt: skip
        _finish(ax, label, is_first=shared is None)
        shared = shared or ax
    low = floor([p for p in points if p.method in methods])
    if shared is not None and low is not None:
        shared.set_ylim(bottom=low)
    top_legend(figure, len(methods))
    footnote(figure, experiment, comparison.clock)


def floor(points: Sequence[CurvePoint]) -> float | None:
    """Where the F1 axis begins, so that a few points far below do not squeeze the others; None where there are none.

    Far below: more than three interquartile ranges (at least 5 points of F1) under the lower quartile. A method's last
    point is always inside.
    """
    scores = sorted(p.f1_percent for p in points)
    if len(scores) < MIN_POINTS:
        return None
    lower, _, upper = quantiles(scores, n=4, method="inclusive")
    fence = lower - 3 * max(upper - lower, 5.0)
    last = {p.method: p.f1_percent for p in points}
    inside = [s for s in scores if s >= fence] + list(last.values())
    least = min(inside)
    return None if least <= scores[0] else max(0.0, least - 0.08 * (scores[-1] - least) - 0.5)


def lost(points: Sequence[CurvePoint]) -> str:
    """The points that the frame leaves out, in words."""
    low = floor(points)
    below = [p for p in points if low is not None and p.f1_percent < low]
    named = [f"`{p.method}` {p.f1_percent:.1f} % at round {p.round}" for p in below]
    return f" Below the frame: {listed(named)}." if named else ""


def panels(comparison: Comparison) -> list[tuple[str, str]]:
    """Fields and axis labels; seconds and joules say whether they are simulated."""
    kind = "" if comparison.clock == "measured" else "simulated "
    return [(field, kind + label if field in ("time_s", "energy_j") else label) for field, label in PANELS]


def _finish(ax: Axes, label: str, *, is_first: bool) -> None:
    ax.set_xlabel(label)
    ax.set_xlim(left=0)
    ax.tick_params(labelleft=is_first)
    if is_first:
        ax.set_ylabel("macro-F1, %")
    plain_axes(ax)


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """Where a method stood after its last round: F1 in percent, totals of the fleet."""

    method: str
    is_bound: bool
    f1: Stat
    time_s: float
    energy_j: float
    bytes_up: float


def ends(comparison: Comparison) -> list[End]:
    """One per method with a fleet; pooled data have no fleet's cost."""
    found = []
    for row in comparison.rows:
        runs = [r for r in comparison.runs if r.label == row.label and not is_pooled(r)]
        totals = [r.rounds[-1].totals[comparison.clock] for r in runs]
        if totals and "f1_percent" in row.stats:
            found.append(
                End(
                    method=row.label,
                    is_bound=row.is_bound,
                    f1=row.stats["f1_percent"],
                    time_s=mean(t.time_s for t in totals),
                    energy_j=mean(t.energy_j for t in totals),
                    bytes_up=mean(t.bytes_up for t in totals),
                )
            )
    return found


def span(found: Sequence[End]) -> tuple[float, float]:
    """The F1 axis: the federated methods with their spread; a bound far away must not squeeze them."""
    shown = [e for e in found if not e.is_bound] or found
    low = min(e.f1.mean - (e.f1.std or 0.0) for e in shown)
    high = max(e.f1.mean + (e.f1.std or 0.0) for e in found)
    return max(0.0, low - 2), min(100.0, high + 2)


def front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points (cost, score) that no other beats in both, by rising cost."""
    found: list[tuple[float, float]] = []
    for cost, score in sorted(points, key=lambda p: (p[0], -p[1])):
        if not found or score > found[-1][1]:
            found.append((cost, score))
    return found


def pareto(experiment: Experiment, slug: str) -> Plot | None:
    """Final F1 against what the whole run cost, and the front of the federated methods."""
    comparison = experiment.main
    if comparison is None or len(found := ends(comparison)) < 2:
        return None
    on_front = {
        field: {p for p in front([(getattr(e, field), e.f1.mean) for e in found if not e.is_bound])}
        for field, _ in PANELS[1:]
    }
    rows: list[list[Number]] = [
        [
            e.method,
            e.f1.mean,
            e.f1.std,
            e.time_s,
            e.energy_j,
            e.bytes_up,
            *(int((getattr(e, f), e.f1.mean) in on_front[f] and not e.is_bound) for f, _ in PANELS[1:]),
        ]
        for e in found
    ]
    return Plot(
        slug=slug,
        caption=f"F1 after the last round against simulated seconds, joules and uploaded bytes of the whole run; "
        f"{experiment.title}. Line: Pareto front of the federated methods; bars: sample standard deviation over runs; "
        f"grey: bounds.{outside(found)}{own_models(comparison)}",
        draw=partial(_pareto, experiment=experiment, comparison=comparison, found=found),
        width_in=TEXT_WIDTH_IN,
        height_in=2.95,
        columns=(
            "method",
            "f1_percent",
            "std",
            "time_s",
            "energy_j",
            "bytes_up",
            *(f"front_{f}" for f, _ in PANELS[1:]),
        ),
        rows=rows,
    )


def outside(found: Sequence[End]) -> str:
    """The bounds below the frame."""
    lost = [f"`{e.method}` {e.f1.mean:.1f} %" for e in found if e.f1.mean < span(found)[0]]
    return f" Below the frame: {listed(lost)}." if lost else ""


def _pareto(figure: Figure, experiment: Experiment, comparison: Comparison, found: Sequence[End]) -> None:
    look = all_styles(comparison)
    grid = figure.add_gridspec(1, 3, left=0.065, right=0.985, top=0.74, bottom=0.19, wspace=0.1)
    shared: Axes | None = None
    low, high = span(found)
    for column, (field, label) in enumerate(panels(comparison)[1:]):
        ax, scale = figure.add_subplot(grid[0, column], sharey=shared), SCALES.get(field, 1.0)
        line = front([(scale * getattr(e, field), e.f1.mean) for e in found if not e.is_bound])
        ax.step([p[0] for p in line], [p[1] for p in line], where="post", color=FAINT, linewidth=0.9, zorder=1)
        for end in found:
            style = look[end.method]
            colour = FAINT if end.is_bound else style.colour
            ax.errorbar(
                scale * getattr(end, field), end.f1.mean, yerr=end.f1.std or 0.0, color=colour, marker=style.marker,
                markerfacecolor="white" if end.is_bound else style.fill, markersize=4.5, linewidth=0, elinewidth=0.5,
                label=end.method,
            )  # fmt: skip
        ax.set_ylim(low, high)
        _finish(ax, label, is_first=shared is None)
        shared = shared or ax
    top_legend(figure, 6)
    footnote(figure, experiment, comparison.clock)
