"""Style of all figures: order and colours of methods, axes, legend, and the footer that names machine and programs.

No pyplot, no global state, embedded fonts, the same bytes for the same records. Colours are Okabe and Ito's, which
colour-blind readers can tell apart, and a brown; hatches, dashes and markers repeat the distinction. Grey is for
bounds.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from relief_ray.report.comparison import Comparison, digests_of, interest
from relief_ray.report.document import TEXT_WIDTH_IN
from relief_ray.report.paper import REPRESENTATIVE, VARIANT_ROWS
from relief_ray.report.runs import Loaded
from relief_ray.strategies import by_registry
from relief_ray.support.errors import UserError, counted, listed
from relief_ray.support.files import write_atomic
from relief_ray.support.text import install

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as MplFigure
    from matplotlib.patches import Patch

_DPI = 200
_MAX_PANELS = 4
FOOTER_IN = 0.16
INK = "#222222"
FAINT = "#6b6b6b"
GRID = "#e4e4e4"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F4F24")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (7, 3)))

# Matplotlib brings the first; the others have Chinese, Japanese and Korean letters.
_FONTS = ("DejaVu Sans", "Noto Sans CJK JP", "IPAexGothic", "WenQuanYi Zen Hei", "Hiragino Sans", "Microsoft YaHei")
_STYLE: Mapping[str, object] = {
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.labelsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "legend.columnspacing": 1.2,
    "legend.handletextpad": 0.4,
    "legend.borderaxespad": 0.1,
    "axes.linewidth": 0.6,
    "hatch.linewidth": 0.5,
    "pdf.fonttype": 42,
    "svg.hashsalt": "relief-ray",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "xtick.color": INK,
    "ytick.color": INK,
}

_UNDATED: Mapping[str, Mapping[str, None]] = {
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    ".svg": {"Date": None, "Creator": None},
    ".png": {"Software": None},
}


@contextmanager
def sheet(height_in: float) -> Iterator[MplFigure]:
    """An empty figure in our style; the style is gone when the block ends, so draw and ``save`` inside it.

    Letters of an SVG stay letters: they can be found and selected, and another font is narrower than ours.

    Raises:
        UserError: matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure as MplFigure
    except ImportError as error:
        raise UserError(f"figures need matplotlib; {install('server')}") from error
    style = {**_STYLE, "font.family": list(_letters()), "svg.fonttype": "none"}
    with matplotlib.rc_context(cast("dict[Any, Any]", style)):
        yield MplFigure(figsize=(TEXT_WIDTH_IN, height_in), dpi=_DPI)


def save(figure: MplFigure, path: Path) -> Path:
    """Write the figure; the suffix (.png, .pdf, .svg) names the format.

    Raises:
        UserError: another suffix.
    """
    if path.suffix not in _UNDATED:
        raise UserError(f"{path}: figures are written as {', '.join(_UNDATED)}; rename the file")
    _spell_out(figure)
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix[1:], dpi=_DPI, metadata=dict(_UNDATED[path.suffix]))
    write_atomic(path, drawn.getvalue())
    return path


def _spell_out(figure: MplFigure) -> None:
    """Write letters that no font has by their codes: they would become boxes."""
    from matplotlib.text import Text

    known = frozenset(map(ord, "\n")).union(*_letters().values())

    def spelt(text: Text) -> str:
        return "".join(c if ord(c) in known else ascii(c)[1:-1] for c in text.get_text())

    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        ticks = axis.get_ticklabels()
        if any(spelt(tick) != tick.get_text() for tick in ticks):  # an axis writes its ticks anew when it is drawn
            axis.set_ticks(axis.get_ticklocs(), labels=list(map(spelt, ticks)))
    for text in figure.findobj(Text):
        text.set_text(spelt(text))


@cache
def _letters() -> dict[str, frozenset[int]]:
    """The letters of each font that may be used and is installed; of several, a text takes the first that has one."""
    from matplotlib import font_manager

    files = {font.name: font.fname for font in font_manager.fontManager.ttflist if font.name in _FONTS}
    return {name: frozenset(font_manager.get_font(files[name]).get_charmap()) for name in _FONTS if name in files}


# Inches of a name with the space around it.
_NAME_IN = 0.14
# Letters of a name in a figure.
_LONGEST_NAME = 32
# Share of an axis within which ends have their names in one column.
_NEAR = 0.1
# Methods in one figure.
_MAX_METHODS = 6
# Points of F1 that an axis shows at least: differences of a hundredth would fill it.
_LEAST_SPAN = 5.0
# Presets that are drawn before others where there is no room for all: the paper's five, then Table III's. A user's own
# methods come right after FedAvg and RELIEF: a report is about them.
_FIRST = tuple(dict.fromkeys([*REPRESENTATIVE, *VARIANT_ROWS]))


