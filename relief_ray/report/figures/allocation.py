"""Who trained what, round by round: a strip of groups per client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from relief_ray.report.document import Number, Plot
from relief_ray.report.experiments import Experiment
from relief_ray.report.figures.style import TEXT_WIDTH_IN, footnote
from relief_ray.report.findings import runs_of
from relief_ray.report.runs import Loaded, device_types

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_CLIENTS, PER_ROW = 12, 3
Rows = Sequence[tuple[int, str, int]]


def allocation(experiment: Experiment, slug: str, method: str = "relief") -> Plot | None:
    """The first run of the method; above twelve clients one of each device type stands for its type."""
    runs = [] if experiment.main is None else runs_of(experiment.main, method)
    if not runs or not runs[0].trained:
        return None
    loaded = runs[0]
    rows = trained(loaded)
    groups = list(dict.fromkeys(j for r in loaded.rounds for c in r.clients for j in c.trained))
    clients = chosen(sorted({n for n, _, _ in rows}), device_types(loaded))
    number = -(-len(clients) // PER_ROW)
    return Plot(
        slug=slug,
        caption=f"Groups that each client trained in every round (dark), `{loaded.title}`; {experiment.title}. Round 0 "
        "is the bootstrap. Fusion blocks of a client's own modalities are mandatory.",
        draw=partial(_draw, experiment=experiment, loaded=loaded, rows=rows, groups=groups, clients=clients),
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


def _draw(
    figure: Figure, experiment: Experiment, loaded: Loaded, rows: Rows, groups: Sequence[str], clients: Sequence[int]
) -> None:
    height, number = float(figure.get_size_inches()[1]), -(-len(clients) // PER_ROW)
    grid = figure.add_gridspec(
        number, PER_ROW, left=0.12, right=0.99, top=1 - 0.2 / height, bottom=0.42 / height, wspace=0.05,
        hspace=0.35 / (0.1 * len(groups)),
    )  # fmt: skip
    types, rounds = device_types(loaded), [r.round for r in loaded.rounds]
    for i, client in enumerate(clients):
        ax = figure.add_subplot(grid[i // PER_ROW, i % PER_ROW])
        _strip(ax, {(j, n) for c, j, n in rows if c == client}, groups, rounds)
        ax.set_title(f"client {client}, type {types.get(client, '?')}", fontsize=7, pad=2)
        ax.tick_params(labelleft=i % PER_ROW == 0, length=0, labelsize=5.5)
        ax.tick_params(axis="x", labelbottom=i + PER_ROW >= len(clients))
        if i + PER_ROW >= len(clients):
            ax.set_xlabel("round", fontsize=7)
    footnote(figure, experiment)


def _strip(ax: Axes, found: set[tuple[str, int]], groups: Sequence[str], rounds: Sequence[int]) -> None:
    from matplotlib.colors import ListedColormap

    image = [[float((j, n) in found) for n in rounds] for j in groups]
    left, right = rounds[0] - 0.5, rounds[-1] + 0.5
    ax.imshow(
        image, cmap=ListedColormap(["#eef1f4", "#0072B2"]), vmin=0, vmax=1, aspect="auto", interpolation="nearest",
        extent=(left, right, len(groups) - 0.5, -0.5),
    )  # fmt: skip
    ax.set_yticks(range(len(groups)), groups)
    ax.set_yticks([i + 0.5 for i in range(len(groups) - 1)], minor=True)
    ax.grid(which="minor", axis="y", color="white", linewidth=0.6)
    ax.tick_params(which="minor", length=0)
