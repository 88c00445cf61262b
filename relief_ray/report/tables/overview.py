"""What a report rests on: cells by status, settings, programs; a setting's windows and clients, and measured rounds.

Measured and simulated figures stand in columns of their own and are never added or averaged together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import starmap
from operator import attrgetter
from statistics import mean

from relief_ray.core.messages import ClientCost
from relief_ray.plugins.load import is_path
from relief_ray.records.cells import STATUS_TEXT
from relief_ray.records.facts import ClientData, DataFacts, data_facts
from relief_ray.records.identity import commit, flat, source_digest
from relief_ray.records.schema import PhysicalRecord, Status, has_folds
from relief_ray.report.comparison import Comparison, distinct, in_title, programs
from relief_ray.report.document import ORIGINS
from relief_ray.report.runs import (
    STATUSES,
    GridItem,
    Inventory,
    Loaded,
    choice_kind,
    split_name,
)
from relief_ray.support.errors import counted, listed
from relief_ray.support.table import NONE, Cell, Origin, Row, Table, grouped, word_table

# Share of a window that two neighbours may have in common without a word.
_FEW_SHARED = 0.05


def overview(inventory: Inventory, comparisons: Sequence[Comparison]) -> Iterator[Table]:
    """Counts, settings, programs and the meaning of origins."""
    yield counts(inventory, comparisons)
    if inventory.done:
        rows = _settings_rows(inventory.done) | _own_rows(item for item in inventory.items if item.done)
        yield word_table(["setting", "value"], rows.items(), "settings", "Settings of the runs that count.")
    if len(kinds := programs(inventory.done)) > 1:
        here = source_digest()[:12]
        known = [
            [f"{digest}{' (this program)' if digest == here else ''}", torch, machine, str(number)]
            for (digest, torch, machine), number in kinds.most_common()
        ]
        yield word_table(["sources", "torch", "architecture", "cells"], known, "programs", "Programs.")
    is_fitted = any(not e.is_own_data or any(m.is_fitted for m in e.methods.values()) for e in comparisons)
    origins = [row for row in ORIGINS.items() if row[0] != "FITTED" or is_fitted]
    yield word_table(["origin", "meaning"], origins, "origins", "Where figures come from.")


def counts(inventory: Inventory, comparisons: Sequence[Comparison]) -> Table:
    """A row per setting: its cells by status."""
    groups = [(e.title, e.items) for e in comparisons]
    lost = tuple(s for s in inventory.items if not s.config)
    groups += [("cells whose record cannot be read", lost)] if lost else []
    groups += [("all", inventory.items)] if len(groups) != 1 else []
    # Searches alone stop runs early: elsewhere the column would say nothing.
    statuses = tuple(s for s in STATUSES if s != "stopped" or inventory.count(s))
    listed_below = "" if all(s.status == "done" for s in inventory.items) else "; the others are listed under Gaps"
    return Table(
        slug="cells",
        caption=f"Cells by status. Only `done` cells enter means{listed_below}.",
        head=("experiment", "planned or found", *statuses),
        rows=tuple(Row(name, tuple(_counts(items, statuses)), rule=name == "all") for name, items in groups),
    )


def _counts(items: Sequence[GridItem], statuses: Sequence[Status]) -> Iterable[Cell]:
    by_status = Counter(s.status for s in items)
    for number, is_gap in ((len(items), False), *((by_status[status], status != "done") for status in statuses)):
        yield Cell(str(number), tone="gap" if number and is_gap else "", numbers={"n": number})


def gaps(inventory: Inventory) -> Table | None:
    """Every cell that is not done, and why."""
    rows = [
        [s.name, s.title if s.config else s.label, s.status, s.why or STATUS_TEXT[s.status]]
        for s in inventory.items
        if s.status != "done" and not (s.status == "untested" and choice_kind(s.config) == "try")
    ]
    caption = f"{counted(len(rows), 'cell')} in no mean."
    return word_table(["cell", "run", "status", "why"], rows, "gaps", caption) if rows else None


def footer(runs: Sequence[Loaded]) -> str:
    """Machine, cores, threads, torch build, engine, data origin, sources; their commit where it is this program's."""
    if not runs:
        return "No run counts: nothing was measured."
    digests = list(dict.fromkeys(r.run.source_digest for r in runs))
    known = commit() if digests == [source_digest()] else None
    parts = [
        distinct(r.machine for r in runs),
        distinct(f"torch {r.run.machine.torch}" for r in runs),
        distinct(f"engine {r.run.engine}" for r in runs),
        distinct(f"{r.run.data_origin} data" for r in runs),
        f"sources {listed(d[:12] for d in digests)}" + (f", commit {known}" if known else ""),
    ]
    return "; ".join(parts)


