"""F1 over rounds, simulated seconds, joules and bytes; where each method ends, with the Pareto front."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from relief_ray.errors import listed
from relief_ray.report.captions import mark, own_models
from relief_ray.report.comparison import Comparison
from relief_ray.report.document import TEXT_WIDTH_IN, Figure
from relief_ray.report.experiments import Experiment
from relief_ray.report.figures.style import FAINT, all_styles, drawn, footnote, plain_axes, save, sheet, top_legend
from relief_ray.report.runs import config_text, is_pooled, split_name
from relief_ray.report.summary import MIB

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as MplFigure

# Up to so many methods, bands show the standard deviation.
_MAX_BANDS = 3
PANELS = (("round", "round"), ("time_s", "seconds"), ("energy_j", "kJ"), ("bytes_up", "MiB sent by the fleet"))
COSTS = tuple(field for field, _ in PANELS[1:])
_SCALES = {"energy_j": 1e-3, "bytes_up": 1 / MIB}
_HEIGHT_IN = 2.35
_HEADING_IN = 0.2
_MIN_POINTS = 4


def curve_points(comparison: Comparison) -> pd.DataFrame:
    """Means over a method's runs at every evaluated round; methods in table order, without those on pooled data.

    Columns: ``method``, ``round``, ``f1_percent``, ``std`` (sample standard deviation of F1 in points, 0 for one run),
    the fleet's sums so far ``time_s``, ``energy_j`` and ``bytes_up``, and ``num_runs``.
    """
    import pandas as pd

    rows = [
        (loaded.label, record.round, 100 * f1, *(getattr(record.totals[comparison.clock], field) for field in COSTS))
        for loaded in comparison.runs
        if not is_pooled(loaded)
        for record in loaded.trained
        if record.metrics is not None and (f1 := record.metrics.headline) is not None
    ]
    frame = pd.DataFrame(rows, columns=["method", "round", "f1_percent", *COSTS])
    frame["method"] = pd.Categorical(frame["method"], [m.label for m in comparison.rows])
    groups = frame.groupby(["method", "round"], observed=True)
    points = groups.mean()
    points.insert(1, "std", groups["f1_percent"].std().fillna(0.0))
    return points.assign(num_runs=groups.size()).reset_index().astype({"method": str})


def whole_bytes(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame for a CSV file, where bytes are whole numbers: a mean over runs is rounded to one."""
    return frame.assign(bytes_up=frame["bytes_up"].round().astype("int64"))


def curves(comparison: Comparison, path: Path) -> Path:
    """Write the figure of `compare` and, beside it, ``<name>.csv``.

    Bounds and methods beyond the sixth are in the CSV alone, and so is the spread where more than three are drawn.

    Raises:
        UserError: matplotlib is missing, or an unknown file suffix.
    """
    first, points = comparison.runs[0], curve_points(comparison)
    name = f"{mark(first)}{config_text(first.run, 'data.name')}, {split_name(config_text(first.run, 'data.split'))}"
    with sheet(_HEIGHT_IN + _HEADING_IN) as figure:
        _draw_curves(figure, comparison, points, heading=f"{name}; mean over runs{bands(comparison)}")
        save(figure, path)
    columns = ["method", "round", "f1_percent", "std", "time_s", "energy_j", "num_runs", "bytes_up"]
    whole_bytes(points).to_csv(path.with_suffix(".csv"), columns=columns, index=False, lineterminator="\n")
    return path


def bands(comparison: Comparison) -> str:
    """Half-sentence on the bands; empty where none are drawn."""
    labels = drawn(comparison)
    has_spread = len(labels) <= _MAX_BANDS and any(len(comparison.runs_of(label)) > 1 for label in labels)
    return ", bands: ± sample standard deviation" if has_spread else ""


