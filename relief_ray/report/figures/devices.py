"""Devices of the fleet and what they learn: groups that each client trained, a mean round, updates of the blocks.

Updates are shown as their cosine between clients (the paper's Fig. 2), their divergence by phase (Fig. 3), and round by
round.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import TYPE_CHECKING, Any, TypeVar

from relief_ray.core.messages import BOOTSTRAP
from relief_ray.report.comparison import Comparison, is_own_method, stat
from relief_ray.report.document import Figure
from relief_ray.report.figures.style import (
    COLOURS,
    FAINT,
    at_most,
    footnote,
    legend_in,
    look,
    panels,
    plain_axes,
    styles,
    top_legend,
)
from relief_ray.report.remarks import DeviceShare, device_shares
from relief_ray.report.results import FUSION_BLOCK
from relief_ray.report.runs import Loaded
from relief_ray.strategies import PROPOSED, REFERENCE
from relief_ray.support.errors import counted
from relief_ray.support.table import grouped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as MplFigure
    from matplotlib.image import AxesImage

MAX_CLIENTS, _PER_ROW = 12, 3
_MAX_BARS = 4
# part, hatch, strength
_PARTS = (("compute", "", 1.0), ("link", "///", 0.5), ("wait", "", 0.12))
_MAX_COMPARED = 20
_NUM_PHASES = 5
_BELOW_IN = 0.54
# Block or group, then round, phase or pair of clients.
Key = TypeVar("Key", bound=tuple[Any, ...])


def allocation(comparison: Comparison, method: str = "") -> Figure | None:
    """The first run of the method; above twelve clients one of each device type stands for its type.

    ``method`` empty: RELIEF, or where it did not run the first one of the user's own.
    """
    usual = filter(comparison.row, (PROPOSED, *filter(is_own_method, comparison.labels)))
    loaded = next(iter(comparison.runs_of(method or next(usual, ""))), None)
    if loaded is None:
        return None
    rows = [(c.client, group, r.round) for r in loaded.rounds for c in r.clients for group in c.trained]
    if not rows:
        return None
    every, types, trained = sorted({client for client, _, _ in rows}), loaded.types, set(rows)
    clients, groups = chosen(every, types), list(dict.fromkeys(group for _, group, _ in rows))
    is_forced = loaded.value("strategy.mandatory") is True
    first = next((r.round for r in loaded.rounds if r.phase == BOOTSTRAP), None)
    notes = (
        "" if first is None else f" Round {first} is the bootstrap.",
        " Fusion blocks of a client's own modalities are mandatory." if is_forced else "",
        " One client of each device type is drawn." if len(clients) < len(every) else "",
    )

    def draw(figure: MplFigure) -> None:
        """A strip per client: its groups by round, dark where it trained them."""
        from matplotlib.colors import ListedColormap
        from matplotlib.ticker import MaxNLocator

        rounds = [r.round for r in loaded.rounds]
        gap = 0.35 / (0.1 * len(groups))
        axes = panels(
            figure, len(clients), per_row=_PER_ROW, above_in=0.2, below_in=0.42, left=0.12, gap=0.05, row_gap=gap
        )
        for i, (ax, client) in enumerate(zip(axes, clients, strict=True)):
            ax.imshow(
                [[float((client, group, n) in trained) for n in rounds] for group in groups],
                cmap=ListedColormap(["#eef1f4", "#0072B2"]),
                vmin=0,
                vmax=1,
                aspect="auto",
                interpolation="nearest",
                extent=(rounds[0] - 0.5, rounds[-1] + 0.5, len(groups) - 0.5, -0.5),
            )
            ax.set_yticks(range(len(groups)), groups)
            ax.set_yticks([row + 0.5 for row in range(len(groups) - 1)], minor=True)
            ax.grid(which="minor", axis="y", color="white", linewidth=0.6)
            ax.set_title(f"client {client}, type {types.get(client, '?')}", fontsize=7, pad=2)
            is_last = i + _PER_ROW >= len(clients)
            ax.tick_params(which="both", length=0)
            ax.tick_params(labelleft=i % _PER_ROW == 0, labelbottom=is_last, labelsize=5.5)
            if is_last:
                ax.set_xlabel("round", fontsize=7)
            ax.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        footnote(figure, [loaded])

    return Figure(
        caption=f"Groups that each client trained in every round (dark), `{loaded.title}`; {comparison.title}."
        f"{''.join(notes)}",
        draw=draw,
        height_in=0.55 + -(-len(clients) // _PER_ROW) * (0.3 + 0.085 * len(groups)),
        columns=("client", "group", "round"),
        rows=rows,
    )


def chosen(clients: Sequence[int], types: Mapping[int, str]) -> list[int]:
    """All clients, or the first of every device type where they are too many to be drawn."""
    if len(clients) <= MAX_CLIENTS:
        return list(clients)
    return [same[0] for same in grouped((types.get(n, "?"), n) for n in clients).values()]


def devices(comparison: Comparison) -> Figure | None:
    """Time and energy of a mean round per device type (left column of the paper's Fig. 8, for every type)."""
    fleets = [r.label for r in comparison.rows if not r.is_bound and comparison.runs_of(r.label)[0].types]
    methods = at_most(_MAX_BARS, fleets)
    shares = [s for m in methods for s in device_shares(comparison.runs_of(m), comparison.clock)]
    if not shares:
        return None

    def draw(figure: MplFigure) -> None:
        from matplotlib.patches import Patch

        looks = styles(comparison.labels)
        num_devices = {s.kind: s.num_devices for s in shares}
        number = {kind: num_devices[kind] for kind in comparison.in_order(num_devices)}
        left, right = axes = panels(figure, 2, above_in=0.336, below_in=_BELOW_IN, left=0.085, gap=0.2)
        width = 0.8 / len(methods)
        for share in shares:
            x = list(number).index(share.kind) + (methods.index(share.method) - (len(methods) - 1) / 2) * width
            bottom, colour = 0.0, looks[share.method].color
            for (_, hatch, alpha), height in zip(_PARTS, (share.compute_s, share.link_s, share.wait_s), strict=True):
                left.bar(
                    x,
                    height,
                    width * 0.9,
                    bottom=bottom,
                    color=colour,
                    alpha=alpha,
                    hatch=hatch,
                    edgecolor=FAINT,
                    linewidth=0.3,
                )
                bottom += height
            right.bar(x, share.energy_j, width * 0.9, color=colour)
            right.text(x, share.energy_j, f"{share.energy_j:.3g}", ha="center", va="bottom", fontsize=5)
        for ax, label in zip(axes, ("seconds per round", "joules per round and device"), strict=True):
            ax.set_xticks(range(len(number)), [f"Type {kind}\n{counted(n, 'device')}" for kind, n in number.items()])
            ax.set_ylabel(label)
            plain_axes(ax, "y")
        left.set_ylim(top=1.05 * max(s.compute_s + s.link_s + s.wait_s for s in shares))
        of_methods = [Patch(facecolor=looks[m].color, label=m) for m in methods]
        of_parts = [Patch(facecolor=FAINT, alpha=a, hatch=h, edgecolor=FAINT, label=name) for name, h, a in _PARTS]
        top_legend(figure, patches=[*of_methods, *of_parts])
        footnote(figure, comparison.runs, comparison.clock)

    return Figure(
        caption=f"A mean round per device type: seconds (full: computing, striped: link, pale: waiting for the "
        f"slowest) and joules of one device; {comparison.title}.",
        draw=draw,
        height_in=2.4,
        columns=DeviceShare._fields,
        rows=shares,
    )


def collected(values: Iterable[tuple[Key, float]]) -> dict[Key, list[float]]:
    """All values of every key; keys by the first appearance of their first part, then by size."""
    found = grouped(values)
    first = list(dict.fromkeys(key[0] for key in found))
    return {key: found[key] for key in sorted(found, key=lambda key: (first.index(key[0]), key))}


def cosine(comparison: Comparison) -> Figure | None:
    """A matrix of clients per fusion block under FedAvg; None where updates were not compared in pairs."""
    runs = comparison.runs_of(REFERENCE)
    pairs = pair_means(runs)
    if not pairs:
        return None
    blocks = list(dict.fromkeys(block for block, _, _ in pairs))
    compared = [sum(bool(r.pairwise) for r in loaded.rounds) for loaded in runs]
    fig = "" if comparison.is_own_data else " (the paper's Fig. 2)"
    how_many = f"{counted(sum(compared), 'compared round')} of {counted(sum(map(bool, compared)), 'run')}"

    def draw(figure: MplFigure) -> None:
        clients, types = sorted({n for _, *both in pairs for n in both})[:_MAX_COMPARED], runs[0].types
        names = [f"{types.get(n, '')}{n}" for n in clients]
        limit = max(0.25, *map(abs, pairs.values()))
        axes = panels(figure, len(blocks), above_in=0.3, below_in=0.33, left=0.05, right=0.895, gap=0.12)
        for ax, block in zip(axes, blocks, strict=True):
            values = [[pairs.get((block, min(a, b), max(a, b)), float("nan")) for b in clients] for a in clients]
            image = _matrix(ax, values, names, limit)
            ax.set_title(block.removeprefix(FUSION_BLOCK))
            ax.tick_params(labelleft=ax is axes[0], length=0, labelsize=6)
        bar = figure.colorbar(image, cax=figure.add_axes((0.91, 0.2, 0.012, 0.6)))
        bar.ax.tick_params(labelsize=6)
        bar.set_label("cosine", fontsize=7)
        footnote(figure, runs)

    return Figure(
        caption=f"Cosine of two clients' updates of a fusion block under `{REFERENCE}`{fig}, mean over "
        f"{how_many}; {comparison.title}. Letters: device types. A client that did not upload a block, or did not move "
        "it, has no pair or 0 there.",
        draw=draw,
        height_in=2.35,
        columns=("block", "client", "other", "cosine"),
        rows=[(*key, value) for key, value in pairs.items()],
    )


def pair_means(runs: Sequence[Loaded]) -> dict[tuple[str, int, int], float]:
    """Mean cosine over all compared rounds of all runs by block, client and client of a larger number."""
    cosines = collected(
        ((block, min(a, b), max(a, b)), value)
        for loaded in runs
        for record in loaded.rounds
        for block, rows in record.pairwise.items()
        for a, b, value in rows
        if block.startswith(FUSION_BLOCK)
    )
    return {key: mean(values) for key, values in cosines.items()}


def _matrix(ax: Axes, values: Sequence[Sequence[float]], names: Sequence[str], limit: float) -> AxesImage:
    """Cosines by colour; of few clients in figures too, grey where there is none."""
    ax.set_facecolor("#eeeeee")
    image = ax.imshow(values, cmap="PuOr", vmin=-limit, vmax=limit)
    ax.set_xticks(range(len(names)), names, rotation=90)
    ax.set_yticks(range(len(names)), names)
    written = [(x, y, v) for y, row in enumerate(values) for x, v in enumerate(row) if len(names) <= 10 and v == v]
    for x, y, value in written:
        colour = "white" if abs(value) > 0.6 * limit else "black"
        ax.text(x, y, f"{value:.2f}", ha="center", va="center", fontsize=3.8, color=colour)
    return image


def phases(comparison: Comparison) -> Figure | None:
    """Mean and spread of Eq. (5) per fusion block over five equal phases under FedAvg, as in the paper.

    None below five rounds, which make no five phases.
    """
    runs = comparison.runs_of(REFERENCE)
    rows = [(*key, *stat(values)) for key, values in by_phase([r for r in runs if r.planned >= _NUM_PHASES]).items()]
    if not rows:
        return None
    fig = "" if comparison.is_own_data else " (the paper's Fig. 3)"

    def draw(figure: MplFigure) -> None:
        blocks = list(dict.fromkeys(row[0] for row in rows))
        (ax,) = panels(figure, 1, above_in=0.31, below_in=_BELOW_IN)
        for i, block in enumerate(blocks):
            mine, style = [row for row in rows if row[0] == block], look(i)
            ax.errorbar(
                [row[1] + 0.06 * (i - (len(blocks) - 1) / 2) for row in mine],
                [row[2] for row in mine],
                yerr=[row[3] or 0.0 for row in mine],
                **style._asdict(),
                markersize=4,
                linewidth=1.1,
                elinewidth=0.7,
                capsize=2,
                label=block.removeprefix(FUSION_BLOCK),
            )
        ax.set_xticks(range(1, _NUM_PHASES + 1))
        ax.set_xlabel("phase of training (fifths of the rounds)")
        ax.set_ylabel("divergence of updates")
        ax.set_ylim(bottom=0)
        plain_axes(ax)
        top_legend(figure)
        footnote(figure, runs)

    return Figure(
        caption=f"Divergence of each block's updates over its cohort by phase of training, under `{REFERENCE}`"
        f"{fig}; {comparison.title}. Points: mean over rounds and runs, bars: sample standard deviation.",
        draw=draw,
        height_in=2.2,
        columns=("block", "phase", "divergence", "std", "num"),
        rows=rows,
    )


def by_phase(runs: Sequence[Loaded]) -> dict[tuple[str, int], list[float]]:
    """The divergences of all rounds and runs by block and phase (1 to 5), a block's phases one after another."""
    return collected(
        ((block, 1 + min(_NUM_PHASES - 1, (record.round - 1) * _NUM_PHASES // max(1, loaded.planned))), value)
        for loaded in runs
        for record in loaded.rounds
        for block, value in record.divergence.items()
        if block.startswith(FUSION_BLOCK)
    )


def traces(comparison: Comparison) -> Figure | None:
    """Eq. (5) of every round and its moving average, Eq. (6), of every group; None where RELIEF kept none."""
    runs = comparison.runs_of(PROPOSED)
    halves = {"d": series(runs, "divergence"), "d_bar": series(runs, "d_bar")}
    if not halves["d_bar"]:
        return None
    average = f" Mean over {len(runs)} runs." if len(runs) > 1 else ""

    def draw(figure: MplFigure) -> None:
        from matplotlib.ticker import MaxNLocator

        groups = list(dict.fromkeys(group for group, _ in halves["d_bar"]))
        axes = panels(
            figure, 2, above_in=legend_in(groups) + 0.25, below_in=_BELOW_IN, left=0.065, gap=0.08, sharey=True
        )
        titles = ("divergence of updates", "its moving average over rounds")
        for ax, values, title in zip(axes, halves.values(), titles, strict=True):
            for i, group in enumerate(groups):
                points, style = {n: value for (name, n), value in values.items() if name == group}, look(i)
                ax.plot(
                    list(points),
                    list(points.values()),
                    color=style.color,
                    linestyle=style.linestyle,
                    # Lines beyond the eighth have colours of the first ones.
                    marker=style.marker if i >= len(COLOURS) else "",
                    markersize=2.5,
                    linewidth=1.1,
                    label=group,
                )
            ax.set_yscale("log")
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
            ax.set_title(title, loc="left", fontsize=8, pad=3)
            ax.set_xlabel("round")
            plain_axes(ax)
        top_legend(figure)
        footnote(figure, runs)

    return Figure(
        caption=f"Divergence of every group under `{PROPOSED}`, round by round, left, and its moving average, "
        f"right; {comparison.title}.{average} The allocator ranks by the right half.",
        draw=draw,
        height_in=3.0,
        columns=("quantity", "group", "round", "value"),
        rows=[(kind, *key, value) for kind, values in halves.items() for key, value in values.items()],
    )


def series(runs: Sequence[Loaded], field: str) -> dict[tuple[str, int], float]:
    """Mean over runs by group and round, a group's rounds one after another."""
    found = collected(
        ((group, record.round), value)
        for loaded in runs
        for record in loaded.rounds
        for group, value in getattr(record, field).items()
    )
    return {key: mean(values) for key, values in found.items()}