class Style(NamedTuple):
    """Colour, marker, dashes and marker filling of one method, the same in every figure of `compare` and `report`.

    The names are those of matplotlib's lines.
    """

    color: str
    marker: str
    linestyle: str | tuple[int, tuple[int, ...]]
    markerfacecolor: str


def styles(labels: Sequence[str]) -> Mapping[str, Style]:
    """A style per method: FedAvg's and RELIEF's first, then those of methods that are drawn before others.

    So no two methods of a figure with lines or bars share a colour.
    """
    return {label: look(i) for i, label in enumerate(sorted(by_registry(labels), key=_rank))}


def look(number: int) -> Style:
    """Return one of 128 styles: each colour filled, then hollow, then with the next one's marker and dashes."""
    lap, place = divmod(number, len(COLOURS))
    colour, shape = COLOURS[place], (place + lap // 2) % len(_MARKERS)
    return Style(colour, _MARKERS[shape], _DASHES[shape], "white" if lap % 2 else colour)


def drawn(comparison: Comparison, labels: Collection[str]) -> list[str]:
    """Of the methods that a figure has values of, those that it shows as lines or bars: no bounds, at most six."""
    return at_most(_MAX_METHODS, [r.label for r in comparison.rows if not r.is_bound and r.label in labels])


def left_out(labels: Collection[str], shown: Collection[str]) -> str:
    """`` 2 more methods in the CSV file.`` of those that a figure has values of but does not show."""
    more = len({*labels} - {*shown})
    return f" {counted(more, 'more method')} in the CSV file." if more else ""


def at_most(number: int, labels: Sequence[str]) -> list[str]:
    """Up to ``number`` methods in the order of figures: FedAvg, RELIEF and a user's own stay longest."""
    return by_registry(sorted(by_registry(labels), key=_rank)[:number])


def _rank(label: str) -> tuple[int, int]:
    rank = interest(label)
    return rank, _FIRST.index(label) if rank and label in _FIRST else len(_FIRST) * min(rank, 1)


def part_of(comparison: Comparison, label: str, kind: str) -> str:
    """The id of a method's part of a drawing, by which a page finds all that belongs to one method."""
    return f"m{comparison.labels.index(label)}-{kind}"


def short(name: str) -> str:
    """A name with room in a figure: of a long one its beginning and its end."""
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME // 2]}..{name[-_LONGEST_NAME // 2 + 2 :]}"


def name_ends(ax: Axes, comparison: Comparison, ends: Mapping[str, tuple[float, float]]) -> None:
    """Write each method's name beside its end (x, y) in the axes, none over another one, a thin line leading to it.

    Ends that lie close to each other in x have their names in one column right of them.
    """
    colours, ((left, right), (low, high)) = styles(comparison.labels), (ax.get_xlim(), ax.get_ylim())
    height_in = ax.get_position().height * float(ax.figure.get_size_inches()[1])  # type: ignore[union-attr]
    least, near = (high - low) * _NAME_IN / height_in, _NEAR * (right - left)
    columns: list[list[str]] = []
    for label in sorted(ends, key=lambda label: ends[label][0]):
        if not columns or ends[label][0] - ends[columns[-1][-1]][0] > near:
            columns.append([])
        columns[-1].append(label)
    for column in columns:
        tip = max(ends[label][0] for label in column) + 0.012 * (right - left)
        column.sort(key=lambda label: ends[label][1])
        places = spread([min(max(ends[label][1], low), high) for label in column], least, high)
        for label, place in zip(column, places, strict=True):
            (lead,) = ax.plot([ends[label][0], tip], [ends[label][1], place], linewidth=0.5, alpha=0.7, zorder=0)
            (key,) = ax.plot(tip, place, marker=colours[label].marker, markersize=4)
            for part, kind in ((lead, "lead"), (key, "key")):
                part.set(color=colours[label].color, clip_on=False, gid=part_of(comparison, label, kind))
            key.set_markerfacecolor(colours[label].markerfacecolor)
            ax.annotate(
                short(label),
                (tip, place),
                xytext=(5, 0),
                textcoords="offset points",
                annotation_clip=False,
                va="center",
                gid=part_of(comparison, label, "name"),
            )
    ax.set_xlim(left, right)
    ax.set_ylim(low, high)


def spread(wanted: Sequence[float], least: float, high: float) -> list[float]:
    """Places in ascending order, ``least`` apart and below ``high``, as near to the wanted ones as a block allows.

    Neighbours that would overlap become a block around the mean of what they want.
    """
    blocks: list[list[float]] = []

    def first(block: Sequence[float]) -> float:
        return min(sum(block) / len(block), high - least * (len(block) - 1) / 2) - least * (len(block) - 1) / 2

    for place in wanted:
        blocks.append([place])
        while len(blocks) > 1 and first(blocks[-2]) + least * len(blocks[-2]) > first(blocks[-1]):
            blocks[-2:] = [[*blocks[-2], *blocks[-1]]]
    return [first(block) + least * i for block in blocks for i in range(len(block))]


def footnote(figure: MplFigure, runs: Sequence[Loaded], clock: str | None = None) -> None:
    """Small line at the bottom: clock, run or runs, machine, threads, torch, engine, origin of the data, sources."""
    y = 0.05 / float(figure.get_size_inches()[1])
    figure.text(0.008, y, small_print(runs, clock), color=FAINT, fontsize=5)


def small_print(runs: Sequence[Loaded], clock: str | None = None) -> str:
    """The text of ``footnote``; several runs by their number, and by the method where all are of one."""
    run, labels = runs[0].run, {loaded.label for loaded in runs}
    of_one = f" of {runs[0].label}" if len(labels) == 1 else ""
    parts = [
        f"clock {clock} ({'measured' if clock == 'measured' else 'simulated'})" if clock else "",
        runs[0].title if len(runs) == 1 else counted(len(runs), "run") + of_one,
        runs[0].machine,
        f"torch {run.machine.torch}",
        f"engine {run.engine}",
        f"{runs[0].data_title} ({run.data_origin})",
        f"sources {listed(d[:8] for d in digests_of(runs))}",
    ]
    return " | ".join(filter(None, parts))


def panels(
    figure: MplFigure,
    number: int,
    *,
    above_in: float,
    below_in: float,
    per_row: int = _MAX_PANELS,
    row_gap: float = 0.0,
    left: float = 0.072,
    right: float = 0.985,
    gap: float = 0.1,
    sharey: bool = False,
) -> list[Axes]:
    """Axes side by side, below each other beyond ``per_row``, with inches left free above and below them all.

    ``gap`` and ``row_gap`` are shares of a panel's width and height; ``left`` and ``right`` of the sheet's width. With
    ``sharey`` all have one y axis, labelled at the left.
    """
    height = float(figure.get_size_inches()[1])
    columns = min(number, per_row)
    place = {"left": left, "right": right, "top": 1 - above_in / height, "bottom": below_in / height}
    grid = {**place, "wspace": gap, "hspace": row_gap}
    axes = figure.subplots(-(-number // columns), columns, sharey=sharey, squeeze=False, gridspec_kw=grid).flat
    for unused in axes[number:]:
        unused.remove()
    return list(axes[:number])


def percent_axis(ax: Axes, bottom: float, top: float) -> None:
    """Limits of an axis in percent: whole numbers, none above 100, at least five points, and no marker is cut."""
    from matplotlib.ticker import MaxNLocator

    bottom = max(0.0, min(bottom, top - _LEAST_SPAN))
    ax.set_ylim(bottom, min(top, 100 + 0.04 * (100 - bottom)))
    ax.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))


def plain_axes(ax: Axes, lines: Literal["both", "y"] = "both") -> None:
    """A light grid, two spines."""
    ax.grid(axis=lines, color=GRID, linewidth=0.5)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def _per_row(labels: Sequence[str]) -> int:
    """Largest number of legend columns that fits; a legend is filled column by column."""
    for number in range(len(labels), 1, -1):
        high = -(-len(labels) // number)
        columns = [labels[i : i + high] for i in range(0, len(labels), high)]
        if sum(0.52 + 0.066 * max(map(len, column)) for column in columns) <= 0.94 * TEXT_WIDTH_IN:
            return len(columns)
    return 1


def legend_in(labels: Sequence[str]) -> float:
    """Height of ``top_legend`` in inches."""
    return 0.06 + 0.17 * -(-len(labels) // _per_row(labels))


def top_legend(figure: MplFigure, patches: Sequence[Patch] = ()) -> None:
    """One legend above all panels, from the first panel's handles or of patches."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(
        handles=patches or handles,
        loc="upper left",
        bbox_to_anchor=(0.05, 0.995),
        ncols=len(patches) or _per_row(labels),
        handlelength=1.4 if patches else 2.6,
    )
