"""F1 of methods: over rounds, seconds, joules and bytes; where each ends, with the Pareto front; with one sensor alone.

The sensors one at a time are the paper's Fig. 6, the curves its Fig. 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, NamedTuple

from relief_ray.report.comparison import Comparison
from relief_ray.report.document import Figure
from relief_ray.report.figures.style import (
    FAINT,
    INK,
    drawn,
    footnote,
    left_out,
    legend_in,
    name_ends,
    panels,
    part_of,
    percent_axis,
    plain_axes,
    save,
    sheet,
    short,
    styles,
    top_legend,
)
from relief_ray.report.remarks import own_models, span_text
from relief_ray.report.results import MIB
from relief_ray.report.statistics import Paired
from relief_ray.strategies import REFERENCE
from relief_ray.support.errors import listed
from relief_ray.support.files import write_atomic
from relief_ray.support.table import MINUS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as MplFigure
    from pandas import DataFrame

COSTS = ["time_s", "energy_j", "bytes_up"]
# Inches: curves or points, the differences below them, a row of these, the axis below, the axis at the left, a letter.
_HEIGHT_IN, _GAINS_IN, _ROW_IN, _BELOW_IN, _LEFT_IN, _LETTER_IN = 3.1, 0.55, 0.17, 0.552, 0.5, 0.066
# Where the differences begin, as a share of the width: their words stand left of it.
_GAINS_LEFT = 0.5
_MIN_POINTS = 4
_MOST_MARKERS = 12
# Label of the axis by the score's column.
_SCORES = {"f1_percent": "macro-F1, %", "f1_rare_percent": "rare-modality F1, %"}
_HATCHES = ("", "///", "|||", "\\\\\\", "xxx", "---")


def curve_points(comparison: Comparison, score: str = "f1_percent") -> DataFrame:
    """Means over a method's runs at every evaluated round; methods in table order, without those on pooled data.

    Columns: ``method``, ``round``, ``f1_percent``, ``std`` (sample standard deviation of F1 in points, 0 for one run),
    the fleet's sums so far ``time_s``, ``energy_j`` and ``bytes_up``, and ``num_runs``. ``score``: the headline, or
    ``f1_rare_percent``.
    """
    rounds = _of_fleets(comparison).dropna(subset=score)
    frame = rounds.assign(f1_percent=rounds[score])[["method", "round", "f1_percent", *COSTS]]
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
    """Write the figure of `compare`, F1 over rounds, and beside it, ``<name>.csv``.

    Bounds and methods beyond the sixth are in the CSV alone.

    Raises:
        UserError: matplotlib is missing, or an unknown file suffix.
    """
    points = curve_points(comparison)
    methods = drawn(comparison, {*points.method})
    with sheet(_height_in(len(_gains(comparison, methods, _QUANTITIES[0], "f1_percent")))) as figure:
        _draw_view(figure, comparison, points, "f1_percent", _QUANTITIES[0])
        save(figure, path)
    columns = ["method", "round", "f1_percent", "std", "time_s", "energy_j", "num_runs", "bytes_up"]
    text = _whole_bytes(points).to_csv(columns=columns, index=False, lineterminator="\n")
    write_atomic(path.with_suffix(".csv"), text.encode())
    return path


def progress(comparison: Comparison) -> Figure | None:
    """Fig. 5 of the paper (convergence), and the same against what was spent."""
    return _curves(comparison, "f1_percent", "F1 on the way")


def rare(comparison: Comparison) -> Figure | None:
    """Convergence of the F1 with the rare sensors alone; None where it was not recorded round by round."""
    return _curves(comparison, "f1_rare_percent", "F1 with the sensors of the smallest cohorts alone")


def _curves(comparison: Comparison, score: str, lead: str) -> Figure | None:
    if (points := curve_points(comparison, score))["round"].nunique() < 2:
        return None
    methods = drawn(comparison, {*points.method})
    shown = points[points.method.isin(methods)]
    gains = _gains(comparison, methods, _QUANTITIES[0], score)
    below_it = f"; below: differences to `{REFERENCE}` with their 95 % intervals" if gains else ""
    more = left_out(points.method, methods) + below(shown, floor(shown))
    own = own_models(comparison) if score == "f1_percent" else ""
    numbers = [len(comparison.runs_of(label)) for label in methods]
    means = f", mean of {span_text(numbers, 0)} runs" if max(numbers, default=0) > 1 else ""
    views = {
        quantity.word: partial(_draw_view, comparison=comparison, points=points, score=score, quantity=quantity)
        for quantity in _QUANTITIES
    }
    return Figure(
        caption=f"{lead}{means}{below_it}; {comparison.title}.{more}{own}",
        draw=views[_QUANTITIES[0].word],
        views=views,
        height_in=_height_in(len(gains)),
        columns=tuple(points.columns),
        rows=_whole_bytes(points).astype(object).to_numpy().tolist(),
    )


class _Quantity(NamedTuple):
    """A quantity on an x axis: the word of its switch, its column, its label, and the differences at as much of it."""

    word: str
    column: str
    label: str
    gains: Mapping[str, str]


# Differences after the last round, and of the columns at equal cost, so that they agree with the tables.
_QUANTITIES = (
    _Quantity("rounds", "round", "rounds", {"f1_percent": "f1_percent", "f1_rare_percent": "f1_rare_percent"}),
    _Quantity("seconds", "time_s", "seconds", {"f1_percent": "f1_at_seconds_percent"}),
    _Quantity("joules", "energy_j", "joules", {"f1_percent": "f1_at_joules_percent"}),
    _Quantity("MiB", "bytes_up", "MiB sent by the fleet", {}),
)


def _gains(comparison: Comparison, methods: Sequence[str], quantity: _Quantity, score: str) -> dict[str, Paired]:
    """Differences to FedAvg of methods that have one, at as much of the quantity; empty where none is taken there."""
    if (figure := quantity.gains.get(score)) is None:
        return {}
    rows = (row for row in comparison.rows if row.label in methods)
    return {row.label: gain for row in rows if (gain := row.over_reference(figure))}


def _height_in(num_gains: int) -> float:
    return _HEIGHT_IN + (_GAINS_IN + _ROW_IN * num_gains if num_gains else 0.0)


def _axes(figure: MplFigure, labels: Iterable[str], below_in: float = _BELOW_IN) -> tuple[Axes, float]:
    """Axes with room for the longest of the names at their right and so many inches below them; their right end."""
    width_in, height_in = map(float, figure.get_size_inches())
    names_in = _LETTER_IN * max((len(short(label)) for label in labels), default=0) + 0.12
    left, right = _LEFT_IN / width_in, 1 - names_in / width_in
    place = (left, below_in / height_in, right - left, 1 - (below_in + 0.08) / height_in)
    return figure.add_axes(place), right


def _draw_view(figure: MplFigure, comparison: Comparison, points: DataFrame, score: str, quantity: _Quantity) -> None:
    """Every method's mean over one quantity with its name at its end; below, the differences to FedAvg there."""
    from matplotlib.ticker import MaxNLocator

    looks, methods = styles(comparison.labels), drawn(comparison, {*points.method})
    shown = points[points.method.isin(methods)]
    gains = _gains(comparison, methods, quantity, score)
    below_in = _BELOW_IN + (_GAINS_IN - 0.1 + _ROW_IN * len(gains) if gains else 0.0)
    ax, right = _axes(figure, methods, below_in)
    scale, label = _scaled(quantity, comparison, shown)
    for method in methods:
        curve = shown[shown.method == method]
        ax.plot(
            curve[quantity.column] * scale,
            curve.f1_percent,
            **looks[method]._asdict(),
            markersize=3.2,
            linewidth=1.3,
            markevery=max(1, -(-len(curve) // _MOST_MARKERS)),
            gid=part_of(comparison, method, "curve"),
        )
    low, most = floor(shown), float((shown[quantity.column] * scale).max())
    ax.set_xlim(0, 1.02 * most if most > 0 else 1.0)
    percent_axis(ax, ax.get_ylim()[0] if low is None else low, ax.get_ylim()[1])
    _guessing(ax, comparison)
    ax.set(xlabel=label, ylabel=_SCORES[score])
    ax.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=quantity.column == "round"))
    plain_axes(ax)
    right_end = ax.get_xlim()[1]
    last = {method: shown[shown.method == method].iloc[-1] for method in methods}
    name_ends(ax, comparison, {method: (right_end, float(end.f1_percent)) for method, end in last.items()})
    if gains:
        height_in = float(figure.get_size_inches()[1])
        place = (_GAINS_LEFT, _BELOW_IN / height_in, right - _GAINS_LEFT, _ROW_IN * len(gains) / height_in)
        _draw_gains(figure.add_axes(place), comparison, gains, quantity)
    footnote(figure, comparison.runs, comparison.clock)


