"""F1 of methods: over rounds, seconds, joules and bytes; where each ends, with the Pareto front; with one sensor alone.

The sensors one at a time are the paper's Fig. 6, the curves its Fig. 5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from relief_ray.report.comparison import Comparison
from relief_ray.report.document import Figure
from relief_ray.report.figures.style import (
    FAINT,
    Style,
    all_styles,
    drawn,
    footnote,
    left_out,
    legend_in,
    panels,
    percent_axis,
    plain_axes,
    save,
    sheet,
    top_legend,
)
from relief_ray.report.remarks import mark, own_models, span_text
from relief_ray.report.results import MIB
from relief_ray.report.runs import split_name
from relief_ray.support.errors import listed
from relief_ray.support.text import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as MplFigure
    from pandas import DataFrame

COSTS = ["time_s", "energy_j", "bytes_up"]
_HEIGHT_IN = 2.35
_HEADING_IN = 0.2
_BELOW_IN = 0.552
_MIN_POINTS = 4
_MOST_MARKERS = 12
# Inches over which the bars of methods of equal cost are moved apart: about a marker.
_BARS_IN = 0.08
# Label of the axis by the score's column.
_SCORES = {"f1_percent": "macro-F1, %", "f1_rare_percent": "rare-modality F1, %"}
_HATCHES = ("", "///", "...", "\\\\\\", "xxx", "---")


def curve_points(comparison: Comparison, score: str = "f1_percent") -> DataFrame:
    """Means over a method's runs at every evaluated round; methods in table order, without those on pooled data.

    Columns: ``method``, ``round``, ``f1_percent``, ``std`` (sample standard deviation of F1 in points, 0 for one run),
    ``aggregations`` (rounds, the bootstrap counted), the fleet's sums so far ``time_s``, ``energy_j`` and ``bytes_up``,
    and ``num_runs``. ``score``: the headline, or ``f1_rare_percent``.
    """
    rounds = _of_fleets(comparison).query("round > 0").dropna(subset=score)
    frame = rounds.assign(f1_percent=rounds[score])[["method", "round", "f1_percent", "aggregations", *COSTS]]
    frame["method"] = frame["method"].astype("category").cat.set_categories(comparison.labels)
    groups = frame.groupby(["method", "round"], observed=True)
    points = groups.mean()
    points.insert(1, "std", groups["f1_percent"].std().fillna(0.0))
    return points.assign(num_runs=groups.size()).reset_index().astype({"method": str})


def _of_fleets(comparison: Comparison) -> DataFrame:
    """The rounds of runs that are not on pooled data, which cost no fleet anything."""
    table = comparison.table
    return comparison.rounds[comparison.rounds["run"].isin(table.loc[~table["pooled"], "run"])]


def _whole_bytes(frame: DataFrame) -> DataFrame:
    """Return the frame for a CSV file, where bytes are whole numbers: a mean over runs is rounded to one."""
    return frame.assign(bytes_up=frame["bytes_up"].round().astype("int64"))


def curves(comparison: Comparison, path: Path) -> Path:
    """Write the figure of `compare` and, beside it, ``<name>.csv``.

    Bounds and methods beyond the sixth are in the CSV alone.

    Raises:
        UserError: matplotlib is missing, or an unknown file suffix.
    """
    first, points = comparison.runs[0], curve_points(comparison)
    name = f"{mark(first)}{first.data_title}, {split_name(first.text('data.split'))}"
    with sheet(_HEIGHT_IN + _HEADING_IN) as figure:
        _draw_curves(figure, comparison, points, heading=name + _bands(comparison, drawn(comparison, {*points.method})))
        save(figure, path)
    columns = ["method", "round", "f1_percent", "std", "aggregations", "time_s", "energy_j", "num_runs", "bytes_up"]
    _whole_bytes(points).to_csv(path.with_suffix(".csv"), columns=columns, index=False, lineterminator="\n")
    return path


def _bands(comparison: Comparison, methods: Sequence[str]) -> str:
    """Half-sentence on means and bands; empty where every method has one run."""
    numbers = [len(comparison.runs_of(label)) for label in methods]
    if max(numbers, default=0) < 2:
        return ""
    return f"; mean of {span_text(numbers, 0)} runs, bands: ± sample standard deviation"


def progress(comparison: Comparison) -> Figure | None:
    """Fig. 5 of the paper (convergence), and the same against what was spent."""
    lead = "F1 over aggregations, seconds, joules and uploaded bytes of the whole fleet"
    return _curves(comparison, "f1_percent", lead)


def rare(comparison: Comparison) -> Figure | None:
    """Convergence of the F1 with the rare sensors alone; None where it was not recorded round by round."""
    lead = "F1 with the sensors of the smallest cohorts alone, over aggregations and costs of the whole fleet"
    return _curves(comparison, "f1_rare_percent", lead)


def _curves(comparison: Comparison, score: str, lead: str) -> Figure | None:
    if (points := curve_points(comparison, score))["round"].nunique() < 2:
        return None
    methods = drawn(comparison, {*points.method})
    shown = points[points.method.isin(methods)]
    # A bootstrap makes one aggregation more.
    ahead = [f"`{label}`" for label in comparison.bootstrapped if label in methods]
    counting = f", the bootstrap of {listed(ahead)} counted as one" if ahead else ""
    more = left_out(points.method, methods) + below(shown, floor(shown))
    own = own_models(comparison) if score == "f1_percent" else ""
    return Figure(
        caption=f"{lead}{counting}; {comparison.title}{_bands(comparison, methods)}.{more}{own}",
        draw=partial(_draw_curves, comparison=comparison, points=points, label=_SCORES[score]),
        height_in=_HEIGHT_IN,
        columns=tuple(points.columns),
        rows=_whole_bytes(points).astype(object).to_numpy().tolist(),
    )


def _draw_curves(
    figure: MplFigure,
    comparison: Comparison,
    points: DataFrame,
    heading: str = "",
    label: str = _SCORES["f1_percent"],
) -> None:
    """One panel per quantity; ``heading`` stands at the top and takes ``_HEADING_IN`` inches."""
    styles, methods = all_styles(comparison), drawn(comparison, {*points.method})
    shown = points[points.method.isin(methods)]

    def draw(ax: Axes, quantity: _Quantity) -> None:
        for method in methods:
            _curve(ax, shown[shown.method == method], quantity, styles[method], method)

    quantities = _quantities(comparison, points.energy_j.max())
    ax = _against(figure, comparison, quantities, methods, draw, label, _HEADING_IN if heading else 0.0)
    low = floor(shown)
    percent_axis(ax, ax.get_ylim()[0] if low is None else low, ax.get_ylim()[1])
    figure.text(0.012, 1 - 0.12 / float(figure.get_size_inches()[1]), heading, color=FAINT, va="center")


def _curve(ax: Axes, curve: DataFrame, quantity: _Quantity, style: Style, method: str) -> None:
    """A method's mean over one quantity, in its band."""
    x = curve[quantity.column] * quantity.scale
    ax.plot(
        x,
        curve.f1_percent,
        **style._asdict(),
        markersize=3,
        linewidth=1.1,
        label=method,
        markevery=max(1, -(-len(curve) // _MOST_MARKERS)),
    )
    low, high = (curve.f1_percent - curve["std"]).clip(lower=0.0), (curve.f1_percent + curve["std"]).clip(upper=100.0)
    ax.fill_between(x, low, high, color=style.color, alpha=0.12, linewidth=0)


def floor(points: DataFrame) -> float | None:
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


def below(points: DataFrame, low: float | None) -> str:
    """The points that the frame leaves out, in words."""
    named = [
        f"`{p.method}` {p.f1_percent:.1f} %" + (f" at round {p.round}" if "round" in points else "")
        for p in points.itertuples()
        if low is not None and p.f1_percent < low
    ]
    return f" Below the frame: {listed(named)}." if named else ""


class _Quantity(NamedTuple):
    """A quantity on an x axis: its column, label and the factor to the label's unit."""

    column: str
    label: str
    scale: float = 1.0


# From so many joules on, axes are in kilojoules.
_KILO = 2000.0


def _quantities(comparison: Comparison, most_j: float) -> tuple[_Quantity, ...]:
    """X axes; seconds and joules say whether they are simulated. ``most_j``: the largest number of joules."""
    kind = "" if comparison.clock == "measured" else "simulated "
    unit, scale = ("kJ", 1e-3) if most_j >= _KILO else ("J", 1.0)
    return (
        _Quantity("aggregations", "aggregations"),
        _Quantity("time_s", f"{kind}seconds"),
        _Quantity("energy_j", kind + unit, scale),
        _Quantity("bytes_up", "MiB sent by the fleet", 1 / MIB),
    )


def _against(
    figure: MplFigure,
    comparison: Comparison,
    quantities: Sequence[_Quantity],
    methods: Sequence[str],
    draw: Callable[[Axes, _Quantity], None],
    label: str = _SCORES["f1_percent"],
    heading_in: float = 0.0,
) -> Axes:
    """A panel per quantity, all with one F1 axis, in frames from 0 in which no marker is cut; returns the first one."""
    from matplotlib.ticker import MaxNLocator

    above_in = legend_in(methods) + 0.08 + heading_in
    axes = panels(figure, len(quantities), above_in=above_in, below_in=_BELOW_IN, sharey=True)
    axes[0].set_ylabel(label)
    for ax, quantity in zip(axes, quantities, strict=True):
        draw(ax, quantity)
        ax.set_xlabel(quantity.label)
        right = max((float(line.get_path().get_extents().x1) for line in ax.lines), default=0.0)
        ax.set_xlim(0, 1.06 * right if right > 0 else 1.0)
        prune = None if ax is axes[0] else "lower"
        ax.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=quantity.column == "aggregations", prune=prune))
        plain_axes(ax)
    top_legend(figure, below_in=heading_in)
    footnote(figure, comparison.runs, comparison.clock)
    return axes[0]


