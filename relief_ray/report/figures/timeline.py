"""Device timeline of one round of each of some methods, FedAvg above the others: every device's seconds by stage.

The stages of a bar are sums over the round's mini-batches, in the order download, forward, backward, optimizer, upload,
wait; on a device forward and backward alternate. Everything comes from ``RoundRecord.costs``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from relief_ray.core.messages import ClientCost, RoundCost
from relief_ray.records.schema import RoundRecord
from relief_ray.report.comparison import Comparison, Experiment, data_title, is_own_method
from relief_ray.report.document import TEXT_WIDTH_IN, Figure
from relief_ray.report.figures.style import FAINT, FOOTER_IN, INK, footnote, save, sheet
from relief_ray.report.remarks import mark
from relief_ray.report.runs import Loaded, fleet_of, is_pooled, run_value
from relief_ray.strategies import PRESETS, PROPOSED, REFERENCE, presets_of
from relief_ray.support.errors import UserError, listed
from relief_ray.support.table import Number
from relief_ray.support.text import percent, with_title

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
_MAX_PANELS = 3

_ACCENT = "#B34A00"
# Inches: a bar, the title of a panel, the strip of T* above the bars, axis and its label, legend, a letter of 8 points.
_BAR_IN, _WIDE_BAR_IN, _TITLE_IN, _DEADLINE_IN, _AXIS_IN, _LEGEND_IN, _LETTER_IN = (
    0.19,
    0.26,
    0.27,
    0.16,
    0.42,
    0.42,
    0.066,
)
_FEW_BARS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """One device: its name, type and sensors, and seconds by stage in the order of ``_STAGES``."""

    name: str
    kind: str
    sensors: str
    seconds: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """One method's round.

    Attributes:
        title: name of the method.
        bars: its devices.
        cost: the round by the clock.
        deadline_s: ``T*``; None without one.
        counts_groups: ``T*`` counts groups, each at its device's mean time, so that a round may end later.
        note: data set and clock, for the corner of the figure.
        is_measured: seconds come from a device profile.
    """

    title: str
    bars: tuple[Bar, ...]
    cost: RoundCost
    deadline_s: float | None
    counts_groups: bool = False
    note: str = ""
    is_measured: bool = False

    @property
    def height_in(self) -> float:
        """Inches of its title and bars."""
        each = _WIDE_BAR_IN if len(self.bars) <= _FEW_BARS else _BAR_IN
        return _TITLE_IN + _DEADLINE_IN * (self.deadline_s is not None) + each * (len(self.bars) + 0.3)


def featured(comparison: Comparison) -> list[Loaded]:
    """Runs of one fold and seed for the figure: FedAvg's, RELIEF's (or the nearest of its kin), a user's own methods'.

    At most three. Where none of these but FedAvg was run, the first other method stands below it. Runs on pooled data
    and committed cells have no devices to draw.
    """
    runs = [r for r in comparison.runs if not is_pooled(r) and r.rounds[-1].costs[comparison.clock].clients]
    labels = [row.label for row in comparison.rows if not row.is_bound and any(r.label == row.label for r in runs)]
    kin = [label for label in _kin() if label in labels][:1]
    others = [label for label in labels if label != REFERENCE and label not in kin]
    mine = [label for label in others if is_own_method(label)]
    wanted = [label for label in (REFERENCE,) if label in labels] + kin + mine
    wanted = (wanted if len(wanted) > 1 else [*wanted, *others[: 2 - len(wanted)]])[:_MAX_PANELS]
    draws = [{r.replicate for r in runs if r.label == label} for label in wanted]
    shared = min(set.intersection(*draws), default=None) if draws else None
    return [next(r for r in runs if r.label == v and (shared is None or r.replicate == shared)) for v in wanted]


def _kin() -> tuple[str, ...]:
    """RELIEF, then its variants, those with a deadline first."""
    variants = [PROPOSED, *presets_of("ablation of ours"), *presets_of("ablation")]
    return tuple(sorted(variants, key=lambda name: not PRESETS[name].has_deadline))


def timeline(
    rounds: Sequence[Loaded | Panel],
    path: Path,
    clock: str | None = None,
    round_: int | None = None,
    note: str = "",
) -> Path:
    """Write the figure: a panel per round, the first one (FedAvg's) is what speed and joules are compared with.

    Args:
        rounds: runs, of which the last round or ``round_`` is drawn, or panels, e.g. of a what-if.
        path: the file; its suffix names the format.
        clock: time model of the runs; by default the one that the last run planned with.
        round_: number of the round.
        note: what else a reader has to know, e.g. that the rounds were priced for another fleet.

    Raises:
        UserError: a run lacks that round, that clock or devices; matplotlib is missing; an unknown file suffix.
    """
    runs = [r for r in rounds if isinstance(r, Loaded)]
    chosen = clock or (runs[-1].run.planning_model if runs else "")
    panels = [r if isinstance(r, Panel) else panel(r, chosen, round_) for r in rounds]
    with sheet(_height_of(panels)) as figure:
        _draw_panels(figure, panels, note)
        return save(figure, path)


def _height_of(panels: Sequence[Panel]) -> float:
    """Inches of legend, panels and axis."""
    return _LEGEND_IN + sum(p.height_in for p in panels) + _AXIS_IN


def panel(loaded: Loaded, clock: str, round_: int | None = None) -> Panel:
    """The data of one part of the figure.

    Raises:
        UserError: the run lacks that round or that clock, or its devices.
    """
    record = _round(loaded, round_)
    if clock not in record.costs:
        raise UserError(f"{loaded.where}: no clock {clock!r}; recorded are {', '.join(record.costs)}; choose one")
    cost = record.costs[clock]
    if not cost.clients:
        raise UserError(f"{loaded.where}: holds no devices (a committed cell); draw a run folder")
    planned = clock == loaded.run.planning_model
    return Panel(
        title=_title(loaded),
        bars=bars(loaded, cost),
        cost=cost,
        deadline_s=record.deadline_s if planned else None,
        counts_groups=run_value(loaded.run, "strategy.fill") == "count",
        note=f"{mark(loaded)}{data_title(loaded.run)}, clock {clock}",
        is_measured=clock == "measured",
    )


def _title(loaded: Loaded) -> str:
    """The name that one types, as in tables, with the title where that says more; a variant has a name alone."""
    title, is_preset = loaded.run.method.title, loaded.label == loaded.run.strategy
    named = with_title(loaded.label, title)
    return named if is_preset and named != title else loaded.label


def _round(loaded: Loaded, round_: int | None) -> RoundRecord:
    rounds = [r for r in loaded.rounds if round_ is None or r.round == round_]
    if not rounds:
        held = f"rounds up to {loaded.rounds[-1].round}" if loaded.rounds else "no round"
        raise UserError(f"{loaded.where}: no round {round_}, the run holds {held}; choose one of them")
    return rounds[-1]


def bars(loaded: Loaded, cost: RoundCost) -> tuple[Bar, ...]:
    """A bar per device; above ``MAX_BARS`` devices, the busiest of every type stands for its type."""
    fleet = fleet_of(loaded)
    known = () if fleet is None else fleet.clients
    every = [
        Bar(
            name=f"client {c.client}",
            kind=known[c.client].device if known else "",
            sensors=" ".join(known[c.client].modalities) if known else "",
            seconds=_seconds(c),
        )
        for c in cost.clients
    ]
    return tuple(every) if len(every) <= MAX_BARS else _busiest(every)


def _seconds(cost: ClientCost) -> tuple[float, ...]:
    t = cost.times
    return (t.down_s, t.forward_s, t.backward_s, t.optimizer_s, t.up_s, cost.wait_s)


def _busiest(every: Sequence[Bar]) -> tuple[Bar, ...]:
    kinds = dict.fromkeys((b.kind, b.sensors) for b in every)
    groups = [[b for b in every if (b.kind, b.sensors) == kind] for kind in kinds]
    return tuple(replace(min(group, key=lambda b: b.seconds[-1]), name=f"slowest of {len(group)}") for group in groups)


def _draw_panels(figure: MplFigure, panels: Sequence[Panel], note: str = "") -> None:
    """Fill an empty sheet of ``_height_of`` inches from the top; ``note`` stands behind the axis' label."""
    width, height = map(float, figure.get_size_inches())
    names_in = _LETTER_IN * max(len(b.name) for p in panels for b in p.bars) + 0.06
    left_in = names_in + _types_in(panels)
    span = (left_in / width, (width - 0.12 - left_in) / width)
    longest, top = max(p.cost.round_s for p in panels), height - _LEGEND_IN
    axes: list[Axes] = []
    for part in panels:
        bottom = top - part.height_in
        box = (span[0], bottom / height, span[1], (part.height_in - _TITLE_IN) / height)
        ax = figure.add_axes(box, sharex=axes[0] if axes else None)
        _bars(ax, part, names_in / (width * span[1]))
        ax.set_xlim(0, longest * 1.015)
        axes.append(ax)
        ax.tick_params(labelbottom=part is panels[-1])
        top = bottom
    _titles(axes, panels)
    origin = "measured" if panels[-1].is_measured else "simulated"
    axes[-1].set_xlabel(f"seconds since the round began ({origin}{note and ', '}{note})")
    for ax, part in zip(axes, panels, strict=True):
        _marks(ax, part, panels[0].cost.round_s, longest)
    _legend(figure, panels[-1].note, height)


def _types_in(panels: Sequence[Panel]) -> float:
    """Inches for types and sensors at the left."""
    lines = [line for p in panels for _, _, text in _groups(p.bars) for line in text.split("\n")]
    return 0.22 + _LETTER_IN * max(map(len, lines)) if lines else 0.1


def _groups(every: Sequence[Bar]) -> list[tuple[int, int, str]]:
    """First and last row of each device type whose rows stand together, with its text: one line for a single row."""
    found = []
    for kind, sensors in dict.fromkeys((b.kind, b.sensors) for b in every if b.kind):
        rows = [i for i, b in enumerate(every) if (b.kind, b.sensors) == (kind, sensors)]
        if rows == list(range(rows[0], rows[-1] + 1)):
            found.append((rows[0], rows[-1], f"Type {kind}{', ' if len(rows) == 1 else chr(10)}{sensors}"))
    return found


def _bars(ax: Axes, part: Panel, names: float) -> None:
    """Bars of a panel; ``names``: width of the devices' names as a share of the axes."""
    for row, bar in enumerate(part.bars):
        start = 0.0
        for (_, colour, hatch), length in zip(_STAGES, bar.seconds, strict=True):
            ax.barh(row, length, left=start, height=0.78, color=colour, hatch=hatch, edgecolor="#9a9a9a", linewidth=0.3)
            start += length
    each = _WIDE_BAR_IN if len(part.bars) <= _FEW_BARS else _BAR_IN
    above = _DEADLINE_IN / each if part.deadline_s is not None else 0.0
    ax.set_ylim(len(part.bars) - 0.35, -0.65 - above)
    ax.set_yticks(range(len(part.bars)), [b.name for b in part.bars])
    ax.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    blend = ax.get_yaxis_transform()
    for first, last, text in _groups(part.bars):
        x = -names * 1.05 - 0.012
        ax.plot([x, x], [first - 0.36, last + 0.36], color=FAINT, linewidth=0.8, transform=blend, clip_on=False)
        ax.text(x - 0.012, (first + last) / 2, text, ha="right", va="center", transform=blend, linespacing=1.3)
    ax.plot([part.cost.round_s] * 2, [-0.5, len(part.bars) - 0.35], color=INK, linewidth=1.0)


def _titles(axes: Sequence[Axes], panels: Sequence[Panel]) -> None:
    for ax, part in zip(axes, panels, strict=True):
        gain = "" if part is panels[0] else f"   {_gain(part.cost, panels[0].cost)}"
        ax.set_title(f"{part.title}", loc="left", fontweight="bold", pad=3)
        text = f"{part.cost.round_s:.2f} s, {part.cost.energy_j:.0f} J a round{gain}"
        ax.set_title(text, loc="right", pad=3, fontsize=8)


def _gain(cost: RoundCost, reference: RoundCost) -> str:
    """``1.57x faster, 23 % less energy``; ``as fast`` and ``the same energy`` where the digits show no difference."""
    speedup, saved = reference.round_s / cost.round_s, 100 * (1 - cost.energy_j / reference.energy_j)
    times = "\N{MULTIPLICATION SIGN}"
    faster = f"{speedup:.2f}{times} faster" if speedup >= 1 else f"{1 / speedup:.2f}{times} slower"
    faster = "as fast" if faster.startswith("1.00") else faster
    energy = f"{percent(abs(saved))} % {'less' if saved >= 0 else 'more'} energy"
    return f"{faster}, {'the same energy' if energy.startswith('0 %') else energy}"


def _marks(ax: Axes, part: Panel, full: float, longest: float) -> None:
    """``T*`` and the time that the method saves."""
    end, last = part.cost.round_s, len(part.bars) - 0.35
    if part.deadline_s is not None and part.deadline_s <= longest:
        ax.plot([part.deadline_s] * 2, [-0.65, last], color=_ACCENT, linewidth=1.6, linestyle=(0, (3, 2)))
        is_right = part.deadline_s > 0.8 * longest
        ax.annotate(
            f"T* = {part.deadline_s:.2f} s{_exceeded(part)}",
            (part.deadline_s, -0.65),
            xytext=(-1 if is_right else 1, 1.5),
            textcoords="offset points",
            ha="right" if is_right else "left",
            va="bottom",
            color=_ACCENT,
        )
    gap = full - end
    if gap < 0.15 * longest:
        return
    middle = (len(part.bars) - 1) / 2
    ax.plot([full, full], [-0.5, last], color=FAINT, linewidth=0.8, linestyle=":")
    arrow = {"arrowstyle": "<->", "color": FAINT, "lw": 0.8, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", xy=(end, middle), xytext=(full, middle), arrowprops=arrow)
    ax.annotate(
        f"{gap:.2f} s saved",
        (end + gap / 2, middle),
        xytext=(0, 3),
        textcoords="offset points",
        ha="center",
        va="bottom",
    )


def _exceeded(part: Panel) -> str:
    """Reason why the round ends after ``T*``; empty where it does not, or where groups are not counted."""
    is_late = part.deadline_s is not None and part.cost.round_s > part.deadline_s
    return ", each group at its device's mean time" if is_late and part.counts_groups else ""


def _legend(figure: MplFigure, note: str, height: float) -> None:
    """Data and clock in the first line, the stages in the second."""
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="#9a9a9a", linewidth=0.4, label=name)
        for name, colour, hatch in _STAGES
    ]
    figure.legend(
        handles=handles,
        loc="upper right",
        bbox_to_anchor=(0.99, 1 - 0.19 / height),
        ncols=len(_STAGES),
        frameon=False,
        handlelength=1.5,
        columnspacing=1.1,
        handletextpad=0.5,
        borderaxespad=0.2,
    )
    figure.text(0.012, 1 - 0.115 / height, note, ha="left", va="center", color=FAINT)


