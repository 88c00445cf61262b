"""Output at the end of a run and of `compare`: table, figures and verdict."""

from __future__ import annotations

import importlib.util
import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from actors.commands.folders import find_runs
from actors.commands.plan import Plan
from actors.terminal.exit_codes import WIDTH
from actors.terminal.mlflow_export import where_to_look
from relief_ray.files import disk_errors, replace_file
from relief_ray.records.tracking import sync as tell

if TYPE_CHECKING:
    from relief_ray.report.comparison import Comparison

FIGURE = "timeline.png"


def show_results(plan: Plan, as_json: bool) -> None:
    """Print table, figure file and verdict of everything that a plan holds."""
    from relief_ray.report.comparison import compare as put_together

    if not any("test" in cell.config.evaluation.parts for cell in plan.cells):
        print("\nno table: these runs were never evaluated on the test part (evaluation.parts)", file=sys.stderr)
        return
    comparison = put_together([cell.folder for cell in plan.cells])
    written = draw(comparison, plan.out / FIGURE)
    if as_json:
        print_json(comparison, written)
        return
    print_text(
        comparison, [f"Figure  {path}" for path in written] + where_to_look(plan.cells[0].config.tracking, plan.out)
    )


def compare(folders: Sequence[Path], out: Path | None, as_json: bool) -> None:
    """Run `relief-ray compare`.

    Raises:
        UserError: no finished run there, or runs of different experiments.
    """
    from relief_ray.report.comparison import compare as put_together

    comparison = put_together(find_runs(folders))
    written = write_files(comparison, out) if out is not None else []
    if as_json:
        print_json(comparison, written)
    else:
        print_text(comparison, [f"Written {path}" for path in written])


def last_line(comparison: Comparison) -> str | None:
    """The verdict; it needs two methods."""
    from relief_ray.report.claims import last_line as verdict_line

    return verdict_line(comparison) if len(comparison.rows) > 1 else None


def print_json(comparison: Comparison, written: Sequence[Path]) -> None:
    """Print the comparison as one line of JSON."""
    from relief_ray.report.formats import text as render

    facts = json.loads(render.as_json(comparison))
    files = [str(path) for path in written]
    print(json.dumps({"event": "comparison", **facts, "files": files, "verdict": last_line(comparison)}))


def print_text(comparison: Comparison, remarks: Sequence[str]) -> None:
    """Print table, remarks, and the verdict last."""
    from relief_ray.report.formats import text as render

    parts = [render.plain(comparison).rstrip(), "\n".join(remarks), fill(last_line(comparison) or "")]
    print("\n" + "\n\n".join(part for part in parts if part), flush=True)


def fill(text: str) -> str:
    """Text wrapped to the terminal, words left whole."""
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def draw(comparison: Comparison, path: Path) -> list[Path]:
    """Draw the timeline of a round, FedAvg above RELIEF; nothing where one of them is missing, or matplotlib is."""
    from relief_ray.report.figures.timeline import pair, timeline

    runs = pair(comparison)
    if runs is None or importlib.util.find_spec("matplotlib") is None:
        return []

    with disk_errors(path, "write the figure"):
        return [timeline(*runs, path)]


def write_files(comparison: Comparison, out: Path) -> list[Path]:
    """Write the table as Markdown, JSON and CSV, timeline and curves.

    Raises:
        UserError: the folder cannot be written.
    """
    from relief_ray.report.formats import text as render

    with disk_errors(out, "write there"):
        out.mkdir(parents=True, exist_ok=True)
    texts = {"md": render.markdown, "json": render.as_json, "csv": render.as_csv}
    written = [out / f"comparison.{suffix}" for suffix in texts]
    for path, make in zip(written, texts.values(), strict=True):
        replace_file(path, make(comparison).encode())
    return [*written, *draw(comparison, out / FIGURE), *draw_curves(comparison, out / "curves.png")]


def draw_curves(comparison: Comparison, path: Path) -> list[Path]:
    """Draw F1 over rounds, seconds, joules and bytes; nothing where matplotlib or pandas is missing."""
    if any(importlib.util.find_spec(name) is None for name in ("matplotlib", "pandas")):
        return []
    from relief_ray.report.figures.progress import curves

    with disk_errors(path, "write the figure"):
        return [curves(comparison, path)]


def sync(folders: Sequence[Path], uri: str | None, as_json: bool) -> None:
    """Run `relief-ray sync`."""
    for folder in find_runs(folders):
        done = tell(folder, uri)
        if as_json:
            facts = {"folder": str(folder), "uri": done.uri, "run_id": done.run_id, "num_points": done.num_points}
            print(json.dumps(facts))
        else:
            print(f"{folder}: {done.num_points} new points in {done.uri} (run {done.run_id})")
