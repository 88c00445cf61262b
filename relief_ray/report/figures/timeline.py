"""Device timeline of one round, FedAvg above RELIEF: every device's seconds by stage.

The stages of a bar are sums over the round's mini-batches, in the order download, forward, backward, optimizer, upload,
wait; on a device forward and backward alternate. Everything comes from ``RoundRecord.costs``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from relief_ray.errors import UserError
from relief_ray.records.costs import ClientCostRecord, CostRecord
from relief_ray.records.schema import RoundRecord
from relief_ray.report.captions import mark
from relief_ray.report.comparison import Comparison
from relief_ray.report.document import TEXT_WIDTH_IN, Figure, Number
from relief_ray.report.experiments import Experiment
from relief_ray.report.figures.style import FAINT, FOOTER_IN, INK, footnote, save, sheet
from relief_ray.report.runs import Loaded, config_text, fleet_of, subjects
from relief_ray.strategies import PRESETS, PROPOSED, REFERENCE, presets_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as MplFigure

# stage, colour, hatch
_STAGES = (
    ("download", "#56B4E9", ""),
    ("forward", "#F0E442", ""),
    ("backward", "#E69F00", "///"),
    ("optimizer", "#D55E00", ""),
    ("upload", "#0072B2", ""),
    ("wait", "#f1f1f1", "...."),
)

MAX_BARS = 12

_ACCENT = "#B34A00"


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """One device: its name, type and sensors, and seconds by stage in the order of ``_STAGES``."""

    name: str
    kind: str
    sensors: str
    seconds: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """One method's round."""

    title: str
    bars: tuple[Bar, ...]
    cost: CostRecord
    deadline_s: float | None


def pair(comparison: Comparison) -> tuple[Loaded, Loaded] | None:
    """FedAvg's run and RELIEF's (or the nearest of its kin) of the same fold and seed."""
    runs = {(loaded.label, loaded.replicate): loaded for loaded in comparison.runs}
    for label in _below():
        for (name, replicate), loaded in runs.items():
            if name == label and (REFERENCE, replicate) in runs:
                return runs[REFERENCE, replicate], loaded
    return None


def _below() -> tuple[str, ...]:
    """Methods for the lower half: RELIEF itself where it was run, else a variant, those with a deadline first."""
    variants = [PROPOSED, *presets_of("ablation of ours"), *presets_of("ablation")]
    return tuple(sorted(variants, key=lambda name: PRESETS[name].build().deadline_s is None))


def timeline(
    above: Loaded, below: Loaded, path: Path, clock: str | None = None, round_: int | None = None, note: str = ""
) -> Path:
    """Write the figure: ``above`` (FedAvg) over ``below`` (RELIEF); by default the last round, ``below``'s own clock.

    ``note``: what else the reader has to know of the rounds, e.g. that they were priced for another fleet.

    Raises:
        UserError: a run lacks that round or that clock; matplotlib is missing; an unknown file suffix.
    """
    chosen = clock or below.run.planning_model
    panels = [panel(loaded, chosen, round_) for loaded in (above, below)]
    with sheet(_height_of(panels)) as figure:
        _draw_panels(figure, panels, below, chosen, note=note)
        return save(figure, path)


def _height_of(panels: Sequence[Panel]) -> float:
    """Inches that the bars of both halves need."""
    return 1.23 + 0.19 * sum(len(p.bars) for p in panels)


def panel(loaded: Loaded, clock: str, round_: int | None = None) -> Panel:
    """The data of one half of the figure.

    Raises:
        UserError: the run lacks that round or that clock.
    """
    record = _round(loaded, round_)
    if clock not in record.costs:
        raise UserError(f"{loaded.where}: no clock {clock!r}; recorded are {', '.join(record.costs)}; choose one")
    cost = record.costs[clock]
    planned = clock == loaded.run.planning_model
    return Panel(
        title=loaded.run.method.title if loaded.label == loaded.run.strategy else loaded.label,
        bars=bars(loaded, cost),
        cost=cost,
        deadline_s=record.deadline_s if planned else None,
    )