def _settings_rows(runs: Sequence[Loaded]) -> dict[str, str]:
    """Methods and versions of the runs, and what they took."""
    versions = (
        f"relief-ray {r.run.code_version} (sources {r.run.source_digest[:12]}), Python {r.run.machine.python}, "
        f"torch {r.run.machine.torch}, numpy {r.run.machine.numpy}"
        for r in runs
    )
    methods = distinct(f"`{r.label}`" for r in runs)
    return {"methods": methods, "versions": distinct(versions), "computed": _computed(runs)}


def _own_rows(items: Iterable[GridItem]) -> dict[str, str]:
    """Fields of the user's own methods and device types: a row each."""
    values = ((item.label, flat(item.config)) for item in items)
    own = (
        (key.replace("strategy", f"`{label}`", 1), in_title(value))
        for label, config in values
        for key, value in config.items()
        if key.startswith(("fleet.types.", "strategy.") if is_path(config.get("strategy.name")) else "fleet.types.")
        and key != "strategy.name"
    )
    return {key: ", ".join(dict.fromkeys(values)) for key, values in grouped(own).items()}


def _computed(runs: Sequence[Loaded]) -> str:
    """``36 runs, 132 rounds, 2.9 h of process time``."""
    seconds = sum(record.wall_s for r in runs for record in r.rounds)
    rounds = counted(sum(len(r.rounds) for r in runs), "round")
    return f"{counted(len(runs), 'run')}, {rounds}, {_duration(seconds)} of process time"


