"""Table of measured rounds (``runtime.physical``) beside what the run's clock computed for them.

Measured and simulated figures stand in columns of their own and are never added or averaged together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean

from relief_ray.core.messages import ClientCost
from relief_ray.records.schema import PhysicalRecord
from relief_ray.report.comparison import Comparison, Experiment
from relief_ray.report.runs import Loaded, device_types
from relief_ray.support.table import Cell, Origin, Row, Table

_NOT_MEASURED = "n/a"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pair:
    """A figure that is both measured and simulated."""

    head: str
    measured: Callable[[PhysicalRecord], float | None]
    simulated: Callable[[ClientCost], float]
    decimals: int = 2


_PAIRS = (
    _Pair(head="down, s", measured=lambda m: m.down_s, simulated=lambda c: c.times.down_s),
    _Pair(head="compute, s", measured=lambda m: m.compute_s, simulated=lambda c: c.times.compute_s),
    _Pair(head="up, s", measured=lambda m: m.up_s, simulated=lambda c: c.times.up_s),
    _Pair(head="wait, s", measured=lambda m: m.wait_s, simulated=lambda c: c.wait_s),
    _Pair(head="J", measured=lambda m: m.energy_j, simulated=lambda c: c.energy_j, decimals=1),
)
_NOTES = (
    "Means over a type's devices, rounds after the bootstrap and runs; n/a: no device of the type tells it. Measured "
    "seconds are of one clock each, at the receiver; measured joules are the whole board's while it fetched, trained "
    "and packed, simulated ones those of a whole round.",
    "Simulated figures are those of the fleet that the run was given, whatever boards computed it: they are expected "
    "to agree only where the clock is a profile of these boards (`costs.profile`).",
)


@dataclass(slots=True)
class _Group:
    """Devices of one type under one method."""

    measured: list[PhysicalRecord] = field(default_factory=list)
    simulated: list[ClientCost] = field(default_factory=list)
    num_runs: int = 0


def physical_table(experiment: Experiment, slug: str) -> Table | None:
    """A row per method and device type; None where nothing was measured on devices."""
    comparison = experiment.main
    if comparison is None:
        return None
    rows = [
        _row(label, kind, group)
        for label in dict.fromkeys(row.label for row in comparison.rows)
        for kind, group in sorted(_groups(comparison, label).items())
    ]
    if not rows:
        return None
    pairs = [head for pair in _PAIRS for head in (pair.head, f"{pair.head}, by `{comparison.clock}`")]
    return Table(
        slug=slug,
        caption=f"Testbed as measured, beside the simulation: {experiment.title}.",
        head=("method, type", "runs", *pairs, "boards", "slowed, % of rounds"),
        rows=tuple(rows),
        notes=_NOTES,
    )


def _groups(comparison: Comparison, label: str) -> Mapping[str, _Group]:
    """A method's devices by type, of the runs that were measured."""
    groups: dict[str, _Group] = {}
    for loaded in comparison.runs_of(label):
        seen = _of_run(loaded, comparison.clock)
        for kind, (measured, simulated) in seen.items():
            group = groups.setdefault(kind, _Group())
            group.measured += measured
            group.simulated += simulated
            group.num_runs += 1
    return groups


def _of_run(loaded: Loaded, clock: str) -> dict[str, tuple[list[PhysicalRecord], list[ClientCost]]]:
    """Measured and simulated rounds of the clients that were measured, by device type."""
    types, found = device_types(loaded), dict[str, tuple[list[PhysicalRecord], list[ClientCost]]]()
    for record in loaded.trained:
        costs = {cost.client: cost for cost in record.costs[clock].clients}
        for client, measured in record.physical.items():
            both = found.setdefault(types.get(client, "?"), ([], []))
            both[0].append(measured)
            if client in costs:
                both[1].append(costs[client])
    return found


def _row(label: str, kind: str, group: _Group) -> Row:
    cells = [Cell(text=str(group.num_runs), numbers={"n": group.num_runs})]
    for pair in _PAIRS:
        cells.append(_cell([pair.measured(m) for m in group.measured], pair.decimals, "measured"))
        cells.append(_cell([pair.simulated(c) for c in group.simulated], pair.decimals, "simulated"))
    modes = {f"{m.device}, {m.power_mode}" if m.power_mode else m.device for m in group.measured}
    cells.append(Cell(text="; ".join(sorted(modes))))
    cells.append(_cell([None if m.throttled is None else 100.0 * m.throttled for m in group.measured], 0, "measured"))
    return Row(name=f"{label}, type {kind}", cells=tuple(cells))


def _cell(values: Sequence[float | None], decimals: int, origin: Origin) -> Cell:
    """Mean of the values that are there, ``n/a`` without any."""
    there = [value for value in values if value is not None]
    if not there:
        return Cell(text=_NOT_MEASURED, origin=origin, numbers={"n": 0, "origin": origin})
    numbers: dict[str, float | int | str | None] = {"mean": mean(there), "n": len(there), "origin": origin}
    return Cell(text=f"{mean(there):.{decimals}f}", origin=origin, numbers=numbers)
