"""Device timeline of one round of each of some methods, FedAvg above the others: every device's seconds by stage.

The stages of a bar are sums over the round's mini-batches, in the order download, forward, backward, optimizer, upload,
wait; on a device forward and backward alternate. Everything comes from ``RoundRecord.costs``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from relief_ray.core.messages import RoundCost
from relief_ray.report.comparison import Comparison, Stat, interest
from relief_ray.report.document import Figure
from relief_ray.report.figures.style import FAINT, FOOTER_IN, INK, footnote, save, sheet, short
from relief_ray.report.remarks import mark
from relief_ray.report.runs import Loaded, Replicate
from relief_ray.strategies import OUR_VARIANTS, PRESETS, PROPOSED, REFERENCE, VARIANTS
from relief_ray.support.errors import UserError, listed
from relief_ray.support.table import grouped
from relief_ray.support.text import percent, with_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as MplFigure

# stage, colour, hatch; none is a method's colour
_STAGES = (
    ("download", "#c9d6e2", "\\\\\\"),
    ("forward", "#f3e6b3", ""),
    ("backward", "#d9c27a", "///"),
    ("optimizer", "#a68a3a", ""),
    ("upload", "#7f99b2", ""),
    ("wait", "#f6f6f6", ""),
)
_EDGE = "#9a9a9a"
_ACCENT = "#B34A00"
MAX_BARS = 12
_MAX_PANELS = 3
# Inches: a bar, one of few, the title of a panel, the strip of T* above the bars, axis and its label, legend, a letter.
_BAR_IN, _WIDE_BAR_IN, _TITLE_IN, _DEADLINE_IN, _AXIS_IN, _LEGEND_IN = 0.19, 0.26, 0.27, 0.16, 0.42, 0.42
_LETTER_IN = 0.066
_FEW_BARS = 4
# Percent of a round that are worth a word.
_LEAST_WAIT = 1.0


class Bar(NamedTuple):
    """One device: its name, type and sensors, seconds by stage in the order of ``_STAGES``, and its client's number."""

    name: str
    kind: str
    sensors: str
    seconds: tuple[float, ...]
    client: int = 0


class Panel(NamedTuple):
    """One method's round."""

    title: str
    """Name of the method."""
    bars: tuple[Bar, ...]
    """Its devices."""
    cost: RoundCost
    """The round by the clock."""
    deadline_s: float | None
    """``T*``; None without one."""
    counts_groups: bool = False
    """``T*`` counts groups, each at its device's mean time, so that a round may end later."""
    key: str = "p"
    """Begins the ids of its bars."""

    @property
    def bar_in(self) -> float:
        """Inches of a bar."""
        return _WIDE_BAR_IN if len(self.bars) <= _FEW_BARS else _BAR_IN

    @property
    def deadline_in(self) -> float:
        """Inches of the strip above the bars that names ``T*``."""
        return 0.0 if self.deadline_s is None else _DEADLINE_IN

    @property
    def bars_in(self) -> float:
        """Inches of the bars and what stands above them, without the title."""
        return self.deadline_in + self.bar_in * (len(self.bars) + 0.3)


def featured(comparison: Comparison) -> list[Loaded]:
    """Runs of one fold and seed for the figure: FedAvg's, RELIEF's (or the nearest of its kin), a user's own methods'.

    At most three. Where none of these but FedAvg was run, the first other method stands below it. Runs on pooled data
    have no devices to draw.
    """
    runs = [r for r in comparison.runs if not r.pooled]
    replicates = {
        row.label: {r.replicate for r in runs if r.label == row.label} for row in comparison.rows if not row.is_bound
    }
    labels = [label for label, found in replicates.items() if found]
    # RELIEF, then its variants, those with a deadline first.
    variants = [PROPOSED, *OUR_VARIANTS, *VARIANTS]
    kin = [name for name in sorted(variants, key=lambda name: not PRESETS[name].has_deadline) if name in labels][:1]
    others = [label for label in labels if label not in (REFERENCE, *kin)]
    first = [
        *(label for label in labels if label == REFERENCE),
        *kin,
        *(label for label in others if interest(label) == 1),
    ]
    wanted = [*first, *others[: max(0, 2 - len(first))]][:_MAX_PANELS]
    shared = _middle(comparison, set.intersection(*map(replicates.__getitem__, wanted)), wanted) if wanted else None
    return [next(r for r in runs if r.label == v and shared in (None, r.replicate)) for v in wanted]


