"""F1 over rounds, simulated seconds, joules and bytes; where each method ends, with the Pareto front."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, quantiles, stdev
from typing import TYPE_CHECKING

from relief_ray.errors import listed
from relief_ray.report.captions import mark, own_models
from relief_ray.report.comparison import Comparison, Stat
from relief_ray.report.document import Number, Plot
from relief_ray.report.experiments import Experiment
from relief_ray.report.figures.style import (
    COLOURS,
    DASHES,
    FAINT,
    MARKERS,
    TEXT_WIDTH_IN,
    all_styles,
    drawn,
    footnote,
    plain_axes,
    save,
    sheet,
    top_legend,
)
from relief_ray.report.runs import Loaded, is_pooled, split_name, text
from relief_ray.report.summary import MIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# F1 against rounds, simulated seconds and joules: small multiples with their numbers as CSV beside the figure.


MAX_METHODS = 6

MAX_BANDS = 3

FIRST = ("fedavg", "relief", "v1", "v2", "v3", "fedprox")


@dataclass(frozen=True, kw_only=True, slots=True)
class CurvePoint:
    """A method at an evaluated round: means over its runs; F1 and ``std`` in percent, costs cumulative."""

    method: str
    round: int
    f1_percent: float
    std: float
    time_s: float
    energy_j: float
    num_runs: int
    bytes_up: float


def curve_points(comparison: Comparison) -> tuple[CurvePoint, ...]:
    """The points of all methods with a shared clock (pooled data have none), in table order."""
    found: list[CurvePoint] = []
    for row in comparison.rows:
        runs = [r for r in comparison.runs if r.label == row.label and not is_pooled(r)]
        found += _points(row.label, runs, comparison.clock)
    return tuple(found)


def _points(method: str, runs: Sequence[Loaded], clock: str) -> list[CurvePoint]:
    by_round: dict[int, list[tuple[float, float, float, float]]] = {}
    for record in (r for loaded in runs for r in loaded.trained if r.metrics is not None):
        assert record.metrics is not None
        f1, total = record.metrics.headline, record.totals[clock]
        if f1 is not None:
            by_round.setdefault(record.round, []).append((100 * f1, total.time_s, total.energy_j, total.bytes_up))
    return [_point(method, n, values) for n, values in sorted(by_round.items())]


def _point(method: str, round_: int, values: Sequence[tuple[float, float, float, float]]) -> CurvePoint:
    f1, seconds, joules, sent = zip(*values, strict=True)
    return CurvePoint(
        method=method,
        round=round_,
        f1_percent=mean(f1),
        std=stdev(f1) if len(f1) > 1 else 0.0,
        time_s=mean(seconds),
        energy_j=mean(joules),
        num_runs=len(f1),
        bytes_up=mean(sent),
    )


def curves(comparison: Comparison, path: Path) -> Path:
    """Writes the figure and, beside it, ``<name>.csv``.

    Bounds and methods beyond the sixth are in the CSV alone, and so is the spread where more than three are drawn.

    Raises:
        UserError: matplotlib is missing, or an unknown file suffix.
    """
    points = curve_points(comparison)
    drawn = [r.label for r in comparison.rows if not r.is_bound]
    methods = sorted(drawn, key=lambda m: FIRST.index(m) if m in FIRST else len(FIRST))[:MAX_METHODS]
    with sheet(2.75) as figure:
        _draw(figure, [(m, [p for p in points if p.method == m]) for m in methods], comparison)
        save(figure, path)
    _write_csv(points, path.with_suffix(".csv"))
    return path


def _write_csv(points: Sequence[CurvePoint], path: Path) -> None:
    names = ("method", "round", "f1_percent", "std", "time_s", "energy_j", "num_runs", "bytes_up")
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([getattr(p, name) for name in names] for p in points)


def _draw(figure: Figure, methods: Sequence[tuple[str, Sequence[CurvePoint]]], comparison: Comparison) -> None:
    height = float(figure.get_size_inches()[1])
    grid = figure.add_gridspec(1, 3, left=0.07, right=0.985, top=1 - 0.62 / height, bottom=0.42 / height, wspace=0.12)
    kind = "" if comparison.clock == "measured" else "simulated "
    panels = (("round", "round"), ("time_s", f"{kind}seconds"), ("energy_j", f"{kind}joules"))
    shared: Axes | None = None
    for column, (field, label) in enumerate(panels):
        ax = figure.add_subplot(grid[0, column], sharey=shared)
        _panel(ax, methods, field)
        ax.set_xlabel(label)
        ax.tick_params(labelleft=shared is None)
        if shared is None:
            ax.set_ylabel("macro-F1, %")
        shared = shared or ax
    first = comparison.runs[0]
    name = f"{mark(first)}{text(first.run, 'data.name')}, {split_name(text(first.run, 'data.split'))}"
    bands = ", bands: ± sample standard deviation" if len(methods) <= MAX_BANDS else ""
    figure.text(0.012, 1 - 0.12 / height, f"{name}; mean over runs{bands}", color=FAINT, va="center")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="upper left", bbox_to_anchor=(0.06, 1 - 0.2 / height), ncols=len(labels), frameon=False,
        handlelength=2.4, columnspacing=1.0, handletextpad=0.4,
    )  # fmt: skip


def _panel(ax: Axes, methods: Sequence[tuple[str, Sequence[CurvePoint]]], field: str) -> None:
    for i, (method, points) in enumerate(methods):
        x = [getattr(p, field) for p in points]
        y = [p.f1_percent for p in points]
        ax.plot(
            x, y, color=COLOURS[i], marker=MARKERS[i], linestyle=DASHES[i], markersize=3.2, linewidth=1.2, label=method
        )
        if len(methods) > MAX_BANDS:
            continue
        low, high = [p.f1_percent - p.std for p in points], [p.f1_percent + p.std for p in points]
        ax.fill_between(x, low, high, color=COLOURS[i], alpha=0.10, linewidth=0)
    ax.set_xlim(left=0)
    ax.grid(color="#e4e4e4", linewidth=0.5)
    ax.set_axisbelow(True)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


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
