"""What the report rests on: cells by state, settings, machine and programs."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from relief_ray.errors import listed
from relief_ray.records.identity import source_digest
from relief_ray.report.document import ORIGINS, Entry, Line, Prose, Section, Sheet, words
from relief_ray.report.experiments import Experiment, settings_rows
from relief_ray.report.inventory import STATES, Slot, Stock, choice_kind
from relief_ray.report.runs import Loaded


def overview(stock: Stock, found: Sequence[Experiment]) -> Section:
    """Counts, settings and the meaning of origins."""
    blocks: list[Sheet | Prose] = [counts(stock, found)]
    if stock.done:
        blocks.append(
            words("settings", "Settings of the runs that count.", ["setting", "value"], settings_rows(stock.done))
        )
    blocks += programs(stock.done)
    blocks.append(words("origins", "Where figures come from.", ["origin", "meaning"], list(ORIGINS.items())))
    return Section(title="What this rests on", slug="overview", blocks=tuple(blocks))


def counts(stock: Stock, found: Sequence[Experiment]) -> Sheet:
    """A row per experiment: its cells by state."""
    rows = [(e.title, e.slots) for e in found]
    lost = tuple(s for s in stock.slots if not s.config)
    rows += [("cells whose record cannot be read", lost)] if lost else []
    rows += [("all", stock.slots)] if len(rows) != 1 else []
    lines = [Line(name=name, entries=tuple(_counts(slots)), rule=name == "all") for name, slots in rows]
    return Sheet(
        slug="cells",
        caption="Cells by state. Only `done` cells enter means; the others are listed at the end.",
        head=("experiment", "planned or found", *STATES),
        lines=tuple(lines),
    )


def _counts(slots: Sequence[Slot]) -> Iterable[Entry]:
    number = Counter(s.state for s in slots)
    yield Entry(text=str(len(slots)), numbers={"n": len(slots)})
    for state in STATES:
        tone = "gap" if number[state] and state != "done" else ""
        yield Entry(text=str(number[state]), tone="gap" if tone else "", numbers={"n": number[state]})


def programs(runs: Sequence[Loaded]) -> list[Prose | Sheet]:
    """A notice and a table where cells were computed by different programs."""
    kinds = Counter((r.run.source_digest[:12], r.run.machine.torch, r.run.machine.architecture) for r in runs)
    if len(kinds) < 2:
        return []
    here = source_digest()[:12]
    rows = [
        [f"{digest}{' (this program)' if digest == here else ''}", torch, machine, str(number)]
        for (digest, torch, machine), number in kinds.most_common()
    ]
    text = (
        f"Cells of {len(kinds)} different programs stand in this report. Rows that mix them say so (`by other code`); "
        "a difference between methods may then be one between programs. Compute the old cells again "
        "(`--rerun-stale`) before you rely on it."
    )
    head = ["sources", "torch", "architecture", "cells"]
    return [Prose(lines=(text,), tone="warn"), words("programs", "Programs.", head, rows)]


def gaps(stock: Stock) -> Section | None:
    """Every cell that is not done, and why."""
    rows = [
        [s.name, s.title if s.config else s.label, s.state, s.why or STATES[s.state]]
        for s in stock.slots
        if s.state != "done" and not (s.state == "untested" and choice_kind(s.config) == "try")
    ]
    if not rows:
        return None
    caption = f"{len(rows)} cells that are not in any mean."
    sheet = words("gaps", caption, ["cell", "run", "state", "why"], rows)
    return Section(title="Gaps", slug="gaps", blocks=(sheet,))


def footer(runs: Sequence[Loaded]) -> str:
    """Machine, cores, threads, torch build, engine, data origin, sources; the commit where they are those at hand."""
    if not runs:
        return "No run counts: nothing was measured."
    machines = _distinct(
        f"{m.cpu}, {m.num_cores} cores, {m.num_threads} thread{'s' if m.num_threads > 1 else ''}"
        for m in (r.run.machine for r in runs)
    )
    torch = _distinct(f"torch {r.run.machine.torch}" for r in runs)
    engine = _distinct(f"engine {r.run.engine}" for r in runs)
    data = _distinct(f"{r.run.data_origin} data" for r in runs)
    digests = list(dict.fromkeys(r.run.source_digest for r in runs))
    code = "sources " + listed(d[:12] for d in digests)
    known = commit() if digests == [source_digest()] else None
    return "; ".join([machines, torch, engine, data, code + (f", commit {known}" if known else "")])


def _distinct(values: Iterable[str]) -> str:
    return listed(dict.fromkeys(values))


def commit() -> str | None:
    """The commit of the sources at hand, marked where they were changed since; None outside a repository."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=10"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None if found.returncode == 0 else None