def _middle(comparison: Comparison, shared: Collection[Replicate], labels: Sequence[str]) -> Replicate | None:
    """Of the replicates that the methods share, the one with the median F1 of the last of them; None where none is."""
    runs = [run for run in comparison.runs_of(labels[-1]) if run.replicate in shared]
    # Those without a score come first.
    scores = {run.replicate: -1.0 if (f1 := run.tested.headline) is None else f1 for run in runs}
    order = sorted(scores, key=lambda replicate: (scores[replicate], replicate))
    return order[len(order) // 2] if order else None


def timeline(runs: Sequence[Loaded], path: Path, clock: str | None = None, round_: int | None = None) -> Path:
    """Write the figure: a panel per run, the first one (FedAvg's) is what speed and joules are compared with.

    Args:
        runs: runs, of which the last round or ``round_`` is drawn.
        path: the file; its suffix names the format.
        clock: time model of the runs; by default the one that the last run planned with.
        round_: number of the round.

    Raises:
        UserError: a run lacks that round, that clock or devices; matplotlib is missing; an unknown file suffix.
    """
    if not runs:
        raise UserError("timeline: no run holds devices (pooled data have none); draw a run folder")
    chosen = clock or runs[-1].run.planning_model
    parts = [panel(run, chosen, round_) for run in runs]
    with sheet(height_of(parts)) as figure:
        draw_panels(figure, parts, runs[-1], chosen)
        return save(figure, path)


def height_of(parts: Sequence[Panel]) -> float:
    """Inches of legend, panels and axis."""
    return _LEGEND_IN + sum(_TITLE_IN + p.bars_in for p in parts) + _AXIS_IN


def panel(loaded: Loaded, clock: str, round_: int | None = None, key: str = "p") -> Panel:
    """The data of one part of the figure: the last round, or that of a number; ``key``: begins its bars' ids.

    Raises:
        UserError: the run lacks that round or that clock, or its devices.
    """
    record = next((r for r in reversed(loaded.rounds) if round_ in (None, r.round)), None)
    if record is None:
        held = f"rounds up to {loaded.rounds[-1].round}" if loaded.rounds else "no round"
        raise UserError(f"{loaded.where}: no round {round_}, the run holds {held}; choose one of them")
    if clock not in record.costs:
        raise UserError(f"{loaded.where}: no clock {clock!r}; recorded are {', '.join(record.costs)}; choose one")
    cost = loaded.cost(record, clock)
    if not cost.clients:
        raise UserError(f"{loaded.where}: a committed cell, which has no devices but in its last round; draw that one")
    # The name that one types, as in tables, with the title where that says more; a variant has a name alone.
    title, is_preset = loaded.run.method.title, loaded.label == loaded.run.strategy
    named = with_title(loaded.label, title)
    return Panel(
        title=named if is_preset and named != title else loaded.label,
        key=key,
        bars=_bars_of(loaded, cost),
        cost=cost,
        deadline_s=record.deadline_s if clock == loaded.run.planning_model else None,
        counts_groups=loaded.value("strategy.fill") == "count",
    )


def _bars_of(loaded: Loaded, cost: RoundCost) -> tuple[Bar, ...]:
    """A bar per device; above ``MAX_BARS`` devices, the busiest of every type stands for its type."""
    fleet, bars = loaded.fleet, []
    for c in cost.clients:
        t, device = c.times, None if fleet is None else fleet.clients[c.client]
        kind, sensors = ("", "") if device is None else (device.device, " ".join(device.modalities))
        seconds = (t.down_s, t.forward_s, t.backward_s, t.optimizer_s, t.up_s, c.wait_s)
        bars.append(Bar(f"client {c.client}", kind, sensors, seconds, c.client))
    return tuple(bars) if len(bars) <= MAX_BARS else busiest(bars)


def busiest(bars: Sequence[Bar]) -> tuple[Bar, ...]:
    """The bar that waits least of every type of device."""
    groups = grouped(((b.kind, b.sensors), b) for b in bars).values()
    return tuple(min(g, key=lambda b: b.seconds[-1])._replace(name=f"slowest of {len(g)}") for g in groups)


def draw_panels(figure: MplFigure, parts: Sequence[Panel], last: Loaded, clock: str) -> None:
    """Fill an empty sheet of ``height_of`` inches from the top; ``last``: the run whose data are named."""
    width, height = map(float, figure.get_size_inches())
    lines = [line for p in parts for *_, text in types_beside(p.bars) for line in text.split("\n")]
    names_in = _LETTER_IN * max(len(b.name) for p in parts for b in p.bars) + 0.06
    left_in = names_in + (0.22 + _LETTER_IN * max(map(len, lines)) if lines else 0.1)
    bars_in = width - 0.12 - left_in
    longest, top_in = max(p.cost.round_s for p in parts), height - _LEGEND_IN
    for part in parts:
        top_in -= _TITLE_IN + part.bars_in
        ax = figure.add_axes((left_in / width, top_in / height, bars_in / width, part.bars_in / height))
        ax.set_xlim(0, longest * 1.015)
        ax.tick_params(labelbottom=part is parts[-1])
        _bars(ax, part, names_in / bars_in)
        gain = "" if part is parts[0] else f"   {_gain(part.cost, parts[0].cost)}"
        ax.set_title(short(part.title), loc="left", fontweight="bold", pad=3)
        ax.set_title(
            f"{part.cost.round_s:.2f} s, {part.cost.energy_j:.0f} J a round{gain}", loc="right", pad=3, fontsize=8
        )
        _marks(ax, part, parts[0].cost.round_s, longest)
    ax.set_xlabel(f"seconds since the round began ({'measured' if clock == 'measured' else 'simulated'})")
    _legend(figure, f"{mark(last)}{last.data_title}", height)


def types_beside(bars: Sequence[Bar]) -> list[tuple[int, int, str]]:
    """First and last row of devices of one type that stand together, with its text: one line for a single row."""
    found = []
    for (kind, sensors), own in groupby(enumerate(bars), key=lambda numbered: (numbered[1].kind, numbered[1].sensors)):
        rows = [row for row, _ in own]
        if kind:
            found.append((rows[0], rows[-1], f"Type {short(kind)}{', ' if len(rows) == 1 else chr(10)}{sensors}"))
    return found


def _bars(ax: Axes, part: Panel, names: float) -> None:
    """Bars of a panel; ``names``: width of the devices' names as a share of the axes."""
    last = len(part.bars) - 0.35
    for row, bar in enumerate(part.bars):
        # Over the whole row, for a click.
        ax.barh(row, part.cost.round_s, height=0.9, alpha=0.0, zorder=5)[0].set_gid(f"{part.key}-c{bar.client}")
        start = 0.0
        for (_, colour, hatch), length in zip(_STAGES, bar.seconds, strict=True):
            ax.barh(row, length, left=start, height=0.78, color=colour, hatch=hatch, edgecolor=_EDGE, linewidth=0.3)
            start += length
        if not any(bar.seconds[:-1]):
            ax.text(part.cost.round_s / 2, row, "takes no part", ha="center", va="center", color=FAINT)
    ax.set_ylim(last, -0.65 - part.deadline_in / part.bar_in)
    ax.set_yticks(range(len(part.bars)), [b.name for b in part.bars])
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    blend = ax.get_yaxis_transform()
    x = -names * 1.05 - 0.012
    for first, end, text in types_beside(part.bars):
        ax.plot([x, x], [first - 0.36, end + 0.36], color=FAINT, linewidth=0.8, transform=blend, clip_on=False)
        ax.text(x - 0.012, (first + end) / 2, text, ha="right", va="center", transform=blend, linespacing=1.3)
    ax.plot([part.cost.round_s] * 2, [-0.5, last], color=INK, linewidth=1.0)


def _gain(cost: RoundCost, reference: RoundCost) -> str:
    """``1.57x as fast, 23 % less energy``; ``as fast`` and ``the same energy`` where the digits show no difference."""
    if not (cost.round_s and reference.energy_j):
        return "a round with nobody"
    speedup, saved = reference.round_s / cost.round_s, 100 * (1 - cost.energy_j / reference.energy_j)
    faster = f"{speedup:.2f}\N{MULTIPLICATION SIGN} as fast" if f"{speedup:.2f}" != "1.00" else "as fast"
    energy = f"{percent(abs(saved))} % {'less' if saved >= 0 else 'more'} energy"
    return f"{faster}, {'the same energy' if energy.startswith('0 %') else energy}"


def _marks(ax: Axes, part: Panel, full: float, longest: float) -> None:
    """``T*`` and the time that the method saves."""
    end, last, deadline = part.cost.round_s, len(part.bars) - 0.35, part.deadline_s
    if deadline is not None and deadline <= longest:
        ax.plot([deadline] * 2, [-0.65, last], color=_ACCENT, linewidth=1.6, linestyle=(0, (3, 2)))
        is_late = end > deadline and part.counts_groups
        why, is_right = ", each group at its device's mean time" if is_late else "", deadline > 0.8 * longest
        ax.annotate(
            f"T* = {deadline:.2f} s{why}",
            (deadline, -0.65),
            xytext=(-1 if is_right else 1, 1.5),
            textcoords="offset points",
            ha="right" if is_right else "left",
            va="bottom",
            color=_ACCENT,
        )
    gap, middle = full - end, (len(part.bars) - 1) / 2
    if gap < 0.15 * longest:
        return
    ax.plot([full, full], [-0.5, last], color=FAINT, linewidth=0.8, linestyle=":")
    arrow = {"arrowstyle": "<->", "color": FAINT, "lw": 0.8, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", xy=(end, middle), xytext=(full, middle), arrowprops=arrow)
    place = (end + gap / 2, middle)
    ax.annotate(
        f"{gap:.2f} s saved",
        place,
        xytext=(0, 3),
        textcoords="offset points",
        ha="center",
        va="bottom",
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.9},
    )


def _legend(figure: MplFigure, note: str, height: float) -> None:
    """Data and clock in the first line, the stages in the second."""
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=c, hatch=h, edgecolor=_EDGE, linewidth=0.4, label=name) for name, c, h in _STAGES]
    place = (0.99, 1 - 0.19 / height)
    figure.legend(handles=handles, loc="upper right", bbox_to_anchor=place, ncols=len(_STAGES))
    figure.text(0.012, 1 - 0.115 / height, note, ha="left", va="center", color=FAINT)