def progress(experiment: Experiment, slug: str) -> Figure | None:
    """Fig. 5 of the paper (convergence), and the same against what was spent."""
    comparison = experiment.main
    if comparison is None or (points := curve_points(comparison))["round"].nunique() < 2:
        return None
    more = len([r for r in comparison.rows if not r.is_bound]) - len(drawn(comparison))
    left_out = f" {more} more methods are in the CSV file." if more > 0 else ""
    shown = points[points.method.isin(drawn(comparison))]
    return Figure(
        slug=slug,
        caption="Convergence (the paper's Fig. 5): F1 over rounds, seconds, joules and uploaded bytes of the whole "
        f"fleet, bootstrap included; {experiment.title}. Mean over runs{bands(comparison)}.{left_out}{lost(shown)}"
        f"{own_models(comparison)}",
        draw=partial(_draw_curves, comparison=comparison, points=points),
        width_in=TEXT_WIDTH_IN,
        height_in=_HEIGHT_IN,
        columns=tuple(points.columns),
        rows=whole_bytes(points).astype(object).to_numpy().tolist(),
    )


def _draw_curves(figure: MplFigure, comparison: Comparison, points: pd.DataFrame, heading: str = "") -> None:
    """One panel per quantity of ``PANELS``; ``heading`` stands at the top and takes ``_HEADING_IN`` inches."""
    look, methods = all_styles(comparison), drawn(comparison)
    height, above = float(figure.get_size_inches()[1]), _HEADING_IN if heading else 0.0
    grid = figure.add_gridspec(
        1, 4, left=0.06, right=0.99, top=1 - (0.329 + above) / height, bottom=0.552 / height, wspace=0.1
    )
    shared: Axes | None = None
    for column, (field, label) in enumerate(panels(comparison)):
        ax = figure.add_subplot(grid[0, column], sharey=shared)
        for method in methods:
            curve, style = points[points.method == method], look[method]
            x = curve[field] * _SCALES.get(field, 1.0)
            ax.plot(
                x, curve.f1_percent, color=style.colour, marker=style.marker, linestyle=style.dash,
                markerfacecolor=style.fill, markersize=3, linewidth=1.1, label=method,
            )  # fmt: skip
            if len(methods) <= _MAX_BANDS:
                low, high = curve.f1_percent - curve["std"], curve.f1_percent + curve["std"]
                ax.fill_between(x, low, high, color=style.colour, alpha=0.10, linewidth=0)
        _finish(ax, label, is_first=shared is None)
        shared = shared or ax
    low = floor(points[points.method.isin(methods)])
    if shared is not None and low is not None:
        shared.set_ylim(bottom=low)
    figure.text(0.012, 1 - 0.12 / height, heading, color=FAINT, va="center")
    top_legend(figure, len(methods), below_in=above)
    footnote(figure, comparison.runs, comparison.clock)


def floor(points: pd.DataFrame) -> float | None:
    """Lower end of the F1 axis that keeps a few points far below from squeezing the others; None where there are none.

    Far below: more than three interquartile ranges (at least 5 points of F1) under the lower quartile. A method's last
    point is always inside.
    """
    scores = points.f1_percent
    if len(scores) < _MIN_POINTS:
        return None
    lower, upper = scores.quantile(0.25), scores.quantile(0.75)
    fence = lower - 3 * max(upper - lower, 5.0)
    least = min(scores[scores >= fence].min(), points.groupby("method").f1_percent.last().min())
    return None if least <= scores.min() else max(0.0, least - 0.08 * (scores.max() - least) - 0.5)


def lost(points: pd.DataFrame) -> str:
    """The points that the frame leaves out, in words."""
    low = floor(points)
    below = [] if low is None else points[points.f1_percent < low].itertuples()
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