def _duration(seconds: float) -> str:
    """A time in its usual unit: ``4.2 s``, ``3.5 min``, ``2.9 h``."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def data_tables(comparison: Comparison, slug: str) -> tuple[Table, ...]:
    """Windows by fold and part, and a row per client; empty where no run is done, or cells of pooled data alone."""
    known = _one_of_each(comparison.runs)
    if not known:
        return ()
    windows = _windows_table(comparison, f"{slug}-windows", known)
    lacking = dict(pair for _, facts in known for pair in facts.lacking)
    clients = [row for _, facts in known for row in facts.clients]
    return (windows, _clients_table(comparison, f"{slug}-clients", clients, lacking)) if clients else (windows,)


def _one_of_each(runs: Sequence[Loaded]) -> list[tuple[Loaded, DataFacts]]:
    """A run of every fold and rotation, which decide windows and devices, with its facts.

    Pooled ones, whose committed cells keep no facts, only in want of others, and without clients.
    """
    kinds: dict[tuple[int, ...], tuple[Loaded, DataFacts]] = {}
    for loaded in sorted(runs, key=attrgetter("pooled")):
        facts = data_facts(loaded.run) if loaded.committed is None else loaded.committed.data
        if facts is not None:
            facts = facts.model_copy(update={"clients": ()}) if loaded.pooled else facts
            kinds.setdefault(loaded.replicate[:2], (loaded, facts))
    return [kinds[kind] for kind in sorted(kinds)]


def _windows_table(comparison: Comparison, slug: str, known: Sequence[tuple[Loaded, DataFacts]]) -> Table:
    """A row per fold: who is tested on, and how many windows each part has."""
    rows, is_folded = [], has_folds(known[0][0].run.config)
    for loaded, facts in known:
        place = str(loaded.replicate[0]) if is_folded else split_name(comparison.text("data.split"))
        numbers = (facts.test, facts.train, facts.validation, len(facts.clients))
        row = [place, ", ".join(loaded.subjects) or NONE, *(f"{n:,}" if n else NONE for n in numbers)]
        rows += [] if row in rows else [row]
    first = "fold" if is_folded else "split"
    head = [first, "tested on subjects", "test windows", "training windows", "validation windows", "clients"]
    return word_table(head, rows, slug, _caption(comparison, known[0][1])).without_blanks()


def _caption(comparison: Comparison, facts: DataFacts) -> str:
    """``Data: DSA; windows of 5.12 s, one every 5 s; 19 classes. F1 is taken over the test windows.``."""
    stride = comparison.text("data.stride_s") or "1"
    shared = 1 - float(stride) / facts.window_s
    alike = f" Neighbouring windows share {shared:.0%} of their samples." if shared > _FEW_SHARED else ""
    return (
        f"Data: {comparison.title}; windows of {facts.window_s:g} s, one every {stride} s; "
        f"{facts.num_classes} classes. F1 is taken over the test windows.{alike}"
    )


def _clients_table(
    comparison: Comparison, slug: str, clients: Sequence[ClientData], lacking: Mapping[str, Sequence[str]]
) -> Table:
    """A row per client; where folds or rotations change what a client is, its values stand side by side.

    ``lacking``: sensors that people lack, by subject, those who are only tested too.
    """
    rows = list(starmap(_client_row, sorted(grouped((c.client, c) for c in clients).items())))
    head = ["client", "subject", "device type", "sensors", "training windows"]
    is_varied = any(" / " in cell for row in rows for cell in row)
    changes = "; a / stands between values of folds or rotations that differ" if is_varied else ""
    lacks = "".join(f" Subject {s} lacks {listed(names)}." for s, names in lacking.items())
    return word_table(head, rows, slug, f"Clients: {comparison.title}{changes}.{lacks}").without_blanks()


def _client_row(number: int, same: Sequence[ClientData]) -> list[str]:
    windows = sorted({c.windows for c in same if c.windows})
    spread = f"{windows[0]:,}" if len(windows) == 1 else f"{windows[0]:,} to {windows[-1]:,}" if windows else NONE
    return [
        str(number),
        _side_by_side(c.subject for c in same),
        _side_by_side(c.device for c in same),
        _side_by_side(" + ".join(c.sensors) for c in same),
        spread,
    ]


def _side_by_side(texts: Iterable[str]) -> str:
    return " / ".join(dict.fromkeys(t for t in texts if t)) or NONE


# A figure that is both measured and simulated: heading, where a measurement and a client's costs hold it, decimals.
_PAIRS = (
    ("down, s", "down_s", "times.down_s", 2),
    ("compute, s", "compute_s", "times.compute_s", 2),
    ("up, s", "up_s", "times.up_s", 2),
    ("wait, s", "wait_s", "wait_s", 2),
    ("J", "energy_j", "energy_j", 1),
)
_NOTES = (
    "Means over a type's devices, rounds and runs; n/a: no device of the type tells it. Measured "
    "seconds are of one clock each, at the receiver; measured joules are the whole board's while it fetched, trained "
    "and packed, simulated ones those of a whole round.",
    "Simulated figures are those of the fleet that the run was given, whatever boards computed it: they are expected "
    "to agree only where the clock is a profile of these boards (`costs.profile`).",
)


_Measured = tuple[int, PhysicalRecord, ClientCost | None]


def physical_table(comparison: Comparison) -> Table | None:
    """A row per method and device type; None where nothing was measured on devices (``runtime.physical``)."""
    if not (groups := _measured(comparison)):
        return None
    pairs = [head for name, *_ in _PAIRS for head in (name, f"{name}, by `{comparison.clock}`")]
    return Table(
        caption=f"Testbed as measured, beside the simulation: {comparison.title}.",
        head=("method, type", "runs", *pairs, "boards", "slowed, % of rounds"),
        rows=tuple(
            Row(f"{label}, type {kind}", tuple(_cells(groups[label, kind])))
            for row in comparison.rows
            for label, kind in sorted(groups)
            if label == row.label
        ),
        notes=_NOTES,
    )


def _measured(comparison: Comparison) -> dict[tuple[str, str], list[_Measured]]:
    """Rounds of devices by method and type: number of the run, as measured, as simulated where the clock has it."""
    return grouped(
        ((loaded.label, types.get(client, "?")), (number, measured, costs.get(client)))
        for number, loaded in enumerate(comparison.runs)
        for types in (loaded.types,)
        for record in loaded.rounds
        for costs in ({cost.client: cost for cost in record.costs[comparison.clock].clients},)
        for client, measured in record.physical.items()
    )


def _cells(group: Sequence[_Measured]) -> Iterator[Cell]:
    runs, measured, costs = zip(*group, strict=True)
    simulated = [cost for cost in costs if cost is not None]
    yield Cell(str(len({*runs})), numbers={"n": len({*runs})})
    for _, ours, theirs, decimals in _PAIRS:
        yield _mean(map(attrgetter(ours), measured), decimals, "measured")
        yield _mean(map(attrgetter(theirs), simulated), decimals, "simulated")
    modes = {f"{m.device}, {m.power_mode}" if m.power_mode else m.device for m in measured}
    yield Cell("; ".join(sorted(modes)))
    yield _mean((None if m.throttled is None else 100.0 * m.throttled for m in measured), 0, "measured")


def _mean(values: Iterable[float | None], decimals: int, origin: Origin) -> Cell:
    """Mean of the values that are there, ``n/a`` without any."""
    there = [value for value in values if value is not None]
    if not there:
        return Cell("n/a", origin=origin, numbers={"n": 0, "origin": origin})
    text = f"{mean(there):.{decimals}f}"
    return Cell(text, origin=origin, numbers={"mean": mean(there), "n": len(there), "origin": origin})
