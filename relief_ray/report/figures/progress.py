"""F1 over rounds, simulated seconds, joules and bytes; where each method ends, with the Pareto front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from relief_ray.records.schema import RoundRecord
from relief_ray.report.comparison import Comparison, Experiment, data_title
from relief_ray.report.document import TEXT_WIDTH_IN, Figure
from relief_ray.report.figures.style import (
    FAINT,
    Style,
    all_styles,
    drawn,
    footnote,
    legend_in,
    percent_axis,
    plain_axes,
    save,
    sheet,
    top_legend,
)
from relief_ray.report.remarks import mark, own_models
from relief_ray.report.results import MIB
from relief_ray.report.runs import config_text, is_pooled, split_name
from relief_ray.support.errors import counted, listed
from relief_ray.support.text import percent

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as MplFigure

COSTS = ("time_s", "energy_j", "bytes_up")
_HEIGHT_IN = 2.35
_HEADING_IN = 0.2
_MIN_POINTS = 4
_MOST_MARKERS = 12
# Inches over which the bars of methods of equal cost are moved apart: about a marker.
_BARS_IN = 0.08
_SCORES = {
    "f1": "macro-F1, %",
    "f1_rare": "rare-modality F1, %",
}


def curve_points(comparison: Comparison, score: str = "f1") -> pd.DataFrame:
    """Means over a method's runs at every evaluated round; methods in table order, without those on pooled data.

    Columns: ``method``, ``round``, ``f1_percent``, ``std`` (sample standard deviation of F1 in points, 0 for one run),
    ``aggregations`` (rounds, the bootstrap counted), the fleet's sums so far ``time_s``, ``energy_j`` and ``bytes_up``,
    and ``num_runs``. ``score``: the headline ``f1``, or ``f1_rare``.
    """
    import pandas as pd

    rows = [
        (loaded.label, record.round, 100 * f1, loaded.aggregations(record), *_costs(record, comparison.clock))
        for loaded in comparison.runs
        if not is_pooled(loaded)
        for record in loaded.trained
        if (f1 := _score(record, score)) is not None
    ]
    frame = pd.DataFrame(rows, columns=["method", "round", "f1_percent", "aggregations", *COSTS])
    frame["method"] = pd.Categorical(frame["method"], [m.label for m in comparison.rows])
    groups = frame.groupby(["method", "round"], observed=True)
    points = groups.mean()
    points.insert(1, "std", groups["f1_percent"].std().fillna(0.0))
    return points.assign(num_runs=groups.size()).reset_index().astype({"method": str})


def _score(record: RoundRecord, score: str) -> float | None:
    if record.metrics is None:
        return None
    return record.metrics.f1_rare if score == "f1_rare" else record.metrics.headline


def _costs(record: RoundRecord, clock: str) -> list[float]:
    return [float(getattr(record.totals[clock], field)) for field in COSTS]


def whole_bytes(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame for a CSV file, where bytes are whole numbers: a mean over runs is rounded to one."""
    return frame.assign(bytes_up=frame["bytes_up"].round().astype("int64"))


def curves(comparison: Comparison, path: Path) -> Path:
    """Write the figure of `compare` and, beside it, ``<name>.csv``.

    Bounds and methods beyond the sixth are in the CSV alone.

    Raises:
        UserError: matplotlib is missing, or an unknown file suffix.
    """
    first, points = comparison.runs[0], curve_points(comparison)
    name = f"{mark(first)}{data_title(first.run)}, {split_name(config_text(first.run, 'data.split'))}"
    with sheet(_HEIGHT_IN + _HEADING_IN) as figure:
        _draw_curves(figure, comparison, points, heading=name + bands(comparison))
        save(figure, path)
    columns = ["method", "round", "f1_percent", "std", "aggregations", "time_s", "energy_j", "num_runs", "bytes_up"]
    whole_bytes(points).to_csv(path.with_suffix(".csv"), columns=columns, index=False, lineterminator="\n")
    return path


def bands(comparison: Comparison) -> str:
    """Half-sentence on means and bands; empty where every method has one run."""
    numbers = [len(comparison.runs_of(label)) for label in drawn(comparison)]
    if max(numbers, default=0) < 2:
        return ""
    few, many = min(numbers), max(numbers)
    return f"; mean of {few if few == many else f'{few} to {many}'} runs, bands: ± sample standard deviation"


def progress(experiment: Experiment, slug: str) -> Figure | None:
    """Fig. 5 of the paper (convergence), and the same against what was spent."""
    comparison = experiment.main
    if comparison is None or (points := curve_points(comparison))["round"].nunique() < 2:
        return None
    shown = points[points.method.isin(drawn(comparison))]
    return _curves(
        comparison,
        slug,
        points,
        f"F1 over aggregations, seconds, joules and uploaded bytes of the whole fleet{_counted(comparison)}; "
        f"{experiment.title}{bands(comparison)}.{_left_out(comparison)}{lost(shown)}{own_models(comparison)}",
    )


