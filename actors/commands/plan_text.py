"""Text and JSON of a grid before it starts and after it has ended; small plain tables for all commands."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from actors.grids.display import duration, shortened
from actors.grids.estimate import Estimate
from actors.grids.progress import f1_heading, last_round
from actors.terminal.mlflow_export import where_to_look
from actors.terminal.progress import headline_f1
from relief_ray.records.cells import STATUS_TEXT, CellState
from relief_ray.report.runs import split_name
from relief_ray.studies.plan import Plan
from relief_ray.studies.spec import Cell
from relief_ray.support.errors import counted
from relief_ray.support.text import WIDTH, filled, table, typed, wrapped

MIB = 2**20


_MAX_ROWS = 40


def counts(entries: Sequence[CellState[Cell]]) -> str:
    """``10 done, 1 failed, 1 planned``."""
    numbers = {status: sum(e.status == status for e in entries) for status in STATUS_TEXT}
    return ", ".join(f"{number} {status}" for status, number in numbers.items() if number)


def plan_text(
    plan: Plan,
    entries: Sequence[CellState[Cell]],
    known: Mapping[str, Estimate],
    num_places: int,
    start_s: float,
    share: float = 1.0,
) -> str:
    """Table of cells by setting and method, with time, disk, and the source of these estimates.

    ``share``: that of all cells which ``entries`` are; the sums are of all of them.
    """
    rows = [[setting, method, *rest] for (setting, method), rest in estimate_rows(entries, known).items()]
    shown = table(["setting", "method", "to do", "a cell", "all", "disk"], rows[:_MAX_ROWS], left=2)
    more = [f"  ... and {len(rows) - _MAX_ROWS} rows more"] if len(rows) > _MAX_ROWS else []
    data = sorted({f"{e.cell.config.data.name}, {split_name(e.cell.config.data.split)}" for e in entries})
    lines = [
        filled(f"{plan.name}: {plan.title}", rest="  "),
        f"{len(entries)} cells ({counts(entries)}), seed-major; records in {plan.out}",
        *_of_all(share, f"of {round(len(entries) / share)}: later ones are suggested once these are scored"),
        "",
        *(shown.splitlines() if _widest(shown) <= WIDTH else _by_setting(rows[:_MAX_ROWS])),
        *more,
        *estimate_notes(entries, known),
        "",
        *sum_lines(known, num_places, start_s, share),
        *([] if plan.stopping is None else ["(tries that ASHA stops early take less)"]),
        f"data: {'; '.join(data)}",
    ]
    return "\n".join(lines)


def _of_all(share: float, line: str) -> list[str]:
    """The line where a plan has a share of all cells only."""
    return [line] if share < 1.0 else []


def _widest(text: str) -> int:
    return max(map(len, text.splitlines()))


def _by_setting(rows: Sequence[Sequence[str]]) -> list[str]:
    """The same table with every setting on a line of its own, for long names."""
    head, *lines = table(["method", "to do", "a cell", "all", "disk"], [row[1:] for row in rows]).splitlines()
    rule, *cells = lines
    by_setting: dict[str, list[str]] = {}
    for row, line in zip(rows, cells, strict=True):
        by_setting.setdefault(row[0], []).append(line)
    return [head, rule, *(line for setting, below in by_setting.items() for line in (setting, *below))]


def estimate_rows(
    entries: Sequence[CellState[Cell]], known: Mapping[str, Estimate]
) -> dict[tuple[str, str], tuple[str, str, str, str]]:
    """Cells to do of all, seconds of one and of all, and disk; by setting and method."""
    groups: dict[tuple[str, str], list[CellState[Cell]]] = {}
    for entry in entries:
        groups.setdefault((entry.cell.setting, entry.cell.method), []).append(entry)
    rows = {}
    for key, members in groups.items():
        estimated = [known[e.cell.name] for e in members if e.cell.name in known]
        seconds, sizes = [k.seconds for k in estimated], [k.num_bytes or 0 for k in estimated]
        total = sum(s for s in seconds if s is not None)
        costs = ("", "", "") if not estimated else (duration(total / len(estimated)), duration(total), mib(sum(sizes)))
        rows[key] = (f"{len(estimated)}/{len(members)}", *(("?", "?", "?") if None in seconds else costs))
    return rows


def estimate_notes(entries: Sequence[CellState[Cell]], known: Mapping[str, Estimate]) -> list[str]:
    """Lines on the source of the estimates: a source, and the methods that it is of."""
    methods: dict[str, dict[str, None]] = {}
    for entry in entries:
        if entry.cell.name in known:
            methods.setdefault(known[entry.cell.name].origin, {})[entry.cell.method] = None
    return [
        line for origin, labels in methods.items() for line in wrapped(f"{', '.join(labels)}: {origin}", "  ", "    ")
    ]


def sum_lines(known: Mapping[str, Estimate], num_places: int, start_s: float, share: float = 1.0) -> list[str]:
    """Time and disk of everything that is to do, and what the time includes; ``start_s``: until the first begins."""
    facts = totals(known, num_places, start_s, share)
    if known and all(k.seconds is None for k in known.values()):
        return wrapped(f"time and disk are unknown: no round of the {round(facts['unknown'])} cells could be timed")
    unknown = f"; {facts['unknown']:.0f} cells of unknown length" if facts["unknown"] else ""
    one, all_places = duration(facts["core_s"]), duration(facts["wall_s"])
    disk = mib(int(facts["bytes"]))
    with_start, start = (" with Ray's start", f"; Ray's start: {duration(start_s)}") if start_s and known else ("", "")
    takes = f"on {counted(num_places, 'core')} it takes {all_places}{with_start}{unknown}"
    return [
        *wrapped(f"in all {one} of work, {disk} of disk; {takes}"),
        *_of_all(share, f"(all {round(len(known) / share)} cells, as costly on average as these {len(known)})"),
        f"(work: set-up, rounds and tests of every run{start})",
    ]


def plan_facts(
    plan: Plan,
    entries: Sequence[CellState[Cell]],
    known: Mapping[str, Estimate],
    num_places: int,
    start_s: float,
    share: float = 1.0,
) -> dict[str, object]:
    """``plan_text`` as JSON: every cell with the seconds and bytes that it still needs; null where unknown."""
    rows = []
    for row, entry in zip(_cell_facts(entries), entries, strict=True):
        estimate = known.get(entry.cell.name)
        values = (None, None, None) if estimate is None else (estimate.seconds, estimate.num_bytes, estimate.origin)
        rows.append({**row, **dict(zip(("seconds", "bytes", "origin"), values, strict=True))})
    facts = {"event": "plan", "grid": plan.name, "folder": str(plan.out), "cores": num_places}
    return {**facts, **totals(known, num_places, start_s, share), "share_listed": share, "cells": rows}


def totals(known: Mapping[str, Estimate], num_places: int, start_s: float, share: float = 1.0) -> dict[str, float]:
    """Sums over all cells to do: seconds of one core and on all, bytes, and the number of cells of unknown length.

    ``start_s``, Ray's start, is part of the wall time on all cores, once. ``share``: that of all cells which are
    ``known``; the others count as much on average.
    """
    seconds = [k.seconds for k in known.values() if k.seconds is not None]
    core_s = sum(seconds) / share
    return {
        "core_s": core_s,
        "start_s": start_s if known else 0.0,
        "wall_s": core_s / num_places + (start_s if known else 0.0),
        "bytes": round(sum(k.num_bytes or 0 for k in known.values()) / share),
        "unknown": round((len(known) - len(seconds)) / share),
    }


def tell(facts: Mapping[str, object]) -> None:
    """Print a JSON object on a line of its own."""
    print(json.dumps(facts), flush=True)


def mib(num_bytes: int) -> str:
    """``12 MiB``."""
    return f"{num_bytes / 2**20:.{0 if num_bytes > 10 * 2**20 else 1}f} MiB"


def print_end(plan: Plan, entries: Sequence[CellState[Cell]], as_json: bool) -> None:
    """Print a grid's cells by status and the scores of those that are done."""
    if as_json:
        print_status(plan, entries, as_json)
        return
    print(f"\n{plan.name}: {counts(entries)} of {len(entries)} cells; records in {plan.out}")
    rows = _score_rows(entries)
    if rows:
        print(table(["setting", "method", f1_heading(entries), "cells"], rows, left=2))
    for entry in entries:
        if entry.status in ("failed", "stale"):
            print(f"{entry.status}: {entry.cell.name}: {entry.why.splitlines()[0] if entry.why else ''}")
    if any(e.is_open for e in entries):
        print(f"\nGo on with  relief-ray grid resume {typed(plan.out)}")
    if rows:
        print("", _next_step(plan), *where_to_look(plan.cells[0].config.tracking, plan.out), sep="\n", flush=True)