def ends(comparison: Comparison) -> DataFrame:
    """Last state of every method with a fleet: mean F1 with its ``std`` in percent, and mean totals of the fleet.

    Columns: ``method``, ``is_bound``, ``f1_percent``, ``std`` (NaN for one run), ``time_s``, ``energy_j``,
    ``bytes_up``, and ``front_<cost>``: 1 for a federated method that no other beats in F1 and that cost.
    """
    import pandas as pd

    totals = _of_fleets(comparison).drop_duplicates("run", keep="last").groupby("method")[COSTS].mean()
    rows = [
        (row.label, row.is_bound, f1.mean, f1.std)
        for row in comparison.rows
        if row.label in totals.index and (f1 := row.stats.get("f1_percent")) is not None
    ]
    frame = pd.DataFrame(rows, columns=["method", "is_bound", "f1_percent", "std"]).join(totals, on="method")
    frame = frame.astype({"is_bound": bool, "std": float})
    for cost in COSTS:
        points = pd.Series(zip(frame[cost], frame.f1_percent, strict=True))
        frame[f"front_{cost}"] = (points.isin(front(points[~frame.is_bound].tolist())) & ~frame.is_bound).astype(int)
    return frame


def span(last: DataFrame) -> tuple[float, float]:
    """Limits of the F1 axis: the federated methods with their spread; a bound far away must not squeeze them."""
    shown = last[~last.is_bound] if not last.is_bound.all() else last
    low = (shown.f1_percent - shown["std"].fillna(0.0)).min()
    high = (last.f1_percent + last["std"].fillna(0.0)).max()
    return max(0.0, low - 2), high + 2