def rare(experiment: Experiment, slug: str) -> Figure | None:
    """Convergence of the F1 with the rare sensors alone; None where it was not recorded round by round."""
    comparison = experiment.main
    if comparison is None or (points := curve_points(comparison, "f1_rare"))["round"].nunique() < 2:
        return None
    return _curves(
        comparison,
        slug,
        points,
        "F1 with the sensors of the smallest cohorts alone, over aggregations and costs of the whole fleet"
        f"{_counted(comparison)}; {experiment.title}{bands(comparison)}.{_left_out(comparison)}"
        f"{lost(points[points.method.isin(drawn(comparison))])}",
        score="f1_rare",
    )


def _counted(comparison: Comparison) -> str:
    """Half-sentence on the bootstrap, which makes one aggregation more."""
    names = [f"`{label}`" for label in comparison.bootstrapped if label in drawn(comparison)]
    return f", the bootstrap of {listed(names)} counted as one" if names else ""


def _left_out(comparison: Comparison) -> str:
    more = len([r for r in comparison.rows if not r.is_bound]) - len(drawn(comparison))
    return f" {counted(more, 'more method')} in the CSV file." if more > 0 else ""


def _curves(comparison: Comparison, slug: str, points: pd.DataFrame, caption: str, score: str = "f1") -> Figure:
    return Figure(
        slug=slug,
        caption=caption,
        draw=partial(_draw_curves, comparison=comparison, points=points, label=_SCORES[score]),
        width_in=TEXT_WIDTH_IN,
        height_in=_HEIGHT_IN,
        columns=tuple(points.columns),
        rows=whole_bytes(points).astype(object).to_numpy().tolist(),
    )


def _draw_curves(
    figure: MplFigure, comparison: Comparison, points: pd.DataFrame, heading: str = "", label: str = _SCORES["f1"]
) -> None:
    """One panel per quantity of ``PANELS``; ``heading`` stands at the top and takes ``_HEADING_IN`` inches."""
    look, methods = all_styles(comparison), drawn(comparison)
    height, above = float(figure.get_size_inches()[1]), _HEADING_IN if heading else 0.0
    top = 1 - (legend_in(methods) + 0.08 + above) / height
    grid = figure.add_gridspec(1, 4, left=0.072, right=0.985, top=top, bottom=0.552 / height, wspace=0.1)
    shared: Axes | None = None
    for column, axis in enumerate(panels(comparison, points.energy_j.max())):
        ax = figure.add_subplot(grid[0, column], sharey=shared)
        for method in methods:
            _curve(ax, points[points.method == method], axis, look[method], method)
        _finish(ax, axis, is_first=shared is None, label=label)
        shared = shared or ax
    low = floor(points[points.method.isin(methods)])
    if shared is not None:
        percent_axis(shared, shared.get_ylim()[0] if low is None else low, shared.get_ylim()[1])
    figure.text(0.012, 1 - 0.12 / height, heading, color=FAINT, va="center")
    top_legend(figure, below_in=above)
    footnote(figure, comparison.runs, comparison.clock)