def _draw_gains(ax: Axes, comparison: Comparison, gains: Mapping[str, Paired], quantity: _Quantity) -> None:
    """A row per method: its difference to FedAvg with the interval, in points, and in words at the left."""
    looks = styles(comparison.labels)
    when = {"round": "after as many rounds", "time_s": "after the same time"}.get(quantity.column, "at equal joules")
    for place, (label, gain) in enumerate(gains.items()):
        colour, gid = looks[label].color, part_of(comparison, label, "row")
        if gain.low is not None and gain.high is not None:
            ax.plot([gain.low, gain.high], [place, place], color=colour, linewidth=1.3, gid=gid)
        ax.plot(gain.mean, place, marker=looks[label].marker, color=colour, markersize=4.5, gid=f"{gid}-dot")
        bounds = "" if gain.low is None else f" [{gain.low:+.1f}, {gain.high:+.1f}]"
        ax.annotate(
            f"{short(label)}  {gain.mean:+.1f}{bounds}".replace("-", MINUS),
            (0, place),
            xycoords=("axes fraction", "data"),
            xytext=(-6, 0),
            textcoords="offset points",
            ha="right",
            va="center",
            gid=f"{gid}-words",
        )
    ax.axvline(0.0, color=FAINT, linewidth=0.8)
    ax.set_ylim(len(gains) - 0.5, -0.5)
    ax.set_yticks([])
    ax.set_xlabel(f"points of F1 over {REFERENCE}, {when}")
    ax.spines[["top", "right", "left"]].set_visible(False)


