"""Rooms of the house by what imports what: rooms, floors, arrows, circles and arrows that point up.

``python -m tests.guards.rooms [ROOT]`` prints them for a checkout. All imports count: those inside functions too, and
those for type checkers, which a reader has to follow as well.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
PACKAGES = ("relief_ray", "actors", "tune_configs", "benchmarks")
# For every module, or room, those that it imports.
Graph = Mapping[str, set[str]]
Circle = tuple[str, ...]


def import_graph(root: Path = ROOT, packages: tuple[str, ...] = PACKAGES) -> dict[str, set[str]]:
    """For every module of the packages in a checkout, those of them that it imports, by a line wherever it stands."""
    # Grimp looks the packages up as Python does, but runs nothing of them.
    sys.path.insert(0, str(root))
    try:
        graph = grimp.build_graph(*packages, cache_dir=None)
    finally:
        sys.path.remove(str(root))
    return {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}


def circles(graph: Graph) -> list[Circle]:
    """Groups of modules each of which imports, over others or not, all of its group."""
    reach = {}
    for module in graph:
        seen: set[str] = set()
        waiting = [module]
        while waiting:
            fresh = graph[waiting.pop()] - seen
            seen |= fresh
            waiting += fresh
        reach[module] = seen
    return sorted({tuple(sorted(n for n in reach[m] if m in reach[n])) for m in graph if m in reach[m]})


def rooms(graph: Graph, room_of: Callable[[str], str | None]) -> dict[str, set[str]]:
    """For every room, the other rooms that it imports; ``room_of``: a module's room, None for one that is left out."""
    found: dict[str, set[str]] = {}
    for module, imported in graph.items():
        if (room := room_of(module)) is not None:
            others = {other for name in imported if (other := room_of(name)) is not None}
            found[room] = found.get(room, set()) | (others - {room})
    return found


def child(module: str, package: str) -> str | None:
    """Folder or module directly below the package that holds the module; None: it is of another package."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == package else None


def floors(graph: Graph) -> int:
    """Number of floors: rooms of the longest way down; those of a circle share one floor."""
    circle_of = {room: circle for circle in circles(graph) for room in circle}

    @cache
    def floor(circle: Circle) -> int:
        below = {circle_of.get(other, (other,)) for room in circle for other in graph[room]} - {circle}
        return 1 + max(map(floor, below), default=0)

    return max(floor(circle_of.get(room, (room,))) for room in graph)


def upward(graph: Graph, circle: Circle) -> int:
    """Fewest arrows that point up in a circle, however its rooms are stacked."""

    @cache
    def best(stacked: frozenset[str]) -> int:
        tops = ((room, stacked - {room}) for room in stacked)
        return min((best(below) + sum(top in graph[room] for room in below) for top, below in tops), default=0)

    return best(frozenset(circle))


# What is seen as a room, by what is looked at.
VIEWS: Mapping[str, Callable[[str], str | None]] = {
    "the house": lambda m: child(m, "relief_ray") or m.partition(".")[0],
    "inside relief_ray": lambda m: child(m, "relief_ray"),
    "inside actors": lambda m: child(m, "actors"),
}


def table(graph: Graph) -> str:
    """Figures of the whole house and of its two large packages, as a Markdown table, and the circles of modules."""
    lines = ["| | rooms | floors | arrows | circles | upward arrows |", "|---|---:|---:|---:|---:|---:|"]
    for title, room_of in VIEWS.items():
        house = rooms(graph, room_of)
        round_about = circles(house)
        figures = (
            len(house),
            floors(house),
            sum(map(len, house.values())),
            len(round_about),
            sum(upward(house, circle) for circle in round_about),
        )
        lines.append(f"| {title} | {' | '.join(map(str, figures))} |")
        lines += [f"| circle of {', '.join(circle)} | | | | | |" for circle in round_about]
    of_modules = [f"circle of modules: {', '.join(circle)}" for circle in circles(graph)]
    return "\n".join([*lines, "", *(of_modules or ["no circle of modules"])])


def main() -> None:
    """Print the figures of a checkout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", nargs="?", type=Path, default=ROOT, help="a checkout; default: this one")
    print(table(import_graph(parser.parse_args().root.resolve())))


if __name__ == "__main__":
    main()