def _round(loaded: Loaded, round_: int | None) -> RoundRecord:
    rounds = [r for r in loaded.rounds if round_ is None or r.round == round_]
    if not rounds:
        held = f"rounds up to {loaded.rounds[-1].round}" if loaded.rounds else "no round"
        raise UserError(f"{loaded.where}: no round {round_}, the run holds {held}; choose one of them")
    return rounds[-1]


def bars(loaded: Loaded, cost: CostRecord) -> tuple[Bar, ...]:
    """A bar per device; above ``MAX_BARS`` devices, the busiest of every type stands for its type."""
    fleet, subject = fleet_of(loaded), subjects(loaded)
    known = () if fleet is None else fleet.clients
    every = [
        Bar(
            name=f"subject {subject[c.client]}" if c.client in subject else f"client {c.client}",
            kind=known[c.client].device if known else "",
            sensors=" ".join(known[c.client].modalities) if known else "",
            seconds=_seconds(c),
        )
        for c in cost.clients
    ]
    return tuple(every) if len(every) <= MAX_BARS else _busiest(every)


def _seconds(cost: ClientCostRecord) -> tuple[float, ...]:
    t = cost.times
    return (t.down_s, t.forward_s, t.backward_s, t.optimizer_s, t.up_s, cost.wait_s)


def _busiest(every: Sequence[Bar]) -> tuple[Bar, ...]:
    kinds = dict.fromkeys((b.kind, b.sensors) for b in every)
    groups = [[b for b in every if (b.kind, b.sensors) == kind] for kind in kinds]
    return tuple(replace(min(group, key=lambda b: b.seconds[-1]), name=f"slowest of {len(group)}") for group in groups)


def _draw_panels(
    figure: MplFigure, panels: Sequence[Panel], source: Loaded, clock: str, bottom_in: float = 0.42, note: str = ""
) -> None:
    """Fill an empty sheet of ``_height_of`` inches, or more where ``bottom_in`` is."""
    heights = [len(p.bars) + 1.2 for p in panels]
    height = float(figure.get_size_inches()[1])
    grid = figure.add_gridspec(
        2,
        1,
        height_ratios=heights,
        left=0.235,
        right=0.985,
        top=1 - 0.50 / height,
        bottom=bottom_in / height,
        hspace=0.22,
    )
    longest = max(p.cost.round_s for p in panels)
    upper = figure.add_subplot(grid[0])
    axes = [upper, figure.add_subplot(grid[1], sharex=upper)]
    for ax, part in zip(axes, panels, strict=True):
        _bars(ax, part)
        ax.set_xlim(0, longest * 1.015)
    _titles(axes, panels)
    axes[0].tick_params(labelbottom=False)
    origin = "measured" if clock == "measured" else "simulated"
    axes[1].set_xlabel(f"seconds since the round began ({origin}{note and ', '}{note})")
    _saved(axes[1], panels)
    _legend(figure, source, clock, height)


def _bars(ax: Axes, part: Panel) -> None:
    for row, bar in enumerate(part.bars):
        start = 0.0
        for (_, colour, hatch), length in zip(_STAGES, bar.seconds, strict=True):
            ax.barh(row, length, left=start, height=0.78, color=colour, hatch=hatch, edgecolor="#9a9a9a", linewidth=0.3)
            start += length
    ax.set_ylim(len(part.bars) - 0.4, -0.6)
    ax.set_yticks(range(len(part.bars)), [b.name for b in part.bars])
    ax.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    _types(ax, part.bars)
    ax.axvline(part.cost.round_s, color=INK, linewidth=1.0, ymax=0.985)


def _types(ax: Axes, every: Sequence[Bar]) -> None:
    """Device type and sensors once beside their rows, with a bracket."""
    blend = ax.get_yaxis_transform()
    for kind, sensors in dict.fromkeys((b.kind, b.sensors) for b in every if b.kind):
        rows = [i for i, b in enumerate(every) if (b.kind, b.sensors) == (kind, sensors)]
        if rows != list(range(rows[0], rows[-1] + 1)):
            continue
        middle, gap = sum(rows) / len(rows), 0.42 if len(rows) > 1 else 0.0
        edge = [rows[0] - 0.36, rows[-1] + 0.36]
        ax.plot([-0.13, -0.13], edge, color=FAINT, linewidth=0.8, transform=blend, clip_on=False)
        ax.text(-0.14, middle - gap, f"Type {kind}", ha="right", va="center", transform=blend)
        if gap:
            ax.text(-0.14, middle + gap, sensors, ha="right", va="center", transform=blend, color=FAINT)


