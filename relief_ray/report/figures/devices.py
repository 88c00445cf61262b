"""Devices of the fleet: the groups that each client trained, and the seconds and joules of each type's mean round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from relief_ray.report.comparison import Experiment, is_own_method
from relief_ray.report.document import TEXT_WIDTH_IN, Figure
from relief_ray.report.figures.style import FAINT, all_styles, at_most, footnote, plain_axes
from relief_ray.report.remarks import DeviceShare, device_shares
from relief_ray.report.runs import Loaded, device_types, run_value
from relief_ray.strategies import PROPOSED
from relief_ray.support.errors import counted
from relief_ray.support.table import Number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as MplFigure

MAX_CLIENTS, PER_ROW = 12, 3
Rows = Sequence[tuple[int, str, int]]
MAX_BARS = 4
# part, hatch, strength
PARTS = (("compute", "", 1.0), ("link", "///", 0.5), ("wait", "", 0.12))


def allocation(experiment: Experiment, slug: str, method: str = "") -> Figure | None:
    """The first run of the method; above twelve clients one of each device type stands for its type.

    ``method`` empty: RELIEF, or where it did not run the first one of the user's own.
    """
    comparison = experiment.main
    labels = [] if comparison is None else [row.label for row in comparison.rows]
    shown = method or next((v for v in labels if v == PROPOSED), next(filter(is_own_method, labels), ""))
    runs = [] if comparison is None else comparison.runs_of(shown)
    if not runs or not runs[0].trained:
        return None
    loaded = runs[0]
    rows = trained(loaded)
    if not rows:
        return None
    groups = list(dict.fromkeys(j for r in loaded.rounds for c in r.clients for j in c.trained))
    clients = chosen(sorted({n for n, _, _ in rows}), device_types(loaded))
    number = -(-len(clients) // PER_ROW)
    bootstrap = " Round 0 is the bootstrap." if loaded.has_bootstrap else ""
    forced = run_value(loaded.run, "strategy.mandatory") is True
    mandatory = " Fusion blocks of a client's own modalities are mandatory." if forced else ""
    of_type = " One client of each device type is drawn." if len(clients) < len({n for n, _, _ in rows}) else ""
    return Figure(
        slug=slug,
        caption=f"Groups that each client trained in every round (dark), `{loaded.title}`; {experiment.title}."
        f"{bootstrap}{mandatory}{of_type}",
        draw=partial(_allocation, loaded=loaded, rows=rows, groups=groups, clients=clients),
        width_in=TEXT_WIDTH_IN,
        height_in=0.55 + number * (0.3 + 0.085 * len(groups)),
        columns=("client", "group", "round"),
        rows=_cells(rows),
    )


def trained(loaded: Loaded) -> list[tuple[int, str, int]]:
    """(client, group, round) of everything that was trained."""
    return [(c.client, j, r.round) for r in loaded.rounds for c in r.clients for j in c.trained]


def _cells(rows: Rows) -> list[list[Number]]:
    return [list(row) for row in rows]


def chosen(clients: Sequence[int], types: Mapping[int, str]) -> list[int]:
    """All clients, or the first of every device type where they are too many to be drawn."""
    if len(clients) <= MAX_CLIENTS:
        return list(clients)
    first: dict[str, int] = {}
    for n in clients:
        first.setdefault(types.get(n, "?"), n)
    return list(first.values())


def _allocation(figure: MplFigure, loaded: Loaded, rows: Rows, groups: Sequence[str], clients: Sequence[int]) -> None:
    from matplotlib.ticker import MaxNLocator

    height, number = float(figure.get_size_inches()[1]), -(-len(clients) // PER_ROW)
    grid = figure.add_gridspec(
        number,
        PER_ROW,
        left=0.12,
        right=0.99,
        top=1 - 0.2 / height,
        bottom=0.42 / height,
        wspace=0.05,
        hspace=0.35 / (0.1 * len(groups)),
    )
    types, rounds = device_types(loaded), [r.round for r in loaded.rounds]
    for i, client in enumerate(clients):
        ax = figure.add_subplot(grid[i // PER_ROW, i % PER_ROW])
        _strip(ax, {(j, n) for c, j, n in rows if c == client}, groups, rounds)
        ax.set_title(f"client {client}, type {types.get(client, '?')}", fontsize=7, pad=2)
        ax.tick_params(labelleft=i % PER_ROW == 0, length=0, labelsize=5.5)
        ax.tick_params(axis="x", labelbottom=i + PER_ROW >= len(clients))
        if i + PER_ROW >= len(clients):
            ax.set_xlabel("round", fontsize=7)
        ax.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    footnote(figure, [loaded])


def _strip(ax: Axes, trained_groups: set[tuple[str, int]], groups: Sequence[str], rounds: Sequence[int]) -> None:
    from matplotlib.colors import ListedColormap

    image = [[float((j, n) in trained_groups) for n in rounds] for j in groups]
    left, right = rounds[0] - 0.5, rounds[-1] + 0.5
    ax.imshow(
        image,
        cmap=ListedColormap(["#eef1f4", "#0072B2"]),
        vmin=0,
        vmax=1,
        aspect="auto",
        interpolation="nearest",
        extent=(left, right, len(groups) - 0.5, -0.5),
    )
    ax.set_yticks(range(len(groups)), groups)
    ax.set_yticks([i + 0.5 for i in range(len(groups) - 1)], minor=True)
    ax.grid(which="minor", axis="y", color="white", linewidth=0.6)
    ax.tick_params(which="minor", length=0)


def devices(experiment: Experiment, slug: str) -> Figure | None:
    """Time and energy of a mean round per device type (left column of the paper's Fig. 8, for every type)."""
    comparison = experiment.main
    if comparison is None:
        return None
    fleets = [r.label for r in comparison.rows if not r.is_bound and device_types(comparison.runs_of(r.label)[0])]
    methods = at_most(MAX_BARS, fleets)
    shares = [s for m in methods for s in device_shares(comparison.runs_of(m), m, comparison.clock)]
    if not shares:
        return None
    names = ("method", "kind", "compute_s", "link_s", "wait_s", "energy_j", "num_devices")
    return Figure(
        slug=slug,
        caption=f"A mean round per device type: seconds (full: computing, striped: link, pale: waiting for the "
        f"slowest) and joules of one device; {experiment.title}.",
        draw=partial(_devices, experiment=experiment, shares=shares, methods=methods),
        width_in=TEXT_WIDTH_IN,
        height_in=2.4,
        columns=names,
        rows=[[getattr(s, n) for n in names] for s in shares],
    )


def _devices(figure: MplFigure, experiment: Experiment, shares: Sequence[DeviceShare], methods: Sequence[str]) -> None:
    assert experiment.main is not None
    look = {m: s.colour for m, s in all_styles(experiment.main).items()}
    grid = figure.add_gridspec(1, 2, left=0.085, right=0.99, top=0.86, bottom=0.22, wspace=0.2)
    left, right = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[0, 1])
    kinds = sorted({s.kind for s in shares})
    width = 0.8 / len(methods)
    for share in shares:
        x = kinds.index(share.kind) + (methods.index(share.method) - (len(methods) - 1) / 2) * width
        _stack(left, x, width * 0.9, share, look)
        right.bar(x, share.energy_j, width * 0.9, color=look[share.method])
        right.text(x, share.energy_j, f"{share.energy_j:.3g}", ha="center", va="bottom", fontsize=5)
    for ax, label in ((left, "seconds per round"), (right, "joules per round and device")):
        number = {s.kind: s.num_devices for s in shares}
        ax.set_xticks(range(len(kinds)), [f"Type {k}\n{counted(number[k], 'device')}" for k in kinds])
        ax.set_ylabel(label)
        plain_axes(ax)
        ax.grid(visible=False, axis="x")
    left.set_ylim(top=1.05 * max(s.compute_s + s.link_s + s.wait_s for s in shares))
    _legend(figure, methods, look)
    footnote(figure, experiment.runs, experiment.main.clock)


def _stack(ax: Axes, x: float, width: float, share: DeviceShare, look: Mapping[str, str]) -> None:
    bottom = 0.0
    for (_, hatch, alpha), height in zip(PARTS, (share.compute_s, share.link_s, share.wait_s), strict=True):
        ax.bar(
            x,
            height,
            width,
            bottom=bottom,
            color=look[share.method],
            alpha=alpha,
            hatch=hatch,
            edgecolor=FAINT,
            linewidth=0.3,
        )
        bottom += height


def _legend(figure: MplFigure, methods: Sequence[str], look: Mapping[str, str]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=look[m], label=m) for m in methods]
    handles += [Patch(facecolor=FAINT, alpha=a, hatch=h, edgecolor=FAINT, label=name) for name, h, a in PARTS]
    figure.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(0.05, 0.995),
        ncols=len(handles),
        frameon=False,
        handlelength=1.4,
        columnspacing=1.2,
        handletextpad=0.4,
        borderaxespad=0.1,
    )