def front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points (cost, score) that no other beats: none costs as little and scores as high."""
    return [p for p in points if not any(o != p and o[0] <= p[0] and o[1] >= p[1] for o in points)]


def pareto(comparison: Comparison) -> Figure | None:
    """Final F1 against what the whole run cost, and the front of the federated methods."""
    if len(last := ends(comparison)) < 2:
        return None
    numbers = _whole_bytes(last.drop(columns="is_bound"))
    shares = [f"`{label}` {percent(comparison.bootstrap_percent(label))} %" for label in comparison.bootstrapped]
    included = f", bootstrap included (its share of the seconds: {listed(shares)})" if shares else ""
    spread = "; bars, moved apart a little: sample standard deviation over runs" if last["std"].notna().any() else ""
    grey = "; grey: bounds" if last.is_bound.any() else ""

    def draw(figure: MplFigure) -> None:
        """The points of every method, their bars moved apart, so that of methods of equal cost none hides another's."""
        from matplotlib.transforms import ScaledTranslation

        styles, (lowest, highest) = all_styles(comparison), span(last)

        def panel(ax: Axes, quantity: _Quantity) -> None:
            cost = quantity.column
            line = last[last[f"front_{cost}"] == 1].sort_values(cost)
            ax.step(quantity.scale * line[cost], line.f1_percent, where="post", color=FAINT, linewidth=0.9, zorder=1)
            for place, (_, end) in enumerate(last.iterrows()):
                x, style = quantity.scale * end[cost], styles[end.method]
                style = style._replace(color=FAINT, markerfacecolor="white") if end.is_bound else style
                if end["std"] > 0:
                    shift_in = _BARS_IN * ((place + 0.5) / len(last) - 0.5)
                    aside = ax.transData + ScaledTranslation(shift_in, 0.0, figure.dpi_scale_trans)
                    bar = [end.f1_percent - end["std"], end.f1_percent + end["std"]]
                    ax.plot([x, x], bar, color=style.color, linewidth=0.7, alpha=0.6, zorder=1, transform=aside)
                ax.plot(
                    x,
                    end.f1_percent,
                    **style._asdict(),
                    markersize=4.5,
                    linewidth=0,
                    label=end.method,
                    clip_on=bool(end.f1_percent < lowest),
                )

        quantities = _quantities(comparison, last.energy_j.max())[1:]
        percent_axis(_against(figure, comparison, quantities, list(last.method), panel), lowest, highest)

    return Figure(
        caption="F1 after the last round against simulated seconds, joules and uploaded bytes of the whole run"
        f"{included}; {comparison.title}. {_front_words(last)}{spread}{grey}."
        f"{below(last, span(last)[0])}{_not_drawn(comparison, last)}{own_models(comparison)}",
        draw=draw,
        height_in=2.2 + legend_in(list(last.method)),
        columns=tuple(numbers.columns),
        rows=numbers.astype(object).where(numbers.notna(), None).to_numpy().tolist(),
    )