def timeline_figure(experiment: Experiment, slug: str) -> Figure | None:
    """The last round of one run of each featured method."""
    comparison = experiment.main
    runs = [] if comparison is None else featured(comparison)
    if comparison is None or not runs:
        return None
    panels = [panel(loaded, comparison.clock) for loaded in runs]
    names = listed(p.title for p in panels)
    stands = (
        "; of each device type the slowest device is drawn"
        if any(len(p.bars) < len(p.cost.clients) for p in panels)
        else ""
    )
    return Figure(
        slug=slug,
        caption=f"The last round device by device: {names} ({runs[0].draw}){stands}; {experiment.title}. Stages are "
        "sums over the round's mini-batches.",
        draw=partial(_draw, panels=panels, experiment=experiment, clock=comparison.clock),
        width_in=TEXT_WIDTH_IN,
        height_in=_height_of(panels) + FOOTER_IN,
        columns=("panel", "device", "type", *(f"{name}_s" for name, _, _ in _STAGES)),
        rows=[_row(p, i) for p in panels for i in range(len(p.bars))],
    )


def _row(part: Panel, i: int) -> list[Number]:
    bar = part.bars[i]
    return [part.title, bar.name, bar.kind, *bar.seconds]


def _draw(figure: MplFigure, panels: list[Panel], experiment: Experiment, clock: str) -> None:
    _draw_panels(figure, panels)
    footnote(figure, experiment.runs, clock)