def _waits(part: Panel) -> str:
    """``In fedavg's round type A waits 61 % and B 47 % of the time for C``: means over the bars of a type."""
    round_s, waits = part.cost.round_s, grouped((bar.kind, bar.seconds[-1]) for bar in part.bars)
    if len(waits) < 2 or round_s <= 0.0:
        return ""
    shares = {kind: 100 * sum(own) / len(own) / round_s for kind, own in waits.items()}
    last = min(shares, key=lambda kind: shares[kind])
    others = [(kind, percent(share)) for kind, share in shares.items() if kind != last and share >= _LEAST_WAIT]
    if not others:
        return f"In {part.title}'s round no type waits {_LEAST_WAIT:g} % of the time"
    told = (f"{kind}{' waits' * (i == 0)} {share} %" for i, (kind, share) in enumerate(others))
    return f"In {part.title}'s round type {listed(told)} of the time for {last}"


def _whole(part: Panel, reference: Panel, speedup: Stat | None) -> str:
    """A sentence where this round's speed is not the whole run's, whose first round may train everything."""
    if part is reference or speedup is None or part.cost.round_s <= 0.0:
        return ""
    here, whole = f"{reference.cost.round_s / part.cost.round_s:.2f}", f"{speedup.mean:.2f}"
    return "" if here == whole else f" Over all rounds {part.title} is {whole} times as fast as {reference.title}."


