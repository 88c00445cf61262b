"""Needs of a run: whether the nodes of a cluster meet them, and the smallest change that would make them do so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from actors.runtime.placement import GRAIN
from actors.runtime.session import MIB

Bundle = Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """Whether processes find places on nodes.

    Attributes:
        needed: resources of all processes together.
        unplaced: processes that found none, the most demanding first; empty where all did.
    """

    needed: Bundle
    unplaced: tuple[Bundle, ...]

    @property
    def missing(self) -> Bundle:
        """Resources of the processes that found no place, together."""
        return total_of(self.unplaced)

    @property
    def fits(self) -> bool:
        """True where every process has a place."""
        return not self.unplaced


def fit(bundles: Iterable[Bundle], nodes: Iterable[Bundle]) -> Fit:
    """Give every process a place, the most demanding first, each on one node.

    First fit in decreasing order: exact where processes are alike, as clients of a type are.
    """
    wanted = sorted(bundles, key=_weight, reverse=True)
    free = [dict(node) for node in nodes]
    unplaced = tuple(bundle for bundle in wanted if not _place(bundle, free))
    return Fit(needed=total_of(wanted), unplaced=unplaced)


def _weight(bundle: Bundle) -> tuple[int, float]:
    """Rare resources first, then much."""
    rare = sum(1 for name in bundle if name not in ("CPU", "memory"))
    return rare, bundle.get("CPU", 0.0) + bundle.get("memory", 0.0) / (1024 * MIB)


def _place(bundle: Bundle, free: list[dict[str, float]]) -> bool:
    for node in free:
        if all(node.get(name, 0.0) + GRAIN >= amount for name, amount in bundle.items()):
            for name, amount in bundle.items():
                node[name] = node.get(name, 0.0) - amount
            return True
    return False


def total_of(bundles: Iterable[Bundle]) -> dict[str, float]:
    """Resources of all bundles together."""
    total: dict[str, float] = {}
    for bundle in bundles:
        for name, amount in bundle.items():
            total[name] = total.get(name, 0.0) + amount
    return total


def changes(result: Fit, address: str) -> list[str]:
    """The least that has to join for everything to fit, as commands; empty where it does.

    A device's own line asks for the GPU or cores that its clients need: those of another node are of no use to them.
    """
    by_type: dict[str, list[Bundle]] = {}
    for bundle in result.unplaced:
        by_type.setdefault(next((name for name in bundle if name.startswith("type_")), ""), []).append(bundle)
    lines = []
    for name, bundles in sorted(by_type.items(), key=lambda item: (not item[0], item[0])):
        total = total_of(bundles)
        number = max(1, round(total.get(name, 0.0)))
        count = f" --count {number}" if number > 1 else ""
        device = f" --type {name.removeprefix('type_')}{count}" if name else ""
        lines.append(f"relief-ray cluster join {address}{device}{_options(total)}")
    return lines


def _options(plain: Bundle) -> str:
    """Options of one node that offers what is missing."""
    words = {"CPU": "--num-cpus", "GPU": "--num-gpus"}
    parts = [f" {words[name]} {_ceil(plain[name])}" for name in words if plain.get(name, 0.0) > 0]
    if plain.get("memory", 0.0) > 0:
        parts.append(f" --memory-mib {_ceil(plain['memory'] / MIB)}")
    return "".join(parts)


def _ceil(amount: float) -> int:
    return int(-(-(amount - GRAIN) // 1))


def in_words(resources: Bundle) -> str:
    """``4 cores, 2 GPUs, 3 x type_a, 1,024 MiB``."""
    units = {"CPU": "core", "GPU": "GPU"}
    amounts = [(resources.get(name, 0.0), unit) for name, unit in units.items()]
    parts = [f"{amount:g} {unit}{'' if amount == 1 else 's'}" for amount, unit in amounts if amount > 0]
    own = {name: amount for name, amount in resources.items() if name not in (*units, "memory", "server")}
    parts += [f"{amount:g} x {name}" for name, amount in sorted(own.items()) if amount > 0]
    if resources.get("memory", 0.0) > 0:
        parts.append(f"{resources['memory'] / MIB:,.0f} MiB")
    if resources.get("server", 0.0) > 0:
        parts.append("server")
    return ", ".join(parts) or "nothing"


def at_once(trial: Sequence[Bundle], nodes: Sequence[Bundle], most: int) -> int:
    """Number of equal trials that find places together, at most ``most``."""
    number = 0
    while number < most and fit([bundle for _ in range(number + 1) for bundle in trial], nodes).fits:
        number += 1
    return number