def _front_words(last: DataFrame) -> str:
    """Say what the line is, or that one method ends highest and costs least of everything, so that there is none."""
    ahead = last[last[[f"front_{key}" for key in COSTS]].eq(1).any(axis=1)].method
    if len(ahead) == 1:
        return f"No federated method ends above `{ahead.item()}` or costs less, so there is no Pareto front"
    return "Line: Pareto front of the federated methods, those that no other beats in both"


def _not_drawn(comparison: Comparison, last: DataFrame) -> str:
    """The methods without a point, with their F1 where there is one: pooled data cost no fleet anything."""
    rows = [row for row in comparison.rows if row.label not in set(last.method)]
    named = [f"`{row.label}`" + ("" if (f1 := row.mean("f1_percent")) is None else f" {f1:.1f} %") for row in rows]
    is_pool = all(row.method.pooled for row in rows)
    why = "on one device with all data, so without the fleet's costs" if is_pool else "no F1, or no costs of a fleet"
    return f" Not drawn ({why}): {listed(named)}." if named else ""


def modalities(comparison: Comparison) -> Figure | None:
    """F1 of the canonical model seen through one sensor at a time; None where no method has such a model."""
    if not comparison.sensors:
        return None
    rows = [
        (row.label, sensor, stat.mean, stat.std, stat.num)
        for row in comparison.rows
        for sensor in comparison.sensors
        if (stat := row.stats.get(f"f1_{sensor}_percent")) is not None
    ]
    fig = "" if comparison.is_own_data else " (the paper's Fig. 6)"
    lines = " over runs, lines: sample standard deviation" if any(row[3] is not None for row in rows) else ""
    has_owners, labels = comparison.fleet is not None, {row[0] for row in rows}
    methods = drawn(comparison, labels)
    owned = " The number of clients that own it stands under a modality's name." if has_owners else ""

    def draw(figure: MplFigure) -> None:
        sensors, fleet, look = comparison.sensors, comparison.fleet, all_styles(comparison)
        width = 0.8 / max(1, len(methods))
        (ax,) = panels(figure, 1, above_in=legend_in(methods) + 0.08, below_in=_BELOW_IN)
        for i, method in enumerate(methods):
            bars = [row for row in rows if row[0] == method]
            ax.bar(
                [sensors.index(row[1]) + (i - (len(methods) - 1) / 2) * width for row in bars],
                [row[2] for row in bars],
                width * 0.92,
                yerr=[row[3] or 0.0 for row in bars],
                color=look[method].color,
                label=method,
                hatch=_HATCHES[i % len(_HATCHES)],
                edgecolor="white",
                linewidth=0.3,
                error_kw={"elinewidth": 0.7},
            )
        owners = [f"\n{len(fleet.cohort(m))} of {len(fleet)} clients" if fleet else "" for m in sensors]
        ax.set_xticks(range(len(sensors)), [m + number for m, number in zip(sensors, owners, strict=True)])
        ax.set_ylim(bottom=0)
        ax.set_ylabel(_SCORES["f1_percent"])
        plain_axes(ax, "y")
        top_legend(figure)
        footnote(figure, comparison.runs)

    return Figure(
        caption=f"F1 with one modality alone{fig}; {comparison.title}. Bars: mean{lines}.{owned}"
        f"{left_out(labels, methods)}",
        draw=draw,
        height_in=2.2,
        columns=("method", "modality", "f1_percent", "std", "num_runs"),
        rows=rows,
    )
