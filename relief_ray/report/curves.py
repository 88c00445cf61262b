"""F1 against rounds, simulated seconds and joules: small multiples with their numbers as CSV beside the figure."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING

from relief_ray.report.canvas import COLOURS, DASHES, FAINT, MARKERS, save, sheet
from relief_ray.report.compare import Comparison
from relief_ray.report.facts import mark
from relief_ray.report.labels import split_name
from relief_ray.report.load import Loaded, text
from relief_ray.report.summary import is_pooled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