def _titles(axes: Sequence[Axes], panels: Sequence[Panel]) -> None:
    reference = panels[0].cost
    for ax, part in zip(axes, panels, strict=True):
        speedup, joules = reference.round_s / part.cost.round_s, part.cost.energy_j
        saved = 100 * (1 - joules / reference.energy_j)
        faster = f"{speedup:.2f}× faster" if speedup >= 1 else f"{1 / speedup:.2f}× slower"
        gain = f"   {faster}, {abs(saved):.0f} % {'less' if saved >= 0 else 'more'} energy"
        ax.set_title(f"{part.title}", loc="left", fontweight="bold", pad=4)
        ax.set_title(
            f"{part.cost.round_s:.2f} s, {joules:.0f} J a round{gain if part is not panels[0] else ''}",
            loc="right", pad=4, fontsize=8,
        )  # fmt: skip


def _saved(ax: Axes, panels: Sequence[Panel]) -> None:
    """``T*`` and the time that the method saves, inside the lower panel."""
    first, second = panels
    full, end, middle = first.cost.round_s, second.cost.round_s, (len(second.bars) - 1) / 2
    gap = full - end
    if second.deadline_s is not None and second.deadline_s <= full:
        ax.axvline(second.deadline_s, color=_ACCENT, linewidth=1.6, linestyle=(0, (3, 2)))
        ax.text(second.deadline_s + 0.01 * full, -0.1, f"T* = {second.deadline_s:.2f} s", color=_ACCENT, va="center")
    if gap < 0.15 * full:
        return
    ax.axvline(full, color=FAINT, linewidth=0.8, linestyle=":")
    arrow = {"arrowstyle": "<->", "color": FAINT, "lw": 0.8, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", xy=(end, middle), xytext=(full, middle), arrowprops=arrow)
    ax.text(end + gap / 2, middle - 0.25, f"{gap:.2f} s saved", ha="center", va="bottom")


def _legend(figure: MplFigure, source: Loaded, clock: str, height: float) -> None:
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="#9a9a9a", linewidth=0.4, label=name)
        for name, colour, hatch in _STAGES
    ]
    figure.legend(
        handles=handles,
        loc="upper right",
        bbox_to_anchor=(0.985, 1 - 0.02 / height),
        ncols=len(_STAGES),
        frameon=False,
        handlelength=1.5, columnspacing=1.1, handletextpad=0.5, borderaxespad=0.2,
    )  # fmt: skip
    name = f"{mark(source)}{config_text(source.run, 'data.name')}, clock {clock}"
    figure.text(0.012, 1 - 0.115 / height, name, ha="left", va="center", color=FAINT)


def timeline_figure(experiment: Experiment, slug: str) -> Figure | None:
    """The last round of one pair of runs."""
    comparison = experiment.main
    runs = None if comparison is None else pair(comparison)
    if comparison is None or runs is None:
        return None
    panels = [panel(loaded, comparison.clock) for loaded in runs]
    return Figure(
        slug=slug,
        caption=f"The last round device by device, FedAvg above {panels[1].title} (fold {runs[1].replicate[0]}, seed "
        f"{runs[1].replicate[2]}); {experiment.title}. Stages are sums over the round's mini-batches.",
        draw=partial(_draw, panels=panels, source=runs[1], experiment=experiment, clock=comparison.clock),
        width_in=TEXT_WIDTH_IN,
        height_in=_height_of(panels) + FOOTER_IN,
        columns=("panel", "device", "type", *(f"{name}_s" for name, _, _ in _STAGES)),
        rows=[_row(p, i) for p in panels for i in range(len(p.bars))],
    )


def _row(part: Panel, i: int) -> list[Number]:
    bar = part.bars[i]
    return [part.title, bar.name, bar.kind, *bar.seconds]


def _draw(figure: MplFigure, panels: list[Panel], source: Loaded, experiment: Experiment, clock: str) -> None:
    _draw_panels(figure, panels, source, clock, bottom_in=0.42 + FOOTER_IN)
    footnote(figure, experiment.runs, clock)
