"""`relief-ray compare`, `report` and `sync`: tables, figures and verdict of finished runs; copies in MLflow."""

from __future__ import annotations

import importlib.util
import json
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from actors.terminal.exit_codes import WIDTH
from actors.terminal.mlflow_export import where_to_look
from relief_ray.citations import cite
from relief_ray.errors import UserError
from relief_ray.files import disk_errors, write_atomic
from relief_ray.records.cells import find_runs
from relief_ray.records.run_folder import read_run
from relief_ray.records.tracking import sync
from relief_ray.studies.plans import Plan

if TYPE_CHECKING:
    from relief_ray.report.comparison import Comparison
    from relief_ray.report.inventory import Inventory


OUT = "report"


def report_command(folders: Sequence[Path], out: Path | None, commit: Path | None, as_json: bool) -> None:
    """Write the page and its files; a partial grid renders too, with its gaps. ``commit``: the small form as well.

    Raises:
        UserError: a folder holds neither plan nor run, or nothing can be written.
    """
    from relief_ray.report.build import build, write
    from relief_ray.report.inventory import STATUSES, take_inventory
    from relief_ray.report.registered import registry_of

    inventory, registry = take_inventory(folders), registry_of(folders)
    place = out or (folders[0] if folders[0].is_dir() else folders[0].parent) / OUT
    document = build(inventory, registry)
    written = write(document, place)
    written += [] if commit is None else [_write_small(inventory, commit)]
    number = {status: inventory.count(status) for status in STATUSES}
    if as_json:
        facts = {"event": "report", "cells": number, "files": [str(path) for path in written], "lead": document.lead}
        print(json.dumps(facts))
        return
    shown = ", ".join(f"{n} {status}" for status, n in number.items() if n) or "none"
    figures = f"{len(document.tables)} tables, {len(document.figures)} figures"
    print(f"Cells   {shown}\nHolds   {figures}")
    print("\n".join(f"Written {path}" for path in written))


def _write_small(inventory: Inventory, place: Path) -> Path:
    """``cells.json`` with every finished cell, for the repository and for `relief-ray reproduce`.

    Raises:
        UserError: no cell is finished, or two have one name.
    """
    from relief_ray.records.committed import FILE, condense, write_committed

    done = [(s.name, s.loaded) for s in inventory.items if s.status == "done" and s.loaded is not None]
    twice = [name for name, number in Counter(name for name, _ in done).items() if number > 1]
    if twice or not done:
        found = f"cells named {', '.join(twice[:3])} more than once" if twice else "no finished cell"
        raise UserError(f"--commit {place}: found {found}; commit the folders of one grid at a time")
    cells = ((name, condense(loaded.run, loaded.rounds)) for name, loaded in done)
    return write_committed(place / FILE, "; ".join(inventory.titles) or place.name, cells)


_FIGURE = "timeline.png"


def show_results(plan: Plan, as_json: bool) -> None:
    """Print table, figure file and verdict of all runs of a plan."""
    from relief_ray.report.comparison import compare

    if not any("test" in cell.config.evaluation.parts for cell in plan.cells):
        print("\nno table: these runs were never evaluated on the test part (evaluation.parts)", file=sys.stderr)
        return
    comparison = compare([plan.out / cell.name for cell in plan.cells])
    written, sentence = draw(comparison, plan.out / _FIGURE), verdict(comparison, [plan.out])
    if as_json:
        _print_json(comparison, written, sentence)
        return
    where = where_to_look(plan.cells[0].config.tracking, plan.out)
    _print_text(comparison, [f"Figure  {path}" for path in written] + where, sentence)


def compare_command(folders: Sequence[Path], out: Path | None, as_json: bool) -> None:
    """Run `relief-ray compare`.

    Raises:
        UserError: no finished run there, or runs of different experiments.
    """
    from relief_ray.report.comparison import compare

    comparison = compare(find_runs(folders))
    written, sentence = _write_files(comparison, out) if out is not None else [], verdict(comparison, folders)
    if as_json:
        _print_json(comparison, written, sentence)
    else:
        _print_text(comparison, [f"Written {path}" for path in written], sentence)


def bibtex_command(folders: Sequence[Path]) -> None:
    """Print the references that the runs' methods stated when the runs began.

    Raises:
        UserError: there is no run.
    """
    citations = (read_run(folder).method.citation for folder in find_runs(folders))
    print(cite(citation for citation in citations if citation is not None))


def verdict(comparison: Comparison, folders: Sequence[Path]) -> str | None:
    """Return the last line: what runs decide about the claims in their folders' plans; None for a single method."""
    from relief_ray.report.claims import judge, last_line
    from relief_ray.report.registered import registry_of

    if len(comparison.rows) < 2:
        return None
    (judgement,), problems = judge([comparison], registry_of(folders))
    return last_line(comparison, judgement, problems)


def _print_json(comparison: Comparison, written: Sequence[Path], sentence: str | None) -> None:
    """Print the comparison as one line of JSON."""
    from relief_ray.report.formats import text as render

    facts = json.loads(render.as_json(comparison))
    files = [str(path) for path in written]
    print(json.dumps({"event": "comparison", **facts, "files": files, "verdict": sentence}))


def _print_text(comparison: Comparison, remarks: Sequence[str], sentence: str | None) -> None:
    """Print table, remarks, and the verdict last."""
    from relief_ray.report.formats import text as render

    parts = [render.plain(comparison).rstrip(), "\n".join(remarks), fill(sentence or "")]
    print("\n" + "\n\n".join(part for part in parts if part), flush=True)


def fill(text: str) -> str:
    """Text wrapped to the terminal, words left whole."""
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def draw(comparison: Comparison, path: Path) -> list[Path]:
    """Draw the timeline of a round, FedAvg above RELIEF; nothing where a method or matplotlib is missing."""
    from relief_ray.report.figures.timeline import pair, timeline

    methods = pair(comparison)
    if methods is None or importlib.util.find_spec("matplotlib") is None:
        return []

    with disk_errors(path, "write the figure"):
        return [timeline(*methods, path)]


def _write_files(comparison: Comparison, out: Path) -> list[Path]:
    """Write the table as Markdown, JSON and CSV, the timeline and the curves.

    Raises:
        UserError: the folder cannot be written.
    """
    from relief_ray.report.formats import text as render

    with disk_errors(out, "write there"):
        out.mkdir(parents=True, exist_ok=True)
    texts = {"md": render.markdown, "json": render.as_json, "csv": render.as_csv}
    written = [out / f"comparison.{suffix}" for suffix in texts]
    for path, make in zip(written, texts.values(), strict=True):
        write_atomic(path, make(comparison).encode())
    return [*written, *draw(comparison, out / _FIGURE), *_draw_curves(comparison, out / "curves.png")]


def _draw_curves(comparison: Comparison, path: Path) -> list[Path]:
    """Draw F1 over rounds, seconds, joules and bytes; nothing where matplotlib or pandas is missing."""
    if any(importlib.util.find_spec(name) is None for name in ("matplotlib", "pandas")):
        return []
    from relief_ray.report.figures.progress import curves

    with disk_errors(path, "write the figure"):
        return [curves(comparison, path)]


def sync_command(folders: Sequence[Path], uri: str | None, as_json: bool) -> None:
    """Run `relief-ray sync`."""
    for folder in find_runs(folders):
        done = sync(folder, uri)
        if as_json:
            facts = {"folder": str(folder), "uri": done.uri, "run_id": done.run_id, "num_points": done.num_points}
            print(json.dumps(facts))
        else:
            print(f"{folder}: {done.num_points} new points in {done.uri} (run {done.run_id})")