def _curve(ax: Axes, curve: pd.DataFrame, axis: _Panel, style: Style, method: str) -> None:
    """A method's mean over one quantity, in its band."""
    x = curve[axis.field] * axis.scale
    marked = style.marker if len(curve) <= _MOST_MARKERS else None
    ax.plot(
        x,
        curve.f1_percent,
        color=style.colour,
        marker=marked or style.marker,
        linestyle=style.dash,
        markerfacecolor=style.fill,
        markersize=3,
        linewidth=1.1,
        label=method,
        markevery=1 if marked else -(-len(curve) // _MOST_MARKERS),
    )
    low, high = (curve.f1_percent - curve["std"]).clip(lower=0.0), (curve.f1_percent + curve["std"]).clip(upper=100.0)
    ax.fill_between(x, low, high, color=style.colour, alpha=0.12, linewidth=0)


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


@dataclass(frozen=True, kw_only=True, slots=True)
class _Panel:
    """A quantity on an x axis: its column, label and the factor to the label's unit."""

    field: str
    label: str
    scale: float = 1.0


# From so many joules on, axes are in kilojoules.
_KILO = 2000.0


def panels(comparison: Comparison, most_j: float) -> tuple[_Panel, ...]:
    """X axes; seconds and joules say whether they are simulated. ``most_j``: the largest number of joules."""
    kind = "" if comparison.clock == "measured" else "simulated "
    unit, scale = ("kJ", 1e-3) if most_j >= _KILO else ("J", 1.0)
    return (
        _Panel(field="aggregations", label="aggregations"),
        _Panel(field="time_s", label=f"{kind}seconds"),
        _Panel(field="energy_j", label=kind + unit, scale=scale),
        _Panel(field="bytes_up", label="MiB sent by the fleet", scale=1 / MIB),
    )


def _finish(ax: Axes, axis: _Panel, *, is_first: bool, label: str = _SCORES["f1"]) -> None:
    """Labels and a frame from 0 in which no marker is cut."""
    from matplotlib.ticker import MaxNLocator

    ax.set_xlabel(axis.label)
    right = max((float(box.x1) for box in (line.get_path().get_extents() for line in ax.lines)), default=0.0)
    ax.set_xlim(0, 1.06 * right if right > 0 else 1.0)
    ax.xaxis.set_major_locator(
        MaxNLocator(nbins=4, integer=axis.field == "aggregations", prune=None if is_first else "lower")
    )
    ax.tick_params(labelleft=is_first)
    if is_first:
        ax.set_ylabel(label)
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
    return max(0.0, low - 2), high + 2


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
    spread = "; bars, moved apart a little: sample standard deviation over runs" if last["std"].notna().any() else ""
    grey = "; grey: bounds" if last.is_bound.any() else ""
    return Figure(
        slug=slug,
        caption=f"F1 after the last round against simulated seconds, joules and uploaded bytes of the whole run"
        f"{_bootstraps(comparison)}; {experiment.title}. {_front_words(last)}"
        f"{spread}{grey}.{outside(last)}{_not_drawn(comparison, last)}{own_models(comparison)}",
        draw=partial(_pareto, comparison=comparison, last=last),
        width_in=TEXT_WIDTH_IN,
        height_in=2.2 + legend_in(list(last.method)),
        columns=tuple(numbers.columns),
        rows=numbers.astype(object).where(numbers.notna(), None).to_numpy().tolist(),
    )


def _front_words(last: pd.DataFrame) -> str:
    """Say what the line is, or that one method ends highest and costs least of everything, so that there is none."""
    ahead = last[last[[f"front_{key}" for key in COSTS]].eq(1).any(axis=1)].method
    if len(ahead) == 1:
        return f"No federated method ends above `{ahead.item()}` or costs less, so there is no Pareto front"
    return "Line: Pareto front of the federated methods, those that no other beats in both"


def _bootstraps(comparison: Comparison) -> str:
    """``, bootstrap included (its share of the seconds: `relief` 33 %)``; empty without one."""
    shares = [f"`{label}` {percent(comparison.bootstrap_percent(label))} %" for label in comparison.bootstrapped]
    return f", bootstrap included (its share of the seconds: {listed(shares)})" if shares else ""


def outside(last: pd.DataFrame) -> str:
    """The bounds below the frame, in words."""
    below = last[last.f1_percent < span(last)[0]]
    named = [f"`{end.method}` {end.f1_percent:.1f} %" for end in below.itertuples()]
    return f" Below the frame: {listed(named)}." if named else ""


def _not_drawn(comparison: Comparison, last: pd.DataFrame) -> str:
    """The methods without a point, with their F1 where there is one: pooled data cost no fleet anything."""
    rows = [row for row in comparison.rows if row.label not in set(last.method)]
    named = [
        f"`{row.label}`" + (f" {row.stats['f1_percent'].mean:.1f} %" if "f1_percent" in row.stats else "")
        for row in rows
    ]
    is_pool = bool(rows) and all(row.method.pooled for row in rows)
    why = "on one device with all data, so without the fleet's costs" if is_pool else "no F1, or no costs of a fleet"
    return f" Not drawn ({why}): {listed(named)}." if named else ""


def _pareto(figure: MplFigure, comparison: Comparison, last: pd.DataFrame) -> None:
    """The points of every method, their bars moved apart, so that of methods of equal cost none hides another's."""
    from matplotlib.transforms import ScaledTranslation

    look, height = all_styles(comparison), float(figure.get_size_inches()[1])
    top = 1 - (legend_in(list(last.method)) + 0.08) / height
    grid = figure.add_gridspec(1, 3, left=0.072, right=0.985, top=top, bottom=0.56 / height, wspace=0.1)
    shared: Axes | None = None
    floor = span(last)[0]
    for column, axis in enumerate(panels(comparison, last.energy_j.max())[1:]):
        ax = figure.add_subplot(grid[0, column], sharey=shared)
        line = last[last[f"front_{axis.field}"] == 1].sort_values(axis.field)
        ax.step(axis.scale * line[axis.field], line.f1_percent, where="post", color=FAINT, linewidth=0.9, zorder=1)
        for place, (_, end) in enumerate(last.iterrows()):
            x, colour = axis.scale * end[axis.field], FAINT if end.is_bound else look[end.method].colour
            if end["std"] > 0:
                shift_in = _BARS_IN * ((place + 0.5) / len(last) - 0.5)
                aside = ax.transData + ScaledTranslation(shift_in, 0.0, figure.dpi_scale_trans)
                ends_of = [end.f1_percent - end["std"], end.f1_percent + end["std"]]
                ax.plot([x, x], ends_of, color=colour, linewidth=0.7, alpha=0.6, zorder=1, transform=aside)
            ax.plot(
                x,
                end.f1_percent,
                color=colour,
                marker=look[end.method].marker,
                markersize=4.5,
                linewidth=0,
                markerfacecolor="white" if end.is_bound else look[end.method].fill,
                label=end.method,
                clip_on=bool(end.f1_percent < floor),
            )
        _finish(ax, axis, is_first=shared is None)
        shared = shared or ax
    if shared is not None:
        percent_axis(shared, *span(last))
    top_legend(figure)
    footnote(figure, comparison.runs, comparison.clock)
