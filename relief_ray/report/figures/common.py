"""What all figures share: methods, their colours, markers and dashes, and the footer that says where data are from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from relief_ray.report.canvas import COLOURS, DASHES, FAINT, MARKERS
from relief_ray.report.compare import Comparison
from relief_ray.report.experiments import Experiment
from relief_ray.report.facts import listed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_METHODS = 6
# The paper's five representative methods first, then the variants.
FIRST = ("fedavg", "relief", "fedel", "harmony", "darkdistill", "v1", "v2", "v3", "fedprox")
FOOTER_IN = 0.16
GRID = "#e4e4e4"


@dataclass(frozen=True, kw_only=True, slots=True)
class Style:
    """How one method is drawn, in every figure of a report alike."""

    colour: str
    marker: str
    dash: str | tuple[int, tuple[int, ...]]
    fill: str


def styles(labels: Sequence[str]) -> Mapping[str, Style]:
    """A style per method; beyond eight, markers are hollow."""
    found = {}
    for i, label in enumerate(ordered(labels)):
        k = i % len(COLOURS)
        fill = COLOURS[k] if i < len(COLOURS) else "white"
        found[label] = Style(colour=COLOURS[k], marker=MARKERS[k], dash=DASHES[k], fill=fill)
    return found


def ordered(labels: Sequence[str]) -> list[str]:
    """Those of ``FIRST`` first, the others as they come."""
    return sorted(labels, key=lambda m: FIRST.index(m) if m in FIRST else len(FIRST))


def drawn(comparison: Comparison) -> list[str]:
    """The methods that figures with lines or bars show: no bounds, at most six."""
    return ordered([r.label for r in comparison.rows if not r.is_bound])[:MAX_METHODS]


def all_styles(comparison: Comparison) -> Mapping[str, Style]:
    """Styles of every method of a comparison."""
    return styles([r.label for r in comparison.rows])


def footnote(figure: Figure, experiment: Experiment, clock: str | None = None) -> None:
    """One small line: clock, machine, threads, torch, engine, origin of the data, sources."""
    figure.text(
        0.008, 0.05 / float(figure.get_size_inches()[1]), small_print(experiment, clock), color=FAINT, fontsize=5
    )


def small_print(experiment: Experiment, clock: str | None = None) -> str:
    """The text of ``footnote``."""
    run = experiment.runs[0].run
    machine, number = run.machine, len(experiment.runs)
    kind = "" if clock is None else f"clock {clock} ({'measured' if clock == 'measured' else 'simulated'}) | "
    code = listed(d[:8] for d in experiment.digests)
    return (
        f"{kind}{number} runs | {machine.cpu}, {machine.num_cores} cores, {machine.num_threads} thread(s) | torch "
        f"{machine.torch} | engine {run.engine} | {run.data_origin} data | sources {code}"
    )


def plain_axes(ax: Axes) -> None:
    """A light grid, two spines."""
    ax.grid(color=GRID, linewidth=0.5)
    ax.set_axisbelow(True)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


def top_legend(figure: Figure, columns: int) -> None:
    """One legend above all panels, from the first panel's handles."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="upper left", bbox_to_anchor=(0.05, 0.995), ncols=columns, frameon=False, handlelength=2.6,
        columnspacing=1.2, handletextpad=0.4, borderaxespad=0.1,
    )  # fmt: skip
