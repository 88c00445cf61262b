"""Needs of a run: whether the nodes of a cluster meet them, and the smallest change that would make them do so."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, get_args

from actors.cluster.start_line import DeviceLetter
from actors.runtime.placement import GRAIN, total_of
from actors.runtime.session import MIB

Bundle = Mapping[str, float]
# More processes than will ever share a GPU.
_MANY: Final = 1000
# Resources that any node may lend; every other one is a device's own.
PLAIN: Final = ("CPU", "GPU", "memory")
_JOINABLE: Final[Mapping[tuple[str, ...], str]] = {(f"type_{letter}",): letter for letter in get_args(DeviceLetter)}


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


def wished(devices: Iterable[Bundle], nodes: Sequence[Bundle]) -> list[Bundle]:
    """Machines that clients on such ``devices`` lack: one for all that are alike, with one GPU.

    Where the cluster has GPUs, a node without one is no place for them; where it has none, they get none.
    """
    gpus = min(1.0, total_of(nodes).get("GPU", 0.0))
    lacking = fit([{**device, "GPU": gpus / _MANY} for device in devices], nodes).unplaced
    alike = Counter(tuple(device.items()) for device in lacking)
    return [
        {name: gpus if name == "GPU" else amount * number for name, amount in device}
        for device, number in alike.items()
    ]


def changes(result: Fit, address: str) -> list[str]:
    """The least that has to join for everything to fit, as commands; empty where it does.

    A device's own line asks for the GPU or cores that its clients need: those of another node are of no use to them.
    Where ``cluster join`` cannot offer a device's resources, a sentence says how Ray takes them.
    """
    alike: dict[tuple[str, ...], list[Bundle]] = {}
    for bundle in result.unplaced:
        alike.setdefault(tuple(sorted(name for name in bundle if name not in PLAIN)), []).append(bundle)
    kinds = sorted(alike.items(), key=lambda item: (not item[0], item[0]))
    return [_change(own, total_of(bundles), address) for own, bundles in kinds]


def _change(own: tuple[str, ...], total: Bundle, address: str) -> str:
    """Say how one machine joins that offers ``total``; ``own``: its device's resources."""
    join = f"relief-ray cluster join {address}"
    if own and own not in _JOINABLE:
        offered = json.dumps({name: _ceil(total[name]) for name in own})
        return (
            f"`cluster join` has no option for {' with '.join(own)}: add --resources='{offered}' to the `ray start` "
            f"that this prints: {join}{_options(total)} --print"
        )
    number = max(1, round(total[own[0]])) if own else 1
    count = f" --count {number}" if number > 1 else ""
    device = f" --type {_JOINABLE[own]}{count}" if own else ""
    return f"{join}{device}{_options(total)}"


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