def _guessing(ax: Axes, comparison: Comparison) -> None:
    """The F1 of a model that knows nothing, where it is within the frame."""
    known = [100 * chance for run in comparison.runs if (chance := run.small.chance) is not None]
    if known and ax.get_ylim()[0] <= (level := mean(known)) <= ax.get_ylim()[1]:
        ax.axhline(level, color=FAINT, linewidth=0.8, linestyle=":")
        place = (0.995, level)
        ax.annotate("guessing", place, xycoords=("axes fraction", "data"), color=FAINT, ha="right", va="bottom")


def _scaled(quantity: _Quantity, comparison: Comparison, frame: DataFrame) -> tuple[float, str]:
    """Factor to the unit of the x axis, and its label, which says whether seconds and joules are simulated."""
    if quantity.column == "round":
        return 1.0, quantity.label
    if quantity.column == "bytes_up":
        return 1 / MIB, quantity.label
    kind = "" if comparison.clock == "measured" else "simulated "
    is_kilo = quantity.column == "energy_j" and frame.energy_j.max() >= _KILO
    return (1e-3, f"{kind}kJ") if is_kilo else (1.0, f"{kind}{quantity.label}")


# From so many joules on, axes are in kilojoules.
_KILO = 2000.0


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
    spread = "; bars: sample standard deviation over runs" if last["std"].notna().any() else ""
    grey = "; grey: bounds" if last.is_bound.any() else ""

    views = {
        quantity.word: partial(_draw_ends, comparison=comparison, last=last, quantity=quantity)
        for quantity in _QUANTITIES[1:]
    }
    return Figure(
        caption="F1 after the last round against simulated seconds, joules and uploaded bytes of the whole run; "
        f"{comparison.title}. {_front_words(last)}{spread}{grey}."
        f"{below(last, span(last)[0])}{_not_drawn(comparison, last)}{own_models(comparison)}",
        draw=next(iter(views.values())),
        views=views,
        height_in=_HEIGHT_IN,
        columns=tuple(numbers.columns),
        rows=numbers.astype(object).where(numbers.notna(), None).to_numpy().tolist(),
    )


def _draw_ends(figure: MplFigure, comparison: Comparison, last: DataFrame, quantity: _Quantity) -> None:
    """A point per method with its name, its spread as a bar, and the front of the federated methods."""
    looks, (lowest, highest) = styles(comparison.labels), span(last)
    ax, _ = _axes(figure, last.method)
    scale, label = _scaled(quantity, comparison, last)
    front_of = last[last[f"front_{quantity.column}"] == 1].sort_values(quantity.column)
    ax.step(scale * front_of[quantity.column], front_of.f1_percent, where="post", color=INK, linewidth=1.2, zorder=1)
    for _, end in last.iterrows():
        x, style = scale * end[quantity.column], looks[end.method]
        style = style._replace(color=FAINT, markerfacecolor="white") if end.is_bound else style
        if end["std"] > 0:
            bar = [end.f1_percent - end["std"], end.f1_percent + end["std"]]
            gid = part_of(comparison, end.method, "bar")
            ax.plot([x, x], bar, color=style.color, linewidth=0.7, alpha=0.45, zorder=1, gid=gid)
        gid = part_of(comparison, end.method, "dot")
        ax.plot(x, end.f1_percent, **style._asdict(), markersize=5, clip_on=bool(end.f1_percent < lowest), gid=gid)
    ax.margins(x=0.08)
    percent_axis(ax, lowest, highest)
    ax.set(xlabel=f"{label} of the whole run", ylabel=_SCORES["f1_percent"])
    plain_axes(ax)
    ends = zip(scale * last[quantity.column], last.f1_percent, strict=True)
    name_ends(ax, comparison, dict(zip(last.method, ends, strict=True)))
    footnote(figure, comparison.runs, comparison.clock)


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
        sensors, fleet, look = comparison.sensors, comparison.fleet, styles(comparison.labels)
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