# The reasons of the clients of a run in a round, by client, in words; none of a run that cannot be explained.
Explain = Callable[[Loaded, int, Sequence[int]], Mapping[int, str]]


def timeline_figure(comparison: Comparison, explain: Explain | None = None) -> Figure | None:
    """The last round of one run of each featured method; ``explain`` answers a click on a client's bar."""
    if not (runs := featured(comparison)):
        return None
    parts = [panel(loaded, comparison.clock, key=f"p{number}") for number, loaded in enumerate(runs)]
    answers: dict[str, tuple[str, str]] = {}
    for part, loaded in zip(parts, runs, strict=True):
        last, clients = loaded.rounds[-1].round, [bar.client for bar in part.bars]
        for client, text in ({} if explain is None else explain(loaded, last, clients)).items():
            answers[f"{part.key}-c{client}"] = (f"{loaded.label}, round {last}, client {client}", text)
    is_short = any(len(p.bars) < len(p.cost.clients) for p in parts)
    stands = "; of each device type the slowest device is drawn" if is_short else ""

    def draw(figure: MplFigure) -> None:
        draw_panels(figure, parts, runs[-1], comparison.clock)
        footnote(figure, comparison.runs, comparison.clock)

    waiting = "".join(f" {text}." for p in parts if (text := _waits(p)))
    waiting += (
        " T* is the deadline under which a method gives its clients work." if any(p.deadline_s for p in parts) else ""
    )
    wholes = [
        _whole(part, parts[0], comparison.stat(loaded.label, "speedup"))
        for part, loaded in zip(parts, runs, strict=True)
    ]
    asked = " A click on a bar says why that client trains what it trains." if answers else ""
    return Figure(
        caption=f"The last round device by device: {listed(p.title for p in parts)} ({runs[0].draw}){stands}; "
        f"{comparison.title}. Stages are sums over the round's mini-batches.{waiting}{''.join(wholes)}{asked}",
        draw=draw,
        height_in=height_of(parts) + FOOTER_IN,
        answers=answers,
        columns=("panel", "device", "type", *(f"{name}_s" for name, _, _ in _STAGES)),
        rows=[(p.title, bar.name, bar.kind, *bar.seconds) for p in parts for bar in p.bars],
    )