def stale_advice(stale: Sequence[CellState[Cell]], command: str) -> str:
    """Say what it means that finished cells are stale, and the ``command`` that computes them again."""
    verb = "is" if len(stale) == 1 else "are"
    return (
        f"{counted(len(stale), 'cell')} {verb} stale: computed with other code or weights (`there`) than today's "
        f"(`here`)\ncompute again with: {command}"
    )


def _next_step(plan: Plan) -> str:
    """The next command for the cells that are done."""
    if any(c.config.choice is not None and c.config.choice.kind == "try" for c in plan.cells):
        return f"Best tries  relief-ray grid freeze {typed(plan.out)}"
    # A comparison is of one setting; a report has a section for each.
    command = "compare" if len({c.setting for c in plan.cells}) == 1 else "report"
    return f"Side by side  relief-ray {command} {typed(plan.out)}"


def _score_rows(entries: Sequence[CellState[Cell]]) -> list[tuple[str, str, str, str]]:
    """Mean and sample standard deviation of the last F1 over folds and seeds, by setting and method."""
    groups: dict[tuple[str, str], list[float]] = {}
    for entry in entries:
        f1 = headline_f1(last_round(entry.folder)) if entry.status == "done" else None
        if f1 is not None:
            groups.setdefault((entry.cell.setting, entry.cell.method), []).append(100 * f1)
    return [
        (setting, label, f"{fmean(v):.1f}" + (f"±{stdev(v):.1f}" if len(v) > 1 else ""), str(len(v)))
        for (setting, label), v in groups.items()
    ]


def print_status(plan: Plan, entries: Sequence[CellState[Cell]], as_json: bool) -> None:
    """Print every cell with its status."""
    if not as_json:
        print(f"{plan.name}: {counts(entries)} of {len(entries)} cells; {plan.out}")
        for entry in entries:
            facts = (f"{entry.num_rounds}/{entry.cell.num_planned} rounds", entry.why.split("\n")[0])
            print(shortened(f"{entry.status:<12}", entry.cell.name, "".join(f"  {fact}" for fact in facts if fact)))
        return
    tell({"event": "grid", "grid": plan.name, "folder": str(plan.out), "cells": _cell_facts(entries)})


def _cell_facts(entries: Sequence[CellState[Cell]]) -> list[dict[str, object]]:
    """Every cell with its status, as JSON."""
    return [
        {
            "cell": e.cell.name,
            "strategy": e.cell.label,
            "setting": e.cell.setting,
            "status": e.status,
            "rounds": e.num_rounds,
            "planned": e.cell.num_planned,
            "why": e.why or None,
        }
        for e in entries
    ]