def ends(comparison: Comparison) -> pd.DataFrame:
    """Last state of every method with a fleet: mean F1 with its ``std`` in percent, and mean totals of the fleet.

    Columns: ``method``, ``is_bound``, ``f1_percent``, ``std`` (NaN for one run), ``time_s``, ``energy_j``,
    ``bytes_up``, and ``front_<cost>``: 1 for a federated method that no other beats in F1 and that cost.
    """
    import pandas as pd

    rows = []
    for method in comparison.rows:
        f1 = method.stats.get("f1_percent")
        totals = [r.rounds[-1].totals[comparison.clock] for r in comparison.runs_of(method.label) if not is_pooled(r)]
        if totals and f1 is not None:
            means = (sum(getattr(t, field) for t in totals) / len(totals) for field in COSTS)
            rows.append((method.label, method.is_bound, f1.mean, f1.std, *means))
    frame = pd.DataFrame(rows, columns=["method", "is_bound", "f1_percent", "std", *COSTS])
    frame = frame.astype({"is_bound": bool, "std": float})
    for cost in COSTS:
        points = pd.Series(zip(frame[cost], frame.f1_percent, strict=True))
        frame[f"front_{cost}"] = (points.isin(front(points[~frame.is_bound])) & ~frame.is_bound).astype(int)
    return frame


def span(last: pd.DataFrame) -> tuple[float, float]:
    """Limits of the F1 axis: the federated methods with their spread; a bound far away must not squeeze them."""
    shown = last[~last.is_bound] if not last.is_bound.all() else last
    low = (shown.f1_percent - shown["std"].fillna(0.0)).min()
    high = (last.f1_percent + last["std"].fillna(0.0)).max()
    return max(0.0, low - 2), min(100.0, high + 2)


def front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points (cost, score) that no other beats in both, by rising cost."""
    best: list[tuple[float, float]] = []
    for cost, score in sorted(points, key=lambda p: (p[0], -p[1])):
        if not best or score > best[-1][1]:
            best.append((cost, score))
    return best


def pareto(experiment: Experiment, slug: str) -> Figure | None:
    """Final F1 against what the whole run cost, and the front of the federated methods."""
    comparison = experiment.main
    if comparison is None or len(last := ends(comparison)) < 2:
        return None
    numbers = whole_bytes(last.drop(columns="is_bound"))
    return Figure(
        slug=slug,
        caption=f"F1 after the last round against simulated seconds, joules and uploaded bytes of the whole run; "
        f"{experiment.title}. Line: Pareto front of the federated methods; bars: sample standard deviation over runs; "
        f"grey: bounds.{outside(last)}{own_models(comparison)}",
        draw=partial(_pareto, comparison=comparison, last=last),
        width_in=TEXT_WIDTH_IN,
        height_in=2.95,
        columns=tuple(numbers.columns),
        rows=numbers.astype(object).where(numbers.notna(), None).to_numpy().tolist(),
    )


def outside(last: pd.DataFrame) -> str:
    """The bounds below the frame, in words."""
    below = last[last.f1_percent < span(last)[0]]
    named = [f"`{end.method}` {end.f1_percent:.1f} %" for end in below.itertuples()]
    return f" Below the frame: {listed(named)}." if named else ""


def _pareto(figure: MplFigure, comparison: Comparison, last: pd.DataFrame) -> None:
    look = all_styles(comparison)
    grid = figure.add_gridspec(1, 3, left=0.065, right=0.985, top=0.74, bottom=0.19, wspace=0.1)
    shared: Axes | None = None
    for column, (field, label) in enumerate(panels(comparison)[1:]):
        ax, scale = figure.add_subplot(grid[0, column], sharey=shared), _SCALES.get(field, 1.0)
        line = last[last[f"front_{field}"] == 1].sort_values(field)
        ax.step(scale * line[field], line.f1_percent, where="post", color=FAINT, linewidth=0.9, zorder=1)
        for _, end in last.iterrows():
            style, std = look[end.method], end["std"] if end["std"] > 0 else 0.0
            ax.errorbar(
                scale * end[field], end.f1_percent, yerr=std,
                color=FAINT if end.is_bound else style.colour,
                marker=style.marker, markerfacecolor="white" if end.is_bound else style.fill, markersize=4.5,
                linewidth=0, elinewidth=0.5, label=end.method,
            )  # fmt: skip
        ax.set_ylim(*span(last))
        _finish(ax, label, is_first=shared is None)
        shared = shared or ax
    top_legend(figure, 6)
    footnote(figure, comparison.runs, comparison.clock)
