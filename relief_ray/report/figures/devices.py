"""A mean round device by device: where its seconds and joules go, by method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import mean
from typing import TYPE_CHECKING

from relief_ray.report.document import Plot
from relief_ray.report.experiments import Experiment
from relief_ray.report.figures.style import FAINT, FIRST, TEXT_WIDTH_IN, all_styles, footnote, plain_axes
from relief_ray.report.findings import runs_of
from relief_ray.report.runs import Loaded, device_types

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_METHODS = 4
# part, hatch, strength
PARTS = (("compute", "", 1.0), ("link", "///", 0.5), ("wait", "", 0.12))


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """A device type's mean round under a method: seconds of computing, link and waiting, and joules, per device."""

    method: str
    kind: str
    compute_s: float
    link_s: float
    wait_s: float
    energy_j: float
    num_devices: int


def shares(runs: Sequence[Loaded], method: str, clock: str) -> list[Share]:
    """Means over devices of a type, rounds 1..R and runs."""
    found: dict[str, list[tuple[float, float, float, float]]] = {}
    devices: dict[str, set[int]] = {}
    for loaded in runs:
        types = device_types(loaded)
        for cost in (c for r in loaded.trained for c in r.costs[clock].clients):
            kind, t = types.get(cost.client, "?"), cost.times
            compute, link = t.forward_s + t.backward_s + t.optimizer_s, t.up_s + t.down_s
            found.setdefault(kind, []).append((compute, link, cost.wait_s, cost.energy_j))
            devices.setdefault(kind, set()).add(cost.client)
    return [_share(method, kind, rows, len(devices[kind])) for kind, rows in sorted(found.items())]


def _share(method: str, kind: str, rows: Sequence[tuple[float, float, float, float]], num: int) -> Share:
    compute, link, wait, energy = (mean(column) for column in zip(*rows, strict=True))
    return Share(
        method=method, kind=kind, compute_s=compute, link_s=link, wait_s=wait, energy_j=energy, num_devices=num
    )


def devices(experiment: Experiment, slug: str) -> Plot | None:
    """Time and energy of a mean round per device type (left column of the paper's Fig. 8, for every type)."""
    comparison = experiment.main
    if comparison is None:
        return None
    fleets = [r.label for r in comparison.rows if r.label in FIRST and device_types(runs_of(comparison, r.label)[0])]
    methods = sorted(fleets, key=FIRST.index)[:MAX_METHODS]
    found = [s for m in methods for s in shares(runs_of(comparison, m), m, comparison.clock)]
    if not found:
        return None
    names = ("method", "kind", "compute_s", "link_s", "wait_s", "energy_j", "num_devices")
    return Plot(
        slug=slug,
        caption=f"A mean round per device type: seconds (full: computing, striped: link, pale: waiting for the "
        f"slowest) and joules of one device; {experiment.title}.",
        draw=partial(_draw, experiment=experiment, found=found, methods=methods),
        width_in=TEXT_WIDTH_IN,
        height_in=2.4,
        columns=names,
        rows=[[getattr(s, n) for n in names] for s in found],
    )


def _draw(figure: Figure, experiment: Experiment, found: Sequence[Share], methods: Sequence[str]) -> None:
    assert experiment.main is not None
    look = {m: s.colour for m, s in all_styles(experiment.main).items()}
    grid = figure.add_gridspec(1, 2, left=0.085, right=0.99, top=0.86, bottom=0.22, wspace=0.2)
    left, right = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[0, 1])
    kinds = sorted({s.kind for s in found})
    width = 0.8 / len(methods)
    for share in found:
        x = kinds.index(share.kind) + (methods.index(share.method) - (len(methods) - 1) / 2) * width
        _stack(left, x, width * 0.9, share, look)
        right.bar(x, share.energy_j, width * 0.9, color=look[share.method])
        right.text(x, share.energy_j, f"{share.energy_j:.3g}", ha="center", va="bottom", fontsize=5)
    for ax, label in ((left, "seconds per round"), (right, "joules per round and device")):
        number = {s.kind: s.num_devices for s in found}
        ax.set_xticks(range(len(kinds)), [f"Type {k}\n{number[k]} devices" for k in kinds])
        ax.set_ylabel(label)
        plain_axes(ax)
        ax.grid(visible=False, axis="x")
    _legend(figure, methods, look)
    footnote(figure, experiment, experiment.main.clock)


def _stack(ax: Axes, x: float, width: float, share: Share, look: Mapping[str, str]) -> None:
    bottom = 0.0
    for (_, hatch, alpha), height in zip(PARTS, (share.compute_s, share.link_s, share.wait_s), strict=True):
        ax.bar(
            x, height, width, bottom=bottom, color=look[share.method], alpha=alpha, hatch=hatch, edgecolor=FAINT,
            linewidth=0.3,
        )  # fmt: skip
        bottom += height


def _legend(figure: Figure, methods: Sequence[str], look: Mapping[str, str]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=look[m], label=m) for m in methods]
    handles += [Patch(facecolor=FAINT, alpha=a, hatch=h, edgecolor=FAINT, label=name) for name, h, a in PARTS]
    figure.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0.05, 0.995), ncols=len(handles), frameon=False,
        handlelength=1.4, columnspacing=1.2, handletextpad=0.4, borderaxespad=0.1,
    )  # fmt: skip
